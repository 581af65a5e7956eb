"""The input of a job at launch: which files it has, in which order, and how they are read."""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fineshards.config import BuildConfig
from fineshards.cores import usable_cores
from fineshards.errors import InputError, UnavailableError, UsageError
from fineshards.shards.counts import most_allowed
from fineshards.shards.job.job import JOB_NAME, Job
from fineshards.shards.job.manifest_file import MANIFEST_NAME
from fineshards.shards.job.records import Generation, LeftOut, SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.shards.record import replace
from fineshards.sources.files import (
    MISSING,
    expand_lists,
    find_files,
    is_url,
    state_of,
    without_scheme,
)
from fineshards.sources.formats.extraction import with_extraction
from fineshards.sources.formats.format import FORMATS
from fineshards.sources.places.place import open_parts, split_path
from fineshards.sources.reading import discover_blocks, read_block
from fineshards.sources.roots import moved_patterns
from fineshards.storage.base import Storage
from fineshards.wording import counted
from fineshards.worker import own_process
from fineshards.worker.fresh_interpreter import call_apart

if TYPE_CHECKING:
    from fineshards.sources.places.hub import ResolvedDataset

_BLOCK_BYTES = 16 << 20
# Names of splits for evaluation.
_EVALUATION = {"validation", "valid", "val", "dev", "test", "eval"}


def first_documents(files: Sequence[SourceFile], columns: Columns, limit: int) -> list[SourceFile]:
    """The files that hold the first `limit` documents, of which the last ends with its last one.

    All files as they are, if they have no more. Raises InputError for a file that cannot be read.
    """
    left = limit
    for position, file in enumerate(files):
        for block in discover_blocks(file, columns, _BLOCK_BYTES):
            for rows in read_block(file, columns, block):
                documents = rows.numbers[rows.texts.is_valid().to_numpy(zero_copy_only=False)]
                if len(documents) >= left:
                    last = replace(file, stop_row=int(np.sort(documents)[left - 1]) + 1)
                    return [*files[:position], last]
                left -= len(documents)
    return list(files)


# Names as a job writes them, of every kind of which an input pattern may match one.
_WRITTEN = (
    *(JOB_NAME, MANIFEST_NAME, "train/train_0000.npy", "metadata/rejected/00000-00000.jsonl"),
    *("metadata/documents/train_0000.parquet", "metadata/statistics/00000.parquet"),
    *("checkpoints/0/blocks/00000-00000.parquet", "checkpoints/0/blocks/00000-00000.tokens"),
)
_log = logging.getLogger("fineshards")


class Patterns(NamedTuple):
    """The patterns of an input, with those of its lists."""

    test: list[str]
    train: list[str]

    @classmethod
    def of(cls, config: BuildConfig) -> Patterns:
        """Reads the lists, which must happen once; raises InputError for one that is empty."""
        return cls(
            expand_lists(config.test_patterns, "--test_input"), expand_lists(config.patterns)
        )


def find_input(
    config: BuildConfig, patterns: Patterns, roots: Sequence[str] = ()
) -> tuple[list[SourceFile], dict[str, str]]:
    """Returns the ordered files, and which dataset they are, for the manifest.

    Raises UsageError or InputError if there are none.

    roots: those of the dataset that is to grow, which --sources may name too.
    """
    if config.s3_endpoint and own_process.alone:
        # For input too, here and in the processes that this one starts.
        os.environ["AWS_ENDPOINT_URL_S3"] = config.s3_endpoint
    given, files = (*config.test_patterns, *config.patterns), list[SourceFile]()
    if given:
        moved = moved_patterns(patterns.test + patterns.train, config.sources, roots)
        splits = (moved[len(patterns.test) :], moved[: len(patterns.test)])
        request = *splits, bool(config.max_bad_files)
        apart = any(map(is_url, moved))
        files = call_apart(find_files, *request) if apart else find_files(*request)
    if config.dataset is None:
        # The DAG of Composer knows by it that files in a store are in the dataset already.
        named = {"input": config.patterns, "test_input": config.test_patterns}
        stored = all(map(is_url, given))
        return files, {name: " ".join(of) for name, of in named.items() if of and stored}
    resolved, test = call_apart(_resolve, config)
    if resolved.warning:
        _log.warning("%s", resolved.warning)
    unread = [name for name in resolved.splits if name in _EVALUATION - {config.dataset_split}]
    if unread and not config.has_test_files:
        _log.warning(
            "not read of --dataset %s: %s. See --dataset_test_split",
            *(config.dataset, ", ".join(unread)),
        )
    names = "dataset", "config", "split", "commit"
    values = config.dataset, resolved.config, config.dataset_split, resolved.commit or ""
    origin = dict(zip(names, values, strict=True))
    if test is not None:
        files += [replace(file, test=True) for file in test.files]
        origin["test_split"] = config.dataset_test_split or ""
    if twice := {file.path for file in files} & {file.path for file in resolved.files}:
        raise UsageError(f"{min(twice)} would be in test and in train. Name it for one of them.")
    return _numbered([*files, *resolved.files]), origin


