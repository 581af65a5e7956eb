"""A file put together by Cloud Storage itself, of whole objects and a few bytes that are uploaded.

https://cloud.google.com/storage/docs/composite-objects
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, BinaryIO

import google_crc32c

from fineshards.errors import OutputError
from fineshards.storage.base import TEMPORARY, Part
from fineshards.storage.checksums import copy_with_checksum, crc32c_combine, parsed, printed
from fineshards.storage.gcs_objects import explained, reason, retry

if TYPE_CHECKING:
    from google.cloud.storage import Blob

    from fineshards.storage.gcs import GcsStorage

# The most objects that one request joins.
_COMPONENTS = 32
# Bytes of a cut part that are asked for at once, and that are kept in memory before the disk.
_READ_BYTES = 16 << 20
# Components that cannot be deleted for so many seconds are left to the end of the job.
_TIDY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _Found:
    """A part and the object that it is of."""

    part: Part
    blob: Blob

    @property
    def whole(self) -> bool:
        return (self.part.start, self.part.stop) == (0, self.blob.size)


def compose(storage: GcsStorage, name: str, header: bytes, parts: Sequence[Part]) -> int:
    """Makes a file of a header and parts of other files; returns its crc32c.

    Files of which all is wanted are not read: only the header and parts of files are uploaded. The
    checksum is made of those of the parts and must be the server's. Raises OutputError for a part
    that is not there or cannot be composed.
    """
    return _Composition(storage, name).run(header, parts)


class _Composition:
    """One attempt. Its components have names of their own (see Idempotence in docs/design.md)."""

    def __init__(self, storage: GcsStorage, name: str) -> None:
        self._storage = storage
        self._name = name
        stem = name.rpartition("/")[2]
        self._temporary = f"{TEMPORARY}/{stem}.{uuid.uuid4().hex}"
        self._made: list[str] = []

    def run(self, header: bytes, parts: Sequence[Part]) -> int:
        found = [self._find(part) for part in parts]
        if not any(one.whole for one in found):
            # Nothing to compose: all of it is uploaded, and that makes the file.
            with self._storage.create(self._name) as content:
                return _write(self._storage, header, found, content)
        try:
            components = list(self._components(header, found))
            while len(components) > _COMPONENTS:
                components = [
                    self._join(self._next_name(), components[at : at + _COMPONENTS])
                    for at in range(0, len(components), _COMPONENTS)
                ]
            return parsed(self._join(self._name, components).crc32c)
        finally:
            self._tidy()

    def _find(self, part: Part) -> _Found:
        blob = self._storage.find(part.name)
        if blob is None or blob.size < part.stop:
            size = "nothing" if blob is None else f"{blob.size} bytes"
            raise OutputError(
                f"{self._storage.path(part.name)} should hold {part.stop} bytes and more for "
                f"{self._name}, found {size}. Somebody changed the checkpoints folder; start anew "
                "with --overwrite."
            )
        return _Found(part, blob)

    def _components(self, header: bytes, found: list[_Found]) -> Iterator[Blob]:
        """The objects to join: whole files as they are, all that lies between them uploaded."""
        for whole, group in groupby(found, key=lambda one: one.whole):
            run = list(group)
            if not whole or header:
                cut = [] if whole else run
                with tempfile.SpooledTemporaryFile(_READ_BYTES) as content:
                    _write(self._storage, header, cut, content)  # type: ignore[arg-type]
                    yield self._storage.upload(self._next_name(), content)
                header = b""
            if whole:
                yield from (one.blob for one in run)

    def _next_name(self) -> str:
        name = f"{self._temporary}.{len(self._made)}"
        self._made.append(name)
        return name

    def _join(self, name: str, sources: list[Blob]) -> Blob:
        """Joins objects; returns the new one, whose checksum must follow from theirs."""
        from google.api_core.exceptions import BadRequest

        size, checksum = 0, 0
        for source in sources:
            checksum = crc32c_combine(checksum, parsed(source.crc32c), source.size)
            size += source.size
        path = self._storage.path(name)
        with explained("composed", path):
            try:
                joined = self._storage.join_objects(name, sources)
            except BadRequest as error:
                raise OutputError(
                    f"{self._storage.path(self._name)} cannot be composed"
                    f"{self._other_class(sources)}: {reason(error)}. With --assembly stream it is "
                    "written without composing."
                ) from error
        if joined is None:
            # There is one already, or a source has changed.
            if self._storage.find(name) is None:
                for source in sources:
                    self._check_unchanged(source)
            return self._storage.already_there(name, size, printed(checksum))
        self._storage.check_same(joined, size, printed(checksum))
        return joined

    def _other_class(self, sources: list[Blob]) -> str:
        """Which object is of another storage class than the first, which rules composing out."""
        first = sources[0].storage_class
        for source in sources:
            if source.storage_class != first:
                path = self._storage.path(self._storage.name_of(source))
                return f" of {path}, which is {source.storage_class} and not {first}"
        return ""

    def _check_unchanged(self, source: Blob) -> None:
        name = self._storage.name_of(source)
        now = self._storage.find(name)
        if now is None or now.generation != source.generation:
            state = "it is gone" if now is None else f"it is generation {now.generation}"
            raise OutputError(
                f"{self._storage.path(name)} changed while {self._name} was composed of it: it was "
                f"generation {source.generation}, now {state}. Run again when nobody else writes "
                "there."
            )

    def _tidy(self) -> None:
        for name in self._made:
            try:
                self._storage.remove(name, retry(_TIDY_SECONDS))
            except OutputError:
                # What is left there goes when the job commits.
                return


def _write(storage: GcsStorage, header: bytes, found: Sequence[_Found], target: BinaryIO) -> int:
    """Writes a header and parts; returns the checksum of all."""
    target.write(header)
    checksum: int = google_crc32c.value(header)
    for one in found:
        size = one.part.stop - one.part.start
        source = storage.reader(one.blob, min(size, _READ_BYTES))
        source.seek(one.part.start)
        checksum = copy_with_checksum(source, size, target, checksum)
    return checksum
