"""Steps of recipes beside datatrove's, on the same documents, one core each.

Run as `python -m benchmarks.curation FILES` in the environment that has datatrove (`make
bench-curation`). Each contestant is a process of its own. They take turns, some documents at a
time, so that drift affects all the same, and processor time is what counts. The first round begins
with nothing known: no word has been seen. `again` is the same documents once more, as in a long
job, where nearly all words have been seen.

To compare other steps, add a pair of functions to COMPARED. Each makes a function from a batch to
the texts that are kept, in order.
"""

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.machine import describe_commit, describe_machine, describe_versions
from fineshards.curation.batch import Batch

Judged = Callable[[Batch], Sequence[str]]

# Documents per turn.
TURN = 200
ROOT = Path(__file__).parents[1]


def fineweb() -> Judged:
    """FineWeb's filters on words and lines, in its order, by our steps."""
    from fineshards.curation.steps.c4_quality import C4Quality
    from fineshards.curation.steps.fineweb_quality import FineWebQuality
    from fineshards.curation.steps.gopher_quality import GopherQuality
    from fineshards.curation.steps.gopher_repetition import GopherRepetition

    steps = [
        GopherRepetition(),
        GopherQuality(),
        C4Quality(filter_no_terminal_punct=False),
        FineWebQuality(),
    ]

    def judge(batch: Batch) -> Sequence[str]:
        for step in steps:
            outcome = step.apply(batch)
            if outcome.texts is not None:
                batch = batch.with_texts(outcome.texts)
            if outcome.reasons is not None:
                batch = batch.keep(np.array([reason is None for reason in outcome.reasons]))
        return batch.strings

    return judge


def datatrove_fineweb() -> Judged:
    """The same by datatrove's blocks, called for each document as its pipeline does."""
    from datatrove.data import Document
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )

    filters = [
        GopherRepetitionFilter(),
        GopherQualityFilter(),
        C4QualityFilter(filter_no_terminal_punct=False),
        FineWebQualityFilter(),
    ]

    def judge(batch: Batch) -> Sequence[str]:
        documents = [Document(text=text, id="") for text in batch.strings]
        return [
            document.text
            for document in documents
            if all(one.filter(document) is True for one in filters)
        ]

    return judge


COMPARED: dict[str, tuple[Callable[[], Judged], Callable[[], Judged]]] = {
    "fineweb": (fineweb, datatrove_fineweb),
}


@dataclass(frozen=True)
class Measured:
    """A contestant's turns, added up. memory_bytes: its process at its largest, with libraries."""

    name: str
    documents: int
    text_bytes: int
    seconds: float
    memory_bytes: int

    @property
    def documents_per_second(self) -> float:
        """Documents per second of processor time."""
        return self.documents / self.seconds

    @property
    def megabytes_per_second(self) -> float:
        """Megabytes of text per second of processor time."""
        return self.text_bytes / self.seconds / 1e6


def serve(make: Callable[[], Judged], connection: Connection) -> None:
    """A contestant's process: answers texts with what it keeps, processor seconds, and memory."""
    judge = make()
    judge(Batch.of_texts(["What a library loads when it is first used is not measured."]))
    while (texts := connection.recv()) is not None:
        batch = Batch.of_texts(texts)
        assert batch.strings
        began = time.process_time()
        kept = judge(batch)
        seconds = time.process_time() - began
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        connection.send((list(kept), seconds, memory))


def compare(name: str, texts: Sequence[str]) -> list[Measured]:
    """Measures the contestants of a comparison, ours once more with what it then knows.

    Raises SystemExit if they do not keep the same texts.
    """
    context = get_context("spawn")
    connections = []
    for make in COMPARED[name]:
        here, there = context.Pipe()
        context.Process(target=serve, args=(make, there), daemon=True).start()
        connections.append(here)
    ours, theirs = connections
    seconds, memory = [0.0, 0.0, 0.0], [0, 0, 0]
    turns = [texts[start : start + TURN] for start in range(0, len(texts), TURN)]
    for number, turn in enumerate(turns):
        kept = []
        for index, connection in enumerate(connections):
            connection.send(turn)
            answer, took, memory[index] = connection.recv()
            seconds[index] += took
            kept.append(answer)
        if kept[0] != kept[1]:
            sys.exit(f"{name}: the contestants keep other texts of documents {number * TURN} ff.")
    theirs.send(None)
    for turn in turns:
        ours.send(turn)
        _, took, memory[2] = ours.recv()
        seconds[2] += took
    ours.send(None)
    size = sum(len(text.encode()) for text in texts)
    names = ("fineshards", "datatrove", "fineshards, again")
    return [
        Measured(one, len(texts), size, took, largest)
        for one, took, largest in zip(names, seconds, memory, strict=True)
    ]


def read_texts(paths: Sequence[str], megabytes: float) -> Iterator[str]:
    """The texts of Parquet files, in turn from each, until they have so many megabytes."""
    batches = [pq.ParquetFile(path).iter_batches(TURN, columns=["text"]) for path in paths]
    size = 0
    while batches:
        for one in list(batches):
            batch = next(one, None)
            if batch is None:
                batches.remove(one)
                continue
            size += batch.nbytes
            yield from batch["text"].cast(pa.large_string()).to_pylist()
            if size > megabytes * 1e6:
                return


def main() -> None:
    """Prints a table, and writes the figures as JSON if asked to."""
    parser = argparse.ArgumentParser(description="Steps of recipes beside datatrove's.")
    parser.add_argument("files", nargs="+", help="Parquet files with a column `text`")
    parser.add_argument("--only", choices=COMPARED, action="append", help="compare only this")
    parser.add_argument("--megabytes", type=float, default=20, help="of text; default: 20")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    given = parser.parse_args()
    texts = list(read_texts(given.files, given.megabytes))
    results = {}
    for name in given.only or COMPARED:
        measured = compare(name, texts)
        theirs = measured[1]
        print(f"\n{name}: {theirs.documents:,} documents, {theirs.text_bytes / 1e6:.1f} MB")
        for one in measured:
            print(
                f"  {one.name:18} {one.documents_per_second:9,.0f} documents/s"
                f" {one.megabytes_per_second:7.2f} MB/s {theirs.seconds / one.seconds:6.1f} times"
                f" datatrove {one.memory_bytes / 1e6:6,.0f} MB of memory"
            )
        results[name] = [asdict(one) for one in measured]
    if given.json:
        content = {
            "machine": describe_machine(ROOT),
            "versions": describe_versions(sys.executable, ("datatrove", "numpy", "spacy")),
            "commit": describe_commit(ROOT),
            "load": os.getloadavg(),
            "results": results,
        }
        given.json.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
