"""The commands: how each is called, what its help page says, and what it does.

Libraries are imported by the command that runs, so that help pages and mistakes are quick.
"""

from __future__ import annotations

from argparse import Action, ArgumentTypeError, Namespace, _ArgumentGroup
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from fineshards.errors import UsageError
from fineshards.pipeline.export_command import add_export_flags, run_export
from fineshards.pipeline.options import (
    add_append_flags,
    add_build_flags,
    add_estimate_flags,
    add_import_flags,
    append_config,
    config_of,
    import_config,
    parse_estimate_flags,
)
from fineshards.pipeline.outcome import Outcome, note, show
from fineshards.pipeline.parser import Parser
from fineshards.pipeline.quantities import count
from fineshards.pipeline.recipe_command import add_recipe_flags, run_recipe
from fineshards.pipeline.status_command import add_status_flags, run_status

if TYPE_CHECKING:
    from fineshards.shards.dataset import Dataset


@dataclass(frozen=True, slots=True)
class Command:
    """A command.

    summary: its line in the list of commands. usage: its arguments in short. about: the first lines
    of its help page. examples: shell commands, and what else ends the page.
    run: takes the parser and the arguments, and returns the exit code.
    """

    name: str
    summary: str
    usage: str
    about: str
    examples: tuple[str, ...]
    add_flags: Callable[[Parser], None]
    run: Callable[[Parser, Sequence[str]], int]

    def parser(self) -> Parser:
        """The command's parser, with its help page."""
        parser = Parser(
            prog=f"fineshards {self.name}",
            usage=f"fineshards {self.name} {self.usage}",
            description=self.about,
            epilog="\n".join(["examples:", *(f"  {example}" for example in self.examples)]),
            add_help=False,
        )
        self.add_flags(parser)
        general = parser.add_argument_group("general")
        general.add_argument("--json", action="store_true", help="Print one JSON object.")
        general.add_argument("-h", "--help", action="help", help="Show this page.")
        return parser

    def words(self) -> list[str]:
        """The words that may follow the command."""
        return [
            str(word)
            for action in self.parser()._actions
            if not action.option_strings
            for word in action.choices or ()
        ]

    def flags(self) -> list[Action]:
        """The command's flags, as argparse describes them."""
        return [action for action in self.parser()._actions if action.option_strings]


def _add_folder(parser: Parser) -> None:
    _folder_group(parser)


def _add_folder_and_generation(parser: Parser) -> None:
    _folder_group(parser).add_argument(
        "--generation",
        type=count,
        metavar="N",
        help="Generation N, from 1, of a dataset that has grown. Default: the latest.",
    )


def _folder_group(parser: Parser) -> _ArgumentGroup:
    group = parser.add_argument_group("dataset")
    group.add_argument(
        "folder", metavar="FOLDER", help="The dataset's folder, local, or a URL of gs:// or s3://."
    )
    return group


def _build(parser: Parser, arguments: Sequence[str]) -> int:
    args, beam_args = parser.parse_known_args(arguments)
    config = config_of(parser, args, beam_args)
    # Imported after the flags are parsed, so that --help and mistakes need no numpy.
    from fineshards.pipeline.main import build

    return show(build(config), args.json)


def _import(parser: Parser, arguments: Sequence[str]) -> int:
    args, beam_args = parser.parse_known_args(arguments)
    config = import_config(parser, args, beam_args)
    from fineshards.pipeline.main import build

    return show(build(config), args.json)


def _add_append_flags(parser: Parser) -> None:
    _add_folder(parser)
    add_append_flags(parser)


def _append(parser: Parser, arguments: Sequence[str]) -> int:
    args, beam_args = parser.parse_known_args(arguments)
    config = append_config(parser, args, beam_args)
    from fineshards.pipeline.main import build

    return show(build(config), args.json)


def _add_status_flags(parser: Parser) -> None:
    _add_folder(parser)
    add_status_flags(parser)


def _add_verify_flags(parser: Parser) -> None:
    _add_folder_and_generation(parser)
    parser.add_argument_group("what is checked").add_argument(
        "--sample",
        type=_percentage,
        default=0.0,
        metavar="P",
        help="Also tokenize P percent of the documents again from their sources, and compare. "
        "Default: 0.",
    )


def _verify(parser: Parser, arguments: Sequence[str]) -> int:
    args = parser.parse_args(arguments)
    from fineshards.commands.verify import describe_verdict, verify

    verdict = verify(args.folder, sample=args.sample, generation=args.generation)
    outcome = Outcome(asdict(verdict), describe_verdict(verdict), 0 if verdict.ok else 1)
    return show(outcome, args.json)


