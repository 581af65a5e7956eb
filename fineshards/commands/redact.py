"""Redact: overwrite documents' tokens in place, as a new generation of the dataset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.commands.wording import counted
from fineshards.cores import usable_cores
from fineshards.errors import InputError, OutputError, UsageError
from fineshards.shards import npy
from fineshards.shards.checkpoints import FOLDER as CHECKPOINTS
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.dataset import Dataset
from fineshards.shards.documents import DocumentTable
from fineshards.shards.generations import Generation
from fineshards.shards.job import FORMAT_VERSION, Job
from fineshards.shards.layout import table_name
from fineshards.shards.manifest import Manifest
from fineshards.shards.metadata import metadata_files
from fineshards.shards.records import ShardRecord
from fineshards.shards.redaction import Redaction, overwrite
from fineshards.storage.base import Storage, open_storage
from fineshards.storage.checksums import checksum_to_base64, crc32c

# Bytes per request, where requests have a price.
_READ_AHEAD = 16 << 20
# What object storage keeps of an object that was replaced.
_KEPT = (
    "Cloud Storage may keep the earlier versions of the shards for a time, by soft delete (seven "
    "days by default) or object versioning. See gcloud storage buckets describe, and delete them "
    "with gcloud storage rm --all-versions where they must not stay."
)


@dataclass(frozen=True, slots=True)
class Redacted:
    """What a redaction did. generation: the new one, or the latest if there was nothing to do."""

    folder: str
    generation: int
    documents: int
    tokens: int
    shards: list[str]


def redact(folder: str, ids: Iterable[str] = (), documents: Iterable[int] = ()) -> Redacted:
    """Overwrites the tokens of documents by EOT, in a new generation of the dataset.

    ids: all documents with these ids. documents: numbers in the latest generation. What was
    interrupted is finished by the same call. Raises UsageError for documents that are not there,
    and OutputError if the dataset is not finished, is damaged, or is being changed; then nothing
    has changed.
    """
    storage = open_storage(folder)
    manifest = Manifest.load_finished(storage)
    if manifest.version != FORMAT_VERSION:
        raise OutputError(
            f"{storage.root} was built by an earlier version of fineshards (format version "
            f"{manifest.version}, now {FORMAT_VERSION}), whose documents cannot be redacted. "
            "Build it again without them."
        )
    dataset, number = Dataset(storage, manifest), manifest.generation + 1
    pieces = _pieces(dataset, [*ids], [*documents])
    pieces = [piece for piece in pieces if piece.redacted in (0, number)]
    if not pieces:
        storage.delete_folder(CHECKPOINTS)
        return Redacted(storage.root, manifest.generation, 0, 0, [])
    redaction = Redaction(
        tuple(sorted({(piece.file, piece.row) for piece in pieces})),
        tuple(sorted(_ranges(pieces, manifest))),
    )
    before = manifest.job
    generation = Generation(0, len(redaction.documents), redaction.sha256())
    job = Job(
        before.settings,
        before.files,
        before.origin,
        generations=(*before.generations, generation),
        redaction=redaction,
    )
    if not storage.claim(job.record_name, job.to_bytes()):
        raise OutputError(
            f"another change of {storage.root} is not finished (see {job.record_name}). Finish it "
            "by its own command first."
        )
    # Kept token blocks hold the documents, too.
    checkpoints = Checkpoints.of(storage, job)
    for name in storage.names(f"{CHECKPOINTS}/"):
        if name not in (f"{checkpoints.folder}/", f"{CHECKPOINTS}/"):
            storage.delete_folder(name.rstrip("/"))
    by_shard: dict[int, list[_Piece]] = {}
    for piece in pieces:
        by_shard.setdefault(piece.position, []).append(piece)
    with ThreadPoolExecutor(usable_cores()) as pool:
        done = dict(
            pool.map(
                lambda position: (
                    position,
                    _rewrite(dataset, position, by_shard[position], number, checkpoints),
                ),
                sorted(by_shard),
            )
        )
    _commit(storage, manifest, job, done)
    return Redacted(
        storage.root,
        number,
        len(redaction.documents),
        sum(piece.length for piece in pieces),
        [manifest.shards[position].name for position in sorted(done)],
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    """Tokens `[offset, offset + length)` of the shard at a position, which are to go.

    index: row of the shard's document table. file, row: the document's source. redacted: by which
    generation they are gone already; 0 if they are not.
    """

    position: int
    index: int
    offset: int
    length: int
    file: int
    row: int
    redacted: int


def _ranges(pieces: Sequence[_Piece], manifest: Manifest) -> Iterable[tuple[str, int, int]]:
    """The tokens of each document within its split; one range, however many shards it is in."""
    found: dict[tuple[int, int, str], tuple[str, int, int]] = {}
    for piece in pieces:
        shard = manifest.shards[piece.position]
        begin = shard.index * manifest.layout.shard_tokens + piece.offset
        document = (piece.file, piece.row, shard.split)
        _, first, _ = found.get(document, ("", begin, 0))
        found[document] = shard.split, first, begin + piece.length
    return found.values()


def read_ids(path: str) -> list[str]:
    """The ids in a file, one per line; raises InputError if it cannot be read or has none."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"--ids {path} cannot be read: {error}.") from error
    ids = [line.strip() for line in lines if line.strip()]
    if not ids:
        raise InputError(f"--ids {path} has no ids: it must have one per line.")
    return ids


