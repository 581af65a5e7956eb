"""The text of an HTML page, by one of two libraries, and its encoding.

The libraries, their versions and the rules of this package decide the text, so they are recorded
with each WARC file (`SourceFile.extraction`). Limits are sizes, never seconds: the text of a page
depends on the page alone, not on the machine, nor on the pages before it.

An encoding is what the bytes of a page, its server and the page itself say of it. The order
differs from the encoding standard of WHATWG (https://encoding.spec.whatwg.org) in one point: text
that is valid UTF-8, or is but for a few bytes, is UTF-8 whatever is declared. Hardly any other text
is valid UTF-8 by chance, and many declarations are wrong.
"""

import codecs
import logging
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version

from fineshards.errors import InputError, UsageError, did_you_mean, quoted
from fineshards.extras import naming_the_extra, require
from fineshards.shards.job.records import SourceFile
from fineshards.shards.record import replace
from fineshards.sources.formats.format import FORMATS

RESILIPARSE = "resiliparse"
TRAFILATURA = "trafilatura"
# The largest page in bytes. Common Crawl keeps 5 MiB of a page at most; trafilatura takes some ten
# seconds for each MiB.
HTML_LIMITS = {RESILIPARSE: 8 << 20, TRAFILATURA: 2 << 20}
# Browsers nest no deeper. The time that resiliparse takes grows with the square of the depth.
DEPTH_LIMIT = 512
# Increment when the same libraries would give other texts.
_RULES = "rules 6"
_TOO_DEEP = ">".join("*" * (DEPTH_LIMIT + 1))
# What each needs: fastwarc reads the responses, resiliparse finds the encoding for both.
_LIBRARIES = {
    RESILIPARSE: ("fastwarc", "resiliparse"),
    TRAFILATURA: ("fastwarc", "resiliparse", "trafilatura", "justext", "lxml", "lxml-html-clean"),
}

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# Codecs of Python for labels of the standard, where resiliparse names one that knows less.
_CODECS = {
    "shift_jis": "cp932",
    "gbk": "gb18030",
    "big5": "big5hkscs",
    "euc_kr": "cp949",
    "iso8859-11": "cp874",
}
# Of the characters beyond ASCII, this share is sound in a text that is damaged in a few places. In
# text of other encodings at most 0.62 of them are valid UTF-8 by chance, measured on 36,212 texts
# in 40 encodings. One that is declared needs less.
_SOUND, _SOUND_IF_DECLARED = 0.8, 0.5
# Encodings whose bytes can be valid UTF-8, and what they cannot do without.
_ESCAPE, _NUL = b"\x1b", b"\0"
_REPLACED = "\ufffd"


