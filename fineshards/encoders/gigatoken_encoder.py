"""The fast tokenizer: gigatoken, a whole Arrow array per call.

By itself it is not exact; `fineshards/encoders/checked_encoder.py` uses it only where it is.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gigatoken
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.cores import usable_cores
from fineshards.encoders.differences import string_buffers
from fineshards.encoders.encoder import TokenBatch
from fineshards.storage.temporary import scratch_folder

# gigatoken 0.10 caches every pretoken that it has seen (its issue 36). So after REBUILD_SECONDS of
# work a tokenizer is rebuilt, if the process has grown large. Unseen text costs both memory and
# time, so processor time bounds the memory. Measured: in four seconds, random letters, the worst
# case found, cost 0.7 GB. Web text costs 0.2 GB and then hardly more, and its cache is worth
# keeping: with it and the tokens that it keeps, a worker of 20 GB of text has 0.6 GB.
REBUILD_SECONDS = 4.0
REBUILD_BYTES = 768 << 20  # of the process, per tokenizer in it


def from_ranks(ranks: bytes, scheme: str) -> gigatoken.Tokenizer:
    """Builds gigatoken's tokenizer from a rank file without holes.

    scheme: gigatoken's name for the way of splitting. Raises RuntimeError if it rejects the ranks.
    """
    with scratch_folder() as folder, _no_panic():
        file = os.path.join(folder, "ranks.tiktoken")
        with open(file, "wb") as opened:
            opened.write(ranks)
        # No special tokens, because gigatoken would match them in text.
        return gigatoken.Tokenizer.from_tiktoken(file, scheme, {})


def from_json(data: bytes) -> gigatoken.Tokenizer:
    """Builds gigatoken's tokenizer from a tokenizer.json; raises RuntimeError if it rejects it."""
    with _no_panic():
        return gigatoken.Tokenizer.from_json(data)


@contextmanager
def _no_panic() -> Iterator[None]:
    """Turns Rust panics, whose class is not an Exception, into RuntimeError."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise RuntimeError(str(error)) from error


def _is_large(tokenizers: int) -> bool:
    """Whether this process uses much memory per tokenizer; True where that is unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return True
    return pages * os.sysconf("SC_PAGE_SIZE") >= REBUILD_BYTES * tokenizers


class GigatokenTokenizer:
    """gigatoken with bounded memory, for any number of threads.

    Concurrent calls on one gigatoken tokenizer wait for each other, so each call gets its own.
    There are at most as many as cores, because more would only use memory.
    """

    def __init__(self, make: Callable[[], gigatoken.Tokenizer], eot: int) -> None:
        """`make` builds a gigatoken tokenizer, and is called for each one.

        It is called once here, so that a tokenizer that cannot be built fails before a job begins.
        """
        self._make = make
        self._eot = np.uint32(eot)
        self.name = f"gigatoken {version('gigatoken')}"
        self._idle = [make()]
        # Of processor time that each has worked.
        self._seconds = dict.fromkeys(self._idle, 0.0)
        self._free = threading.BoundedSemaphore(usable_cores())

    def encode(self, texts: pa.Array) -> TokenBatch:
        """See `Encoder.encode`."""
        with self._tokenizer() as tokenizer, _awkward() as ak:
            began = time.thread_time()
            found = tokenizer.encode_batch(ak.from_arrow(texts), parallel=False)
            self._seconds[tokenizer] += time.thread_time() - began
            tokens, lengths = ak.to_numpy(ak.flatten(found)), ak.to_numpy(ak.num(found))
        ends = np.concatenate([[0], np.cumsum(lengths)])
        tokens = np.insert(tokens, ends[:-1], self._eot)
        return TokenBatch(tokens, ends + np.arange(len(ends)), by_reference=0)

    @contextmanager
    def _tokenizer(self) -> Iterator[gigatoken.Tokenizer]:
        with self._free:
            tokenizer = self._idle.pop() if self._idle else self._make()
            self._seconds.setdefault(tokenizer, 0.0)
            is_kept = False  # unless it has worked without an error
            try:
                yield tokenizer
                seconds = self._seconds[tokenizer]
                is_kept = seconds < REBUILD_SECONDS or not _is_large(len(self._seconds))
            finally:
                if is_kept:
                    self._idle.append(tokenizer)
                else:
                    del self._seconds[tokenizer]


def _strings(texts: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    offsets, data = string_buffers(texts)
    return data[offsets[0] : offsets[-1]], np.diff(offsets)


# All that is called of awkward. Lists are a pair: the items of all, and how many each has.
_STAND_IN: Any = SimpleNamespace(
    Array=tuple,
    from_arrow=_strings,
    without_parameters=lambda lists: lists,
    flatten=itemgetter(0),
    num=itemgetter(1),
    to_numpy=lambda array: array,
    unflatten=lambda *lists: lists,
)


@contextmanager
def _awkward() -> Iterator[Any]:
    """The module with which gigatoken takes and gives arrays without copies.

    gigatoken imports awkward in each call, which takes 0.1 s at first. Where no other thread can
    see it, a stand-in is there meanwhile.
    """
    if "awkward" in sys.modules or threading.active_count() > 1:
        import awkward

        yield awkward
        return
    sys.modules["awkward"] = _STAND_IN
    try:
        yield _STAND_IN
    finally:
        del sys.modules["awkward"]