def _pieces(dataset: Dataset, ids: Sequence[str], numbers: Sequence[int]) -> list[_Piece]:
    """The tokens of documents, shard by shard; raises UsageError for one that is not there."""
    manifest, found = dataset.manifest, []
    count = manifest.totals()["documents"]
    for number in numbers:
        if not 0 <= number < count:
            raise UsageError(
                f"--documents {number}: the dataset has {counted(count, 'document')}, numbered "
                "from 0. Nothing was changed."
            )
    files = {file.path: file.index for file in manifest.files}
    wanted, missing = np.array(numbers, np.int64), set(ids)
    for position, shard in enumerate(manifest.shards):
        chosen = np.zeros(shard.pieces, np.bool_)
        if ids:
            # Most tables have none of the ids, and of those only the ids are read.
            named = pc.is_in(dataset.ids(position), value_set=pa.array(ids, pa.string()))
            chosen = named.to_numpy()
        first = manifest.first_number(shard.split) + shard.first_document
        in_shard = wanted[(wanted >= first) & (wanted < first + shard.pieces)]
        chosen[in_shard - first] = True
        for index in np.flatnonzero(chosen).tolist():
            piece = dataset.table(position).piece(index)
            missing.discard(piece.id or "")
            found.append(
                _Piece(
                    position,
                    index,
                    piece.offset,
                    piece.length,
                    files[piece.file],
                    piece.row,
                    piece.redacted,
                )
            )
    if missing:
        raise UsageError(
            f"--ids: {counted(len(missing), 'id')} of no document, such as {min(missing)}. Nothing "
            "was changed."
        )
    return found


