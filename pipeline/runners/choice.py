"""Where a job runs, the arguments that are Beam's, and those that it is called with."""

from __future__ import annotations

import atexit
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fineshards.config import BuildConfig
from fineshards.errors import UsageError
from fineshards.flags import flags_of
from fineshards.parser import Parser
from fineshards.storage.temporary import scratch_folder
from fineshards.worker import own_process

if TYPE_CHECKING:
    from apache_beam import Pipeline
    from apache_beam.options.pipeline_options import PipelineOptions

# Names of the runner on this machine.
_LOCAL = ("", "direct", "fnapi")
# What Beam imports for its own input and output, half of the time that its import takes.
_CONNECTORS = ("apache_beam.io.gcp.bigquery", "azure", "boto3", "google.cloud", "pandas", "pymongo")
# Beam's flags for its own local workers, and the hint for remote ones.
_WORKERS = ("--direct_num_workers", "--direct_running_mode", "--num_workers", "--max_num_workers")
# Runners whose job service has options of its own: pipeline/runners/portable.py.
_DESCRIBED = frozenset({"flink", "portable", "spark"})


def runs_here(config: BuildConfig) -> bool:
    """Whether the job runs on this machine, in our own processes. Does not import Beam."""
    return runner_name(config.beam_args) in _LOCAL


def refuse_other_workers(config: BuildConfig) -> None:
    """Raises UsageError for flags about workers that have no meaning where the job runs."""
    runner = runner_name(config.beam_args)
    if runs_here(config):
        for arg in config.beam_args:
            if arg.split("=")[0] in _WORKERS:
                raise UsageError(
                    f"{arg}: a local run has its own worker processes. Use --workers N for their "
                    "number; the default is one per usable core."
                )
    elif config.workers is not None and runner != "dataflow":
        raise UsageError(
            f"--workers {config.workers}: this is for local runs and Dataflow. Use the runner's "
            "own flag, such as --parallelism for Flink."
        )


def local_args(config: BuildConfig) -> list[str]:
    """Beam's arguments for a local run.

    Beam's DirectRunner takes Prism if it is installed or can be downloaded. Here it always means
    the Python runner, with one worker in this process, because the pool does the work.
    """
    return [*config.beam_args, "--runner=FnApiRunner", "--direct_num_workers=1"]


def local_pipeline(config: BuildConfig) -> Pipeline:
    """An empty pipeline for this machine."""
    with own_process.without(*_CONNECTORS):
        import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.transforms import userstate

    if own_process.alone:  # Beam looks for state in each step a dozen times; ours have none
        userstate.get_dofn_specs = lambda dofn: (set(), set())

    class CachedOptions(PipelineOptions):
        """Options that create each of their views once.

        Beam reads its options several times for every transform, and each time parses all flags of
        all option classes: two thirds of the time to build a graph. The views share their values.
        """

        def view_as(self, cls: type) -> Any:
            views = self.__dict__.setdefault("_views", {})
            if cls not in views:
                views[cls] = super().view_as(cls)
            return views[cls]

    with temporary_files_of_beam(here=True):
        return beam.Pipeline(options=CachedOptions(local_args(config)))


@contextmanager
def temporary_files_of_beam(here: bool) -> Iterator[None]:
    """Has Beam make its temporary files in a scratch folder.

    here: remove it after the body; else when this process ends, after Beam has stopped what it
    started for another runner. So signals raise from now on.
    """
    if not here:
        own_process.raise_instead()
    with ExitStack() as stack:
        folder, before = stack.enter_context(scratch_folder()), tempfile.tempdir
        if not here:  # before Beam registers, so it is called after that
            atexit.register(stack.pop_all().close)
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = before


def new_pipeline(options: PipelineOptions) -> Pipeline:
    """An empty pipeline; raises UsageError for options that Beam rejects."""
    import apache_beam as beam

    try:
        return beam.Pipeline(options=options)
    except ValueError as error:
        raise UsageError(" ".join(str(error).split())) from error


def launches_template(config: BuildConfig) -> bool:
    """Whether this is a template's launcher: Dataflow waits for a job file from it."""
    return any(arg.split("=")[0] == "--template_location" for arg in config.beam_args)


def runner_name(beam_args: Sequence[str]) -> str:
    """The runner that is asked for, in lower case and without `runner`; empty if there is none."""
    words = [word for arg in beam_args for word in arg.split("=", 1)]
    runner = dict(pairwise(words)).get("--runner", "")
    return runner.rpartition(".")[2].lower().removesuffix("runner")


def check_beam_args(config: BuildConfig, command: str = "") -> None:
    """Raises UsageError for an argument that is not Beam's, if Beam itself can tell.

    command: whose help page the message names. Default: that of the configuration.
    """
    command = command or f"fineshards {'append' if config.append else 'build'}"
    # What a template is given has been checked by Dataflow, which may add flags of its own.
    described = launches_template(config) or runner_name(config.beam_args) in _DESCRIBED
    if config.beam_args and not described:
        refuse_unknown(config.beam_args, command=command)


def refuse_unknown(
    beam_args: Sequence[str],
    add_described: Callable[[Any], None] = lambda parser: None,
    command: str = "fineshards build",
) -> None:
    """Raises UsageError for arguments that no Beam option takes; Beam itself only warns.

    add_described: adds to a parser the options that a job service has described.
    """
    parser = _parser(command)
    add_described(parser)
    _, unknown = parser.parse_known_args(beam_args)
    if unknown:
        ours = [f"--{flag.name}" for flag in flags_of(BuildConfig)]
        parser.refuse(unknown[0], ": neither fineshards nor Beam has it", ours)


def is_beams(flag: str) -> bool:
    """Whether Beam itself, not a job service, has a flag."""
    can_be_imported = find_spec("apache_beam") is not None and sys.flags.optimize < 2
    return can_be_imported and flag in _parser("")._option_string_actions


def _parser(command: str) -> Parser:
    """A parser of all options that Beam has."""
    from apache_beam.options.pipeline_options import PipelineOptions

    parser = Parser(prog=command, hyphens=False, add_help=False, conflict_handler="resolve")
    pending = PipelineOptions.__subclasses__()
    while pending:
        options = pending.pop()
        pending += options.__subclasses__()
        if "_add_argparse_args" in vars(options):
            options._add_argparse_args(parser)
    return parser
