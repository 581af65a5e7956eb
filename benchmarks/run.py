"""`python -m benchmarks.run`: the job and its peers, in turn, so that drift affects all the same.

Each run is a whole command in its own process, start-up included. It writes to a new folder that is
deleted afterwards. All must give the same number of tokens, or the benchmark fails.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from rich.console import Console

from benchmarks.chart import draw
from benchmarks.contestants import (
    CONTESTANTS,
    PEERS_PYTHON,
    ROOT,
    Contestant,
    choose,
    count_tokens,
    interpreter,
)
from benchmarks.inputs import Contents, lay_out
from benchmarks.machine import describe_commit, describe_machine, describe_versions
from benchmarks.made_up import FINEWEB
from benchmarks.measure import Measurement, measure
from benchmarks.results import Entry, Result, free_path, save
from fineshards.errors import FineshardsError, UsageError
from fineshards.parser import Parser

RESULTS = ROOT / "benchmarks/results"
# The default input is the first of these that has parquet files.
DEFAULT_INPUTS = (ROOT.parent / "shared/corpus", ROOT / "samples")


class Race:
    """Contestants on one input, round by round.

    source: a folder of parquet files, with these contents. work: a folder for everything else,
    which may become large. pythons: the interpreter of each contestant.
    """

    def __init__(
        self,
        contestants: Sequence[Contestant],
        source: Path,
        contents: Contents,
        work: Path,
        pythons: dict[str, str],
        console: Console,
    ) -> None:
        self._contestants = contestants
        self._source = source
        self._contents = contents
        self._work = work
        self._pythons = pythons
        self._console = console
        self._totals: dict[str, int] = {}

    def prepare(self) -> None:
        """Prepares what contestants need and usually have; not measured."""
        for contestant in self._contestants:
            if contestant.prepare:
                self._measure(contestant, contestant.prepare, self._work)

    def run_round(self, title: str) -> dict[str, Measurement]:
        """Runs each contestant once; raises FineshardsError if one fails or gives other tokens.

        The order is random. A contestant that follows one that used much memory finds that memory
        available. On a virtual machine, unused memory goes back to the host after seconds, and
        takes seconds per gigabyte to get back.
        """
        measured = {}
        for contestant in random.sample(self._contestants, len(self._contestants)):
            output = self._work / "output"
            # So that no contestant waits for the writes of another.
            os.sync()
            measurement = self._measure(contestant, contestant.module, output)
            self._check(contestant, count_tokens(output))
            for left in self._work.glob("output*"):
                shutil.rmtree(left)
            self._console.print(
                f"{title}: {contestant.name:<12}{measurement.wall:8.2f} s", highlight=False
            )
            measured[contestant.name] = measurement
        return measured

    @property
    def tokens(self) -> int:
        """The number of tokens, the same for all contestants; known after a round."""
        return next(iter(self._totals.values()))

    def entry(self, contestant: Contestant, runs: Sequence[Measurement]) -> Entry:
        """A contestant's part of the result."""
        command = " ".join(["python", "-m", *contestant.module])
        return Entry(
            name=contestant.name,
            what=contestant.what,
            command=command.format(input="INPUT", output="OUTPUT", work="WORK"),
            versions=describe_versions(self._pythons[contestant.name], contestant.packages),
            runs=tuple(runs),
        )

    def _measure(
        self, contestant: Contestant, module: tuple[str, ...], output: Path
    ) -> Measurement:
        filled = [
            part.format(input=self._source, output=output, work=self._work) for part in module
        ]
        command = [self._pythons[contestant.name], "-m", *filled]
        try:
            return measure(command, self._work / f"{contestant.name}.log", cwd=ROOT)
        except FineshardsError as error:
            raise FineshardsError(f"{contestant.name} failed: {error}") from error

    def _check(self, contestant: Contestant, tokens: int) -> None:
        # A document without text is one token, EOT.
        self._totals[contestant.name] = tokens + (
            self._contents.empty if contestant.skips_empty else 0
        )
        if len(set(self._totals.values())) > 1:
            totals = ", ".join(f"{name} {total:,}" for name, total in sorted(self._totals.items()))
            raise FineshardsError(
                f"the contestants give different numbers of tokens: {totals}. They must do the "
                "same work to be compared."
            )


