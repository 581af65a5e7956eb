"""A step of recipes: drops documents with too few characters of ASCII."""

from dataclasses import dataclass

from fineshards.plugins import Batch, Judge, Outcome, UsageError


@dataclass(frozen=True)
class Ascii(Judge, name="ascii"):
    """Drops documents with too small a share of ASCII.

    Args:
        min_share: The least share of the characters, from 0 to 1.

    Example:
        >>> from fineshards.plugins import Batch
        >>> Ascii(min_share=0.5).apply(Batch.of_texts(["naïve", "中文 a"])).reasons
        [None, 'ascii']
    """

    min_share: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.min_share <= 1:
            raise UsageError(f"ascii: min_share is {self.min_share}, expected a share up to 1.")

    def apply(self, batch: Batch) -> Outcome:
        return Outcome([None if self._fits(text) else "ascii" for text in batch.strings])

    def _fits(self, text: str) -> bool:
        return sum(map(str.isascii, text)) >= self.min_share * len(text)
