"""Resolves a dataset (name, config, split, revision) to an ordered list of files.

The `datasets` library decides which files belong to a config and a split, so a dataset here is the
same as everywhere else. Only its listing is used: no data file is downloaded or converted.

A hub repository is pinned to one commit before anything is listed. A push during a job, or between
a job and its restart, does not change what the URLs refer to.

`datasets` and `huggingface_hub` are imported inside functions: importing them takes a second, and
commands that read no dataset should not wait for it.
"""

import glob
import logging
import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fineshards.errors import InputError, UsageError
from fineshards.shards.job.records import SourceFile
from fineshards.sources.files import (
    describe_files,
    find_files,
    is_beside_data,
    refuse_cached_copies,
    some,
    walk,
)
from fineshards.sources.formats.format import format_of, has_known_format
from fineshards.sources.places.hub_files import (
    access_refused,
    brief,
    hub_failures,
    list_files,
    pin,
    quiet_hub,
)
from fineshards.storage.temporary import scratch_folder


@dataclass(frozen=True)
class DatasetRequest:
    """The dataset that a user asks for.

    name: OWNER/NAME on the hub, or a local folder laid out like a hub repository.
    config: None for the dataset's default.
    revision: branch, tag or commit on the hub; None for the main branch.
    flag: that names the split.
    """

    name: str
    config: str | None
    split: str
    revision: str | None
    flag: str = "--dataset_split"


@dataclass(frozen=True)
class ResolvedDataset:
    """The files of one split of one config, in the order of the `datasets` library.

    config: the config's name, also if the request did not name one.
    commit: full hash of the hub repository's commit; None for a local folder. splits: all of the
    config. warning: what the user should know, as a sentence; empty if there is nothing.
    """

    files: list[SourceFile]
    config: str
    commit: str | None
    splits: list[str]
    warning: str = ""


def resolve_dataset(request: DatasetRequest) -> ResolvedDataset:
    """Lists the dataset's files; raises UsageError or InputError if it cannot.

    Uses HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE as they were when the process started.
    """
    if any(sign in request.split for sign in "[+"):
        raise UsageError(
            f"{request.flag} {request.split}: slices and combinations of splits are not "
            "supported. Name one whole split, such as train."
        )
    _quiet_libraries()
    if os.path.isdir(request.name):
        return _resolve_folder(request)
    return _resolve_repository(request)


def _resolve_folder(request: DatasetRequest) -> ResolvedDataset:
    if request.revision is not None:
        raise UsageError(
            f"--dataset {request.name} is a local folder, which has no revisions. Remove "
            f"--dataset_revision {request.revision}."
        )
    # What `save_to_disk` wrote, which `load_dataset` refuses.
    is_dict = os.path.isfile(os.path.join(request.name, "dataset_dict.json"))
    saved = os.path.join(request.name, request.split) if is_dict else request.name
    if os.path.isfile(os.path.join(saved, "state.json")):
        states = Path(request.name).glob("*/state.json")
        splits = sorted(path.parent.name for path in states) if is_dict else [request.split]
        return ResolvedDataset(find_files([glob.escape(saved)]), "default", None, splits)
    # An absolute path, because the library treats a bare `json` or `parquet` as a file format.
    builder, paths = _list_files(request, os.path.abspath(request.name), commit=None)
    refuse_cached_copies(_flags_of(request), paths)
    files = describe_files(map(os.path.abspath, paths))
    listed = {os.path.realpath(path) for path in _files_of_config(builder)}
    left_out = [path for path in walk(request.name) if os.path.realpath(path) not in listed]
    warning = _warning(request, builder, left_out)
    return ResolvedDataset(files, str(builder.config.name), None, _splits(builder), warning)


def _resolve_repository(request: DatasetRequest) -> ResolvedDataset:
    is_file = os.path.isfile(request.name)
    if is_file or request.name.count("/") != 1 or request.name.startswith(("/", ".", "~")):
        actual = "this is a file; use --input" if is_file else "no such folder exists"
        raise UsageError(
            f"--dataset {request.name}: expected a folder or OWNER/NAME on the Hugging Face Hub, "
            f"but {actual}."
        )
    flags = _flags_of(request)
    with hub_failures(flags):
        info = pin(request.name, request.revision, flags)
        builder, urls = _list_files(request, info.id, info.sha)
        listed = {file.path: file for file in list_files(info.id, info.sha, "", deep=True)[0]}
    if missing := [url for url in urls if url not in listed]:
        raise InputError(f"{flags}: {missing[0]} is not a file of this commit. Give it by --input.")
    files = [
        SourceFile(index, url, listed[url].size, listed[url].identity, *format_of(url))
        for index, url in enumerate(urls)
    ]
    left_out = [
        listed[url].name
        for url in listed.keys() - _files_of_config(builder)
        if has_known_format(url) and not is_beside_data(listed[url].name)
    ]
    warning = _warning(request, builder, left_out)
    return ResolvedDataset(files, str(builder.config.name), info.sha, _splits(builder), warning)


def _files_of_config(builder: Any) -> set[str]:
    return {str(url) for files in builder.config.data_files.values() for url in files}


def _splits(builder: Any) -> list[str]:
    return [str(split) for split, files in (builder.config.data_files or {}).items() if files]


