"""A format of an export: how it cuts a stream into files, and how it writes each part."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.errors import UsageError
from fineshards.exports.export_options import REDACTED, ExportOptions, Side
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
from fineshards.shards.block_writer import CheckedFile
from fineshards.shards.job.settings import Settings
from fineshards.shards.npy import DTYPES
from fineshards.storage.base import Storage
from fineshards.storage.checksums import checksum_to_base64


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


class Target:
    """The files that a part of an export writes."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.files: list[FileRecord] = []

    @contextmanager
    def create(self, name: str) -> Iterator[CheckedFile]:
        """A file to write, maybe over a damaged one. It appears when the body ends well."""
        with self.storage.create(name, old=self.storage.version(name)) as opened:
            file = CheckedFile(name, opened)
            yield file
        self.files.append(FileRecord(name, file.size, checksum_to_base64(file.checksum)))

    def write(self, name: str, contents: bytes | Iterable[bytes | npt.NDArray[Any]]) -> None:
        """Writes a file of its content, or of several contents one after the other."""
        with self.create(name) as file:
            for content in [contents] if isinstance(contents, bytes) else contents:
                file.write(content)


@dataclass(frozen=True, slots=True)
class Written:
    """Counts and facts of a part that a format has written.

    documents: None where it knows none. left_out: tokens that it has no room for. facts: JSON for
    `ExportFormat.finish`.
    """

    documents: int | None = None
    left_out: int = 0
    facts: dict[str, Any] | None = None


class ExportFormat(ABC):
    """A format that datasets are exported to.

    Of files: reading: how a trainer reads the split train of `FOLDER`. cuts: whether files end
    where documents end, or after a number of tokens. tokens_per_file: default, None for one file
    per split, or `shard` for that of a shard. libraries: packages whose versions decide its bytes.
    revision: goes up when the same dataset gets other bytes.

    Of tokens: sides: where the EOT may be; the first one is the default. dtypes: their types.
    most_ids: how many different ids it holds. fixed_dtype: what tokens are stored as whatever
    `--dtype` says; empty where it decides. masks: whether it can say which tokens are learned.

    Of documents and rows: by_eot: whether readers find documents by their EOTs alone, so that
    redacted ones are left out by default. whole_documents: whether a split may not begin or end
    within a document. rows: whether `--sequence_length` may be given. own_columns: those of its
    rows; empty if `--columns` has no meaning. offered_columns: those that `--columns` may name;
    empty for all of the sources. token_column: the name of the tokens without `--token_column`;
    empty if they have none.
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
        self, parts: Mapping[str, Sequence[PartRecord]], settings: ExportSettings
    ) -> Iterator[tuple[str, bytes]]:
        """The files that index all parts, as (name, content). parts: of each split."""
        yield from ()

    def advice(self, settings: ExportSettings, parts: Sequence[Part]) -> list[str]:
        """Advice for the user of the files, one sentence per line."""
        return []


# By the name that `--to` has.
EXPORTS: Plugins[ExportFormat] = Plugins("exports", makes=True)


def settle(options: ExportOptions, dataset: Settings, redacted: bool = False) -> ExportSettings:
    """The options in effect; raises UsageError for those that the format cannot have.

    redacted: whether the dataset has redacted documents.
    """
    kind, tokenizer = EXPORTS[options.to], dataset.tokenizer
    wanted = options.dtype or (dataset.dtype if dataset.dtype in kind.dtypes else kind.dtypes[0])
    _check_flags(options, kind)
    if wanted not in kind.dtypes:
        raise UsageError(f"--dtype {wanted}: --to {options.to} holds {kind.dtypes[0]} only.")
    if dataset.fim is not None and kind.fixed_dtype == "no tokens":
        raise UsageError(
            f"--to {options.to}: documents were rearranged by --fim, so their tokens are not those "
            "of a text. Build without --fim, and export that."
        )
    most = min(kind.most_ids, 1 << 16 if wanted == "uint16" else 1 << 32)
    if tokenizer.size > most:
        other = " Use --dtype uint32." if options.dtype and "uint32" in kind.dtypes else ""
        raise UsageError(
            f"--to {options.to} holds ids up to {most - 1:,} ({wanted}), and those of "
            f"{tokenizer.name} go up to {tokenizer.size - 1:,}.{other}"
        )
    per_file = options.tokens_per_file or (
        dataset.shard_tokens if kind.tokens_per_file == "shard" else kind.tokens_per_file
    )
    in_effect = {
        "eot": options.eot or kind.sides[0],
        "dtype": wanted,
        "tokens_per_file": per_file,
        "token_column": options.token_column or kind.token_column,
        "skip": _skip(options, kind) if redacted else None,
        "columns": _columns(options, kind, dataset),
        "copies": _copies(options, kind, dataset),
        "eot_id": tokenizer.eot,
        "vocabulary": tokenizer.size,
        "tokenizer": tokenizer.name,
        "masks": _masks(options, kind, dataset),
        "package": EXPORTS.package(options.to),
    }
    given = {field.name: getattr(options, field.name) for field in fields(options)}
    return ExportSettings(**given | in_effect)


def _skip(options: ExportOptions, kind: ExportFormat) -> str | None:
    """REDACTED if redacted documents are left out; else None."""
    # Rows of so many tokens say nothing of documents either.
    by_default = kind.by_eot or options.sequence_length is not None
    wanted = options.skip or (REDACTED if by_default else None)
    return wanted if wanted == REDACTED else None


def _columns(options: ExportOptions, kind: ExportFormat, dataset: Settings) -> tuple[str, ...]:
    """The columns that are asked for in addition to the format's own."""
    taken = [*kind.own_columns, *(dataset.recipe.scores if dataset.recipe else ())]
    names = tuple(options.columns)
    if names and not kind.own_columns:
        raise UsageError(f"--columns: --to {options.to} has tokens only. Use --to text.")
    for name in names:
        if kind.offered_columns and name not in kind.offered_columns:
            raise UsageError(
                f"--columns {name}: --to {options.to} has {' and '.join(kind.offered_columns)}. "
                "Use --to text for columns of the sources."
            )
        if name in taken or names.count(name) > 1:
            raise UsageError(f"--columns: there is a column {name!r} already. Leave it out.")
    if dataset.chat and not options.no_masks and "labels" in {*kind.offered_columns} - {*names}:
        return (*names, "labels")
    return names


