"""Repair: makes lost and damaged files of a dataset again, from its sources.

They are made in a scratch folder by the plan and the tasks of a build, of the blocks with documents
in them, and go into the dataset only if they are what the manifest says. So a repair that fails or
is killed has changed nothing that was whole, and the same command starts again. No token of a
redacted document is written anywhere.

Counts of files are in the manifest, and of blocks in a table. With them the place of the tokens of
each block is known, so a shard costs the reading of the blocks that lie in it. A shuffled shard has
documents of all blocks of its generation, and a lost table of blocks has the counts of all.
"""

import os
import re
import shutil
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import PurePosixPath

import numpy as np

from fineshards.cores import usable_cores
from fineshards.encoders.loading import describe_tokenizer
from fineshards.errors import FineshardsError, InputError, OutputError
from fineshards.extras import naming_the_extra
from fineshards.shards import layout, record
from fineshards.shards.assembly import shard_mask
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.counts import BlockSummary, report_file, sums_by_stream
from fineshards.shards.dataset_files import Dataset, expected_files, files_of_manifest
from fineshards.shards.job.job import Job, Redaction, job_name, load_redaction
from fineshards.shards.job.manifest import Manifest, readable_manifest
from fineshards.shards.job.manifest_file import MANIFEST_NAME, has_checkpoints
from fineshards.shards.job.records import (
    GENERATIONS_FOLDER,
    Piece,
    ShardRecord,
    SourceFile,
    block_tables,
    borders,
    copy_name,
)
from fineshards.shards.job.settings import Tokenizer
from fineshards.shards.piece_plan import EarlierGeneration, StreamPlan, pieces_of_shards
from fineshards.shards.shuffle_order import Bucket, Fragment, ShufflePlan, buckets_of
from fineshards.shards.tables import block_counts
from fineshards.shards.tables.documents import DocumentPiece, DocumentTable
from fineshards.sources.files import as_it_is, is_url
from fineshards.sources.roots import with_sources
from fineshards.storage.base import TEMPORARY, Storage
from fineshards.storage.open import open_storage
from fineshards.storage.temporary import remove_abandoned, scratch_folder
from fineshards.verification.check_files import check_names, check_published
from fineshards.wording import counted
from fineshards.worker import tasks
from fineshards.worker.fresh_interpreter import call_apart, call_in_fresh_interpreter
from fineshards.worker.pool import Pool
from fineshards.worker.work import Work

# A file's name, size and checksum.
_File = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair has done.

    checked: files that were read. repaired: names of those that were made again. sources: source
    files of which some blocks, `blocks` in all, were tokenized. left: what is still wrong.
    """

    folder: str
    checked: int
    repaired: list[str]
    sources: list[str]
    blocks: int
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
    taken, blocks, damaged = list[str](), 0, [name for name, _, _ in wrong]
    if damaged:
        with scratch_folder(place) as scratch:
            taken, blocks = call_in_fresh_interpreter(
                _make_again, storage.root, damaged, tokenizer, sources, scratch
            )
            _put_in_place(storage, wrong, scratch, taken)
        _clear_unfinished(storage, manifest)
    following = Job.load(storage, manifest.generation + 1)
    _, left = check_names(storage, manifest, following)
    if not left and following is None:
        left += check_published(storage, manifest, hashes=False)
    return Repaired(storage.root, len(files), [*restored, *damaged], taken, blocks, left)


def _restore_manifests(storage: Storage) -> list[str]:
    """Puts manifests back that are lost, damaged or in each other's place; returns their names."""
    names = [MANIFEST_NAME, *(entry.name for entry in storage.entries(GENERATIONS_FOLDER))]
    names = [name for name in names if not name.endswith((".job.json", ".parquet"))]
    stored = {name: storage.read(name) if storage.size(name) else b"" for name in names}
    whole = [content for content in stored.values() if record.seal_holds(content)]
    manifests = [Manifest.parse(content, "a copy") for content in whole]
    wanted = {copy_name(manifest.generation): manifest.to_bytes() for manifest in manifests}
    unfinished = has_checkpoints(storage)
    # A job that makes a generation keeps its manifest before it is the latest: it will finish that.
    if not wanted or (unfinished and record.seal_holds(stored[MANIFEST_NAME])):
        return []
    latest = max(manifest.generation for manifest in manifests)
    wanted[MANIFEST_NAME] = wanted[copy_name(latest)]
    lost = wanted[MANIFEST_NAME] != stored[MANIFEST_NAME] and storage.size(job_name(latest + 1))
    if lost and not unfinished:
        raise OutputError(
            f"{storage.path(MANIFEST_NAME)} and {copy_name(latest + 1)} are both damaged. Copy one "
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
) -> tuple[list[str], int]:
    """Makes files again in a scratch folder; returns the paths of the sources, and how many blocks.

    They are in its folders `records`, if they follow from other files of the dataset, and `job`.
    """
    storage, scratch = open_storage(folder), open_storage(f"{scratch_path}/job")
    records = open_storage(f"{scratch_path}/records")
    manifest = with_sources(readable_manifest(storage), sources)
    settings, dataset = manifest.settings, Dataset(storage, manifest)
    compares = settings.recipe is not None and bool(settings.recipe.keyed)
    lost = {*settings.stored_files[1:], *map(copy_name, range(1, manifest.generation))}
    if any(layout.table_name(shard.name) in damaged for shard in manifest.shards):
        # Tables say which documents were redacted, and nothing else does.
        lost |= {job_name(n) for n, each in enumerate(manifest.generations, 1) if each.redacted}
    for name in damaged:
        follows = compares and name.startswith(layout.CURATED_FOLDERS)
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
    files, blocks = _make_of_sources(dataset, left, scratch, records)
    return [manifest.files[file].path for file in files], blocks


