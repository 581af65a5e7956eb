"""Repair: makes lost and damaged files of a dataset again, from its sources.

They are made in a scratch folder by the tasks of a build, of the source files with documents in
them, and go into the dataset only if they are what the manifest says. So a repair that fails or is
killed has changed nothing that was whole, and the same command starts again. No token of a redacted
document is written anywhere.

The manifest has the counts of each source file, and with them the place of its tokens in each
stream. So no counts of blocks are kept: a shard costs the reading of the files that lie in it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import PurePosixPath

import numpy as np

from fineshards.cores import usable_cores
from fineshards.encoders.loading import describe_tokenizer
from fineshards.errors import FineshardsError, InputError, OutputError
from fineshards.extras import naming_the_extra
from fineshards.shards import record
from fineshards.shards.assembly import shard_mask
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.dataset_files import Dataset, expected_files
from fineshards.shards.job.curated_files import CURATED_FOLDERS, decisions_name
from fineshards.shards.job.generations import GENERATIONS_FOLDER, borders, kept_name
from fineshards.shards.job.job import Job, job_name, load_redaction
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.manifest_file import MANIFEST_NAME, has_checkpoints
from fineshards.shards.job.records import Piece, ShardRecord, SourceFile, TokenBlock
from fineshards.shards.job.redaction import Redaction
from fineshards.shards.job.settings import Tokenizer
from fineshards.shards.job.source_counts import BlockSummary, FileReport, sums_by_stream
from fineshards.shards.layout import ShardKey, files_of, table_name
from fineshards.shards.piece_plan import pieces_of
from fineshards.shards.readable import readable_manifest
from fineshards.shards.shuffle_order import Bucket, Fragment, ShufflePlan, buckets_of
from fineshards.shards.tables.documents import DocumentPiece, DocumentTable
from fineshards.shards.tables.rejected_rows import REJECTED_FOLDER
from fineshards.sources.finding import as_it_is
from fineshards.sources.places.schemes import imports_libraries
from fineshards.sources.roots import with_sources
from fineshards.storage.base import TEMPORARY, Storage
from fineshards.storage.open import open_storage
from fineshards.storage.temporary import remove_abandoned, scratch_folder
from fineshards.verification.check_files import check_names
from fineshards.verification.check_published import check_published
from fineshards.wording import counted
from fineshards.worker.fresh_interpreter import call_apart, call_in_fresh_interpreter
from fineshards.worker.pool import Pool
from fineshards.worker.tasks import (
    discover_files,
    finish_block,
    side_by_side,
    write_bucket,
    write_shard,
    write_tables,
)
from fineshards.worker.work import Work

# A file's name, size and checksum.
_File = tuple[str, int, str]
# Parts of the stream with their counts: token blocks, or files that were not read.
_Parts = list[tuple[TokenBlock, FileReport | BlockSummary]]


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
    restored = _restore_manifests(storage)
    manifest = readable_manifest(storage)
    # In the dataset, whose disk has room for it, and with which it goes.
    place = storage.scratch_folder()
    remove_abandoned(place)
    _clear_unfinished(storage, manifest)
    files = [*expected_files(manifest)]
    with ThreadPoolExecutor(usable_cores()) as pool:
        whole = pool.map(lambda file: _is_whole(storage, *file), files)
        wrong = [file for file, is_whole in zip(files, whole, strict=True) if not is_whole]
    with_sources(manifest, sources)  # refuses what names none
    taken, damaged = list[str](), [name for name, _, _ in wrong]
    if damaged:
        with scratch_folder(place) as scratch:
            taken = call_in_fresh_interpreter(
                _make_again, storage.root, damaged, tokenizer, sources, scratch
            )
            _put_in_place(storage, wrong, scratch, taken)
        _clear_unfinished(storage, manifest)
    following = Job.load(storage, manifest.generation + 1)
    _, left = check_names(storage, manifest, following)
    if not left and following is None:
        left += check_published(storage, manifest, hashes=False)
    return Repaired(storage.root, len(files), [*restored, *damaged], taken, left)


def _restore_manifests(storage: Storage) -> list[str]:
    """Puts manifests back that are lost, damaged or in each other's place; returns their names."""
    names = [MANIFEST_NAME, *(entry.name for entry in storage.entries(GENERATIONS_FOLDER))]
    names = [name for name in names if not name.endswith(".job.json")]
    stored = {name: storage.read(name) if storage.size(name) else b"" for name in names}
    found = [Manifest.parse(each, "a copy") for each in stored.values() if record.seal_holds(each)]
    wanted = {kept_name(each.generation): each.to_bytes() for each in found}
    unfinished = has_checkpoints(storage)
    # A job that makes a generation keeps its manifest before it is the latest: it will finish that.
    if not wanted or (unfinished and record.seal_holds(stored[MANIFEST_NAME])):
        return []
    latest = max(each.generation for each in found)
    wanted[MANIFEST_NAME] = wanted[kept_name(latest)]
    lost = wanted[MANIFEST_NAME] != stored[MANIFEST_NAME] and storage.size(job_name(latest + 1))
    if lost and not unfinished:
        raise OutputError(
            f"{storage.path(MANIFEST_NAME)} and {kept_name(latest + 1)} are both damaged. Copy one "
            "of them from its origin. Nothing was repaired."
        )
    wrong = [name for name in stored if wanted.get(name, stored[name]) != stored[name]]
    for name in wrong:
        storage.replace(name, wanted[name], storage.version(name))
    return wrong


