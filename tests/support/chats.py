"""A small dataset of conversations, and its documents with what is learned, by numpy alone."""

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

import fineshards
from support.dataset_contents import Tokens

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{% generation %}{{ m['content'] }}{% endgeneration %}"
    "{% endfor %}"
)


@dataclass(frozen=True)
class Chats:
    """documents, learned: by split, those of each document, its EOT first."""

    folder: Path
    eot: int
    documents: dict[str, list[Tokens]]
    learned: dict[str, list[npt.NDArray[np.bool_]]]

    def sided(self, split: str, side: str) -> tuple[list[Tokens], list[npt.NDArray[np.bool_]]]:
        """Documents and what is learned of them, with the EOT at a side."""
        turn = 0 if side == "begin" else -1
        found = [
            [np.roll(each, turn) for each in kind[split]] for kind in (self.documents, self.learned)
        ]
        return found[0], found[1]


def build_chats(folder: Path, count: int = 150, **options: object) -> Path:
    """A dataset of made-up conversations in both splits, cut by shards."""
    random = Random(5)
    lines = [
        {
            "messages": [
                {"role": role, "content": f"{role} {number} " + "ä b " * random.randrange(60)}
                for _ in range(random.randint(1, 3))
                for role in ("user", "assistant")
            ]
        }
        for number in range(count)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "chats.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "chat.jinja").write_text(TEMPLATE)
    given = {"shard_tokens": 3_001, "test_fraction": 0.2, "dtype": "uint32"}
    fineshards.build(
        input=str(folder / "chats.jsonl"),
        output=str(folder / "out"),
        chat_template=str(folder / "chat.jinja"),
        **{**given, **options},
    )
    return folder / "out"


def read_chats(folder: Path) -> Chats:
    """What a dataset of conversations holds."""
    settings = json.loads((folder / "metadata/manifest.json").read_text())["settings"]
    documents, learned = {}, {}
    for split in ("test", "train"):
        shards = sorted((folder / split).glob("*.npy"))
        tokens = [np.load(shard) for shard in shards]
        masks = [np.load(folder / "metadata/masks" / shard.name) for shard in shards]
        bits = [
            np.unpackbits(mask, count=len(part), bitorder="little").astype(np.bool_)
            for mask, part in zip(masks, tokens, strict=True)
        ]
        begins, before = [], 0
        for shard, part in zip(shards, tokens, strict=True):
            table = pq.read_table(folder / f"metadata/documents/{shard.stem}.parquet").to_pylist()
            begins += [before + row["offset"] for row in table if row["start"] == 0]
            before += len(part)
        documents[split] = np.split(np.concatenate(tokens), begins[1:])
        learned[split] = np.split(np.concatenate(bits), begins[1:])
    return Chats(folder, settings["tokenizer"]["eot"], documents, learned)
