"""Discover: from the job's files to their blocks. Reads metadata only."""

from collections.abc import Iterator

import apache_beam as beam

from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job.records import Block, SourceFile
from fineshards.transforms.run_tasks import JobStep, RunTasks, StepMetrics
from fineshards.worker.tasks import Task, discover_files, side_by_side

METRICS = StepMetrics("discover")


class Discover(JobStep):
    """From nothing to (file, block) pairs: all blocks of all files of the job.

    The files come from the job record, not from the graph: Dataflow does not accept a graph with
    50,000 file names. Every footer is read and checked before the first block is encoded, because
    the next step reshuffles, which is a barrier in batch.
    """

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection:
        return (
            root
            | "Job" >> beam.Create([self._work.checkpoints])
            | "Files" >> beam.FlatMap(_files)
            | "Spread" >> beam.Reshuffle()
            | "Footers" >> beam.ParDo(_ReadFooters(METRICS, self._work))
            | "Blocks" >> beam.FlatMap(_pairs)
        )


def _files(checkpoints: Checkpoints) -> Iterator[tuple[SourceFile, ...]]:
    return side_by_side(checkpoints.files_to_read())


def _pairs(found: list[tuple[SourceFile, list[Block]]]) -> Iterator[tuple[SourceFile, Block]]:
    return ((file, block) for file, blocks in found for block in blocks)


class _ReadFooters(RunTasks):
    def task(self, files: tuple[SourceFile, ...]) -> Task:
        return discover_files(*files)

    def counts(
        self, files: tuple[SourceFile, ...], result: list[tuple[SourceFile, list[Block]]]
    ) -> dict[str, int]:
        return {"files_in": len(files), "blocks_out": sum(len(blocks) for _, blocks in result)}