def _is_whole(storage: Storage, name: str, size: int, checksum: str) -> bool:
    """Whether a file is there, with this size and CRC-32C."""
    with suppress(OutputError, OSError):
        return storage.matches(name, size, checksum)
    return False


def _make_again(
    folder: str,
    damaged: list[str],
    tokenizer: str | None,
    sources: Sequence[str],
    scratch_path: str,
) -> list[str]:
    """Makes files again in a scratch folder; returns the paths of the sources that it took.

    They are in its folders `records`, if they follow from other files of the dataset, and `job`.
    """
    storage, scratch = open_storage(folder), open_storage(f"{scratch_path}/job")
    records = open_storage(f"{scratch_path}/records")
    manifest = with_sources(readable_manifest(storage), sources)
    settings, dataset = manifest.settings, Dataset(storage, manifest)
    compares = settings.recipe is not None and bool(settings.recipe.keyed)
    lost = {*settings.stored_files[1:], *map(kept_name, range(1, manifest.generation))}
    if any(table_name(shard.name) in damaged for shard in manifest.shards):
        # Tables say which documents were redacted, and nothing else does.
        lost |= {job_name(n) for n, each in enumerate(manifest.generations, 1) if each.redacted}
    for name in damaged:
        follows = compares and name.startswith(CURATED_FOLDERS)
        if follows or name in lost:
            why = ", and follows from all documents together" * follows
            raise InputError(
                f"{storage.path(name)} is damaged{why}. Copy it from its origin, or build the "
                "dataset again. Nothing was repaired."
            )
    _write_what_follows(dataset, damaged, records)
    for name in settings.stored_files:
        is_lost = name in damaged
        content = _vocabulary(settings.tokenizer, tokenizer) if is_lost else storage.read(name)
        scratch.write(name, content)
    left = [name for name in damaged if records.size(name) is None]
    files = _make_of_sources(dataset, left, scratch, records)
    return [manifest.files[file].path for file in files]


def _put_in_place(
    storage: Storage, files: Sequence[_File], scratch_path: str, taken: list[str]
) -> None:
    """Copies files into the dataset, once all of them are known to be what the manifest says."""
    places = [open_storage(f"{scratch_path}/{name}") for name in ("records", "job")]
    made = {file: [each for each in places if _is_whole(each, *file)] for file in files}
    for (name, _, _), found in made.items():
        if not found:
            raise FineshardsError(
                f"{name} made again is not what the manifest says. Nothing was repaired. A source "
                "has changed in a way that keeps its counts, or a library has another version than "
                f"the manifest names. It was made of: {', '.join(taken)}."
            )
    for (name, _, _), found in made.items():
        # On gs:// no object is overwritten.
        storage.delete(name)
        _copy(found[0], name, storage)


