"""The command `explain`: the documents of a training step, or the steps of a document."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from fineshards.cli.answer import Answer
from fineshards.cli.command import Command, add_flag, add_folder
from fineshards.errors import UsageError
from fineshards.parser import Parser


def _add_flags(parser: Parser) -> None:
    add_folder(parser)
    what = parser.add_argument_group("a training step, or a document")
    add_flag(
        what,
        "--state FILE",
        "JSON of what BatchLoader.state_dict() returned: the order of the samples. Or give --seed, "
        "--batch_size and --sequence_length of a training on the train split.",
    )
    which = what.add_mutually_exclusive_group()
    add_flag(
        which,
        "--step N",
        "The step (global batch), from 0. Default: the last one before the state.",
    )
    add_flag(which, "--document N", "Document N of the dataset, from 0.")
    add_flag(which, "--id ID", "All documents with this id.")
    more = parser.add_argument_group("details")
    add_flag(more, "--rank R", "Only the rows of one rank. Default: 0.", default=0)
    add_flag(more, "--world_size W", "Number of ranks. Default: 1.", default=1)
    add_flag(more, "--batch_size B", "Batch size. Default: that of the saved run.")
    add_flag(more, "--epochs E", "Epochs to look at. Default: 1.", default=1)
    add_flag(more, "--sequence_length T", "Without --state: the length of a sample.")
    add_flag(more, "--seed S", "Without --state: the seed of the shuffle.")


def _explain(args: Namespace) -> Answer:
    from fineshards.inspection import explain

    loader = split = None
    if args.state is not None:
        state = explain.load_state(args.state)
        loader, split = explain.loader_of(
            args.folder, state, args.batch_size, args.rank, args.world_size
        )
    elif args.seed is not None or args.step is not None:
        loader, split = explain.new_loader(
            args.folder,
            args.seed,
            args.batch_size,
            args.sequence_length,
            args.rank,
            args.world_size,
        )
    if args.document is not None or args.id is not None:
        found = explain.explain_document(
            args.folder, args.document, args.id, args.sequence_length, loader, args.epochs
        )
        lines = explain.describe_documents(found, loader is not None)
        return Answer({"documents": [asdict(each) for each in found]}, lines)
    if loader is None or split is None:
        raise UsageError("give --state, or a --document or --id with --sequence_length.")
    step = explain.explain_step(args.folder, loader, split, args.step)
    return Answer(asdict(step), explain.describe_step(step))


EXPLAIN = Command(
    "explain",
    "show the documents of a training step, or the steps of a document",
    "FOLDER (--step N | --document N | --id ID) [--state FILE] [flags]",
    "Shows what a training step was made of, by the state that the loader saved or the seed\n"
    "that it was given, or the samples that hold a document and the steps that draw them.",
    (
        "fineshards explain out --state state.json --step 1200",
        "fineshards explain out --step 10 --seed 1 --batch_size 512 --sequence_length 2048",
        "fineshards explain out --id 1234 --state state.json --epochs 3",
        "fineshards explain out --document 5 --sequence_length 2048",
    ),
    _add_flags,
    _explain,
)
