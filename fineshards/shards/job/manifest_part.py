"""What readers of tokens need of a manifest, without a record in memory for each of its shards.

At 15 trillion tokens a manifest has 150,000 shards. Most of its bytes are skipped, once its seal
says that they are as they were written.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass

from fineshards.errors import OutputError
from fineshards.shards import npy
from fineshards.shards.job.content_fingerprint import content_fingerprint, fingerprint_of_lines
from fineshards.shards.job.generations import Generation
from fineshards.shards.job.job import FORMAT_VERSION
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.manifest_file import load_generation, unfinished
from fineshards.shards.job.records import JSON_ERRORS, from_fields, layout_from_json
from fineshards.shards.job.seal import seal_holds
from fineshards.shards.job.settings import Settings, settings_from_json
from fineshards.shards.layout import SPLITS, Layout
from fineshards.storage.base import Storage

# A shard as `Manifest.to_bytes` writes it.
_SHARD = re.compile(
    rb'  \{\n   "name": "([^"]*)",\n   "split": "[^"]*",\n   "index": \d+,\n   "tokens": \d+,\n'
    rb'   "bytes": (\d+),\n   "crc32c": "([^"]*)",\n   "pieces": \d+,\n   "documents": \d+,\n'
    rb'   "first_document": \d+,\n   "table_bytes": \d+,\n   "table_crc32c": "[^"]*",\n'
    rb'(?:   "unredacted_crc32c": "([^"]*)",\n)?'
    rb'(?:   "mask_bytes": \d+,\n   "mask_crc32c": "([^"]*)",\n   "learned": \d+,\n)?'
    rb'   "document_table": "[^"]*"(?:,\n   "loss_mask": "[^"]*")?\n  \}'
)


@dataclass(frozen=True, slots=True)
class ManifestPart:
    """The settings, layout and generations of a finished dataset.

    fingerprints: by split, the content fingerprint of its shards as they were before documents were
    redacted.
    """

    settings: Settings
    layout: Layout
    generations: tuple[Generation, ...]
    fingerprints: dict[str, str]

    @property
    def generation(self) -> int:
        """The number of this generation, from 1."""
        return max(len(self.generations), 1)

    @classmethod
    def load_finished(cls, storage: Storage, generation: int | None = None) -> ManifestPart:
        """As `Manifest.load_finished`, and raises the same.

        Parses all of a manifest whose seal cannot be checked, because it was changed or
        google_crc32c is not installed.
        """
        found = load_generation(storage, generation, _parse)
        if found is None:
            raise OutputError(unfinished(storage))
        return found if isinstance(found, ManifestPart) else _part_of(found.checked(storage))


def _part_of(manifest: Manifest) -> ManifestPart:
    by_split = {
        split: [shard for shard in manifest.shards if shard.split == split] for split in SPLITS
    }
    eot = manifest.settings.tokenizer.eot
    return ManifestPart(
        manifest.settings,
        manifest.layout,
        manifest.generations,
        {
            split: content_fingerprint(shards, eot, redactions=False)
            for split, shards in by_split.items()
        },
    )


def _parse(stored: bytes, path: str) -> ManifestPart | Manifest:
    part = None
    if seal_holds(stored):
        with suppress(*JSON_ERRORS):
            part = _sealed_part(stored)
    return part or Manifest.parse(stored, path)


def _sealed_part(stored: bytes) -> ManifestPart | None:
    """The part of a manifest whose seal holds; None if it is not as this version writes it."""
    at = stored.index(b',\n "files": [')
    head = json.loads(stored[:at] + b"}")
    if (head["format"], head["version"]) != ("fineshards", FORMAT_VERSION):
        return None
    settings, layout = settings_from_json(head["settings"]), layout_from_json(head["layout"])
    eot = settings.tokenizer.eot
    shards = _SHARD.findall(stored, stored.index(b',\n "shards": [', at))
    lines = [
        b"%s %s %s%s\n" % (name, size, now, mask and b" " + mask)
        for name, size, now, _, mask in shards
    ]
    stored_bytes = sum(int(size) for _, size, *_ in shards)
    planned_bytes = (
        npy.HEADER_BYTES * layout.windows + layout.tokens * settings.token_dtype.itemsize
    )
    if (len(shards), stored_bytes) != (layout.windows, planned_bytes):
        return None
    if fingerprint_of_lines(lines, eot) != head["content_fingerprint"]:
        return None
    by_split = {
        split: [
            b"%s %s %s\n" % (name, size, before or now)
            for name, size, now, before, _ in shards
            if name.startswith(split.encode())
        ]
        for split in SPLITS
    }
    return ManifestPart(
        settings,
        layout,
        tuple(from_fields(Generation, fields) for fields in head["generations"]),
        {split: fingerprint_of_lines(lines, eot) for split, lines in by_split.items()},
    )
