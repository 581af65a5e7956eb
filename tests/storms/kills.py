"""A storm of kills: every command is killed at random moments, with its workers, until it ends.

Usage: python -m storms.kills SEED KILLS. Each round copies a prepared folder, kills a command
several times, and lets it end. Then the folder must be the one that a run without kills makes, and
no file may be left in TMPDIR. Prints the kills by scenario as JSON; ends with 1 at the first
difference.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from support.crash_driver import die_at  # imports what a build needs
from support.encoding import build_inherited_encoder
from support.growing import made_up_rows, write_rows

from fineshards.cli.cli import main
from fineshards.verification.verify import verify

# Fewer kills in a row leave much to do again, more reach the end seldom.
_KILLS_PER_ROUND = 5


@dataclass(frozen=True)
class Scenario:
    """A command on a folder. before: what the folder is made by, as commands. many: how many run
    at the same time. result: what is compared, below the folder.
    """

    name: str
    command: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    many: int = 1
    damage: str = ""
    result: str = "out"


def scenarios() -> list[Scenario]:
    """All scenarios; names of files are relative to the folder."""
    small = ("--shard_tokens=500", "--block_bytes=1")
    split = (*small, "--test_fraction=0.3")
    one, two = "--input=in/0.parquet", "--input=in/1.parquet"
    build = ("build", one, two, "--output=out", *split)
    shuffled = (*build, "--shuffle_seed=3", "--bucket_bytes=2000")
    recipe = (*build, "--where=length(text) > 20", "--dedup=exact", "--keep_keys")
    first = tuple(part for part in build if part != two)
    append = ("append", "out", two)
    redact = ("redact", "out", "--documents", "3", "17", "40")
    return [
        Scenario("build", build),
        Scenario("build --test_shards", (*build[:4], *small, "--test_shards=2")),
        Scenario("shuffle", shuffled),
        Scenario("recipe", recipe),
        Scenario("append", append, (first,)),
        Scenario("append, shuffled", append, ((*first, *shuffled[-2:]),)),
        Scenario("append, recipe", append, ((*first, *recipe[-3:]),)),
        Scenario("redact", redact, (build,)),
        Scenario("repair", ("repair", "out"), (build, redact), damage="out/train/train_0001.npy"),
        Scenario(
            "export",
            ("export", "out", "--output=to", "--to=megatron", "--tokens_per_file=500"),
            (build,),
            result="to",
        ),
        Scenario("build --overwrite", (*build, "--overwrite"), (shuffled,)),
        Scenario("two builds at once", build, many=2),
        Scenario("two appends at once", append, (first,), many=2),
    ]


def files_in(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def start(folder: Path, command: tuple[str, ...], prepare: Callable[[], object]) -> int:
    """Runs a command in a process group of its own; returns the process."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.chdir(folder)
        with (folder / "said").open("a") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        prepare()
        os._exit(main([*command]))
    with suppress(PermissionError, ProcessLookupError):
        os.setpgid(pid, pid)  # as the child does, whoever is first
    return pid


def run_to_end(folder: Path, command: tuple[str, ...]) -> None:
    """Runs a command that must succeed."""
    status = os.waitstatus_to_exitcode(os.waitpid(start(folder, command, int), 0)[1])
    assert status == 0, (command, status, (folder / "said").read_text())


def round_of_kills(
    scenario: Scenario, folder: Path, draw: random.Random, seconds: float, kills: Counter[str]
) -> None:
    """Kills a scenario's command in a folder several times, then lets it end."""
    for _ in range(draw.randint(1, _KILLS_PER_ROUND)):
        running = []
        for _ in range(scenario.many):
            number = draw.randrange(40)
            by_time = draw.random() < 0.7
            running.append(
                start(
                    folder,
                    scenario.command,
                    int if by_time else lambda number=number: die_at(f"any:{number}"),  # type: ignore[misc]
                )
            )
        time.sleep(draw.random() * seconds)
        for pid in running:
            # Its workers are in its group.
            os.killpg(pid, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            kills[scenario.name] += status == -signal.SIGKILL
    run_to_end(folder, scenario.command)


def prepared(scenario: Scenario, folder: Path) -> tuple[dict[str, bytes], float]:
    """Makes a folder; returns what the command makes of a copy, and how long that takes."""
    for number in range(2):
        write_rows(folder / f"in/{number}.parquet", made_up_rows(5 + number, 40))
    for command in scenario.before:
        run_to_end(folder, command)
    if scenario.damage:
        (folder / scenario.damage).write_bytes(b"damaged")
    whole = folder.with_name("work")
    shutil.copytree(folder, whole)
    began = time.monotonic()
    run_to_end(whole, scenario.command)
    seconds = time.monotonic() - began
    expected = files_in(whole / scenario.result)
    shutil.rmtree(whole)
    return expected, seconds


def storm(seed: int, wanted: int) -> Counter[str]:
    """Runs rounds of all scenarios until there were so many kills; returns them by scenario."""
    draw, kills = random.Random(seed), Counter[str]()
    build_inherited_encoder()
    every = scenarios()
    with tempfile.TemporaryDirectory() as root:
        temporary = Path(root, "tmp")
        temporary.mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
        makings = {}
        for scenario in every:
            folder = Path(root, scenario.name.replace(" ", "-"), "folder")
            folder.mkdir(parents=True)
            makings[scenario.name] = (folder, *prepared(scenario, folder))
        while kills.total() < wanted:
            scenario = min(every, key=lambda scenario: kills[scenario.name])
            folder, expected, seconds = makings[scenario.name]
            killed = folder.with_name("work")
            shutil.copytree(folder, killed)
            round_of_kills(scenario, killed, draw, seconds, kills)
            found = files_in(killed / scenario.result)
            different = [
                name
                for name in sorted({*found, *expected})
                if found.get(name) != expected.get(name)
            ]
            problems = [] if scenario.result == "to" else verify(killed / "out").problems
            # Beam leaves empty folders.
            left = [str(path) for path in temporary.rglob("*") if path.is_file()]
            if different or problems or left:
                kept = tempfile.mkdtemp(dir=Path(root).parent)
                shutil.copytree(killed, kept, dirs_exist_ok=True)
                sys.exit(f"{scenario.name}: {different=} {problems=} {left=}; see {kept}")
            shutil.rmtree(killed)
    return kills


if __name__ == "__main__":
    json.dump(storm(int(sys.argv[1]), int(sys.argv[2])), sys.stdout, indent=1)
    print()
