"""A storm of single digits: one is changed in a record of a killed command, which then goes on.

Usage: python -m storms.digits SEED DIGITS. The records are JSON files, and JSON text in the footers
of Parquet files. The result must be that of a run which nothing disturbed, or a refusal that names
the file, after which the command still ends well with the file as it was. Prints what became of the
digits as JSON, by kind of record; ends with 1 if there was anything else.
"""

import json
import random
import re
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from storms.kills import Prepared, lay_out, scenarios
from support.encoding import build_inherited_encoder
from support.places import Disk
from support.watched_command import Kill

_DIGITS_PER_KILL = 3


def digits_of(name: str, content: bytes) -> list[int]:
    """Where the digits of a file's records are."""
    if name.endswith(".json"):
        return [found.start() for found in re.finditer(rb"\d", content)]
    places: list[int] = []
    # A seal may follow the Parquet file.
    table = pa.BufferReader(content[: content.rindex(b"PAR1") + 4])
    for key, value in (pq.read_metadata(table).metadata or {}).items():
        start = content.rfind(value)
        if key != b"ARROW:schema" and start >= 0 and value[:1] in b"{[":
            places += [start + found.start() for found in re.finditer(rb"\d", value)]
    return places


def records_of(files: dict[str, bytes]) -> dict[str, list[int]]:
    """The files with records that have digits, and where."""
    endings = (".json", ".parquet")
    found = {n: digits_of(n, files[n]) for n in sorted(files) if n.endswith(endings)}
    return {name: places for name, places in found.items() if places}


def kind_of(name: str) -> str:
    """The kind of a record: its name without numbers and hashes."""
    return re.sub(r"\d+", "0", re.sub(r"[0-9a-f]{32,}", "", name))


def put_all(prepared: Prepared, folders: dict[str, dict[str, bytes]]) -> None:
    """Makes the folders have these files alone."""
    prepared.place.clear()
    for folder, files in folders.items():
        prepared.place.put(folder, files)


def outcome(prepared: Prepared, whole: dict[str, dict[str, bytes]], name: str) -> tuple[str, str]:
    """Runs the command in a folder with a damaged record; returns what became of it, and details.

    whole: the folders before the damage.
    """
    running = prepared.start()
    seen, said = running.end(), running.said.read_text()
    if any(each in said for each in ("is a bug", "Please report", "Traceback", "unexpected")):
        return "BUG", said
    if seen.code == 0:
        different = prepared.different()
        return ("WRONG", f"{different}") if different else ("same", "")
    if Path(name).name not in said:
        return "NOT NAMED", said
    put_all(prepared, whole)
    running = prepared.start()
    if running.end().code or (different := prepared.different()):
        return "LOST", running.said.read_text()
    return "refused", ""


def storm(seed: int, wanted: int, counts: dict[str, Counter[str]], faults: list[str]) -> None:
    """Counts what became of so many digits, by kind of record, and what is wrong."""
    draw = random.Random(seed)
    build_inherited_encoder()
    with tempfile.TemporaryDirectory() as root:
        work, _ = lay_out(Path(root))
        # A redaction and a repair have no records of their own.
        every = [
            scenario
            for scenario in scenarios()
            if scenario.many == 1 and scenario.command[0] not in ("redact", "repair")
        ]
        made: dict[str, Prepared] = {}
        done = Counter[str]()
        while counts["all"].total() < wanted:
            scenario = min(every, key=lambda each: done[each.name] / each.share)
            if scenario.name not in made:
                made[scenario.name] = Prepared(scenario, Disk(work), work)
            prepared = made[scenario.name]
            seen = prepared.seen
            folder, place = scenario.result, prepared.place
            assert seen is not None
            prepared.restore()
            beside = seen.beside > 0 and draw.random() < 0.5
            after = draw.randrange(max(1, seen.beside if beside else seen.operations))
            killed = prepared.start(kill=Kill("group", after, beside)).end().killed
            folders = {each: place.read(each) for each in ("out", "to")}
            whole = folders[folder]
            records = records_of(whole)
            done[scenario.name] += 1
            for _ in range(_DIGITS_PER_KILL if killed and records else 0):
                name = draw.choice([*records])
                at = draw.choice(records[name])
                digit = draw.choice([each for each in b"0123456789" if each != whole[name][at]])
                damaged = whole[name][:at] + bytes([digit]) + whole[name][at + 1 :]
                put_all(prepared, folders | {folder: whole | {name: damaged}})
                result, details = outcome(prepared, folders, name)
                done[scenario.name] += 1
                counts["all"][result] += 1
                counts.setdefault(kind_of(name), Counter())[result] += 1
                if result.isupper():
                    around = whole[name][max(0, at - 30) : at + 20]
                    faults.append(
                        f"{scenario.name}: {result}: {name}, byte {at} of {around!r} is "
                        f"{chr(digit)}: {details.strip()[-600:]}"
                    )
                    print(faults[-1], file=sys.stderr, flush=True)
            for said in work.glob("said-*"):
                said.unlink()


if __name__ == "__main__":
    counted: dict[str, Counter[str]] = {"all": Counter()}
    wrong: list[str] = []
    with suppress(KeyboardInterrupt):  # Ctrl-C ends a storm with what there is
        storm(int(sys.argv[1]), int(sys.argv[2]), counted, wrong)
    print(json.dumps(counted, indent=1))
    sys.exit(len(wrong) > 0)
