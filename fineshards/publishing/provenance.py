"""`metadata/provenance.json`: an in-toto statement with SLSA provenance, unsigned.

The specifications: https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md and
https://slsa.dev/spec/v1.1/provenance. It names no clock, host or run, because the bytes of a
dataset depend on none of them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from fineshards.publishing.local_folders import Folders, is_local
from fineshards.publishing.sums import Sums
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.manifest_file import MANIFEST_NAME
from fineshards.shards.job.records import SourceFile
from fineshards.shards.job.settings import settings_to_json

BUILD_TYPE = "urn:fineshards:build:v1"
BUILDER = "urn:fineshards:builder:v1"


def to_bytes(manifest: Manifest, found: Sums, no_paths: bool) -> bytes:
    """The content of `metadata/provenance.json`.

    found: the SHA-256 of each file. no_paths: whether local folders have numbers for names.
    """
    tokenizer = manifest.settings.tokenizer
    origin = dict(manifest.origin)
    settings = settings_to_json(manifest.settings)
    files = list(manifest.files)
    folders = Folders()
    if no_paths:
        files = [replace(file, path=folders.in_text(file.path)) for file in files]
        origin = {} if any(is_local(file.path) for file in manifest.files) else origin
        settings = folders.in_recipe(settings)
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [_subject(name, found[name], manifest) for name in sorted(found)],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "origin": origin,
                    "settings": settings,
                    "generations": [
                        {"files": each.files, "redacted": each.redacted}
                        for each in manifest.generations
                    ],
                },
                "resolvedDependencies": [
                    *_hub_datasets(manifest),
                    *map(_source, files),
                    {
                        "name": tokenizer.name,
                        "digest": {"sha256": tokenizer.vocabulary_sha256},
                        "annotations": {"file": tokenizer.file},
                    },
                ],
            },
            "runDetails": {"builder": {"id": BUILDER, "version": manifest.versions}},
        },
    }
    return json.dumps(statement, indent=1, ensure_ascii=False).encode() + b"\n"


def _subject(name: str, digest: str, manifest: Manifest) -> dict[str, Any]:
    about = {"contentFingerprint": manifest.content_fingerprint}
    fields: dict[str, Any] = {"name": name, "digest": {"sha256": digest}}
    return fields | ({"annotations": about} if name == MANIFEST_NAME else {})


def _hub_datasets(manifest: Manifest) -> list[dict[str, Any]]:
    """The repositories of the hub that the input was named by, with their commits."""
    origin = dict(manifest.origin)
    return [
        {
            "uri": f"https://huggingface.co/datasets/{origin['dataset' + suffix]}",
            "digest": {"gitCommit": commit},
        }
        for name, commit in manifest.origin
        for suffix in [name.removeprefix("commit")]
        if name.startswith("commit") and commit and "dataset" + suffix in origin
    ]


def _source(file: SourceFile) -> dict[str, Any]:
    # A local file has no digest: its identity is the time of its last change.
    uri = file.path
    if "://" not in uri:
        scheme = "file://" if uri.startswith("/") else "urn:fineshards:source:"
        uri = f"{scheme}{quote(uri)}"
    return {"uri": uri, "annotations": {"bytes": file.size, "identity": file.identity}}
