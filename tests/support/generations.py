"""A dataset of three generations, and what it is made of."""

import shutil
from pathlib import Path

from fineshards import TokenDataset
from support.growing import append, build, made_up_rows

ROWS = made_up_rows(4, 90)
FLAGS = ("--shard_tokens=700", "--test_fraction=0.4")
LENGTH = 32


def make_generations(folder: Path, parts: list[Path]) -> list[Path]:
    """Copies of a dataset as it was in its generations 1, 2 and 3."""
    build(folder / "1", parts[0], *FLAGS)
    for number in (2, 3):
        shutil.copytree(folder / str(number - 1), folder / str(number))
        append(folder / str(number), parts[number - 1])
    return [folder / str(number) for number in (1, 2, 3)]


def opened(folder: Path, split: str = "train", generation: int | None = None) -> TokenDataset:
    """A split of a generation, by default of the latest, in samples of LENGTH tokens."""
    return TokenDataset(folder, split, sequence_length=LENGTH, generation=generation)
