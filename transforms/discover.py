"""Discover: the job's files, their footers, their blocks. Reads metadata only."""

from collections.abc import Iterable, Iterator

import apache_beam as beam

from shards.checkpoints import Checkpoints
from shards.job import Settings
from shards.records import Block, SourceFile
from sources.reading import discover_blocks
from transforms.metrics import StepMetrics

METRICS = StepMetrics("discover")


class Discover(beam.PTransform):
    """From nothing to (file, block) pairs: all blocks of all files of the job in the output.

    The files come from the job record, not from the graph: a graph with 50,000 file names in it is
    beyond what Dataflow takes. Every footer is read and checked before the first block is encoded,
    because the next step reshuffles, which is a barrier in batch.
    """

    def __init__(self, checkpoints: Checkpoints, settings: Settings) -> None:
        super().__init__()
        self._checkpoints = checkpoints
        self._settings = settings

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection:
        """Builds the step."""
        return (
            root
            | "Job" >> beam.Create([self._checkpoints])
            | "Files" >> beam.FlatMap(_files)
            | "Spread" >> beam.Reshuffle()
            | "Blocks" >> beam.ParDo(_DiscoverFile(self._checkpoints, self._settings))
        )


def _files(checkpoints: Checkpoints) -> Iterable[SourceFile]:
    return checkpoints.job().files


class _DiscoverFile(beam.DoFn):
    def __init__(self, checkpoints: Checkpoints, settings: Settings) -> None:
        self._checkpoints = checkpoints
        self._settings = settings

    def process(self, file: SourceFile) -> Iterator[tuple[SourceFile, Block]]:
        with METRICS.timed():
            blocks = discover_file(file, self._checkpoints, self._settings)
        METRICS.count(files_in=1, blocks_out=len(blocks))
        for block in blocks:
            yield file, block


def discover_file(file: SourceFile, checkpoints: Checkpoints, settings: Settings) -> list[Block]:
    """The blocks of a file, as an earlier run found them or from its metadata."""
    blocks = checkpoints.read_blocks(file.index)
    if blocks is None:
        blocks = discover_blocks(file, settings.columns, settings.block_bytes)
        checkpoints.write_blocks(file.index, blocks)
    return blocks