def _put_in_place(
    storage: Storage, files: Sequence[_File], scratch_path: str, taken: list[str]
) -> None:
    """Copies files into the dataset, once all of them are known to be what the manifest says."""
    places = [open_storage(f"{scratch_path}/{name}") for name in ("records", "job")]
    made = {file: [place for place in places if _is_whole(place, *file)] for file in files}
    for (name, _, _), whole in made.items():
        if not whole:
            raise FineshardsError(
                f"{name} made again is not what the manifest says. Nothing was repaired. A source "
                "has changed in a way that keeps its counts, or a library has another version than "
                f"the manifest names. It was made of: {', '.join(taken)}."
            )
    for (name, _, _), whole in made.items():
        # On gs:// no object is overwritten.
        storage.delete(name)
        _copy(whole[0], name, storage)


def _make_of_sources(
    dataset: Dataset, damaged: list[str], scratch: Storage, records: Storage
) -> tuple[list[int], int]:
    """Makes files again as a build does, of the blocks with documents in them.

    Returns the numbers of their source files, and how many blocks were tokenized.
    """
    manifest, settings, names = dataset.manifest, dataset.manifest.settings, {*damaged}
    reports, rule, ends = manifest.reports, settings.split, borders(manifest.generations)
    generation_of = partial(bisect_right, (0, *ends))  # of the number of a file
    shards = {of.key: of for of in manifest.shards if names & {*layout.files_of(of.name)}}
    plan = StreamPlan.of(manifest.layout, rule, reports)
    of_files = ([BlockSummary(of.file, 0, 1, of.counts, of.test)] for of in reports)
    touched = {piece.block.file for _, piece in pieces_of_shards(of_files, plan, shards)}
    # All blocks are read of these generations, and of source files with tables of their own.
    shuffled = {*map(generation_of, touched)} if settings.shuffle else set[int]()
    tables = block_tables(manifest.generations)
    lost = {generation for generation, name in tables.items() if name in damaged}
    judged = _files_of(damaged, layout.CURATED_FOLDERS)
    whole = judged | _files_of(damaged, (layout.REJECTED_FOLDER,))
    whole |= {file for file in range(len(reports)) if generation_of(file) in shuffled | lost}
    whole_tables = (name for name in tables.values() if name not in damaged)
    rows = block_counts.read_blocks(dataset.storage, whole_tables)
    recorded = {
        file: block_counts.blocks_of_file(rows, file, rule.by_document) for file in touched - whole
    }
    wanted = {piece.block for _, piece in pieces_of_shards(recorded.values(), plan, shards)}
    needed = sorted(touched | whole)
    if not needed:
        return [], 0
    redacted = {place: n for n, of in _redactions(dataset, records) for place in of.documents}
    job = Job(settings, manifest.files, manifest.origin)
    scratch.write(job.record_name, job.to_bytes())
    # Where documents were compared with others, the decisions are taken as they are.
    decided = settings.recipe is not None and bool(settings.recipe.keyed)
    checkpoints, places = Checkpoints.of(scratch, job), tuple(redacted)
    work = Work(checkpoints, settings, max_bad_rows=sys.maxsize, redacted=places, decided=decided)
    if decided:
        there = {file.name for file in manifest.metadata}
        for name in there.intersection(layout.file_table("decisions", file) for file in needed):
            _copy(dataset.storage, name, scratch)
    files = [manifest.files[file] for file in needed]
    apart = any(is_url(file.path) for file in files)
    files = call_apart(_as_they_are, files) if apart else _as_they_are(files)
    with Pool(work, usable_cores(), ()) as pool:
        looks = pool.results([tasks.discover_files(*some) for some in tasks.side_by_side(files)])
        blocks = [(file, block) for pairs, _ in looks for file, of in pairs for block in of]
        chosen = [pair for pair in blocks if pair[1].file in whole or pair[1].place in wanted]
        read: dict[int, list[BlockSummary]] = {file: [] for file in needed}
        for (summary, _), _ in pool.results([tasks.finish_block(*pair) for pair in chosen]):
            read[summary.file].append(summary)
        for file, now in read.items():
            then = [block for block in recorded.get(file, ()) if block.place in wanted]
            expected = sums_by_stream([reports[file]] if file in whole else then, rule)
            if sums_by_stream(now, rule) != expected:
                raise InputError(
                    f"{manifest.files[file].path} has changed since the dataset was built: it has "
                    "other numbers of documents or tokens. Nothing was repaired; put the file back."
                )
        for generation in lost:
            of_table = [read[file] for file in needed if generation_of(file) == generation]
            rows_of_files = map(block_counts.rows_of, of_table)
            block_counts.write_blocks(scratch, tables[generation], rows_of_files)
        placed = [pieces_of_shards((read | recorded).values(), plan, () if shuffled else shards)]
        for generation in shuffled:
            summaries = chain(*(read[file] for file in needed if generation_of(file) == generation))
            placed.append(_sorted(pool, summaries, manifest, work, generation, shards))
        pieces = defaultdict[layout.ShardKey, list[Piece]](list)
        for key, piece in chain(*placed):
            pieces[key].append(piece)
        writes = [
            tasks.write_shard(manifest.layout.shard(key), tuple(pieces[key])) for key in shards
        ]
        for _ in pool.results([*writes, *map(tasks.write_tables, sorted(judged))]):
            pass
    for shard in shards.values():
        _mark_redacted(scratch, shard, manifest, redacted)
    return needed, len(chosen)


