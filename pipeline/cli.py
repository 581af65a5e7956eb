"""The command line: `fineshards build | status | verify | inspect | estimate`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from fineshards.config import BuildConfig
from fineshards.errors import UsageError
from fineshards.pipeline.fast_start import leave_out_what_is_not_needed
from fineshards.pipeline.options import (
    Parser,
    add_build_flags,
    add_estimate_flags,
    parse_build_flags,
    parse_estimate_flags,
)
from fineshards.pipeline.terminal import report_errors


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code: 0, 1 for a failure, 2 for a usage error."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None and _builds_local_files(arguments):
        leave_out_what_is_not_needed()
    return report_errors(lambda: _run(arguments))


def _run(arguments: list[str]) -> int:
    parser = Parser(prog="fineshards", description="Raw text in, exact token shards out.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="build a dataset, or resume a build")
    add_build_flags(build)
    status = commands.add_parser("status", help="show the progress of a job")
    verify = commands.add_parser("verify", help="check that a dataset is complete and undamaged")
    inspect = commands.add_parser("inspect", help="show a dataset, or one of its documents")
    estimate = commands.add_parser("estimate", help="say what a build will give, take and cost")
    add_estimate_flags(estimate)
    for command in (status, verify, inspect):
        command.add_argument("folder", metavar="FOLDER", help="the dataset's folder")
    for command in (status, verify):
        command.add_argument("--json", action="store_true", help="print JSON")
    verify.add_argument(
        "--sample",
        type=float,
        default=0.0,
        metavar="P",
        help="also tokenize P percent of the documents again from their sources, and compare",
    )
    inspect.add_argument("--shard", metavar="SPLIT/N", help="a shard, such as train/0")
    place = inspect.add_mutually_exclusive_group()
    place.add_argument("--document", type=int, metavar="N", help="the shard's document N, from 0")
    place.add_argument("--token", type=int, metavar="N", help="the document that has token N")
    if arguments[:1] == ["build"]:
        config = parse_build_flags(build, arguments[1:])
        # Imported after the flags are parsed, so that --help and mistakes need no numpy.
        from fineshards.pipeline.main import build as run_build

        run_build(config)
        return 0
    if arguments[:1] == ["estimate"]:
        _estimate(*parse_estimate_flags(estimate, arguments[1:]))
        return 0
    args = parser.parse_args(arguments)
    return {"status": _status, "verify": _verify, "inspect": _inspect}[args.command](args)


def _builds_local_files(arguments: list[str]) -> bool:
    """Whether the command only builds from local files, on this machine."""
    remote = ("--runner", "--dataset")
    return arguments[:1] == ["build"] and not any(
        arg.startswith(remote) or "://" in arg for arg in arguments
    )


def _estimate(config: BuildConfig, workers: int | None, as_json: bool) -> None:
    from fineshards.commands.estimate import describe_estimate
    from fineshards.pipeline.estimate import estimate

    found = estimate(config, workers, say=lambda line: print(line, file=sys.stderr))
    print(json.dumps(asdict(found)) if as_json else describe_estimate(found))


def _status(args: argparse.Namespace) -> int:
    from fineshards.commands.status import describe_status, status

    found = status(args.folder)
    print(json.dumps(asdict(found)) if args.json else describe_status(found))
    return 0


def _verify(args: argparse.Namespace) -> int:
    from fineshards.commands.verify import describe_verdict, verify

    verdict = verify(args.folder, sample=args.sample)
    print(json.dumps(asdict(verdict)) if args.json else describe_verdict(verdict))
    return 0 if verdict.ok else 1


def _inspect(args: argparse.Namespace) -> int:
    from fineshards.commands.inspect import describe_dataset, describe_document
    from fineshards.shards.dataset import Dataset
    from fineshards.storage.base import open_storage

    dataset = Dataset.open(open_storage(args.folder))
    if args.shard is None:
        if args.document is not None or args.token is not None:
            raise UsageError("--document and --token need --shard, such as --shard train/0.")
        print(describe_dataset(dataset))
        return 0
    print(describe_document(dataset, args.shard, args.document, args.token))
    return 0
