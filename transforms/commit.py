"""Commit: if all records add up, write the manifest, which finishes the dataset.

Then the checkpoints are deleted. Before it, CompareTexts counts the documents that share a text.

This is the only commit point. It is part of the graph because a Flex Template launch executes
nothing after `pipeline.run()` where the job is.
"""

import logging
from collections.abc import Iterable, Iterator

import apache_beam as beam

from fineshards.errors import FineshardsError, OutputError
from fineshards.shards.counts import FileReport
from fineshards.shards.job.job import metadata_files, of_earlier_jobs
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import MetadataFile, ShardRecord, blocks_name
from fineshards.shards.layout import SPLITS
from fineshards.shards.piece_plan import StreamPlan
from fineshards.shards.record import replace
from fineshards.shards.tables.block_counts import Rows, write_blocks
from fineshards.shards.tables.shared_texts import Comparison, SharedTexts, example
from fineshards.storage.base import Storage
from fineshards.transforms.run_tasks import Gather, JobStep, RunTasks, count
from fineshards.wording import describe_leaks, describe_repeats, warn_of_leaks
from fineshards.worker.tasks import compare_texts
from fineshards.worker.work import Work

_log = logging.getLogger("fineshards.worker.commit")


class CompareTexts(JobStep):
    """From the records of all shards, whose document tables are there, to one SharedTexts.

    No hash crosses the shuffle: a task holds those of test and of new documents in one range, and
    reads those of all others.
    """

    def expand(self, records: beam.PCollection) -> beam.PCollection:
        compared = records | "AllRecords" >> Gather() | "Sides" >> beam.Map(_sides, self._work)
        compare = RunTasks("texts", self._work, lambda number, sides: compare_texts(sides, number))
        return (
            compared
            | "Ranges" >> beam.FlatMap(_ranges)
            | "Spread" >> beam.Reshuffle()
            | "Compare" >> beam.ParDo(compare, beam.pvalue.AsSingleton(compared))
            | "AllRanges" >> Gather()
            | "Total" >> beam.Map(SharedTexts.total)
        )


def _sides(records: list[ShardRecord], work: Work) -> Comparison:
    return Comparison.of(records, work.earlier.sums, work.settings.split)


def _ranges(comparison: Comparison) -> Iterator[int]:
    yield from range(comparison.ranges)


class Commit(JobStep):
    """From shard records, what FileReports gives, the plan and what texts share to the manifest.

    shared: None where nothing can leak or repeat. written: files of the dataset that other steps
    have written: decisions and statistics.
    """

    def __init__(
        self,
        work: Work,
        counted: dict[str, beam.PCollection],
        plan: beam.PCollection,
        shared: beam.PCollection | None,
        written: beam.PCollection | None,
    ) -> None:
        super().__init__(work)
        self._sides = (
            beam.pvalue.AsList(counted["reports"]),
            beam.pvalue.AsSingleton(plan),
            work,
            beam.pvalue.AsList(counted["blocks"]),
            None if shared is None else beam.pvalue.AsSingleton(shared),
            () if written is None else beam.pvalue.AsList(written),
        )

    def expand(self, records: beam.PCollection) -> beam.PCollection:
        name = records | "AllRecords" >> Gather() | "Manifest" >> beam.Map(commit, *self._sides)
        return name | "Clear" >> beam.Map(_clear, self._work)


def commit(
    records: list[ShardRecord],
    reports: list[FileReport],
    plan: StreamPlan,
    work: Work,
    blocks: list[Rows],
    shared: SharedTexts | None = None,
    written: Iterable[MetadataFile] = (),
) -> str:
    """Writes the manifest; returns its name.

    Raises FineshardsError, and writes nothing, if the records do not add up, a file in `metadata/`
    is not that of the job, or documents leak or repeat earlier ones and that is to fail.
    """
    storage = work.checkpoints.storage
    job, before = work.checkpoints.job(), None
    if work.earlier:
        before = work.earlier.manifest(storage)
        reports = [*before.reports, *reports]
    metadata = [*metadata_files(storage, job, reports), *written]
    metadata.append(write_blocks(storage, blocks_name(job.generation), blocks))
    if before is not None:
        metadata += of_earlier_jobs(job, before.metadata)
    leaks = shared.leaks if shared and work.settings.split.may_leak else None
    manifest = Manifest.of(job, plan.layout, records, reports, metadata, leaks)
    if shared is not None:
        if work.earlier:
            manifest = replace(manifest, repeats=shared.repeats)
        _check_shared(manifest, shared, work)
    _refuse_late_shards(storage, records)
    name = manifest.save(storage, before)
    count("commit", shards_in=len(records), tokens_in=plan.layout.tokens)
    _log.info("commit: %s", storage.path(name))
    return name


def _check_shared(manifest: Manifest, shared: SharedTexts, work: Work) -> None:
    """Warns of documents that leak or repeat earlier ones; raises if that is to fail."""
    storage, rule = work.checkpoints.storage, work.settings.split
    comparison = Comparison.of(manifest.shards, work.earlier.sums, rule)
    leave = "Leave these documents out of the new files, or finish the append"
    if shared.leaking is not None:
        if work.fail_on_leak:
            documents = example(storage, rule, comparison, shared.leaking, "train")
            advice = f"Build again with {rule.flags_against_leaks} and --overwrite, or finish it"
            raise FineshardsError(
                f"{describe_leaks(shared.leaks)}, such as {documents}, so the dataset is not "
                f"finished (--fail_on_leak). {leave if work.earlier else advice} by the same "
                "command without --fail_on_leak."
            )
        _log.warning("commit: %s", warn_of_leaks(shared.leaks, rule))
    if shared.repeated is not None:
        if work.fail_on_repeats:
            documents = example(storage, rule, comparison, shared.repeated, "earlier")
            raise FineshardsError(
                f"{describe_repeats(manifest)}, such as {documents}, so the append is not finished "
                f"(--fail_on_repeats). {leave} by the same command without --fail_on_repeats."
            )
        _log.warning("commit: %s", describe_repeats(manifest))


def _clear(name: str, work: Work) -> str:
    """Deletes the checkpoints; returns the manifest's name."""
    # A worker that comes late must not delete the checkpoints of a job that came after.
    work.checkpoints.clear(keep=work.keep_checkpoints)
    return name


def _refuse_late_shards(storage: Storage, records: Iterable[ShardRecord]) -> None:
    """Raises OutputError for a shard that a worker of a replaced job has written since."""
    names = {record.name for record in records}
    for split in SPLITS:
        for entry in storage.entries(split):
            if entry.name not in names:
                raise OutputError(
                    f"{storage.path(entry.name)} is not of this job: one that it replaced was "
                    "still writing. Delete that file, then run the same command again."
                )
