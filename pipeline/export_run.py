"""An export from start to end, on this machine's threads or on a runner of Beam."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Literal

from fineshards.config import BuildConfig
from fineshards.cores import usable_cores
from fineshards.errors import FineshardsError
from fineshards.exports.export_job import ExportJob, finish, prepare, write_part
from fineshards.exports.export_options import ExportOptions, Side
from fineshards.exports.format_table import format_of
from fineshards.exports.record import Export
from fineshards.extras import naming_the_extra
from fineshards.pipeline.runners import choice
from fineshards.shards.job.manifest_file import EXPORT_NAME
from fineshards.wording import counted

if TYPE_CHECKING:
    from apache_beam import Pipeline


@naming_the_extra()
def export(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    to: str,
    *,
    split: str | None = None,
    eot: Side | None = None,
    tokens_per_file: int | None = None,
    sequence_length: int | None = None,
    dtype: str | None = None,
    link: bool = False,
    skip: Literal["redacted", "none"] | None = None,
    columns: str | Sequence[str] | None = None,
    copies: bool = False,
    token_column: str | None = None,
    compression: str | None = None,
    no_masks: bool = False,
    generation: int | None = None,
    s3_endpoint: str | None = None,
    sources: Sequence[str] = (),
    trust_input: bool = False,
    workers: int | None = None,
) -> Export:
    """Writes a dataset as files of another trainer; nothing is tokenized again.

    The bytes depend on the dataset and the options alone. An interrupted export resumes when it is
    called again, and a finished one is found finished.

    Args:
        folder: The dataset's folder: local, `gs://` or `s3://`.
        output: The folder for the files: local, `gs://` or `s3://`.
        to: The format: `megatron`, `datatrove`, `olmo` and others; docs/formats.md has them all.
        split: `test`, `train`, or `all` for both as one. Default: both, each on its own.
        eot: `begin` or `end`: whether the end-of-text token is before each document or after it.
            Default: what the format's trainers expect.
        tokens_per_file: Tokens per file, at least. Default: that of the format.
        sequence_length: Tokens per row, for formats of rows.
        dtype: `uint16` or `uint32`. Default: that of the dataset, if the format holds it.
        link: Point into the dataset's shards instead of copying the tokens.
        skip: `redacted` to leave out redacted documents, or `none` to keep them as runs of EOTs.
            Default: `redacted` for formats whose readers find documents by their EOTs.
        columns: Columns to write as well, as a list or with commas between them: those of the
            sources for `text` and `text-jsonl`, `labels` and `attention_mask` for `parquet` and
            `hf-arrow`.
        copies: Write how many duplicates of each document the recipe dropped, for `text` and
            `text-jsonl`.
        token_column: The name of the tokens in each row, for `mds` and `array_record`. Default:
            `tokens`, or for `array_record` `text`.
        compression: `zstd` for compressed files, for `mds`.
        no_masks: Do not say which tokens of conversations are learned, so that all are.
        generation: The generation of a dataset that has grown, from 1. Default: the latest.
        s3_endpoint: The URL of the store that `s3://` means. Default: `AWS_ENDPOINT_URL`, or
            Amazon S3.
        sources: Where the source files are now, for `columns`: each is `OLD=NEW`, and what was in
            the folder OLD is in NEW.
        trust_input: Read source files of the same size, but another time or version than the
            dataset was built from.
        workers: Threads. Default: one per usable core.

    Returns:
        The Export, as `export.json` in the folder has it.

    Raises:
        UsageError: For options that the format cannot have, and for a folder that holds other
            files.
        OutputError: If the dataset is damaged, or a file cannot be written.

    Example:
        >>> import fineshards
        >>> export = fineshards.export(dataset_folder, f"{folder}-megatron", to="megatron")
        >>> [file.name for file in export.files]
        ['test_0000.bin', 'test_0000.idx', 'train_0000.bin', 'train_0000.idx']
        >>> export.splits["train"]["tokens"], export.splits["train"]["documents"]
        (565972, 888)
    """
    if columns is not None and not isinstance(columns, str):
        columns = ",".join(columns)
    options = ExportOptions(
        *(to, split, eot, tokens_per_file, sequence_length, dtype, link, skip),
        *(columns, copies, token_column, compression, no_masks),
    )
    job, finished = prepare(folder, output, options, generation, s3_endpoint, sources, trust_input)
    return finished or run_here(job, workers)


def run_here(
    job: ExportJob, workers: int | None, done: Callable[[int], object] = lambda count: None
) -> Export:
    """Does all parts of an export in threads, which wait for disks and checksums most of the time.

    done: called with the number of finished parts, after each.
    """
    records = []
    with ThreadPoolExecutor(workers or usable_cores()) as pool:
        pending = [pool.submit(write_part, job, part) for part in job.parts]
        try:
            for each in as_completed(pending):
                records.append(each.result())
                done(len(records))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return finish(job, records)


@choice.temporary_files_of_beam(here=False)
def new_pipeline_for(
    folder: str, output: str, beam_args: Sequence[str], s3_endpoint: str | None = None
) -> Pipeline:
    """An empty pipeline on the runner that Beam's arguments name; raises UsageError for others."""
    # Where a job runs is chosen in the same way as for a build.
    config = BuildConfig(input=folder, output=output, beam_args=beam_args, s3_endpoint=s3_endpoint)
    from fineshards.pipeline.runners import dataflow, portable
    from fineshards.pipeline.runners.choice import check_beam_args

    check_beam_args(config, "fineshards export")
    if dataflow.runs_on_dataflow(config):
        dataflow.refuse_impossible(config)
        return dataflow.new_pipeline(config)
    args = choice.local_args(config) if choice.runs_here(config) else list(beam_args)
    return choice.new_pipeline(portable.DescribedOptions(args))


