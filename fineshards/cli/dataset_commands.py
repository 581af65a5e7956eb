"""The commands that build: `build`, `append`, and `estimate` beforehand."""

from __future__ import annotations

from argparse import Namespace

from fineshards.cli.answer import Answer, note
from fineshards.cli.command import Command, add_folder
from fineshards.cli.options import (
    add_append_flags,
    add_build_flags,
    add_estimate_flags,
    config_of,
    sample_config,
)
from fineshards.parser import Parser


def _build(args: Namespace) -> Answer:
    config = config_of(args)
    # Imported after the flags are parsed, so that --help and mistakes need no numpy.
    from fineshards.cli.build_command import build

    return build(config)


def _add_append_flags(parser: Parser) -> None:
    add_folder(parser)
    add_append_flags(parser)


def _append(args: Namespace) -> Answer:
    args.output, args.append = args.folder, True
    return _build(args)


def _estimate(args: Namespace) -> Answer:
    config = sample_config(args)
    from fineshards.pipeline.sample import estimate

    note("building a sample of the input …")
    found = estimate(config)
    return Answer(found, str(found).splitlines())


BUILD = Command(
    "build",
    "build a dataset, or resume a build",
    "--input FILE... --output FOLDER [flags]",
    "Turns text into token shards. After an interruption the same command resumes.\n"
    "Flags may be written with hyphens too, and numbers as 100M, 1e8 or 64MiB.",
    (
        "fineshards build --input data/*.parquet --output out",
        "fineshards build --dataset HuggingFaceFW/fineweb-edu --dataset_config sample-10BT "
        "--output edu",
        "fineshards build --input data/*.jsonl.gz --output out --tokenizer OWNER/NAME "
        "--shard_tokens 10M",
        "",
        "Every option of Apache Beam is taken too, such as --runner=DataflowRunner --region=….",
        "Without --runner the job runs on this machine.",
    ),
    add_build_flags,
    _build,
    for_beam=True,
)


APPEND = Command(
    "append",
    "add files to a dataset, as a new generation of it",
    "FOLDER --input FILE... [flags]",
    "Adds new files at the end of a finished dataset, with the settings it was built with.\n"
    "It begins new shards and changes none. After an interruption the same command resumes.",
    (
        "fineshards append out --input new/*.parquet",
        "fineshards append out --dataset OWNER/NAME --dataset_config CC-MAIN-2026-45",
    ),
    _add_append_flags,
    _append,
    for_beam=True,
)


ESTIMATE = Command(
    "estimate",
    "predict a build's tokens, documents, time and disk",
    "--input FILE... [flags]",
    "Builds a sample of the input, about 64 MB of text, in a temporary folder, and predicts what\n"
    "a build of the whole takes on this machine. The flags are those of build; no --output is\n"
    "needed, and nothing is left behind.",
    (
        "fineshards estimate --input data/*.parquet",
        "fineshards estimate --input data/*.parquet --recipe fineweb --workers 8",
    ),
    add_estimate_flags,
    _estimate,
)
