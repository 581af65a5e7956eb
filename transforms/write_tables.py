"""WriteTables: what the recipe decided about each source file, and what was counted of it.

Modules in this folder do without `from __future__ import annotations`: see plan.py.
"""

import apache_beam as beam

from fineshards.shards.counts import BlockSummary
from fineshards.shards.job.records import MetadataFile
from fineshards.transforms.run_tasks import JobStep, RunTasks, StepMetrics
from fineshards.worker.tasks import Task, write_tables

METRICS = StepMetrics("tables")


class WriteTables(JobStep):
    """From block summaries by file to the files of decisions, scores, keys and statistics."""

    def expand(self, by_file: beam.PCollection) -> beam.PCollection:
        return (
            by_file
            | "Spread" >> beam.Reshuffle()
            | "OfFile" >> beam.ParDo(_WriteFile(METRICS, self._work))
            | "Written" >> beam.FlatMap(_each)
        )


def _each(written: list[MetadataFile]) -> list[MetadataFile]:
    return written


class _WriteFile(RunTasks):
    def task(self, summaries: list[BlockSummary]) -> Task:
        return write_tables(summaries[0].file)

    def counts(self, summaries: list[BlockSummary], written: list[MetadataFile]) -> dict[str, int]:
        return {"files_in": 1, "bytes_out": sum(file.bytes for file in written)}