class ExtractionError(Exception):
    """A page whose text cannot be extracted; the message is a phrase about its row.

    kind: what is wrong, in a word.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def with_extraction(
    files: Sequence[SourceFile],
    extractor: str,
    quoting: str | None = None,
    separator: str | None = None,
) -> list[SourceFile]:
    """The files with how they are read: WARC, CSV, TSV and text by the flag of each.

    Raises UsageError for an option that no file needs, and MissingLibraryError if a library is not
    installed.
    """
    similar = did_you_mean(separator or "", ("line", "blank_line"))
    if similar or separator == "":
        raise UsageError(
            f"--text_separator {quoted(separator)}: expected line, blank_line, or a text that "
            f"stands between documents.{similar}"
        )
    formats = {file.format: file.path for file in files[::-1]}
    options = {"warc": extractor, "csv": quoting, "tsv": quoting, "text": separator}
    for flag, value, goes_with in (
        ("extract", extractor if extractor != RESILIPARSE else None, ("warc",)),
        ("quoting", quoting, ("csv", "tsv")),
        ("text_separator", separator, ("text",)),
    ):
        if value is not None and formats.keys().isdisjoint(goes_with):
            endings = " and ".join(FORMATS[name].endings[0] for name in goes_with)
            raise UsageError(
                f"--{flag} {quoted(value)} goes with {endings} files: the input has none."
            )
    if "warc" in formats:
        options["warc"] = _installed(extractor, formats["warc"])
    return [replace(file, extraction=options.get(file.format) or file.extraction) for file in files]


def check_versions(file: SourceFile) -> str:
    """The extractor of a file; raises InputError if other versions are installed by now."""
    recorded = file.extraction or RESILIPARSE
    extractor = recorded.partition(":")[0]
    installed = _installed(extractor)
    if file.extraction is not None and installed != recorded:
        raise InputError(
            f"{file.path}: the job extracts its text with {recorded}; installed are "
            f"{installed}. Other versions may give another text: install those of the "
            "job, with the version of fineshards that started it if the rules differ, or build the "
            "dataset again with --overwrite."
        )
    return extractor


@cache
def _installed(extractor: str, path: str = "") -> str:
    """An extractor with what decides its texts, such as `resiliparse: fastwarc 2.0.1, …, rules 2`.

    The rules are those of this package: encodings, limits. Version 1 has no name.
    """
    names = _LIBRARIES.get(extractor, ())
    for library in names:
        require(library.replace("-", "_"), library, "warc", path)
    libraries = (f"{library} {version(library)}" for library in names)
    return f"{extractor}: {', '.join([*libraries, _RULES])}"


@naming_the_extra()
def extract(html: bytes, extractor: str, charset: str | None = None) -> str | None:
    """The text of a page, or None if it has none; raises ExtractionError if that fails.

    charset: what the HTTP header says of its encoding.
    """
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    if extractor == TRAFILATURA:
        import trafilatura

        logging.getLogger("trafilatura").setLevel(logging.CRITICAL)
    try:
        page = decoded(html, charset)
        tree = HTMLTree.parse(page)
        if tree.document and tree.document.query_selector(_TOO_DEEP) is not None:
            raise ExtractionError(
                "too_deep", f"its HTML is nested deeper than {DEPTH_LIMIT} elements"
            )
        if extractor == TRAFILATURA:
            # As FineWeb, but without deduplication, which remembers the process's earlier pages.
            text = trafilatura.extract(
                page, favor_precision=True, include_comments=False, deduplicate=False
            )
        else:
            text = extract_plain_text(
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
        (text or "").encode()
    except (ExtractionError, MemoryError):
        raise
    except Exception as error:
        kind = type(error).__name__  # what it says may quote the page
        raise ExtractionError("failed", f"its text cannot be extracted ({kind})") from error
    return text if text and text.strip() else None


def decoded(html: bytes, charset: str | None) -> str:
    """The text of a page, with replacement characters for what its encoding does not have.

    The first of these decides: a byte order mark; valid UTF-8, or UTF-8 but for a few bytes;
    `charset`, a label of the HTTP header; the meta element; what resiliparse detects. An encoding
    that is declared does not count if the page does not fit it.
    """
    from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

    for mark, encoding in _MARKS:
        if html.startswith(mark):
            return html[len(mark) :].decode(encoding, "replace")
    label = (charset or "").strip(" \"'").lower()
    header = map_encoding_to_html5(label, fallback_utf8=False)
    meta = detect_encoding(html, from_html_meta=True)
    detected = detect_encoding(html)
    if meta != detected and (meta or "").startswith("utf-16"):
        meta = "utf-8"  # as browsers do: in UTF-16 it could not be read here
    likely = [_CODECS.get(name, name) for name in (header, meta, detected) if name]
    # Such a page has zeros in its markup.
    likely = [name for name in likely if "utf-16" not in name or _looks_as_utf8(html, name)]
    for encoding in likely:
        if _looks_as_utf8(html, encoding):
            return html.decode(encoding, "replace")
    # A page may be cut off inside its last character, which says nothing.
    uncut = codecs.getincrementaldecoder("utf-8")("replace").decode(html)
    least = _SOUND_IF_DECLARED if "utf-8" in likely[:-1] else _SOUND
    if html.isascii() or (not uncut.isascii() and _share_sound(uncut) >= least):
        return html.decode("utf-8", "replace")
    others = [encoding for encoding in likely if encoding != "utf-8"] or ["cp1252"]
    texts = [html.decode(encoding, "replace") for encoding in others]
    return next((text for text in texts if _share_sound(text) >= _SOUND), texts[0])


def _looks_as_utf8(html: bytes, encoding: str) -> bool:
    """Whether a page in an encoding has what looks as UTF-8 for that reason alone."""
    if encoding == "iso2022_jp":
        return html.isascii() and _ESCAPE in html
    # Its markup has a zero in every character.
    return encoding.startswith("utf-16") and 50 * html.count(_NUL) > len(html)


def _share_sound(text: str) -> float:
    """The share of characters beyond ASCII that are not replaced; 1 without any."""
    beyond = len(text) - len(text.encode("ascii", "ignore"))
    return 1 - text.count(_REPLACED) / beyond if beyond else 1.0
