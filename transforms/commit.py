"""Commit: all records are in; if they add up, the manifest is written and the dataset is finished.

The only commit point. It is part of the graph, because in a Flex Template launch nothing that
follows `pipeline.run()` is executed where the job is.
"""

import logging

import apache_beam as beam

from shards.checkpoints import FOLDER, Checkpoints
from shards.manifest import Manifest
from shards.plan import StreamPlan
from shards.records import FileReport, ShardRecord
from shards.storage import TEMPORARY
from transforms.gather import Gather
from transforms.metrics import StepMetrics

METRICS = StepMetrics("commit")
_log = logging.getLogger("fineshards.worker")


class Commit(beam.PTransform):
    """From shard records (and, beside them, reports and the plan) to the manifest."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        reports: beam.PCollection,
        plan: beam.PCollection,
        keep_checkpoints: bool,
    ) -> None:
        super().__init__()
        self._checkpoints = checkpoints
        self._reports = reports
        self._plan = plan
        self._keep_checkpoints = keep_checkpoints

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
                self._checkpoints,
                self._keep_checkpoints,
            )
        )


def commit(
    records: list[ShardRecord],
    reports: list[FileReport],
    plan: StreamPlan,
    checkpoints: Checkpoints,
    keep_checkpoints: bool,
) -> str:
    """Writes the manifest and clears the checkpoints; returns the manifest's name.

    Raises FineshardsError, and writes nothing, if the records do not add up.
    """
    storage = checkpoints.storage
    manifest = Manifest.of(checkpoints.job(), plan.layout, records, reports)
    name = manifest.save(storage)
    storage.delete_folder(TEMPORARY if keep_checkpoints else FOLDER)
    METRICS.count(shards_in=len(records), tokens_in=plan.layout.tokens)
    _log.info("commit: %s", storage.path(name))
    return name
