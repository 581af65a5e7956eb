"""The command `export`: its flags, and what it does with them."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from fineshards.cli.answer import Answer, every_ten_seconds
from fineshards.cli.command import Command, add_flag, add_folder_and_generation, add_sources
from fineshards.parser import Parser


def _add_flags(parser: Parser) -> None:
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
    from fineshards.exports.export_job import prepare
    from fineshards.exports.export_options import ExportOptions
    from fineshards.pipeline.export_run import describe_export, new_pipeline_for, run_here, run_on

    options = ExportOptions(**{name: getattr(args, name) for name in ExportOptions.__slots__})
    place, beam_args = (args.folder, args.output), args.beam_args
    # Before the folder is claimed, so that a misspelt flag claims nothing.
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
    record = {"output": job.storage.root, **asdict(done)}
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
    _add_flags,
    _export,
    for_beam=True,
)
