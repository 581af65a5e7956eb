"""Repair: makes lost and damaged files of a dataset again, from its sources.

They are made in a scratch folder, of the documents that have tokens in them, and go into the
dataset only if they are what the manifest says. So a repair that fails or is killed has changed
nothing that was whole, and the same command starts again. No token of a redacted document is
written anywhere.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import numpy as np

from fineshards.cores import usable_cores
from fineshards.encoders.loading import describe_tokenizer
from fineshards.errors import FineshardsError, InputError, OutputError
from fineshards.extras import naming_the_extra
from fineshards.maintenance.damaged_files import (
    find_damaged,
    is_whole,
    left_wrong,
    restore_manifests,
)
from fineshards.maintenance.redact import redact_again
from fineshards.shards.assembly import write_shard
from fineshards.shards.buckets import write_bucket
from fineshards.shards.checkpoints import FOLDER as CHECKPOINTS
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.counts import Counts, Sums
from fineshards.shards.damaged_stretch import Damage, nothing, offset_of, stretches
from fineshards.shards.dataset_files import Dataset, expected_files
from fineshards.shards.job.curated_files import CURATED_FOLDERS, decisions_name
from fineshards.shards.job.generations import kept_name
from fineshards.shards.job.job import Job, job_name, load_redaction
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import Block, Piece, ShardRecord, SourceFile, TokenBlock
from fineshards.shards.job.redaction import Redaction
from fineshards.shards.job.settings import Tokenizer
from fineshards.shards.job.source_counts import BlockSummary
from fineshards.shards.layout import MASKS_FOLDER, ShardKey, Shuffle, files_of, table_name
from fineshards.shards.masks import mask_content
from fineshards.shards.readable import readable_manifest
from fineshards.shards.shuffle_order import Bucket, Fragment, fragment_of
from fineshards.shards.tables.documents import DocumentPiece
from fineshards.shards.tables.rejected_rows import REJECTED_FOLDER
from fineshards.sources.finding import as_it_is
from fineshards.sources.places.schemes import imports_libraries
from fineshards.sources.roots import with_sources
from fineshards.storage.base import TEMPORARY, Storage
from fineshards.storage.open import open_storage
from fineshards.storage.temporary import remove_abandoned, scratch_folder
from fineshards.wording import counted
from fineshards.worker.fresh_interpreter import call_apart, call_in_fresh_interpreter
from fineshards.worker.pool import Pool
from fineshards.worker.tasks import discover_files, encode_again, side_by_side
from fineshards.worker.work import Work


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair has done.

    checked: files that were read. repaired: names of those that were made again. sources: source
    files that were tokenized for it. left: what is still wrong, a sentence each.
    """

    folder: str
    checked: int
    repaired: list[str]
    sources: list[str]
    left: list[str]


@naming_the_extra()
def repair(
    folder: str | os.PathLike[str], tokenizer: str | None = None, sources: Sequence[str] = ()
) -> Repaired:
    """Makes lost and damaged files of a dataset again, from its sources.

    Args:
        folder: The dataset's folder, local, `gs://` or `s3://`.
        tokenizer: Where the tokenizer is, if its file in the dataset is damaged. Default: where its
            name leads.
        sources: Where the source files are now: each is `OLD=NEW`, and what was in the folder OLD
            is in NEW. What is made of them is proven by the checksums of the manifest.

    Returns:
        What was done. `left` has a sentence for each thing that is still wrong.

    Raises:
        FineshardsError: If a source is missing or has changed, or if the manifest itself is
            damaged. Nothing has changed.

    Example:
        >>> import fineshards, pathlib
        >>> _ = fineshards.build(input=more_documents, output=folder)
        >>> pathlib.Path(folder, "train/train_0000.npy").unlink()
        >>> done = fineshards.repair(folder)
        >>> done.repaired, done.left
        (['train/train_0000.npy'], [])
    """
    storage = open_storage(folder)
    restored = restore_manifests(storage)
    manifest = readable_manifest(storage)
    # In the dataset, whose disk has room for it, and with which it goes.
    place = storage.scratch_folder()
    remove_abandoned(place)
    _clear_unfinished(storage, manifest)
    damaged = find_damaged(storage, manifest)
    with_sources(manifest, sources)  # refuses what names none
    taken: list[str] = []
    if damaged:
        with scratch_folder(place) as scratch:
            taken = call_in_fresh_interpreter(
                _make_again, storage.root, damaged, tokenizer, sources, scratch
            )
            _put_in_place(storage, manifest, damaged, open_storage(scratch), taken)
        _clear_unfinished(storage, manifest)
    checked = sum(1 for _ in expected_files(manifest))
    left = left_wrong(storage, manifest)
    return Repaired(storage.root, checked, [*restored, *damaged], taken, left)


