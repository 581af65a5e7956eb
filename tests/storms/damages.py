"""A storm of damages: whatever changes in any file of a dataset or an export, verify finds it.

Usage: python -m storms.damages SEED DAMAGES. Flips bits, cuts, overwrites, extends, swaps and
deletes files of a plain dataset, one with a recipe, one that has grown and was redacted, a
published one, and an export. Prints the damages by dataset as JSON; ends with 1 and the first ones
that verify missed, or on which it ended with anything but a sentence.
"""

import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from support.growing import made_up_rows, write_rows
from support.places import Disk
from support.watched_command import Command

from fineshards.errors import FineshardsError
from fineshards.verification.verify import verify

_MISSES_SHOWN = 20
_SPLIT = ("--shard_tokens=500", "--block_bytes=1", "--test_fraction=0.3")
_BUILD = ("build", "--input=in/0.parquet", "--output=out", *_SPLIT)
_REDACT = ("redact", "out", "--documents", "3", "17", "40")
_APPEND = ("append", "out", "--input=in/1.parquet")
_RECIPE = ("--where=length(text) > 20", "--dedup=exact", "--keep_keys", "--statistics")
# What each dataset is made by, and the folder that is verified.
_DATASETS: dict[str, tuple[tuple[tuple[str, ...], ...], str]] = {
    "plain": ((_BUILD,), "out"),
    "recipe": (((*_BUILD, *_RECIPE), _APPEND), "out"),
    "grown": ((_BUILD, _APPEND, _REDACT), "out"),
    "published": ((_BUILD, ("publish", "out", "--license=CC-BY-4.0")), "out"),
    "export": ((_BUILD, ("export", "out", "--output=to", "--to=megatron")), "to"),
}


def flip(content: bytearray, draw: random.Random) -> None:
    """Flips one bit."""
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)


def cut(content: bytearray, draw: random.Random) -> None:
    """Leaves out the end."""
    del content[draw.randrange(len(content)) :]


def leave_out(content: bytearray, draw: random.Random) -> None:
    """Leaves out a part in the middle."""
    start = draw.randrange(len(content))
    del content[start : start + draw.randint(1, 64)]


def overwrite(content: bytearray, draw: random.Random) -> None:
    """Overwrites a part with random bytes."""
    start = draw.randrange(len(content))
    stop = min(start + draw.randint(1, 64), len(content))
    content[start:stop] = draw.randbytes(stop - start)


def extend(content: bytearray, draw: random.Random) -> None:
    """Adds bytes at the end."""
    content += draw.choice((b"\0", b"\n", b" ", draw.randbytes(9)))


def repeat(content: bytearray, draw: random.Random) -> None:
    """Repeats a part."""
    start = draw.randrange(len(content))
    content[start:start] = content[start : start + draw.randint(1, 64)]


_WAYS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    *(flip, flip, flip, cut, leave_out, overwrite, extend, repeat),
)


def damaged(folder: Path, files: dict[str, bytes], draw: random.Random) -> tuple[list[str], str]:
    """Damages a folder; returns the files that have changed, and what was done."""
    names = sorted(files)
    name = draw.choice(names)
    kind = draw.random()
    if kind < 0.05:
        (folder / name).unlink()
        return [name], "deleted"
    if kind < 0.15:
        other = draw.choice([each for each in names if files[each] != files[name]])
        (folder / name).write_bytes(files[other])
        (folder / other).write_bytes(files[name])
        return [name, other], f"swapped with {other}"
    way = draw.choice(_WAYS)
    content = bytearray(files[name])
    while bytes(content) == files[name]:
        way(content, draw)
    (folder / name).write_bytes(content)
    return [name], way.__name__


def storm(seed: int, wanted: int) -> tuple[Counter[str], list[str]]:
    """Returns the damages by dataset, and those that were missed."""
    draw, done, missed = random.Random(seed), Counter[str](), list[str]()
    with tempfile.TemporaryDirectory() as root:
        for kind, (commands, result) in _DATASETS.items():
            folder = Path(root, kind)
            for number in range(2):
                write_rows(folder / f"in/{number}.parquet", made_up_rows(5 + number, 40))
            for command in commands:
                assert Command(folder, command, {}).end().code == 0, command
            shutil.rmtree(folder / "in")
            os.chdir(folder)
            dataset = folder / result
            files = {
                name: content for name, content in Disk(folder).read(result).items() if content
            }
            assert verify(dataset).problems == []
            for _ in range(wanted // len(_DATASETS)):
                names, what = damaged(dataset, files, draw)
                try:
                    # Text of its owner in a published card is found by its SHA-256 alone.
                    found = bool(verify(dataset, sha256=kind == "published").problems)
                except FineshardsError:
                    found = True
                except Exception as error:  # the traceback that no one should see
                    found, what = False, f"{what}: {error!r}"
                done[kind] += 1
                if not found:
                    missed.append(f"{kind}: {names[0]} {what}")
                for name in names:
                    (dataset / name).parent.mkdir(parents=True, exist_ok=True)
                    (dataset / name).write_bytes(files[name])
            assert verify(dataset).problems == []
    return done, missed


if __name__ == "__main__":
    counts, misses = storm(int(sys.argv[1]), int(sys.argv[2]))
    print(json.dumps({"damages": counts, "missed": len(misses)}, indent=1))
    sys.exit("\n".join(misses[:_MISSES_SHOWN]) or 0)
