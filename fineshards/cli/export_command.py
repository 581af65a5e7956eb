"""The command `export`: its flags, and what it does with them."""

from __future__ import annotations

from argparse import Namespace

from fineshards.cli.command import Command, add_folder_and_generation
from fineshards.cli.outcome import Outcome, every_ten_seconds
from fineshards.cli.quantities import count
from fineshards.parser import Parser


def _add_flags(parser: Parser) -> None:
    add_folder_and_generation(parser)
    what = parser.add_argument_group("what to write")
    what.add_argument(
        "--to", required=True, metavar="FORMAT", help="The format: see docs/formats.md."
    )
    what.add_argument(
        "--output", required=True, metavar="FOLDER", help="An empty folder for the files."
    )
    what.add_argument(
        "--split",
        choices=("test", "train", "all"),
        help="One split, or all for both as one. Default: both, each on its own.",
    )
    what.add_argument(
        "--eot",
        choices=("begin", "end"),
        help="Whether the end-of-text token is before each document or after it. Default: what "
        "the format's trainers expect.",
    )
    what.add_argument(
        "--tokens_per_file",
        type=count,
        metavar="N",
        help="Tokens per file, at least; the last one takes the rest.",
    )
    what.add_argument(
        "--sequence_length", type=count, metavar="T", help="Tokens per row, in formats of rows."
    )
    what.add_argument(
        "--dtype",
        choices=("uint16", "uint32"),
        help="Type of the tokens. Default: that of the dataset, if the format holds it.",
    )
    what.add_argument(
        "--link",
        action="store_true",
        help="Point into the dataset's shards instead of copying the tokens, for megatron and "
        "litdata on a local disk.",
    )
    what.add_argument(
        "--skip",
        choices=("redacted", "none"),
        help="Leave out redacted documents, or none. Default: redacted for formats whose readers "
        "find documents by their EOTs: all but megatron, datatrove, nanoset, and parquet and "
        "hf-arrow without --sequence_length.",
    )
    what.add_argument(
        "--s3_endpoint",
        metavar="URL",
        help="The URL of the store that s3:// means. Default: AWS_ENDPOINT_URL, or Amazon S3.",
    )
    parser.add_argument_group("how to work").add_argument(
        "--workers", type=count, metavar="N", help="Threads. Default: one per usable core."
    )


def _export(args: Namespace) -> Outcome:
    from fineshards.exports.export_job import prepare
    from fineshards.exports.export_options import ExportOptions
    from fineshards.pipeline.export_run import (
        describe_export,
        export_record,
        new_pipeline_for,
        run_here,
        run_on,
    )

    options = ExportOptions(**{name: getattr(args, name) for name in ExportOptions.__slots__})
    place, beam_args = (args.folder, args.output), args.beam_args
    # Before the folder is claimed, so that a misspelt flag claims nothing.
    pipeline = new_pipeline_for(*place, beam_args, args.s3_endpoint) if beam_args else None
    job, finished = prepare(*place, options, args.generation, args.s3_endpoint)
    done = finished
    if done is None and pipeline is not None:
        submitted = run_on(job, pipeline, beam_args)
        if isinstance(submitted, str):
            return Outcome({"submitted": submitted}, [submitted])
        done = submitted
    if done is None:
        parts = len(job.parts)
        report = every_ten_seconds(lambda done: f"exported {done:,} of {parts:,} parts")
        done = run_here(job, args.workers, report)
    said = ["nothing to do: the export is finished"] if finished else []
    return Outcome(export_record(job, done), [*said, *describe_export(job, done)])


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
    _add_flags,
    _export,
    for_beam=True,
)
