"""What programs call, by the names of flags: build, append, estimate, recipe_check. Quiet."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ParamSpec

from fineshards.config import BuildConfig, estimated_flags, flags
from fineshards.errors import UsageError, quoted
from fineshards.extras import naming_the_extra
from fineshards.pipeline.recipe_flags import shown_place, with_recipe
from fineshards.pipeline.run import run
from fineshards.suggestions import did_you_mean
from fineshards.worker.fresh_interpreter import call_in_fresh_interpreter

if TYPE_CHECKING:
    from fineshards.curation.recipe import Recipe
    from fineshards.inspection.estimate import Estimate
    from fineshards.inspection.recipe_check import Check
    from fineshards.job_status.status import Status
    from fineshards.shards.job.manifest import Manifest

_Arguments = ParamSpec("_Arguments")

# Text that a recipe is tried on, and documents that are shown of each step.
PROBE_BYTES, EXAMPLES = 32 << 20, 2
_DESCRIBED = (BuildConfig.__doc__ or "").partition("Args:\n")[2].partition("\n\n    Raises:")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Options(BuildConfig):
    """The options of `build`, for its signature and for type checkers."""

    recipe: str | os.PathLike[str] | Recipe | None = None  # type: ignore[assignment]
    progress: bool | Callable[[Status], None] = False


def _taking(options: Callable[_Arguments, object]) -> Callable[_Arguments, Manifest]:
    """`build` as a function of options, for type checkers too."""

    def build(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Manifest:
        if args:
            raise TypeError("build takes its options by name: build(input=..., output=...).")
        return _run("build", kwargs)

    signature = inspect.signature(options).replace(return_annotation="Manifest")
    build.__signature__ = signature  # type: ignore[attr-defined]
    build.__qualname__ = "build"
    return build


build = _taking(_Options)
build.__doc__ = f"""Builds a dataset, resumes it, or finds it finished; returns its manifest.

    The options are the flags of `fineshards build`, and the bytes are the same. An interrupted
    build resumes when it is called again. It works in a fresh interpreter and changes nothing in
    the calling process, whose logger `fineshards` gets the warnings. (With a runner other than the
    default, Beam's own workers in that interpreter may print the traceback of an error.)

    Args:
{_DESCRIBED}
        progress: True shows how far a local build is, in a terminal, a notebook or as lines. A
            function is called with what `fineshards.status` returns, about twice a second; what it
            raises ends the build.

    Returns:
        The Manifest of the finished dataset. `manifest.totals()` counts its documents and tokens.

    Raises:
        FineshardsError: One sentence that says what happened, where and what to do. Of
            fineshards.errors, UsageError is for options, InputError for the input, OutputError for
            the output folder.

    Example:
        >>> import fineshards
        >>> manifest = fineshards.build(
        ...     input="samples/debian_text.parquet", output=folder, shard_tokens=100_000
        ... )
        >>> manifest.totals()["documents"], len(manifest.shards)
        (1063, 8)
    """


def append(output: str | os.PathLike[str], **options: Any) -> Manifest:
    """Adds new files at the end of a finished dataset, as a new generation of it.

    All else is as the dataset was built. Full shards are not touched; the last one of each split is
    replaced by a longer one that begins with it. A reader of an earlier generation is not
    disturbed. An interrupted append resumes when it is called again.

    Args:
        output: The dataset's folder.
        **options: The options of `build` that a dataset has not decided: `input` or `dataset`,
            those of the work, such as `workers`, and `progress`.

    Returns:
        The Manifest of the new generation; that of the latest if all files are in it already.

    Raises:
        FineshardsError: One sentence that says what happened, where and what to do. UsageError is
            for options and for files that are in the dataset already, InputError for the input,
            OutputError for the dataset.

    Example:
        >>> import fineshards
        >>> grows = f"{folder}-grows"
        >>> _ = fineshards.build(
        ...     input="samples/debian_text.parquet", output=grows, shard_tokens=100_000
        ... )
        >>> manifest = fineshards.append(grows, input=more_documents)
        >>> manifest.generation, manifest.totals()["documents"]
        (2, 1066)
    """
    return _run("append", {**options, "output": output, "append": True})


@naming_the_extra()
def estimate(*, probe_bytes: int | None = None, **options: Any) -> Estimate:
    """Tokenizes a probe of the input; returns what the whole will have, take and cost.

    It writes nothing that stays, and works in a fresh interpreter.

    Args:
        probe_bytes: Bytes of text to tokenize. Default: 96 MiB per core.
        **options: Options of `build`: those of the input and of steps, `tokenizer`, `eot_token`,
            `dtype` and `tokenizer_engine`. `output`: a finished dataset that the input is to be
            appended to. `workers`: those on Dataflow.

    Returns:
        The Estimate: tokens, documents, bytes, what steps keep, and hours and dollars on machines.

    Raises:
        FineshardsError: As `build` does, for an input or a tokenizer.

    Example:
        >>> import fineshards
        >>> found = fineshards.estimate(input="samples/debian_text.parquet")
        >>> found.tokens, found.exact
        (665971, True)
    """
    from fineshards.loader.arguments import checked_integer
    from fineshards.pipeline.probe import estimate

    grows = {"output": "out", "append": options.get("output") is not None}
    if probe_bytes is not None:
        probe_bytes = checked_integer("probe_bytes", probe_bytes, 1)
    known = (*estimated_flags(), "output", "workers")
    for name in {flag.name for flag in flags()}.intersection(options):
        if name not in known:
            raise TypeError(f"estimate does not take {name!r}.")
    config = _config("estimate", grows | options)
    # The recipe may name workers too: those of a build on this machine.
    return estimate(config, options.get("workers"), probe_bytes)


@naming_the_extra()
def recipe_check(
    *, probe_bytes: int = PROBE_BYTES, examples: int = EXAMPLES, **options: Any
) -> Check:
    """Runs the steps of a recipe over a probe of the input; returns what each keeps and drops.

    It writes nothing, and works in a fresh interpreter, so it sees changed functions as a build
    does.

    Args:
        probe_bytes: Bytes of text to read.
        examples: Documents to return that each step drops, and that it changes.
        **options: Options of `build`: `input` or `dataset`, and `recipe`, `where`, `dedup` or
            `decontaminate`.

    Returns:
        The Check: counts, speed and examples of each step.

    Raises:
        FineshardsError: As `build` does, for a recipe or an input.

    Example:
        >>> import fineshards
        >>> found = fineshards.recipe_check(
        ...     input="samples/debian_text.parquet", where="length(text) > 1000"
        ... )
        >>> found.documents, [step.kept for step in found.steps]
        (1063, [602])
    """
    config = _config("recipe_check", {"output": "out"} | options)
    return call_in_fresh_interpreter(check, config, probe_bytes, examples)


def check(config: BuildConfig, probe_bytes: int, examples: int) -> Check:
    """Runs the steps of a configuration over a probe of its input."""
    from fineshards.loader.arguments import checked_integer

    probe_bytes = checked_integer("probe_bytes", probe_bytes, 1)
    examples = checked_integer("examples", examples, 0)
    from fineshards.inspection.recipe_check import check_recipe
    from fineshards.pipeline.input_files import find_input, settle_input
    from fineshards.pipeline.launch import columns_of
    from fineshards.pipeline.requested_steps import columns_of_steps, describe_steps, steps_of

    if not config.curates:
        raise UsageError("give a recipe, or --where, --dedup or --decontaminate.")
    steps = steps_of(config)
    # Finds what is missing before the input is read.
    described = describe_steps(steps, keep_keys=False)
    if described is None:
        raise UsageError(f"{shown_place(os.fspath(config.recipe or ''))} has no steps to check.")
    files, *_ = find_input(config)
    files = settle_input(files, columns_of(config), config)
    columns = replace(
        columns_of(config), others=columns_of_steps(steps), scores=tuple(described.scores)
    )
    return check_recipe(steps, files, columns, probe_bytes, examples, described.indexes)


def _run(function: str, options: Mapping[str, Any]) -> Manifest:
    given = dict(options)
    progress = given.pop("progress", False)
    config = _config(function, given)
    if not isinstance(progress, bool | None) and not callable(progress):
        raise UsageError(f"progress is {quoted(progress)}; give True, False or a function.")
    if not progress:
        return run(config)
    from fineshards.job_status.progress import shown

    with shown(progress) as show:
        return run(config, show)


def _config(function: str, options: Mapping[str, Any]) -> BuildConfig:
    """The configuration of options; raises TypeError for one that there is not."""
    known = [each.name for each in fields(_Options)]
    for name in options:
        if name not in known or name == "progress":
            raise TypeError(
                f"{function} has no option {name!r}.{did_you_mean(name, known)} "
                "help(fineshards.build) describes them."
            )
    given = dict(options)
    if not isinstance(given.get("recipe"), str | os.PathLike | None):
        from fineshards.curation.recipe import Recipe
        from fineshards.curation.recipe_text import toml_of

        if not isinstance(given["recipe"], Recipe):
            raise UsageError(
                f"recipe is {quoted(given['recipe'])}; give a file, a name or a fineshards.Recipe."
            )
        given["recipe"] = toml_of(given["recipe"])
    return BuildConfig(**with_recipe(given))