def _make_of_sources(
    dataset: Dataset, damaged: list[str], scratch: Storage, records: Storage
) -> list[int]:
    """Makes files again as a build does, of the source files with documents in them.

    With a shuffle these are all files of a generation. Returns their numbers.
    """
    manifest, settings = dataset.manifest, dataset.manifest.settings
    reports, shuffle, ends = manifest.reports, settings.shuffle, borders(manifest.generations)
    shards = {
        each.key: each for each in manifest.shards if not {*files_of(each.name)}.isdisjoint(damaged)
    }
    # The documents of a file that was not read, in one block, so that others have their places.
    parts_of: dict[int, _Parts] = {
        file: [(TokenBlock("unread", file, 0), reports[file])] for file in range(len(reports))
    }
    needed = {piece.block.file for _, piece in _pieces(parts_of.values(), manifest, shards)}
    if shuffle is not None:
        shuffled = {bisect_right(ends, file) for file in needed}
        needed = {file for file in parts_of if bisect_right(ends, file) in shuffled}
    judged = _files_of(damaged, CURATED_FOLDERS)
    needed |= judged | _files_of(damaged, (REJECTED_FOLDER,))
    if not needed:
        return []
    redacted = {place: n for n, of in _redactions(dataset, records) for place in of.documents}
    job = Job(settings, manifest.files, manifest.origin)
    scratch.write(job.record_name, job.to_bytes())
    work = Work(Checkpoints.of(scratch, job), settings, max_bad_rows=sys.maxsize)
    work = replace(work, redacted=tuple(redacted))
    if settings.recipe is not None and settings.recipe.keyed:
        # Documents were compared with others, so the decisions are taken as they are.
        work = replace(work, decided=True)
        there = {file.name for file in manifest.metadata}
        for name in there.intersection(map(decisions_name, needed)):
            _copy(dataset.storage, name, scratch)
    files = [manifest.files[file] for file in sorted(needed)]
    apart = any(imports_libraries(file.path) for file in files)
    files = call_apart(_as_they_are, files) if apart else _as_they_are(files)
    with Pool(work, usable_cores(), ()) as pool:
        looks = pool.results([discover_files(*each) for each in side_by_side(files)])
        blocks = [(file, block) for pairs, _ in looks for file, of in pairs for block in of]
        read: dict[int, _Parts] = {file: [] for file in sorted(needed)}
        done = pool.results([finish_block(*each) for each in blocks])
        for (_, block), ((summary, _), _) in zip(blocks, done, strict=True):
            read[block.file].append((block.place, summary))
        for file, parts in read.items():
            now = sums_by_stream([counts for _, counts in parts], settings.split)
            if now != sums_by_stream([reports[file]], settings.split):
                raise InputError(
                    f"{manifest.files[file].path} has changed since the dataset was built: it has "
                    "other numbers of documents or tokens. Nothing was repaired; put the file back."
                )
        if shuffle is not None:
            for generation in shuffled:
                of = [file for file in read if bisect_right(ends, file) == generation]
                parts = [part for file in of for part in read[file]]
                buckets = _sort(pool, parts, [reports[file] for file in of], work, generation)
                parts_of |= {file: buckets if file == of[0] else [] for file in of}
        else:
            parts_of |= read
        pieces: dict[ShardKey, list[Piece]] = defaultdict(list)
        for key, piece in _pieces(parts_of.values(), manifest, shards):
            pieces[key].append(piece)
        tasks = [write_shard(manifest.layout.shard(key), tuple(pieces[key])) for key in shards]
        for _ in pool.results([*tasks, *map(write_tables, sorted(judged))]):
            pass
    for shard in shards.values():
        _mark_redacted(scratch, shard, manifest, redacted)
    return sorted(needed)


def _files_of(names: Sequence[str], folders: tuple[str, ...]) -> set[int]:
    """The numbers of the source files that those files are about that are in some folders."""
    found = (PurePosixPath(name).name for name in names if name.startswith(folders))
    return {int(re.split("[-.]", name)[0]) for name in found}


def _pieces(
    parts: Iterable[_Parts], manifest: Manifest, wanted: Container[ShardKey]
) -> Iterator[tuple[ShardKey, Piece]]:
    """The pieces of some shards. parts: of all documents of the dataset, in order."""
    layout, rule = manifest.layout, manifest.settings.split
    starts = dict(zip(rule.streams, (0, layout.test_tokens), strict=False))
    documents = dict.fromkeys(rule.streams, 0)
    for place, counts in chain.from_iterable(parts):
        for stream, sums in zip(rule.streams, counts.streams(), strict=True):
            start, first = starts[stream], documents[stream]
            for key, piece in pieces_of(place, stream, sums.tokens, layout, start, first):
                if key in wanted:
                    yield key, piece
            starts[stream] += sums.tokens
            documents[stream] += sums.documents


