"""The command `inspect`: a dataset, one of its documents, or what its recipe dropped."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from fineshards.cli.answer import Answer
from fineshards.cli.command import (
    Command,
    add_flag,
    add_folder_and_generation,
    add_sources,
    opened,
)
from fineshards.errors import UsageError
from fineshards.number_parser import count
from fineshards.parser import Parser


def _add_flags(parser: Parser) -> None:
    add_folder_and_generation(parser)
    place = parser.add_argument_group("a document; without these, the dataset is described")
    add_flag(place, "--shard SPLIT/N", "A shard, such as train/0, in which to count.")
    which = place.add_mutually_exclusive_group()
    about = "Document N, from 0, of the dataset or, with --shard, of the shard."
    add_flag(which, "--document N", about, type=_number_or_place)
    add_flag(which, "--token N", "The document that has token N of the dataset, or of the shard.")
    add_flag(which, "--id ID", "All documents of the dataset with this id.")
    dropped = parser.add_argument_group("what the recipe dropped or cut")
    add_flag(
        dropped,
        "--dropped",
        "Show documents that were dropped or cut, the same ones every time. With --document "
        "FILE:ROW, a row of a source file, by path or number.",
    )
    add_flag(dropped, "--reason R", "Only those dropped for this reason.", type=str)
    add_flag(dropped, "--step N", "Only those of step N, from 1.")
    add_flag(dropped, "--count N", "How many to show. Default: 3.")
    add_sources(parser, trusts=True)


def _number_or_place(text: str) -> int | str:
    """The number of a document, or the FILE:ROW of one."""
    return text if ":" in text else count(text)


def _inspect(args: Namespace) -> Answer:
    from fineshards.inspection import inspect

    if args.dropped:
        return _inspect_dropped(args)
    for name in ("reason", "step", "count", "sources", "trust_input"):
        if getattr(args, name) not in (None, [], False):
            raise UsageError(f"--{name} goes with --dropped.")
    if isinstance(args.document, str):
        raise UsageError(f"--document {args.document}: FILE:ROW goes with --dropped.")
    if args.shard is not None and args.id is not None:
        raise UsageError("--id looks through the whole dataset: leave out --shard.")
    dataset = opened(args.folder, args.generation)
    if args.id is not None:
        shown = inspect.show_documents(dataset, args.id)
        lines = [line for each in shown for line in inspect.describe_document(each)]
        return Answer({"documents": [asdict(each) for each in shown]}, lines)
    if args.shard is None and args.document is None and args.token is None:
        summary = inspect.summarize(dataset)
        return Answer(asdict(summary), inspect.describe_summary(summary))
    document = inspect.show_document(dataset, args.shard, args.document, args.token)
    return Answer(asdict(document), inspect.describe_document(document))


def _inspect_dropped(args: Namespace) -> Answer:
    from fineshards.inspection.dropped import describe_dropped, show_dropped

    for name in ("shard", "token", "id"):
        if getattr(args, name) is not None:
            raise UsageError(f"--dropped shows what is in no shard: leave out --{name}.")
    document = None if args.document is None else str(args.document)
    wanted = 3 if args.count is None else args.count
    dataset = opened(args.folder, args.generation, args.sources)
    trust_input = args.trust_input
    found = show_dropped(dataset, args.reason, args.step, document, wanted, trust_input=trust_input)
    return Answer(asdict(found), describe_dropped(found))


INSPECT = Command(
    "inspect",
    "show a dataset, or the text of one of its documents",
    "FOLDER [--shard S/N] [--document N | --token N | --id ID | --dropped]",
    "Describes a dataset, or shows a document: its source, its tokens and its text. Or\n"
    "documents that its recipe dropped, beside the earlier ones that they repeat.",
    (
        "fineshards inspect out",
        "fineshards inspect out --document 12",
        "fineshards inspect out --id 2024-17",
        "fineshards inspect out --shard train/0 --token 50000",
        "fineshards inspect out --dropped --step 2 --count 5",
        "fineshards inspect out --dropped --document part-0.parquet:17",
    ),
    _add_flags,
    _inspect,
)
