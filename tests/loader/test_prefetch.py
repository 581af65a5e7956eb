"""The prefetch thread, and loaders copied to other processes: no batch is lost."""

import gc
import multiprocessing
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fresh_interpreter import run_program
from support.numbered_samples import Numbers, numbers, scalar_order
from support.sentences import refused

from benchmarks.made_up_dataset import make_dataset
from fineshards.errors import OutputError
from fineshards.loader.batch_loader import BatchLoader
from fineshards.storage.open import open_storage


class Failing(Numbers):
    """A source with one sample that cannot be read while `broken` is set."""

    broken = True

    def __getitem__(self, index: int) -> np.ndarray:
        if self.broken and index == 17:
            raise OutputError("the shard train_0003.npy is damaged.")
        return super().__getitem__(index)


@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_an_error_is_raised_in_place_of_its_batch_which_can_be_read_again(prefetch: int) -> None:
    source = Failing(40)
    loader = BatchLoader(source, 5, shuffle=False, prefetch=prefetch, epochs=1)
    assert numbers(loader, 3) == list(range(15))
    for _ in range(2):
        assert refused(lambda: next(loader), OutputError) == "the shard train_0003.npy is damaged."
        assert loader.consumed == 15
    source.broken = False
    assert numbers(loader) == list(range(15, 40))


def prefetching() -> int:
    # Threads that a signal kept from starting are named there, too.
    return sum(
        thread.name == "fineshards-prefetch" and thread.is_alive()
        for thread in threading.enumerate()
    )


@pytest.mark.parametrize("end", ["close", "with", "garbage", "load", "end"])
def test_the_thread_ends_with_its_loader(end: str) -> None:
    assert prefetching() == 0
    loader = BatchLoader(Numbers(10), 2, epochs=3)
    next(loader)
    assert prefetching() == 1
    if end == "close":
        loader.close()
        loader.close()
    elif end == "with":
        with loader:
            next(loader)
    elif end == "garbage":
        del loader
        gc.collect()
    elif end == "load":
        loader.load_state_dict(loader.state_dict())
    else:
        list(loader)
    assert prefetching() == 0


@pytest.mark.parametrize("how", ["next(loader)", "next(loader); raise SystemExit(3)", "pass"])
def test_nothing_hangs_when_the_interpreter_exits(tmp_path: Path, how: str) -> None:
    make_dataset(open_storage(str(tmp_path)), 5000, 500, test_shards=1)
    program = (
        "import sys, time\n"
        "from fineshards.loader.batch_loader import BatchLoader\n"
        "from fineshards.loader.token_dataset import TokenDataset\n"
        "loader = BatchLoader(TokenDataset(sys.argv[1], sequence_length=30), 4, prefetch=4)\n"
        f"{how}\n"
    )
    done = run_program(program, tmp_path, timeout=60)
    assert (done.returncode, done.stderr) == (3 if "3" in how else 0, "")


def _rest(loader: BatchLoader, result: Any) -> None:
    result.put(numbers(loader))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_loader_in_use_continues_in_another_process(method: str) -> None:
    loader = BatchLoader(Numbers(40), 4, 6, epochs=2)
    numbers(loader, 3)
    context = multiprocessing.get_context(method)
    result = context.Queue()
    child = context.Process(target=_rest, args=(loader, result))
    child.start()
    rest = result.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0
    assert rest == numbers(loader) == scalar_order(40, 6, 2)[12:]


class Watched(Numbers):
    """A source that knows which threads have read its samples."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.threads: list[str] = []

    def __getitem__(self, index: int) -> np.ndarray:
        self.threads.append(threading.current_thread().name)
        return super().__getitem__(index)

    def read_ahead(self) -> int:
        return self.threads.count("fineshards-prefetch")


def waited_for(source: Watched, samples: int) -> int:
    """The samples that the thread has read, once there are so many, and a moment later."""
    deadline = time.monotonic() + 60
    while source.read_ahead() < samples and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(0.02)
    return source.read_ahead()


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_the_thread_reads_ahead_while_the_caller_is_away(prefetch: int) -> None:
    source = Watched(1000)
    with BatchLoader(source, 10, 6, prefetch=prefetch) as loader:
        taken = numbers(loader, 1)
        for step in range(1, 6):
            ahead = 10 * (prefetch + step - 1)
            assert waited_for(source, ahead) == ahead
            taken += numbers(loader, 1)
    # The first batch is the caller's.
    assert source.threads[:10] == ["MainThread"] * 10
    assert taken == scalar_order(1000, 6, 1)[:60]


def test_both_threads_keep_the_order() -> None:
    """A caller who is sometimes away, sometimes back at once."""
    rng = np.random.default_rng(0)
    for prefetch in (1, 2, 3):
        source = Watched(997)
        taken: list[int] = []
        with BatchLoader(source, 5, 6, epochs=2, prefetch=prefetch) as loader:
            for batch in loader:
                taken += numbers(iter([batch]))
                if rng.random() < 0.3:
                    time.sleep(rng.random() * 0.004)
        assert taken == scalar_order(997, 6, 2)
        assert {"MainThread", "fineshards-prefetch"} == set(source.threads)