def _add_inspect_flags(parser: Parser) -> None:
    _add_folder_and_generation(parser)
    place = parser.add_argument_group("a document; without these, the dataset is described")
    place.add_argument("--shard", metavar="SPLIT/N", help="A shard, such as train/0.")
    which = place.add_mutually_exclusive_group()
    which.add_argument(
        "--document",
        type=_number_or_place,
        metavar="N",
        help="The shard's document N, from 0. Default: 0.",
    )
    which.add_argument(
        "--token", type=count, metavar="N", help="The document that has the shard's token N."
    )
    dropped = parser.add_argument_group("what the recipe dropped or cut")
    dropped.add_argument(
        "--dropped",
        action="store_true",
        help="Show documents that were dropped or cut, the same ones every time. With --document "
        "FILE:ROW, a row of a source file, by path or number.",
    )
    dropped.add_argument("--reason", metavar="R", help="Only those dropped for this reason.")
    dropped.add_argument("--step", type=count, metavar="N", help="Only those of step N, from 1.")
    dropped.add_argument("--count", type=count, metavar="N", help="How many to show. Default: 3.")


def _number_or_place(text: str) -> int | str:
    """The number of a document, or the FILE:ROW of one."""
    return text if ":" in text else count(text)


def _inspect(parser: Parser, arguments: Sequence[str]) -> int:
    args = parser.parse_args(arguments)
    from fineshards.commands import inspect

    if args.dropped:
        return _inspect_dropped(args)
    for name in ("reason", "step", "count"):
        if getattr(args, name) is not None:
            raise UsageError(f"--{name} goes with --dropped.")
    if isinstance(args.document, str):
        raise UsageError(f"--document {args.document}: FILE:ROW goes with --dropped.")
    if args.shard is None and (args.document, args.token) != (None, None):
        raise UsageError("--document and --token need --shard, such as --shard train/0.")
    dataset = _opened(args.folder, args.generation)
    if args.shard is None:
        summary = inspect.summarize(dataset)
        return show(Outcome(asdict(summary), inspect.describe_summary(summary)), args.json)
    document = inspect.show_document(dataset, args.shard, args.document, args.token)
    return show(Outcome(asdict(document), inspect.describe_document(document)), args.json)


def _inspect_dropped(args: Namespace) -> int:
    from fineshards.commands.dropped import describe_dropped, show_dropped

    if args.shard is not None or args.token is not None:
        raise UsageError("--dropped shows no shard: leave out --shard and --token.")
    document = None if args.document is None else str(args.document)
    wanted = 3 if args.count is None else args.count
    dataset = _opened(args.folder, args.generation)
    found = show_dropped(dataset, args.reason, args.step, document, wanted)
    return show(Outcome(asdict(found), describe_dropped(found)), args.json)


def _add_stats_flags(parser: Parser) -> None:
    _add_folder_and_generation(parser)
    parser.add_argument_group("what is shown; by default, all").add_argument(
        "--step",
        type=count,
        metavar="N",
        help="What step N of the recipe, from 1, finds and drops.",
    )


def _stats(parser: Parser, arguments: Sequence[str]) -> int:
    args = parser.parse_args(arguments)
    from fineshards.commands.stats import describe_stats, stats

    found = stats(args.folder, args.step, args.generation)
    return show(Outcome(asdict(found), describe_stats(found)), args.json)


def _add_find_flags(parser: Parser) -> None:
    _add_folder_and_generation(parser)
    place = parser.add_argument_group("what to find")
    which = place.add_mutually_exclusive_group(required=True)
    which.add_argument("--id", metavar="ID", help="All documents with this id.")
    which.add_argument(
        "--token",
        type=count,
        metavar="N",
        help="Token N of the dataset, from 0: test shards first, then train shards.",
    )


def _find(parser: Parser, arguments: Sequence[str]) -> int:
    args = parser.parse_args(arguments)
    from fineshards.commands import find

    dataset = _opened(args.folder, args.generation)
    if args.id is not None:
        found = find.find_id(dataset, args.id)
        lines = find.describe_found(found)
        return show(Outcome(asdict(found), lines, 0 if found.matches else 1), args.json)
    place = find.find_token(dataset, args.token)
    return show(Outcome(asdict(place), find.describe_place(place)), args.json)


def _add_explain_flags(parser: Parser) -> None:
    _add_folder(parser)
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
    more.add_argument("--world_size", type=count, default=1, metavar="W", help="Ranks. Default: 1.")
    more.add_argument(
        "--batch_size", type=count, metavar="B", help="Default: that of the run that saved it."
    )
    more.add_argument(
        "--epochs", type=count, default=1, metavar="E", help="Of a document. Default: 1."
    )
    more.add_argument(
        "--sequence_length", type=count, metavar="T", help="Of a document without --state."
    )


