"""What to export, and how: one object, whose values decide the bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fineshards.errors import UsageError, quoted

Side = Literal["begin", "end"]
SIDES: tuple[Side, ...] = ("begin", "end")
SPLIT_CHOICES = ("test", "train", "all")
REDACTED: Literal["redacted"] = "redacted"
SKIPS = (REDACTED, "none")


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The options of an export, as the user gave them; None for the default of the format.

    Args:
        to: Format, such as `megatron`.
        split: `test`, `train`, or `all` for both as one stream. Default: both, each on its own.
        eot: Whether the end-of-text token is before each document or after it.
        tokens_per_file: Tokens per file, at least; the last file may have up to twice as many.
        sequence_length: Tokens per row, for formats of rows.
        dtype: `uint16` or `uint32`; that of the dataset by default.
        link: Make no copy of the tokens: point into the dataset's shards.
        skip: `redacted` to leave out redacted documents, or `none` to keep them as runs of EOTs.
        columns: Columns to write as well, with commas between them: those of the sources for text,
            `labels` and `attention_mask` for `parquet` and `hf-arrow`.
        copies: Whether to write how many duplicates of each document were dropped, for text.
        token_column: The name of the tokens in each row, for `mds` and `array_record`.
        compression: `zstd` for compressed files, for `mds`.
        no_masks: Leave out which tokens of conversations are learned.

    Raises:
        UsageError: For a value out of range.
    """

    to: str
    split: str | None = None
    eot: Side | None = None
    tokens_per_file: int | None = None
    sequence_length: int | None = None
    dtype: str | None = None
    link: bool = False
    skip: str | None = None
    columns: str | None = None
    copies: bool = False
    token_column: str | None = None
    compression: str | None = None
    no_masks: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (
            ("split", SPLIT_CHOICES),
            ("eot", SIDES),
            ("dtype", ("uint16", "uint32")),
            ("skip", SKIPS),
            ("compression", ("zstd",)),
        ):
            value = getattr(self, name)
            if value is not None and value not in allowed:
                raise UsageError(f"--{name} must be {' or '.join(allowed)}, got {quoted(value)}.")
        for name in ("tokens_per_file", "sequence_length"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 1 <= value < 1 << 63):
                raise UsageError(f"--{name} must be a whole number from 1, got {quoted(value)}.")
