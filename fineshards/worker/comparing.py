"""Compares documents that share a key with earlier ones, before one of them is dropped. No Beam.

A candidate's contents, a set of hashes, are computed where its file is read, and sent to the files
with a later document that shares one of its keys. The documents are compared there.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.curation.curator import Curator
from fineshards.curation.step import Keyed
from fineshards.errors import InputError
from fineshards.shards.job.records import SourceFile
from fineshards.shards.tables.decisions import Decisions, merged, read_decisions
from fineshards.shards.tables.marks import (
    EDGE,
    Records,
    differs,
    file_of,
    join_pairs,
    mark_dtype,
    row_of,
)
from fineshards.shards.tables.verdicts import MARKS, SETS, Slice, earlier_decisions
from fineshards.storage.base import Storage
from fineshards.worker.documents import documents
from fineshards.worker.marking import Marking, bytes_of, joins, positions_in
from fineshards.worker.work import Work

Contents = npt.NDArray[np.uint64]

# Bytes of contents that are in memory at a time.
_MEMORY = 128 << 20


def alike(keyed: Keyed, pairs: Records, contents: Mapping[int, Contents]) -> Records:
    """Compares the documents of pairs; returns the alike ones, in records of `alike_type`.

    pairs: sorted by position and witness. contents: by position. Each document is returned with the
    first candidate that it is like; with the rule `components`, with each of them.
    """
    all_matches, matches, last = joins(keyed), [], None
    for position, witness in pairs.tolist():
        if position == last and not all_matches:
            continue
        similarity = keyed.similarity(contents[position], contents[witness])
        if similarity >= keyed.threshold:
            matches.append((witness, position) if all_matches else (position, witness, similarity))
            last = position
    return np.array(matches, alike_type(keyed))


def alike_type(keyed: Keyed) -> np.dtype[np.void]:
    """The type of alike documents: marks with similarities, or edges with `components`."""
    return EDGE if joins(keyed) else mark_dtype(similarity=True)


class Comparing(Marking):
    """A keyed step of a job's recipe that compares texts. stage: that it ends.

    marked: see `earlier_decisions`.
    """

    def __init__(
        self, work: Work, curator: Curator, stage: int, marked: Callable[[int, int], pa.Table]
    ) -> None:
        super().__init__(work, curator, stage)
        self._curator = curator
        self._marked = marked

    def write_contents(self, file: int, ranges: Sequence[Slice]) -> list[tuple[int, Slice]]:
        """Computes the contents of those documents of a source file that files want.

        Returns (file, where contents are, or the contents) for each file that wants some.
        """
        parts = self._wanted(file, ranges)
        if self._work.inline:
            return [(reader, (SETS, "", 0, part.nbytes, part.tobytes())) for reader, part in parts]
        key = f"{file:05d}-sets"
        stored = self._stage.read_marks(key) or self._stage.write_marks(
            key, ((f"{reader}-{number}", part) for number, (reader, part) in enumerate(parts))
        )
        return [
            (int(kind.partition("-")[0]), (SETS, place.file, place.start, place.stop, None))
            for kind, place in stored.items()
        ]

    def _wanted(self, file: int, ranges: Sequence[Slice]) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """The packed contents of those documents that a file wants, for each, in parts."""
        wanted = join_pairs(self._read(ranges, mark_dtype()))
        for places, contents in self._in_parts(file, row_of(wanted["position"])):
            of_part = wanted[np.isin(wanted["position"], places)]
            # By the file that wants them, each in the order of their positions.
            by_wanting = of_part[np.argsort(of_part["witness"], kind="stable")]
            starts = np.flatnonzero(differs(by_wanting["witness"]))
            files = file_of(by_wanting["witness"][starts]).tolist()
            for wanting, of_file in zip(
                files, np.split(by_wanting["position"], starts[1:]), strict=True
            ):
                numbers = np.searchsorted(places, of_file).tolist()
                yield wanting, _packed(of_file, [contents[number] for number in numbers])

    def compare_documents(self, file: int, ranges: Sequence[Slice]) -> list[tuple[int, Slice]]:
        """Finds the documents of a source file that are like an earlier one with a key of theirs.

        Returns (file, where the marks are, or the marks); with the rule `components`, (0, links).
        """
        if self._work.checkpoints.read_blocks(file) is None:
            return []  # a file of an earlier generation

        def compare() -> list[tuple[str, Records]]:
            sets = [part for part in ranges if part[0] == SETS]
            candidates = _CandidateContents(sets, self._storage, self._files)
            marks = self._read([part for part in ranges if part[0] == MARKS], mark_dtype())
            return [(MARKS, self._alike(file, join_pairs(marks), candidates))]

        return self._marks(f"{file:05d}-compared", {MARKS: alike_type(self._keyed)}, compare)

    def _alike(self, file: int, pairs: Records, candidates: _CandidateContents) -> Records:
        """The pairs of a file's documents that are alike, as of `alike`."""
        matches = [alike(self._keyed, pairs[:0], {})]
        start = stop = 0
        earlier: dict[int, Contents] = {}
        for places, contents in self._contents(file, np.unique(row_of(pairs["position"]))):
            # Not as plain integers, which numpy would compare as floats.
            for place, hashes in zip(places, contents, strict=True):
                if start == stop:
                    stop = start + candidates.fitting(pairs[start:])
                    earlier = candidates.read(pairs["witness"][start:stop])
                if pairs["position"][start] != place:
                    break
                end = start + int(np.searchsorted(pairs["position"][start:stop], place, "right"))
                by_position = ChainMap({place: hashes}, earlier)
                matches.append(alike(self._keyed, pairs[start:end], by_position))
                start = end
        if start < len(pairs):
            raise _changed(self._files[file], int(row_of(pairs["position"][start])))
        return np.concatenate(matches)

    def _in_parts(
        self, file: int, rows: npt.NDArray[np.int64]
    ) -> Iterator[tuple[npt.NDArray[np.uint64], list[Contents]]]:
        """The positions and the contents of rows of a file, as many at a time as fit in memory."""
        places: list[npt.NDArray[np.uint64]] = []
        contents: list[Contents] = []
        size = 0
        for of_batch, more in self._contents(file, np.unique(rows)):
            places.append(of_batch)
            contents += more
            size += sum(hashes.nbytes for hashes in more)
            if size > _MEMORY:
                yield np.concatenate(places), contents
                places, contents, size = [], [], 0
        if places:
            yield np.concatenate(places), contents

    def _contents(
        self, file: int, rows: npt.NDArray[np.int64]
    ) -> Iterator[tuple[npt.NDArray[np.uint64], list[Contents]]]:
        """The positions of rows, and the contents of their texts as the step finds them."""
        source = self._files[file]
        numbering = positions_in(source, self._work.settings)
        batches = documents(
            source,
            self._work.settings,
            rows=rows.tolist(),
            curator=self._curator,
            decisions=self._decisions(source),
            upto=self._step,
        )
        for batch in batches:
            yield numbering(file, batch.batch.rows), self._keyed.contents(batch.batch)

    @cached_property
    def _files(self) -> Sequence[SourceFile]:
        return self._work.checkpoints.files_to_read(earlier=True)

    def _decisions(self, source: SourceFile) -> Decisions:
        """The decisions about a file, at least those before the step."""
        checkpoints, number = self._work.checkpoints, self._stage.number
        blocks = checkpoints.read_blocks(source.index)
        if blocks is None:
            return read_decisions(checkpoints.storage, source.index)
        earlier = (earlier_decisions(checkpoints, block, number, self._marked) for block in blocks)
        return Decisions(merged(decisions.table for decisions in earlier))