def _explain(parser: Parser, arguments: Sequence[str]) -> int:
    args = parser.parse_args(arguments)
    from fineshards.commands import explain

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
        return show(Outcome({"documents": [asdict(each) for each in found]}, lines), args.json)
    if loader is None or split is None:
        raise UsageError("give --state, or a --document or --id with --sequence_length.")
    step = explain.explain_step(args.folder, loader, split, args.step)
    return show(Outcome(asdict(step), explain.describe_step(step)), args.json)


def _add_repair_flags(parser: Parser) -> None:
    _add_folder(parser)
    parser.add_argument_group("what is needed").add_argument(
        "--tokenizer",
        metavar="PLACE",
        help="Where the tokenizer is, if its file in the dataset is damaged. Default: its name.",
    )


def _repair(parser: Parser, arguments: Sequence[str]) -> int:
    args = parser.parse_args(arguments)
    from fineshards.commands.repair import describe_repaired
    from fineshards.pipeline.repair import repair

    done = repair(args.folder, args.tokenizer)
    return show(Outcome(asdict(done), describe_repaired(done)), args.json)


def _add_redact_flags(parser: Parser) -> None:
    _add_folder(parser)
    which = parser.add_argument_group("which documents")
    which.add_argument("--ids", metavar="FILE", help="All with the ids in a file, one per line.")
    which.add_argument(
        "--documents",
        type=count,
        nargs="+",
        action="extend",
        default=[],
        metavar="N",
        help="Documents by their numbers in the dataset, which inspect and find show.",
    )


def _redact(parser: Parser, arguments: Sequence[str]) -> int:
    args = parser.parse_args(arguments)
    from fineshards.commands.redact import describe_redacted, read_ids, redact

    if args.ids is None and not args.documents:
        raise UsageError("give --ids, a file of ids, or --documents, their numbers.")
    ids = [] if args.ids is None else read_ids(args.ids)
    done = redact(args.folder, ids, args.documents)
    return show(Outcome(asdict(done), describe_redacted(done)), args.json)


def _add_export_flags(parser: Parser) -> None:
    _add_folder_and_generation(parser)
    add_export_flags(parser)


def _export(parser: Parser, arguments: Sequence[str]) -> int:
    return show(*run_export(parser, arguments))


def _estimate(parser: Parser, arguments: Sequence[str]) -> int:
    config, workers, as_json = parse_estimate_flags(parser, arguments)
    from fineshards.commands.estimate import describe_estimate
    from fineshards.pipeline.estimate import estimate

    note("reading a probe of the input …")
    found = estimate(config, workers)
    return show(Outcome(asdict(found), describe_estimate(found)), as_json)


def _recipe(parser: Parser, arguments: Sequence[str]) -> int:
    return show(*run_recipe(parser, arguments))


def _opened(folder: str, generation: int | None = None) -> Dataset:
    from fineshards.shards.dataset import Dataset
    from fineshards.storage.base import open_storage

    return Dataset.open(open_storage(folder), generation)


def _percentage(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"must be a number of percent, got {text!r}") from None


