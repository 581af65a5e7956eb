"""The command `verify`."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from contextlib import suppress
from dataclasses import asdict

from fineshards.cli.answer import Answer
from fineshards.cli.command import Command, add_flag, add_folder_and_generation
from fineshards.parser import Parser


def _add_flags(parser: Parser) -> None:
    add_folder_and_generation(parser)
    what = parser.add_argument_group("what is checked")
    add_flag(
        what,
        "--sample P",
        "Also tokenize P percent of the documents again from their sources, and compare. "
        "Default: 0.",
        type=_percentage,
        default=0.0,
    )
    add_flag(
        what,
        "--sha256",
        "Also read every file once more, and compare it with SHA256SUMS, which publish wrote.",
    )
    add_flag(
        what,
        "--dataset FOLDER",
        "Of an export, the dataset that it was made of: says whether documents were redacted "
        "since. Default: where the links of an export lead.",
    )


def _percentage(text: str) -> float:
    with suppress(ValueError):
        if 0 <= float(text) <= 100:
            return float(text)
    raise ArgumentTypeError(f"must be a percentage from 0 to 100, got {text!r}")


def _verify(args: Namespace) -> Answer:
    from fineshards.verification.verify import describe_verdict, verify

    verdict = verify(
        args.folder,
        sample=args.sample,
        generation=args.generation,
        sha256=args.sha256,
        dataset=args.dataset,
    )
    return Answer(asdict(verdict), describe_verdict(verdict), 0 if verdict.ok else 1)


VERIFY = Command(
    "verify",
    "check that a dataset is complete and undamaged",
    "FOLDER [--sample P] [--sha256] [--json]",
    "Reads every file of a dataset and checks it against the manifest.\n"
    "Exits with 1 if there is a problem.",
    ("fineshards verify out", "fineshards verify out --sample 1"),
    _add_flags,
    _verify,
)
