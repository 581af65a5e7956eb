"""Kills a redaction before each of its file operations in turn, reads the dataset, and resumes.

Between the two every command that reads the dataset is asked: none may while the redaction is
unfinished, and none may change a file.

Runs as a separate process because it forks, as `crash_driver`. Prints a JSON list with one entry
per crash.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np

from fineshards.cli.cli import main
from fineshards.loader.token_dataset import TokenDataset
from fineshards.maintenance.redact import redact
from fineshards.verification.verify import verify
from support import crash_driver
from support.crash_driver import child, is_killed
from support.oracle import files_in

crash_driver.OPERATIONS = ("fsync", "replace", "rmdir", "link", "unlink")
DOCUMENTS = (3, 17, 40)


COMMANDS = (
    ("export", "OUT", "--output=EXPORT", "--to=raw"),
    ("inspect", "OUT"),
    ("find", "OUT", "--id=secret"),
    ("explain", "OUT", "--document=3", "--sequence_length=64"),
    ("report", "OUT", "--output=REPORT"),
    ("stats", "OUT"),
    ("verify", "OUT"),
    ("repair", "OUT"),
    ("publish", "OUT"),
)


def refused(dataset: Path, scratch: Path) -> int:
    """Asks all commands for a dataset whose redaction is unfinished; 0 if all say so."""
    before, wrong = files_in(dataset), 0
    places = {"OUT": str(dataset), "EXPORT": str(scratch / "export"), "REPORT": str(scratch / "r")}
    for command in COMMANDS:
        given = [command[0]]
        for word in command[1:]:
            for name, place in places.items():
                word = word.replace(name, place)
            given.append(word)
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            code = main(given)
        if not code or "is not finished, so it cannot be used now" not in said.getvalue():
            print(given, code, said.getvalue(), file=sys.stderr)
            wrong += 1
    return wrong + (files_in(dataset) != before) + any(scratch.iterdir())


def run(finished: Path, scratch: Path, step: int) -> None:
    """Redacts copies of a dataset."""
    whole = scratch / "whole"
    shutil.copytree(finished, whole)
    before = tokens_of(whole)
    redact(str(whole), documents=DOCUMENTS)
    after = tokens_of(whole)
    results, number = [], 0
    while True:
        dataset = scratch / f"crash-{number}"
        shutil.copytree(finished, dataset)

        def overwrite(dataset: Path = dataset) -> int:
            redact(str(dataset), documents=DOCUMENTS)
            return 0

        if not is_killed(number, overwrite):
            break

        def look(dataset: Path = dataset) -> int:
            found = tokens_of(dataset)
            # Each token is what it was, or what it is to be.
            return int(not np.all((found == before) | (found == after)))

        unfinished = (dataset / "metadata/generations/0003.job.json").exists()
        unfinished &= not (dataset / "metadata/generations/0003.json").exists()
        places = scratch / f"places-{number}"
        places.mkdir()

        def ask(dataset: Path = dataset, places: Path = places) -> int:
            return refused(dataset, places)

        def resume(dataset: Path = dataset) -> int:
            redact(str(dataset), documents=DOCUMENTS)
            return int(not verify(dataset).ok)

        results.append(
            {
                "operation": number,
                "read": child(look),
                "unfinished": unfinished,
                "refused": child(ask) if unfinished and number % 10 == 2 else 0,
                "resumed": child(resume),
                "same": files_in(dataset) == files_in(whole),
            }
        )
        shutil.rmtree(dataset)
        number += step
    json.dump(results, sys.stdout)


def tokens_of(dataset: Path) -> np.ndarray:
    """All tokens of the train split, as a reader of generation 2 sees them."""
    opened = TokenDataset(dataset, sequence_length=1, generation=2)
    return opened.gather(np.arange(len(opened)))


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
