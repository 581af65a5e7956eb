"""Datasets by name: from (name, config, split, revision) to an ordered list of files.

The `datasets` library decides which files a config and a split mean, so that a dataset is here
what it is everywhere else. Only its listing is used: no data file is downloaded or converted.

A hub repository is pinned to one commit before anything is listed. Whatever is pushed while a job
runs, or between a job and its restart, the addresses mean the same bytes.

`datasets` and `huggingface_hub` are imported inside functions: they take a second to import, and
commands that read no dataset should not wait for it.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fineshards.errors import InputError, UsageError
from fineshards.shards.records import SourceFile
from fineshards.sources.files import describe_files, format_of
from fineshards.sources.hub_errors import access_refused, brief, config_refused, hub_failures

# The hub refuses to describe more than 1,000 paths in one request.
PATHS_PER_REQUEST = 500
# A launch should not hang on a hub that accepts connections and then says nothing.
TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class DatasetRequest:
    """What a user asks for.

    name: OWNER/NAME on the hub, or a local folder laid out like a hub repository.
    config: None for the dataset's default.
    revision: branch, tag or commit on the hub; None for the main branch.
    """

    name: str
    config: str | None
    split: str
    revision: str | None


@dataclass(frozen=True)
class ResolvedDataset:
    """The files of one split of one config, in the order of the `datasets` library.

    config: the config's name, also when the request left it open.
    commit: full hash of the hub repository's commit; None for a local folder.
    """

    files: list[SourceFile]
    config: str
    commit: str | None


def resolve_dataset(request: DatasetRequest) -> ResolvedDataset:
    """Lists the dataset's files; raises UsageError or InputError with one sentence that says why.

    Honours HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE as they were when the process started.
    """
    if any(sign in request.split for sign in "[+"):
        raise UsageError(
            f"--dataset_split {request.split}: parts and sums of splits cannot be read; "
            "name one whole split, such as train."
        )
    _quiet_libraries()
    if os.path.isdir(request.name):
        return _resolve_folder(request)
    return _resolve_repository(request)


def _resolve_folder(request: DatasetRequest) -> ResolvedDataset:
    if request.revision is not None:
        raise UsageError(
            f"{request.name} is a local folder, which has no revisions; leave out "
            f"--dataset_revision {request.revision}."
        )
    # An absolute path, because the library takes a bare `json` or `parquet` for a file format.
    config, paths = _list_files(request, os.path.abspath(request.name), commit=None)
    return ResolvedDataset(describe_files(map(os.path.abspath, paths)), config, commit=None)


def _resolve_repository(request: DatasetRequest) -> ResolvedDataset:
    is_file = os.path.isfile(request.name)
    if is_file or request.name.count("/") != 1 or request.name.startswith(("/", ".", "~")):
        found = "it is a file, for --input" if is_file else "there is none"
        raise UsageError(
            f"--dataset {request.name}: expected a folder, but {found}; "
            "datasets on the Hugging Face hub are named OWNER/NAME."
        )
    with hub_failures(_asked(request)):
        repository, commit = _pin(request)
        config, urls = _list_files(request, repository, commit)
        for url in urls:
            format_of(url)  # before asking the hub about thousands of files of no use
        return ResolvedDataset(_describe_urls(urls, repository, commit), config, commit)


def _pin(request: DatasetRequest) -> tuple[str, str]:
    """The repository's present name (the hub forwards old ones) and the full commit hash."""
    from huggingface_hub import HfApi

    info = HfApi().dataset_info(
        request.name, revision=request.revision, timeout=TIMEOUT_SECONDS, expand=["sha"]
    )
    if info.sha is None:
        raise InputError(f"The hub does not tell the commit of {_asked(request)}; try again later.")
    return info.id, info.sha


