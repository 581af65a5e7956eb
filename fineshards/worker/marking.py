"""What keyed steps do with files of keys: ranges, marks of a range, marks by file. No Beam."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.curation.batch import Batch
from fineshards.curation.curator import Curator
from fineshards.curation.step import Keyed, KeyedSpans, Keys
from fineshards.curation.steps.other_datasets import SeenIn
from fineshards.errors import InputError, OutputError
from fineshards.shards.job.records import Block, SourceFile
from fineshards.shards.job.settings import Settings
from fineshards.shards.record import replace
from fineshards.shards.tables.decisions import SCHEMA
from fineshards.shards.tables.marks import (
    EDGE,
    SPARED,
    TEST,
    TRAIN,
    Positions,
    Records,
    by_file,
    candidates,
    components,
    edges,
    external_positions,
    file_of,
    first_records,
    is_external,
    key_dtype,
    key_records,
    mark,
    mark_dtype,
    may_be_marked,
    merge_marks,
    positions,
    row_of,
    split,
    wanted_by,
)
from fineshards.shards.tables.verdicts import MARKS, WANTED, KeyFile, Slice, StageFiles
from fineshards.storage.base import Storage
from fineshards.storage.checksums import checksum_to_base64, crc32c
from fineshards.storage.open import open_storage
from fineshards.worker.documents import documents
from fineshards.worker.work import Work

# Positions by the number of a file and rows.
Numbering = Callable[[int, npt.NDArray[np.int64]], Positions]
# Bytes of keys that are compared at a time: twice --memory_bytes, which most ranges have at most.
_RANGE_BYTES = 64 << 20


class Marking:
    """A keyed step of a job's recipe. stage: that it ends."""

    def __init__(self, work: Work, curator: Curator, stage: int) -> None:
        self._work = work
        self._storage = work.checkpoints.storage
        self._stage = StageFiles(work.checkpoints, stage)
        self._keyed = curator.keyed(stage)
        self._step = curator.number_of_keyed(stage)
        self._spans = isinstance(self._keyed, KeyedSpans)

    def index_keys(self, file: SourceFile) -> KeyFile:
        """The keys of an index: a source file, or a file of another dataset's keys.

        Raises InputError if the file has changed since the job was launched, or for a row that
        cannot be read, whose duplicates would be kept.
        """
        key = f"{file.index:05d}-index"
        places = self._stage.read_marks(key)
        if places is None:
            parts = self._kept_keys(file) if file.format == "keys" else self._keys_of_index(file)
            places = self._stage.write_marks(key, [("keys", joined_keys(self._keyed, parts))])
        place = places["keys"]
        return KeyFile(place.file, place.stop // key_type(self._keyed).itemsize)

    def _keys_of_index(self, file: SourceFile) -> Iterator[Records]:
        # Documents of an index get no scores, so its files may have any column.
        settings = self._work.settings
        settings = replace(settings, columns=replace(settings.columns, scores=()))
        for batch in documents(file, settings):
            for bad in batch.read.bad:
                place = ", ".join(filter(None, [file.path, bad.place]))
                raise InputError(
                    f"{place}, row {bad.row}: {bad.reason}. Documents are looked up in this file "
                    "(seen_in), and --max_bad_rows does not count its rows. Fix the row."
                )
            yield records_of(batch.batch, self._keyed.keys(batch.batch), external_positions)

    def _kept_keys(self, file: SourceFile) -> Iterator[Records]:
        """The keys that another dataset has kept of one of its files."""
        folder, _, name = file.path.rpartition("/metadata/")
        content = open_storage(folder).read(f"metadata/{name}")
        if f"crc32c:{checksum_to_base64(crc32c(content))}" != file.identity:
            raise InputError(
                f"{file.path} is damaged, or has changed since the job was launched. See what "
                f"fineshards verify {folder} says; if that dataset was built again, start over "
                "with --overwrite."
            )
        records = np.frombuffer(content, key_type(self._keyed)).copy()
        records["position"] = external_positions(file.index, row_of(records["position"]))
        yield records

    def split_keys(self, keys: KeyFile, partitions: int) -> list[tuple[int, Slice]]:
        """Cuts a file of keys by ranges: (partition, where its keys are, or the keys)."""
        content = self._storage.read(keys.name)
        if keys.crc32c is not None and crc32c(content) != keys.crc32c:
            raise OutputError(
                f"{self._storage.path(keys.name)} is damaged, and new documents cannot be compared "
                "with those of the dataset. Copy it from its origin, or build the dataset again "
                "with all files."
            )
        records = np.frombuffer(content, key_type(self._keyed))
        slices, size, start = [], records.dtype.itemsize, 0
        for partition, part in enumerate(split(records, partitions)):
            stop = start + len(part)
            if len(part):
                of_part = self._slice("", keys.name, start * size, stop * size, part)
                slices.append((partition, of_part))
            start = stop
        return slices

    def mark_keys(
        self, partition: int, partitions: int, ranges: Sequence[Slice]
    ) -> list[tuple[int, Slice]]:
        """Finds the keys of a range of keys that an earlier document has.

        Returns (file, where its marks are, or the marks). Where texts are compared, marks are pairs
        of candidates; also returns (file, which of its documents are wanted). With the rule
        `components`, (0, links).
        """
        key, keyed = f"{partition:05d}-of-{partitions:05d}", self._keyed
        linked = joins(keyed) and not keyed.compared

        def make() -> Iterator[tuple[str, Records]]:
            for number, keys in enumerate(self._in_parts_of_memory(ranges)):
                if linked:
                    marks = edges(keys)
                elif not keyed.compared:
                    marks = mark(keys, isinstance(keyed, SeenIn))
                else:
                    marks = candidates(keys, keyed.compared)
                    if self._work.earlier:  # documents of earlier files were decided before
                        first = self._work.checkpoints.job().new_files[0].index
                        marks = marks[file_of(marks["position"]) >= first]
                    if not joins(keyed):  # components are linked by spared documents too
                        marks = marks[may_be_marked(marks["position"])]
                yield f"{MARKS}-{number}", marks
                if keyed.compared:
                    yield f"{WANTED}-{number}", wanted_by(marks)

        types = {MARKS: EDGE if linked else mark_dtype(self._spans), WANTED: mark_dtype()}
        return self._marks(key, types, make)

    def _in_parts_of_memory(self, ranges: Sequence[Slice]) -> Iterator[Records]:
        """The records of a range of keys: all, or parts, each with the first ones of every key.

        So a key that very many documents have takes no more memory than others.
        """
        dtype, most = key_type(self._keyed), max(self._keyed.compared, 1)
        size = 2 * (self._work.memory_bytes or _RANGE_BYTES)
        stops = accumulate(stop - start for _, _, start, stop, _ in ranges)
        numbered = zip(((stop - 1) // size for stop in stops), ranges, strict=True)
        parts = [[keys for _, keys in part] for _, part in groupby(numbered, lambda pair: pair[0])]
        first = np.empty(0, dtype)
        for part in parts if len(parts) > 1 else ():
            first = first_records(np.concatenate([first, self._read(part, dtype)]), most)
        for part in parts:
            yield np.concatenate([first, self._read(part, dtype)])

    def join_components(self, ranges: Sequence[Slice]) -> list[tuple[int, Slice]]:
        """Finds the components of all links; returns what `mark_keys` does."""

        def make() -> list[tuple[str, Records]]:
            return [(MARKS, components(self._read(ranges, EDGE)))]

        return self._marks("00000-components", {MARKS: mark_dtype()}, make)

    def write_marked(
        self, file: SourceFile, blocks: tuple[Block, ...], ranges: Sequence[Slice]
    ) -> tuple[SourceFile, tuple[Block, ...]]:
        """Stores the marks of a source file as decisions; returns the file and its blocks."""
        if self._stage.has_marked(file.index):
            return file, blocks
        # Documents of a component may be linked by others alone: marks do not say how alike.
        alike = self._keyed.compared > 0 and not joins(self._keyed)
        dtype = mark_dtype(self._spans, alike)
        marks = merge_marks([self._read(ranges, dtype)], dtype)
        self._stage.write_marked(file.index, decisions_of(marks, self._step, self._keyed.reason))
        return file, blocks

    def _read(self, ranges: Iterable[Slice], dtype: np.dtype[np.void]) -> Records:
        parts = (bytes_of(part, self._storage) for part in ranges)
        return np.frombuffer(b"".join(parts), dtype)

    def _slice(self, kind: str, name: str, start: int, stop: int, records: Records) -> Slice:
        """A reference to records, or the records themselves."""
        if self._work.inline:
            return kind, "", start, stop, records.tobytes()
        return kind, name, start, stop, None

    def _marks(
        self,
        key: str,
        types: Mapping[str, np.dtype[np.void]],
        make: Callable[[], Iterable[tuple[str, Records]]],
    ) -> list[tuple[int, Slice]]:
        """Marks, stored by an earlier run or made now, by file; all links are those of file 0.

        A kind may come in parts: `marks-0`, `marks-1`.
        """
        places, slices = self._stage.read_marks(key), []
        for part_of, place in (places or self._stage.write_marks(key, make())).items():
            kind = part_of.partition("-")[0]
            marks = self._read([(kind, place.file, place.start, place.stop, None)], types[kind])
            start = place.start
            for file, part in [(0, marks)] if marks.dtype == EDGE else by_file(marks):
                stop = start + part.nbytes
                slices.append((file, self._slice(kind, place.file, start, stop, part)))
                start = stop
        return slices


def key_type(keyed: Keyed) -> np.dtype[np.void]:
    """The type of the records of a step's keys."""
    return key_dtype(keyed.key_bits, isinstance(keyed, KeyedSpans))


def positions_in(file: SourceFile, settings: Settings) -> Numbering:
    """Returns a function that numbers the documents of a source file."""
    kind = SPARED if settings.spares(file) else TEST if file.test else TRAIN
    return partial(positions, kind=kind)


def records_of(batch: Batch, keys: Keys, numbering: Numbering) -> Records:
    """The keys of documents as sorted records. numbering: their positions, by file and rows."""
    return key_records(keys.keys, numbering(batch.file, batch.rows[keys.owners]), keys.spans)


def joined_keys(keyed: Keyed, parts: Iterable[Records]) -> Records:
    """The records of a step's keys in one array, sorted."""
    records = np.concatenate([np.empty(0, key_type(keyed)), *parts])
    spans = records["span"] if "span" in (records.dtype.names or ()) else None
    return key_records(records["key"], records["position"], spans)


def joins(keyed: Keyed) -> bool:
    """Whether documents that are linked in several steps are duplicates too."""
    return getattr(keyed, "rule", "earlier") == "components"


def bytes_of(part: Slice, storage: Storage) -> bytes:
    """The bytes of a slice."""
    _, name, start, stop, content = part
    return storage.read_range(name, start, stop) if content is None else content


def decisions_of(marks: Records, step: int, reason: str) -> pa.Table:
    """Sorted marks of one file as decisions of a step."""
    count, witness = len(marks), marks["witness"]
    files = file_of(witness).astype(np.int32)
    files = np.where(is_external(witness), -1 - files, files)
    spans = marks["span"] if "span" in (marks.dtype.names or ()) else None
    alike = "similarity" in (marks.dtype.names or ())
    columns = [
        pa.array(row_of(marks["position"])),
        pa.array(np.full(count, step, np.int16)),
        pa.array([reason] * count, pa.string()),
        pa.nulls(count, pa.uint32()) if spans is None else pa.array(spans),
        pa.array(files),
        pa.array(row_of(witness)),
        pa.array(marks["similarity"]) if alike else pa.nulls(count, pa.float32()),
    ]
    return pa.table(columns, schema=SCHEMA)
