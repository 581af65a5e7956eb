"""Repair: makes lost and damaged files of a dataset again, from its sources.

They are made in a scratch folder, of the whole source files that have tokens in them, and go into
the dataset only if they are what the manifest says. So a repair that fails or is killed has changed
nothing that was whole, and the same command starts again.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from fineshards.commands.repair import (
    Repaired,
    expected_files,
    find_damaged,
    is_whole,
    load_whole_manifest,
)
from fineshards.cores import usable_cores
from fineshards.encoders.loading import describe_tokenizer
from fineshards.errors import FineshardsError, InputError, UsageError
from fineshards.extras import naming_the_extra
from fineshards.pipeline.fresh import call_in_fresh_interpreter
from fineshards.shards.checkpoints import FOLDER as CHECKPOINTS
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.counts import Sums
from fineshards.shards.job import FORMAT_VERSION, Job, Tokenizer
from fineshards.shards.layout import ShardKey, table_name
from fineshards.shards.manifest import Manifest
from fineshards.shards.plan import StreamPlan, plan_pieces, plan_stream
from fineshards.shards.records import Block, Piece, ShardRecord, SourceFile
from fineshards.shards.rejected import REJECTED_FOLDER
from fineshards.shards.reports import BlockSummary, FileReport, complete_file, report_file
from fineshards.sources.finding import find_files
from fineshards.storage.base import Storage, open_storage
from fineshards.storage.temporary import temporary_room
from fineshards.transforms.pool import Pool
from fineshards.transforms.tasks import DiscoverFile, FinishBlock, WriteShard
from fineshards.transforms.work import Work


@naming_the_extra()
def repair(folder: str, tokenizer: str | None = None) -> Repaired:
    """Makes lost and damaged files of a dataset again; returns what was done.

    tokenizer: where the tokenizer is, if its file in the dataset is damaged; None for where its
    name leads. Raises FineshardsError, and changes nothing, if a source is missing or has changed,
    or if the manifest itself is damaged.
    """
    storage = open_storage(folder)
    manifest = load_whole_manifest(storage)
    damaged = find_damaged(storage, manifest)
    sources: list[str] = []
    if damaged:
        _check_order(manifest)
        with temporary_room(), tempfile.TemporaryDirectory(prefix="fineshards-repair-") as scratch:
            sources = call_in_fresh_interpreter(_make_again, folder, damaged, tokenizer, scratch)
            _put_in_place(storage, manifest, damaged, open_storage(scratch))
    checked = sum(1 for _ in expected_files(manifest))
    return Repaired(storage.root, checked, damaged, sources)


def _check_order(manifest: Manifest) -> None:
    """Raises UsageError for a dataset whose files cannot be made again yet."""
    if manifest.settings.shuffle is not None:
        raise UsageError(
            "repair cannot make files of a dataset with --shuffle_seed again yet; nothing was "
            "changed. Build the dataset again with --overwrite."
        )


def _make_again(
    folder: str, damaged: list[str], tokenizer: str | None, scratch_folder: str
) -> list[str]:
    """Makes files again in a scratch folder; returns the paths of the sources that it took."""
    storage, scratch = open_storage(folder), open_storage(scratch_folder)
    manifest = load_whole_manifest(storage)
    settings = manifest.settings
    job = Job(settings, manifest.files, manifest.origin, FORMAT_VERSION)
    job.save(scratch)
    if settings.tokenizer.file in damaged:
        vocabulary = _vocabulary(settings.tokenizer, tokenizer)
    else:
        vocabulary = storage.read(settings.tokenizer.file)
    scratch.write(settings.tokenizer.file, vocabulary)
    shards = [
        shard for shard in manifest.shards if {shard.name, table_name(shard.name)} & {*damaged}
    ]
    plan = plan_stream(manifest.reports, settings.shard_tokens, settings.split)
    needed = {file for shard in shards for file in _files_of(shard, plan, manifest)}
    for name in damaged:
        if name.startswith(f"{REJECTED_FOLDER}/"):
            needed.add(int(PurePosixPath(name).name.partition("-")[0]))
    if needed:
        work = Work(
            Checkpoints.of(scratch, job), settings, len(job.files), max_bad_rows=sys.maxsize
        )
        with Pool(work, usable_cores(), ()) as pool:
            _write_shards(pool, plan, shards, _tokenize(pool, manifest, needed))
    return [manifest.files[index].path for index in sorted(needed)]


def _files_of(shard: ShardRecord, plan: StreamPlan, manifest: Manifest) -> Iterator[int]:
    """The source files that have tokens in a shard."""
    key = ShardKey(shard.split, shard.index)
    for report in manifest.reports:
        for number, sums in enumerate(report.streams()):
            offset = int(plan.token_offsets[number, report.file])
            if any(cut.key == key for cut in plan.layout.slices(offset, sums.tokens)):
                yield report.file


def _tokenize(
    pool: Pool, manifest: Manifest, needed: Collection[int]
) -> dict[int, list[BlockSummary]]:
    """The token blocks of source files; raises InputError if one of them has changed."""
    looks = [DiscoverFile(_as_it_is(manifest.files[index])) for index in sorted(needed)]
    for look in looks:
        pool.submit(look)
    found: dict[SourceFile, list[Block]] = dict(pool.result(look)[0] for look in looks)
    tasks = [FinishBlock(file, block) for file, blocks in found.items() for block in blocks]
    for task in tasks:
        pool.submit(task)
    summaries = defaultdict(list)
    for task in tasks:
        (summary, _), _ = pool.result(task)
        summaries[summary.file].append(summary)
    for index, of_file in summaries.items():
        now = _content(report_file(complete_file(of_file)))
        then = _content(manifest.reports[index])
        different = [
            f"{found:,} {what}, not {then[what]:,}"
            for what, found in now.items()
            if found != then[what]
        ]
        if different:
            raise InputError(
                f"{manifest.files[index].path} has changed since the dataset was built: it gives "
                f"{' and '.join(different)}. Nothing was repaired; put the file back as it was."
            )
    return {index: complete_file(of_file) for index, of_file in summaries.items()}


def _as_it_is(file: SourceFile) -> SourceFile:
    """A source file with the identity that it has now: it may have been copied back."""
    if file.path.startswith("hf://"):
        return file  # of a commit
    try:
        (found,) = find_files([file.path])
    except UsageError as error:
        raise InputError(
            f"{file.path} is needed for the repair, and is not there. Put it back where it was."
        ) from error
    if found.size != file.size:
        raise InputError(
            f"{file.path} has changed since the dataset was built: it has {found.size:,} bytes, "
            f"expected {file.size:,}. Nothing was repaired; put the file back as it was."
        )
    return replace(file, identity=found.identity)


def _content(report: FileReport) -> dict[str, int]:
    """What of a report depends on the source alone, by name."""
    counts, test = report.counts, report.test or Sums(0, 0)
    return {
        "rows": counts.rows,
        "rejected rows": counts.rejected,
        "documents": counts.documents,
        "tokens": counts.tokens,
        "bytes of text": counts.text_bytes,
        "documents of the test split": test.documents,
        "tokens of the test split": test.tokens,
    }


def _write_shards(
    pool: Pool,
    plan: StreamPlan,
    shards: list[ShardRecord],
    summaries: dict[int, list[BlockSummary]],
) -> None:
    pieces: dict[ShardKey, list[Piece]] = defaultdict(list)
    for of_file in summaries.values():
        for key, piece in plan_pieces(of_file, plan):
            pieces[key].append(piece)
    tasks = []
    for shard in shards:
        key = ShardKey(shard.split, shard.index)
        tasks.append(WriteShard(key, tuple(pieces[key]), plan.layout))
        pool.submit(tasks[-1])
    for task in tasks:
        pool.result(task)


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


def _put_in_place(
    storage: Storage, manifest: Manifest, damaged: list[str], scratch: Storage
) -> None:
    """Copies files into the dataset, once all of them are known to be what the manifest says."""
    for name, size, checksum in expected_files(manifest):
        if name in damaged and not is_whole(scratch, name, size, checksum):
            raise FineshardsError(
                f"{name} made again is not what the manifest says (crc32c {checksum}). A source "
                "has changed in a way that keeps its counts, or a library has another version than "
                "the manifest names. Nothing was repaired."
            )
    keeps_checkpoints = any(storage.names(f"{CHECKPOINTS}/"))
    for name in damaged:
        # On gs:// no object is overwritten.
        storage.delete(name)
        with scratch.open(name) as content, storage.create(name) as out:
            shutil.copyfileobj(content, out, 8 << 20)
    if not keeps_checkpoints:
        storage.delete_folder(CHECKPOINTS)  # where unfinished files were
