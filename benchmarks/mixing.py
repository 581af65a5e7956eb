"""How fast a mixture is drawn, and how fast index arrays are built compared with compiled code.

The compiled loop is `blending_reference.cpp`: the rule of Megatron's helper, written independently
and compiled with its flags; it is not Megatron's code. `greedy` is compiled too where numba is
installed; the first call, which compiles it, is not timed.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console

from benchmarks.contestants import ROOT
from benchmarks.timings import Timing, in_turn
from fineshards.errors import FineshardsError
from fineshards.loader.blending import greedy, nanoset
from fineshards.loader.mixture import Mixture

# Draws start at this position, which is too far to count up to.
_FAR = 10**10
_SOURCES, _MANY_SOURCES = 10, 10_000
_DRAWS, _SIZE = 1_000_000, 1_000_000
_SEED = 1


@dataclass(frozen=True, slots=True)
class _Nothing:
    """A source whose samples are never read."""

    samples: int
    sequence_length: int = 2048
    fingerprint: str = ""

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int, /) -> npt.NDArray[np.uint32]:
        raise NotImplementedError


def _weights(sources: int) -> list[float]:
    weights = np.random.default_rng(_SEED).random(sources)
    shares: list[float] = (weights / weights.sum()).tolist()
    return shares


def _mixture(sources: int) -> Mixture:
    return Mixture(
        {str(at): (_Nothing(10**6), weight) for at, weight in enumerate(_weights(sources))}
    )


def compiled_loop(work: Path) -> Callable[..., tuple[np.ndarray, np.ndarray]] | None:
    """`blend(weights, size, offset)` in compiled code; None if there is no compiler.

    Raises FineshardsError if compiling fails.
    """
    if shutil.which("g++") is None:
        return None
    library = work / "blending_reference.so"
    source = ROOT / "benchmarks/blending_reference.cpp"
    command = ["g++", "-O3", "-Wall", "-shared", "-std=c++17", "-fPIC", str(source), "-o"]
    command.append(str(library))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FineshardsError(f"{source.name} does not compile: {done.stderr.strip()}")
    function = ctypes.CDLL(str(library)).blend

    def blend(weights: list[float], size: int, offset: int) -> tuple[np.ndarray, np.ndarray]:
        shares = np.array(weights)
        sources, numbers = np.zeros(size, np.int16), np.zeros(size, np.int64)
        function(
            sources.ctypes.data_as(ctypes.c_void_p),
            numbers.ctypes.data_as(ctypes.c_void_p),
            shares.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int32(len(shares)),
            ctypes.c_int64(size),
            ctypes.c_int64(offset),
        )
        return sources, numbers

    return blend


def time_mixing(work: Path, rounds: int, shrink: int, console: Console) -> list[Timing]:
    """Timings of draws and of index arrays, at 1/`shrink` of the full sizes.

    Raises FineshardsError if the arrays differ from those of the compiled loop.
    """
    return [*_time_draws(rounds, shrink), *_time_index_arrays(work, rounds, shrink, console)]


def _time_draws(rounds: int, shrink: int) -> list[Timing]:
    few, many = _mixture(_SOURCES), _mixture(max(_SOURCES, _MANY_SOURCES // shrink))
    draws = _DRAWS // shrink
    actions = {
        "draws at once": (draws, few, lambda: few.draws(_FAR, _FAR + draws)),
        "many sources, draws at once": (draws, many, lambda: many.draws(_FAR, _FAR + draws)),
        "a draw": (1, few, lambda: few[_FAR]),
        "counts": (1, many, lambda: many.counts(_FAR)),
    }
    runs = in_turn({name: action for name, (_, _, action) in actions.items()}, rounds)
    return [
        Timing(f"{name}, {len(mix.names):,} sources", items, "draws", runs[name])
        for name, (items, mix, _) in actions.items()
    ]


def _time_index_arrays(work: Path, rounds: int, shrink: int, console: Console) -> list[Timing]:
    weights, size = _weights(_SOURCES), _SIZE // shrink
    lengths = [size // _SOURCES] * _SOURCES
    actions: dict[str, Callable[[], object]] = {
        "greedy": lambda: greedy(weights, size),
        "nanoset": lambda: nanoset(lengths, size, weights),
    }
    blend = compiled_loop(work)
    if blend is None:
        console.print("g++ is not installed: greedy is not compared with a compiled loop.")
        greedy(weights, 1)
    else:
        actions = {"compiled loop": lambda: blend(weights, size, 1)} | actions
        theirs, ours = blend(weights, size, 1), greedy(weights, size)
        if not (np.array_equal(ours[0], theirs[0]) and np.array_equal(ours[1], theirs[1])):
            raise FineshardsError("greedy returned other arrays than the compiled loop.")
    return [
        Timing(name, size, "samples", runs, beside="compiled loop" if name == "greedy" else None)
        for name, runs in in_turn(actions, rounds).items()
    ]
