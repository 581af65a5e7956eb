"""Memory of batches is used again only when nothing refers to it."""

import numpy as np
import pytest

from fineshards.loader.memory import Memory

SHAPE, DTYPE = (8, 16), np.dtype(np.int64)
HOLDERS = {
    "the array": lambda array: array,
    "a row": lambda array: array[3],
    "a slice of a view": lambda array: array.T[2:5][::2],
    "a memoryview": memoryview,
    "part of a memoryview": lambda array: memoryview(array)[2:4],
    "another type": lambda array: array.view(np.uint8),
    "a reshaped one": lambda array: array.reshape(-1)[5:6],
    "an array made of it": lambda array: np.asarray(array, copy=None),
    "a buffer": lambda array: np.frombuffer(array, np.int32),
    "an iterator": lambda array: iter(array),
    "ctypes": lambda array: array.ctypes.data_as(__import__("ctypes").c_void_p),
    "a closure": lambda array: lambda: array,
}


@pytest.mark.parametrize("name", HOLDERS)
def test_what_is_held_is_not_used_again(name: str) -> None:
    blocks = Memory(4)
    array = blocks.empty(SHAPE, DTYPE)
    address = array.ctypes.data
    held = [HOLDERS[name](array)]
    del array
    others = [blocks.empty(SHAPE, DTYPE) for _ in range(8)]
    assert len(held) == 1
    assert address not in {other.ctypes.data for other in others}


def test_what_is_free_is_used_again() -> None:
    blocks = Memory(4)
    addresses = {blocks.empty(SHAPE, DTYPE).ctypes.data for _ in range(20)}
    assert len(addresses) == 1
    assert blocks.empty((16, 16), np.dtype(np.int32)).ctypes.data in addresses
    assert blocks.empty((8, 17), DTYPE).ctypes.data not in addresses


def test_no_more_blocks_are_kept_than_allowed() -> None:
    blocks = Memory(3)
    arrays = [blocks.empty(SHAPE, DTYPE) for _ in range(10)]
    assert len({array.ctypes.data for array in arrays}) == 10
    assert len(blocks._blocks) == 3
