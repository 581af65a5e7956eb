"""Who takes part: the job and its peers, each a command that turns a folder of parquet into tokens.

To add one, write a program `INPUT OUTPUT` and name it here. Totals are counted from the files that
a contestant leaves, not taken from what it says.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fineshards.errors import FineshardsError, UsageError

ROOT = Path(__file__).parent.parent
PEERS_PYTHON = ROOT / ".bench-venv/bin/python"
_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way of tokenizing.

    module: and arguments, run by `python -m` in the project's folder; `{input}`, `{output}` and
    `{work}` stand for the folders. prepare: the same, run once before the measurements.
    peer: whether it needs the peers' environment. skips_empty: documents without text are left out.
    packages: whose versions belong to the result.
    """

    name: str
    what: str
    module: tuple[str, ...]
    packages: tuple[str, ...]
    prepare: tuple[str, ...] = ()
    peer: bool = False
    skips_empty: bool = False


CONTESTANTS = (
    Contestant(
        name="fineshards",
        what="this job, all defaults",
        module=("fineshards", "build", "--input", "{input}/*.parquet", "--output", "{output}"),
        packages=("apache-beam", "gigatoken", "numpy", "pyarrow", "tiktoken"),
    ),
    Contestant(
        name="seed",
        what="multiprocessing pool, tiktoken, one document a task",
        module=("benchmarks.seed_method", "{input}", "{output}"),
        packages=("numpy", "pyarrow", "tiktoken"),
    ),
    Contestant(
        name="datatrove",
        what="DocumentTokenizer, a task a core",
        module=(
            "benchmarks.datatrove_method",
            "{input}",
            "{output}",
            "{work}/tokenizer.json",
        ),
        packages=("datatrove", "numpy", "pyarrow", "tokenizers"),
        prepare=("benchmarks.tokenizer_file", "{work}/tokenizer.json"),
        peer=True,
        skips_empty=True,
    ),
    Contestant(
        name="bound",
        what="no framework: a process a core, gigatoken, arrays saved as they come",
        module=("benchmarks.bound", "{input}", "{output}"),
        packages=("awkward", "gigatoken", "numpy", "pyarrow"),
        peer=True,
    ),
)


def choose(names: str | None, known: Sequence[Contestant] = CONTESTANTS) -> list[Contestant]:
    """The contestants with these names (`a,b`), or all; raises UsageError for an unknown one."""
    if names is None:
        return list(known)
    by_name = {contestant.name: contestant for contestant in known}
    chosen = list(dict.fromkeys(names.split(",")))
    for name in chosen:
        if name not in by_name:
            raise UsageError(f"--only {name}: unknown; there are {', '.join(by_name)}.")
    return [by_name[name] for name in chosen]


def interpreter(contestant: Contestant, peers_python: Path) -> str:
    """The Python that runs a contestant; raises UsageError if the peers' is not there."""
    if not contestant.peer:
        return sys.executable
    if not peers_python.exists():
        raise UsageError(
            f"{contestant.name} needs the peers' environment, and there is no {peers_python}. "
            "`make bench` prepares it; or leave the peers out with --only fineshards,seed."
        )
    return str(peers_python)


def count_tokens(output: Path) -> int:
    """The number of tokens in the files of a contestant's output; raises FineshardsError."""
    total = 0
    for path in output.rglob("*"):
        if path.suffix == ".npy":
            tokens = np.load(path, mmap_mode="r")
            if tokens.dtype != np.uint32 or tokens.ndim != 1:
                raise FineshardsError(f"{path.name} has {tokens.dtype} {tokens.shape}, not tokens.")
            total += len(tokens)
        elif path.suffix == ".ds":
            # datatrove's: bare tokens.
            total += path.stat().st_size // _TOKEN_BYTES
    return total