def _make_again(
    folder: str,
    damaged: list[str],
    tokenizer: str | None,
    sources: Sequence[str],
    scratch_path: str,
) -> list[str]:
    """Makes files again in a scratch folder; returns the paths of the sources that it took."""
    storage, scratch = open_storage(folder), open_storage(scratch_path)
    manifest = with_sources(readable_manifest(storage), sources)
    for name in damaged:
        if name.startswith(CURATED_FOLDERS):
            raise InputError(
                f"{storage.path(name)} is damaged, and it cannot be made again from one source. "
                "Copy it from its origin, or build the dataset again. Nothing was repaired."
            )
    dataset = Dataset(storage, manifest)
    _write_records(dataset, damaged, scratch)
    record = manifest.settings.tokenizer
    if record.file in damaged:
        vocabulary = _vocabulary(record, tokenizer)
    else:
        vocabulary = storage.read(record.file)
    stored = {record.file: vocabulary}
    for name in manifest.settings.stored_files[1:]:
        if name in damaged:
            raise InputError(
                f"{storage.path(name)} is damaged. Copy it from its origin. Nothing was repaired."
            )
        stored[name] = storage.read(name)
    scratch.write(record.file, vocabulary)
    listed = {
        int(PurePosixPath(name).name.partition("-")[0])
        for name in damaged
        if name.startswith(f"{REJECTED_FOLDER}/")
    }
    found = list(stretches(dataset, damaged))
    used = {file for stretch in found for file in stretch.files}
    if listed - used:
        found.append(replace(nothing(manifest), files=tuple(sorted(listed - used))))
    for stretch in found:
        # Each in a folder of its own, because a block may have documents in several.
        with tempfile.TemporaryDirectory(dir=scratch_path) as place:
            own = open_storage(place)
            for name, content in stored.items():
                own.write(name, content)
            _remake(dataset, stretch, own, scratch)
            for name in (name for shard in stretch.shards for name in files_of(shard.name)):
                if name in damaged and not name.startswith(MASKS_FOLDER):
                    _copy(own, name, scratch)
            for entry in own.entries(REJECTED_FOLDER):
                _copy(own, entry.name, scratch)
    _remake_masks(dataset, damaged, scratch)
    return [manifest.files[index].path for index in sorted(used | listed)]


def _remake_masks(dataset: Dataset, damaged: list[str], scratch: Storage) -> None:
    """Makes damaged loss masks again, from the document tables. scratch: has those made again."""
    for shard in dataset.manifest.shards:
        _, table, mask = files_of(shard.name)
        if mask in damaged:
            content = (scratch if table in damaged else dataset.storage).read(table)
            ranges = dataset.parse_table(shard, content).ranges()
            if ranges is not None:
                scratch.write(mask, mask_content(ranges, shard.tokens))


def _write_records(dataset: Dataset, damaged: list[str], scratch: Storage) -> None:
    """Makes damaged job records again, and the latest manifest's copy."""
    manifest = dataset.manifest
    for number in range(1, manifest.generation + 1):
        job = manifest.job.at(number)
        if job.record_name in damaged:
            if job.generations[-1].redacted:
                job = replace(job, redaction=_redaction(dataset, damaged, number))
            scratch.write(job.record_name, job.to_bytes())
        if kept_name(number) in damaged:
            if number < manifest.generation:
                raise InputError(
                    f"{dataset.storage.path(kept_name(number))} is damaged, and nothing else says "
                    f"what generation {number} was. Copy it from its origin. Nothing was repaired."
                )
            manifest.keep(scratch)


def _redaction(dataset: Dataset, damaged: list[str], generation: int) -> Redaction:
    """The documents that a generation redacted, from the document tables."""
    manifest = dataset.manifest
    pieces: list[tuple[ShardRecord, DocumentPiece]] = []
    for position, shard in enumerate(manifest.shards):
        if table_name(shard.name) in damaged:
            raise InputError(
                f"{job_name(generation)} and {table_name(shard.name)} are both damaged, and "
                "nothing else says which documents were redacted. Copy one of them from its "
                "origin. Nothing was repaired."
            )
        table = dataset.table(position)
        rows = np.flatnonzero(table.redacted == generation).tolist()
        pieces += ((shard, table.piece(row)) for row in rows)
    return Redaction.of(pieces, manifest.files, manifest.layout)


