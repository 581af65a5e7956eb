"""The encoding of an HTML page: what its bytes, its server and the page itself say of it.

The order differs from the encoding standard of WHATWG (https://encoding.spec.whatwg.org) in one
point: text that is valid UTF-8, or is but for a few bytes, is UTF-8 whatever is declared. Hardly
any other text is valid UTF-8 by chance, and many declarations are wrong.
"""

from __future__ import annotations

import codecs
import re

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
_MORE_LABELS = {"x-mac-cyrillic": "mac-cyrillic", "x-mac-ukrainian": "mac-cyrillic"}
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([^\s\"';,>/]+)", re.IGNORECASE)
# Where a page declares its encoding: in these first bytes, outside comments.
_HEAD_BYTES = 1024
_COMMENT = re.compile(r"<!--.*?(-->|\Z)", re.DOTALL)
_META = re.compile(r"<meta[\s/][^>]*", re.IGNORECASE)
_XML = re.compile(r"\s*<\?xml\s[^>]*?encoding\s*=\s*[\"']([^\"'>]+)", re.IGNORECASE)
# Of the characters beyond ASCII, this share is sound in a text that is damaged in a few places. In
# text of other encodings at most 0.62 of them are valid UTF-8 by chance, measured on 36,212 texts
# in 40 encodings. One that is declared needs less.
_SOUND, _SOUND_IF_DECLARED = 0.8, 0.5
# Encodings whose bytes can be valid UTF-8, and what they cannot do without.
_ESCAPE, _NUL = b"\x1b", b"\0"
_REPLACED = "\ufffd"


def decoded(html: bytes, charset: str | None) -> str:
    """The text of a page, with replacement characters for what its encoding does not have.

    The first of these decides: a byte order mark; valid UTF-8, or UTF-8 but for a few bytes;
    `charset`, a label of the HTTP header; the meta element; what resiliparse detects. An encoding
    that is declared does not count if the page does not fit it.
    """
    for mark, encoding in _MARKS:
        if html.startswith(mark):
            return html[len(mark) :].decode(encoding, "replace")
    declared = [found for found in (_codec(charset), _declared(html)) if found]
    for encoding in declared:
        if _looks_as_utf8(html, encoding):
            return html.decode(encoding, "replace")
    utf8 = html.decode("utf-8", "replace")
    if html.isascii():
        is_escaped = _ESCAPE in html and _detected(html) == "iso2022_jp"
        return html.decode("iso2022_jp", "replace") if is_escaped else utf8
    # A page may be cut off inside its last character, which says nothing.
    uncut = codecs.getincrementaldecoder("utf-8")("replace").decode(html)
    least = _SOUND_IF_DECLARED if "utf-8" in declared else _SOUND
    if not uncut.isascii() and _share_sound(uncut) >= least:
        return utf8
    others = [encoding for encoding in [*declared, _detected(html)] if encoding != "utf-8"]
    for encoding in others:
        text = html.decode(encoding, "replace")
        if _share_sound(text) >= _SOUND:
            return text
    return html.decode(others[0] if others else "cp1252", "replace")


def header_charset(content_type: str | None) -> str | None:
    """The label of the encoding in a Content-Type of HTTP."""
    found = _CHARSET.search(content_type or "")
    return found and found[1]


def _declared(html: bytes) -> str | None:
    """The encoding that a page declares; UTF-8 for UTF-16, in which it could not be read here."""
    head = _COMMENT.sub("", html[:_HEAD_BYTES].decode("latin-1"))
    labels = [found[1] for meta in _META.findall(head) if (found := _CHARSET.search(meta))]
    if xml := _XML.match(head):
        labels.append(xml[1])
    for encoding in filter(None, map(_codec, labels)):
        return "utf-8" if encoding.startswith("utf-16") else encoding
    return None


def _codec(label: str | None) -> str | None:
    """The codec of Python for a label of the standard; None for no label, or an unknown one."""
    from resiliparse.parse.encoding import map_encoding_to_html5

    name = (label or "").strip().lower()
    found = _MORE_LABELS.get(name) or map_encoding_to_html5(name, fallback_utf8=False)
    return _CODECS.get(found, found) if found else None


def _detected(html: bytes) -> str:
    from resiliparse.parse.encoding import detect_encoding

    found = detect_encoding(html) or "utf-8"
    return _CODECS.get(found, found)


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
