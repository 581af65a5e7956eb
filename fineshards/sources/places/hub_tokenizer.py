"""Fetches the tokenizer.json of a repository on the Hugging Face hub, and files beside it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from fineshards.errors import InputError, UsageError
from fineshards.sources.places.hub_errors import hub_failures, quiet_hub

_FILE = "tokenizer.json"
_ON_HUB = re.compile(r"\w[\w.-]*/\w[\w.-]*(@[^@]+)?", re.ASCII)


def is_on_hub(name: str) -> bool:
    """Whether `--tokenizer` names a repository, as OWNER/NAME or OWNER/NAME@REVISION.

    What exists on the disk is never taken for one.
    """
    return (
        _ON_HUB.fullmatch(name) is not None
        and not name.endswith(".json")
        and not os.path.exists(name)
    )


def fetch_tokenizer(name: str, beside: Sequence[str] = ()) -> str:
    """The path of a repository's tokenizer.json in huggingface_hub's cache.

    beside: other files that are wanted, if the revision has them. What the cache does not have is
    downloaded. Raises UsageError or InputError if it cannot be.
    """
    quiet_hub()
    repository, _, revision = name.partition("@")
    flag = f"--tokenizer {name} (no file or folder here)"
    with hub_failures(flag, "model", "the @revision"):
        path = _fetch(repository, _FILE, revision or None, flag)
        if path is None:
            raise UsageError(
                f"{flag}: the repository has no {_FILE}. Choose one that has, or give a "
                "tokenizer.json that transformers has saved from it."
            )
        for file in beside:
            _fetch(repository, file, Path(path).parent.name, flag)
        return path


def _fetch(repository: str, file: str, revision: str | None, flag: str) -> str | None:
    """The path of a file in the cache; None if the repository does not have it."""
    from huggingface_hub import constants, errors, hf_hub_download, try_to_load_from_cache

    try:
        return str(hf_hub_download(repository, file, revision=revision))
    except errors.LocalEntryNotFoundError as error:
        found = try_to_load_from_cache(repository, file, revision=revision)
        if found is not None and not isinstance(found, str):
            return None  # the cache remembers that it does not exist
        reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "it is out of reach"
        raise InputError(
            f"{flag}: {file} is not in the local cache, and cannot be fetched from "
            f"{constants.ENDPOINT}: {reason}. Check the network and HF_ENDPOINT, or give a "
            "local folder or file."
        ) from error
    except errors.EntryNotFoundError:
        return None
