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
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fineshards.errors import InputError, UsageError
from fineshards.shards.job.records import SourceFile
from fineshards.shards.record import replace
from fineshards.sources.files import (
    describe_files,
    find_files,
    is_beside_data,
    missing_of_saved,
    refuse_cached_copies,
    some,
    splits_saved,
    walk,
)
from fineshards.sources.formats.format import format_of, known_format
from fineshards.sources.places.hub_files import (
    access_refused,
    brief,
    hub_failures,
    list_files,
    pin,
    quiet_hub,
)
from fineshards.storage.temporary import scratch_folder

# How the library reads formats of which there are several ways.
_READ_AS = {"text": "line", "tsv": "quotes"}
# Settings of a config that have no influence on the texts.
_CHANGE_NO_VALUE = {"batch_size", "chunksize", "columns", "low_memory"}


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
    resolve = _resolve_folder if os.path.isdir(request.name) else _resolve_repository
    return resolve(request)


def _resolve_folder(request: DatasetRequest) -> ResolvedDataset:
    if request.revision is not None:
        raise UsageError(
            f"--dataset {request.name} is a local folder, which has no revisions. Remove "
            f"--dataset_revision {request.revision}."
        )
    # What `save_to_disk` wrote, which `load_dataset` refuses.
    saved, splits = request.name, [request.split]
    record = Path(request.name, "dataset_dict.json")
    if record.is_file() and (of_dict := splits_saved(record.read_bytes())):
        _check_split(request, of_dict)
        saved, splits = os.path.join(request.name, request.split), of_dict
        if not os.path.isfile(os.path.join(saved, "state.json")):
            raise missing_of_saved(f"{saved}/state.json", str(record))
    if os.path.isfile(os.path.join(saved, "state.json")):
        return ResolvedDataset(find_files([glob.escape(saved)]), "default", None, splits)
    # An absolute path, because the library treats a bare `json` or `parquet` as a file format.
    builder, paths = _list_files(request, os.path.abspath(request.name), commit=None)
    refuse_cached_copies(_flags_of(request), paths)
    files = describe_files(map(os.path.abspath, paths))
    listed = {os.path.realpath(path) for path in _files_of_config(builder)}
    left_out = [path for path in walk(request.name) if os.path.realpath(path) not in listed]
    return _resolved(request, builder, files, left_out)


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
        if known_format(url) and not is_beside_data(listed[url].name)
    ]
    return _resolved(request, builder, files, left_out, info.sha)


def _resolved(
    request: DatasetRequest,
    builder: Any,
    files: list[SourceFile],
    left_out: list[str],
    commit: str | None = None,
) -> ResolvedDataset:
    """The files as the library reads them; raises UsageError if they cannot be read so."""
    import datasets

    flags, config, plain = _flags_of(request), builder.config, type(builder.config)()
    formats = {file.format: file.path for file in files}
    ignored = _CHANGE_NO_VALUE | {field.name for field in fields(datasets.BuilderConfig)}
    if "tsv" in formats and getattr(config, "sep", None) == "\t":
        ignored |= {"sep"}  # which the library sets itself
    settings = (field.name for field in fields(config) if field.name not in ignored)
    if of_readme := [name for name in settings if getattr(config, name) != getattr(plain, name)]:
        raise UsageError(
            f"{flags}: its README.md sets {', '.join(of_readme)} for config "
            f"{config.name!r}, which changes what the datasets library reads. Give the files by "
            "--input, with flags that say the same, such as --text_separator."
        )
    if len(formats) > 1:
        raise UsageError(
            f"{flags}: {' and '.join(formats.values())} differ in their format, and "
            "the datasets library reads one. Give the files by --input."
        )
    warning = ""
    # Not refused: a dataset is what the library makes of it. Other configs have other files.
    if left_out and len(builder.builder_configs) == 1:
        names = some(sorted(left_out))
        warning = f"{flags}: the datasets library leaves out {names}, and so does the job"
    files = [replace(file, extraction=_READ_AS.get(file.format)) for file in files]
    return ResolvedDataset(files, str(config.name), commit, _splits(builder), warning)