def _masks(options: ExportOptions, kind: ExportFormat, dataset: Settings) -> bool:
    """Whether it is written which tokens are learned."""
    if dataset.chat is None and options.no_masks:
        raise UsageError("--no_masks: only datasets of conversations have masks. Leave it out.")
    if dataset.chat is None or options.no_masks:
        return False
    if not kind.masks:
        able = [name for name, format_ in EXPORTS.items() if format_.masks]
        raise UsageError(
            f"--to {options.to} cannot say which tokens of a conversation are learned, so trainers "
            f"would learn prompts too. Use {', '.join(able)}, or say --no_masks."
        )
    return True


def _copies(options: ExportOptions, kind: ExportFormat, dataset: Settings) -> bool:
    """Whether duplicates are counted."""
    if options.copies and (not kind.own_columns or kind.offered_columns):
        raise UsageError(f"--copies: --to {options.to} has tokens only. Use --to text.")
    if options.copies and not (dataset.recipe and dataset.recipe.keyed):
        raise UsageError("--copies: the recipe of the dataset drops no duplicates. Leave it out.")
    return options.copies


def _check_flags(options: ExportOptions, kind: ExportFormat) -> None:
    """Raises UsageError for flags that have no meaning for a format."""
    to = f"--to {options.to}"
    if options.eot is not None and options.eot not in kind.sides:
        raise UsageError(f"--eot {options.eot}: {to} has the EOT at the {kind.sides[0]} only.")
    if options.dtype and kind.fixed_dtype:
        raise UsageError(f"--dtype: {to} has {kind.fixed_dtype}. Leave it out.")
    if kind.whole_documents and options.skip not in (None, REDACTED):
        raise UsageError(f"--skip {options.skip}: a redacted document has no text. Leave it out.")
    if options.token_column is not None and not kind.token_column:
        raise UsageError(f"--token_column has no meaning for {to}. Leave it out.")
    if not kind.rows and options.sequence_length is not None:
        raise UsageError(f"--sequence_length: {to} has no rows. Leave it out.")