# Where the contents of a candidate are: in which slice, at which of its numbers, and how many.
_HEAD = np.dtype([("position", "<u8"), ("slice", "<i8"), ("begin", "<i8"), ("size", "<i8")])


class _CandidateContents:
    """The contents of candidates, by position."""

    def __init__(
        self, ranges: Sequence[Slice], storage: Storage, files: Sequence[SourceFile]
    ) -> None:
        self._ranges, self._storage, self._files = ranges, storage, files
        parts = [np.empty(0, _HEAD), *map(self._heads_of, range(len(ranges)))]
        heads = np.concatenate(parts)
        self._heads = heads[np.argsort(heads["position"], kind="stable")]

    def _heads_of(self, number: int) -> Records:
        """The heads of a slice: see `_packed`."""
        (count,) = self._numbers(number, 0, 1).tolist()
        places, sizes = np.split(self._numbers(number, 1, 1 + 2 * count), 2)
        heads = np.empty(count, _HEAD)
        heads["position"], heads["slice"], heads["size"] = places, number, sizes
        heads["begin"] = 1 + 2 * count + np.cumsum(heads["size"]) - heads["size"]
        return heads

    def _numbers(self, number: int, start: int, stop: int) -> Contents:
        """Numbers of a slice."""
        kind, name, first, _, content = self._ranges[number]
        if content is not None:
            return np.frombuffer(content, "<u8", stop - start, 8 * start)
        numbers = bytes_of((kind, name, first + 8 * start, first + 8 * stop, None), self._storage)
        return np.frombuffer(numbers, "<u8")

    def fitting(self, pairs: Records) -> int:
        """How many of some pairs, of whole documents and at least one, have contents that fit."""
        sizes = 8 * np.cumsum(self._heads_at(pairs["witness"])["size"])
        fitting = max(int(np.searchsorted(sizes, _MEMORY, "right")), 1)
        last = pairs["position"][fitting - 1]
        return int(np.searchsorted(pairs["position"], last, "right"))

    def _heads_at(self, places: npt.NDArray[np.uint64]) -> Records:
        missing = places[~np.isin(places, self._heads["position"])]
        if len(missing):
            file, row = int(file_of(missing[:1])[0]), int(row_of(missing[:1])[0])
            raise _changed(self._files[file], row)
        return self._heads[np.searchsorted(self._heads["position"], places)]

    def read(self, wanted: npt.NDArray[np.uint64]) -> dict[int, Contents]:
        """Contents by position."""
        heads = self._heads_at(np.unique(wanted))
        contents: dict[int, Contents] = {}
        for number in np.unique(heads["slice"]).tolist():
            part = heads[heads["slice"] == number]
            first, last = int(part["begin"].min()), int((part["begin"] + part["size"]).max())
            numbers = self._numbers(number, first, last)
            for place, _, begin, size in part.tolist():
                # A copy, which does not keep the others in memory.
                contents[place] = numbers[begin - first : begin - first + size].copy()
        return contents


def _packed(places: npt.NDArray[np.uint64], contents: Sequence[Contents]) -> Contents:
    """Contents as one array: their number, positions, numbers of hashes, and hashes."""
    sizes = np.array([*map(len, contents)], np.uint64)
    return np.concatenate([np.array([len(places)], np.uint64), places, sizes, *contents])


def _changed(file: SourceFile, row: int) -> InputError:
    return InputError(
        f"{file.path}, row {row}: the document is missing, but the job has read it before. The "
        "file has changed; start again with --overwrite."
    )
