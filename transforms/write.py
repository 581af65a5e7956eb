"""Write: the pieces of a shard become the shard and its document table."""

import logging
from collections.abc import Iterable

import apache_beam as beam

from shards.assembly import write_shard
from shards.checkpoints import Checkpoints
from shards.layout import ShardKey
from shards.plan import StreamPlan
from shards.records import Piece, ShardRecord
from transforms.metrics import StepMetrics
from transforms.parallel import ParallelDoFn

METRICS = StepMetrics("write")
_log = logging.getLogger("fineshards.worker")


class Write(beam.PTransform):
    """From pieces keyed by (split, index) to shard records. Only references are shuffled."""

    def __init__(
        self, checkpoints: Checkpoints, plan: beam.PCollection, assembly: str, threads: int
    ) -> None:
        super().__init__()
        self._do = _WriteShard(checkpoints, assembly, threads)
        self._plan = plan

    def expand(self, pieces: beam.PCollection) -> beam.PCollection:
        """Builds the step."""
        return (
            pieces
            | "GroupShards" >> beam.GroupByKey()
            | "Listed" >> beam.MapTuple(_listed)
            | "Assemble" >> beam.ParDo(self._do, beam.pvalue.AsSingleton(self._plan))
        )


def _listed(key: tuple[str, int], pieces: Iterable[Piece]) -> tuple[tuple[str, int], list[Piece]]:
    # Some runners let a group be read only once, and only where it arrived.
    return key, list(pieces)


class _WriteShard(ParallelDoFn):
    def __init__(self, checkpoints: Checkpoints, assembly: str, threads: int) -> None:
        super().__init__(METRICS, threads)
        self._checkpoints = checkpoints
        self._assembly = assembly

    def setup(self) -> None:
        self._paths = [file.path for file in self._checkpoints.job().files]

    def work(self, group: tuple[tuple[str, int], list[Piece]], plan: StreamPlan) -> ShardRecord:
        return write_shard(
            ShardKey(*group[0]),
            group[1],
            plan.layout,
            self._checkpoints,
            self._paths,
            self._assembly,
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
