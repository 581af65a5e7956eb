"""What programs call, by the names of flags: build, append, estimate, recipe_check. Quiet."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ParamSpec

from fineshards.config import NOT_ESTIMATED, BuildConfig
from fineshards.errors import UsageError, did_you_mean, quoted
from fineshards.extras import naming_the_extra
from fineshards.flags import arguments_of
from fineshards.pipeline.recipe_flags import with_recipe
from fineshards.pipeline.run import run

if TYPE_CHECKING:
    from fineshards.curation.recipe import Recipe
    from fineshards.job_status.status import Status
    from fineshards.pipeline.sample import Check, Estimate
    from fineshards.shards.job.manifest import Manifest

_Arguments = ParamSpec("_Arguments")


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
{arguments_of(BuildConfig)}
        progress: True shows how far a local build is, in a terminal, a notebook or as lines. A
            function is called with what `fineshards.status` returns, about twice a second; what it
            raises ends the build.

    Returns:
        The Manifest of the finished dataset. `manifest.totals` counts its documents and tokens.

    Raises:
        FineshardsError: One sentence that says what happened, where and what to do. Of
            fineshards.errors, UsageError is for options, InputError for the input, OutputError for
            the output folder.

    Example:
        >>> import fineshards
        >>> manifest = fineshards.build(
        ...     input="samples/debian_text.parquet", output=folder, shard_tokens=100_000
        ... )
        >>> manifest.totals["documents"], len(manifest.shards)
        (1063, 8)
    """


def append(output: str | os.PathLike[str], **options: Any) -> Manifest:
    """Adds new files at the end of a finished dataset, as a new generation of it.

    All else is as the dataset was built. New shards begin, and none that is there changes: a reader
    of an earlier generation is not disturbed. An interrupted append resumes when it is called
    again.

    Args:
        output: The dataset's folder.
        **options: The options of `build` that a dataset has not decided: `input`, `test_input`
            or `dataset`, those of the work, such as `workers`, and `progress`.

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
        >>> manifest.generation, manifest.totals["documents"]
        (2, 1066)
    """
    return _run("append", {**options, "output": output, "append": True})


@naming_the_extra()
def estimate(**options: Any) -> Estimate:
    """Builds a sample of the input; returns what a build of the whole will have and take.

    It reads about 64 MB of text from all over the input, the same every time, and leaves nothing.
    It works in a fresh interpreter.

    Args:
        **options: Options of `build`, without `output`.

    Returns:
        The Estimate: tokens, documents, seconds, bytes on the disk, and how sure that is.

    Raises:
        FineshardsError: As `build` does, for an input or a tokenizer.

    Example:
        >>> import fineshards
        >>> estimate = fineshards.estimate(input="samples/debian_text.parquet")
        >>> estimate.tokens, estimate.exact
        (665971, True)
    """
    from fineshards.pipeline.sample import estimate

    return estimate(_of_sample("estimate", options))


@naming_the_extra()
def recipe_check(*, examples: int = 2, **options: Any) -> Check:
    """Builds a sample of the input; returns what each step of a recipe keeps and drops.

    It reads about 64 MB of text from all over the input, the same every time, and leaves nothing.
    It works in a fresh interpreter, so it sees changed functions as a build does.

    Args:
        examples: Documents to return that each step drops or cuts.
        **options: Options of `build`, without `output`: with `recipe`, `where`, `dedup` or
            `decontaminate`.

    Returns:
        The Check: the statistics of the sample, and examples for each step.

    Raises:
        FineshardsError: As `build` does, for a recipe or an input.

    Example:
        >>> import fineshards
        >>> check = fineshards.recipe_check(
        ...     input="samples/debian_text.parquet", where="length(text) > 1000"
        ... )
        >>> [step.documents for step in check.dropped]
        [461]
    """
    from fineshards.loader.arguments import checked_integer
    from fineshards.pipeline.sample import check

    return check(_of_sample("recipe_check", options), checked_integer("examples", examples, 0))


def _of_sample(function: str, options: dict[str, Any]) -> BuildConfig:
    """The configuration of a build of which a sample is made; its output is not used."""
    for name in (*NOT_ESTIMATED, "beam_args"):
        if name in options:
            raise TypeError(f"{function} does not take {name!r}.")
    return _config(function, {"output": "out"} | options)


def _run(function: str, options: Mapping[str, Any]) -> Manifest:
    given = dict(options)
    progress = given.pop("progress", False)
    config = _config(function, given)
    if not isinstance(progress, bool | None) and not callable(progress):
        raise UsageError(f"progress is {quoted(progress)}; give True, False or a function.")
    if not progress:
        return run(config)
    from fineshards.job_status.progress_words import shown

    with shown(progress) as show:
        return run(config, show)


def _config(function: str, options: Mapping[str, Any]) -> BuildConfig:
    """The configuration of options; raises TypeError for one that there is not."""
    names = [option.name for option in fields(_Options)]
    for name in options:
        if name not in names or name == "progress":
            raise TypeError(
                f"{function} has no option {name!r}.{did_you_mean(name, names)} "
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
