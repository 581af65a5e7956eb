"""Composition: Cloud Storage joins whole objects and a few uploaded bytes into one file.

https://cloud.google.com/storage/docs/composite-objects
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from fineshards.errors import OutputError
from fineshards.storage.base import TEMPORARY, FileRange
from fineshards.storage.checksums import checksum_from_base64, checksum_to_base64, crc32c_combine
from fineshards.storage.gcs_objects import explained, reason
from fineshards.storage.objects import ObjectStorage
from fineshards.storage.stored_parts import (
    READ_BYTES,
    FoundPart,
    check_unchanged,
    find_parts,
    write_parts,
)
from fineshards.storage.temporary import temporary_room

if TYPE_CHECKING:
    from google.cloud.storage import Blob

# The most objects that one request can join.
_MAX_COMPONENTS = 32
# How long to retry deleting a component; after that it is left for the end of the job.
_CLEANUP_SECONDS = 30.0


def compose(
    storage: ObjectStorage[Blob],
    join: Callable[[str, Sequence[Blob]], Blob | None],
    name: str,
    header: bytes,
    parts: Sequence[FileRange],
) -> int:
    """Creates a file from a header and parts of other files; returns its CRC-32C.

    A part that is a whole file is not downloaded; only the header and cut parts are uploaded. The
    file's checksum follows from those of its components and must equal the server's. join: makes
    one object of several. Raises OutputError if a part is missing or cannot be composed.
    """
    return _GcsComposition(storage, join, name).run(header, parts)


@dataclass
class _GcsComposition:
    """One attempt. Its components have unique names (see Contracts in docs/design.md)."""

    _storage: ObjectStorage[Blob]
    _join_objects: Callable[[str, Sequence[Blob]], Blob | None]
    _name: str
    _attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    # By name; None until it is known that the component exists.
    _made: dict[str, Blob | None] = field(default_factory=dict)

    def run(self, header: bytes, parts: Sequence[FileRange]) -> int:
        found = find_parts(self._storage, self._name, parts)
        if not any(one.whole for one in found):
            # No part can be joined on the server, so the whole file is uploaded.
            with self._storage.create(self._name) as content:
                return write_parts(self._storage, header, found, content)
        try:
            components = list(self._components(header, found))
            while len(components) > _MAX_COMPONENTS:
                groups = [
                    components[at : at + _MAX_COMPONENTS]
                    for at in range(0, len(components), _MAX_COMPONENTS)
                ]
                components = [
                    self._component(self._join, group) if len(group) > 1 else group[0]
                    for group in groups
                ]
            return checksum_from_base64(self._join(self._name, components).crc32c)
        finally:
            self._delete_components()

    def _components(self, header: bytes, found: list[FoundPart[Blob]]) -> Iterator[Blob]:
        """The objects to join: whole files as they are, everything between them uploaded."""
        for whole, group in groupby(found, key=lambda one: one.whole):
            run = list(group)
            if not whole or header:
                cut = [] if whole else run
                with temporary_room(), tempfile.SpooledTemporaryFile(READ_BYTES) as content:
                    write_parts(self._storage, header, cut, content)  # type: ignore[arg-type]
                    yield self._component(self._storage.upload, content)
                header = b""
            if whole:
                yield from (one.stored for one in run)

    def _component(self, make: Callable[[str, Any], Blob], content: Any) -> Blob:
        """Makes a component under a name of its own."""
        stem = self._name.rpartition("/")[2]
        name = f"{TEMPORARY}/{stem}.{self._attempt}.{len(self._made)}"
        self._made[name] = None
        component = self._made[name] = make(name, content)
        return component

    def _join(self, name: str, sources: list[Blob]) -> Blob:
        """Joins objects into a new one, and compares its checksum with the expected one."""
        from google.api_core.exceptions import BadRequest

        size, checksum = 0, 0
        for source in sources:
            checksum = crc32c_combine(checksum, checksum_from_base64(source.crc32c), source.size)
            size += source.size
        path = self._storage.path(name)
        with explained("composed", path):
            try:
                joined = self._join_objects(name, sources)
            except BadRequest as error:
                raise OutputError(
                    f"{self._storage.path(self._name)} cannot be composed"
                    f"{self._class_mismatch(sources)}: {reason(error)}. Run again with "
                    "--assembly stream, which does not compose."
                ) from error
        if joined is None:
            # The object exists already, or a source has changed.
            check = partial(check_unchanged, self._storage, self._name, sources, "generation")
            expected = checksum_to_base64(checksum)
            return self._storage.already_there(name, size, expected, if_missing=check)
        self._storage.check_same(joined, size, checksum_to_base64(checksum))
        return joined

    def _class_mismatch(self, sources: list[Blob]) -> str:
        """Names an object whose storage class differs from the first one's; such do not compose."""
        first = sources[0].storage_class
        for source in sources:
            if source.storage_class != first:
                path = self._storage.path(self._storage.name_of(source))
                return f" from {path}, whose storage class is {source.storage_class}, not {first}"
        return ""

    def _delete_components(self) -> None:
        # The name is this attempt's alone, so whatever is found there is the component.
        for name, made in self._made.items():
            try:
                component = made or self._storage.find(name)
                if component is not None:
                    self._storage.remove(component, _CLEANUP_SECONDS)
            except OutputError:
                # The job's final step deletes what is left.
                return
