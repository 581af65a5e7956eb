"""Kills an append before each of its file operations in turn, looks at the dataset, and resumes.

Runs as a separate process because it forks, as `crash_driver`. Prints a JSON list with one entry
per crash.
"""

from __future__ import annotations

import json
import shutil
import sys
from functools import partial
from pathlib import Path

from fineshards.cli.cli import main
from fineshards.loader.token_dataset import TokenDataset
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage
from fineshards.verification.verify import verify
from support import crash_driver
from support.crash_driver import child, is_killed
from support.encoding import build_inherited_encoder
from support.growing import content_of, tokens_in

# An append also claims its generation by a link.
crash_driver.OPERATIONS = ("fsync", "replace", "rmdir", "link", "unlink")


def problems_of(dataset: Path, expected: list[dict[str, list[int]]]) -> list[str]:
    """What a reader finds wrong with a dataset that grows.

    expected: the tokens of each split, by generation.
    """
    manifest = Manifest.load_finished(open_storage(str(dataset)))
    found = []
    for generation in range(1, manifest.generation + 1):
        for split, tokens in expected[generation - 1].items():
            opened = TokenDataset(dataset, split, sequence_length=1, generation=generation)
            if opened.generation != generation or tokens_in(opened) != tokens:
                found.append(f"generation {generation} has other tokens in {split}")
            opened.documents(len(opened) - 1)
        verdict = verify(dataset, generation=generation)
        found += [f"generation {generation}: {problem}" for problem in verdict.problems]
    return found


def run(scratch: Path, first: int, step: int, flags: list[str]) -> None:
    """Appends to copies of `scratch/finished`; `scratch/grown` is what each is to become."""
    build_inherited_encoder()
    finished, grown = scratch / "finished", scratch / "grown"
    expected = [
        {
            split: tokens_in(TokenDataset(folder, split, sequence_length=1))
            for split in ("test", "train")
        }
        for folder in (finished, grown)
    ]
    results = []
    number = first
    while True:
        dataset = scratch / f"crash-{number}"
        shutil.copytree(finished, dataset)
        command = ["append", str(dataset), *flags]
        if not is_killed(number, partial(main, command)):
            break
        report = scratch / "report.json"
        report.write_text('["the reader died"]')

        def look(dataset: Path = dataset, report: Path = report) -> int:
            report.write_text(json.dumps(problems_of(dataset, expected)))
            return 0

        child(look)
        problems = json.loads(report.read_text())
        resumed = child(lambda command=command: main(command))  # type: ignore[misc]
        if not resumed:
            report.write_text('["the reader died after the append was resumed"]')
            child(look)
            problems += json.loads(report.read_text())
        results.append(
            {
                "operation": number,
                "problems": problems,
                "status": resumed,
                "same": content_of(dataset) == content_of(grown),
                "left": (dataset / "checkpoints").exists(),
            }
        )
        shutil.rmtree(dataset)
        number += step
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
