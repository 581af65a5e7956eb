"""The text of an HTML page, by one of two libraries.

The libraries and their versions decide the text, so they are recorded with each WARC file
(`SourceFile.extraction`). Limits are sizes, never seconds: the text of a page depends on the page
alone, not on the machine, nor on the pages before it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from typing import Any

from fineshards.errors import InputError, UsageError
from fineshards.extras import naming_the_extra, require
from fineshards.shards.records import SourceFile

RESILIPARSE = "resiliparse"
TRAFILATURA = "trafilatura"
# The largest page in bytes. Common Crawl keeps 5 MiB of a page at most; trafilatura takes some ten
# seconds for each MiB.
HTML_LIMITS = {RESILIPARSE: 8 << 20, TRAFILATURA: 2 << 20}
# Browsers nest no deeper. The time that resiliparse takes grows with the square of the depth.
DEPTH_LIMIT = 512
_TOO_DEEP = ">".join("*" * (DEPTH_LIMIT + 1))
# What each needs: fastwarc reads the responses, resiliparse finds the encoding for both.
_LIBRARIES = {
    RESILIPARSE: ("fastwarc", "resiliparse"),
    TRAFILATURA: ("fastwarc", "resiliparse", "trafilatura", "justext", "lxml", "lxml-html-clean"),
}


class ExtractionError(Exception):
    """A page whose text cannot be extracted; the message is a phrase about its row."""


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
            "job, or build the dataset again with --overwrite."
        )
    return extractor


@cache
def _installed(extractor: str) -> str:
    """An extractor with the versions of its libraries, such as `resiliparse: fastwarc 2.0.1, …`."""
    libraries = (f"{library} {version(library)}" for library in _LIBRARIES[extractor])
    return f"{extractor}: {', '.join(libraries)}"


@naming_the_extra()
def extract(html: bytes, extractor: str) -> str | None:
    """The text of a page, or None if it has none; raises ExtractionError if that fails.

    The encoding is that of the page's meta element, or what resiliparse detects.
    """
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding
    from resiliparse.parse.html import HTMLTree

    try:
        page = bytes_to_str(html, detect_encoding(html, from_html_meta=True) or "utf-8")
        tree = HTMLTree.parse(page)
        if tree.document and tree.document.query_selector(_TOO_DEEP) is not None:
            raise ExtractionError(f"its HTML is nested deeper than {DEPTH_LIMIT} elements")
        text = _by_trafilatura(page) if extractor == TRAFILATURA else _by_resiliparse(tree)
        (text or "").encode()
    except (ExtractionError, MemoryError):
        raise
    except Exception as error:
        raise ExtractionError(
            f"its text cannot be extracted ({type(error).__name__}: {error})"
        ) from error
    return text if text and text.strip() else None


def _by_resiliparse(tree: Any) -> str | None:
    from resiliparse.extract.html2text import extract_plain_text

    text: str = extract_plain_text(
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
    return text


def _by_trafilatura(page: str) -> str | None:
    """As FineWeb, but without deduplication, whose memory of earlier pages is the process's own."""
    import trafilatura

    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)
    text: str | None = trafilatura.extract(
        page, favor_precision=True, include_comments=False, deduplicate=False
    )
    return text
