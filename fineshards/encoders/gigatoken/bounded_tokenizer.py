"""gigatoken's tokenizers: without special tokens, shared by threads, with bounded memory."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path
from queue import LifoQueue
from threading import active_count
from types import SimpleNamespace
from typing import Any

import gigatoken
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.cores import usable_cores
from fineshards.encoders.encoder import CannotEncodeError, TokenBatch, is_panic
from fineshards.encoders.gigatoken.differences import string_buffers
from fineshards.storage.temporary import scratch_folder

# gigatoken 0.10 caches every pretoken that it has seen (its issue 36). So after REBUILD_SECONDS of
# work a tokenizer is rebuilt, if the process has grown large. Unseen text costs both memory and
# time, so processor time bounds the memory. Measured: in four seconds, random letters, the worst
# case found, cost 0.7 GB. Web text costs 0.2 GB and then hardly more, and its cache is worth
# keeping: with it and the tokens that it keeps, a worker of 20 GB of text has 0.6 GB.
REBUILD_SECONDS = 4.0
REBUILD_BYTES = 768 << 20  # of the process


class BoundedTokenizer:
    """gigatoken with bounded memory, for any number of threads.

    Concurrent calls on one gigatoken tokenizer wait for each other, so each call gets its own.
    There are at most as many as cores, because more would only use memory.
    """

    def __init__(self, make: Callable[[], gigatoken.Tokenizer], eot: int) -> None:
        """`make` builds a gigatoken tokenizer, and is called for each one.

        It is called once here, so that a tokenizer that cannot be built fails before a job begins,
        with CannotEncodeError.
        """
        try:
            first = make()
        except BaseException as error:
            if not isinstance(error, RuntimeError) and not is_panic(error):
                raise
            why = str(error).splitlines()[0]
            raise CannotEncodeError(f"gigatoken cannot read it ({why})") from error
        self._make = make
        self._eot = np.uint32(eot)
        self.name = f"gigatoken {version('gigatoken')}"
        # Each with the processor time that it has worked; None for one that is not built.
        self._idle: LifoQueue[tuple[gigatoken.Tokenizer, float] | None] = LifoQueue()
        for _ in range(usable_cores() - 1):
            self._idle.put(None)
        self._idle.put((first, 0.0))

    def encode(self, texts: pa.Array) -> TokenBatch:
        """See `Encoder.encode`."""
        with self._tokenizer() as tokenizer, _awkward() as ak:
            documents = tokenizer.encode_batch(ak.from_arrow(texts), parallel=False)
            tokens, lengths = ak.to_numpy(ak.flatten(documents)), ak.to_numpy(ak.num(documents))
        ends = np.concatenate([[0], np.cumsum(lengths)])
        tokens = np.insert(tokens, ends[:-1], self._eot)
        return TokenBatch(tokens, ends + np.arange(len(ends)), by_reference=0)

    @contextmanager
    def _tokenizer(self) -> Iterator[gigatoken.Tokenizer]:
        idle = self._idle.get()
        try:
            tokenizer, seconds = idle or (self._make(), 0.0)
            idle = None  # unless it works without an error
            began = time.thread_time()
            yield tokenizer
            seconds += time.thread_time() - began
            if seconds < REBUILD_SECONDS or not _is_large():
                idle = tokenizer, seconds
        finally:
            self._idle.put(idle)


def _is_large() -> bool:
    """Whether this process uses much memory; True where that is unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return True
    return pages * os.sysconf("SC_PAGE_SIZE") >= REBUILD_BYTES


def from_ranks(ranks: bytes, scheme: str) -> gigatoken.Tokenizer:
    """Builds gigatoken's tokenizer from a rank file. scheme: its name for the way of splitting."""
    with scratch_folder() as folder:
        file = Path(folder, "ranks.tiktoken")
        file.write_bytes(ranks)
        # No special tokens, because gigatoken would match them in text.
        return gigatoken.Tokenizer.from_tiktoken(file, scheme, {})


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
    if "awkward" in sys.modules or active_count() > 1:
        import awkward

        yield awkward
        return
    sys.modules["awkward"] = _STAND_IN
    try:
        yield _STAND_IN
    finally:
        del sys.modules["awkward"]
