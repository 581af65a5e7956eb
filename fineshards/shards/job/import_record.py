"""What a dataset made of existing tokens was made from (`fineshards import`)."""

from __future__ import annotations

from dataclasses import dataclass

BEGIN, END = "begin", "end"


@dataclass(frozen=True, slots=True)
class Imported:
    """How the token files of an import are read.

    Args:
        kind: The layout of the files, as `--from` names it.
        eot_side: `begin` if each document begins with its EOT, `end` if it ends with it.
        eot: Id of the EOT, that of the tokenizer.
        vocabulary: One more than the largest id, that of the tokenizer.
        dtype: Type of the tokens in files that do not say it; None for other layouts.

    Example:
        >>> from fineshards.shards.job.import_record import Imported
        >>> Imported("olmo", "end", 50256, 50257, "uint16").dtype
        'uint16'
    """

    kind: str
    eot_side: str
    eot: int
    vocabulary: int
    dtype: str | None
