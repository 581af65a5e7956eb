"""An export from start to end, on this machine's threads or on a runner of Beam."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, ParamSpec

from fineshards.config import BuildConfig
from fineshards.cores import usable_cores
from fineshards.errors import FineshardsError
from fineshards.exports.export_job import ExportJob, finish, prepare, write_part
from fineshards.exports.export_options import ExportOptions
from fineshards.exports.format import EXPORTS
from fineshards.exports.record import Export
from fineshards.extras import naming_the_extra
from fineshards.flags import arguments_of
from fineshards.pipeline.runners import choice
from fineshards.shards.job.manifest_file import EXPORT_NAME
from fineshards.wording import counted

if TYPE_CHECKING:
    from apache_beam import Pipeline


_Arguments = ParamSpec("_Arguments")


def _taking(options: Callable[_Arguments, ExportOptions]) -> Callable[_Arguments, Export]:
    """`export` as a function of options, for type checkers too."""
    signature = inspect.signature(options).replace(return_annotation="Export")

    @naming_the_extra()
    def export(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Export:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"export: {error}. help(fineshards.export) has all options.") from None
        wanted = options(*args, **kwargs)
        job, finished = prepare(wanted)
        return finished or run_here(job, wanted.workers)

    export.__signature__ = signature  # type: ignore[attr-defined]
    export.__qualname__ = "export"
    return export


export = _taking(ExportOptions)
export.__doc__ = f"""Writes a dataset as files of another trainer; nothing is tokenized again.

    The options are the flags of `fineshards export`. The bytes depend on the dataset and the
    options alone. An interrupted export resumes when it is called again, and a finished one is
    found finished.

    Args:
{arguments_of(ExportOptions)}

    Returns:
        The Export, as `export.json` in the folder has it.

    Raises:
        UsageError: For options that the format cannot have, and for a folder that holds other
            files.
        OutputError: If the dataset is damaged, or a file cannot be written.

    Example:
        >>> import fineshards
        >>> export = fineshards.export(dataset_folder, f"{{folder}}-megatron", to="megatron")
        >>> [file.name for file in export.files]
        ['test_0000.bin', 'test_0000.idx', 'train_0000.bin', 'train_0000.idx']
        >>> export.splits["train"]["tokens"], export.splits["train"]["documents"]
        (565972, 888)
    """


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
            for finished in as_completed(pending):
                records.append(finished.result())
                done(len(records))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return finish(job, records)


@choice.temporary_files_of_beam(here=False)
def new_pipeline_for(options: ExportOptions, beam_args: Sequence[str]) -> Pipeline:
    """An empty pipeline on the runner that Beam's arguments name; raises UsageError for others."""
    # Where a job runs is chosen in the same way as for a build.
    config = BuildConfig(
        input=options.folder,
        output=options.output,
        s3_endpoint=options.s3_endpoint,
        beam_args=beam_args,
    )
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
    export = Export.load(job.storage)
    if export is None:
        raise FineshardsError(
            f"the runner says that the job is done, but {job.storage.path(EXPORT_NAME)} is not "
            "there, so the export is not finished. See the runner's log, and run again."
        )
    return export


def describe_export(job: ExportJob, export: Export) -> Iterator[str]:
    """An export in a few lines, with what its user should know."""
    size = sum(file.bytes for file in export.files)
    files = counted(len(export.files), "file")
    yield f"exported to {job.storage.root}: {files}, {size:,} bytes"
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
    redacted = sum(of.redacted for of in job.dataset.manifest.generations)
    if redacted and not job.settings.skip:
        yield (
            f"Redacted documents of the dataset, {redacted:,}, are kept as runs of EOTs: export "
            f"into another folder with --skip redacted to leave them out."
        )
    kind = EXPORTS[export.to]
    if "train" in export.splits:
        yield f"  read with: {kind.reading.replace('FOLDER', job.storage.root)}"
    for line in kind.advice(job.settings, job.parts):
        yield line.replace("FOLDER", job.storage.root)
