"""Compressed text: opened as a stream, with one sentence for what is damaged or cut off."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

import pyarrow as pa

from fineshards.errors import InputError
from fineshards.shards.job.records import SourceFile

# By the endings of names.
ENDINGS = {".gz": "gzip", ".zst": "zstd", ".xz": "xz", ".bz2": "bzip2"}
# RFC 1952 for gzip, RFC 8878 for zstd. zstd files may begin with a skippable frame (pzstd's do).
_MAGIC = {
    "none": (b"",),
    "gzip": (b"\x1f\x8b",),
    "zstd": (b"\x28\xb5\x2f\xfd", *(bytes([n, 0x2A, 0x4D, 0x18]) for n in range(0x50, 0x60))),
    "xz": (b"\xfd7zXZ\x00",),
    "bzip2": (b"BZh",),
}
_PIECE = 1 << 20
# In this order: the mark of UTF-16 begins that of UTF-32.
_MARKS = {
    "UTF-32": codecs.BOM_UTF32_LE,
    "UTF-32 (big-endian)": codecs.BOM_UTF32_BE,
    "UTF-16": codecs.BOM_UTF16_LE,
    "UTF-16 (big-endian)": codecs.BOM_UTF16_BE,
}
# Where the zeros of two or one characters are.
_WIDE: dict[tuple[bool, ...], str] = {
    (False, True, False, True): "UTF-16",
    (True, False, True, False): "UTF-16 (big-endian)",
    (False, True, True, True): "UTF-32",
    (True, True, True, False): "UTF-32 (big-endian)",
}
# The longest line in bytes, and the longest compressed text. A few megabytes of a compressed file
# can hold gigabytes without a line end.
LONGEST = 1 << 30
_LINE_PIECE = 1 << 24
# Memory that the dictionary of an xz stream may take: more than xz itself chooses.
_XZ_MEMORY = 1 << 30
_FAILURES = (EOFError, zlib.error, lzma.LZMAError, OSError)


def open_text(file: SourceFile, opened: BinaryIO) -> BinaryIO:
    """The content of an opened file without its compression.

    Raises InputError for a file that is not compressed as its name says. Reading what is damaged
    raises the errors that `explained` knows.
    """
    first_bytes = opened.read(6)
    opened.seek(0)
    if not first_bytes.startswith(_MAGIC[file.compression]):
        found = f"it starts with {first_bytes[:4]!r}" if first_bytes else "it is empty"
        raise InputError(
            f"{file.path} is not {file.compression} compressed, although its name says so: {found}."
            " Rename the file, or download it again."
        )
    return cast(BinaryIO, _decompress(file.compression, opened))


@contextmanager
def explained(file: SourceFile, place: Callable[[], str]) -> Iterator[None]:
    """Raises InputError where reading the text of a file fails.

    place: where it was, as words such as `line 7`.
    """
    try:
        yield
    except _FAILURES as error:
        raise InputError(
            f"{file.path}, after {place()}: cannot be read: {error}. "
            "The file is damaged or truncated; download it again."
        ) from error


def read_lines(file: SourceFile, stream: BinaryIO) -> Iterator[bytes]:
    """Yields the lines of a text; raises InputError for one that is longer than LONGEST."""
    number = 0
    while line := stream.readline(_LINE_PIECE):
        number += 1
        if len(line) == _LINE_PIECE:
            line = _bounded(file, f"line {number}", _rest_of_line(line, stream))
        yield line


def read_text(file: SourceFile, stream: BinaryIO) -> bytes:
    """All of a text; raises InputError for a compressed one that is longer than LONGEST."""
    if file.compression == "none":
        return stream.read()
    return _bounded(file, "its text", iter(lambda: stream.read(_LINE_PIECE), b""))


def _rest_of_line(piece: bytes, stream: BinaryIO) -> Iterator[bytes]:
    yield piece
    while not piece.endswith(b"\n") and (piece := stream.readline(_LINE_PIECE)):
        yield piece


def _bounded(file: SourceFile, what: str, pieces: Iterator[bytes]) -> bytes:
    kept, size = [], 0
    for piece in pieces:
        kept.append(piece)
        size += len(piece)
        if size > LONGEST:
            raise InputError(
                f"{file.path}: {what} has more than {LONGEST:,} bytes, which is the most that is "
                "read. Cut it into several documents, or exclude the file."
            )
    return b"".join(kept)


def wide_encoding(start: bytes) -> str | None:
    """The name of the encoding if a text begins as one of UTF-16 or UTF-32 does, or None.

    start: its first four bytes. Text of these formats begins with a letter of ASCII, which has
    zeros beside it, or with a byte order mark.
    """
    for name, mark in _MARKS.items():
        if start.startswith(mark):
            return name
    return _WIDE.get(tuple(byte == 0 for byte in start))


def check_beginning(file: SourceFile, start: bytes) -> None:
    """Raises InputError for a file of lines that begins as Parquet or in another encoding.

    start: its first four bytes.
    """
    if start == b"PAR1":
        raise InputError(f"{file.path}: is a Parquet file. Rename it, so that it ends in .parquet.")
    if encoding := wide_encoding(start):
        raise InputError(
            f"{file.path}: is in {encoding}, expected UTF-8. Convert it, such as with "
            f"iconv -f {encoding.split()[0]} -t UTF-8."
        )


def _decompress(compression: str, opened: BinaryIO) -> Any:
    if compression == "gzip":
        return gzip.GzipFile(fileobj=opened)
    if compression == "zstd":
        # Not the zstandard package, whose reader does not detect a truncated file.
        return io.BufferedReader(pa.CompressedInputStream(_Lent(opened), "zstd"), _PIECE)
    if compression == "xz":
        streams = _Streams(
            opened, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY), padding=4
        )
        return io.BufferedReader(streams, _PIECE)
    if compression == "bzip2":
        return io.BufferedReader(_Streams(opened, bz2.BZ2Decompressor), _PIECE)
    return opened


class _Lent(io.RawIOBase):
    """A file to read that stays open when pyarrow closes what it was given."""

    def __init__(self, opened: BinaryIO) -> None:
        super().__init__()
        self._opened = opened

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._opened.read(size)


class _Streams(io.RawIOBase):
    """Compressed streams one after another, as xz and bzip2 allow.

    Python's own readers take anything after the first stream for garbage, and leave it out without
    a word. padding: zeros between streams come in multiples of this many; 0 if they are not
    allowed.
    """

    def __init__(self, opened: BinaryIO, make: Callable[[], Any], padding: int = 0) -> None:
        super().__init__()
        self._opened, self._make, self._padding = opened, make, padding
        self._decompressor = make()
        self._begun = False
        self._pending = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """See io.RawIOBase. Raises EOFError for a stream that is cut off."""
        while True:
            if self._decompressor.eof and not self._next_stream():
                return 0
            needs_more = self._decompressor.needs_input and not self._pending
            given = self._pending or (self._opened.read(_PIECE) if needs_more else b"")
            self._pending = b""
            if needs_more and not given:
                if not self._begun:
                    return 0
                raise EOFError("Truncated compressed stream")
            self._begun = True
            content = self._decompressor.decompress(given, len(buffer))
            if content:
                buffer[: len(content)] = content
                return len(content)

    def _next_stream(self) -> bool:
        """Begins the next stream; False if there is none."""
        rest = self._decompressor.unused_data or self._opened.read(_PIECE)
        zeros = 0
        while self._padding and rest[:1] == b"\0":
            kept = rest.lstrip(b"\0")
            zeros += len(rest) - len(kept)
            rest = kept or self._opened.read(_PIECE)
        if self._padding and zeros % self._padding:
            raise EOFError("Truncated padding between compressed streams")
        if not rest:
            return False
        self._decompressor, self._pending = self._make(), rest
        return True
