"""The commands that look: `status`, and of a dataset `stats`, `explain`, `inspect`, `report`."""

import signal
from argparse import Namespace

from fineshards.cli.command import (
    Answer,
    Command,
    add_flag,
    add_folder,
    add_folder_and_generation,
    add_sources,
)
from fineshards.errors import UsageError
from fineshards.flags import count
from fineshards.parser import Parser
from fineshards.worker import own_process


def _add_status_flags(parser: Parser) -> None:
    add_folder(parser)
    add_flag(parser, "--watch", "Show the progress until the job has finished.")


def _status(args: Namespace) -> Answer | int:
    from fineshards.cli.terminal import INTERRUPTED
    from fineshards.job_status.progress_words import describe_status
    from fineshards.job_status.status import status

    if args.watch:
        try:
            _watch(args.folder)
        except KeyboardInterrupt:  # ends the looking, and not the job
            return INTERRUPTED
    progress = status(args.folder)
    return Answer(progress, describe_status(progress))


def _watch(folder: str) -> None:
    """Shows the progress of a job until its end."""
    from fineshards.cli.terminal import error_console, set_up_logging
    from fineshards.job_status.progress_words import follow
    from fineshards.job_status.status import StatusReader
    from fineshards.storage.open import open_storage

    # A table that is being drawn hides the cursor; an exception brings it back.
    own_process.raise_instead(signal.SIGINT)
    console = error_console()
    set_up_logging(console, local=True)
    follow(StatusReader(open_storage(folder)), console)


STATUS = Command(
    "status",
    "show the progress of a build, wherever it runs",
    "FOLDER [--watch] [--json]",
    "Shows how far a build is, from the files in its output folder.",
    (
        "fineshards status out",
        "fineshards status out --watch",
        "fineshards status gs://bucket/out --json",
    ),
    _add_status_flags,
    _status,
)


def _add_stats_flags(parser: Parser) -> None:
    add_folder_and_generation(parser)
    shown = parser.add_argument_group("what is shown; by default, all")
    add_flag(shown, "--step N", "What step N of the recipe, from 1, finds and drops.")
    add_flag(shown, "--where SQL", "How many documents satisfy a condition on their scores.")
    add_flag(shown, "--column NAME", "Values of a column of the sources, a score, id or file.")
    add_flag(shown, "--top N", "How many values of the column. Default: 10.", default=10)
    add_sources(parser, trusts=True)


def _stats(args: Namespace) -> Answer:
    from fineshards.inspection.stats import describe_stats, stats

    statistics = stats(**{name: value for name, value in vars(args).items() if name != "json"})
    return Answer(statistics, describe_stats(statistics))


STATS = Command(
    "stats",
    "show the statistics of a dataset and of the steps of its recipe",
    "FOLDER [--step N | --where SQL | --column NAME] [--json]",
    "Shows what each step found and dropped, and the dataset's documents by length, language\n"
    "and dump. They are counted where documents pass steps, and with --statistics.\n"
    "--column counts the values of any column, and of url the hosts; it reads the sources.",
    (
        "fineshards stats out",
        "fineshards stats out --step 2",
        "fineshards stats out --column url",
        "fineshards stats out --where 'quality > 0.5'",
    ),
    _add_stats_flags,
    _stats,
)


def _add_explain_flags(parser: Parser) -> None:
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
    from fineshards.inspection import explain

    given = {name: value for name, value in vars(args).items() if name not in ("folder", "json")}
    explained = explain.explain(args.folder, **given)
    if isinstance(explained, explain.ExplainedStep):
        return Answer(explained, explain.describe_step(explained))
    with_steps = args.state is not None or args.batch_size is not None
    documents = {"documents": explained}
    return Answer(documents, explain.describe_documents(explained, with_steps))


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
    _add_explain_flags,
    _explain,
)


