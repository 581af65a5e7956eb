"""The commands that pass a dataset on: `export`, `publish`, `report`."""

from __future__ import annotations

from argparse import Namespace

from msgspec import to_builtins

from fineshards.cli.answer import Answer, every_ten_seconds
from fineshards.cli.command import (
    Command,
    add_flag,
    add_folder,
    add_folder_and_generation,
    add_sources,
)
from fineshards.parser import Parser, boolean
from fineshards.wording import counted
from fineshards.worker import own_process


def _add_export_flags(parser: Parser) -> None:
    add_folder_and_generation(parser)
    what = parser.add_argument_group("what to write")
    add_flag(what, "--to FORMAT", "The format: see docs/formats.md.", required=True)
    add_flag(what, "--output FOLDER", "An empty folder for the files.", required=True)
    add_flag(
        what,
        "--split",
        "One split, or all for both as one. Default: both, each on its own.",
        choices=("test", "train", "all"),
    )
    add_flag(
        what,
        "--eot",
        "Whether the end-of-text token is before each document or after it. Default: what "
        "the format's trainers expect.",
        choices=("begin", "end"),
    )
    add_flag(what, "--tokens_per_file N", "Tokens per file, at least; the last one takes the rest.")
    add_flag(what, "--sequence_length T", "Tokens per row, in formats of rows.")
    add_flag(
        what,
        "--dtype",
        "Type of the tokens. Default: that of the dataset, if the format holds it.",
        choices=("uint16", "uint32"),
    )
    add_flag(
        what,
        "--link",
        "Point into the dataset's shards instead of copying the tokens, for megatron and "
        "litdata on a local disk.",
    )
    add_flag(
        what,
        "--skip",
        "Leave out redacted documents, or none. Default: redacted for formats whose readers "
        "find documents by their EOTs: all but megatron, datatrove, nanoset, torchtitan, and "
        "parquet and hf-arrow without --sequence_length.",
        choices=("redacted", "none"),
    )
    add_flag(
        what,
        "--columns NAMES",
        "Columns to write as well: those of the sources, such as url,dump, for text and "
        "text-jsonl; labels,attention_mask for parquet and hf-arrow.",
    )
    add_flag(
        what,
        "--copies",
        "Write how many duplicates of each document the recipe dropped, for text and text-jsonl.",
    )
    add_flag(
        what,
        "--token_column NAME",
        "The name of the tokens, for mds (default: tokens) and array_record (default: text).",
    )
    add_flag(what, "--compression", "For mds: how to compress files.", choices=("zstd",))
    add_flag(
        what,
        "--no_masks",
        "Of conversations: do not say which tokens are learned, so that all are.",
    )
    add_flag(
        what,
        "--s3_endpoint URL",
        "The URL of the store that s3:// means. Default: AWS_ENDPOINT_URL, or Amazon S3.",
    )
    add_sources(parser, trusts=True)
    add_flag(
        parser.add_argument_group("how to work"),
        "--workers N",
        "Threads. Default: one per usable core.",
    )


def _export(args: Namespace) -> Answer:
    from fineshards.cli.terminal import error_console, set_up_logging
    from fineshards.exports.export_job import prepare
    from fineshards.exports.export_options import ExportOptions
    from fineshards.pipeline.export_run import describe_export, new_pipeline_for, run_here, run_on

    options = ExportOptions(**{name: getattr(args, name) for name in ExportOptions.__slots__})
    place, beam_args = (args.folder, args.output), args.beam_args
    own_process.resume = own_process.RESUME
    # Before the folder is claimed, so that a misspelt flag claims nothing.
    if beam_args:
        set_up_logging(error_console(), local=False)
    pipeline = new_pipeline_for(*place, beam_args, args.s3_endpoint) if beam_args else None
    job, finished = prepare(
        *place, options, args.generation, args.s3_endpoint, args.sources, args.trust_input
    )
    done = finished
    if done is None and pipeline is not None:
        submitted = run_on(job, pipeline, beam_args)
        if isinstance(submitted, str):
            return Answer({"submitted": submitted}, [submitted])
        done = submitted
    if done is None:
        parts = len(job.parts)
        report = every_ten_seconds(lambda done: f"exported {done:,} of {parts:,} parts")
        done = run_here(job, args.workers, report)
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


_SAID = {
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
    said = parser.add_argument_group(
        "what the dataset cannot say of itself; what is left out stays as it was said before"
    )
    for name, (metavar, text) in _SAID.items():
        said.add_argument(f"--{name}", metavar=metavar, help=text)
    about = "Leave names of folders in stores out too. metadata/manifest.json keeps them."
    add_flag(said, "--no_paths true|false", about, nargs="?", const=True, type=boolean)


def _publish(args: Namespace) -> Answer:
    from fineshards.publishing.publish import describe_published, publish_files
    from fineshards.storage.open import open_storage

    report = every_ten_seconds(lambda done: f"hashed {counted(done, 'file')}")
    given = {name: getattr(args, name) for name in (*_SAID, "no_paths")}
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
