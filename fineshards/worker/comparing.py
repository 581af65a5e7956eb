"""Compares documents that share a key with earlier ones, before one of them is dropped. No Beam.

The contents of a candidate, a set of hashes, are made where its file is read, and go to the files
that have a later document with one of its keys. There they are compared, document by document.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fineshards.curation.curator import Curator
from fineshards.curation.step import Keyed
from fineshards.errors import InputError
from fineshards.shards.job.records import SourceFile
from fineshards.shards.tables.candidates import join_pairs, more_candidates
from fineshards.shards.tables.decisions import Decisions, merged, read_decisions
from fineshards.shards.tables.marks import (
    EDGE,
    Records,
    file_of,
    first_dtype,
    mark_dtype,
    positions,
    row_of,
)
from fineshards.shards.tables.verdicts import (
    COMPARED,
    FIRSTS,
    PARTS,
    SETS,
    Range,
    StageFiles,
    earlier_decisions,
    is_of,
)
from fineshards.storage.base import Storage
from fineshards.worker.kept_rows import batch_of
from fineshards.worker.marking import Marking, bytes_of, joins
from fineshards.worker.source_rows import read_rows
from fineshards.worker.work import Work

Contents = npt.NDArray[np.uint64]

# Bytes of contents that are in memory at a time.
_MEMORY = 128 << 20


def alike(keyed: Keyed, pairs: Records, contents: Mapping[int, Contents]) -> Records:
    """Compares the documents of pairs; returns those that are alike.

    pairs: sorted by position and witness. contents: by position. Of each document only the first
    candidate that it is like, as a mark with their similarity; with the rule `components` all, as
    edges.
    """
    every, found, last = joins(keyed), [], None
    for position, witness in pairs.tolist():
        if position == last and not every:
            continue
        similarity = keyed.similarity(contents[position], contents[witness])
        if keyed.are_alike(similarity):
            found.append((witness, position) if every else (position, witness, similarity))
            last = position
    return np.array(found, EDGE if every else mark_dtype(similarity=True))


class Comparing:
    """A keyed step of a job's recipe that compares texts. stage: that it ends."""

    def __init__(self, work: Work, curator: Curator, stage: int, marking: Marking) -> None:
        self._work = work
        self._curator = curator
        self._stage = StageFiles(work.checkpoints, stage)
        self._keyed = curator.keyed(stage)
        self._step = curator.number_of_keyed(stage)
        self._marking = marking

    def write_contents(self, file: int, ranges: Sequence[Range]) -> list[tuple[int, Range]]:
        """Makes what is compared of the documents of a source file that files want.

        Returns (file, where it is, or the contents) for each file that wants some.
        """
        if (found := self._known(file)) is not None:
            return found
        wanted = join_pairs(self._marking.read(ranges, mark_dtype()))
        files = np.unique(file_of(wanted["witness"])).tolist()
        result: list[tuple[int, Range]] = []
        parts: list[tuple[int, int]] = []
        number = 0
        for places, contents in self._in_parts(file, row_of(wanted["position"])):
            of_part = wanted[np.isin(wanted["position"], places)]
            if self._work.inline:
                for each in files:
                    own = of_part["position"][file_of(of_part["witness"]) == each]
                    if len(own):
                        here = np.searchsorted(places, own)
                        content = _packed(own, [contents[n] for n in here.tolist()]).tobytes()
                        result.append((each, (SETS, 0, len(content), content)))
                continue
            packed = _packed(places, contents)
            self._stage.write_marks(file, number, packed, SETS)
            name = self._stage.marks_file(file, number, SETS)
            for each in np.unique(file_of(of_part["witness"])).tolist():
                result.append((each, (name, 0, packed.nbytes, None)))
                parts.append((each, number))
            number += 1
        if not self._work.inline:
            self._stage.write_marks(file, 0, np.array(parts, mark_dtype()), PARTS)
        return result

    def _known(self, file: int) -> list[tuple[int, Range]] | None:
        """What an earlier run has written of a file; None if that is not whole."""
        parts = None if self._work.inline else self._stage.read_marks(file, 0, mark_dtype(), PARTS)
        if parts is None:
            return None
        sizes = {}
        for number in np.unique(parts["witness"]).tolist():
            content = self._stage.read_marks(file, number, np.uint64, SETS)
            if content is None:
                return None
            sizes[number] = content.nbytes
        return [
            (each, (self._stage.marks_file(file, number, SETS), 0, sizes[number], None))
            for each, number in parts.tolist()
        ]

    def compare(self, file: int, ranges: Sequence[Range]) -> list[tuple[int, Range]]:
        """Finds the documents of a source file that are like an earlier one with a key of theirs.

        Returns (file, where the marks are, or the marks); with the rule `components`, (0, links).
        """
        blocks = self._work.checkpoints.read_blocks(file)
        if blocks is None:
            return []  # a file of an earlier generation
        dtype = EDGE if joins(self._keyed) else mark_dtype(similarity=True)
        found = self._stage.read_marks(file, 0, dtype, COMPARED)
        if found is None:
            pairs = [each for each in ranges if not (is_of(each, FIRSTS) or is_of(each, SETS))]
            parts = [self._marking.read(pairs, mark_dtype())]
            told = [each for each in ranges if is_of(each, FIRSTS)]
            if told:
                first = self._marking.read(told, first_dtype(self._keyed.key_bits))
                parts += [more_candidates(k, first) for k in self._marking.keys_of(blocks)]
            sets = [each for each in ranges if is_of(each, SETS)]
            known = _Known(sets, self._work.checkpoints.storage, self._files)
            found = self._alike(file, join_pairs(*parts), known)
            self._stage.write_marks(file, 0, found, COMPARED)
        return self._marking.places(self._stage.marks_file(file, 0, COMPARED), found)

    def _alike(self, file: int, pairs: Records, known: _Known) -> Records:
        """The marks or links of a file's pairs; those of as many documents at a time as fit."""
        found = [alike(self._keyed, pairs[:0], {})]
        start = stop = 0
        earlier: dict[int, Contents] = {}
        for places, contents in self._contents(file, np.unique(row_of(pairs["position"]))):
            for place, own in zip(places.tolist(), contents, strict=True):
                if start == stop:
                    stop = start + known.fitting(pairs[start:])
                    earlier = known.read(pairs["witness"][start:stop])
                end = start + int(np.searchsorted(pairs["position"][start:stop], place, "right"))
                found.append(alike(self._keyed, pairs[start:end], ChainMap({place: own}, earlier)))
                start = end
        if start < len(pairs):
            raise _changed(self._files[file], int(row_of(pairs["position"][start:])[0]))
        return np.concatenate(found)

    def _in_parts(
        self, file: int, rows: npt.NDArray[np.int64]
    ) -> Iterator[tuple[npt.NDArray[np.uint64], list[Contents]]]:
        """The contents of rows of a file, as many at a time as fit: positions and contents."""
        places: list[npt.NDArray[np.uint64]] = []
        contents: list[Contents] = []
        size = 0
        for of_batch, more in self._contents(file, np.unique(rows)):
            places.append(of_batch)
            contents += more
            size += sum(each.nbytes for each in more)
            if size > _MEMORY:
                yield np.concatenate(places), contents
                places, contents, size = [], [], 0
        if places:
            yield np.concatenate(places), contents

    def _contents(
        self, file: int, rows: npt.NDArray[np.int64]
    ) -> Iterator[tuple[npt.NDArray[np.uint64], list[Contents]]]:
        """What is compared of rows of a file, as the step finds their texts, batch by batch."""
        source = self._files[file]
        decisions = self._decisions(source)
        for found in read_rows(source, self._work.settings, rows.tolist()):
            batch = self._curator.texts(batch_of(found, source), decisions, self._step)
            yield positions(file, batch.rows), self._keyed.contents(batch)

    @cached_property
    def _files(self) -> Sequence[SourceFile]:
        return self._work.checkpoints.job().files

    def _decisions(self, source: SourceFile) -> Decisions:
        """What is decided about a file before the step, at least."""
        checkpoints, number = self._work.checkpoints, self._stage.number
        blocks = checkpoints.read_blocks(source.index)
        if blocks is None:
            return read_decisions(checkpoints.storage, source.index)

        def marked(stage: int, file: int) -> object:
            return StageFiles(checkpoints, stage).marked(file)

        tables = [earlier_decisions(checkpoints, each, number, marked).table for each in blocks]
        return Decisions(merged(tables))


