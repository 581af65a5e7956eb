"""The command `explain`: the documents of a training step, or the steps of a document."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from fineshards.cli.command import Command, add_folder
from fineshards.cli.outcome import Outcome
from fineshards.cli.quantities import count
from fineshards.errors import UsageError
from fineshards.parser import Parser


def _add_flags(parser: Parser) -> None:
    add_folder(parser)
    what = parser.add_argument_group("a training step, or a document")
    what.add_argument(
        "--state",
        metavar="FILE",
        help="JSON of what BatchLoader.state_dict() returned: the order of the samples.",
    )
    which = what.add_mutually_exclusive_group()
    which.add_argument(
        "--step",
        type=count,
        metavar="N",
        help="The step (global batch), from 0. Default: the last one before the state.",
    )
    which.add_argument(
        "--document", type=count, metavar="N", help="Document N of the dataset, from 0."
    )
    which.add_argument("--id", metavar="ID", help="All documents with this id.")
    more = parser.add_argument_group("details")
    more.add_argument(
        "--rank", type=count, default=0, metavar="R", help="Only the rows of one rank. Default: 0."
    )
    more.add_argument(
        "--world_size", type=count, default=1, metavar="W", help="Number of ranks. Default: 1."
    )
    more.add_argument(
        "--batch_size", type=count, metavar="B", help="Batch size. Default: that of the saved run."
    )
    more.add_argument(
        "--epochs", type=count, default=1, metavar="E", help="Epochs to look at. Default: 1."
    )
    more.add_argument(
        "--sequence_length", type=count, metavar="T", help="For a document without --state."
    )


def _explain(args: Namespace) -> Outcome:
    from fineshards.inspection import explain

    loader = split = None
    if args.state is not None:
        state = explain.load_state(args.state)
        loader, split = explain.loader_of(
            args.folder, state, args.batch_size, args.rank, args.world_size
        )
    if args.document is not None or args.id is not None:
        found = explain.explain_document(
            args.folder, args.document, args.id, args.sequence_length, loader, args.epochs
        )
        lines = explain.describe_documents(found, loader is not None)
        return Outcome({"documents": [asdict(each) for each in found]}, lines)
    if loader is None or split is None:
        raise UsageError("give --state, or a --document or --id with --sequence_length.")
    step = explain.explain_step(args.folder, loader, split, args.step)
    return Outcome(asdict(step), explain.describe_step(step))


EXPLAIN = Command(
    "explain",
    "show the documents of a training step, or the steps of a document",
    "FOLDER (--state FILE [--step N] | --document N | --id ID) [flags]",
    "Shows what a training step was made of, by the state that the loader saved, or the\n"
    "samples that hold a document and the steps that draw them.",
    (
        "fineshards explain out --state state.json --step 1200",
        "fineshards explain out --id 1234 --state state.json --epochs 3",
        "fineshards explain out --document 5 --sequence_length 2048",
    ),
    _add_flags,
    _explain,
)
