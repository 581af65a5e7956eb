"""Redact: overwrite documents' tokens in place, as a new generation of the dataset."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.cores import usable_cores
from fineshards.errors import InputError, OutputError, UsageError, quoted
from fineshards.loader.arguments import checked_integer
from fineshards.shards import npy
from fineshards.shards.assembly import shard_mask
from fineshards.shards.checkpoints import FOLDER as CHECKPOINTS
from fineshards.shards.checkpoints import REDACTED, Checkpoints
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.job import Job, Redaction, metadata_files, of_earlier_jobs, overwritten
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import Generation, ShardRecord, content_fingerprint
from fineshards.shards.layout import files_of, shard_stem
from fineshards.shards.record import replace
from fineshards.shards.tables.documents import DocumentPiece, DocumentTable
from fineshards.storage.base import READ_AHEAD, Storage
from fineshards.storage.checksums import checksum_to_base64, crc32c
from fineshards.storage.open import open_storage
from fineshards.wording import counted

# What object storage keeps of an object that was replaced.
_KEPT = {
    "gs": "Cloud Storage may keep the earlier versions of the shards for a time, by soft delete "
    "(seven days by default) or object versioning. See gcloud storage buckets describe, and delete "
    "them with gcloud storage rm --all-versions where they must not stay.",
    "s3": "A bucket with versioning keeps the earlier versions of the shards. See aws s3api "
    "list-object-versions, and delete them where they must not stay.",
}

_Ranges = Sequence[tuple[int, int]]
# Pieces of documents, by their row in the table of a shard.
_Rows = dict[int, DocumentPiece]


@dataclass(frozen=True, slots=True)
class Redacted:
    """What a redaction did. generation: the new one, or the latest if there was nothing to do."""

    folder: str
    generation: int
    documents: int
    tokens: int
    shards: list[str]


def redact(
    folder: str | os.PathLike[str],
    ids: str | Iterable[str] = (),
    documents: int | Iterable[int] = (),
) -> Redacted:
    """Overwrites the tokens of documents by EOT, in a new generation of the dataset.

    It cannot be undone. What was interrupted is finished by the same call.

    Args:
        folder: The dataset's folder, local, `gs://` or `s3://`.
        ids: All documents with these ids, or this one.
        documents: Numbers of documents in the latest generation, or a number.

    Returns:
        What was overwritten; with no documents if they were redacted before.

    Raises:
        UsageError: For documents that are not there, none at all, or another type. Nothing has
            changed.
        OutputError: If the dataset is not finished, is damaged, or is being changed. Nothing has
            changed.

    Example:
        >>> import fineshards
        >>> _ = fineshards.build(input=more_documents, output=folder)
        >>> done = fineshards.redact(folder, documents=[1])
        >>> done.generation, done.documents, done.tokens
        (2, 1, 2)
    """
    wanted, numbers = _checked(ids, documents)
    storage = open_storage(folder)
    manifest = Manifest.load_finished(storage)
    dataset, shards = Dataset(storage, manifest), manifest.shards
    by_shard = _pieces(dataset, wanted, numbers)
    placed = [(shards[at], piece) for at, rows in by_shard.items() for piece in rows.values()]
    if not placed:
        # A job that was killed just after its manifest leaves them behind.
        Checkpoints.of(storage, manifest.job).clear()
        return Redacted(storage.root, manifest.generation, 0, 0, [])
    redaction = Redaction.of(placed, manifest.files, manifest.layout)
    generation = Generation(0, len(redaction.documents), redaction.sha256())
    generations = (*manifest.generations, generation)
    job = replace(manifest.job, generations=generations, redaction=redaction)
    _overwrite_all(dataset, job, by_shard)
    return Redacted(
        storage.root,
        job.generation,
        len(redaction.documents),
        sum(piece.length for _, piece in placed),
        [shards[position].name for position in by_shard],
    )


def _checked(ids: Any, documents: Any) -> tuple[list[str], list[int]]:
    """Ids and numbers as lists; raises UsageError for other types, before anything is read."""
    # A text is iterable too: as its letters, which may be other ids.
    texts = [*ids] if isinstance(ids, Iterable) and not isinstance(ids, str) else [ids]
    numbers = [*documents] if isinstance(documents, Iterable) else [documents]
    for value in texts:
        if not isinstance(value, str):
            raise UsageError(f"{quoted(value)} is not an id: give ids as text.")
    if not texts and not numbers:
        raise UsageError("give the ids or the numbers of the documents to redact.")
    return texts, [checked_integer("documents", value) for value in numbers]


def _overwrite_all(dataset: Dataset, job: Job, by_shard: dict[int, _Rows]) -> None:
    """Claims the generation, overwrites all pieces and writes the manifest.

    Whatever is damaged is found before anything is claimed or changed.
    """
    storage, manifest = dataset.storage, dataset.manifest
    checkpoints = Checkpoints.of(storage, job)
    # Before the shards are read, which the other change may have made others.
    if storage.read_if_there(job.record_name) not in (None, job.to_bytes()):
        raise _other_change(storage, job)
    with ThreadPoolExecutor(usable_cores()) as pool:
        plans = [*pool.map(partial(_plan, dataset, checkpoints), by_shard, by_shard.values())]
        if not storage.claim(job.record_name, job.to_bytes()):
            raise _other_change(storage, job)
        # Kept token blocks hold the documents, too.
        for name in list(storage.names(f"{CHECKPOINTS}/")):
            if name not in (f"{checkpoints.folder}/", f"{CHECKPOINTS}/"):
                storage.delete_folder(name.rstrip("/"))
        # All records first: by them a later attempt tells what was overwritten from damage.
        for record, _ in plans:
            checkpoints.ledger.put(REDACTED, shard_stem(record.name), (), record, durable=True)
        list(pool.map(lambda plan: plan[1](), plans))
    records = dict(zip(by_shard, (record for record, _ in plans), strict=True))
    metadata = list(metadata_files(storage, job, manifest.reports))
    metadata += of_earlier_jobs(job, manifest.metadata)
    shards = tuple(records.get(at, shard) for at, shard in enumerate(manifest.shards))
    replace(
        manifest,
        fingerprint=job.fingerprint(),
        content_fingerprint=content_fingerprint(shards, manifest.settings.tokenizer.eot),
        shards=shards,
        generations=job.generations,
        metadata=tuple(sorted(metadata, key=lambda file: file.name)),
    ).save(storage, manifest)
    checkpoints.clear()


def read_ids(path: str) -> list[str]:
    """The ids in a file, one per line; raises InputError if it cannot be read or has none."""
    try:
        content = Path(path).read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"--ids {path} cannot be read: {why}. Give a file with one id per line."
        ) from error
    ids = [line for line in content.split("\n") if line]
    if not ids:
        raise InputError(f"--ids {path} has no ids: it must have one per line.")
    return ids


def _pieces(dataset: Dataset, ids: Sequence[str], numbers: Sequence[int]) -> dict[int, _Rows]:
    """The rows of documents that no earlier generation redacted, by the position of their shard.

    Raises UsageError for a document that is not there.
    """
    manifest, rows = dataset.manifest, defaultdict[int, _Rows](dict)
    count = manifest.totals["documents"]
    for number in numbers:
        if not 0 <= number < count:
            raise UsageError(
                f"--documents {number}: the dataset has {counted(count, 'document')}, numbered "
                "from 0. Nothing was changed."
            )
    wanted, missing = np.array(numbers, np.int64), set(ids)
    for position, shard in enumerate(manifest.shards):
        chosen = np.zeros(shard.pieces, np.bool_)
        if ids:
            # Most tables have none of the ids, and of those only the ids are read.
            named = pc.is_in(
                dataset.columns(position, ["id"])["id"], value_set=pa.array(ids, pa.string())
            )
            chosen = named.to_numpy()
        first = manifest.first_number(shard.split) + shard.first_document
        in_shard = wanted[(wanted >= first) & (wanted < first + shard.pieces)]
        chosen[in_shard - first] = True
        for index in np.flatnonzero(chosen).tolist():
            piece = dataset.table(position).piece(index)
            missing.discard(piece.id or "")
            if piece.redacted in (0, manifest.generation + 1):
                rows[position][index] = piece
    if missing:
        raise UsageError(
            f"--ids: {counted(len(missing), 'id')} that no document has, such as {min(missing)}. "
            "Nothing was changed."
        )
    return rows


def _plan(
    dataset: Dataset, checkpoints: Checkpoints, position: int, rows: _Rows
) -> tuple[ShardRecord, Callable[[], None]]:
    """The record of a shard once documents are redacted in it, and what redacts them.

    Reads the shard and its table, and changes nothing; raises OutputError if they are damaged.
    """
    storage, shard = dataset.storage, dataset.manifest.shards[position]
    name, table_file, mask_file = files_of(shard.name)
    versions = [*map(storage.version, (name, table_file, mask_file))]
    # What an earlier attempt has planned, and may have carried out.
    planned = checkpoints.ledger.get(REDACTED, shard_stem(name)) or shard
    content = storage.read(table_file)
    is_whole = storage.size(name) == shard.bytes and (
        _checksum(_content(dataset, shard, ())) in (shard.crc32c, planned.crc32c)
    )
    if not is_whole or _checksum([content]) not in (shard.table_crc32c, planned.table_crc32c):
        raise OutputError(
            f"{storage.path(table_file if is_whole else name)} is not what the manifest says, so "
            "nothing was redacted. Fix it with fineshards repair, and run the same command again."
        )
    table = DocumentTable(DocumentTable.parse(content))
    marked = table.marked([*rows], dataset.manifest.generation + 1)
    ranges = [(piece.offset, piece.offset + piece.length) for piece in rows.values()]
    mask, mask_record = shard_mask(DocumentTable.parse(marked), shard.tokens)
    record = replace(
        shard,
        **mask_record,
        crc32c=_checksum(_content(dataset, shard, ranges)),
        unredacted_crc32c=shard.unredacted_crc32c or shard.crc32c,
        table_bytes=len(marked),
        table_crc32c=_checksum([marked]),
    )

    def carry_out() -> None:
        """Replaces the table and the mask, then the shard; again, if an earlier attempt did."""
        storage.replace(table_file, marked, versions[1])
        if mask is not None:
            storage.replace(mask_file, mask, versions[2])
        with storage.create(name, old=versions[0]) as target:
            # The old content is read, because the new one appears at the end.
            for part in _content(dataset, shard, ranges):
                target.write(part)

    return record, carry_out


def _content(dataset: Dataset, shard: ShardRecord, ranges: _Ranges) -> Iterator[bytes]:
    """A shard with some of its tokens overwritten by EOT, some bytes at a time."""
    settings = dataset.manifest.settings
    yield npy.header(shard.tokens, settings.token_dtype)
    with dataset.storage.open(shard.name, READ_AHEAD) as source:
        source.seek(npy.HEADER_BYTES)
        yield from overwritten(source, ranges, settings.tokenizer.eot, settings.token_dtype)


def _checksum(parts: Iterable[bytes]) -> str:
    return checksum_to_base64(reduce(lambda before, part: crc32c(part, before), parts, 0))


def _other_change(storage: Storage, job: Job) -> OutputError:
    return OutputError(
        f"another change of {storage.root} is not finished (see {job.record_name}). Finish it by "
        "its own command first."
    )


def describe_redacted(done: Redacted) -> list[str]:
    """What was done, in a few lines."""
    if not done.documents:
        return [f"nothing to do: these documents of {done.folder} are redacted already"]
    lines = [
        f"redacted {counted(done.documents, 'document')}, {counted(done.tokens, 'token')}, in "
        f"{counted(len(done.shards), 'shard')}: {done.folder} is now generation {done.generation}",
        "Exports that were made before still have them: see fineshards verify EXPORT --dataset "
        f"{done.folder}, delete them and export again.",
    ]
    scheme, separator, _ = done.folder.partition("://")
    return [*lines, _KEPT[scheme]] if separator else lines
