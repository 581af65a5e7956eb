"""The fast tokenizer: gigatoken, whole Arrow batches at a time.

It is exact where `fineshards/encoders/exact.py` lets it be; by itself it is not, see there.
"""

from __future__ import annotations

import base64
import os
import tempfile
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

from fineshards.encoders.differences import string_buffers
from fineshards.encoders.encoder import TokenBatch

# gigatoken 0.10 remembers every piece of text that it has seen (its issue 36), so a tokenizer that
# has worked for a while is built anew when the process has grown large. What it has not seen costs
# it both memory and time, so time, of the processor, bounds the memory. Measured: in four seconds
# random letters, the worst that was found, cost 0.7 GB. Web text costs 0.2 GB and then hardly more,
# and what was learned of it is worth keeping.
REBUILD_SECONDS = 4.0
REBUILD_BYTES_A_CORE = 512 << 20


def from_ranks(ranks: bytes, scheme: str) -> gigatoken.Tokenizer:
    """gigatoken's tokenizer of a rank file without holes; scheme is its name for the splitting.

    Raises RuntimeError for ranks that it does not take.
    """
    with _no_panic(), tempfile.NamedTemporaryFile(suffix=".tiktoken") as file:
        file.write(ranks)
        file.flush()
        # No special tokens: gigatoken would find them in the text.
        return gigatoken.Tokenizer.from_tiktoken(file.name, scheme, {})


def from_json(data: bytes) -> gigatoken.Tokenizer:
    """gigatoken's tokenizer of a tokenizer.json; raises RuntimeError for one it does not take."""
    with _no_panic():
        return gigatoken.Tokenizer.from_json(data)


@contextmanager
def _no_panic() -> Iterator[None]:
    """Makes a RuntimeError of Rust's panics, whose exception is no Exception."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise RuntimeError(str(error)) from error


def _is_large() -> bool:
    """Whether this process holds much memory for its cores; where nobody knows, it does."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return True
    return pages * os.sysconf("SC_PAGE_SIZE") >= REBUILD_BYTES_A_CORE * (os.cpu_count() or 1)


def without_holes(ranks: bytes) -> bytes:
    """A rank file with a token for every rank that it leaves out, as gigatoken demands.

    p50k_base leaves out that of its EOT. The tokens put in are pairs of bytes that UTF-8 never has,
    so that no text can contain them.
    """
    by_rank = {int(rank): token for token, rank in map(bytes.split, ranks.splitlines())}
    holes = [rank for rank in range(max(by_rank)) if rank not in by_rank]
    if not holes:
        return ranks
    never = range(0xF5, 0x100)
    fillers = (base64.b64encode(bytes(pair)) for pair in product(never, never))
    taken = set(by_rank.values())
    by_rank |= zip(holes, (filler for filler in fillers if filler not in taken), strict=False)
    return b"".join(by_rank[rank] + b" %d\n" % rank for rank in sorted(by_rank))


class GigatokenTokenizer:
    """gigatoken with bounded memory, for any number of threads.

    Two calls on one of gigatoken's tokenizers wait for each other, so every concurrent call gets
    one of its own; as many as there are cores, for more would only take memory.
    """

    def __init__(self, make: Callable[[], gigatoken.Tokenizer], eot: int) -> None:
        """`make` builds one of gigatoken's tokenizers; it is called again and again.

        The first time now: what cannot be built must show before a job begins.
        """
        self._make = make
        self._eot = np.uint32(eot)
        self.name = f"gigatoken {version('gigatoken')}"
        self._idle = [_Tokenizer(make())]
        self._free = threading.BoundedSemaphore(os.cpu_count() or 1)

    def encode(self, texts: pa.Array) -> TokenBatch:
        """Documents of strings without nulls (large_string), EOT first."""
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
    def _tokenizer(self) -> Iterator[_Tokenizer]:
        with self._free:
            tokenizer = self._idle.pop() if self._idle else _Tokenizer(self._make())
            yield tokenizer
            if tokenizer.seconds < REBUILD_SECONDS or not _is_large():
                self._idle.append(tokenizer)


class _Tokenizer:
    """One of gigatoken's tokenizers, and how many seconds of processor time it has worked."""

    def __init__(self, tokenizer: gigatoken.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.seconds = 0.0

    def encode(self, texts: ak.Array) -> ak.contents.ListOffsetArray:
        began = time.thread_time()
        layout = self._tokenizer.encode_batch(texts, parallel=False).layout
        self.seconds += time.thread_time() - began
        return layout