@choice.temporary_files_of_beam(here=False)
def run_on(job: ExportJob, pipeline: Pipeline, beam_args: Sequence[str]) -> Export | str:
    """Does an export as a pipeline.

    Returns its record, or a sentence that says what became of a job that is not waited for.
    """
    from fineshards.pipeline.runners import dataflow, portable
    from fineshards.pipeline.runners.choice import runner_name
    from fineshards.transforms.export import WriteExport

    _ = pipeline | "Export" >> WriteExport(job)
    if runner_name(beam_args) == "dataflow":
        outcome = dataflow.submit(pipeline, job.storage.root)
        if outcome is not None:
            return outcome
    else:
        portable.submit(pipeline, job.storage.root)
    found = Export.load(job.storage)
    if found is None:
        raise FineshardsError(
            f"the runner says that the job is done, but {job.storage.path(EXPORT_NAME)} is not "
            "there, so the export is not finished. See the runner's log, and run again."
        )
    return found


def describe_export(job: ExportJob, export: Export) -> Iterator[str]:
    """An export in a few lines, with what its user should know."""
    size = sum(file.bytes for file in export.files if file.link is None)
    linked = sum(file.link is not None for file in export.files)
    links = f", {linked:,} of them links" if linked else ""
    files = counted(len(export.files), "file")
    yield f"exported to {job.storage.root}: {files}{links}, {size:,} bytes"
    for split, counts in export.splits.items():
        documents = counts["documents"]
        with_documents = "" if documents is None else f", {documents:,} documents"
        yield f"  {split}: {counts['tokens']:,} tokens{with_documents}"
        if counts["left_out"]:
            yield (
                f"  {split}: {counts['left_out']:,} tokens at the end are LEFT OUT, because the "
                "format has no room for less than a row"
            )
        if (skipped := counts.get("skipped")) and skipped["documents"]:
            yield (
                f"  {split}: {skipped['documents']:,} redacted documents ({skipped['tokens']:,} "
                "tokens) are left out"
            )
    redacted = sum(each.redacted for each in job.dataset.manifest.generations)
    if redacted and not job.settings.skip:
        without = " and without --link" if job.settings.link else ""
        yield (
            f"Redacted documents of the dataset, {redacted:,}, are kept as runs of EOTs: export "
            f"into another folder with --skip redacted{without} to leave them out."
        )
    kind = format_of(export.to)
    if "train" in export.splits:
        yield f"  read with: {kind.reading.replace('FOLDER', job.storage.root)}"
    for line in kind.advice(job.settings, job.parts):
        yield line.replace("FOLDER", job.storage.root)
