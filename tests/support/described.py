"""A dataset to publish, what is said of it, and what is then found beside it."""

import hashlib
import subprocess
from pathlib import Path

import pyarrow.parquet as pq

import fineshards
from fineshards.cli.cli import main
from fineshards.publishing.sums import CARD_NAME, CROISSANT_NAME, SUMS_NAME

NAMES = {CARD_NAME, CROISSANT_NAME, SUMS_NAME}
SAID = {
    "name": "Debian's help",
    "description": 'Help pages.\n\nIn *twenty* languages: a "quote", a # and a | too.',
    "license": "cc-by-sa-4.0",
    "creator": "person:Ada Lovelace",
    "url": "https://example.org/help",
    "date_published": "2026-11-30",
    "citation": "@misc{help,\n  title = {Help}\n}",
}


def build_help(sample: Path, folder: Path) -> Path:
    """Builds a dataset of 150 documents in two splits and some shards."""
    pq.write_table(pq.read_table(sample).slice(0, 150), folder / "help.parquet")
    flags = ["--shard_tokens=20k", "--test_fraction=0.1", "--split_key=id"]
    assert main(["build", f"--input={folder}/help.parquet", f"--output={folder}/out", *flags]) == 0
    return folder / "out"


def problems(folder: Path, **options: object) -> list[str]:
    """What verify finds."""
    return fineshards.verify(folder, **options).problems


def described(folder: Path) -> dict[str, bytes]:
    """The published files."""
    return {name: (folder / name).read_bytes() for name in NAMES}


def check_sums(folder: Path) -> int:
    """The exit code of sha256sum."""
    command = ["sha256sum", "--check", "--strict", "--quiet", SUMS_NAME]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def shards_of_rows(dataset: Path) -> list[int]:
    """The number of the shard of each row of the tables of train."""
    tables = sorted(dataset.glob("metadata/documents/train_*.parquet"))
    numbers = [
        [int(table.stem.partition("_")[2])] * pq.read_table(table).num_rows for table in tables
    ]
    assert len(numbers) > 1
    return [number for each in numbers for number in each]
