"""Commit: if all records add up, write the manifest, which finishes the dataset.

This is the only commit point. It is part of the graph because a Flex Template launch executes
nothing after `pipeline.run()` where the job is.
"""

import logging

import apache_beam as beam

from fineshards.shards.manifest import Manifest
from fineshards.shards.metadata import metadata_files
from fineshards.shards.plan import StreamPlan
from fineshards.shards.records import ShardRecord
from fineshards.shards.reports import FileReport
from fineshards.transforms.gather import Gather
from fineshards.transforms.metrics import StepMetrics
from fineshards.transforms.work import Work

METRICS = StepMetrics("commit")
_log = logging.getLogger("fineshards.worker")


class Commit(beam.PTransform):
    """From shard records, file reports and the plan to the manifest."""

    def __init__(self, work: Work, reports: beam.PCollection, plan: beam.PCollection) -> None:
        super().__init__()
        self._work = work
        self._reports = reports
        self._plan = plan

    def expand(self, records: beam.PCollection) -> beam.PCollection:
        """Builds the step."""
        return (
            records
            | "AllRecords" >> Gather()
            | "Manifest"
            >> beam.Map(
                commit,
                beam.pvalue.AsList(self._reports),
                beam.pvalue.AsSingleton(self._plan),
                self._work,
            )
        )


def commit(
    records: list[ShardRecord], reports: list[FileReport], plan: StreamPlan, work: Work
) -> str:
    """Writes the manifest and clears the checkpoints; returns the manifest's name.

    Raises FineshardsError, and writes nothing, if the records do not add up, or a file in
    `metadata/` is not that of the job.
    """
    storage = work.checkpoints.storage
    job, before = work.checkpoints.job(), None
    if work.before is not None:
        before = Manifest.load_finished(storage, job.generation - 1)
        before.keep(storage)
        written = {record.name for record in records}
        records = [*(shard for shard in before.shards if shard.name not in written), *records]
        reports = [*before.reports, *reports]
    metadata = metadata_files(storage, job, reports)
    manifest = Manifest.of(job, plan.layout, records, reports, metadata)
    name = manifest.save(storage, before)
    # A worker that comes late must not delete the checkpoints of a job that came after.
    work.checkpoints.clear(keep=work.keep_checkpoints)
    METRICS.count(shards_in=len(records), tokens_in=plan.layout.tokens)
    _log.info("commit: %s", storage.path(name))
    return name
