"""Compressed text: opened as a stream, with one sentence for what is damaged or cut off."""

import bz2
import codecs
import gzip
import io
import json
import lzma
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO, cast

from fineshards.errors import InputError
from fineshards.shards.job.records import SourceFile

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# By the endings of names.
ENDINGS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".xz": "xz", ".bz2": "bzip2"}
# A block of bzip2 begins with the first, and the end of an empty stream is the second.
_BZIP2_MARKS = (b"1AY&SY", b"\x17rE8P\x90")
# First bytes: RFC 1952 for gzip, RFC 8878 for zstd, which may begin with a skippable frame (pzstd's
# do). No text in UTF-8 begins so, but with bzip2's or a skippable frame's.
_MAGIC = {
    "gzip": (b"\x1f\x8b",),
    "zstd": (b"\x28\xb5\x2f\xfd", *(bytes([n, 0x2A, 0x4D, 0x18]) for n in range(0x50, 0x60))),
    "xz": (b"\xfd7zXZ\x00",),
    "bzip2": tuple(b"BZh%d%s" % (n, mark) for n in range(1, 10) for mark in _BZIP2_MARKS),
}
_PIECE = 1 << 20
# The longest line in bytes, and the longest compressed text. A few megabytes of a compressed file
# can hold gigabytes without a line end.
LONGEST = 1 << 30
_READ_BYTES = 1 << 24
# Memory that the dictionary of an xz stream may take: more than xz itself chooses.
_XZ_MEMORY = 1 << 30
# The window of a zstd stream may be the largest there is, of 2 GiB: `zstd --long=31` writes it.
_ZSTD_OPTIONS: Mapping[int, int] = {zstd.DecompressionParameter.window_log_max: 31}
# In such a frame, the first of a file, is the dictionary of all others: the specification of
# .warc.zst by the IIPC.
_DICTIONARY_FRAME = b"\x5d\x2a\x4d\x18"
_FAILURES = (EOFError, zlib.error, lzma.LZMAError, zstd.ZstdError, OSError)


def open_text(file: SourceFile, opened: BinaryIO) -> BinaryIO:
    """The content of an opened file without its compression, which its first bytes tell.

    Raises InputError for a file that is not compressed, although its name says so: it may be an
    answer of a server in place of the file. Reading what is damaged raises the errors that
    `explained` knows.
    """
    start = opened.read(10)
    opened.seek(0)
    compression = next((name for name, magic in _MAGIC.items() if start.startswith(magic)), "none")
    if compression == "none" and file.compression != "none":
        content = f"it starts with {start[:4]!r}" if start else "it is empty"
        raise InputError(
            f"{file.path} is not {file.compression} compressed, although its name says so: "
            f"{content}. Rename the file, or download it again."
        )
    return cast(BinaryIO, _decompressed(compression, opened))


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
            "The file is damaged or truncated: download it again, or start over with "
            "--max_bad_files, which leaves such files out."
        ) from error


