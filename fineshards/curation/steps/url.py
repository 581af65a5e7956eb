"""Drops documents by their URL, with lists of domains, URLs and words: datatrove's URLFilter.

datatrove fetches the list of public suffixes on the day it runs. Here it is the one inside the
package tldextract, and nothing is fetched or cached.
"""

import io
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from itertools import compress
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.curation.batch import Batch
from fineshards.curation.column_values import strings_of
from fineshards.curation.parameters import Positive, Unless, nonempty
from fineshards.curation.reference_files import Pinned, package_file, pin, pinned, read
from fineshards.curation.step import Judge, Outcome
from fineshards.errors import InputError, MissingLibraryError
from fineshards.extras import naming_the_extra, require
from fineshards.shards.split_hash import hash_texts

# Strings whose hashes are Python integers at once.
_HASHED = 1 << 18
# Characters whose lines are Python strings at once.
_READ_CHARS = 1 << 22


class StringSet:
    """Strings sorted by their hashes. A hash only finds candidates; the bytes decide."""

    def __init__(self, strings: pa.Array) -> None:
        strings = strings.unique()
        parts = [
            hash_texts(strings.slice(start, _HASHED)) for start in range(0, len(strings), _HASHED)
        ]
        hashes = np.concatenate([np.empty(0, np.uint64), *parts])
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        self._strings = strings.take(pa.array(order))

    def contains(self, values: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Whether each of n values is in the set, shape (n,)."""
        hashes = hash_texts(pa.array(values, pa.large_string()))
        left = np.searchsorted(self._hashes, hashes, "left")
        right = np.searchsorted(self._hashes, hashes, "right")
        contained = left < right
        for index in np.flatnonzero(contained).tolist():
            candidates = self._strings.slice(left[index], right[index] - left[index])
            contained[index] = values[index] in candidates.to_pylist()
        return contained


def lines_of(file: str, content: bytes) -> pa.Array:
    """The lines of a list, without white space around them, but those that begin with `#`.

    Line breaks are those of Python's text files. Raises InputError for text that is not UTF-8.
    file: its path, for the message.
    """
    opened = io.TextIOWrapper(io.BytesIO(content), "utf-8")
    parts = [pa.array([], pa.large_string())]
    try:
        while lines := opened.readlines(_READ_CHARS):
            entries = [line.strip() for line in lines if not line.startswith("#")]
            parts.append(pa.array(entries, pa.large_string()))
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 ({error}). Convert the list.") from error
    return pa.concat_arrays(parts)


_NOT_ALPHANUMERIC = re.compile(r"[^a-zA-Z0-9]+")
# The lists, the parameter that adds to each, and the one that names its files.
_LISTS = {
    "domains": ("extra_domains", "domain_files"),
    "urls": ("extra_urls", "url_files"),
    "banned_words": ("banned_words", "banned_word_files"),
    "soft_banned_words": ("soft_banned_words", "soft_banned_word_files"),
    "banned_subwords": ("banned_subwords", "banned_subword_files"),
}
# Two of the lists in datatrove's package are in an archive.
_ARCHIVED = ("domains", "urls")
_NoSoftWords = Unless(
    use_integrated_lists=(False,), soft_banned_words=((),), soft_banned_word_files=((),)
)
_ARCHIVE = "url_filterblacklistsv0_3_0.tar.gz"


@dataclass(frozen=True)
class Url(Judge, name="url"):
    """Drops a document whose URL is on a list, or has words that are.

    The reasons, in the order of the checks: `domain` (the registered domain is listed), `subdomain`
    (the whole host name is), `url` (the whole URL is), `hard_blacklisted` (one of its words is
    banned), `soft_blacklisted` (several of its words are), `blacklisted_subword` (a banned word is
    part of its letters and digits). Words of a URL are its runs of letters and digits; listed words
    are compared in lower case. A document without a URL is kept.

    datatrove's list of 4.6 million domains takes 250 MB in each worker.

    Args:
        soft_word_threshold: How many words of `soft_banned_words` are too many.
        extra_domains: Domains or host names.
        extra_urls: URLs, exactly as the column has them.
        banned_words: Words of which one is too many.
        banned_subwords: Words that must not even be a part of the URL.
        soft_banned_words: Words of which some are allowed.
        use_integrated_lists: Whether to use datatrove's lists too, which its package contains.
        domain_files: Paths of lists of domains, local or gs://, one domain per line; lines that
            begin with # are comments. The lists below are of the same kind.
        url_files: Paths of lists of URLs.
        banned_word_files: Paths of lists of banned words.
        banned_subword_files: Paths of lists of banned parts.
        soft_banned_word_files: Paths of lists of words of which some are allowed.
        url_column: The column with the URL.

    Example:
        >>> step = Url(extra_domains=["bad.org"], use_integrated_lists=False)
        >>> step.columns
        ('url',)
    """

    soft_word_threshold: Annotated[Positive, _NoSoftWords] = 2
    extra_domains: tuple[str, ...] = ()
    extra_urls: tuple[str, ...] = ()
    banned_words: tuple[str, ...] = ()
    banned_subwords: tuple[str, ...] = ()
    soft_banned_words: tuple[str, ...] = ()
    use_integrated_lists: bool = True
    domain_files: tuple[str, ...] = ()
    url_files: tuple[str, ...] = ()
    banned_word_files: tuple[str, ...] = ()
    banned_subword_files: tuple[str, ...] = ()
    soft_banned_word_files: tuple[str, ...] = ()
    url_column: Annotated[str, nonempty("the name of a column")] = "url"

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.url_column,)

    def pins(self) -> dict[str, str]:
        require("ahocorasick", "pyahocorasick", "curation")
        suffixes = package_file("tldextract", "tldextract", "curation", ".tld_set_snapshot")
        pins = {"tldextract": version("tldextract"), "public suffixes": pin(suffixes).sha256}
        return pins | {path: pin(path).sha256 for path in self._files()}

    @naming_the_extra()
    def apply(self, batch: Batch) -> Outcome:
        files = tuple(pinned(path) for path in self._files())
        lists = _lists(self, files)
        urls = strings_of(batch, self.url_column)
        known = [index for index, url in enumerate(urls) if url]
        reasons: list[str | None] = [None] * len(batch)
        judged = lists.reasons([urls[index] or "" for index in known], self.soft_word_threshold)
        for index, reason in zip(known, judged, strict=True):
            reasons[index] = reason
        return Outcome(reasons)

    def integrated_files(self) -> dict[str, str]:
        """The paths of datatrove's own lists, by list."""
        if not self.use_integrated_lists:
            return {}
        names = {name: _ARCHIVE if name in _ARCHIVED else f"{name}.txt" for name in _LISTS}
        try:
            return {
                name: package_file("datatrove", "datatrove", "datatrove", "assets", file)
                for name, file in names.items()
            }
        except MissingLibraryError as error:
            raise MissingLibraryError(
                f"url: {error}, or set use_integrated_lists = false and name lists of your own."
            ) from error

    def _files(self) -> list[str]:
        """The paths of all lists."""
        given = [path for _, files in _LISTS.values() for path in getattr(self, files)]
        return [*given, *sorted(set(self.integrated_files().values()))]


class _Lists(NamedTuple):
    """The lists of a step, ready to be asked. split: finds the parts of the host of a URL."""

    domains: StringSet
    urls: StringSet
    banned: frozenset[str]
    soft: frozenset[str]
    subwords: Any
    split: Any

    def reasons(self, urls: list[str], threshold: int) -> list[str | None]:
        """Why each URL is dropped, or None."""
        hosts = list(map(self.split, urls))
        registered = [f"{x.domain}.{x.suffix}" if x.domain and x.suffix else "" for x in hosts]
        by_domain = self.domains.contains(registered).tolist()
        by_host = self.domains.contains([host.fqdn for host in hosts]).tolist()
        by_url = self.urls.contains(urls).tolist()
        lists = zip(by_domain, by_host, by_url, strict=True)
        kinds = (compress(("domain", "subdomain", "url"), listed) for listed in lists)
        return [
            next(kind, None) or self._by_words(url, threshold)
            for url, kind in zip(urls, kinds, strict=True)
        ]

    def _by_words(self, url: str, threshold: int) -> str | None:
        words = set(_NOT_ALPHANUMERIC.split(url))
        if not words.isdisjoint(self.banned):
            return "hard_blacklisted"
        if len(words & self.soft) >= threshold:
            return "soft_blacklisted"
        if self.subwords is not None:
            for _ in self.subwords.iter(_squeezed(url)):
                return "blacklisted_subword"
        return None


@lru_cache(maxsize=2)
def _lists(step: Url, files: tuple[Pinned, ...]) -> _Lists:
    from tldextract import TLDExtract

    contents = {file.path: file for file in files}
    packaged = step.integrated_files()

    def lines(name: str) -> pa.Array:
        given, paths = (getattr(step, parameter) for parameter in _LISTS[name])
        parts = [pa.array(given, pa.large_string())]
        parts += [lines_of(path, read(contents[path])) for path in paths]
        if path := packaged.get(name):
            content = read(contents[path])
            parts.append(lines_of(path, _member(content, name) if name in _ARCHIVED else content))
        return pa.concat_arrays(parts)

    def words(name: str) -> frozenset[str]:
        return frozenset(map(_squeezed, lines(name).to_pylist()))

    return _Lists(
        domains=StringSet(lines("domains")),
        urls=StringSet(lines("urls")),
        banned=words("banned_words"),
        soft=words("soft_banned_words"),
        subwords=_automaton(words("banned_subwords")),
        split=TLDExtract(cache_dir=None, suffix_list_urls=(), fallback_to_snapshot=True),
    )


def _squeezed(text: str) -> str:
    return _NOT_ALPHANUMERIC.sub("", text).lower()


def _member(archive: bytes, name: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as opened:
        member = opened.extractfile(name)
        assert member is not None
        return member.read()


def _automaton(words: frozenset[str]) -> Any:
    """Finds any of the words within a text; None if there are none."""
    import ahocorasick

    automaton = ahocorasick.Automaton(ahocorasick.STORE_LENGTH)
    for word in sorted(words - {""}):
        automaton.add_word(word)
    if not len(automaton):
        return None
    automaton.make_automaton()
    return automaton