def _list_files(request: DatasetRequest, path: str, commit: str | None) -> tuple[str, list[str]]:
    """The name of the config and the addresses of its split's files, in the library's order."""
    builder = _load_builder(request, path, commit)
    config = str(builder.config.name)
    splits = builder.config.data_files or {}
    if not splits.get(request.split):
        there = ", ".join(str(split) for split, files in splits.items() if files) or "none"
        raise UsageError(
            f"{_asked(request)}: config {config!r} has no files in a split {request.split!r}; "
            f"name another with --dataset_split (there is: {there})."
        )
    urls = [str(url) for url in splits[request.split]]
    twice = sorted(url for url, times in Counter(urls).items() if times > 1)
    if twice:
        raise InputError(
            f"{_asked(request)}: config {config!r} lists {twice[0]} more than once, so its "
            "documents would be in the result twice; name another with --dataset_config."
        )
    return config, urls


def _load_builder(request: DatasetRequest, path: str, commit: str | None) -> Any:
    import datasets
    from datasets.exceptions import DatasetNotFoundError
    from yaml import YAMLError

    # The library falls back on datasets that it prepared earlier, whatever their revision, when it
    # cannot list one; an empty cache leaves it nothing to fall back on.
    with tempfile.TemporaryDirectory() as cache:
        try:
            return datasets.load_dataset_builder(
                path, request.config, revision=commit, cache_dir=cache
            )
        except DatasetNotFoundError as error:
            # The repository and the commit are known to exist by now.
            raise access_refused(_asked(request)) from error
        except FileNotFoundError as error:
            raise InputError(
                f"{_asked(request)}: found no data files ({brief(error)}); "
                "check the folder, or the data_files in its README.md."
            ) from error
        except RuntimeError as error:
            raise UsageError(
                f"{_asked(request)}: its files cannot be listed ({brief(error)}); "
                "on the hub, --dataset_revision refs/convert/parquet often has plain files instead."
            ) from error
        except (TypeError, ValueError, YAMLError) as error:
            names: list[str] = []
            with suppress(TypeError, ValueError, YAMLError):  # if README.md is beyond understanding
                names = datasets.get_dataset_config_names(path, revision=commit)
            raise config_refused(_asked(request), request.config, names, error) from error


def _describe_urls(urls: list[str], repository: str, commit: str) -> list[SourceFile]:
    """Size and content hash of each file, from a few requests to the hub."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    prefix = f"hf://datasets/{repository}@{commit}/"
    found: dict[str, RepoFile] = {}
    for start in range(0, len(urls), PATHS_PER_REQUEST):
        batch = urls[start : start + PATHS_PER_REQUEST]
        paths = [url.removeprefix(prefix) for url in batch]
        for info in HfApi().get_paths_info(repository, paths, revision=commit, repo_type="dataset"):
            if isinstance(info, RepoFile):
                found[prefix + info.path] = info
    if lost := [url for url in urls if url not in found]:
        raise InputError(f"{lost[0]} is in the hub's listing, but the hub cannot describe it.")
    # The content's sha256 where the hub keeps it (LFS), else git's hash of it.
    hashes = {url: info.lfs.sha256 if info.lfs else info.blob_id for url, info in found.items()}
    return [
        SourceFile(index, url, found[url].size, f"etag:{hashes[url]}", *format_of(url))
        for index, url in enumerate(urls)
    ]


def _asked(request: DatasetRequest) -> str:
    revision = f" --dataset_revision {request.revision}" if request.revision is not None else ""
    return f"--dataset {request.name}{revision}"


def _quiet_libraries() -> None:
    """The terminal belongs to the job's own progress and errors; failures arrive as exceptions."""
    # While it is imported it tells which frameworks it has found.
    logging.getLogger("datasets").setLevel(logging.ERROR)
    import datasets
    from huggingface_hub.utils import logging as hub_logging
    from huggingface_hub.utils.tqdm import disable_progress_bars

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    disable_progress_bars()
    hub_logging.set_verbosity(logging.ERROR)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    # Counted with a request to an address of its own, which HF_ENDPOINT does not move.
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
