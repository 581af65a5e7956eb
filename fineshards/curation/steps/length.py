"""Drops documents that are too short or too long."""

from dataclasses import dataclass

from fineshards.curation.batch import Batch
from fineshards.curation.parameters import Count, check
from fineshards.curation.step import Judge, Outcome, above, below

_LIMITS = ("min_chars", "max_chars", "min_bytes", "max_bytes")


@dataclass(frozen=True)
class Length(Judge, name="length"):
    """Drops a document whose text is shorter or longer than given. The limits are allowed lengths.

    The reason is the first limit that is not kept, in the order below.

    Args:
        min_chars: The least number of characters (Unicode code points). None: no limit.
        max_chars: The largest number of characters.
        min_bytes: The least number of bytes in UTF-8.
        max_bytes: The largest number of bytes in UTF-8.

    Example:
        >>> Length(min_chars=4).apply(Batch.of_texts(["four", "six"])).reasons
        [None, 'min_chars']
    """

    min_chars: Count | None = None
    max_chars: Count | None = None
    min_bytes: Count | None = None
    max_bytes: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        given = {name: getattr(self, name) for name in _LIMITS}
        check(self.NAME, "min_chars", None, set(given.values()) != {None}, "at least one limit")
        for unit in ("chars", "bytes"):
            least, most = given[f"min_{unit}"], given[f"max_{unit}"]
            fits = least is None or most is None or least <= most
            check(self.NAME, f"max_{unit}", most, fits, f"at least min_{unit}, {least}")

    def apply(self, batch: Batch) -> Outcome:
        return Outcome(list(map(self._judge, batch.strings)))

    def _judge(self, text: str) -> str | None:
        lengths = {"chars": len(text), "bytes": len(text.encode())}
        for name in _LIMITS:
            limit, (side, _, unit) = getattr(self, name), name.partition("_")
            length, what = lengths[unit], "characters" if unit == "chars" else unit
            if limit is not None and side == "min" and length < limit:
                return below(name, length, what, limit, name)
            if limit is not None and side == "max" and length > limit:
                return above(name, length, what, limit, name)
        return None
