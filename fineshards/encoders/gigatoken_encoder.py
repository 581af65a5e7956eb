"""The fast tokenizer: gigatoken, a whole Arrow array per call.

By itself it is not exact; `fineshards/encoders/checked_encoder.py` uses it only where it is.
"""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import product
from pathlib import Path

import awkward as ak
import gigatoken
import numpy as np
import pyarrow as pa

from fineshards.cores import usable_cores
from fineshards.encoders.differences import string_buffers
from fineshards.encoders.encoder import TokenBatch
from fineshards.storage.temporary import scratch_folder

# gigatoken 0.10 caches every pretoken that it has seen (its issue 36). So after REBUILD_SECONDS of
# work a tokenizer is rebuilt, if the process has grown large. Unseen text costs both memory and
# time, so processor time bounds the memory. Measured: in four seconds, random letters, the worst
# case found, cost 0.7 GB. Web text costs 0.2 GB and then hardly more, and its cache is worth
# keeping.
REBUILD_SECONDS = 4.0
REBUILD_BYTES = 512 << 20  # of the process, per tokenizer in it


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


def without_holes(ranks: bytes) -> bytes:
    """Fills the missing ranks of a rank file, as gigatoken requires.

    p50k_base lacks the rank of its EOT. The tokens filled in are pairs of bytes that never occur in
    UTF-8, so no text can contain them.
    """
    lines = ranks.splitlines()
    if int(lines[-1].split()[1]) == len(lines) - 1:  # ranks are in order, each once
        return ranks
    by_rank = {int(rank): token for token, rank in map(bytes.split, lines)}
    holes = [rank for rank in range(max(by_rank)) if rank not in by_rank]
    never = range(0xF5, 0x100)
    fillers = (base64.b64encode(bytes(pair)) for pair in product(never, never))
    taken = set(by_rank.values())
    by_rank |= zip(holes, (filler for filler in fillers if filler not in taken), strict=False)
    return b"".join(by_rank[rank] + b" %d\n" % rank for rank in sorted(by_rank))


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
        self._idle = [_TimedTokenizer(make())]
        self._all = set(self._idle)
        self._free = threading.BoundedSemaphore(usable_cores())

    def encode(self, texts: pa.Array) -> TokenBatch:
        """See `Encoder.encode`."""
        offsets, data = string_buffers(texts)
        strings = ak.contents.ListOffsetArray(
            ak.index.Index64(offsets),
            ak.contents.NumpyArray(data, parameters={"__array__": "char"}),
            parameters={"__array__": "string"},
        )
        with self._tokenizer() as tokenizer:
            layout = tokenizer.encode(ak.Array(strings))
        ends = np.asarray(layout.offsets)
        tokens = np.insert(np.asarray(layout.content.data), ends[:-1], self._eot)
        return TokenBatch(tokens, ends + np.arange(len(ends)), by_reference=0)

    @contextmanager
    def _tokenizer(self) -> Iterator[_TimedTokenizer]:
        with self._free:
            tokenizer = self._idle.pop() if self._idle else _TimedTokenizer(self._make())
            self._all.add(tokenizer)
            is_kept = False  # unless it has worked without an error
            try:
                yield tokenizer
                is_kept = tokenizer.seconds < REBUILD_SECONDS or not _is_large(len(self._all))
            finally:
                if is_kept:
                    self._idle.append(tokenizer)
                else:
                    self._all.discard(tokenizer)


class _TimedTokenizer:
    """A gigatoken tokenizer and the seconds of processor time that it has worked."""

    def __init__(self, tokenizer: gigatoken.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.seconds = 0.0

    def encode(self, texts: ak.Array) -> ak.contents.ListOffsetArray:
        began = time.thread_time()
        layout = self._tokenizer.encode_batch(texts, parallel=False).layout
        self.seconds += time.thread_time() - began
        return layout
