"""Made-up conversations, and what a dataset of them must hold, by a plain walk over its tables."""

import json
import random
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fineshards.chat.chat_template import ChatTemplate
from fineshards.chat.conversation import BadConversation
from fineshards.chat.conversation_encoder import ConversationEncoder
from fineshards.chat.placed_tokens import EncodedConversation
from fineshards.encoders.loading import load_vocabulary
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage

Conversation = list[dict[str, Any]]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>' }}\n{% endfor %}"
)


def made_up(count: int, seed: int) -> list[Conversation]:
    """Conversations with and without a system turn, with empty answers at their ends."""
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


def write(path: Path, conversations: Sequence[Conversation]) -> Path:
    """Writes conversations as structs of Parquet, or as JSON lines, by the file's ending."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"messages": conversations}), path, row_group_size=25)
    else:
        path.write_text("".join(json.dumps({"messages": each}) + "\n" for each in conversations))
    return path


def encoded(encoder: ConversationEncoder, conversation: str) -> EncodedConversation:
    """What a conversation is encoded to, without the EOT; raises BadConversation if refused."""
    batch = encoder.encode(pa.array([conversation], pa.large_string()))
    for _, reason in batch.refused:
        raise BadConversation(reason)
    assert batch.learned is not None
    learned = np.array(batch.learned[0].as_py(), np.int32).reshape(-1, 2)
    return EncodedConversation(batch.document(0)[1:], learned - 1)


def check(
    folder: Path,
    inputs: Mapping[str, Sequence[Conversation]],
    redacted: Collection[tuple[str, int]] = (),
) -> int:
    """Every document has the tokens and bits of its conversation; returns how many there are.

    inputs: the conversations of each source file. redacted: documents that must be gone, by file
    and row. Shards, masks and tables are read without fineshards.
    """
    storage = open_storage(str(folder))
    settings = Manifest.load_finished(storage).settings
    assert settings.chat is not None
    vocabulary = load_vocabulary(settings.tokenizer, storage)
    encoder = ConversationEncoder(ChatTemplate(TEMPLATE), vocabulary, settings.chat.learn)
    by_name = {Path(path).name: found for path, found in inputs.items()}
    gone = {(Path(path).name, row) for path, row in redacted}
    found: dict[tuple[str, int], list[tuple[Any, Any]]] = {}
    for shard in sorted(folder.glob("t*/*.npy")):
        tokens = np.load(shard)
        mask = np.load(folder / "metadata/masks" / shard.name)
        assert (mask.dtype, mask.shape) == (np.uint8, (-(-len(tokens) // 8),))
        bits = np.unpackbits(mask, bitorder="little")
        assert not bits[len(tokens) :].any()
        for row in pq.read_table(folder / f"metadata/documents/{shard.stem}.parquet").to_pylist():
            part = slice(row["offset"], row["offset"] + row["length"])
            found.setdefault((row["file"], row["row"]), []).append((tokens[part], bits[part]))
    eot = settings.tokenizer.eot
    for (name, row), parts in found.items():
        expected = encoded(encoder, json.dumps({"messages": by_name[name][row]}))
        tokens = np.concatenate([[eot], expected.tokens])
        bits = np.zeros(len(tokens), np.uint8)
        for begin, end in expected.learned.tolist():
            bits[begin + 1 : end + 1] = 1
        if (name, row) in gone:
            tokens[:], bits[:] = eot, 0
        else:
            assert 0 < bits.sum() < len(bits) - 1
        assert np.array_equal(np.concatenate([each for each, _ in parts]), tokens)
        assert np.array_equal(np.concatenate([each for _, each in parts]), bits)
    return len(found)
