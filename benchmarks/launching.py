"""Models the launching process of a local run: many workers, whose tasks are empty.

`python -m benchmarks.launching [WORKERS] [TASKS]` hands out the blocks of a dataset of FineWeb's
kind. The workers answer at once, with made-up counts. So the processor time of this process is
what its dispatcher and Beam take for a task, whatever else the machine does.
"""

import resource
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from benchmarks.made_up import FINEWEB, Size, file_summaries
from benchmarks.scale import RULE
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.counts import BlockSummary
from fineshards.shards.job.records import Block, SourceFile
from fineshards.shards.job.settings import Columns, Settings, Tokenizer
from fineshards.storage.open import open_storage
from fineshards.worker.pool import Pool
from fineshards.worker.tasks import TASKS, finish_block
from fineshards.worker.work import Work

# What a worker encodes in a second, at most, and the least text of a block: docs/performance.md.
_WARM_BYTES, _LEAST_BYTES = 200_000_000, 16 << 20


def run(workers: int, tasks: int) -> None:
    """Prints tasks per second, and Beam's share."""
    size = FINEWEB.shrunk(FINEWEB.blocks // tasks)
    found = {
        (each.file, each.index): each for file in range(size.files) for each in _made(size, file)
    }
    pairs = [(_file(number), _block(each)) for (number, _), each in sorted(found.items())]
    # Workers are forked later, and have it too.
    _, doing = TASKS["finish_block"]
    TASKS["finish_block"] = lambda _, __, block: (found[block.file, block.index], False), doing
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        checkpoints = Checkpoints(open_storage(folder), "0" * 64)
        tokenizer = Tokenizer("tiktoken", "none", "", "", (("eot", 0),), 0, 1, "")
        columns = Columns("text", "id", False)
        work = Work(checkpoints, Settings(columns, tokenizer, size.shard_tokens, RULE, 1, "uint32"))
        with Pool(work, workers, ()) as pool:
            alone = _processor_seconds(lambda: [*pool.results([finish_block(*x) for x in pairs])])
        with Pool(work, workers, ()):
            beam = _processor_seconds(_pipeline(work, pairs))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{len(pairs):,} empty tasks, {workers} workers, {memory / 1e6:,.0f} MB at most")
    for name, seconds in (("dispatcher", alone), ("dispatcher and Beam", beam)):
        each = seconds / len(pairs)
        print(
            f"{name}: {each * 1e6:,.0f} us of processor time per task, {1 / each:,.0f} per second"
        )
    print(f"of that Beam: {1 - alone / beam:.0%}")
    asked = workers * _WARM_BYTES / _LEAST_BYTES
    print(f"{workers} workers ask for {asked:,.0f} per second at most, with the smallest blocks")


def _made(size: Size, file: int) -> list[BlockSummary]:
    return file_summaries(size, file)


def _file(number: int) -> SourceFile:
    return SourceFile(number, f"data/{number:05d}.parquet", 1 << 30, "mtime:0", "parquet", "none")


def _block(summary: BlockSummary) -> Block:
    return Block(summary.file, summary.index, summary.blocks, 0, 1, 0, summary.counts.text_bytes)


def _pipeline(work: Work, pairs: list[tuple[SourceFile, Block]]) -> Callable[[], object]:
    """Runs Tokenize and what reports its files, in Beam."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from fineshards.transforms.blocks import Tokenize
    from fineshards.transforms.shards import FileReports

    root = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    summaries = root | "Pairs" >> beam.Create(pairs, reshuffle=False) | "Tokenize" >> Tokenize(work)
    _ = summaries | "Report" >> FileReports()
    return lambda: root.run().wait_until_finish()


def _processor_seconds(action: Callable[[], Any]) -> float:
    before = resource.getrusage(resource.RUSAGE_SELF)
    action()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    given = [*map(int, sys.argv[1:3])]
    run(*(given + [96, 20_000][len(given) :]))
