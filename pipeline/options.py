"""The flags of `build`: one frozen dataclass, checked once. All others are Beam's, or errors."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, NoReturn

from shards.errors import UsageError
from shards.gcs_objects import SCHEME
from shards.layout import SplitRule

# The seed's shard size.
DEFAULT_SHARD_TOKENS = 100_000_000
# One tenth of the windows, unless the seed's rule (--test_shards) is asked for.
DEFAULT_TEST_FRACTION = "1/10"
# All give the same tokens; auto is gigatoken where it may be (encoders/loading.py).
_ENGINES = ("auto", "gigatoken", "tiktoken", "tokenizers")
# Both give the same bytes; auto is compose on gs:// (shards/assembly.py).
_ASSEMBLIES = ("auto", "compose", "stream")
# Runners whose job service has options of its own, which it describes: pipeline/portable.py.
_DESCRIBED = frozenset({"flink", "portable", "spark"})


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What to build. Either `inputs` or `dataset` is given; `beam_args` are passed on to Beam.

    id_column: None when the user did not name one; then `id` is read where a file has it.
    tokenizer: a tiktoken encoding, or the path of a tokenizer.json. eot_token: None for the usual.
    block_bytes: None to go by the size of the input. assembly: see shards/assembly.py.
    """

    inputs: tuple[str, ...]
    dataset: str | None
    dataset_config: str | None
    dataset_split: str
    dataset_revision: str | None
    output: str
    text_column: str
    id_column: str | None
    tokenizer: str
    eot_token: str | None
    engine: str
    shard_tokens: int
    dtype: str
    split: SplitRule
    block_bytes: int | None
    assembly: str
    max_bad_rows: int
    overwrite: bool
    keep_checkpoints: bool
    beam_args: tuple[str, ...]


class Parser(argparse.ArgumentParser):
    """A parser that reports mistakes as UsageError, so that they look like all other errors."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Called by argparse for a mistake in the command."""
        raise UsageError(f"{message}. See {self.prog} --help.")


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """What to tune: `build` as it would be with the defaults.

    seconds: how long to try. work: folder for the sample, None for the system's temporary one.
    given: the flags of `build` that the user gave, to be given to it again.
    """

    build: BuildOptions
    given: tuple[str, ...]
    seconds: float
    work: str | None
    json: bool


def add_build_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `build`; every value may be given as `--flag=value`, as templates do."""
    _add_input_flags(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--output", required=True, metavar="FOLDER", help="where the shards go")
    _add_tokenizer_flags(output)
    output.add_argument(
        "--shard_tokens",
        type=_positive,
        metavar="N",
        default=DEFAULT_SHARD_TOKENS,
        help=f"tokens a shard; default: {DEFAULT_SHARD_TOKENS:,}",
    )
    output.add_argument(
        "--test_fraction",
        type=_fraction,
        metavar="F",
        help="share of the shards that are test shards, the first ones; default: 0.1",
    )
    output.add_argument(
        "--test_shards", type=_not_negative, metavar="N", help="number of test shards instead"
    )
    output.add_argument(
        "--overwrite",
        type=_boolean,
        nargs="?",
        const=True,
        default=False,
        metavar="BOOL",
        help="delete what the output folder holds of another job, and start anew",
    )
    work = parser.add_argument_group("work")
    _add_engine_flag(work)
    work.add_argument(
        "--block_bytes",
        type=_positive,
        metavar="N",
        help="bytes of text a unit of work; default: 16 to 64 MiB, by the size of the input",
    )
    work.add_argument(
        "--assembly",
        choices=_ASSEMBLIES,
        default="auto",
        help="how a shard is made of token blocks: compose leaves it to Cloud Storage, stream "
        "copies them through the workers. The bytes are the same. default: auto, compose on gs://",
    )
    _add_bad_rows_flag(work)
    work.add_argument(
        "--keep_checkpoints",
        type=_boolean,
        nargs="?",
        const=True,
        default=False,
        metavar="BOOL",
        help="do not delete the token blocks at the end",
    )
    parser.epilog = (
        "Every option of Apache Beam is taken too, such as --runner=DataflowRunner --region=… "
        "or --direct_num_workers=8. Without --runner the job runs on this machine."
    )


def add_tune_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `tune`: those of `build` that decide the work, and its own."""
    _add_input_flags(parser)
    work = parser.add_argument_group("work")
    _add_tokenizer_flags(work)
    _add_engine_flag(work)
    _add_bad_rows_flag(work)
    tuning = parser.add_argument_group("tuning")
    tuning.add_argument(
        "--seconds",
        type=_positive,
        metavar="N",
        default=60,
        help="how long to try, about; default: 60",
    )
    tuning.add_argument(
        "--work",
        metavar="FOLDER",
        help="where a sample and what is built of it are put meanwhile, best on the disk of the "
        "later output; default: the system's temporary folder",
    )
    tuning.add_argument("--json", action="store_true", help="for machines")


