"""The text of an HTML page, by one of two libraries.

The libraries, their versions and the rules of this package decide the text, so they are recorded
with each WARC file (`SourceFile.extraction`). Limits are sizes, never seconds: the text of a page
depends on the page alone, not on the machine, nor on the pages before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

from fineshards.errors import InputError, UsageError
from fineshards.extras import naming_the_extra, require
from fineshards.shards.job.records import SourceFile
from fineshards.shards.record import replace
from fineshards.sources.formats.page_encoding import decoded

RESILIPARSE = "resiliparse"
TRAFILATURA = "trafilatura"
# The largest page in bytes. Common Crawl keeps 5 MiB of a page at most; trafilatura takes some ten
# seconds for each MiB.
HTML_LIMITS = {RESILIPARSE: 8 << 20, TRAFILATURA: 2 << 20}
# Browsers nest no deeper. The time that resiliparse takes grows with the square of the depth.
DEPTH_LIMIT = 512
# Increment when the same libraries would give other texts.
_RULES = "rules 2"
_TOO_DEEP = ">".join("*" * (DEPTH_LIMIT + 1))
# What each needs: fastwarc reads the responses, resiliparse finds the encoding for both.
_LIBRARIES = {
    RESILIPARSE: ("fastwarc", "resiliparse"),
    TRAFILATURA: ("fastwarc", "resiliparse", "trafilatura", "justext", "lxml", "lxml-html-clean"),
}


class ExtractionError(Exception):
    """A page whose text cannot be extracted; the message is a phrase about its row.

    kind: what is wrong, in a word.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def with_extraction(files: Sequence[SourceFile], extractor: str) -> list[SourceFile]:
    """The files, WARC files with what extracts their text.

    Raises UsageError if an extractor is asked for that no file needs, and MissingLibraryError if a
    library is not installed.
    """
    if not any(file.format == "warc" for file in files):
        if extractor != RESILIPARSE:
            raise UsageError(
                f"--extract {extractor} goes with .warc and .warc.gz files, and the input has none."
                " Leave it out."
            )
        return list(files)
    for library in _LIBRARIES[extractor]:
        require(library.replace("-", "_"), library, "warc")
    found = _installed(extractor)
    return [replace(file, extraction=found) if file.format == "warc" else file for file in files]


def check_versions(file: SourceFile) -> str:
    """The extractor of a file; raises InputError if other versions are installed by now."""
    recorded = file.extraction or RESILIPARSE
    extractor = recorded.partition(":")[0]
    if extractor not in _LIBRARIES:
        raise InputError(f"{file.path}: its text was extracted by {extractor}, which is unknown.")
    for library in _LIBRARIES[extractor]:
        require(library.replace("-", "_"), library, "warc")
    if file.extraction is not None and _installed(extractor) != recorded:
        raise InputError(
            f"{file.path}: the job extracts its text with {recorded}; installed are "
            f"{_installed(extractor)}. Other versions may give another text: install those of the "
            "job, with the version of fineshards that started it if the rules differ, or build the "
            "dataset again with --overwrite."
        )
    return extractor


@cache
def _installed(extractor: str) -> str:
    """An extractor with what decides its texts, such as `resiliparse: fastwarc 2.0.1, …, rules 2`.

    The rules are those of this package: encodings, limits. Version 1 has no name.
    """
    libraries = (f"{library} {version(library)}" for library in _LIBRARIES[extractor])
    return f"{extractor}: {', '.join([*libraries, _RULES])}"


@naming_the_extra()
def extract(html: bytes, extractor: str, charset: str | None = None) -> str | None:
    """The text of a page, or None if it has none; raises ExtractionError if that fails.

    charset: what the HTTP header says of its encoding.
    """
    from resiliparse.parse.html import HTMLTree

    found = _trafilatura() if extractor == TRAFILATURA else _resiliparse()
    try:
        page = decoded(html, charset)
        tree = HTMLTree.parse(page)
        if tree.document and tree.document.query_selector(_TOO_DEEP) is not None:
            raise ExtractionError(
                "too_deep", f"its HTML is nested deeper than {DEPTH_LIMIT} elements"
            )
        text = found(page, tree)
        (text or "").encode()
    except (ExtractionError, MemoryError):
        raise
    except Exception as error:
        kind = type(error).__name__  # what it says may quote the page
        raise ExtractionError("failed", f"its text cannot be extracted ({kind})") from error
    return text if text and text.strip() else None


def _resiliparse() -> Callable[[str, Any], str | None]:
    from resiliparse.extract.html2text import extract_plain_text

    return lambda page, tree: extract_plain_text(
        tree,
        preserve_formatting=True,
        main_content=True,
        list_bullets=True,
        alt_texts=False,
        links=False,
        form_fields=False,
        noscript=False,
        comments=False,
    )


def _trafilatura() -> Callable[[str, Any], str | None]:
    """As FineWeb, but without deduplication, whose memory of earlier pages is the process's own."""
    import trafilatura

    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)
    return lambda page, tree: trafilatura.extract(
        page, favor_precision=True, include_comments=False, deduplicate=False
    )