def _numbered(files: Sequence[SourceFile]) -> list[SourceFile]:
    return [replace(file, index=index) for index, file in enumerate(files)]


def settle_input(
    files: Sequence[SourceFile], columns: Columns, config: BuildConfig, begun: Job | None
) -> tuple[list[SourceFile], list[LeftOut]]:
    """The files with how they are read: what extracts their text, and where a limit ends them.

    begun: a job on record, which this one may resume.

    Returns them, and those that `--max_bad_files` leaves out. Raises InputError if these are more
    than it allows.
    """
    extracted = [
        replace(file, extraction=FORMATS.package(file.format) or file.extraction)
        for file in with_extraction(files, config.extract, config.quoting, config.text_separator)
    ]
    plain = next((file for file in files if not FORMATS[file.format].has_columns), None)
    if columns.conversations and plain is not None:
        raise UsageError(
            f"{plain.path} holds no conversations: files of {plain.format} have no columns of "
            "messages. Leave it out, or leave out --chat_template."
        )
    left_out = list[LeftOut]()
    if config.max_bad_files:
        reasons = _reasons_on_record(extracted, begun)
        if reasons is None:
            reasons = call_apart(_reasons, extracted, columns)
        left_out = _leave_out(extracted, reasons, config.max_bad_files)
        extracted = _numbered([file for file in extracted if file.index not in reasons])
    if config.limit is None:
        return extracted, left_out
    splits = [[file for file in extracted if file.test == is_test] for is_test in (True, False)]
    first = [call_apart(first_documents, part, columns, config.limit) for part in splits if part]
    return _numbered([file for part in first for file in part]), left_out


def new_generation(
    files: Sequence[SourceFile], left_out: Sequence[LeftOut], root: str, config: BuildConfig
) -> Generation:
    """The record of a generation that adds files. left_out: named by their paths."""
    below = list[LeftOut]()
    for of in left_out:
        path, far = of.file.path, is_url(of.file.path) or is_url(root)
        is_below = far or path.startswith(root)
        name = path.removeprefix(root) if is_below else os.path.relpath(path, root)
        # Also in the path of an index beside it, and of no other folder.
        reason = of.reason.replace(os.path.splitext(path)[0], os.path.splitext(name)[0])
        reason = re.sub(r"\(it is a link to /.*\)", "(it is a link)", reason)
        below.append(LeftOut(replace(of.file, name=name), reason))
    return Generation(len(files), root=root, max_bad_files=config.max_bad_files, left_out=(*below,))


def _reasons_on_record(files: Sequence[SourceFile], begun: Job | None) -> dict[int, str] | None:
    """Why a job that has begun left out some of these files, as `_reasons`; None if it is another.

    So what its first launch left out stays out.
    """
    if begun is None or not begun.generations[-1].max_bad_files:
        return None
    left_out = {of.file.index: of for of in begun.generations[-1].left_out}
    now = [os.path.basename(file.path) if file.index in left_out else file.path for file in files]
    then = [file.path for file in begun.new_files]
    for index, of in left_out.items():
        then.insert(index, os.path.basename(of.file.name))
    return {index: of.reason for index, of in left_out.items()} if now == then else None