def _add_input_flags(parser: argparse.ArgumentParser) -> None:
    source = parser.add_argument_group("input (--input or --dataset)")
    source.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="PATTERN",
        help="files to read, such as 'data/*.parquet' or 'gs://bucket/data/*.parquet'; may be "
        "repeated. Files come in the order given, each pattern's matches sorted. Formats: "
        ".parquet; .jsonl plain, .gz or .zst",
    )
    source.add_argument(
        "--dataset",
        metavar="NAME_OR_FOLDER",
        help="a dataset of the Hugging Face hub, or a local folder laid out like one",
    )
    source.add_argument("--dataset_config", metavar="NAME", help="such as sample-350BT")
    source.add_argument("--dataset_split", metavar="NAME", default="train", help="default: train")
    source.add_argument("--dataset_revision", metavar="REVISION", help="branch, tag or commit")
    source.add_argument("--text_column", metavar="NAME", default="text", help="default: text")
    source.add_argument(
        "--id_column", metavar="NAME", help="names documents in the index; default: id, if present"
    )


def _add_tokenizer_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--tokenizer",
        metavar="NAME_OR_FILE",
        default="cl100k_base",
        help="a tiktoken encoding, or a tokenizer.json of Hugging Face's tokenizers library; "
        "default: cl100k_base",
    )
    group.add_argument(
        "--eot_token",
        metavar="TEXT",
        help="the special token that begins documents; default: <|endoftext|>, if there is one",
    )
    group.add_argument(
        "--dtype",
        choices=("auto", "uint16", "uint32"),
        default="uint32",
        help="of the tokens in the shards; auto is uint16 where every id of the tokenizer fits. "
        "default: uint32",
    )


def _add_engine_flag(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--tokenizer_engine",
        choices=_ENGINES,
        default="auto",
        help="the library that does it; all give the same tokens. default: auto, the fastest that "
        "is known to",
    )


def _add_bad_rows_flag(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max_bad_rows",
        type=_not_negative,
        metavar="N",
        default=0,
        help="rows that may be unreadable; they are set aside in metadata/rejected/. Default: 0",
    )


def parse_build_flags(parser: argparse.ArgumentParser, argv: Sequence[str]) -> BuildOptions:
    """The options of a command line; raises UsageError for what is wrong or contradicts itself."""
    args, beam_args = parser.parse_known_args(list(argv))
    options = _build_options(args, beam_args)
    # What a template is given has been checked by Dataflow, which may add flags of its own.
    described = launches_template(options) or runner_name(beam_args) in _DESCRIBED
    if beam_args and not described:
        refuse_unknown(beam_args)
    return options


def launches_template(options: BuildOptions) -> bool:
    """Whether this is a template's launcher: Dataflow waits for a job file from it."""
    return any(arg.split("=")[0] == "--template_location" for arg in options.beam_args)


