"""The commands that check and change a dataset: `verify`, `repair`, `redact`."""

from argparse import Namespace
from contextlib import suppress

from fineshards.cli.command import (
    Answer,
    Command,
    add_flag,
    add_folder,
    add_folder_and_generation,
    add_sources,
    note,
)
from fineshards.errors import UsageError
from fineshards.flags import count
from fineshards.parser import Parser


def _add_verify_flags(parser: Parser) -> None:
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
        "since.",
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
    return Answer(verdict, describe_verdict(verdict), 0 if verdict.ok else 1)


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
    _add_verify_flags,
    _verify,
)


def _add_repair_flags(parser: Parser) -> None:
    add_folder(parser)
    add_flag(
        parser.add_argument_group("what is needed"),
        "--tokenizer PLACE",
        "Where the tokenizer is, if its file in the dataset is damaged. Default: its name.",
    )
    add_sources(parser)


def _repair(args: Namespace) -> Answer:
    from fineshards.maintenance.repair import describe_repaired, repair

    done = repair(args.folder, args.tokenizer, args.sources)
    return Answer(done, describe_repaired(done), 1 if done.left else 0)


REPAIR = Command(
    "repair",
    "rebuild lost or damaged files from the sources",
    "FOLDER [--tokenizer PLACE] [--sources OLD=NEW] [--json]",
    "Reads every file of a dataset, and rebuilds those that differ from the manifest\n"
    "says. Changes nothing unless all of them can be made as they were.",
    ("fineshards repair out",),
    _add_repair_flags,
    _repair,
)


def _add_redact_flags(parser: Parser) -> None:
    add_folder(parser)
    which = parser.add_argument_group("which documents")
    add_flag(which, "--ids FILE", "A file of ids, one per line.")
    add_flag(
        which,
        "--documents N",
        "Documents by their numbers in the dataset, which inspect shows.",
        nargs="+",
        action="extend",
        default=[],
    )


def _redact(args: Namespace) -> Answer:
    from fineshards.maintenance.redact import describe_redacted, read_ids, redact

    if args.ids is None and not args.documents:
        raise UsageError("give --ids, a file of ids, or --documents, their numbers.")
    ids = [] if args.ids is None else read_ids(args.ids)
    done = redact(args.folder, ids, args.documents)
    return Answer(done, describe_redacted(done))


REDACT = Command(
    "redact",
    "overwrite documents in place, as a new generation",
    "FOLDER (--ids FILE | --documents N...) [--json]",
    "Overwrites the tokens of documents with the end-of-text token. Nothing moves: shards\n"
    "keep their length, and the state of a training stays valid. It cannot be undone.",
    ("fineshards redact out --ids ids.txt", "fineshards redact out --documents 17 2305"),
    _add_redact_flags,
    _redact,
)
