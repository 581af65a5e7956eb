"""What tests of redactions look for: the documents of a dataset, and the tokens of one text."""

import shutil
from pathlib import Path

import numpy as np

from fineshards.loader.token_dataset import TokenDataset
from fineshards.maintenance.redact import redact
from fineshards.shards.dataset_files import Dataset
from fineshards.storage.open import open_storage
from support.kills import crashes_of
from support.oracle import ENCODING, files_in

SECRET = "the number of the safe is four hundred and twelve"


def documents_of(folder: Path, generation: int | None = None) -> list[tuple[str, int, list[int]]]:
    """(file, row, tokens) of each document, by number."""
    opened = Dataset.open(open_storage(str(folder)), generation)
    count = opened.manifest.totals["documents"]
    found = [opened.document(number) for number in range(count)]
    return [(each.file, each.row, each.tokens.tolist()) for each in found]


def secret_tokens() -> bytes:
    """The tokens of SECRET as they are in a shard, within a longer text."""
    return np.array(ENCODING.encode_ordinary(f" {SECRET}")[1:-1], "<u4").tobytes()


def tokens_of(dataset: Path) -> np.ndarray:
    """All tokens of the train split, as a reader of generation 2 sees them."""
    opened = TokenDataset(dataset, sequence_length=1, generation=2)
    return opened.gather(np.arange(len(opened)))


def look(dataset: Path) -> list[bool]:
    """Whether each token is what it was or is to be, and whether a redaction is unfinished."""
    found, before, after = (
        tokens_of(folder) for folder in (dataset, *map(dataset.with_name, ("before", "after")))
    )
    record = dataset / "metadata/generations/0003.job.json"
    finished = record.with_name("0003.json").exists()
    return [bool(np.all((found == before) | (found == after))), record.exists() and not finished]


def kill_redactions(dataset: Path, folder: Path, step: int) -> int:
    """Kills redactions of a dataset; returns how many of them were unfinished."""
    for name in ("before", "after"):
        shutil.copytree(dataset, folder / name)
    redact(str(folder / "after"), documents=[3, 17, 40])
    command = ["redact", "OUT", "--documents", "3", "17", "40"]
    crashes = crashes_of(folder, command, step=step, look="support.redacted:look")
    for crash in crashes:
        assert (crash["status"], crash["seen"][0], crash["seen_after"]) == (0, True, [True, False])
        assert files_in(Path(crash["folder"])) == files_in(folder / "after"), crash
    return sum(crash["seen"][1] for crash in crashes)