def _remake(dataset: Dataset, stretch: Damage, own: Storage, records: Storage) -> None:
    """Makes the shards of a stretch again, with their tables and lists of rejected rows."""
    manifest, settings = dataset.manifest, dataset.manifest.settings
    job = Job(settings, manifest.files, manifest.origin)
    own.write(job.record_name, job.to_bytes())
    checkpoints = Checkpoints.of(own, job)
    work = Work(checkpoints, settings, max_bad_rows=sys.maxsize)
    listed = {file.name for file in manifest.metadata}
    for name in map(decisions_name, stretch.files):
        if name in listed:
            _copy(dataset.storage, name, own)
    redactions = dict(_redactions(dataset, records)) if stretch.shards else {}
    redacted: dict[int, list[int]] = defaultdict(list)
    for file, row in (each for of in redactions.values() for each in of.documents):
        redacted[file].append(row)
    with Pool(work, usable_cores(), ()) as pool:
        blocks = _encode(pool, manifest, stretch, redacted)
    if settings.shuffle is not None:
        blocks = list(_buckets(blocks, stretch, settings.shuffle, checkpoints))
    offset, number = offset_of(manifest, stretch), stretch.first_document
    stream = settings.split.streams.index(stretch.stream)
    pieces: dict[ShardKey, list[Piece]] = defaultdict(list)
    for block, summary in blocks:
        sums = summary.streams()[stream]
        # A source that has changed may give more tokens than there were.
        tokens = min(sums.tokens, manifest.layout.tokens - offset)
        for cut in manifest.layout.slices(offset, tokens):
            piece = Piece(block, stretch.stream, cut.start, cut.stop, cut.at, number)
            pieces[cut.key].append(piece)
        offset, number = offset + sums.tokens, number + sums.documents
    paths = [file.name for file in manifest.files]
    for shard in stretch.shards:
        key = ShardKey(shard.split, shard.index)
        try:
            record = write_shard(manifest.layout.shard(key), pieces[key], checkpoints, paths)
        except FineshardsError as error:
            raise _other(shard.name, [paths[index] for index in stretch.files]) from error
        for generation, redaction in redactions.items():
            redact_again(own, record, redaction, generation, manifest)


def _redactions(dataset: Dataset, records: Storage) -> Iterator[tuple[int, Redaction]]:
    """What each generation redacted. records: has damaged job records, made again."""
    for number, generation in enumerate(dataset.manifest.generations, 1):
        if generation.redacted:
            made = records.size(job_name(number)) is not None
            storage = records if made else dataset.storage
            yield number, load_redaction(storage, number, generation)


def _encode(
    pool: Pool, manifest: Manifest, stretch: Damage, redacted: Mapping[int, list[int]]
) -> list[tuple[TokenBlock, BlockSummary]]:
    """The token blocks of a stretch's documents; raises InputError if a source has changed."""
    files = [manifest.files[index] for index in stretch.files]
    apart = any(imports_libraries(file.path) for file in files)
    files = call_apart(_as_they_are, files) if apart else _as_they_are(files)
    looks = pool.results([discover_files(*each) for each in side_by_side(files)])
    found: dict[SourceFile, list[Block]] = dict(pair for pairs, _ in looks for pair in pairs)
    wanted = [(file, block) for file, of in found.items() for block in of]
    tasks = [
        encode_again(file, block, stretch, tuple(redacted.get(file.index, ())))
        for file, block in wanted
    ]
    counts: dict[int, Counts] = defaultdict(Counts)
    encoded: dict[int, list[Sums]] = defaultdict(list)
    in_stream: dict[int, int] = defaultdict(int)
    number = manifest.settings.split.streams.index(stretch.stream)
    blocks = []
    done = pool.results(tasks)
    for (_, block), ((summary, whole, of_stream), _) in zip(wanted, done, strict=True):
        counts[block.file] += whole
        in_stream[block.file] += of_stream
        encoded[block.file].append(summary.streams()[number])
        blocks.append((block.place, summary))
    for index in stretch.files:
        report = manifest.reports[index]
        now, then = _content(counts[index]), _content(report.counts)
        stream = report.streams()[number]
        of_stream = f"documents of {stretch.stream}"
        now[of_stream], then[of_stream] = in_stream[index], stream.documents
        if sum(sums.documents for sums in encoded[index]) == stream.documents:
            # All documents of the stream are needed, so its tokens are known.
            now["tokens"] = sum(sums.tokens for sums in encoded[index])
            then["tokens"] = stream.tokens
        different = [
            f"{now[what]:,} {what}, not {then[what]:,}" for what in now if now[what] != then[what]
        ]
        if different:
            raise InputError(
                f"{manifest.files[index].path} has changed since the dataset was built: it gives "
                f"{' and '.join(different)}. Nothing was repaired; put the file back as it was."
            )
    return blocks


