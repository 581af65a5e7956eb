"""The command `verify`."""

from __future__ import annotations

from argparse import Namespace
from contextlib import suppress
from dataclasses import asdict

from fineshards.cli.answer import Answer, note
from fineshards.cli.command import Command, add_flag, add_folder_and_generation, add_sources
from fineshards.number_parser import count
from fineshards.parser import Parser


def _add_flags(parser: Parser) -> None:
    add_folder_and_generation(parser)
    what = parser.add_argument_group("what is checked")
    add_flag(
        what,
        "--sample SAMPLE",
        "Also tokenize documents again from their sources, and compare: a share such as 1%%, or "
        "about a number of them such as 1000. Default: none.",
        type=_share_or_count,
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
    add_sources(parser)


def _share_or_count(text: str) -> float | str:
    with suppress(ValueError):
        percent = float(text)
        if 0 < percent <= 100:
            note(f"--sample {text} means {text}% of the documents; write --sample {text}%.")
            return f"{text}%"
        return percent
    return text if text.endswith("%") else count(text)


def _verify(args: Namespace) -> Answer:
    from fineshards.verification.verify import describe_verdict, verify

    verdict = verify(
        args.folder,
        sample=args.sample,
        generation=args.generation,
        sha256=args.sha256,
        dataset=args.dataset,
        sources=args.sources,
    )
    return Answer(asdict(verdict), describe_verdict(verdict), 0 if verdict.ok else 1)


VERIFY = Command(
    "verify",
    "check that a dataset is complete and undamaged",
    "FOLDER [--sample SAMPLE] [--sha256] [--json]",
    "Reads every file of a dataset and checks it against the manifest.\n"
    "Exits with 1 if there is a problem.",
    (
        "fineshards verify out",
        "fineshards verify out --sample 1%",
        "fineshards verify out --sample 1000",
    ),
    _add_flags,
    _verify,
)