def _files_of(names: Sequence[str], folders: tuple[str, ...]) -> set[int]:
    """The numbers of the source files that those files are about that are in some folders."""
    files = (PurePosixPath(name).name for name in names if name.startswith(folders))
    return {int(re.split("[-.]", name)[0]) for name in files}


def _sorted(
    pool: Pool,
    summaries: Iterable[BlockSummary],
    manifest: Manifest,
    work: Work,
    generation: int,
    wanted: Container[layout.ShardKey],
) -> Iterator[tuple[layout.ShardKey, Piece]]:
    """The pieces of some shards of a generation, of the buckets that its blocks are sorted into."""
    settings, ends = work.settings, (0, *borders(manifest.generations))
    reports, rule = manifest.reports[ends[generation - 1] : ends[generation]], settings.split
    size, fragments = settings.token_dtype.itemsize, defaultdict[int, list[Fragment]](list)
    by_keys = ShufflePlan.of(reports, rule, size, None)
    for summary in summaries:
        for number, fragment in buckets_of(summary, by_keys):
            fragments[number].append(fragment)
    writes = [
        tasks.write_bucket(Bucket.numbered(number, len(rule.streams)), tuple(of), generation)
        for number, of in sorted(fragments.items())
    ]
    buckets = [[summary] for summary, _ in pool.results(writes)]
    before = sums_by_stream(manifest.reports[: ends[generation - 1]], rule)
    earlier = EarlierGeneration(generation - 1, before)
    plan = StreamPlan.of(manifest.layout, rule, [*map(report_file, buckets)], earlier)
    return pieces_of_shards(buckets, plan, wanted, "buckets")


def _mark_redacted(
    own: Storage, shard: ShardRecord, manifest: Manifest, redacted: Mapping[tuple[int, int], int]
) -> None:
    """Marks redacted documents in the table of a shard that was made again, and in its mask.

    Their tokens were overwritten before they were written.
    """
    _, name, mask_name = layout.files_of(shard.name)
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
    """Makes what follows from other files: masks, lists of files, job records, the last copy."""
    manifest = dataset.manifest
    for shard in manifest.shards:
        _, table, mask_name = layout.files_of(shard.name)
        if mask_name in damaged and table not in damaged:
            mask, _ = shard_mask(DocumentTable.parse(dataset.storage.read(table)), shard.tokens)
            records.write(mask_name, mask or b"")
    for number in range(1, manifest.generation + 1):
        job = manifest.job.at(number)
        if job.record_name in damaged:
            if job.generations[-1].redacted:
                job = record.replace(job, redaction=_redaction(dataset, number))
            records.write(job.record_name, job.to_bytes())
    for name, content in files_of_manifest(manifest).items():
        if name in damaged:
            records.write(name, content)


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
    described, content = describe_tokenizer(place or tokenizer.name, "auto", eot)
    if described.vocabulary_sha256 != tokenizer.vocabulary_sha256:
        raise InputError(
            f"{tokenizer.file} is damaged, and {place or tokenizer.name} is another tokenizer: "
            f"sha256 {described.vocabulary_sha256}, expected {tokenizer.vocabulary_sha256}. Say "
            "where the right one is with --tokenizer."
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
            f"{done.folder}, from {counted(done.blocks, 'block')} of "
            f"{counted(len(done.sources), 'source file')}",
        ]
    if done.left:
        lines.append(f"{counted(len(done.left), 'problem')} left that repair cannot fix")
    return [*lines, *(f"  {problem}" for problem in done.left)]
