"""What is counted about each document, and a tally of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.shards.split_hash import host_names
from fineshards.shards.tables.statistics import COUNTS, merged

# Columns of the input that are counted where a file has them, beside the labels.
URL_COLUMN, SCORE_COLUMN = "url", "language_score"
OPTIONAL_COLUMNS = (SCORE_COLUMN, URL_COLUMN)

# Each is the number that its decimal form means, so 0.29 is in [0.29, 0.3).
_SCORES = np.arange(101) / 100
# The longest name that DNS has.
_LONGEST_HOST = 253
# Bytes of text that are looked at together: they stay in a core's cache.
_TILE = 1 << 17
# Rows of a tally that are kept before they are added up.
_ROWS_KEPT = 1 << 18
_KEYS_KEPT = 20_000

# Documents, bytes, words, lines and tokens; tokens are 0 where they are not known.
Measured = npt.NDArray[np.int64]
# Codes of the values of n documents, -1 where there is none, and the values.
Coded = tuple[npt.NDArray[np.int64], Sequence[str]]


def measure(texts: pa.Array, tokens: npt.NDArray[np.int64] | None = None) -> Measured:
    """The numbers of each document, int64, shape (n, 5): see `statistics.SUMS`.

    texts: large_string without nulls. tokens: of each document; None if they are not known.

    Example:
        >>> measure(pa.array(["two words\\n", ""], pa.large_string())).tolist()
        [[1, 10, 2, 1, 0], [1, 0, 0, 0, 0]]
    """
    count = len(texts)
    found = np.zeros((count, 5), np.int64)
    found[:, 0] = 1
    if tokens is not None:
        found[:, 4] = tokens
    _, offsets, data = texts.buffers()
    if not count or data is None:
        return found
    borders = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + count + 1]
    content = np.frombuffer(data, np.uint8)[borders[0] : borders[-1]]
    borders = borders - borders[0]
    found[:, 1] = np.diff(borders)
    begins, feeds = np.empty(len(content), np.bool_), np.empty(len(content), np.bool_)
    last = False
    for start in range(0, len(content), _TILE):
        tile = content[start : start + _TILE]
        filled = (tile - np.uint8(9) >= 5) & (tile != 32)
        begins[start] = filled[0] and not last
        np.greater(filled[1:], filled[:-1], out=begins[start + 1 : start + len(tile)])
        np.equal(tile, 10, out=feeds[start : start + len(tile)])
        last = filled[-1]
    # Words and lines end with the document.
    there = found[:, 1] > 0
    firsts, lasts = borders[:-1][there], borders[1:][there] - 1
    begins[firsts] = (content[firsts] - np.uint8(9) >= 5) & (content[firsts] != 32)
    feeds[lasts] = True
    places = borders.tolist()
    for column, marks in ((2, begins), (3, feeds)):
        found[:, column] = [np.count_nonzero(marks[start:stop]) for start, stop in pairwise(places)]
    return found


@dataclass(frozen=True)
class Traits:
    """What is known about the documents of a record batch beside their texts.

    rows: their rows, ascending, int64, shape (n,). labels: by column. scores: float64, shape (n,),
    NaN where there is none; None if the file has none. urls: string, n of them; None as well.
    """

    rows: npt.NDArray[np.int64]
    labels: Mapping[str, Coded]
    scores: npt.NDArray[np.float64] | None = None
    urls: pa.Array | None = None

    @classmethod
    def of(
        cls,
        rows: npt.NDArray[np.int64],
        labels: Mapping[str, pa.Array],
        optional: Mapping[str, pa.Array],
    ) -> Traits:
        """The traits of rows with the given columns, n values each, by name."""
        scores = optional.get(SCORE_COLUMN)
        return cls(
            rows,
            {name: _coded(values) for name, values in labels.items()},
            None if scores is None else _numbers(scores),
            optional.get(URL_COLUMN),
        )

    def at(self, rows: npt.NDArray[np.int64]) -> Traits:
        """The traits of some of the rows, for anything but hosts."""
        places = np.searchsorted(self.rows, rows)
        labels = {name: (codes[places], names) for name, (codes, names) in self.labels.items()}
        return Traits(rows, labels, None if self.scores is None else self.scores[places])


class _Key(NamedTuple):
    scope: str
    step: int | None
    reason: str | None
    measure: str
    value: str | None = None
    at_least: float | None = None
    below: float | None = None


class Tally:
    """Adds up statistics of documents, batch by batch."""

    def __init__(self) -> None:
        self._sums: dict[_Key, Measured] = {}
        self._parts: list[pa.Table] = []
        self._added = 0

    def add_total(self, scope: str, step: int, texts: pa.Array) -> None:
        """Adds documents of which nothing but number and bytes is counted."""
        text_bytes = int(pc.binary_length(texts).to_numpy().astype(np.int64).sum())
        self._add(_Key(scope, step, None, "total"), np.array([len(texts), text_bytes, 0, 0, 0]))

    def add(
        self,
        scope: str,
        measured: Measured,
        traits: Traits,
        step: int | None = None,
        reasons: Sequence[str] | None = None,
    ) -> None:
        """Adds n documents by each measure.

        step, reasons: which step drops them, and why, n of them.
        """
        if not len(measured):
            return
        groups: list[tuple[str | None, npt.NDArray[np.bool_]]]
        groups = [(None, np.ones(len(measured), np.bool_))]
        if reasons is not None:
            codes, found = _coded(pa.array(reasons, pa.string()))
            groups = [(reason, codes == code) for code, reason in enumerate(found)]
        for reason, mask in groups:
            part = measured[mask]
            key = _Key(scope, step, reason, "total")
            self._add(key, part.sum(axis=0))
            self._add_lengths(key._replace(measure="bytes"), part, 1)
            if scope == "dataset":
                self._add_lengths(key._replace(measure="tokens"), part, 4)
            for name, (values, texts) in traits.labels.items():
                for code, sums in _grouped(values[mask], part):
                    self._add(key._replace(measure=name, value=texts[code]), sums)
            if traits.scores is not None:
                self._add_scores(key._replace(measure=SCORE_COLUMN), part, traits.scores[mask])
        self._bound()

    def add_dataset(self, texts: pa.Array, tokens: npt.NDArray[np.int64], traits: Traits) -> None:
        """Adds documents of the dataset. texts, tokens: as for `measure`."""
        measured = measure(texts, tokens)
        self.add("dataset", measured, traits)
        if traits.urls is not None and len(texts):
            codes, names = _coded(_hosts(traits.urls))
            grouped = list(_grouped(codes, measured))
            keys = [_Key("dataset", None, None, "host", names[code]) for code, _ in grouped]
            self._parts.append(_table(keys, [sums for _, sums in grouped]))
            self._bound()

    def table(self) -> pa.Table:
        """All that was added, as a table of `statistics.COUNTS`."""
        return merged([*self._parts, _table(list(self._sums), list(self._sums.values()))])

    def _bound(self) -> None:
        """Adds up what was collected, once it is twice what it was the last time."""
        rows = sum(map(len, self._parts))
        if len(self._sums) > _KEYS_KEPT or rows > max(_ROWS_KEPT, 2 * self._added):
            self._parts, self._sums = [self.table()], {}
            self._added = len(self._parts[0])

    def _add(self, key: _Key, sums: Measured) -> None:
        found = self._sums.get(key)
        self._sums[key] = sums if found is None else found + sums

    def _add_lengths(self, key: _Key, measured: Measured, column: int) -> None:
        # The exponent of a number is the number of its bits, of 0 it is 0.
        bits = np.frexp(measured[:, column].astype(np.float64))[1]
        for bit, sums in _grouped(bits.astype(np.int64), measured):
            at_least = 0.0 if bit == 0 else 2.0 ** (bit - 1)
            self._add(key._replace(at_least=at_least, below=2.0**bit), sums)

    def _add_scores(self, key: _Key, measured: Measured, scores: npt.NDArray[np.float64]) -> None:
        bins = np.searchsorted(_SCORES, scores, side="right")
        bins[np.isnan(scores)] = -1
        for number, sums in _grouped(bins, measured):
            at_least = None if number == 0 else float(_SCORES[number - 1])
            below = None if number == len(_SCORES) else float(_SCORES[number])
            self._add(key._replace(at_least=at_least, below=below), sums)


def _grouped(codes: npt.NDArray[np.int64], measured: Measured) -> list[tuple[int, Measured]]:
    """The sums of the documents with each code, but for those with a negative one."""
    there = codes >= 0
    found, places = np.unique(codes[there], return_inverse=True)
    sums = np.zeros((len(found), measured.shape[1]), np.int64)
    np.add.at(sums, places.ravel(), measured[there])
    return list(zip(found.tolist(), sums, strict=True))


def _coded(values: pa.Array) -> Coded:
    coded = values.cast(pa.string()).dictionary_encode()
    return pc.fill_null(coded.indices, -1).to_numpy().astype(np.int64), coded.dictionary.to_pylist()


def _numbers(values: pa.Array) -> npt.NDArray[np.float64]:
    filled = pc.fill_null(values.cast(pa.float64()), float("nan"))
    return np.asarray(filled.to_numpy(), np.float64)


def _hosts(urls: pa.Array) -> pa.Array:
    """The hosts of URLs as strings; null where there is none that DNS could have."""
    hosts = host_names(urls).cast(pa.string())
    fits = pc.and_(
        pc.less_equal(pc.binary_length(hosts), _LONGEST_HOST),
        pc.invert(pc.match_substring(hosts, " ")),
    )
    return pc.if_else(fits, hosts, pa.scalar(None, pa.string()))


def _table(keys: Sequence[_Key], sums: Sequence[Measured]) -> pa.Table:
    numbers = np.array(sums, np.int64).reshape(-1, 5)
    columns: list[Any] = list(zip(*keys, strict=True)) or [()] * len(_Key._fields)
    columns += [numbers[:, index] for index in range(5)]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, COUNTS, strict=True)]
    return pa.table(arrays, schema=COUNTS)