def _sort(
    pool: Pool, parts: _Parts, reports: Sequence[FileReport], work: Work, generation: int
) -> _Parts:
    """The buckets of a generation, from its token blocks, in the order of the keys."""
    settings, fragments = work.settings, defaultdict[int, list[Fragment]](list)
    size = settings.token_dtype.itemsize
    plan = ShufflePlan.of(reports, settings.split, settings.block_bytes, size, None)
    for place, summary in parts:
        assert isinstance(summary, BlockSummary)
        for number, fragment in buckets_of(place, summary, plan):
            fragments[number].append(fragment)
    numbers = sorted(fragments)
    buckets = [Bucket.numbered(number, len(plan.streams)) for number in numbers]
    done = pool.results(
        [write_bucket(each, tuple(fragments[each.number]), generation) for each in buckets]
    )
    places = [TokenBlock("buckets", number, generation) for number in numbers]
    return [(place, summary) for place, (summary, _) in zip(places, done, strict=True)]


def _mark_redacted(
    own: Storage, shard: ShardRecord, manifest: Manifest, redacted: Mapping[tuple[int, int], int]
) -> None:
    """Marks redacted documents in the table of a shard that was made again, and in its mask.

    Their tokens were overwritten before they were written.
    """
    _, name, mask_name = files_of(shard.name)
    table = DocumentTable(DocumentTable.parse(own.read(name)))
    files = table.file_numbers({file.name: file.index for file in manifest.files})
    places = zip(files.tolist(), table.row.tolist(), strict=True)
    marks = {at: redacted[place] for at, place in enumerate(places) if place in redacted}
    if marks:
        content = table.marked([*marks], np.array([*marks.values()]))
        own.write(name, content)
        mask, _ = shard_mask(DocumentTable.parse(content), shard.tokens)
        if mask is not None:
            own.write(mask_name, mask)


def _write_what_follows(dataset: Dataset, damaged: list[str], records: Storage) -> None:
    """Makes what follows from other files: loss masks, job records, the latest manifest's copy."""
    manifest = dataset.manifest
    for shard in manifest.shards:
        _, table, mask_name = files_of(shard.name)
        if mask_name in damaged and table not in damaged:
            read = DocumentTable.parse(dataset.storage.read(table))
            mask, _ = shard_mask(read, shard.tokens)
            records.write(mask_name, mask or b"")
    for number in range(1, manifest.generation + 1):
        job = manifest.job.at(number)
        if job.record_name in damaged:
            if job.generations[-1].redacted:
                job = record.replace(job, redaction=_redaction(dataset, number))
            records.write(job.record_name, job.to_bytes())
    if (name := kept_name(manifest.generation)) in damaged:
        records.write(name, manifest.to_bytes())


def _redaction(dataset: Dataset, generation: int) -> Redaction:
    """The documents that a generation redacted, from the document tables."""
    manifest = dataset.manifest
    pieces: list[tuple[ShardRecord, DocumentPiece]] = []
    for position, shard in enumerate(manifest.shards):
        table = dataset.table(position)
        rows = np.flatnonzero(table.redacted == generation).tolist()
        pieces += ((shard, table.piece(row)) for row in rows)
    return Redaction.of(pieces, manifest.files, manifest.layout)


def _redactions(dataset: Dataset, records: Storage) -> Iterator[tuple[int, Redaction]]:
    """What each generation redacted. records: has damaged job records, made again."""
    for number, generation in enumerate(dataset.manifest.generations, 1):
        if generation.redacted:
            made = records.size(job_name(number)) is not None
            storage = records if made else dataset.storage
            yield number, load_redaction(storage, number, generation)


def _as_they_are(files: Sequence[SourceFile]) -> list[SourceFile]:
    """Source files with the identities that they have now: they may have been copied back."""
    try:
        return [as_it_is(file) for file in files]
    except InputError as error:
        raise InputError(f"{error} It is needed for the repair; nothing was repaired.") from error


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


def _clear_unfinished(storage: Storage, manifest: Manifest) -> None:
    """Deletes unfinished files left behind, unless another repair or an append is at work."""
    if not any(storage.names(f"{TEMPORARY}/.fineshards-")):
        with suppress(OutputError):  # a damaged job record is repaired first
            Checkpoints.of(storage, manifest.job).clear(keep=has_checkpoints(storage))


def describe_repaired(done: Repaired) -> list[str]:
    """What a repair has done, in some lines."""
    lines = [f"nothing to repair: {counted(done.checked, 'file')} of {done.folder} are whole"]
    if done.repaired:
        lines = [
            *(f"repaired {name}" for name in done.repaired),
            f"repaired {len(done.repaired):,} of {counted(done.checked, 'file')} in "
            f"{done.folder}, from {counted(len(done.sources), 'source file')}",
        ]
    if done.left:
        lines.append(f"{counted(len(done.left), 'problem')} left that repair cannot fix")
    return [*lines, *(f"  {problem}" for problem in done.left)]
