"""The command `explain`: the documents of a training step, or the steps of a document."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from fineshards.cli.answer import Answer
from fineshards.cli.command import Command, add_flag, add_folder
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
    add_flag(more, "--seed S", "Without --state: the seed of the shuffle. Default: 0.", default=0)


def _explain(args: Namespace) -> Answer:
    from fineshards.inspection.explain import (
        ExplainedStep,
        describe_documents,
        describe_step,
        explain,
    )

    given = {name: value for name, value in vars(args).items() if name not in ("folder", "json")}
    found = explain(args.folder, **given)
    if isinstance(found, ExplainedStep):
        return Answer(asdict(found), describe_step(found))
    with_steps = args.state is not None or args.batch_size is not None
    documents = {"documents": [asdict(each) for each in found]}
    return Answer(documents, describe_documents(found, with_steps))


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
