"""The commands that build: `build`, `append`, and `estimate` and `recipe` beforehand."""

import tomllib
from argparse import SUPPRESS, Namespace

from fineshards.cli import options
from fineshards.cli.command import Answer, Command, add_flag, add_folder, note
from fineshards.config import refuse_decided
from fineshards.errors import UsageError
from fineshards.parser import Parser
from fineshards.pipeline.recipe_flags import recipe_shown, shipped_recipes


def _build(args: Namespace) -> Answer:
    config = options.config_of(args)
    # Imported after the flags are parsed, so that --help and mistakes need no numpy.
    from fineshards.cli.build_command import build

    return build(config)


def _add_append_flags(parser: Parser) -> None:
    add_folder(parser)
    options.add_append_flags(parser)


def _append(args: Namespace) -> Answer:
    args.output, args.append = args.folder, True
    # Flags of build that the parser has left to Beam.
    flags = [arg for arg in args.beam_args if arg.startswith("--")]
    refuse_decided(flag.partition("=")[0].removeprefix("--") for flag in flags)
    return _build(args)


def _estimate(args: Namespace) -> Answer:
    config = options.sample_config(args)
    from fineshards.pipeline.sample import estimate

    note("building a sample of the input …")
    estimated = estimate(config)
    return Answer(estimated, str(estimated).splitlines())


def _add_recipe_flags(parser: Parser) -> None:
    what = parser.add_argument_group("what to do")
    what.add_argument(
        "action", choices=list(_ACTIONS), metavar="|".join(_ACTIONS), help="See above."
    )
    what.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="show: a recipe's name or file, or the folder of a dataset. steps: a step, to see its "
        "parameters. check: a recipe's name or file.",
    )
    add_flag(
        parser.add_argument_group("show"),
        "--all",
        "Of a dataset, also the parameters that have their default.",
        default=SUPPRESS,
    )
    add_flag(
        parser.add_argument_group("check"),
        "--examples N",
        "Documents to show that each step drops or cuts. Default: 2.",
        default=SUPPRESS,
    )
    options.add_input_and_step_flags(parser)


def _recipe(args: Namespace) -> Answer:
    given = set(vars(args)) - {"action", "name", "json"}
    for name in sorted(given):
        # All flags but one are those of check.
        if args.action != ("show" if name == "all" else "check"):
            raise UsageError(f"fineshards recipe {args.action} does not take --{name}.")
    return _ACTIONS[args.action](args)


def _show(args: Namespace) -> Answer:
    if args.name is None:
        names = ", ".join(shipped_recipes())
        raise UsageError(f"give a recipe, by file or name ({names}), or the folder of a dataset.")
    text = recipe_shown(args.name, hasattr(args, "all"))
    return Answer({"toml": text, **tomllib.loads(text)}, text.rstrip("\n").split("\n"))


def _steps(args: Namespace) -> Answer:
    from fineshards.curation import recipe_text

    if args.name is not None:
        step = recipe_text.describe_step(args.name)
        return Answer(step, recipe_text.describe_parameters(step))
    steps = [recipe_text.describe_step(name) for name in recipe_text.step_names()]
    return Answer({"steps": steps}, recipe_text.describe_steps(steps))


def _check(args: Namespace) -> Answer:
    config = options.sample_config(args, recipe=args.name)
    from fineshards.pipeline.sample import check

    if config.curates:  # if not, `check` says so
        note("building a sample of the input …")
    checked = check(config, getattr(args, "examples", 2))
    return Answer(checked, str(checked).splitlines())


_ACTIONS = {"show": _show, "steps": _steps, "check": _check}

BUILD = Command(
    "build",
    "build a dataset, or resume a build",
    "--input FILE... --output FOLDER [flags]",
    "Turns text into token shards. After an interruption the same command resumes.\n"
    "Flags may be written with hyphens too, and numbers as 100M, 1e8 or 64MiB.",
    (
        "fineshards build --input 'data/*.parquet' --output out",
        "fineshards build --dataset HuggingFaceFW/fineweb-edu --dataset_config sample-10BT "
        "--output edu",
        "fineshards build --input 'data/*.jsonl.gz' --output out --tokenizer OWNER/NAME "
        "--shard_tokens 10M",
    ),
    options.add_build_flags,
    _build,
    "Every option of Apache Beam is taken too, such as --runner=DataflowRunner --region=….\n"
    "Without --runner the job runs on this machine.",
    for_beam=True,
)

APPEND = Command(
    "append",
    "add files to a dataset, as a new generation of it",
    "FOLDER --input FILE... [flags]",
    "Adds new files at the end of a finished dataset, with the settings it was built with.\n"
    "It begins new shards and changes none. After an interruption the same command resumes.",
    (
        "fineshards append out --input 'new/*.parquet'",
        "fineshards append out --dataset OWNER/NAME --dataset_config CC-MAIN-2026-45",
    ),
    _add_append_flags,
    _append,
    for_beam=True,
)

ESTIMATE = Command(
    "estimate",
    "predict a build's tokens, documents, time and disk",
    "--input FILE... [flags]",
    "Builds a sample of the input, about 64 MB of text, in a temporary folder, and predicts what\n"
    "a build of the whole takes on this machine. The flags are those of build; no --output is\n"
    "needed, and nothing is left behind.",
    (
        "fineshards estimate --input 'data/*.parquet'",
        "fineshards estimate --input 'data/*.parquet' --recipe fineweb --workers 8",
    ),
    options.add_estimate_flags,
    _estimate,
)

RECIPE = Command(
    "recipe",
    "show recipes and their steps, and try them on a sample of the input",
    "show NAME | steps [NAME] | check NAME --input FILE... [flags]",
    "show prints a recipe as TOML: one that fineshards has, a file, or that of a dataset.\n"
    "steps lists what recipes are made of, and shows the parameters of a step.\n"
    "check builds a sample of the input, about 64 MB of text, with a recipe, in a temporary\n"
    "folder. It shows what each step keeps and drops, with examples, and leaves nothing.",
    (
        "fineshards recipe show fineweb > recipe.toml",
        "fineshards recipe steps minhash",
        "fineshards recipe check recipe.toml --input 'data/*.parquet'",
        "fineshards recipe check --where 'language_score > 0.9' --dedup exact "
        "--input 'data/*.parquet'",
    ),
    _add_recipe_flags,
    _recipe,
)
