"""Exactly the same text, words, URL or column; and within which groups documents are compared.

A group (all documents, those of a file, or of a value of a column) is part of the keys of its
documents. So equal keys mean the same group, and nothing that compares keys knows of groups.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_digest, xxh3_128_digest

from fineshards.curation.batch import Batch
from fineshards.curation.column_values import compared_bytes, values_to_compare
from fineshards.curation.parameters import Rule, rule
from fineshards.curation.step import Keyed, Keys
from fineshards.curation.words.normal_form import batch_hashes, pins

# RFC 3986, appendix B, of URLs with an authority: scheme, user, host, port, path, query, fragment.
_URL = re.compile(
    r"([a-z][a-z0-9+.-]*)://(?:([^/?#]*)@)?([^/?#@]*?)(?::([0-9]*))?(?![^/?#])"
    r"([^?#]*)(\?[^#]*)?(?:#.*)?",
    re.ASCII | re.IGNORECASE | re.DOTALL,
)
_DEFAULT_PORTS = {"http": "80", "https": "443", "ftp": "21"}
_ASCII_LOWER = str.maketrans({chr(code): chr(code + 32) for code in range(ord("A"), ord("Z") + 1)})
COLUMN = "column:"


def one_or_column(*names: str) -> Rule:
    """A rule: one of some names, or `column:NAME`."""
    listed = ", ".join(f'"{name}"' for name in names)
    names_column = re.compile(f"{COLUMN}.+", re.DOTALL).fullmatch
    return rule(
        f'{listed} or "{COLUMN}NAME"',
        lambda value: value in names or (isinstance(value, str) and bool(names_column(value))),
    )


Within = Annotated[str, one_or_column("all", "file")]


@dataclass(frozen=True)
class Exact(Keyed, name="exact"):
    """Drops a document that has the same text as an earlier one, or the same URL or column.

    A key is the XXH3-128 of the bytes that are compared.

    Args:
        by: What is compared. "text": the text, in UTF-8. "normalized": the words of the simplified
            text, so neither case, punctuation, diacritics, numbers nor white space; a text without
            words is kept. "url": the column `url`, normalized. "column:NAME": the value of a
            column; a document is kept where it is null. Dates, times and durations are compared
            as nanoseconds, whatever their unit.
        within: Which documents are compared with each other. "all": all. "file": those of a file.
            "column:NAME": those with the same value of a column, such as a crawl; those without a
            value too.

    Example:
        >>> keys = Exact("normalized").keys(Batch.of_texts(["Page 1 of 9", "…", "page 3, of 9."]))
        >>> keys.owners.tolist(), bool((keys.keys[0] == keys.keys[1]).all())
        ([0, 2], True)
    """

    by: Annotated[str, one_or_column("text", "normalized", "url")] = "text"
    within: Within = "all"

    @property
    def reason(self) -> str:
        return f"exact_{self.by.partition(':')[0]}"

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._compared_column, *columns_of(self.within))))

    @property
    def _compared_column(self) -> tuple[str, ...]:
        return ("url",) if self.by == "url" else columns_of(self.by)

    def pins(self) -> dict[str, str]:
        return pins() if self.by == "normalized" else {}

    def keys(self, batch: Batch) -> Keys:
        keys = self._keys(batch)
        return keys._replace(keys=of_group(keys.keys, keys.owners, batch, self.within))

    def _keys(self, batch: Batch) -> Keys:
        if self.by == "text":
            return keys_of(text.encode() for text in batch.strings)
        if self.by == "normalized":
            return keys_of(words or None for words in batch_hashes(batch))
        values = values_to_compare(batch, *self._compared_column)
        if self.by == "url":
            values = [
                normalized_url(value) if isinstance(value, str) else value for value in values
            ]
        return keys_of(map(compared_bytes, values))


def keys_of(compared: Iterable[bytes | None]) -> Keys:
    """The keys of documents from the bytes that are compared; None: the document has no key."""
    digests = [None if content is None else xxh3_128_digest(content) for content in compared]
    owners = [index for index, digest in enumerate(digests) if digest is not None]
    return Keys(
        as_keys([digest for digest in digests if digest is not None]), np.array(owners, np.int64)
    )


def as_keys(digests: Sequence[bytes]) -> npt.NDArray[np.uint64]:
    """Keys of 128 bits from digests, which are big-endian: shape (n, 2), the leading half first."""
    return np.frombuffer(b"".join(digests), ">u8").astype(np.uint64).reshape(-1, 2)


def normalized_url(url: str) -> str:
    """A URL without what does not change the page.

    White space around it goes; so do a fragment and the default port of http, https or ftp. Scheme
    and host get lower case (A to Z), and an empty path becomes /. The rest stays: http and https
    differ, and so do user names, paths and queries in another case or order. What is no URL with a
    host stays as it is.

    Example:
        >>> normalized_url("HTTP://Example.org:80?q=A#top")
        'http://example.org/?q=A'
    """
    url = url.strip()
    match = _URL.fullmatch(url)
    if match is None:
        return url
    scheme, user, host, port, path, query = match.groups()
    scheme = scheme.translate(_ASCII_LOWER)
    authority = "" if user is None else f"{user}@"
    authority += host.translate(_ASCII_LOWER)
    if port and port != _DEFAULT_PORTS.get(scheme):
        authority += f":{port}"
    return f"{scheme}://{authority}{path or '/'}{query or ''}"


def columns_of(within: str) -> tuple[str, ...]:
    """The columns that groups are made by."""
    return (within.removeprefix(COLUMN),) if within.startswith(COLUMN) else ()


def of_group(
    keys: npt.NDArray[np.uint64], owners: npt.NDArray[np.int64], batch: Batch, within: str
) -> npt.NDArray[np.uint64]:
    """Keys that are equal only if they were and their documents are of one group.

    keys, owners: as of `Keys`. A key is hashed together with the XXH3-128 of the file's number in
    the input, that number and the row, or of the value of the column. Documents without a value are
    a group.
    """
    if within == "all":
        return keys
    values: list[bytes | None]
    if within == "file":
        values = [str(batch.file).encode()] * len(batch)
    elif within == "document":
        values = [f"{batch.file}:{row}".encode() for row in batch.rows.tolist()]
    else:
        values = [compared_bytes(value) for value in values_to_compare(batch, *columns_of(within))]
    groups = [b"" if value is None else xxh3_128_digest(value) for value in values]
    digest = xxh3_128_digest if keys.ndim == 2 else xxh3_64_digest
    hashed = b"".join(
        digest(key.tobytes() + groups[owner])
        for key, owner in zip(keys.astype("<u8"), owners.tolist(), strict=True)
    )
    return np.frombuffer(hashed, ">u8").astype(np.uint64).reshape(keys.shape)
