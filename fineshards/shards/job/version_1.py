"""The manifest's form in version 1, whose split was always a number of windows of one stream."""

from __future__ import annotations

from typing import Any

from fineshards.shards.job.records import as_number
from fineshards.shards.layout import Layout


def layout(fields: dict[str, Any]) -> Layout:
    """The layout of a manifest of version 1; raises KeyError or TypeError for other content."""
    tokens, shard_tokens, test_windows = (
        as_number(fields[name]) for name in ("tokens", "shard_tokens", "test_windows")
    )
    test_tokens = min(test_windows * shard_tokens, tokens)
    return Layout(shard_tokens, test_tokens, tokens - test_tokens)


def manifest_json(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a manifest in the form of version 1, as its file has it."""
    fields, splits = content["layout"], content["splits"]
    in_version_1 = {
        "tokens": fields["test_tokens"] + fields["train_tokens"],
        "shard_tokens": fields["shard_tokens"],
        "test_windows": splits["test"]["shards"],
        **{name: fields[name] for name in ("dtype", "header_bytes", "index_width")},
        "splits": {split: sums["shards"] for split, sums in splits.items()},
    }
    files = [
        {name: value for name, value in file.items() if name != "test"} for file in content["files"]
    ]
    others = {name: value for name, value in content.items() if name not in ("splits", "metadata")}
    return others | {"layout": in_version_1, "files": files}