def parse_tune_flags(parser: argparse.ArgumentParser, argv: Sequence[str]) -> TuneOptions:
    """The options of a `tune` command; raises UsageError for what is wrong."""
    args = parser.parse_args(list(argv))
    own = {"seconds", "work", "json"}
    given = []
    for name, value in vars(args).items():
        if name not in own and value != parser.get_default(name):
            values = value if isinstance(value, list) else [value]
            given += [f"--{name}={one}" for one in values]
    # What `build` takes and `tune` does not, as it is when it is left out.
    others = argparse.ArgumentParser()
    add_build_flags(others)
    for name, value in vars(others.parse_args(["--output=out"])).items():
        if not hasattr(args, name):
            setattr(args, name, value)
    options = _build_options(args, [])
    return TuneOptions(options, tuple(given), args.seconds, args.work, args.json)


def _build_options(args: argparse.Namespace, beam_args: list[str]) -> BuildOptions:
    if bool(args.input) == bool(args.dataset):
        raise UsageError("give either --input or --dataset, one of them: it names what to read.")
    if args.dataset and args.dataset.startswith(SCHEME):
        raise UsageError(
            f"--dataset {args.dataset}: a dataset is a name on the Hugging Face hub or a local "
            "folder; for objects use --input, such as --input 'gs://bucket/folder/*.parquet'."
        )
    if args.test_fraction is not None and args.test_shards is not None:
        raise UsageError("--test_fraction and --test_shards exclude each other; give one.")
    for flag in ("dataset_config", "dataset_revision"):
        if getattr(args, flag) and not args.dataset:
            raise UsageError(f"--{flag} goes with --dataset; with --input it has no meaning.")
    if args.assembly == "compose" and "://" not in args.output:
        raise UsageError(
            f"--assembly compose is for gs:// only, and --output {args.output} is a local folder. "
            "Leave the flag out."
        )
    fraction = args.test_fraction
    if args.test_shards is None and fraction is None:
        fraction = DEFAULT_TEST_FRACTION
    return BuildOptions(
        inputs=tuple(args.input),
        dataset=args.dataset,
        dataset_config=args.dataset_config,
        dataset_split=args.dataset_split,
        dataset_revision=args.dataset_revision,
        output=args.output,
        text_column=args.text_column,
        id_column=args.id_column,
        tokenizer=args.tokenizer,
        eot_token=args.eot_token,
        engine=args.tokenizer_engine,
        shard_tokens=args.shard_tokens,
        dtype=args.dtype,
        split=SplitRule(fraction, args.test_shards),
        block_bytes=args.block_bytes,
        assembly=args.assembly,
        max_bad_rows=args.max_bad_rows,
        overwrite=args.overwrite,
        keep_checkpoints=args.keep_checkpoints,
        beam_args=tuple(beam_args),
    )


def runner_name(beam_args: Sequence[str]) -> str:
    """The runner that is asked for, in any of the ways that Beam takes: in lower case, without
    `runner`; empty if there is none. Quick, without Beam.
    """
    words = [word for arg in beam_args for word in arg.split("=", 1)]
    runner = dict(pairwise(words)).get("--runner", "")
    return runner.rpartition(".")[2].lower().removesuffix("runner")


def refuse_unknown(
    beam_args: Sequence[str], add_described: Callable[[Any], None] = lambda parser: None
) -> None:
    """Raises UsageError for arguments that no Beam option takes; Beam itself only warns.

    add_described: adds to a parser the options that a job service has described.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    parser = Parser(prog="fineshards build", add_help=False, conflict_handler="resolve")
    pending = PipelineOptions.__subclasses__()
    while pending:
        options = pending.pop()
        pending += options.__subclasses__()
        if "_add_argparse_args" in vars(options):
            options._add_argparse_args(parser)
    add_described(parser)
    _, unknown = parser.parse_known_args(list(beam_args))
    if unknown:
        raise UsageError(
            f"unknown flag {unknown[0]}: neither fineshards nor Beam has it. "
            "See fineshards build --help."
        )


def _positive(text: str) -> int:
    value = _not_negative(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be at least 1, got 0")
    return value


def _not_negative(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, got {value}")
    return value


def _fraction(text: str) -> str:
    """The fraction in its simplest form, so that 0.1 and 0.10 are the same job."""
    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"must be a number such as 0.1, got {text!r}") from None
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must lie between 0 and 1, got {text}")
    return str(value)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"must be true or false, got {text!r}")
    return text.lower() == "true"
