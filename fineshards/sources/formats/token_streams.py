"""Token files without an index: the EOTs say where documents begin.

`raw` (nanoGPT) and `olmo` (OLMo-core) are tokens and nothing else. `llmc` and `nanogpt` (llm.c,
modded-nanogpt, NeMo) begin with a header of 256 int32, of which the first is

    20240520   llm.c with GPT-2's tokens: uint16
    20240801   llm.c with Llama 3's tokens: uint32
    278895051  NeMo: the fourth number is the bytes per token

and the third is the number of tokens. All are little-endian. `token_shards.py` has MDS and litdata.

Where documents begin with their EOT, the last one of a file may go on in the following files. It
belongs to the file that it begins in: `SourceFile.companions` are those that it goes on in.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fineshards.errors import InputError
from fineshards.shards.job.import_record import BEGIN, Imported
from fineshards.shards.job.records import Block, SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.sources.compression import explained, open_text, read_text
from fineshards.sources.files import explain_failures, open_file
from fineshards.sources.formats.token_bytes import ranges, read_array
from fineshards.sources.formats.token_rows import (
    BATCH_TOKENS,
    blocks_of,
    cut_blocks,
    rows_of_tokens,
)
from fineshards.sources.formats.token_shards import Runs, one_run, run_of_litdata, runs_of_mds
from fineshards.sources.rows import Rows

STREAMS = ("raw", "olmo", "llmc", "nanogpt", "mds", "litdata")

_HEADER_BYTES = 1024
_DTYPES = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
_NEMO = (278895051, 1)
_NEMO_DTYPES = {2: "<u2", 4: "<u4"}
_NPY = b"\x93NUMPY"
# How files with a header of these begin.
_HEADERS = {struct.pack("<2i", *kind) for kind in (*_DTYPES, _NEMO)}


def with_continuations(files: Sequence[SourceFile], imported: Imported) -> list[SourceFile]:
    """The files, with those that each one's last document goes on in.

    Reads the beginning of each file. Raises InputError if the first one begins within a document.
    """
    if imported.kind not in STREAMS or imported.eot_side != BEGIN:
        return list(files)
    goes_on: list[list[SourceFile]] = [[] for _ in files]
    owner = None  # the file that the last document so far begins in
    for number, file in enumerate(files):
        with _open(file, imported) as stream:
            eot = stream.first_eot(imported.eot)
            if stream.tokens and eot != 0:
                if owner is None:
                    raise InputError(
                        f"{file.path}: its first token is {stream.read(0, 1)[0]}, expected the EOT "
                        f"{imported.eot}: it begins within a document. Give the files from the "
                        "first one on in their order, and the --tokenizer and --eot_side that they "
                        "were made with; of a dataset with --test_shards, export all its shards as "
                        "one split."
                    )
                goes_on[owner].append(file)
            if eot is not None:
                owner = number
    return [
        replace(file, companions=tuple(following))
        for file, following in zip(files, goes_on, strict=True)
    ]


def check_head(file: SourceFile, opened: BinaryIO, columns: Columns) -> None:
    """Raises InputError for a file that is not what its header says."""
    assert columns.imported is not None
    _TokenStream.of(file, opened, columns.imported)


def discover(file: SourceFile, opened: BinaryIO, columns: Columns, block_bytes: int) -> list[Block]:
    """Returns the blocks of a file, of which all tokens are read to find its documents.

    Raises InputError for a file that is not what its header says, or ends within a document.
    """
    imported = columns.imported
    assert imported is not None
    stream = _TokenStream.of(file, opened, imported)
    itemsize = stream.dtype.itemsize
    cuts = cut_blocks(_borders(stream, imported), max(1, block_bytes // itemsize))
    return blocks_of(file, cuts, itemsize, by_document=False)


def read(file: SourceFile, opened: BinaryIO, columns: Columns, block: Block) -> Iterator[Rows]:
    """Yields the documents of a block in order; raises InputError for one that is not whole."""
    imported = columns.imported
    assert imported is not None
    row = block.first_row
    parts = _parts(_TokenStream.of(file, opened, imported), imported, block)
    for tokens in _whole_documents(parts, imported):
        marks = _marks(tokens, imported)
        borders = (
            np.append(marks, np.int64(len(tokens)))
            if imported.eot_side == BEGIN
            else np.append(np.int64(0), marks)
        )
        yield rows_of_tokens(file, imported, tokens, borders, row)
        row += len(borders) - 1


@dataclass(frozen=True, slots=True)
class _TokenStream:
    """The tokens of an open file. opened: its content, without compression."""

    file: SourceFile
    opened: BinaryIO
    runs: Runs

    @classmethod
    def of(cls, file: SourceFile, opened: BinaryIO, imported: Imported) -> _TokenStream:
        """The tokens of a file; raises InputError for one that is not what its header says."""
        if imported.kind == "mds":
            content, size = opened, file.size
            if file.compression != "none":
                with explained(file, lambda: "its beginning"):
                    raw = read_text(file, open_text(file, opened))
                content, size = BytesIO(raw), len(raw)
            return cls(file, content, runs_of_mds(file, content, size))
        if imported.dtype is None:
            return cls(file, opened, _after_header(file, opened))
        if imported.kind == "litdata":
            return cls(file, opened, run_of_litdata(file, opened, imported.dtype))
        return cls(file, opened, _all_of(file, opened, np.dtype(imported.dtype), 0))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of a token."""
        return self.runs.dtype

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return int(self.runs.firsts[-1])

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Tokens [start, stop)."""
        dtype, firsts, places = self.runs
        number = int(np.searchsorted(firsts, start, side="right")) - 1
        found = [np.empty(0, dtype)]
        while start < stop:
            end = min(int(firsts[number + 1]), stop)
            at = int(places[number]) + (start - int(firsts[number])) * dtype.itemsize
            found.append(read_array(self.file, self.opened, dtype, at, end - start))
            start, number = end, number + 1
        return np.concatenate(found) if len(found) != 2 else found[1]

    def chunks(self, start: int, stop: int) -> Iterator[npt.NDArray[Any]]:
        """Tokens [start, stop), some at a time."""
        for first, end in ranges(start, stop, BATCH_TOKENS):
            yield self.read(first, end)

    def first_eot(self, eot: int) -> int | None:
        """The place of the first EOT."""
        for first, end in ranges(0, self.tokens, BATCH_TOKENS):
            # Mostly the first token of all is one.
            for start, stop in ((first, min(first + 1, end)), (first + 1, end)):
                found = np.flatnonzero(self.read(start, stop) == eot)
                if len(found):
                    return start + int(found[0])
        return None


def _after_header(file: SourceFile, opened: BinaryIO) -> Runs:
    """The tokens of a file with a header of llm.c or NeMo."""
    if file.size < _HEADER_BYTES:
        raise InputError(
            f"{file.path} has {file.size:,} bytes, expected a header of {_HEADER_BYTES:,} at "
            "least. It is truncated, or has no header: see --from raw."
        )
    magic, version, tokens, itemsize = read_array(file, opened, "<i4", 0, 4).tolist()
    kind = (magic, version)
    dtype = _NEMO_DTYPES.get(itemsize) if kind == _NEMO else _DTYPES.get(kind)
    if dtype is None:
        known = ", ".join(f"{magic} {version}" for magic, version in (*_DTYPES, _NEMO))
        raise InputError(
            f"{file.path}: its header begins with {magic}, {version}, {tokens}, {itemsize}, "
            f"expected a magic number and a version among {known}, and for the last of these 2 "
            "or 4 bytes per token. It has another layout: see --from."
        )
    runs = _all_of(file, opened, np.dtype(dtype), _HEADER_BYTES)
    if (found := int(runs.firsts[-1])) != tokens:
        raise InputError(
            f"{file.path}: its header says {tokens:,} tokens, but it has {found:,} of "
            f"{runs.dtype.itemsize} bytes. It is truncated; write or download it again."
        )
    return runs


def _all_of(file: SourceFile, opened: BinaryIO, dtype: np.dtype[Any], offset: int) -> Runs:
    """The tokens from a place of a file on."""
    if (file.size - offset) % dtype.itemsize:
        raise InputError(
            f"{file.path} has {file.size:,} bytes, which is no whole number of {dtype.name} "
            "tokens. It is truncated, or has another type: see --source_dtype."
        )
    opened.seek(0)
    head = opened.read(8)
    if offset == 0 and head in _HEADERS:
        raise InputError(
            f"{file.path} begins with a header of llm.c or NeMo, which would be read as tokens. "
            "Import it with --from llmc or nemo."
        )
    if head.startswith(_NPY):
        raise InputError(
            f"{file.path} begins with the header of a NumPy file, which would be read as tokens. "
            "Give files of tokens without a header."
        )
    return one_run(dtype, offset, (file.size - offset) // dtype.itemsize)


@contextmanager
def _open(file: SourceFile, imported: Imported) -> Iterator[_TokenStream]:
    with explain_failures(file), open_file(file, 1 << 16) as opened:
        yield _TokenStream.of(file, opened, imported)


def _marks(tokens: npt.NDArray[Any], imported: Imported) -> npt.NDArray[np.int64]:
    """Where documents begin, or where they end, by their EOTs."""
    found = np.flatnonzero(tokens == imported.eot)
    return found if imported.eot_side == BEGIN else found + 1


def _borders(
    stream: _TokenStream, imported: Imported
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Where the documents of a file begin and end, in runs: see `cut_blocks`."""
    begins, end = imported.eot_side == BEGIN, stream.tokens
    last = np.array([] if begins else [0], np.int64)
    documents = 0
    for first, stop in ranges(0, end, BATCH_TOKENS):
        places = np.concatenate([last, _marks(stream.read(first, stop), imported) + first])
        if len(places) > 1:
            yield documents, places
            documents += len(places) - 1
        last = places[-1:]
    if begins and len(last):
        yield documents, np.append(last, np.int64(end))
    elif not begins and last[0] != end:
        raise InputError(
            f"{stream.file.path}: its last token is {stream.read(end - 1, end)[0]}, expected the "
            f"EOT {imported.eot} that ends a document. Give the --tokenizer and the --eot_side "
            "that the file was made with; of a dataset with --test_shards, export all its shards "
            "as one split."
        )


def _parts(stream: _TokenStream, imported: Imported, block: Block) -> Iterator[npt.NDArray[Any]]:
    """The tokens of a block, and of the end of its last document in other files."""
    yield from stream.chunks(block.first_group, block.stop_group)
    if block.index < block.blocks - 1 or block.first_group == block.stop_group:
        return
    for companion in stream.file.companions:
        with _open(companion, imported) as following:
            eot = following.first_eot(imported.eot)
            yield from following.chunks(0, following.tokens if eot is None else eot)


def _whole_documents(
    parts: Iterable[npt.NDArray[Any]], imported: Imported
) -> Iterator[npt.NDArray[Any]]:
    """The same tokens in parts that end with a document."""
    held: list[npt.NDArray[Any]] = []
    for part in parts:
        marks = _marks(part, imported)
        cut = int(marks[-1]) if len(marks) else 0
        whole = [*held, part[:cut]]
        if cut or (len(marks) and held):
            yield np.concatenate(whole)
            held = []
        held.append(part[cut:])
    rest = np.concatenate(held) if held else np.empty(0, np.uint16)
    if len(rest):
        yield rest
