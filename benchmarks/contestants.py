"""The contestants: the job and its peers, each a command that tokenizes a folder of parquet files.

To add one, write a program that takes `INPUT OUTPUT`, and list it here. Tokens are counted in the
files that a contestant writes, not taken from what it prints.
"""

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

    what: a description for the result. module: a module and its arguments, run by `python -m` in
    the project's folder; `{input}`, `{output}` and `{work}` stand for the folders. prepare: the
    same, run once before the measurements. peer: whether it needs the peers' environment.
    skips_empty: whether it leaves out documents without text. packages: the packages whose versions
    belong to the result.
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
        what="this job with all defaults",
        module=("fineshards", "build", "--input", "{input}/*.parquet", "--output", "{output}"),
        packages=("apache-beam", "gigatoken", "numpy", "pyarrow", "tiktoken"),
    ),
    Contestant(
        name="seed",
        what="multiprocessing pool, tiktoken, one document per task",
        module=("benchmarks.seed_method", "{input}", "{output}"),
        packages=("numpy", "pyarrow", "tiktoken"),
    ),
    Contestant(
        name="datatrove",
        what="DocumentTokenizer, one task per core",
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
        what="lower bound (no framework, no guarantees): one process per core, gigatoken",
        module=("benchmarks.bound", "{input}", "{output}"),
        packages=("awkward", "gigatoken", "numpy", "pyarrow"),
        peer=True,
    ),
)


def choose(names: str | None, known: Sequence[Contestant] = CONTESTANTS) -> list[Contestant]:
    """The contestants with these names (`a,b`), or all; raises UsageError for an unknown name."""
    if names is None:
        return list(known)
    by_name = {contestant.name: contestant for contestant in known}
    chosen = list(dict.fromkeys(names.split(",")))
    for name in chosen:
        if name not in by_name:
            raise UsageError(f"--only {name}: unknown. The contestants are {', '.join(by_name)}.")
    return [by_name[name] for name in chosen]


def interpreter(contestant: Contestant, peers_python: Path) -> str:
    """The Python that runs a contestant; raises UsageError if the peers' one does not exist."""
    if not contestant.peer:
        return sys.executable
    if not peers_python.exists():
        raise UsageError(
            f"{contestant.name} needs the peers' environment, but {peers_python} does not exist. "
            "`make bench` creates it. Or leave the peers out with --only fineshards,seed."
        )
    return str(peers_python)


def count_tokens(output: Path) -> int:
    """The number of tokens in the files of an output; raises FineshardsError for other files."""
    total = 0
    for path in output.rglob("*"):
        if path.suffix == ".npy":
            tokens = np.load(path, mmap_mode="r")
            if tokens.dtype != np.uint32 or tokens.ndim != 1:
                raise FineshardsError(f"{path.name} has {tokens.dtype} {tokens.shape}, not tokens.")
            total += len(tokens)
        elif path.suffix == ".ds":
            # Files of datatrove are bare tokens.
            total += path.stat().st_size // _TOKEN_BYTES
    return total
