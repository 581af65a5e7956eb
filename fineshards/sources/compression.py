"""Compressed text: opened as a stream, with one sentence for what is damaged or cut off."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

import pyarrow as pa

from fineshards.errors import InputError
from fineshards.shards.records import SourceFile

# RFC 1952 for gzip, RFC 8878 for zstd. zstd files may begin with a skippable frame (pzstd's do).
_MAGIC = {
    "none": (b"",),
    "gzip": (b"\x1f\x8b",),
    "zstd": (b"\x28\xb5\x2f\xfd", *(bytes([n, 0x2A, 0x4D, 0x18]) for n in range(0x50, 0x60))),
    "xz": (b"\xfd7zXZ\x00",),
    "bzip2": (b"BZh",),
}
_PIECE = 1 << 20
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


def _decompress(compression: str, opened: BinaryIO) -> Any:
    if compression == "gzip":
        return gzip.GzipFile(fileobj=opened)
    if compression == "zstd":
        # Not the zstandard package, whose reader does not detect a truncated file.
        return io.BufferedReader(pa.CompressedInputStream(_Lent(opened), "zstd"), _PIECE)
    if compression == "xz":
        streams = _Streams(opened, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), padding=4)
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
        """See io.RawIOBase."""
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
