"""What a format is: how it cuts a stream into files, and what it writes of each part."""

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.exports.export_options import ExportOptions, Side
from fineshards.exports.parts import (
    Part,
    PartReader,
    plan_by_documents,
    plan_by_rows,
    plan_by_tokens,
)
from fineshards.exports.record import FileRecord, PartRecord
from fineshards.exports.stream import Stream
from fineshards.flags import deciding
from fineshards.plugin_registry import Plugins
from fineshards.shards.npy import DTYPES
from fineshards.storage.base import Storage
from fineshards.storage.checksums import checksum_to_base64, write_with_checksum


@dataclass(frozen=True, kw_only=True)
class ExportSettings(ExportOptions):
    """The options of an export in effect, and what formats need to know of the dataset.

    eot: where the EOT is, begin or end. tokens_per_file: None for one file per split. skip:
    `redacted` if there are redacted documents and they are left out. columns: names of those to be
    written in addition to the format's own. eot_id: the id of the EOT. vocabulary: one more than
    the largest token id. tokenizer: name. masks: whether it is written which tokens of
    conversations are learned. package: that of the format, with its version; None for ours.
    """

    eot: Side
    dtype: Literal["uint16", "uint32"]
    token_column: str
    columns: tuple[str, ...]
    eot_id: int
    vocabulary: int
    tokenizer: str
    masks: bool
    package: str | None

    def recorded(self) -> dict[str, Any]:
        """What decides the bytes, by name: options as far as they are used, and the tokenizer."""
        names = (*deciding(ExportOptions), "masks", "package")
        used = {name: getattr(self, name) for name in names if getattr(self, name)}
        return used | {name: getattr(self, name) for name in ("eot_id", "vocabulary", "tokenizer")}

    @property
    def token_dtype(self) -> np.dtype[np.unsignedinteger]:
        """NumPy dtype of the tokens in the files, where the format has no other."""
        return DTYPES[self.dtype]


class Writer(io.RawIOBase):
    """A file that counts its bytes and computes their checksum while they are written."""

    def __init__(self, opened: Any) -> None:
        super().__init__()
        self._opened = opened
        self.bytes = self.crc32c = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.bytes

    def write(self, content: Any) -> int:
        """Writes bytes or an array."""
        found = np.frombuffer(content, np.uint8)
        self.crc32c = write_with_checksum(found, self._opened, self.crc32c)
        self.bytes += len(found)
        return len(found)


class Target:
    """The files that a part of an export writes."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.files: list[FileRecord] = []

    @contextmanager
    def create(self, name: str) -> Iterator[Writer]:
        """A file to write, maybe over a damaged one. It appears when the body ends well."""
        with self.storage.create(name, old=self.storage.version(name)) as opened:
            writer = Writer(opened)
            yield writer
        self.files.append(FileRecord(name, writer.bytes, checksum_to_base64(writer.crc32c)))

    def write(self, name: str, *contents: bytes | npt.NDArray[Any]) -> None:
        """Writes a small file."""
        with self.create(name) as file:
            for content in contents:
                file.write(content)


@dataclass(frozen=True, slots=True)
class Written:
    """What a format has written of a part.

    documents: None where it knows none. left_out: tokens that it has no room for. facts: JSON for
    `ExportFormat.finish`.
    """

    documents: int | None = None
    left_out: int = 0
    facts: dict[str, Any] | None = None


class ExportFormat(ABC):
    """A format that datasets are exported to.

    sides: where the EOT may be; the first one is the default. cuts: whether
    files end where documents end, or after a number of tokens. tokens_per_file: default, None for
    one file per split, or `shard` for that of a shard. rows: whether `--sequence_length` may be
    given.  dtypes: types of tokens that it holds. most_ids: how many
    different ids it holds. libraries: packages whose versions decide its bytes. revision: goes up
    when the same dataset gets other bytes. by_eot: whether readers find documents by their EOTs
    alone, so that redacted ones are left out by default. fixed_dtype: what tokens are stored as
    whatever `--dtype` says; empty where it decides. whole_documents: whether a split may not begin
    or end within a document. own_columns: those of its rows; empty if `--columns` has no meaning.

    offered_columns: those that `--columns` may name; empty for all of the sources. token_column:
    the name of the tokens without `--token_column`; empty if they have none. masks: whether it can
    say which tokens are learned. reading: how a trainer reads the split train of `FOLDER`.
    """

    sides: ClassVar[tuple[Side, ...]] = ("end", "begin")
    cuts: ClassVar[Literal["documents", "tokens"]] = "documents"
    tokens_per_file: ClassVar[int | Literal["shard"] | None] = 2_500_000_000
    rows: ClassVar[bool] = False
    dtypes: ClassVar[tuple[str, ...]] = ("uint32", "uint16")
    most_ids: ClassVar[int] = 1 << 32
    libraries: ClassVar[tuple[str, ...]] = ()
    revision: ClassVar[int] = 1
    by_eot: ClassVar[bool] = True
    fixed_dtype: ClassVar[str] = ""
    whole_documents: ClassVar[bool] = False
    own_columns: ClassVar[tuple[str, ...]] = ()
    offered_columns: ClassVar[tuple[str, ...]] = ()
    token_column: ClassVar[str] = ""
    masks: ClassVar[bool] = False
    reading: ClassVar[str]

    def plan(self, stream: Stream, settings: ExportSettings) -> list[Part]:
        """The parts of a stream: of whole rows with `--sequence_length`."""
        length, size = settings.sequence_length, settings.tokens_per_file
        if length is not None and size is not None:
            return plan_by_rows(stream, length, -(-size // length), settings.eot)
        plan = plan_by_documents if self.cuts == "documents" else plan_by_tokens
        return plan(stream, size, settings.eot)

    def check(self, settings: ExportSettings, parts: Sequence[Part]) -> None:
        """Raises UsageError for parts that the format cannot hold."""
        return  # By default, any parts fit.

    def check_columns(self, columns: pa.Schema) -> None:
        """Raises UsageError for columns of the sources that the format cannot hold."""
        return

    @abstractmethod
    def write(self, reader: PartReader, settings: ExportSettings, target: Target) -> Written:
        """Writes the files of a part."""

    def finish(
        self, split: str, records: Sequence[PartRecord], settings: ExportSettings
    ) -> Iterator[tuple[str, bytes]]:
        """The files that index all parts of a split, as (name, content)."""
        yield from ()

    def finish_all(
        self, records: Sequence[PartRecord], settings: ExportSettings
    ) -> Iterator[tuple[str, bytes]]:
        """The files that index all splits, as (name, content)."""
        yield from ()

    def advice(self, settings: ExportSettings, parts: Sequence[Part]) -> list[str]:
        """What the user of the files should know, one sentence per line."""
        return []


# By the name that `--to` has.
EXPORTS: Plugins[ExportFormat] = Plugins("exports", makes=True)


def write_tokens(reader: PartReader, file: Writer) -> None:
    """Writes all tokens of a part."""
    for chunk in reader.chunks():
        file.write(chunk)


def write_mask(reader: PartReader, file: Writer, dtype: npt.DTypeLike = np.bool_) -> None:
    """Writes whether each token of a part is learned: 1 or 0, of a type."""
    for chunk in reader.masks():
        file.write(chunk.astype(dtype))