COMMANDS = (
    Command(
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
    ),
    Command(
        "import",
        "build a dataset of tokens that exist already",
        "--from FORMAT --input FILE... --tokenizer NAME --output FOLDER [flags]",
        "Makes a dataset of the token files of other trainers, without tokenizing again.\n"
        "Every id and every end-of-text token is checked. The same command resumes.",
        (
            "fineshards import --from megatron --input x.bin --tokenizer gpt2 --eot_side end "
            "--output out",
            "fineshards import --from llmc --input train.bin --test_input val.bin "
            "--tokenizer gpt2 --output out",
        ),
        add_import_flags,
        _import,
    ),
    Command(
        "append",
        "add files to a dataset, as a new generation of it",
        "FOLDER --input FILE... [flags]",
        "Adds new files at the end of a finished dataset, with the settings it was built with.\n"
        "Full shards stay as they are. After an interruption the same command resumes.",
        (
            "fineshards append out --input new/*.parquet",
            "fineshards append out --dataset OWNER/NAME --dataset_config CC-MAIN-2026-45",
        ),
        _add_append_flags,
        _append,
    ),
    Command(
        "status",
        "show the progress of a build, wherever it runs",
        "FOLDER [--watch | --serve [PORT]] [--json]",
        "Shows how far a build is, from the files in its output folder.",
        (
            "fineshards status out",
            "fineshards status out --watch",
            "fineshards status gs://bucket/out --serve",
        ),
        _add_status_flags,
        run_status,
    ),
    Command(
        "verify",
        "check that a dataset is complete and undamaged",
        "FOLDER [--sample P] [--json]",
        "Reads every file of a dataset and checks it against the manifest.\n"
        "Exits with 1 if there is a problem.",
        ("fineshards verify out", "fineshards verify out --sample 1"),
        _add_verify_flags,
        _verify,
    ),
    Command(
        "inspect",
        "show a dataset, or the text of one of its documents",
        "FOLDER [--shard SPLIT/N [--document N | --token N] | --dropped] [--json]",
        "Describes a dataset, or shows a document: its source, its tokens and its text. Or\n"
        "documents that its recipe dropped, beside the earlier ones that they repeat.",
        (
            "fineshards inspect out",
            "fineshards inspect out --shard train/0 --document 12",
            "fineshards inspect out --shard train/0 --token 50000",
            "fineshards inspect out --dropped --step 2 --count 5",
            "fineshards inspect out --dropped --document part-0.parquet:17",
        ),
        _add_inspect_flags,
        _inspect,
    ),
    Command(
        "stats",
        "show the statistics of a dataset and of the steps of its recipe",
        "FOLDER [--step N] [--json]",
        "Shows what each step found and dropped, and the dataset's documents by length, language,\n"
        "score and host. They are counted where documents pass steps, and with --statistics.",
        ("fineshards stats out", "fineshards stats out --step 2"),
        _add_stats_flags,
        _stats,
    ),
    Command(
        "find",
        "find a document by its id, or a token by its number",
        "FOLDER (--id ID | --token N) [--json]",
        "Finds the shards that hold a document, and the document that holds a token.\n"
        "Exits with 1 if no document has the id.",
        ("fineshards find out --id 1234", "fineshards find out --token 250000"),
        _add_find_flags,
        _find,
    ),
    Command(
        "export",
        "write a dataset as files of another trainer",
        "FOLDER --to FORMAT --output FOLDER [flags]",
        "Writes the tokens as files that Megatron, nanotron, OLMo-core and others read, without\n"
        "tokenizing again. An interrupted export resumes; fineshards verify checks the files.",
        (
            "fineshards export out --to megatron --output out-megatron",
            "fineshards export out --to raw --split train --output out-raw",
            "",
            "With an option of Apache Beam, such as --runner=DataflowRunner, it is a job there.",
        ),
        _add_export_flags,
        _export,
    ),
    Command(
        "repair",
        "make lost and damaged files of a dataset again, from its sources",
        "FOLDER [--tokenizer PLACE] [--json]",
        "Reads every file of a dataset, and makes those again that are not what the manifest\n"
        "says. Changes nothing unless all of them can be made as they were.",
        ("fineshards repair out",),
        _add_repair_flags,
        _repair,
    ),
    Command(
        "redact",
        "overwrite documents in place, as a new generation",
        "FOLDER (--ids FILE | --documents N...) [--json]",
        "Overwrites the tokens of documents with the end-of-text token. Nothing moves: shards\n"
        "keep their length, and the state of a training stays valid. It cannot be undone.",
        (
            "fineshards redact out --ids ids.txt",
            "fineshards redact out --documents 17 2305",
        ),
        _add_redact_flags,
        _redact,
    ),
    Command(
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
        _add_explain_flags,
        _explain,
    ),
    Command(
        "estimate",
        "say what a build will give, take and cost",
        "--input FILE... [flags]",
        "Tokenizes a probe of the input, and says how many tokens the whole will give, how long\n"
        "it takes and what it needs on this machine, and what it would cost on Dataflow.",
        ("fineshards estimate --input data/*.parquet",),
        add_estimate_flags,
        _estimate,
    ),
    Command(
        "recipe",
        "show recipes and their steps, and try them on a probe of the input",
        "show NAME | steps [NAME] | check NAME --input FILE... [flags]",
        "show prints a recipe as TOML: one that fineshards has, a file, or that of a dataset.\n"
        "steps lists what recipes are made of, and shows the parameters of a step.\n"
        "check runs a recipe over a probe of the input, and shows what each step keeps and drops.\n"
        "It writes nothing.",
        (
            "fineshards recipe show fineweb > recipe.toml",
            "fineshards recipe steps minhash",
            "fineshards recipe check recipe.toml --input data/*.parquet",
            "fineshards recipe check --where 'language_score > 0.9' --dedup exact "
            "--input data/*.parquet",
        ),
        add_recipe_flags,
        _recipe,
    ),
)
