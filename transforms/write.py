"""Write: from the pieces of a shard to the shard and its document table."""

import logging
from collections.abc import Iterable

import apache_beam as beam

from fineshards.shards.assembly import write_shard
from fineshards.shards.layout import ShardKey
from fineshards.shards.plan import StreamPlan
from fineshards.shards.records import Piece, ShardRecord
from fineshards.transforms.metrics import StepMetrics
from fineshards.transforms.parallel import ParallelDoFn
from fineshards.transforms.work import Work

METRICS = StepMetrics("write")
_log = logging.getLogger("fineshards.worker")


class Write(beam.PTransform):
    """From pieces keyed by (split, index) to shard records. Only references are shuffled."""

    def __init__(self, work: Work, plan: beam.PCollection) -> None:
        super().__init__()
        self._work = work
        self._plan = plan

    def expand(self, pieces: beam.PCollection) -> beam.PCollection:
        """Builds the step."""
        return (
            pieces
            | "GroupShards" >> beam.GroupByKey()
            | "Listed" >> beam.MapTuple(_listed)
            | "Assemble" >> beam.ParDo(_WriteShard(self._work), beam.pvalue.AsSingleton(self._plan))
        )


def _listed(key: tuple[str, int], pieces: Iterable[Piece]) -> tuple[tuple[str, int], list[Piece]]:
    # Some runners allow only one read of a group, and only where it arrived.
    return key, list(pieces)


class _WriteShard(ParallelDoFn):
    def __init__(self, work: Work) -> None:
        super().__init__(METRICS, work.threads)
        self._work = work

    def setup(self) -> None:
        self._paths = [file.path for file in self._work.checkpoints.job().files]

    def work(self, group: tuple[tuple[str, int], list[Piece]], plan: StreamPlan) -> ShardRecord:
        return write_shard(
            ShardKey(*group[0]),
            group[1],
            plan.layout,
            self._work.checkpoints,
            self._paths,
            self._work.assembly,
        )

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