def _add_inspect_flags(parser: Parser) -> None:
    add_folder_and_generation(parser)
    place = parser.add_argument_group("a document; without these, the dataset is described")
    add_flag(place, "--shard SPLIT/N", "A shard, such as train/0, in which to count.")
    which = place.add_mutually_exclusive_group()
    about = "Document N, from 0, of the dataset or, with --shard, of the shard."
    add_flag(which, "--document N", about, type=_number_or_place)
    add_flag(which, "--token N", "The document that has token N of the dataset, or of the shard.")
    add_flag(which, "--id ID", "All documents of the dataset with this id.")
    add_flag(place, "--find", "Show the shards that hold it, and not its text.")
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
    from fineshards.sources.roots import opened
    from fineshards.storage.open import open_storage

    if args.dropped:
        return _inspect_dropped(args)
    for name in ("reason", "step", "count", "sources", "trust_input"):
        if getattr(args, name) not in (None, [], False):
            raise UsageError(f"--{name} goes with --dropped.")
    if isinstance(args.document, str):
        raise UsageError(f"--document {args.document}: FILE:ROW goes with --dropped.")
    if args.shard is not None and args.id is not None:
        raise UsageError("--id looks through the whole dataset: leave out --shard.")
    if args.find:
        if args.shard is not None or args.document is not None:
            raise UsageError("--find goes with --id or --token of the whole dataset alone.")
        return _find(args)
    dataset = opened(open_storage(args.folder), args.generation, ())
    if args.id is not None:
        shown = inspect.show_documents(dataset, args.id)
        lines = [line for document in shown for line in inspect.describe_document(document)]
        return Answer({"documents": shown}, lines)
    if args.shard is None and args.document is None and args.token is None:
        summary = inspect.summarize(dataset)
        return Answer(summary, inspect.describe_summary(summary))
    document = inspect.show_document(dataset, args.shard, args.document, args.token)
    return Answer(document, inspect.describe_document(document))


def _find(args: Namespace) -> Answer:
    from fineshards.inspection.inspect import Matches, describe_matches, describe_place, find

    places = find(args.folder, id=args.id, token=args.token, generation=args.generation)
    if isinstance(places, Matches):
        return Answer(places, describe_matches(places), 0 if places.matches else 1)
    return Answer(places, describe_place(places))


def _inspect_dropped(args: Namespace) -> Answer:
    from fineshards.inspection.dropped import describe_dropped, show_dropped
    from fineshards.sources.roots import opened
    from fineshards.storage.open import open_storage

    for name in ("shard", "token", "id", "find"):
        if (given := getattr(args, name)) is not None and given is not False:
            raise UsageError(f"--dropped shows what is in no shard: leave out --{name}.")
    document = None if args.document is None else str(args.document)
    wanted = 3 if args.count is None else args.count
    dataset = opened(open_storage(args.folder), args.generation, args.sources)
    trust_input = args.trust_input
    shown = show_dropped(dataset, args.reason, args.step, document, wanted, trust_input=trust_input)
    return Answer(shown, describe_dropped(shown))


INSPECT = Command(
    "inspect",
    "show a dataset, or the text of one of its documents",
    "FOLDER [--shard S/N] [--document N | --token N | --id ID] [--find]",
    "Describes a dataset, or shows a document: its source, its tokens and its text. Or\n"
    "documents that its recipe dropped, next to the earlier ones that they repeat.\n"
    "Exits with 1 if --find finds no document.",
    (
        "fineshards inspect out",
        "fineshards inspect out --document 12",
        "fineshards inspect out --id 2024-17",
        "fineshards inspect out --find --token 250000",
        "fineshards inspect out --shard train/0 --token 50000",
        "fineshards inspect out --dropped --step 2 --count 5",
        "fineshards inspect out --dropped --document part-0.parquet:17",
    ),
    _add_inspect_flags,
    _inspect,
)


def _add_report_flags(parser: Parser) -> None:
    add_folder_and_generation(parser)
    what = parser.add_argument_group("the report")
    add_flag(
        what,
        "--output FILE",
        "The file to write, local, or a URL of gs:// or s3://. Default: NAME-report.html "
        "by the name of the dataset's folder, in the current folder, or next to the dataset if "
        "that is the dataset's own.",
    )
    add_flag(what, "--title TEXT", "Its heading. Default: the dataset's name or folder.")


def _report(args: Namespace) -> Answer:
    from fineshards.reports.report import describe_report, report

    written = report(**{name: value for name, value in vars(args).items() if name != "json"})
    return Answer(written, describe_report(written))


REPORT = Command(
    "report",
    "write a report of a dataset as an HTML page",
    "FOLDER [--output FILE] [--title TEXT] [--json]",
    "Writes one HTML file about a finished dataset: splits, lengths, sources, what each step of\n"
    "the recipe dropped, and documents with their tokens. It needs no network.",
    ("fineshards report out", "fineshards report out --output out.html"),
    _add_report_flags,
    _report,
)
