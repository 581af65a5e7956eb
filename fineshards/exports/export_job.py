"""An export as a job: its parts, each done once, and `export.json` at the end.

Parts are independent, so any number of workers may do them, and a part that was finished by an
earlier run is not done again. All tokens that were read are proven before the end.
"""

import os
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cached_property
from importlib.metadata import version

import pyarrow as pa

from fineshards.cores import usable_cores
from fineshards.errors import OutputError, UsageError, quoted
from fineshards.exports.export_options import ExportOptions
from fineshards.exports.format import EXPORTS, ExportFormat, ExportSettings, Target, settle
from fineshards.exports.parts import Part, PartReader, exported_tokens
from fineshards.exports.record import Export, PartRecord, SplitCounts
from fineshards.exports.source_columns import ColumnReader, types_in_sources
from fineshards.exports.stream import NONE, Read, Stream, damaged, redacted_ranges, splits_of
from fineshards.shards import npy
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.manifest import readable_manifest
from fineshards.shards.job.manifest_file import EXPORT_NAME, MANIFEST_NAME
from fineshards.shards.job.records import ShardRecord
from fineshards.shards.ledger import Kind, Ledger, Range
from fineshards.shards.record import sha256_of
from fineshards.sources.roots import opened
from fineshards.storage.base import Storage
from fineshards.storage.checksums import checksum_to_base64, crc32c, crc32c_combine
from fineshards.storage.open import open_storage

_CHECKPOINTS = "checkpoints"
# Says which export an unfinished folder is.
_CLAIM = f"{_CHECKPOINTS}/export.json"
_PARTS = Kind("", PartRecord)


