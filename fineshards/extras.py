"""Which extra brings a library that is missing."""

from __future__ import annotations

from fineshards.errors import UsageError

# Top-level modules by the extra of pyproject.toml that installs them.
_MODULES = {
    "build": (
        *("apache_beam", "awkward", "datasets", "fsspec", "gigatoken", "google_crc32c"),
        *("huggingface_hub", "orjson", "pyarrow", "regex", "rich", "tiktoken", "tiktoken_ext"),
        "tokenizers",
    ),
    "gcs": ("google", "requests"),
    "dataflow": ("apitools",),
    "torch": ("torch", "torchdata"),
    "jax": ("jax",),
    "grain": ("grain",),
}


def missing_extra(error: ModuleNotFoundError) -> UsageError | None:
    """What to install, from the import that failed; None if it is not a library of ours.

    Example:
        >>> print(missing_extra(ModuleNotFoundError(name="pyarrow.parquet")))
        pyarrow is not installed. Install it with: pip install 'fineshards[build]'
    """
    module = (error.name or "").partition(".")[0]
    for extra, modules in _MODULES.items():
        if module in modules:
            return UsageError(
                f"{module} is not installed. Install it with: pip install 'fineshards[{extra}]'"
            )
    return None
