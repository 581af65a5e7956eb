"""A storm of kills: every command is killed again and again, with its workers, until it ends.

Usage: python -m storms.kills SEED KILLS [PLACE ...]. Each round kills a command several times, on a
disk or in a bucket, and lets it end. Then the files must be those that a run without kills makes,
and none may be left in TMPDIR. At least half of the kills come while several workers write shards.
Prints the kills as JSON; ends with 1 if there was a difference, or too little was going on.
"""

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from support.conversations import TEMPLATE, made_up, write
from support.encoding import build_inherited_encoder
from support.growing import made_up_rows, write_rows
from support.places import S3, Disk, Gcs, all_places
from support.watched_command import Command, Kill, Seen

MANIFEST = "metadata/manifest.json"
_MOST_KILLS = 8
_FAULTS_SHOWN = 20
# Of all kills. A request takes longer than a file operation.
_SHARES = {"disk": 0.6, "gs": 0.2, "s3": 0.2}
_WHOM = ("group", "group", "launcher", "worker")


@dataclass(frozen=True)
class Scenario:
    """A command. OUT and TO are where a dataset and an export are.

    before: what these are made by, as commands. share: of the kills. many: how many run at the same
    time. alone: without workers, because the command has none. result: what is compared.
    """

    name: str
    command: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    share: int = 3
    many: int = 1
    alone: bool = False
    damage: str = ""
    result: str = "out"


def scenarios() -> list[Scenario]:
    """All scenarios."""
    small = ("--shard_tokens=500", "--block_bytes=1", "--workers=3")
    split = (*small, "--test_fraction=0.3")
    one, two = "--input=in/0.parquet", "--input=in/1.parquet"
    build = ("build", one, two, "--output=OUT", *split)
    shuffled = (*build, "--shuffle_seed=3", "--memory_bytes=2000")
    recipe = (*build, "--where=length(text) > 20", "--dedup=exact", "--keep_keys")
    first = tuple(part for part in build if part != two)
    append = ("append", "OUT", two, "--workers=3")
    windows = (*build[:4], *small, "--test_shards=2")
    chats = ("--input=in/0.chats.parquet", "--output=OUT", "--chat_template=in/chat.jinja")
    redact = ("redact", "OUT", "--documents", "3", "17", "40")
    export = ("export", "OUT", "--output=TO", "--to=megatron", "--tokens_per_file=500")
    return [
        Scenario("build", build, share=6),
        Scenario("build --test_shards", windows),
        Scenario("shuffle", shuffled),
        Scenario("recipe", recipe),
        Scenario("append", append, (first,)),
        Scenario("append, shuffled", append, ((*first, *shuffled[-2:]),)),
        Scenario("append, recipe", append, ((*first, *recipe[-3:]),)),
        Scenario("append, --test_shards", append, (tuple(x for x in windows if x != two),)),
        Scenario("append of an append", (*append[:2], "--input=in/2.parquet"), (first, append)),
        Scenario(
            "append, chats",
            ("append", "OUT", "--input=in/1.chats.parquet", "--workers=3"),
            (("build", *chats, *split),),
        ),
        Scenario("redact", redact, (build,), share=1, alone=True),
        Scenario(
            "repair",
            ("repair", "OUT"),
            (build, redact),
            share=1,
            alone=True,
            damage="train/train_0001.npy",
        ),
        Scenario("export", export, (build,), share=1, alone=True, result="to"),
        Scenario("build --overwrite", (*build, "--overwrite"), (shuffled,)),
        Scenario("two builds at once", build, many=2),
        Scenario("two appends at once", append, (first,), many=2),
    ]


