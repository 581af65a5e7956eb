"""Conversations through a whole job: tokens and loss masks against a plain walk over the input."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fineshards
from fineshards.chat.chat_template import ChatTemplate
from fineshards.chat.conversation_encoder import conversation_encoder
from fineshards.encoders.loading import load_vocabulary
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{% generation %}{{ m['content'] }}{% endgeneration %}"
    "{% endfor %}"
)
Conversation = list[dict[str, Any]]


def made_up(count: int, seed: int) -> list[Conversation]:
    """Conversations with and without a system turn, with empty answers."""
    chosen = random.Random(seed)
    return [
        [
            *([{"role": "system", "content": f"rule {number}"}] if chosen.random() < 0.3 else []),
            *(
                {
                    "role": role,
                    "content": f"{role} {number} {turn} " + "ä b " * chosen.randrange(40),
                }
                for turn in range(chosen.randint(1, 4))
                for role in ("user", "assistant")
            ),
            {"role": "assistant", "content": ""},
        ]
        for number in range(count)
    ]


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, list[Conversation]]:
    """A Parquet file of structs and one of JSON lines, and their conversations by path."""
    first, second = made_up(120, 1), made_up(80, 2)
    pq.write_table(pa.table({"messages": first}), tmp_path / "a.parquet", row_group_size=25)
    lines = [json.dumps({"messages": each, "id": "x"}) for each in second]
    (tmp_path / "b.jsonl").write_text("\n".join(lines))
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    return {str(tmp_path / "a.parquet"): first, str(tmp_path / "b.jsonl"): second}


@pytest.fixture
def build(tmp_path: Path, inputs: dict[str, list[Conversation]]) -> Callable[..., Path]:
    def run(name: str = "out", **options: Any) -> Path:
        given = {"input": [*inputs], "output": tmp_path / name, "shard_tokens": 5_003}
        given |= {"chat_template": str(tmp_path / "chat.jinja"), "block_bytes": 4_000}
        fineshards.build(**given | options)
        return tmp_path / name

    return run


def check(
    folder: Path, inputs: dict[str, list[Conversation]], redacted: tuple[str, int] | None = None
) -> int:
    """Every document has the tokens and the bits of its conversation; returns how many there are.

    Shards and masks are read by NumPy alone.
    """
    storage = open_storage(str(folder))
    settings = Manifest.load_finished(storage).settings
    assert settings.chat is not None
    vocabulary = load_vocabulary(settings.tokenizer, storage)
    encoder = conversation_encoder(ChatTemplate(TEMPLATE), vocabulary, settings.chat.learn)
    found: dict[tuple[str, int], list[tuple[Any, Any]]] = {}
    for shard in sorted(folder.glob("t*/*.npy")):
        tokens = np.load(shard)
        mask = np.load(folder / "metadata/masks" / shard.name)
        assert (mask.dtype, mask.shape) == (np.uint8, (-(-len(tokens) // 8),))
        bits = np.unpackbits(mask, bitorder="little")
        assert not bits[len(tokens) :].any()
        table = pq.read_table(folder / f"metadata/documents/{shard.stem}.parquet")
        for row in table.to_pylist():
            part = slice(row["offset"], row["offset"] + row["length"])
            found.setdefault((row["file"], row["row"]), []).append((tokens[part], bits[part]))
    eot = settings.tokenizer.eot
    for (path, row), parts in found.items():
        messages = [{**each} for each in inputs[path][row]]
        encoded = encoder.encode(json.dumps({"messages": messages}))
        tokens = np.concatenate([[eot], encoded.tokens])
        bits = np.zeros(len(tokens), np.uint8)
        for begin, end in encoded.learned.tolist():
            bits[begin + 1 : end + 1] = 1
        if (path, row) == redacted:
            tokens[:], bits[:] = eot, 0
        assert np.array_equal(np.concatenate([each for each, _ in parts]), tokens)
        assert np.array_equal(np.concatenate([each for _, each in parts]), bits)
    return len(found)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"workers": 1, "block_bytes": 1 << 20, "test_shards": 1},
        {"shuffle_seed": 3, "bucket_bytes": 1 << 16},
        {"dtype": "uint32", "shard_tokens": 97, "assembly": "stream"},
    ],
    ids=["blocks", "one", "shuffled", "cut"],
)
def test_every_token_has_the_bit_of_its_conversation(
    build: Callable[..., Path], inputs: dict[str, list[Conversation]], options: dict[str, Any]
) -> None:
    folder = build(**options)
    assert check(folder, inputs) == 200
    manifest = Manifest.load_finished(open_storage(str(folder)))
    learned = sum(shard.learned or 0 for shard in manifest.shards)
    masks = [np.load(path) for path in sorted((folder / "metadata/masks").iterdir())]
    assert learned == sum(int(np.unpackbits(mask).sum()) for mask in masks)
    assert learned == manifest.totals()["learned"]
    assert not fineshards.verify(folder, sample="100%").problems
