"""Exceptions that a signal's handler raises inside `next`: no batch is lost, repeated or wrong."""

import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.interruptions import Interrupted, Interruption
from support.numbered_samples import Numbers, numbers, scalar_order

from benchmarks.far_server import far_server
from benchmarks.made_up_dataset import make_dataset, uneven
from fineshards import BatchLoader, Mixture, Packing, TokenDataset
from fineshards.storage.open import open_storage

LENGTH = 16
FIELDS = ("inputs", "targets", "position_ids")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("made_up")
    make_dataset(open_storage(str(made / "far/data/set")), 4000, 300, made=uneven(4000, 20))
    return made


def opened(folder: Path, **options: Any) -> TokenDataset:
    return TokenDataset(folder / "far/data/set", sequence_length=LENGTH, **options)


def mixture(folder: Path) -> Mixture:
    return Mixture({"a": (opened(folder), 0.7), "b": (opened(folder), 0.3)}, exhausted="stop")


# What is read, and how.
KINDS: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "in order": (opened, {"shuffle": False}),
    "shuffled": (opened, {"seed": 3}),
    "groups of shards": (opened, {"shuffle_shards": 2, "epochs": 1}),
    "not mapped": (lambda folder: opened(folder, mapped=False), {"fields": FIELDS}),
    "packed": (opened, {"packing": Packing(rows=4), "fields": FIELDS}),
    "mixture": (mixture, {}),
    "ramp": (opened, {"batch_size": {0: 4, 2: 8}, "sequence_length": {0: 4, 3: 16}}),
    "cache folder": (
        lambda folder: opened(folder, cache_folder=folder / "cache", cache_folder_bytes=10**6),
        {},
    ),
}


def makes(source: Any, options: dict[str, Any]) -> Callable[[], BatchLoader]:
    def make() -> BatchLoader:
        for each in getattr(source, "sources", [source]):
            each.close()
        return BatchLoader(source, **{"batch_size": 8} | options)

    return make


def as_bytes(batch: Any) -> bytes:
    return b"".join(
        np.asarray(each).tobytes()
        for each in (batch.values() if isinstance(batch, dict) else [batch])
    )


def check(loader: BatchLoader, batches: list[bytes], taken: int, make: Callable[[], Any]) -> None:
    """The next batch is number `taken`, or the one after it if the state says so."""
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["step"] in (taken, taken + 1)
    found = [as_bytes(next(loader)) for _ in range(2)]
    assert found == batches[state["step"] : state["step"] + 2]
    resumed = make()
    resumed.load_state_dict(state)
    assert as_bytes(next(resumed)) == found[0]
    resumed.close()
    loader.close()


def interrupt_everywhere(make: Callable[[], BatchLoader], warm: int) -> int:
    """Interrupts `next` after `warm` batches, at each place of its own; returns their number."""
    with make() as whole:
        batches = [as_bytes(next(whole)) for _ in range(warm + 4)]
    event = 0
    while True:
        loader = make()
        for _ in range(warm):
            next(loader)
        interruption = Interruption(event)
        interruption.call(lambda: next(loader))  # noqa: B023
        if not interruption.raised:
            loader.close()
            return event
        check(loader, batches, warm, make)
        event += 1


@pytest.mark.kills
@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_at_any_line_of_next_moves_the_loader_by_one_batch_or_none(
    folder: Path, kind: str, ahead: int
) -> None:
    source, options = KINDS[kind]
    make = makes(source(folder), options | {"prefetch": ahead})
    assert interrupt_everywhere(make, 0) > 100
    assert interrupt_everywhere(make, 2) > 10


@pytest.mark.cloud
def test_an_exception_at_any_line_of_next_from_far_storage(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with far_server(folder / "far", 0) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.address)
        far = TokenDataset("gs://data/set", sequence_length=LENGTH)
        assert interrupt_everywhere(makes(far, {"prefetch": 2}), 0) > 100
        far.close()


# Signals that raise, for each kind.
STORM = 150


# An exception in the callback of the collector cannot be raised anywhere.
@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_storm_of_signals_that_raise_loses_and_repeats_nothing(
    folder: Path, kind: str, ahead: int
) -> None:
    source, options = KINDS[kind]
    make = makes(source(folder), options | {"prefetch": ahead, "seed": 5})
    with make() as whole:
        batches = [as_bytes(batch) for batch, _ in zip(whole, range(20), strict=False)]
    random, raised, armed = np.random.default_rng(0), 0, False

    def interrupt(number: int, frame: object) -> None:
        if armed:
            raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    loader = make()
    try:
        while raised < STORM:
            step = loader.step
            if step == len(batches):
                loader.restart()
                continue
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 1e-3))
                batch = next(loader)
                armed = False
                assert as_bytes(batch) == batches[step]
                assert loader.step == step + 1
            except (Interrupted, RuntimeError) as error:
                armed = False
                # Where a thread is started, `threading` may release a lock that it has not got.
                if Interrupted not in (type(error), type(error.__context__)):
                    raise
                raised += 1
                assert loader.state_dict()["step"] in (step, step + 1)
            time.sleep(random.choice([0, 2e-3]))
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        loader.close()


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_handler_may_use_the_loader_that_it_interrupts(ahead: int) -> None:
    """Without an exception: `next` goes on from where the handler has moved the loader."""
    order = scalar_order(40, 6, 1)

    class Handled(Numbers):
        handle: Callable[[], object] | None = None

        def __getitem__(self, index: int) -> np.ndarray:
            if self.handle is not None and threading.current_thread() is threading.main_thread():
                handle, self.handle = self.handle, None
                handle()
            return super().__getitem__(index)

    source = Handled(40)
    loader = BatchLoader(source, 4, 6, prefetch=ahead, epochs=1)
    state = loader.state_dict()
    source.handle = lambda: next(loader)
    assert numbers(loader, 2) == order[4:12]
    loader.close()
    source.handle = lambda: loader.load_state_dict(state)
    assert numbers(loader, 1) == order[:4]
    loader.close()
    source.handle = loader.close
    assert numbers(loader, 3) == order[4:16]
    loader.close()


def test_another_thread_may_read_after_an_interruption(folder: Path) -> None:
    """The owner is noted by its id, and `close` forgets it, wherever the owner was interrupted."""
    make = makes(opened(folder), {"prefetch": 0})
    expected = as_bytes(next(make()))
    line = 0
    while True:
        loader, interruption, found = make(), Interruption(line), list[bytes]()
        interruption.call(lambda: next(loader))  # noqa: B023
        if not interruption.raised:
            return
        loader.restart()
        other = threading.Thread(target=lambda: found.append(as_bytes(next(loader))))  # noqa: B023
        other.start()
        other.join()
        assert found == [expected]
        line += 1
