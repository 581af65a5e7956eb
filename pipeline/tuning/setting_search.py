"""Which settings to try, and which to advise. Pure functions over rates measured elsewhere.

No rate is measured the same twice, least of all on a machine that does other work. So the defaults
are advised unless another setting was clearly faster, more than once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fineshards.commands.wording import counted

# Rates that differ by less count as equal: repeated runs of one setting differ by as much.
MARGIN = 0.05
# Smaller blocks cost more overhead than they can gain; larger ones cost memory.
BLOCK_SIZES = tuple(mebibytes << 20 for mebibytes in (8, 16, 32, 64))
# With fewer blocks than this per worker, some workers are idle for a long time at the end of a
# build, which the rate of a probe does not show.
BLOCKS_PER_WORKER = 4
# From this many cores on, processes may be faster than threads, which share an interpreter.
CORES_FOR_PROCESSES = 8


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to run a build. None stands for the default of `build`.

    workers: number of threads or processes. block_bytes: bytes of text. processes: whether workers
    are processes.
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
        """The setting in words; default_block: in bytes, None for inputs without block sizes."""
        kind = "process" if self.processes else "worker"
        words = counted(self.workers or cores, kind) + ("" if self.workers else " (default)")
        if default_block is None:
            return words
        size = (self.block_bytes or default_block) / (1 << 20)
        return f"{words}, blocks of {size:.3g} MiB" + ("" if self.block_bytes else " (default)")


@dataclass(frozen=True, slots=True)
class Room:
    """The range of settings to choose from.

    cores: of the machine; the default number of workers. blocks: number of blocks of the whole
    input, estimated, by block size, including `default_block_bytes`.
    """

    cores: int
    default_block_bytes: int
    blocks: Mapping[int, int]

    def worker_counts(self) -> list[int]:
        """Numbers of workers other than the default: twice the cores, then fewer and fewer.

        Workers without a block are idle, so only numbers below that of the blocks differ.
        """
        most = self.blocks[self.default_block_bytes]
        powers = [1 << power for power in range(self.cores.bit_length())]
        fewer = [count for count in reversed(powers) if count < min(self.cores, most)]
        return [self.cores * 2, *fewer] if self.cores < most else fewer

    def block_sizes(self, workers: int) -> list[int]:
        """Block sizes that give other numbers of blocks than the default, and enough of them."""
        default = self.blocks[self.default_block_bytes]
        seen = {default}
        sizes = []
        for size in sorted(self.blocks):
            count = self.blocks[size]
            if count in seen or (count < default and count < workers * BLOCKS_PER_WORKER):
                continue
            seen.add(count)
            sizes.append(size)
        return sizes


def choose(rates: Mapping[Setting, Sequence[float]]) -> Setting:
    """The setting to advise, from the rates of all runs of each, in any unit.

    A setting wins over the default only if each of its runs was faster than the fastest run of the
    default by more than MARGIN. Of several, the one with the fastest slowest run wins.
    """
    default = Setting()
    to_beat = max(rates[default]) * (1 + MARGIN)
    best = max(rates, key=lambda setting: min(rates[setting]))
    return best if best != default and min(rates[best]) > to_beat else default


# Measures a setting once, in tokens per second; None if it failed or there is no time left for it.
# `runs` is the number of such runs that must still be possible, this one included.
Measure = Callable[[Setting, int], float | None]


def search(room: Room, measure: Measure) -> dict[Setting, list[float]]:
    """Measures the default, then settings that may be faster; returns all rates.

    Worker counts come first, then block sizes with the best of them: the two hardly depend on each
    other, and the full grid would take minutes. The winner and the default are measured again.
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
        # The default is repeated as well: whatever slowed it down may be over.
        for setting, runs in ((default, 2), (best, 1)):
            rate = measure(setting, runs)
            if rate is None:
                return rates
            _add(rates, setting, rate)
    return rates


def advise(rates: Mapping[Setting, Sequence[float]]) -> Setting:
    """The setting to advise after a search: the default, or one that was measured repeatedly."""
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
            return  # even fewer workers would be even slower


def _add(rates: dict[Setting, list[float]], setting: Setting, rate: float | None) -> None:
    if rate is not None:
        rates.setdefault(setting, []).append(rate)
