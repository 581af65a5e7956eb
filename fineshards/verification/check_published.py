"""Checks of what `fineshards publish` has written beside a dataset, as part of verify."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from fineshards.errors import OutputError
from fineshards.publishing import card_parts, croissant, dataset_card, sums
from fineshards.publishing.file_names import CARD_NAME, CROISSANT_NAME, PUBLISHED, SUMS_NAME
from fineshards.publishing.publish import expected
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.manifest_file import MANIFEST_NAME
from fineshards.storage.base import Storage

_AGAIN = "Run fineshards publish again."


def check_published(storage: Storage, manifest: Manifest, hashes: bool) -> Iterator[str]:
    """What is published follows from the dataset; nothing, if nothing is published.

    Another version of fineshards may say the same in other words, so of what it has published only
    `SHA256SUMS` is checked. hashes: whether to read every file of the dataset, and compare its
    SHA-256 with that in `SHA256SUMS`.
    """
    stored = {name: storage.read_if_there(name) for name in PUBLISHED}
    card = storage.read_if_there(CARD_NAME)
    if not any(content is not None for content in stored.values()):
        if card is not None and card_parts.emptied(card) != card:
            yield f"{CARD_NAME} is published, and {CROISSANT_NAME} is missing. {_AGAIN}"
        return
    there = {name: content for name, content in stored.items() if content is not None}
    for name in PUBLISHED:
        if name not in there:
            yield f"{name} is missing, and other published files are there. {_AGAIN}"
    if len(there) < len(PUBLISHED):
        return
    try:
        found = sums.parse(there[SUMS_NAME])
        listed_card = found.pop(CARD_NAME, None)
        other = croissant.other_version(there[CROISSANT_NAME])
        said = None if other else croissant.said_in(there[CROISSANT_NAME], manifest)
    except OutputError as error:
        yield str(error)
        return
    if found.get(MANIFEST_NAME) != hashlib.sha256(manifest.to_bytes()).hexdigest():
        yield f"{SUMS_NAME} is of another state of the dataset, which has changed since. {_AGAIN}"
        return
    names = sums.contents(manifest).keys()
    for name in sorted(names ^ found.keys()):
        how = "does not list" if name in names else "lists, besides the dataset's files,"
        yield f"{SUMS_NAME} {how} {name}. {_AGAIN}"
    if names != found.keys():
        return
    follow = {} if said is None else expected(manifest, found, said, listed_card)
    for name, content in follow.items():
        if there[name] != content:
            yield f"{name} is not what follows from {MANIFEST_NAME} and {SUMS_NAME}. {_AGAIN}"
    if listed_card is not None and card is None:
        yield f"{CARD_NAME} is missing, and {SUMS_NAME} lists it. {_AGAIN}"
    elif card is not None and (listed_card is not None or card_parts.is_marked(card)):
        lost = card_parts.missing_mark(card)
        if lost:
            yield f"{CARD_NAME} is damaged: it lacks the line '{lost}' in its place. {_AGAIN}"
        elif said is not None and dataset_card.to_bytes(manifest, said, card) != card:
            yield (
                f"the generated part of {CARD_NAME} is not what follows from the dataset. {_AGAIN}"
            )
        elif hashes and listed_card not in (None, hashlib.sha256(card).hexdigest()):
            yield (
                f"{CARD_NAME} is another one than {SUMS_NAME} lists. If your lines in it have "
                f"changed, run fineshards publish again."
            )
    if hashes:
        now = sums.hash_files(storage, manifest)
        for name in sorted(names):
            if now[name] != found[name]:
                yield f"{name} has SHA-256 {now[name]}; {SUMS_NAME} says {found[name]}"


def published_by(storage: Storage) -> str:
    """The other version of fineshards that has published a dataset without problems; or empty."""
    content = storage.read_if_there(CROISSANT_NAME)
    return "" if content is None else croissant.other_version(content)