@dataclass(frozen=True)
class ExportJob:
    """An export that is ready to run. Small, because it is sent to each worker.

    source: the dataset's folder. generation: of the dataset. storage: the folder of the export.
    columns: the types of those of the sources; None if none are written. fingerprint: SHA-256, as
    hex, of what decides the bytes.
    """

    source: Storage
    generation: int
    storage: Storage
    settings: ExportSettings
    parts: tuple[Part, ...]
    columns: pa.Schema | None
    fingerprint: str

    @cached_property
    def dataset(self) -> Dataset:
        """The dataset."""
        return opened(self.source, self.generation, self.settings.sources)

    @property
    def ledger(self) -> Ledger:
        """The ledger, which has the parts that are finished."""
        return Ledger(self.storage, f"{_CHECKPOINTS}/{self.fingerprint}")

    @cached_property
    def format(self) -> ExportFormat:
        """The format."""
        return EXPORTS[self.settings.to]

    @cached_property
    def streams(self) -> dict[str, Stream]:
        """The streams, by the names of their splits."""
        names = {part.split for part in self.parts}
        streams = _streams(self.dataset, names, self.settings)
        if self.columns is not None:
            columns = ColumnReader(self.dataset.manifest, self.columns, self.settings.trust_input)
            for stream in streams:
                stream.columns = columns
        return {stream.split: stream for stream in streams}

    def __getstate__(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def prepare(options: ExportOptions) -> tuple[ExportJob, Export | None]:
    """Plans an export and claims its folder; returns it, and its record if it is finished.

    Raises UsageError for options that the format or the dataset cannot have, and for a folder that
    holds anything else.
    """
    endpoint = options.s3_endpoint
    dataset = opened(open_storage(options.folder, endpoint), options.generation, options.sources)
    manifest, storage = dataset.manifest, open_storage(options.output, endpoint)
    redacted = any(generation.redacted for generation in manifest.generations)
    settings = settle(options, manifest.settings, redacted)
    _check_places(dataset.storage, storage)
    kind = EXPORTS[settings.to]
    streams = _streams(dataset, splits_of(dataset, options.split, kind.whole_documents), settings)
    if options.split is None and any(stream.tokens for stream in streams):
        streams = [stream for stream in streams if stream.tokens]
    for stream in streams:
        if not stream.tokens:
            but = " but those of redacted documents" if settings.skip else ""
            raise UsageError(f"--split {stream.split}: the dataset has no tokens there{but}.")
    parts = tuple(part for stream in streams for part in _planned(kind, stream, settings))
    kind.check(settings, parts)
    columns = None
    if settings.columns and not kind.offered_columns:
        columns = types_in_sources(manifest, settings.columns, settings.trust_input)
        kind.check_columns(columns)
    decides = {
        "settings": settings.recorded(),
        "splits": [stream.split for stream in streams],
        "dataset": manifest.fingerprint,
        # A redaction changes tokens, and not the fingerprint's job.
        "shards": [(shard.name, shard.crc32c, shard.table_crc32c) for shard in manifest.shards],
        "libraries": {name: version(name) for name in kind.libraries},
        **({"revision": kind.revision} if kind.revision > 1 else {}),
    }
    place = (dataset.storage, manifest.generation, storage)
    job = ExportJob(*place, settings, parts, columns, sha256_of(decides))
    return job, _claim(job)


def _planned(kind: ExportFormat, stream: Stream, settings: ExportSettings) -> list[Part]:
    """A format's parts of a stream; raises OutputError unless they have all of its tokens."""
    parts = kind.plan(stream, settings)
    planned, expected = sum(part.tokens for part in parts), exported_tokens(stream, settings.eot)
    if planned != expected:
        raise OutputError(
            f"--to {settings.to} has {planned:,} tokens of {stream.split}, expected {expected:,}, "
            "so the export is not whole. Report it to the author of the format."
        )
    return parts


def _streams(dataset: Dataset, splits: Iterable[str], settings: ExportSettings) -> list[Stream]:
    """The streams of splits, without what the settings leave out."""
    redacted = redacted_ranges(dataset) if settings.skip else NONE
    return [Stream(dataset, split, redacted) for split in splits]


def _check_places(source: Storage, storage: Storage) -> None:
    """Raises UsageError for an output that is in the dataset, or holds one."""
    real, dataset = (
        os.path.realpath(place.root) if place.on_disk else place.root for place in (storage, source)
    )
    if f"{real}/".startswith(f"{dataset}/"):
        raise UsageError(
            f"--output {storage.root} is in the dataset's folder. Choose another folder."
        )
    if storage.size(MANIFEST_NAME) is not None:
        raise UsageError(f"--output {storage.root} holds a dataset. Choose another folder.")


def _claim(job: ExportJob) -> Export | None:
    """Makes the output folder this export's; returns its record if it is finished."""
    storage = job.storage
    finished = Export.load(storage)
    if finished is not None and finished.fingerprint != job.fingerprint:
        raise UsageError(
            f"{storage.root} holds another export ({quoted(finished.to)}). Choose another "
            "--output, or delete the folder."
        )
    if finished is not None:
        with ThreadPoolExecutor(usable_cores()) as pool:
            whole = pool.map(lambda f: storage.matches(f.name, f.bytes, f.crc32c), finished.files)
            wrong = [file for file, right in zip(finished.files, whole, strict=True) if not right]
        if not wrong:
            # An export that was killed just after its record leaves them behind.
            storage.delete_folder(_CHECKPOINTS)
            return finished
        for file in wrong:
            storage.delete(file.name)
    elif storage.size(_CLAIM) is None:
        for entry in storage.entries(""):
            if not entry.name.startswith(f"{_CHECKPOINTS}/"):
                raise UsageError(
                    f"{storage.path(entry.name)} is in the way: readers of exports take every file "
                    "of a folder. Choose an empty folder for --output."
                )
    if not storage.claim(_CLAIM, job.fingerprint.encode()):
        raise UsageError(
            f"{storage.path(_CLAIM)} belongs to another export that is not finished. Finish it "
            "with its own command, choose another --output, or delete the folder."
        )
    return None


def write_part(job: ExportJob, part: Part) -> PartRecord:
    """Writes the files of a part, unless they are finished; returns the part's record."""
    key = _key(part)
    if finished := job.ledger.get(_PARTS, key):
        return finished
    target, settings = Target(job.storage), job.settings
    reader = PartReader(job.streams[part.split], part, settings.eot, settings.token_dtype)
    written = job.format.write(reader, settings, target)
    record = PartRecord(
        part.split,
        part.index,
        written.documents,
        part.tokens - written.left_out,
        written.left_out,
        tuple(target.files),
        tuple(reader.reads),
        written.facts or {},
    )
    job.ledger.drop(_PARTS, key)
    ranges = [Range.whole(file.name, file.bytes, file.crc32c) for file in record.files]
    job.ledger.put(_PARTS, key, ranges, record)
    return record


def finish(job: ExportJob, parts: Iterable[PartRecord]) -> Export:
    """Writes the indexes and `export.json`, once all tokens are proven to be the dataset's.

    Raises OutputError if a shard is damaged; what was made of it is deleted.
    """
    storage = job.storage
    _refuse_redacted(job)
    records = sorted(parts, key=lambda record: (record.split, record.index))
    _refuse_damage(job, records)
    target, splits = Target(storage), dict[str, SplitCounts]()
    by_split: dict[str, list[PartRecord]] = {split: [] for split in sorted(job.streams)}
    for record in records:
        by_split[record.split].append(record)
    for name, content in job.format.finish(by_split, job.settings):
        target.write(name, content)
    for split, of_split in by_split.items():
        documents = [record.documents for record in of_split]
        splits[split] = {
            "parts": len(of_split),
            "documents": None if None in documents else sum(filter(None, documents)),
            "tokens": sum(record.tokens for record in of_split),
            "left_out": sum(record.left_out for record in of_split),
        }
        if job.settings.skip:
            splits[split]["skipped"] = job.streams[split].skipped()
    manifest, files = job.dataset.manifest, [file for record in records for file in record.files]
    export = Export(
        job.settings.to,
        job.fingerprint,
        job.settings.recorded(),
        {"fingerprint": manifest.fingerprint, "generation": manifest.generation},
        splits,
        tuple(sorted([*files, *target.files], key=lambda file: file.name)),
    )
    _refuse_others(storage, export)
    export.save(storage)
    storage.delete_folder(_CHECKPOINTS)
    return export


def _refuse_others(storage: Storage, export: Export) -> None:
    """Raises OutputError if someone has put other files into the folder meanwhile."""
    expected = {file.name for file in export.files} | {EXPORT_NAME}
    for entry in storage.entries(""):
        if entry.name not in expected and not entry.name.startswith(f"{_CHECKPOINTS}/"):
            raise OutputError(
                f"{storage.path(entry.name)} is not of this export, and readers take every file of "
                "a folder. Move it away, and run again."
            )


def _refuse_redacted(job: ExportJob) -> None:
    """Raises OutputError if documents were redacted while the export was made, or are about to."""
    now = {shard.name: shard for shard in readable_manifest(job.source).shards}
    for stream in job.streams.values():
        for shard in stream.shards:
            later = now[shard.name]
            if later.crc32c != shard.crc32c:
                raise damaged(job.dataset, shard.name, f"its crc32c is {later.crc32c} now")


def _refuse_damage(job: ExportJob, records: list[PartRecord]) -> None:
    """Raises OutputError for a damaged shard; what was made of it is deleted.

    The ranges that were read of a shard, and those that are left out and are EOTs, must be all of
    it, and their checksums, joined, the one in the manifest.
    """
    reads = defaultdict[str, list[Read]](list)
    for record in records:
        for read in record.reads:
            reads[read.shard].append(read)
    for stream in job.streams.values():
        parts = [part for part in job.parts if part.split == stream.split]
        ends = [0, *(part.stop for part in parts)]
        begins = [*(part.start + part.skip for part in parts), stream.tokens]
        # The EOT that begins a document is left out where one ends it.
        for at in (end for end, begin in zip(ends, begins, strict=True) if begin - end == 1):
            for number in stream.overlap(at, at + 1):
                for begin, end in stream.ranges(number, at, at + 1):
                    shard = stream.shards[number]
                    reads[shard.name].append(stream.eot_read(shard, begin, end))
        for shard in stream.shards:
            for begin, end in stream.redacted.get(shard.name, ()):
                reads[shard.name].append(stream.eot_read(shard, int(begin), int(end)))
            if error := _problem(job, shard, stream, reads[shard.name]):
                for record in records:
                    if any(read.shard == shard.name for read in record.reads):
                        job.ledger.drop(_PARTS, _key(record))
                        for file in record.files:
                            job.storage.delete(file.name)
                raise error


def _problem(
    job: ExportJob, shard: ShardRecord, stream: Stream, reads: list[Read]
) -> OutputError | None:
    """The error for a shard that differs from the manifest, or was not read whole; None if fine."""
    checksum, position = crc32c(npy.header(shard.tokens, stream.dtype)), 0
    end = Read(shard.name, shard.tokens, shard.tokens, 0)
    for read in [*sorted(reads, key=lambda read: read.start), end]:
        if read.start != position:
            return OutputError(
                f"--to {job.settings.to} has not read tokens {position:,} to {read.start:,} of "
                f"{shard.name} exactly once, so the export is not whole. Report it to the author "
                "of the format."
            )
        size = (read.stop - read.start) * stream.dtype.itemsize
        checksum, position = crc32c_combine(checksum, read.crc32c, size), read.stop
    if (text := checksum_to_base64(checksum)) != shard.crc32c:
        why = f"its crc32c is {text}, expected {shard.crc32c}"
        return damaged(stream.dataset, shard.name, why)
    return None


def _key(part: Part | PartRecord) -> str:
    return f"{part.split}_{part.index:06d}"
