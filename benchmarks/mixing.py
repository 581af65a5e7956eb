"""How fast a mixture is drawn, and how fast index arrays are built compared with compiled code.

The compiled loop is `blending_reference.cpp`: the rule of Megatron's helper, written independently
and compiled with its flags; it is not Megatron's code. `greedy` is compiled too where numba is
installed; the first call, which compiles it, is not timed. "greedy without numba" is the loop that
runs where it is not.
"""

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
from fineshards.loader.mixing import blending
from fineshards.loader.mixing.blending import greedy, nanoset
from fineshards.loader.mixing.mixture import Mixture

# Draws start at this position, which is too far to count up to.
_FAR = 10**10
_SOURCES, _MANY_SOURCES = 10, 10_000
_BLENDED = (2, 10, 50, 500)
_DRAWS, _SIZE = 1_000_000, 1_000_000
_CHANGES = 5_000
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
    return [
        *_time_draws(rounds, shrink),
        *_time_schedules(rounds, shrink),
        *_time_index_arrays(work, rounds, shrink, console),
    ]


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


def _time_schedules(rounds: int, shrink: int) -> list[Timing]:
    """Starting with a schedule of thousands of changes, and resuming after all of them."""
    changes = _CHANGES // shrink
    random = np.random.default_rng(_SEED).random((changes, _SOURCES)).tolist()
    names = list(map(str, range(_SOURCES)))
    sources = {name: (_Nothing(10**6), 1.0) for name in names}
    schedule = {
        1000 * at: dict(zip(names, weights, strict=True)) for at, weights in enumerate(random, 1)
    }
    end = 1000 * (changes + 1)
    actions = {
        "start": lambda: Mixture(sources, schedule=schedule).draws(0, 1),
        "resume at the end": lambda: Mixture(sources, schedule=schedule).draws(end, end + 1),
    }
    return [
        Timing(f"{name}, {changes:,} changes of {_SOURCES} weights", 1, "mixtures", runs)
        for name, runs in in_turn(actions, rounds).items()
    ]


def _time_index_arrays(work: Path, rounds: int, shrink: int, console: Console) -> list[Timing]:
    blend = compiled_loop(work)
    if blend is None:
        console.print("g++ is not installed: greedy is not compared with a compiled loop.")
    lengths = [_SIZE // shrink // _SOURCES] * _SOURCES
    actions: dict[str, Callable[[], object]] = {
        "nanoset": lambda: nanoset(lengths, _SIZE // shrink, _weights(_SOURCES))
    }
    actions["nanoset"]()
    timings = [
        Timing(name, sum(lengths), "samples", runs)
        for name, runs in in_turn(actions, rounds).items()
    ]
    for count in _BLENDED:
        timings += _time_greedy(count, blend, rounds, shrink)
    return timings


def _time_greedy(
    count: int,
    blend: Callable[..., tuple[np.ndarray, np.ndarray]] | None,
    rounds: int,
    shrink: int,
) -> list[Timing]:
    weights, size, slow_size = _weights(count), _SIZE // shrink, max(1, _SIZE // shrink // 20)
    named = f", {count} sources"
    compiled = f"compiled loop{named}"
    actions: dict[str, Callable[[], object]] = {
        f"greedy{named}": lambda: greedy(weights, size),
        f"greedy without numba{named}": lambda: without_numba(weights, slow_size),
    }
    ours = greedy(weights, size)
    if blend is not None:
        actions = {compiled: lambda: blend(weights, size, 0)} | actions
        if not np.array_equal(ours, blend(weights, size, 0)):
            raise FineshardsError("greedy returned other arrays than the compiled loop.")
    return [
        Timing(
            name,
            slow_size if name.startswith("greedy without") else size,
            "samples",
            runs,
            beside=compiled if blend is not None and name != compiled else None,
        )
        for name, runs in in_turn(actions, rounds).items()
    ]


def without_numba(weights: list[float], size: int) -> tuple[np.ndarray, np.ndarray]:
    """`greedy(weights, size)` as it runs where numba is not installed."""
    sources, numbers = np.empty(size, np.int16), np.empty(size, np.int64)
    caps = np.full(len(weights), np.inf)
    blending._fill(np.array(weights), caps, sources, numbers)
    return sources, numbers
