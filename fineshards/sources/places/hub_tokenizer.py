"""Fetches the tokenizer.json of a repository on the Hugging Face hub."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress

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


def fetch_tokenizer(name: str, beside: Iterable[str] = ()) -> str:
    """The path of a repository's tokenizer.json in huggingface_hub's cache.

    It is downloaded unless the cache has it. Raises UsageError or InputError if it cannot be.
    beside: files that are fetched too, if the repository has them.
    """
    quiet_hub()
    from huggingface_hub import constants, errors, hf_hub_download

    repository, _, revision = name.partition("@")
    flag = f"--tokenizer {name} (no file or folder here)"
    with hub_failures(flag, "model", "the @revision"):
        try:
            path = str(hf_hub_download(repository, _FILE, revision=revision or None))
        except errors.LocalEntryNotFoundError as error:
            reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "it is out of reach"
            raise InputError(
                f"{flag}: {_FILE} is not in the local cache, and cannot be fetched from "
                f"{constants.ENDPOINT}: {reason}. Check the network and HF_ENDPOINT, or give a "
                "local folder or file."
            ) from error
        except errors.EntryNotFoundError as error:
            raise UsageError(
                f"{flag}: the repository has no {_FILE}. Choose one that has, or give a "
                "tokenizer.json that transformers has saved from it."
            ) from error
        for each in beside:
            with suppress(errors.EntryNotFoundError):
                hf_hub_download(repository, each, revision=revision or None)
    return path
