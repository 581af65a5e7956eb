"""Checks of what `fineshards publish` has written beside a dataset, as part of verify."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from fineshards.errors import OutputError
from fineshards.publishing import croissant, dataset_card, sums
from fineshards.publishing.sums import CARD_NAME, CROISSANT_NAME, PUBLISHED, SUMS_NAME
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.manifest_file import MANIFEST_NAME
from fineshards.storage.base import Storage

_AGAIN = "Run fineshards publish again."


def check_published(storage: Storage, manifest: Manifest, hashes: bool) -> Iterator[str]:
    """What is published is as it was written, of this dataset; nothing, if nothing is published.

    hashes: whether to read every file of the dataset, and compare its SHA-256 with that in
    `SHA256SUMS`.
    """
    stored = {name: storage.read_if_there(name) for name in PUBLISHED}
    there = {name: content for name, content in stored.items() if content is not None}
    card = storage.read_if_there(CARD_NAME)
    if not there:
        if card is not None and dataset_card.emptied(card) != card:
            yield f"{CARD_NAME} is published, and {CROISSANT_NAME} is missing. {_AGAIN}"
        return
    for name in PUBLISHED:
        if name not in there:
            yield f"{name} is missing, and other published files are there. {_AGAIN}"
    if len(there) < len(PUBLISHED):
        return
    try:
        published = croissant.read(there[CROISSANT_NAME], manifest)
    except OutputError as error:
        yield str(error)
        return
    if hashlib.sha256(there[SUMS_NAME]).hexdigest() != published.sums:
        yield f"{SUMS_NAME} is another one than {CROISSANT_NAME} describes. {_AGAIN}"
        return
    listed = sums.parse(there[SUMS_NAME])
    if listed[MANIFEST_NAME] != hashlib.sha256(manifest.to_bytes()).hexdigest():
        yield f"{SUMS_NAME} is of another state of the dataset, which has changed since. {_AGAIN}"
        return
    listed_card = listed.pop(CARD_NAME, None)
    if listed_card is not None and card is None:
        yield f"{CARD_NAME} is missing, and {SUMS_NAME} lists it. {_AGAIN}"
    elif card is not None and (listed_card is not None or not dataset_card.is_own(card)):
        found = dataset_card.digest(card)
        if found is None:
            yield f"{dataset_card.lost_mark(card)}. {_AGAIN}"
        elif found != published.card:
            yield f"the generated part of {CARD_NAME} is not what was published. {_AGAIN}"
        elif hashes and listed_card != hashlib.sha256(card).hexdigest():
            yield (
                f"{CARD_NAME} is another one than {SUMS_NAME} lists. If your lines in it have "
                f"changed, run fineshards publish again."
            )
    if hashes:
        now = sums.hash_files(storage, manifest)
        for name in sorted(now.keys() | listed.keys()):
            if now.get(name) != listed.get(name):
                yield f"{name} has SHA-256 {now.get(name)}; {SUMS_NAME} says {listed.get(name)}"