def _files_of_config(builder: Any) -> set[str]:
    return {str(url) for files in builder.config.data_files.values() for url in files}


def _splits(builder: Any) -> list[str]:
    return [str(split) for split, files in (builder.config.data_files or {}).items() if files]


def _list_files(request: DatasetRequest, path: str, commit: str | None) -> tuple[Any, list[str]]:
    """The library's builder of a dataset, and the files of the split in its order."""
    builder = _load_builder(request, path, commit)
    name = str(builder.config.name)
    _check_split(request, _splits(builder), f": config {name!r}")
    urls = [str(url) for url in builder.config.data_files[request.split]]
    if twice := [url for url, times in Counter(urls).items() if times > 1]:
        raise InputError(
            f"{_flags_of(request)}: config {name!r} lists {twice[0]} more than once; its documents "
            "would be in the dataset twice. Choose another config with --dataset_config."
        )
    return builder, urls


def _check_split(request: DatasetRequest, splits: list[str], config: str = "") -> None:
    if request.split not in splits:
        choice = f"Choose one with {request.flag}: {', '.join(splits)}."
        raise UsageError(
            f"{_flags_of(request)}{config} has no files in split {request.split!r}. "
            f"{choice if splits else 'It has no other split.'}"
        )


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
                    "On the hub, --dataset_revision refs/convert/parquet often has plain files."
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


def fetch_tokenizer(name: str, of_chat: Sequence[str] = (), others: Sequence[str] = ()) -> str:
    """The path of a repository's tokenizer.json in huggingface_hub's cache.

    What the cache lacks is downloaded, of others if the hub can be reached. of_chat: files that
    decide tokens too; a cache offline must have the first. Raises UsageError or InputError.
    """
    quiet_hub()
    repository, _, revision = name.partition("@")
    flag = f"--tokenizer {name} (no file or folder here)"
    with hub_failures(flag, "model", "the @revision"):
        path = _fetch(repository, "tokenizer.json", revision, flag)
        if path is None:
            tekken = _fetch(repository, "tekken.json", revision, flag)
            advice = "Choose one that has, or give one that transformers has saved from it."
            if tekken is not None:
                advice = f"Give its tekken.json, which is now here: --tokenizer {tekken}"
            raise UsageError(f"{flag}: the repository has no tokenizer.json. {advice}")
        commit = Path(path).parent.name
        for file in of_chat:
            _fetch(repository, file, commit, flag, needed=file == of_chat[0])
        with suppress(InputError):
            for file in others:
                _fetch(repository, file, commit, flag)
        return path


def _fetch(repository: str, file: str, revision: str, flag: str, needed: bool = True) -> str | None:
    """The path of a file in the cache; None if there is none, or offline, if it is not needed."""
    from huggingface_hub import constants, errors, hf_hub_download, try_to_load_from_cache

    cached = try_to_load_from_cache(repository, file, revision=revision or None)
    is_absent = cached is not None and not isinstance(cached, str)  # as the cache remembers
    if is_absent and re.fullmatch("[0-9a-f]{40}", revision):
        return None
    try:
        return str(hf_hub_download(repository, file, revision=revision or None))
    except errors.LocalEntryNotFoundError as error:
        # A cache that other tools have filled does not say which files do not exist.
        if is_absent or (constants.HF_HUB_OFFLINE and not needed):
            return None
        reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "it is out of reach"
        raise InputError(
            f"{flag}: {file} is not in the local cache, and cannot be fetched from "
            f"{constants.ENDPOINT}: {reason}. Check the network and HF_ENDPOINT, or give a "
            "local folder or file."
        ) from error
    except errors.EntryNotFoundError:
        return None