def _buckets(
    blocks: list[tuple[TokenBlock, BlockSummary]],
    stretch: Damage,
    shuffle: Shuffle,
    checkpoints: Checkpoints,
) -> Iterator[tuple[TokenBlock, BlockSummary]]:
    """Sorted token blocks joined into one for each generation, in the order of the stream."""
    by_generation: dict[int, list[Fragment]] = defaultdict(list)
    for block, summary in blocks:
        generation = bisect_right(stretch.order.borders, block.file)
        for run in summary.runs:
            if run.stream == stretch.stream:
                by_generation[generation].append(fragment_of(block, run, 0, len(run.tokens) - 1))
    for generation, fragments in sorted(by_generation.items()):
        streams = stretch.rule.streams
        bucket = Bucket(streams.index(stretch.stream), len(streams), 0, 0)
        summary = write_bucket(bucket, fragments, shuffle, checkpoints, generation)
        yield TokenBlock("buckets", bucket.number, generation), summary


def _as_they_are(files: Sequence[SourceFile]) -> list[SourceFile]:
    """Source files with the identities that they have now: they may have been copied back."""
    try:
        return [as_it_is(file) for file in files]
    except InputError as error:
        raise InputError(f"{error} It is needed for the repair; nothing was repaired.") from error


def _content(counts: Counts) -> dict[str, int]:
    """What of a file's counts is known without its tokens, by name."""
    return {
        "rows": counts.rows,
        "rejected rows": counts.rejected,
        "documents": counts.documents,
        "bytes of text": counts.text_bytes,
    }


def _copy(source: Storage, name: str, target: Storage) -> None:
    with source.open(name) as content, target.create(name) as out:
        shutil.copyfileobj(content, out, 8 << 20)


def _vocabulary(tokenizer: Tokenizer, place: str | None) -> bytes:
    eot = next(text for text, token in tokenizer.special_tokens if token == tokenizer.eot)
    found, content = describe_tokenizer(place or tokenizer.name, "auto", eot)
    if found.vocabulary_sha256 != tokenizer.vocabulary_sha256:
        raise InputError(
            f"{tokenizer.file} is damaged, and {place or tokenizer.name} is another tokenizer: "
            f"sha256 {found.vocabulary_sha256}, expected {tokenizer.vocabulary_sha256}. Say where "
            "the right one is with --tokenizer."
        )
    return content


def _other(name: str, sources: Sequence[str]) -> FineshardsError:
    return FineshardsError(
        f"{name} made again is not what the manifest says. Nothing was repaired. A source has "
        "changed in a way that keeps its counts, or a library has another version than the "
        f"manifest names. It was made of: {', '.join(sources)}."
    )


def _put_in_place(
    storage: Storage,
    manifest: Manifest,
    damaged: list[str],
    scratch: Storage,
    sources: Sequence[str],
) -> None:
    """Copies files into the dataset, once all of them are known to be what the manifest says."""
    for name, size, checksum in expected_files(manifest):
        if name in damaged and not is_whole(scratch, name, size, checksum):
            raise _other(name, sources)
    for name in damaged:
        # On gs:// no object is overwritten.
        storage.delete(name)
        _copy(scratch, name, storage)


def _clear_unfinished(storage: Storage, manifest: Manifest) -> None:
    """Deletes unfinished files left behind, unless another repair or an append is at work."""
    kept = any(name != f"{TEMPORARY}/" for name in storage.names(f"{CHECKPOINTS}/"))
    if not any(storage.names(f"{TEMPORARY}/.fineshards-")):
        with suppress(OutputError):  # a damaged job record is repaired first
            Checkpoints.of(storage, manifest.job).clear(kept)


def describe_repaired(done: Repaired) -> list[str]:
    """What a repair has done, in some lines."""
    lines = [f"nothing to repair: {counted(done.checked, 'file')} of {done.folder} are whole"]
    if done.repaired:
        lines = [
            *(f"repaired {name}" for name in done.repaired),
            f"repaired {counted(len(done.repaired), 'file')} of {counted(done.checked, 'file')} in "
            f"{done.folder}, from {counted(len(done.sources), 'source file')}",
        ]
    if done.left:
        lines.append(f"STILL WRONG, and not for repair: {counted(len(done.left), 'problem')}")
    return [*lines, *(f"  {problem}" for problem in done.left)]
