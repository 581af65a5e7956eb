"""The commands that pass a dataset on: `export`, `publish`, `report`."""

from argparse import Namespace

from msgspec import to_builtins

from fineshards.cli.command import (
    Answer,
    Command,
    add_flag,
    add_folder,
    add_folder_and_generation,
    every_ten_seconds,
)
from fineshards.parser import Parser
from fineshards.wording import counted
from fineshards.worker import own_process


def _add_export_flags(parser: Parser) -> None:
    from fineshards.cli.options import add_export_flags

    add_folder(parser)
    add_export_flags(parser)


def _export(args: Namespace) -> Answer:
    from fineshards.cli.options import export_options
    from fineshards.cli.terminal import error_console, set_up_logging
    from fineshards.exports.export_job import prepare
    from fineshards.pipeline.export_run import describe_export, new_pipeline_for, run_here, run_on

    options, beam_args = export_options(args), args.beam_args
    own_process.resume = own_process.RESUME
    # Before the folder is claimed, so that a misspelt flag claims nothing.
    if beam_args:
        set_up_logging(error_console(), local=False)
    pipeline = new_pipeline_for(options, beam_args) if beam_args else None
    job, finished = prepare(options)
    done = finished
    if done is None and pipeline is not None:
        submitted = run_on(job, pipeline, beam_args)
        if isinstance(submitted, str):
            return Answer({"submitted": submitted}, [submitted])
        done = submitted
    if done is None:
        parts = len(job.parts)
        report = every_ten_seconds(lambda done: f"exported {done:,} of {parts:,} parts")
        done = run_here(job, options.workers, report)
    said = ["nothing to do: the export is finished"] if finished else []
    record = {"output": job.storage.root, **to_builtins(done)}
    return Answer(record, [*said, *describe_export(job, done)])


EXPORT = Command(
    "export",
    "write a dataset as files of another trainer",
    "FOLDER --to FORMAT --output FOLDER [flags]",
    "Writes the tokens as files that Megatron, nanotron, OLMo-core and others read, without\n"
    "tokenizing again. An interrupted export resumes; fineshards verify checks the files.",
    (
        "fineshards export out --to megatron --output out-megatron",
        "fineshards export out --to raw --split train --output out-raw",
        "",
        "With an option of Apache Beam, such as --runner=DataflowRunner, it is a job there.",
    ),
    _add_export_flags,
    _export,
    for_beam=True,
)


_DESCRIPTION = {
    "name": ("NAME", "Its name. Default: made of its source and its tokenizer."),
    "description": ("TEXT", "What it is, as Markdown. Its counts are added."),
    "license": ("ID", "An SPDX identifier such as CC-BY-4.0, or the URL of a license."),
    "creator": ("NAME", "The organization that made it, or person:NAME."),
    "url": ("URL", "Its page."),
    "date_published": ("DAY", "The day of its publication, such as 2026-11-30."),
    "citation": ("TEXT", "How to cite it, as BibTeX."),
}


def _add_publish_flags(parser: Parser) -> None:
    add_folder(parser)
    group = parser.add_argument_group(
        "facts that the dataset does not contain; omitted flags keep their earlier values"
    )
    for name, (metavar, text) in _DESCRIPTION.items():
        group.add_argument(f"--{name}", metavar=metavar, help=text)


def _publish(args: Namespace) -> Answer:
    from fineshards.publishing.publish import describe_published, publish_files
    from fineshards.storage.open import open_storage

    report = every_ten_seconds(lambda done: f"hashed {counted(done, 'file')}")
    given = {name: getattr(args, name) for name in _DESCRIPTION}
    done = publish_files(open_storage(args.folder), given, report)
    return Answer(done, describe_published(done))


PUBLISH = Command(
    "publish",
    "describe a dataset to others: Croissant, a card, SHA-256 sums",
    "FOLDER [flags]",
    "Writes metadata/croissant.json, README.md (a dataset card) and SHA256SUMS.\n"
    "Every file of the dataset is read once.",
    (
        "fineshards publish out",
        "fineshards publish out --license CC-BY-4.0 --creator 'Example Lab' "
        "--url https://example.org/out",
    ),
    _add_publish_flags,
    _publish,
)


def _add_report_flags(parser: Parser) -> None:
    add_folder_and_generation(parser)
    what = parser.add_argument_group("the report")
    add_flag(
        what,
        "--output FILE",
        "The file to write, local, or a URL of gs:// or s3://. Default: NAME-report.html "
        "by the name of the dataset's folder, in the current folder, or beside the dataset if that "
        "is the dataset's own.",
    )
    add_flag(what, "--title TEXT", "Its heading. Default: the dataset's name or folder.")


def _report(args: Namespace) -> Answer:
    from fineshards.reports.report import describe_report, report

    written = report(**{name: value for name, value in vars(args).items() if name != "json"})
    return Answer(written, describe_report(written))


REPORT = Command(
    "report",
    "write a report of a dataset as an HTML page",
    "FOLDER [--output FILE] [--title TEXT] [--json]",
    "Writes one HTML file about a finished dataset: splits, lengths, sources, what each step of\n"
    "the recipe dropped, and documents with their tokens. It needs no network.",
    ("fineshards report out", "fineshards report out --output out.html"),
    _add_report_flags,
    _report,
)
