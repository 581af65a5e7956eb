"""WriteStatistics: adds up the statistics of all blocks, and writes those of the generation.

Modules in this folder do without `from __future__ import annotations`: see plan.py.
"""

from collections.abc import Iterable, Iterator

import apache_beam as beam

from fineshards.shards.job.records import MetadataFile
from fineshards.shards.job.source_counts import BlockSummary
from fineshards.shards.tables.statistics_files import Hosts, StatisticsFiles, added_up
from fineshards.transforms.gather import listed
from fineshards.transforms.metrics import StepMetrics
from fineshards.transforms.run_tasks import JobStep, RunTasks
from fineshards.worker.tasks import Task, add_statistics, top_hosts
from fineshards.worker.work import Work

METRICS = StepMetrics("statistics")


class WriteStatistics(JobStep):
    """From block summaries by file to the file of the statistics.

    What crosses the shuffle is some kilobytes per source file, and its hosts by ranges of a hash,
    which only the runner's own shuffle carries itself: see fineshards/shards/tables/statistics.py.
    """

    def expand(self, by_file: beam.PCollection) -> beam.PCollection:
        files = (
            by_file
            | "Spread" >> beam.Reshuffle()
            | "OfFile" >> beam.ParDo(_OfFile(METRICS, self._work))
        )
        hosts = (
            files
            | "Hosts" >> beam.FlatMap(_hosts)
            | "GroupHosts" >> beam.GroupByKey()
            | "ListedHosts" >> beam.MapTuple(listed)
            | "TopHosts" >> beam.ParDo(_TopHosts(METRICS, self._work))
        )
        return (
            (files | "Counts" >> beam.Map(_counts), hosts)
            | "All" >> beam.Flatten()
            | "AddUp" >> beam.CombineGlobally(_added_up)
            | "File" >> beam.Map(_finish, self._work)
        )


def _counts(found: tuple[bytes, list[tuple[int, Hosts]]]) -> bytes:
    return found[0]


def _hosts(found: tuple[bytes, list[tuple[int, Hosts]]]) -> Iterator[tuple[int, Hosts]]:
    return iter(found[1])


def _added_up(contents: Iterable[bytes]) -> bytes:
    return added_up(list(contents))


def _finish(content: bytes, work: Work) -> MetadataFile:
    return StatisticsFiles(work.checkpoints, work.settings, work.inline).finish(content)


class _OfFile(RunTasks):
    def task(self, summaries: list[BlockSummary]) -> Task:
        return add_statistics(summaries[0].file)

    def counts(
        self, summaries: list[BlockSummary], found: tuple[bytes, list[tuple[int, Hosts]]]
    ) -> dict[str, int]:
        return {"files_in": 1, "ranges_out": len(found[1])}


class _TopHosts(RunTasks):
    def task(self, group: tuple[int, list[Hosts]]) -> Task:
        # Sorted, so that a task that is done again is the same task.
        return top_hosts(group[0], tuple(sorted(group[1], key=_file)))

    def counts(self, group: tuple[int, list[Hosts]], found: bytes) -> dict[str, int]:
        return {"ranges_in": 1}


def _file(hosts: Hosts) -> int:
    return hosts[0]