class _Known:
    """Contents that were made where other files were read, by position."""

    def __init__(
        self, ranges: Sequence[Range], storage: Storage, files: Sequence[SourceFile]
    ) -> None:
        self._ranges, self._storage, self._files = ranges, storage, files
        heads = [self._head(each) for each in ranges]
        places = [np.empty(0, np.uint64), *(places for places, _ in heads)]
        sizes = [np.empty(0, np.int64), *(sizes for _, sizes in heads)]
        order = np.argsort(np.concatenate(places), kind="stable")
        self._places = np.concatenate(places)[order]
        self._sizes = np.concatenate(sizes)[order]
        counts = np.array([len(places) for places, _ in heads], np.int64)
        self._source = np.repeat(np.arange(len(heads)), counts)[order]
        begins = [1 + 2 * len(places) + np.cumsum(sizes) - sizes for places, sizes in heads]
        self._begins = np.concatenate([np.empty(0, np.int64), *begins])[order]

    def _head(self, each: Range) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Positions, and how many hashes each has."""
        (count,) = self._numbers(each, 0, 1)
        places, sizes = np.split(self._numbers(each, 1, 1 + 2 * int(count)), 2)
        return places, sizes.astype(np.int64)

    def _numbers(self, each: Range, start: int, stop: int) -> Contents:
        name, _, _, content = each
        if content is not None:
            return np.frombuffer(content, "<u8", stop - start, 8 * start)
        return np.frombuffer(bytes_of((name, 8 * start, 8 * stop, None), self._storage), "<u8")

    def fitting(self, pairs: Records) -> int:
        """How many of some pairs, of whole documents and at least one, have contents that fit."""
        sizes = 8 * np.cumsum(self._sizes[self._numbers_of(pairs["witness"])])
        fitting = max(int(np.searchsorted(sizes, _MEMORY, "right")), 1)
        last = pairs["position"][fitting - 1]
        return int(np.searchsorted(pairs["position"], last, "right"))

    def _numbers_of(self, places: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        numbers = np.searchsorted(self._places, places)
        there = np.minimum(numbers, max(len(self._places) - 1, 0))
        missing = places if not len(self._places) else places[self._places[there] != places]
        if len(missing):
            file, row = int(file_of(missing[:1])[0]), int(row_of(missing[:1])[0])
            raise _changed(self._files[file], row)
        return numbers

    def read(self, wanted: npt.NDArray[np.uint64]) -> dict[int, Contents]:
        """Contents by position."""
        numbers = np.unique(self._numbers_of(wanted))
        found: dict[int, Contents] = {}
        for source in np.unique(self._source[numbers]).tolist():
            own = numbers[self._source[numbers] == source]
            begins, sizes = self._begins[own], self._sizes[own]
            first, last = int(begins.min()), int((begins + sizes).max())
            numbers_there = self._numbers(self._ranges[source], first, last)
            for place, begin, size in zip(
                self._places[own].tolist(), begins.tolist(), sizes.tolist(), strict=True
            ):
                # A copy, which does not keep the others in memory.
                found[place] = numbers_there[begin - first : begin - first + size].copy()
        return found


def _packed(places: npt.NDArray[np.uint64], contents: Sequence[Contents]) -> Contents:
    """Contents as one array: how many, their positions, how many hashes each has, the hashes."""
    sizes = np.array([len(each) for each in contents], np.uint64)
    return np.concatenate([np.array([len(places)], np.uint64), places, sizes, *contents])


def _changed(file: SourceFile, row: int) -> InputError:
    return InputError(
        f"{file.path}, row {row}: a document that was there when its keys were made is not there "
        "now. The file has changed; start again with --overwrite."
    )