def _rewrite(
    dataset: Dataset,
    position: int,
    pieces: Sequence[_Piece],
    generation: int,
    checkpoints: Checkpoints,
) -> ShardRecord:
    """Overwrites pieces of a shard and marks them in its table; returns the new record.

    The record is stored before the files are replaced, so that a later attempt can tell a file
    that was overwritten from one that is damaged.
    """
    storage, shard = dataset.storage, dataset.manifest.shards[position]
    name, table = shard.name, table_name(shard.name)
    versions = storage.version(name), storage.version(table)
    intended = checkpoints.read_shard_record(name) or shard
    marked = _marked_table(storage.read(table), shard, intended, pieces, generation, table)
    ranges = [(piece.offset, piece.offset + piece.length) for piece in pieces]
    header = npy.header(shard.tokens, checkpoints.dtype)
    eot = dataset.manifest.settings.tokenizer.eot

    def copy(target: BytesIO | None, gone: Sequence[tuple[int, int]]) -> str:
        with storage.open(name, _READ_AHEAD) as source:
            source.seek(npy.HEADER_BYTES)
            checksum = overwrite(source, target, gone, eot, checkpoints.dtype, crc32c(header))
        return checksum_to_base64(checksum)

    found = copy(None, [])
    if found not in (shard.crc32c, intended.crc32c):
        raise _damaged(storage, name)
    record = replace(
        shard,
        crc32c=copy(None, ranges),
        table_bytes=len(marked),
        table_crc32c=checksum_to_base64(crc32c(marked)),
    )
    checkpoints.write_shard_record(record)
    storage.write(table, marked, over=versions[1])
    if found != record.crc32c:
        with storage.create(name, over=versions[0]) as target:
            target.write(header)
            copy(target, ranges)  # type: ignore[arg-type]
    return record


def _marked_table(
    content: bytes,
    shard: ShardRecord,
    intended: ShardRecord,
    pieces: Sequence[_Piece],
    generation: int,
    name: str,
) -> bytes:
    """The content of a document table with pieces marked as redacted by a generation."""
    if checksum_to_base64(crc32c(content)) not in (shard.table_crc32c, intended.table_crc32c):
        raise OutputError(
            f"{name} is not what the manifest says, so nothing was redacted. Mend it with "
            "fineshards repair."
        )
    table = DocumentTable(DocumentTable.parse(content))
    return table.marked([piece.index for piece in pieces], generation)


def redact_again(
    storage: Storage,
    shard: ShardRecord,
    redaction: Redaction,
    generation: int,
    manifest: Manifest,
) -> None:
    """Redacts a shard that was made again, and its table."""
    settings, name = manifest.settings, table_name(shard.name)
    begin = shard.index * manifest.layout.shard_tokens
    ranges = [
        (max(first - begin, 0), min(end - begin, shard.tokens))
        for split, first, end in redaction.ranges
        if split == shard.split and first < begin + shard.tokens and end > begin
    ]
    if not ranges:
        return
    table = DocumentTable(DocumentTable.parse(storage.read(name)))
    offsets = np.array([first for first, _ in ranges])
    storage.write(name, table.marked(np.flatnonzero(np.isin(table.offset, offsets)), generation))
    header = npy.header(shard.tokens, settings.token_dtype)
    content = storage.read(shard.name)[npy.HEADER_BYTES :]
    with storage.create(shard.name) as target:
        target.write(header)
        overwrite(BytesIO(content), target, ranges, settings.tokenizer.eot, settings.token_dtype, 0)


def _damaged(storage: Storage, name: str) -> OutputError:
    return OutputError(
        f"{storage.path(name)} is not what the manifest says, so it was not redacted. Mend it with "
        "fineshards repair, and run the same command again."
    )


def _commit(storage: Storage, before: Manifest, job: Job, done: dict[int, ShardRecord]) -> None:
    before.keep(storage)
    shards = tuple(done.get(position, shard) for position, shard in enumerate(before.shards))
    manifest = replace(
        before,
        fingerprint=job.fingerprint(),
        shards=shards,
        generations=job.generations,
        metadata=tuple(
            sorted(metadata_files(storage, job, before.reports), key=lambda file: file.name)
        ),
    )
    manifest.save(storage, before)
    storage.delete_folder(CHECKPOINTS)


def describe_redacted(done: Redacted) -> list[str]:
    """What was done, in a few lines."""
    if not done.documents:
        return [f"nothing to do: these documents of {done.folder} are redacted already"]
    lines = [
        f"redacted {counted(done.documents, 'document')}, {counted(done.tokens, 'token')}, in "
        f"{counted(len(done.shards), 'shard')}: {done.folder} is now generation {done.generation}"
    ]
    return [*lines, _KEPT] if done.folder.startswith("gs://") else lines