def _warning(request: DatasetRequest, builder: Any, left_out: list[str]) -> str:
    """A sentence about data files that are in no split; empty if there are none.

    They are not refused: a dataset is what the library makes of it. Files of other configs are
    expected to be left out.
    """
    if not left_out or len(builder.builder_configs) > 1:
        return ""
    names = some(sorted(left_out))
    return f"{_flags_of(request)}: the datasets library leaves out {names}, and so does the job"


def _list_files(request: DatasetRequest, path: str, commit: str | None) -> tuple[Any, list[str]]:
    """The library's builder of a dataset, and the files of the split in its order."""
    builder = _load_builder(request, path, commit)
    config = str(builder.config.name)
    splits = builder.config.data_files or {}
    names = _splits(builder)
    if request.split not in names:
        choice = f"Choose one with {request.flag}: {', '.join(names)}."
        raise UsageError(
            f"{_flags_of(request)}: config {config!r} has no files in split {request.split!r}. "
            f"{choice if names else 'It has no other split.'}"
        )
    urls = [str(url) for url in splits[request.split]]
    twice = sorted(url for url, times in Counter(urls).items() if times > 1)
    if twice:
        raise InputError(
            f"{_flags_of(request)}: config {config!r} lists {twice[0]} more than once; its "
            "documents would be in the dataset twice. Choose another config with "
            "--dataset_config."
        )
    return builder, urls


def _load_builder(request: DatasetRequest, path: str, commit: str | None) -> Any:
    import datasets
    from datasets.exceptions import DatasetNotFoundError
    from yaml import YAMLError

    # If the library cannot list a dataset, it falls back to one that it prepared earlier, whatever
    # its revision. An empty cache prevents that.
    with scratch_folder() as cache:
        try:
            return datasets.load_dataset_builder(
                path, request.config, revision=commit, cache_dir=cache
            )
        except DatasetNotFoundError as error:
            # The repository and the commit are known to exist at this point.
            raise access_refused(_flags_of(request)) from error
        except FileNotFoundError as error:
            raise InputError(
                f"{_flags_of(request)}: found no data files ({brief(error)}). "
                "Check the folder, or data_files in its README.md."
            ) from error
        except (RuntimeError, TypeError, ValueError, YAMLError) as error:
            advice = "Choose another one with --dataset_config, or correct those in its README.md."
            if isinstance(error, RuntimeError):
                advice = (
                    "On the hub, --dataset_revision refs/convert/parquet often has the same data "
                    "as plain files."
                )
            raise UsageError(
                f"{_flags_of(request)}: its files cannot be listed ({brief(error)}). {advice}"
            ) from error


def _flags_of(request: DatasetRequest) -> str:
    revision = f" --dataset_revision {request.revision}" if request.revision is not None else ""
    return f"--dataset {request.name}{revision}"


def _quiet_libraries() -> None:
    """Keeps the libraries from printing: the terminal shows the job's progress and errors only."""
    # On import, datasets logs which frameworks it has found.
    logging.getLogger("datasets").setLevel(logging.ERROR)
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    quiet_hub()
    # Downloads are counted by a request to a URL that HF_ENDPOINT does not redirect.
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False


_ON_HUB = re.compile(r"\w[\w.-]*/\w[\w.-]*(@[^@]+)?", re.ASCII)


def is_on_hub(name: str) -> bool:
    """Whether `--tokenizer` names a repository, as OWNER/NAME or OWNER/NAME@REVISION.

    What exists on the disk is never taken for one.
    """
    is_file = name.endswith(".json") or os.path.exists(name)
    return not is_file and _ON_HUB.fullmatch(name) is not None


def fetch_tokenizer(name: str, beside: Sequence[str] = ()) -> str:
    """The path of a repository's tokenizer.json in huggingface_hub's cache.

    beside: other files that are wanted, if the revision has them and the hub can be reached. What
    the cache does not have is downloaded. Raises UsageError or InputError if the tokenizer cannot.
    """
    quiet_hub()
    repository, _, revision = name.partition("@")
    flag = f"--tokenizer {name} (no file or folder here)"
    with hub_failures(flag, "model", "the @revision"):
        path = _fetch(repository, "tokenizer.json", revision or None, flag)
        if path is None:
            tekken = _fetch(repository, "tekken.json", revision or None, flag)
            advice = "Choose one that has, or give one that transformers has saved from it."
            if tekken is not None:
                advice = f"Give its tekken.json, which is now here: --tokenizer {tekken}"
            raise UsageError(f"{flag}: the repository has no tokenizer.json. {advice}")
        for file in beside:
            # A cache that other tools filled does not say which files do not exist.
            with suppress(InputError):
                _fetch(repository, file, Path(path).parent.name, flag)
        return path


def _fetch(repository: str, file: str, revision: str | None, flag: str) -> str | None:
    """The path of a file in the cache; None if the repository does not have it."""
    from huggingface_hub import constants, errors, hf_hub_download, try_to_load_from_cache

    try:
        return str(hf_hub_download(repository, file, revision=revision))
    except errors.LocalEntryNotFoundError as error:
        cached = try_to_load_from_cache(repository, file, revision=revision)
        if cached is not None and not isinstance(cached, str):
            return None  # the cache remembers that it does not exist
        reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "it is out of reach"
        raise InputError(
            f"{flag}: {file} is not in the local cache, and cannot be fetched from "
            f"{constants.ENDPOINT}: {reason}. Check the network and HF_ENDPOINT, or give a "
            "local folder or file."
        ) from error
    except errors.EntryNotFoundError:
        return None