@dataclass
class Prepared:
    """A scenario at a place. before: its files. expected: what the command makes of them."""

    scenario: Scenario
    place: Disk | Gcs | S3
    work: Path
    before: dict[str, bytes] = field(default_factory=dict)
    expected: dict[str, bytes] = field(default_factory=dict)
    seconds: float = 0.0
    seen: Seen | None = None

    def __post_init__(self) -> None:
        self.place.clear()
        for command in self.scenario.before:
            self.run_to_end(command)
        self.before = self.place.read("out")
        if self.scenario.damage:
            self.before[self.scenario.damage] = b"damaged"
        self.restore()
        began = time.monotonic()
        self.seen = self.run_to_end()
        self.seconds = time.monotonic() - began
        assert bool(self.seen.pools) != self.scenario.alone, (self.scenario.name, self.seen)
        self.expected = self.place.read(self.scenario.result)
        assert self.expected
        if self.scenario.command[0] == "append":
            published = {name: self.expected.get(name) for name in self.before}
            assert published == self.before | {MANIFEST: self.expected[MANIFEST]}

    def restore(self) -> None:
        """Makes everything as it was before the command."""
        self.place.clear()
        self.place.put("out", self.before)

    def start(
        self, command: tuple[str, ...] = (), kill: Kill | None = None, delays: float = 0
    ) -> Command:
        """Starts a command, the scenario's by default."""
        words = [
            word.replace("OUT", f"{self.place.url}out").replace("TO", f"{self.place.url}to")
            for word in command or self.scenario.command
        ]
        return Command(self.work, tuple(words), self.place.environment, kill, delays)

    def run_to_end(self, command: tuple[str, ...] = (), delays: float = 0) -> Seen:
        """Runs a command that must succeed."""
        running = self.start(command, delays=delays)
        seen = running.end()
        assert seen.code == 0, (seen.code, running.said.read_text())
        return seen

    def different(self) -> list[str]:
        """The files that are not as expected."""
        found, expected = self.place.read(self.scenario.result), self.expected
        return [name for name in {*found, *expected} if found.get(name) != expected.get(name)]


class Storm:
    """Kills, counted: all, those with workers, those while several wrote, by place and by name."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self.kills: dict[str, Counter[str]] = {}
        self.by_place, self.by_name = Counter[str](), Counter[tuple[str, str]]()
        self.faults: list[str] = []

    def round(self, prepared: Prepared) -> None:
        """Kills a scenario's command several times, then lets it end and compares."""
        draw, scenario = self._draw, prepared.scenario
        prepared.restore()
        delays = draw.choice((0, 0, 0.1))
        for attempt in range(draw.randint(2, _MOST_KILLS)):
            running, by_time = [], 0.0
            for _ in range(scenario.many):
                kill, by_time = self._kill(prepared, attempt)
                running.append(prepared.start(kill=kill, delays=delays))
            if by_time:
                time.sleep(by_time)
            whom = draw.choice(_WHOM) if by_time else ""
            seen = [each.end(0.0 if by_time else 300.0, whom) for each in running]
            for each, command in zip(seen, running, strict=True):
                self._count(prepared, each)
                said = command.said.read_text()
                # One of two may find that the other is done, or that its worker is gone.
                killed = each.code in (0, -signal.SIGKILL) or (
                    each.code == 1 and each.killed and "was killed by SIGKILL" in said
                )
                if not killed or "is a bug" in said or "Traceback" in said:
                    raise AssertionError(f"it ended with {each.code}: {said}")
            if not any(each.killed for each in seen):
                break
        prepared.run_to_end(delays=delays)
        assert not (different := prepared.different()), f"differ: {different}"

    def _kill(self, prepared: Prepared, attempt: int) -> tuple[Kill | None, float]:
        """When to kill: at an operation or a moment, or after some seconds."""
        draw, seen = self._draw, prepared.seen
        assert seen is not None
        # What is finished is not done again.
        part = draw.random() ** (1 + attempt)
        if draw.random() < 0.12:
            return None, draw.random() * prepared.seconds
        beside = seen.beside > 0 and draw.random() < 0.9
        after = int(part * (seen.beside if beside else seen.operations))
        moment = draw.choice((0, draw.random() * 0.003))
        return Kill(draw.choice(_WHOM), after, beside, moment), 0.0

    def _count(self, prepared: Prepared, seen: Seen) -> None:
        if seen.killed:
            self.by_place[prepared.place.name] += 1
            self.by_name[prepared.place.name, prepared.scenario.name] += 1
            counts = self.kills.setdefault(prepared.place.name, Counter())
            counts["kills"] += 1
            counts["with workers"] += seen.workers > 0
            counts["while several wrote blocks or shards"] += seen.writers > 1
            counts["while several wrote shards"] += seen.shard_writers > 1

    def done(self, place: Disk | Gcs | S3, scenario: Scenario) -> tuple[float, float]:
        """How much of its share a place has got, and a scenario there."""
        return (
            self.by_place[place.name] / _SHARES[place.name],
            self.by_name[place.name, scenario.name] / scenario.share,
        )

    def check(self) -> None:
        """Raises AssertionError if too little was going on when the kills came."""
        for place, counts in self.kills.items():
            assert counts["with workers"] > counts["kills"] / 2, f"few workers: {place}, {counts}"
        kills = sum(counts["kills"] for counts in self.kills.values())
        several = sum(counts["while several wrote shards"] for counts in self.kills.values())
        assert several * 2 >= kills, f"{several} of {kills} kills while several wrote shards"


