"""Write: the pieces of a shard become the shard and its document table."""

import logging
from collections.abc import Iterable, Iterator

import apache_beam as beam

from shards.assembly import write_shard
from shards.checkpoints import Checkpoints
from shards.layout import ShardKey
from shards.plan import StreamPlan
from shards.records import Piece, ShardRecord
from transforms.metrics import StepMetrics

METRICS = StepMetrics("write")
_log = logging.getLogger("fineshards.worker")


class Write(beam.PTransform):
    """From pieces keyed by (split, index) to shard records. Only references are shuffled."""

    def __init__(self, checkpoints: Checkpoints, plan: beam.PCollection) -> None:
        super().__init__()
        self._checkpoints = checkpoints
        self._plan = plan

    def expand(self, pieces: beam.PCollection) -> beam.PCollection:
        """Builds the step."""
        return (
            pieces
            | "GroupShards" >> beam.GroupByKey()
            | "Assemble"
            >> beam.ParDo(_WriteShard(self._checkpoints), beam.pvalue.AsSingleton(self._plan))
        )


class _WriteShard(beam.DoFn):
    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints

    def setup(self) -> None:
        self._paths = [file.path for file in self._checkpoints.job().files]

    def process(
        self, group: tuple[tuple[str, int], Iterable[Piece]], plan: StreamPlan
    ) -> Iterator[ShardRecord]:
        key, pieces = ShardKey(*group[0]), list(group[1])
        with METRICS.timed():
            record = write_shard(key, pieces, plan.layout, self._checkpoints, self._paths)
        METRICS.count(
            pieces_in=len(pieces), tokens_out=record.tokens, bytes_out=record.bytes, shards_out=1
        )
        _log.debug("write: %s, %d tokens", record.name, record.tokens)
        yield record
