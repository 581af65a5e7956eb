"""Write: from the pieces of a shard to the shard and its document table."""

import logging

import apache_beam as beam

from fineshards.shards.job.records import Piece, ShardRecord
from fineshards.shards.layout import ShardKey
from fineshards.shards.piece_plan import StreamPlan
from fineshards.transforms.run_tasks import Gather, JobStep, RunTasks, StepMetrics, listed
from fineshards.worker.tasks import Task, write_shard
from fineshards.worker.work import Work

METRICS = StepMetrics("write")
_log = logging.getLogger("fineshards.worker")


class WriteShards(JobStep):
    """From pieces keyed by (split, index) to shard records. Only references are shuffled."""

    def __init__(self, work: Work, plan: beam.PCollection) -> None:
        super().__init__(work)
        self._plan = plan

    def expand(self, pieces: beam.PCollection) -> beam.PCollection:
        return (
            pieces
            | "GroupShards" >> beam.GroupByKey()
            | "Listed" >> beam.MapTuple(listed)
            | "Assemble"
            >> beam.ParDo(_Assemble(METRICS, self._work), beam.pvalue.AsSingleton(self._plan))
        )


class WithEarlier(JobStep):
    """Adds to the records of new shards those of earlier generations."""

    def expand(self, records: beam.PCollection) -> beam.PCollection:
        return records | "New" >> Gather() | "Earlier" >> beam.FlatMap(_with_earlier, self._work)


def _with_earlier(records: list[ShardRecord], work: Work) -> list[ShardRecord]:
    return [*work.earlier.manifest(work.checkpoints.storage).shards, *records]


class _Assemble(RunTasks):
    def task(self, group: tuple[tuple[str, int], list[Piece]], plan: StreamPlan) -> Task:
        return write_shard(plan.layout.shard(ShardKey(*group[0])), tuple(group[1]))

    def counts(
        self, group: tuple[tuple[str, int], list[Piece]], record: ShardRecord
    ) -> dict[str, int]:
        _log.debug("write: %s, %d tokens", record.name, record.tokens)
        return {
            "pieces_in": len(group[1]),
            "tokens_out": record.tokens,
            "bytes_out": record.bytes,
            "shards_out": 1,
        }