def lay_out(root: Path) -> tuple[Path, Path]:
    """Makes a folder for commands, with input, and one that is TMPDIR from now on."""
    work, temporary = root / "work", root / "tmp"
    temporary.mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    for number in range(3):
        write_rows(work / f"in/{number}.parquet", made_up_rows(5 + number, 40))
        write(work / f"in/{number}.chats.parquet", made_up(40, number))
    (work / "in/chat.jinja").write_text(TEMPLATE)
    return work, temporary


def rounds(made: Storm, wanted: int, places: list[str]) -> None:
    """Runs rounds of all scenarios until there were so many kills."""
    build_inherited_encoder()
    with tempfile.TemporaryDirectory() as root, all_places(Path(root, "work")) as found:
        work, temporary = lay_out(Path(root))
        every = [
            (place, scenario)
            for place in found
            for scenario in scenarios()
            if not places or place.name in places
        ]
        prepared: dict[str, Prepared] = {}
        while made.by_place.total() < wanted:
            place, scenario = min(every, key=lambda each: made.done(*each))
            what = f"{place.name}, {scenario.name}"
            if what not in prepared:
                prepared[what] = Prepared(scenario, place, work)
            try:
                made.round(prepared[what])
                # Beam leaves empty folders.
                left = [str(path) for path in temporary.rglob("*") if path.is_file()]
                assert not left, f"left in TMPDIR: {left}"
            except AssertionError as error:
                kept = tempfile.mkdtemp(dir=Path(root).parent)
                shutil.copytree(work, kept, dirs_exist_ok=True)
                made.faults.append(f"{what}: {error}; see {kept}")
                print(made.faults[-1], file=sys.stderr, flush=True)
                if len(made.faults) == _FAULTS_SHOWN:
                    return
            print(f"{what}: {made.by_place.total()} kills", file=sys.stderr, flush=True)
            for said in work.glob("said-*"):
                said.unlink()


if __name__ == "__main__":
    began, done = time.monotonic(), Storm(int(sys.argv[1]))
    with suppress(KeyboardInterrupt):  # Ctrl-C ends a storm with what there is
        rounds(done, int(sys.argv[2]), sys.argv[3:])
    minutes = (time.monotonic() - began) / 60
    names = {f"{place}, {name}": count for (place, name), count in sorted(done.by_name.items())}
    print(json.dumps({"minutes": round(minutes, 1), **done.kills, "by command": names}, indent=1))
    done.check()
    sys.exit(len(done.faults) > 0)