def bench(
    args: argparse.Namespace, console: Console, known: Sequence[Contestant] = CONTESTANTS
) -> Path:
    """Measures, prints and saves; returns the path of the JSON. Raises FineshardsError."""
    contestants = choose(args.only, known)
    # Absolute, because contestants run in another folder. Not resolved, because the environment's
    # Python is a link.
    peers_python = Path(os.path.abspath(args.peers))
    pythons = {each.name: interpreter(each, peers_python) for each in contestants}
    patterns = args.input or [default_input(console)]
    began = datetime.now(UTC).isoformat(timespec="seconds")
    os.makedirs(args.work, exist_ok=True)
    with TemporaryDirectory(prefix="bench-", dir=os.path.abspath(args.work)) as folder:
        work = Path(folder)
        source = work / "input"
        names = lay_out(patterns, args.repeat, source)
        contents = read_in_process(source)
        race = Race(contestants, source, contents, work, pythons, console)
        race.prepare()
        rounds, loads = [], []
        for number in range(1, args.rounds + 1):
            loads.append(os.getloadavg()[0])
            rounds.append(race.run_round(f"round {number} of {args.rounds}"))
        result = Result(
            name=args.name or "bench",
            date=began,
            commit=describe_commit(ROOT),
            machine=describe_machine(work),
            files=tuple(names),
            contents=contents,
            repeat=args.repeat,
            tokens=race.tokens,
            loads=tuple(loads),
            entries=tuple(
                race.entry(each, [measured[each.name] for measured in rounds])
                for each in contestants
            ),
        )
    path = free_path(Path(args.results), result.date, result.name)
    save(result.to_json(), path)
    path.with_name(path.name.removesuffix(".json") + ".svg").write_text(draw(result.to_json()))
    console.print(result.table())
    console.print(f"wrote {os.path.relpath(path)} and its chart", highlight=False)
    return path


def default_input(console: Console) -> str:
    """The default input pattern; prints a note if it is only the sample."""
    folder = next(folder for folder in DEFAULT_INPUTS if any(folder.glob("*.parquet")))
    if folder == DEFAULT_INPUTS[-1]:
        console.print(
            "measuring on the sample of 2 MB, which shows little but start-up. Give larger files "
            "with INPUT='data/*.parquet', or --repeat 100.",
            highlight=False,
        )
    return str(folder / "*.parquet")


def read_in_process(source: Path) -> Contents:
    """`inputs.read_contents` in a separate process; raises FineshardsError."""
    command = [sys.executable, "-m", "benchmarks.inputs", str(source)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FineshardsError(done.stderr.strip().splitlines()[-1])
    contents = Contents(**json.loads(done.stdout))
    if contents.documents == 0:
        raise FineshardsError("the input has no documents; there is nothing to measure.")
    return contents


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def flags() -> argparse.ArgumentParser:
    """The command line."""
    parser = Parser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--input", action="append", metavar="PATTERN", help="parquet; repeatable")
    parser.add_argument("--repeat", type=positive, default=1, metavar="N", help="repeat the input")
    parser.add_argument("--rounds", type=positive, default=3, metavar="N", help="default: 3")
    parser.add_argument("--only", metavar="A,B", help="contestants to run; default: all")
    parser.add_argument("--name", help="part of the result's file name")
    parser.add_argument(
        "--work", default=gettempdir(), metavar="FOLDER", help="folder for temporary outputs"
    )
    parser.add_argument(
        "--room",
        type=positive,
        default=1,
        metavar="GB",
        help="do nothing where the disk has less free; default: 1",
    )
    parser.add_argument("--results", default=str(RESULTS), metavar="FOLDER")
    parser.add_argument("--peers", default=str(PEERS_PYTHON), metavar="PYTHON")
    parser.add_argument("--scale", action="store_true", help="only the plan at FineWeb's size")
    parser.add_argument("--loader", action="store_true", help="only the loader")
    parser.add_argument(
        "--shrink",
        type=positive,
        default=1,
        metavar="N",
        help="--scale, --loader: at 1/N of the size",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    try:
        args = flags().parse_args(argv)
        if args.name is not None and args.name != os.path.basename(args.name):
            raise UsageError(f"--name {args.name}: is part of a file name, not a path.")
        console = Console(width=None if sys.stdout.isatty() else 120)
        os.makedirs(args.work, exist_ok=True)
        if args.scale:
            # Imported late, because our memory would be a minimum of the contestants'.
            from benchmarks.scale import bench_scale

            size = FINEWEB.shrunk(args.shrink)
            bench_scale(size, Path(args.results), args.name or "scale", console)
        elif args.loader:
            from benchmarks.loader import bench_loader

            name = args.name or "loader"
            bench_loader(Path(args.results), name, args.rounds, args.shrink, console)
        elif args.room * 10**9 > (free := shutil.disk_usage(args.work).free):
            console.print(
                f"skipped: it takes {args.room} GB of disk, and {free // 10**9} GB are free",
                highlight=False,
            )
        else:
            bench(args, console)
    except FineshardsError as error:
        print(f"bench: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("bench: interrupted. No result is written.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    # So that a kill also ends the contestants and deletes the work folder.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
