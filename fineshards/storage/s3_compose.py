"""Composition on S3: the store copies whole objects into a new one, and the rest is sent to it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, NamedTuple

from fineshards.storage.base import FileRange
from fineshards.storage.checksums import (
    checksum_from_base64,
    checksum_to_base64,
    crc32c,
    crc32c_combine,
)
from fineshards.storage.objects import ObjectStorage
from fineshards.storage.s3_client import condition_failed, explained
from fineshards.storage.s3_multipart import NotCheckedError, Upload, in_a_proven_way
from fineshards.storage.s3_objects import S3Object
from fineshards.storage.s3_plan import MOST_COPIED, PlannedPart, Segment, plan_parts
from fineshards.storage.stored_parts import (
    READ_BYTES,
    FoundPart,
    check_unchanged,
    find_parts,
    write_part,
    write_parts,
)
from fineshards.storage.temporary import temporary_room

# Copies of one file at a time. The store copies some hundred megabytes per second.
_THREADS = 4


def compose(
    storage: ObjectStorage[S3Object],
    name: str,
    header: bytes,
    parts: Sequence[FileRange],
) -> int:
    """Creates a file from a header and parts of other files; returns its CRC-32C.

    A part that is a whole file of 5 MiB or more is not downloaded, except for what its neighbours
    lack for 5 MiB. Its checksum was stored with it, so the file's is known beforehand, and the
    store must show it for each copy. Where it does not, all bytes go through this process. Raises
    OutputError if a part is missing.
    """
    found = find_parts(storage, name, parts)
    composition = _S3Composition(storage, name, header, found)
    try:
        with explained("composed", storage.path(name)):
            made = in_a_proven_way(storage, "copy", composition.run)
    except NotCheckedError:
        made = None
    if made is not None:
        return checksum_from_base64(made.crc32c or "")
    with storage.create(name) as content:
        return write_parts(storage, header, found, content)


class _Copy(NamedTuple):
    """The bytes of an object from `start` on, and what their checksum must be, in base64."""

    source: S3Object
    start: int
    checksum: str


@dataclass(frozen=True, slots=True)
class _S3Composition:
    """A file to be made of a header and parts that were found."""

    storage: ObjectStorage[S3Object]
    name: str
    header: bytes
    found: Sequence[FoundPart[S3Object]]

    def run(self, checked: bool) -> S3Object | None:
        """The file, made by copies that are proven; None if there is nothing to copy.

        checked: whether the store is asked for checksums. Without them only a whole object is
        proven, by its MD5. Raises NotCheckedError if a copy is not proven.
        """
        segments = [Segment(one.size, _is_copyable(one)) for one in self.found]
        plan = plan_parts([Segment(len(self.header), False), *segments], cut=checked)
        if all(part.copied is None for part in plan):
            return None
        with temporary_room(), tempfile.SpooledTemporaryFile(READ_BYTES) as sent:
            checksum, copies = self._read(plan, sent)  # type: ignore[arg-type]
            size = plan[-1].stop
            try:
                upload = Upload(self.storage, self.name, size, checksum, None, checked)
                made = self._send(upload, plan, sent, copies)  # type: ignore[arg-type]
            except Exception as error:
                # A copy's source has changed; it may also be deleted because the job has ended.
                if not condition_failed(error):
                    raise
                made = None
        if made is None:
            stored = [one.stored for one in self.found]
            check = partial(check_unchanged, self.storage, self.name, stored, "ETag")
            return self.storage.already_there(self.name, size, checksum, if_missing=check)
        self.storage.check_same(made, size, checksum)
        return made

    def _read(self, plan: list[PlannedPart], sent: BinaryIO) -> tuple[str, dict[int, _Copy]]:
        """Writes what is to be sent to a file.

        Returns the checksum of the file that is made, and what is copied, by the plan's numbers.
        """
        planned = {part.copied: part for part in plan if part.copied is not None}
        sent.write(self.header)
        checksum, position = crc32c(self.header), len(self.header)
        copies: dict[int, _Copy] = {}
        for number, one in enumerate(self.found, 1):
            size = one.size
            copy = planned.get(number)
            front = size if copy is None else copy.start - position
            read = write_part(self.storage, one, front, sent) if front else 0
            if copy is not None:
                whole = checksum_from_base64(one.stored.crc32c or "")
                rest = crc32c_combine(read, 0, size - front) ^ whole
                copies[number] = _Copy(one.stored, front, checksum_to_base64(rest))
                read = whole
            checksum = crc32c_combine(checksum, read, size)
            position += size
        return checksum_to_base64(checksum), copies

    @staticmethod
    def _send(
        upload: Upload, plan: list[PlannedPart], sent: BinaryIO, copies: dict[int, _Copy]
    ) -> S3Object | None:
        sent.seek(0)
        with upload, ThreadPoolExecutor(_THREADS) as pool:
            pending = []
            for number, part in enumerate(plan, 1):
                if part.copied is None:
                    upload.send(number, sent.read(part.stop - part.start))
                else:
                    copy = copies[part.copied]
                    pending.append(pool.submit(upload.copy, number, *copy))
            for copying in pending:
                copying.result()
            return upload.complete()


def _is_copyable(one: FoundPart[S3Object]) -> bool:
    return one.whole and one.stored.crc32c is not None and one.size <= MOST_COPIED
