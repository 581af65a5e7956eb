"""The step Plan and the shuffle after it in a real Beam run, with synthetic counts.

`python -m benchmarks.scale_beam TOKENS BLOCKS FILES SHARD_TOKENS` fails unless each shard gets all
of its tokens exactly once. Like the modules of `transforms/`, this one does not use
`from __future__ import annotations`.
"""

import sys
import tempfile
from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from benchmarks.made_up import Size, file_summaries
from benchmarks.scale import RULE
from fineshards.errors import FineshardsError
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.counts import BlockSummary
from fineshards.shards.job.records import Piece
from fineshards.shards.job.settings import Columns, Settings, Tokenizer
from fineshards.shards.layout import ShardKey
from fineshards.shards.piece_plan import StreamPlan
from fineshards.storage.open import open_storage
from fineshards.transforms.shards import FileReports, Plan
from fineshards.worker.work import Work


def run(size: Size) -> None:
    """Runs the pipeline; raises FineshardsError, wrapped by Beam, if a shard is incomplete."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        # The plan reads the shard size, the split and the checkpoints; the rest has no effect.
        checkpoints = Checkpoints(open_storage(folder), "0" * 64)
        tokenizer = Tokenizer("tiktoken", "none", "", "", (("eot", 0),), 0, 1, "")
        settings = Settings(
            Columns("text", "id", False), tokenizer, size.shard_tokens, RULE, 1, "uint32"
        )
        # One worker, in_memory. With multi_threading, data goes over gRPC, and Beam flushes each
        # output once per second from another thread, even in the middle of an element. With so many
        # small elements, one of three runs failed with "Invalid PaneInfoEncoding".
        with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as root:
            summaries = (
                root
                | "Files" >> beam.Create(range(size.files), reshuffle=False)
                | "Summaries" >> beam.FlatMap(_summaries, size)
            )
            read = summaries | "Report" >> FileReports()
            work = Work(checkpoints, settings)
            planned = read["by_file"] | "Plan" >> Plan(work, read["reports"])
            _ = (
                planned["pieces"]
                | "GroupShards" >> beam.GroupByKey()
                | "Check" >> beam.Map(_check_shard, beam.pvalue.AsSingleton(planned["plan"]))
                | "Count" >> beam.combiners.Count.Globally()
                | "All" >> beam.Map(_check_count, beam.pvalue.AsSingleton(planned["plan"]))
            )


def _summaries(file: int, size: Size) -> Iterator[BlockSummary]:
    yield from file_summaries(size, file)


def _check_shard(group: tuple[tuple[str, int], Iterable[Piece]], plan: StreamPlan) -> str:
    key = ShardKey(*group[0])
    name, at = plan.layout.shard_name(key), 0
    for piece in sorted(group[1], key=lambda piece: piece.at):
        if piece.at != at:
            raise FineshardsError(f"{name}: got a piece at token {piece.at}, expected {at}.")
        at += piece.stop - piece.start
    if at != plan.layout.shard_length(key):
        raise FineshardsError(
            f"{name}: its pieces hold {at} tokens, expected {plan.layout.shard_length(key)}."
        )
    return name


def _check_count(shards: int, plan: StreamPlan) -> None:
    if shards != plan.layout.windows:
        raise FineshardsError(f"{shards} shards got pieces, expected {plan.layout.windows}.")


if __name__ == "__main__":
    run(Size(*map(int, sys.argv[1:5])))
