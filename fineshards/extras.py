"""Names the extra to install when an optional library is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fineshards.errors import UsageError

# The top-level modules that each extra of pyproject.toml installs.
_MODULES = {
    "build": (
        *("apache_beam", "awkward", "datasets", "fsspec", "gigatoken", "google_crc32c"),
        *("huggingface_hub", "orjson", "pyarrow", "regex", "rich", "tiktoken", "tiktoken_ext"),
        "tokenizers",
    ),
    "gcs": ("google", "requests"),
    "dataflow": ("apitools",),
    "torch": ("torch",),
    "jax": ("jax",),
    "grain": ("grain",),
}


def missing_extra(error: ModuleNotFoundError) -> UsageError | None:
    """Returns the error that names the extra to install, or None if no extra has the module.

    Example:
        >>> print(missing_extra(ModuleNotFoundError(name="pyarrow.parquet")))
        pyarrow is not installed. Install it with: pip install 'fineshards[build]'
    """
    module = (error.name or "").partition(".")[0]
    # `google` is shared by many distributions.
    library = "google-cloud-storage" if module == "google" else module
    for extra, modules in _MODULES.items():
        if module in modules:
            return UsageError(
                f"{library} is not installed. Install it with: pip install 'fineshards[{extra}]'"
            )
    return None


@contextmanager
def naming_the_extra() -> Iterator[None]:
    """Raises UsageError, with the extra to install, where an import of an optional library fails.

    Also a decorator.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        explained = missing_extra(error)
        if explained is None:
            raise
        raise explained from error
