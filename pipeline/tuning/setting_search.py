"""Which settings to try, and which to advise: pure, over rates that somebody else measures.

A rate is never measured twice alike, least of all on a machine that does other things too. So the
defaults are right until another setting has beaten them clearly, and more than once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

# Rates that differ by less count as equal: runs of one and the same setting differ by as much.
MARGIN = 0.05
# Blocks to choose from. Smaller ones cost more in overhead than they can gain, larger ones memory.
BLOCK_SIZES = tuple(mebibytes << 20 for mebibytes in (8, 16, 32, 64))
# With fewer blocks than this a worker, some workers have nothing to do at the end for a good part
# of the time, which the rate of a sample does not tell.
BLOCKS_A_WORKER = 4
# From so many cores on, processes may be quicker than threads, which share an interpreter.
CORES_FOR_PROCESSES = 8


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to run a build. None stands for what `build` does by itself.

    workers: threads, or processes. block_bytes: bytes of text. processes: whether workers are.
    """

    workers: int | None = None
    block_bytes: int | None = None
    processes: bool = False

    def flags(self) -> list[str]:
        """The flags of `build`; none for the defaults."""
        flags = [f"--direct_num_workers={self.workers}"] if self.workers else []
        if self.processes:
            flags.append("--direct_running_mode=multi_processing")
        if self.block_bytes:
            flags.append(f"--block_bytes={self.block_bytes}")
        return flags

    def describe(self, cores: int, default_block: int | None) -> str:
        """The setting in words; default_block: bytes, None where block sizes mean nothing."""
        count = self.workers or cores
        kind = "process" if self.processes else "worker"
        plural = "" if count == 1 else "es" if self.processes else "s"
        words = f"{count} {kind}{plural}" + ("" if self.workers else " (default)")
        if default_block is None:
            return words
        size = (self.block_bytes or default_block) / (1 << 20)
        return f"{words}, blocks of {size:.3g} MiB" + ("" if self.block_bytes else " (default)")


@dataclass(frozen=True, slots=True)
class Room:
    """What there is to choose from.

    cores: of the machine, and the default number of workers. blocks: of the whole input, about, by
    block size; the default size, which is `default_block_bytes`, among them.
    """

    cores: int
    default_block_bytes: int
    blocks: Mapping[int, int]

    def worker_counts(self) -> list[int]:
        """Numbers of workers besides the default: twice the cores, then ever fewer.

        Workers without a block have nothing to do, so that only fewer than blocks differ.
        """
        most = self.blocks[self.default_block_bytes]
        powers = [1 << power for power in range(self.cores.bit_length())]
        fewer = [count for count in reversed(powers) if count < min(self.cores, most)]
        return [self.cores * 2, *fewer] if self.cores < most else fewer

    def block_sizes(self, workers: int) -> list[int]:
        """Block sizes besides the default that make other blocks, and enough of them."""
        default = self.blocks[self.default_block_bytes]
        seen = {default}
        sizes = []
        for size in sorted(self.blocks):
            count = self.blocks[size]
            if count in seen or (count < default and count < workers * BLOCKS_A_WORKER):
                continue
            seen.add(count)
            sizes.append(size)
        return sizes


def choose(rates: Mapping[Setting, Sequence[float]]) -> Setting:
    """The setting to advise, from the rates of all runs of each, in any unit.

    Another than the default must have been quicker by more than MARGIN in every one of its runs
    than the default was in any. Of several, the one whose slowest run was the quickest.
    """
    default = Setting()
    to_beat = max(rates[default]) * (1 + MARGIN)
    best = max(rates, key=lambda setting: min(rates[setting]))
    return best if best != default and min(rates[best]) > to_beat else default


# Measures a setting once: tokens a second, or None if there is no time left for it or it failed.
# `runs` is the number of runs of about that length that must still be possible, this one included.
Measure = Callable[[Setting, int], float | None]


def search(room: Room, measure: Measure) -> dict[Setting, list[float]]:
    """Measures the default, then what may be better; returns all rates.

    Worker counts first, then block sizes with the best of them: the two hardly depend on each
    other, and the full grid would take minutes. What wins is measured again, and so is the default.
    """
    default = Setting()
    first = measure(default, 1)
    if first is None:
        return {}
    rates: dict[Setting, list[float]] = {default: [first]}
    for setting in _worker_settings(room, rates):
        _add(rates, setting, measure(setting, 3))
    best = choose(rates)
    for size in room.block_sizes(best.workers or room.cores):
        setting = Setting(best.workers, size, best.processes)
        _add(rates, setting, measure(setting, 3))
    while (best := choose(rates)) != default and len(rates[best]) < 2:
        # The default again too: what slowed it down may be over.
        for setting, runs in ((default, 2), (best, 1)):
            rate = measure(setting, runs)
            if rate is None:
                return rates
            _add(rates, setting, rate)
    return rates


def advise(rates: Mapping[Setting, Sequence[float]]) -> Setting:
    """The setting to advise after a search: only what was measured more than once is advised."""
    settled = {s: found for s, found in rates.items() if len(found) > 1 or s == Setting()}
    return choose(settled)


def _worker_settings(room: Room, rates: Mapping[Setting, Sequence[float]]) -> Iterator[Setting]:
    if room.cores >= CORES_FOR_PROCESSES and room.blocks[room.default_block_bytes] > room.cores:
        yield Setting(room.cores, processes=True)
    for workers in room.worker_counts():
        setting = Setting(workers)
        yield setting
        slower = setting not in rates or max(rates[setting]) * (1 + MARGIN) < max(rates[Setting()])
        if workers < room.cores and slower:
            return  # still fewer would be slower still


def _add(rates: dict[Setting, list[float]], setting: Setting, rate: float | None) -> None:
    if rate is not None:
        rates.setdefault(setting, []).append(rate)