def read_lines(file: SourceFile, opened: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a file with their numbers, from 1, without a byte order mark.

    Raises InputError for a file that is damaged, or begins as Parquet or in another encoding, and
    for a line that is longer than LONGEST.
    """
    number = 0
    with explained(file, lambda: f"line {number}"):
        stream = open_text(file, opened)
        while line := stream.readline(_READ_BYTES):  # a larger limit may take twice the memory
            number += 1
            if len(line) == _READ_BYTES:
                line = bounded(file, f"line {number}", _rest_of_line(line, stream))
            if number == 1:
                check_beginning(file, line[:4])
                line = line.removeprefix(codecs.BOM_UTF8)
            yield number, line


def read_text(file: SourceFile, opened: BinaryIO) -> bytes:
    """All of a text; raises InputError for a compressed one that is longer than LONGEST."""
    stream = open_text(file, opened)
    if stream is opened:
        return stream.read()
    return bounded(file, "its text", iter(lambda: stream.read(_READ_BYTES), b""))


def _rest_of_line(piece: bytes, stream: BinaryIO) -> Iterator[bytes]:
    yield piece
    while not piece.endswith(b"\n") and (piece := stream.readline(_READ_BYTES)):
        yield piece


def bounded(file: SourceFile, what: str, pieces: Iterable[bytes | bytearray]) -> bytes:
    """The pieces of a text as one; raises InputError beyond LONGEST. what: its place, as words."""
    read, size = [], 0
    for piece in pieces:
        read.append(piece)
        size += len(piece)
        if size > LONGEST:
            raise InputError(
                f"{file.path}: {what} has more than {LONGEST:,} bytes, which is the most that is "
                "read. Cut it into several documents, or exclude the file."
            )
    return b"".join(read)


def wide_encoding(start: bytes) -> str | None:
    """The name of the encoding if a text begins as one of UTF-16 or UTF-32 does, or None.

    start: its first four bytes. Text of these formats begins with a letter of ASCII, which has
    zeros beside it, or with a byte order mark.
    """
    name, _, order = json.detect_encoding(start).upper().removeprefix("UTF-").partition("-")
    return None if name == "8" else f"UTF-{name}{order}"


def check_beginning(file: SourceFile, start: bytes) -> None:
    """Raises InputError for what begins as Parquet or in another encoding. start: four bytes."""
    if start == b"PAR1":
        raise InputError(f"{file.path}: is a Parquet file. Rename it, so that it ends in .parquet.")
    if encoding := wide_encoding(start):
        raise InputError(
            f"{file.path}: is in {encoding}, expected UTF-8. Convert it, such as with "
            f"iconv -f {encoding} -t UTF-8."
        )


def _decompressed(compression: str, opened: BinaryIO) -> Any:
    if compression == "none":
        return opened
    if compression == "gzip":
        return gzip.GzipFile(fileobj=opened)
    if compression == "xz":
        new = partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, _XZ_MEMORY)
        return io.BufferedReader(_Streams(opened, new, padding=b"\0"), _PIECE)
    if compression == "bzip2":
        return io.BufferedReader(_Streams(opened, bz2.BZ2Decompressor, padding=b""), _PIECE)
    of_zstd = partial(zstd.ZstdDecompressor, _zstd_dictionary(opened), _ZSTD_OPTIONS)
    return io.BufferedReader(_Streams(opened, of_zstd, padding=b""), _PIECE)


def _zstd_dictionary(opened: BinaryIO) -> zstd.ZstdDict | None:
    """The dictionary that a file begins with, which may itself be compressed; None without one."""
    header = opened.read(8)
    content = b""
    if header.startswith(_DICTIONARY_FRAME):
        content = opened.read(int.from_bytes(header[4:], "little"))
        if content.startswith(_MAGIC["zstd"][0]):
            content = zstd.decompress(content)
    opened.seek(0)
    return zstd.ZstdDict(content) if content else None


class _Streams(io.RawIOBase):
    """Streams of xz, with zeros between them, of bzip2 or of zstd, one after another.

    Python's own readers take what follows zeros, or no stream, for garbage, and leave it out
    without a word.
    """

    def __init__(self, opened: BinaryIO, new: Callable[[], Any], padding: bytes) -> None:
        super().__init__()
        self._opened, self._new, self._padding = opened, new, padding
        self._stream: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """See io.RawIOBase. Raises EOFError for a stream that is cut off."""
        content = b""
        while not content:
            if self._stream is None or self._stream.eof:
                given = self._stream.unused_data if self._stream else b""
                while not (given := given.lstrip(self._padding)):
                    if not (given := self._opened.read(_PIECE)):
                        return 0
                self._stream = self._new()
            else:
                given = self._opened.read(_PIECE) if self._stream.needs_input else b""
                if self._stream.needs_input and not given:
                    raise EOFError("Truncated compressed stream")
            content = self._stream.decompress(given, len(buffer))
        buffer[: len(content)] = content
        return len(content)
