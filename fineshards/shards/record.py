"""Records: what is stored as JSON. Each is of one type, which msgspec encodes, decodes and checks.

A file of one record begins with its format, and is closed by its seal: the last line but one is the
CRC-32C, in base64 as Cloud Storage writes it, of all that is before that line.

    {
     "format": "fineshards manifest 4",
     …
     "crc32c": "yZRlqg=="
    }
"""

import hashlib
import os
from io import BytesIO
from threading import Lock
from typing import Annotated, ClassVar, Self, TypeVar

import msgspec
from msgspec import Meta, Struct, json
from msgspec.structs import replace as replace  # a record with other values

from fineshards.errors import OutputError, clipped

# Increment when the same input and options would give other bytes, blocks or checkpoints.
# Records and manifests of other versions are refused.
FORMAT_VERSION = 4

# Counts, sizes and positions. Larger ones would overflow in numpy.
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
# As Cloud Storage writes it: base64 of big-endian bytes.
Crc32c = Annotated[str, Meta(min_length=8, max_length=8)]

_SEAL = b' "crc32c": '
_Kind = TypeVar("_Kind")
_describing = Lock()
os.register_at_fork(
    before=_describing.acquire,
    after_in_parent=_describing.release,
    after_in_child=_describing.release,
)


class Record(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """Base of what is stored as JSON.

    Fields that have their default are not stored. msgspec knows a default by identity, so it must
    be None, False, 0 or empty.
    """


class RecordFile(Record, frozen=True):
    """Base of records that are files of their own.

    IF_DAMAGED: what a user can do if the file is damaged. IF_OTHER_VERSION: if another version of
    fineshards wrote it.
    """

    IF_DAMAGED: ClassVar[str]
    IF_OTHER_VERSION: ClassVar[str]

    def to_bytes(self) -> bytes:
        """The content of the file."""
        return sealed(json.encode(self))

    @classmethod
    def parse(cls, stored: bytes, path: str) -> Self:
        """The record in a file's content; raises OutputError, with its path, for other content."""
        holds, wanted = seal_holds(stored), cls.__struct_config__.tag
        try:
            if holds is not False:
                return unsealed(stored, cls)
        except (msgspec.MsgspecError, RecursionError) as error:
            why = clipped(str(error))
            if why.endswith(("`$.format`", "missing required field `format`")):
                raise OutputError(
                    f"{path} is not of the format {wanted!r} ({why}). {cls.IF_OTHER_VERSION}"
                ) from error
            raise OutputError(f"{path} is damaged: {why}. {cls.IF_DAMAGED}") from error
        raise OutputError(f"{path} is damaged. {cls.IF_DAMAGED}")


def canonical(value: object) -> bytes:
    """A value as canonical JSON, of which fingerprints are: keys sorted, without white space."""
    return json.encode(msgspec.to_builtins(value, order="sorted"))


def sha256_of(value: object) -> str:
    """SHA-256, as hex, of a value's canonical JSON."""
    return hashlib.sha256(canonical(value)).hexdigest()


def sealed(content: bytes) -> bytes:
    """A JSON object, indented, with its seal, without a line end after it."""
    # Imported here because it needs google_crc32c, which a read-only install may lack.
    from fineshards.storage.checksums import checksum_to_base64, crc32c

    checked = json.format(content, indent=1).removesuffix(b"\n}") + b",\n"
    return checked + b'%s"%s"\n}' % (_SEAL, checksum_to_base64(crc32c(checked)).encode())


def seal_holds(stored: bytes) -> bool | None:
    """Whether a file is as `sealed` made it; None if google_crc32c is not installed."""
    try:
        from fineshards.storage.checksums import checksum_to_base64, file_checksum
    except ModuleNotFoundError:
        return None
    at = max(stored.rfind(_SEAL), 0)
    checksum = checksum_to_base64(file_checksum(BytesIO(stored), 0, at))
    return stored[at:] == b'%s"%s"\n}' % (_SEAL, checksum.encode())


def unsealed(stored: bytes, kind: type[_Kind]) -> _Kind:
    """The record that was sealed; raises MsgspecError or RecursionError for other content."""
    content = stored[: max(stored.rfind(_SEAL), 0)].removesuffix(b",\n") + b"}"
    return json.decode(content, type=described(kind))


def described(kind: type[_Kind]) -> type[_Kind]:
    """A type that msgspec may decode in any thread: describing one in several crashes it."""
    with _describing:
        json.Decoder(kind)
    return kind
