"""Token blocks in object storage, and the parts of them that a shard is composed of."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

from fineshards.storage.base import FileRange, Storage

NAME = "train/train_0000.npy"
OBJECT = f"out/{NAME}"
HEADER = b"h" * 128


def block_name(number: int) -> str:
    return f"checkpoints/x/blocks/{number}"


def write_blocks(storage: Storage, sizes: list[int]) -> list[bytes]:
    blocks = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: storage.write(block_name(n), blocks[n]), range(len(blocks))))
    return blocks


def parts_of(sizes: list[int], cut_front: int = 0, cut_end: int = 0) -> list[FileRange]:
    """All blocks, without some bytes at the beginning and at the end."""
    parts = [FileRange(block_name(number), 0, size) for number, size in enumerate(sizes)]
    parts[0] = FileRange(parts[0].name, cut_front, parts[0].stop)
    parts[-1] = FileRange(parts[-1].name, parts[-1].start, parts[-1].stop - cut_end)
    return parts