def _reasons(files: Sequence[SourceFile], columns: Columns) -> dict[int, str]:
    """Reads every file to its end as the job would; why those that fail do, by their index.

    Raises UnavailableError where a disk, a store or a server fails.
    """

    def reason(file: SourceFile) -> str:
        try:
            if file.identity == MISSING:
                state_of(file)  # may say more
                return f"{file.path} is not there."
            for block in discover_blocks(file, columns, _BLOCK_BYTES):
                for _ in read_block(file, columns, block):
                    pass
        except UnavailableError:  # what is left out depends on the files alone
            raise
        except InputError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(usable_cores()) as pool:
        found = zip(files, pool.map(reason, files), strict=True)
        return {file.index: why for file, why in found if why}


def _leave_out(
    files: Sequence[SourceFile], reasons: Mapping[int, str], limit: int | str
) -> list[LeftOut]:
    """The files with a reason to be left out; raises InputError for too many of them."""
    left_out = [LeftOut(files[index], why) for index, why in sorted(reasons.items())]
    counts = f"{len(left_out):,} of {counted(len(files), 'input file')}"
    first = " ".join(of.reason for of in left_out[:3])
    if len(left_out) == len(files):
        raise InputError(f"{counts} cannot be read, so none is left: {first}")
    if len(left_out) > most_allowed(limit, len(files)):
        raise InputError(
            f"{counts} cannot be read, and --max_bad_files allows {limit}: {first} Put good files "
            "there, or raise --max_bad_files to leave such files out."
        )
    if left_out:
        _log.warning("left out %s, which cannot be read: %s", counts, first)
    return left_out


def _resolve(config: BuildConfig) -> tuple[ResolvedDataset, ResolvedDataset | None]:
    """The dataset of a configuration, and its test split, if it is named: of the same commit."""
    from fineshards.sources.places.hub import DatasetRequest, resolve_dataset

    assert config.dataset is not None
    name, of = config.dataset, config.dataset_config
    train = resolve_dataset(DatasetRequest(name, of, config.dataset_split, config.dataset_revision))
    if (split := config.dataset_test_split) is None:
        return train, None
    request = DatasetRequest(name, of, split, train.commit, flag="--dataset_test_split")
    return train, resolve_dataset(request)


def refuse_overlap(
    storage: Storage, files: Sequence[SourceFile], dataset: str | None, patterns: Patterns
) -> None:
    """Raises UsageError if an input file lies in the output folder, or would match input there.

    `--overwrite` would delete such files, and the next run would take output for input. Links
    are resolved.
    """
    output = _place(storage.root)
    for file in files:
        if _place(file.path).startswith(f"{output}/"):
            raise UsageError(
                f"{file.path} is input and lies in --output {storage.root}. Choose an --output "
                "that does not hold the input."
            )
    for pattern in [*([dataset] if dataset else []), *patterns.train, *patterns.test]:
        if _would_match(output, without_scheme(pattern)):
            raise UsageError(
                f"--output {storage.root} lies where --input or --dataset {pattern} would find "
                "its files, so the job could not be resumed. Choose an --output outside of it."
            )


def _would_match(output: str, pattern: str) -> bool:
    """Whether what a job writes into a folder would be found by a pattern or in a folder."""
    wanted = _place(pattern)
    if os.path.isdir(pattern) or not glob.has_magic(pattern):
        return f"{output}/".startswith(f"{wanted}/")
    # A folder that matches is input too.
    written = (split_path(f"{output}/{name}") for name in _WRITTEN)
    return any(True for path in written for _ in open_parts(path, split_path(wanted)))


def _place(path: str) -> str:
    """A local path without links, as far as it has no wildcards; a URL without a last slash."""
    path = without_scheme(path)
    if is_url(path):
        return path.rstrip("/")
    absolute = os.path.abspath(path)
    fixed = absolute
    while any(sign in fixed for sign in "*?[") and not os.path.lexists(fixed):
        fixed = os.path.dirname(fixed)
    return os.path.realpath(fixed) + absolute[len(fixed) :]
