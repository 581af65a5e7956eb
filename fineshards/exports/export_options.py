"""What to export, and how: one object. The flags of `export` are its fields."""

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, MISSING, dataclass
from typing import Literal

from fineshards.flags import checked, flag, flags_of

Side = Literal["begin", "end"]
REDACTED: Literal["redacted"] = "redacted"

_WHAT = "what to write"
_SOURCES = "source files"


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What to export, and how. Each field is the flag of `fineshards export` of that name.

    Args:
        folder: The dataset's folder: local, gs:// or s3://.
        output: An empty folder for the files: local, gs:// or s3://.
        to: The format, such as megatron; docs/formats.md describes them.
        generation: Generation N, from 1, of a dataset that has grown. Default: the latest.
        split: One split, or all for both as one. Default: both, each on its own.
        eot: Whether the end-of-text token is before each document (begin) or after it (end).
            Default: what the format's trainers expect.
        tokens_per_file: Tokens per file, at least; the last one takes the rest. Default: that of
            the format.
        sequence_length: Tokens per row, in formats of rows.
        dtype: Type of the tokens. Default: that of the dataset, if the format holds it.
        skip: Leave out redacted documents, or none, which keeps them as runs of EOTs. Default:
            redacted for formats whose readers find documents by their EOTs: all but megatron,
            datatrove, torchtitan, and parquet and hf-arrow without --sequence_length.
        columns: Columns to write as well, with spaces or commas between them: those of the sources,
            such as url,dump, for text and text-jsonl; labels,attention_mask for parquet and
            hf-arrow.
        copies: Write how many duplicates of each document were dropped, for text and text-jsonl.
        token_column: The name of the tokens, for mds (default: tokens) and array_record (default:
            text).
        no_masks: Of conversations: do not say which tokens are learned, so that all are.
        s3_endpoint: The URL of the store that s3:// means. Default: AWS_ENDPOINT_URL, or Amazon S3.
        sources: Where the source files are now, as OLD=NEW: what was in the folder OLD is in NEW.
            May be repeated.
        trust_input: Read source files of the same size, but another time or version.
        workers: Threads. Default: one per usable core.

    Raises:
        UsageError: For a value out of range.
    """

    folder: str | os.PathLike[str]
    output: str | os.PathLike[str] = flag(MISSING, _WHAT, "FOLDER")
    to: str = flag(MISSING, _WHAT, "FORMAT", decides=True, plugins="exports")
    _: KW_ONLY
    generation: int | None = flag(None, "dataset", "N", least=1)
    split: Literal["test", "train", "all"] | None = flag(None, _WHAT)
    eot: Side | None = flag(None, _WHAT, decides=True)
    tokens_per_file: int | None = flag(None, _WHAT, "N", least=1, decides=True)
    sequence_length: int | None = flag(None, _WHAT, "T", least=1, decides=True)
    dtype: Literal["uint16", "uint32"] | None = flag(None, _WHAT, decides=True)
    skip: Literal["redacted", "none"] | None = flag(None, _WHAT, decides=True)
    columns: str | Sequence[str] = flag((), _WHAT, "NAME", decides=True)
    copies: bool = flag(False, _WHAT, decides=True)
    token_column: str | None = flag(None, _WHAT, "NAME", decides=True)
    no_masks: bool = flag(False, _WHAT, decides=True)
    s3_endpoint: str | None = flag(None, _WHAT, "URL")
    sources: str | Sequence[str] = flag((), _SOURCES, "OLD=NEW")
    trust_input: bool = flag(False, _SOURCES)
    workers: int | None = flag(None, "how to work", "N", least=1)

    def __post_init__(self) -> None:
        for option in flags_of(ExportOptions):
            if option.name in ("columns", "sources"):
                given = getattr(self, option.name)
                values = [given] if isinstance(given, str) else given or ()
                if option.name == "columns":
                    values = [name for names in values for name in names.split(",") if name]
                value: object = tuple(values)
            elif option.name == "output":
                continue
            else:
                value = checked(self, option)
            object.__setattr__(self, option.name, value)
