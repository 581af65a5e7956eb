"""Thousands of shards in a process whose files are limited: each sample right, descriptors left."""

import errno
import gc
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fresh_interpreter import run_program

from benchmarks.made_up_dataset import make_dataset, stream
from fineshards.errors import OutputError
from fineshards.loader.token_dataset import TokenDataset
from fineshards.loader.tokens.local_shards import OpenShards, Shelf
from fineshards.storage.open import open_storage

T = 4


def made(folder: Path, shards: int, shard_tokens: int = 10) -> Path:
    make_dataset(open_storage(str(folder)), shards * shard_tokens, shard_tokens)
    return folder


def run(program: str, *arguments: object) -> list[str]:
    """What a program printed in a process of its own, which must not fail."""
    done = run_program(_BEGIN + program, *arguments, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


# What all programs need. `check` compares samples with the made-up stream.
_BEGIN = f"""
import os, pickle, resource, sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy as np
from benchmarks.made_up_dataset import stream
from fineshards import BatchLoader, Mixture, TokenDataset
from fineshards.loader.tokens.local_shards import OPEN_SHARDS

T = {T}
FOLDERS = sorted(Path(sys.argv[1]).iterdir())
EXPECTED = stream(0, 20_000)

def limit(files):
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, 20_000))

def opened():
    return len(os.listdir("/proc/self/fd")) - 1

def mapped():
    return sum(".npy" in line for line in open("/proc/self/maps"))

def check(dataset, numbers):
    for row, number in zip(dataset.gather(numbers), numbers.tolist(), strict=True):
        assert row.tolist() == EXPECTED[number * T : number * T + T + 1].tolist()
    return len(numbers)

def hold(but):
    "Opens files until `but` more can be opened."
    held = []
    try:
        while True:
            held.append(open(os.devnull))
    except OSError:
        return held[: len(held) - but]
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty datasets of 27 shards, of which five each have shards of the same length."""
    folder = tmp_path_factory.mktemp("sixty")
    for number in range(12):
        first = made(folder / f"{number:02d}", 27, 10 + number)
        for copy in range(12 + number, 60, 12):
            shutil.copytree(first, folder / f"{copy:02d}")
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets of 1,224 shards."""
    folder = tmp_path_factory.mktemp("two")
    make_dataset(open_storage(str(folder / "a")), 12_240, 10)
    shutil.copytree(folder / "a", folder / "b")
    return folder


@pytest.mark.long
def test_3000_datasets_are_read_by_16_threads_with_256_files(many: Path) -> None:
    compared, most = run(
        """
limit(256)
datasets = [
    pickle.loads(pickle.dumps(dataset))
    for dataset in [TokenDataset(folder, sequence_length=T) for folder in FOLDERS]
    for _ in range(50)
]
most, compared = 0, 0

def read(seed):
    global most
    rng, done = np.random.default_rng(seed), 0
    # Each dataset is read by some thread, and others at random.
    for number in [*range(seed, 3000, 16), *rng.integers(0, 3000, 300)]:
        dataset = datasets[number]
        done += check(dataset, rng.integers(0, len(dataset), 3))
        if number % 30 == 0:
            most = max(most, mapped())
    return done

with ThreadPoolExecutor(16) as pool:
    compared = sum(pool.map(read, range(16)))
print(compared, most)
""",
        many,
    )
    assert int(compared) == 3 * (3000 + 16 * 300)
    # A quarter of the limit, and what the threads hold while they read.
    assert 60 < int(most) <= 64 + 16 * 3


@pytest.mark.long
def test_a_mixture_of_2448_shards_leaves_descriptors_for_the_checkpoint(two: Path) -> None:
    steps, files, left = run(
        """
limit(1024)
before = opened()
a, b = [TokenDataset(folder, sequence_length=T) for folder in FOLDERS]
mixture = Mixture({"a": (a, 2), "b": (b, 1)}, seed=1)
steps = 0
with BatchLoader(mixture, batch_size=24, seed=1) as loader:
    for step, batch in enumerate(loader):
        for row, drawn in zip(batch, loader.samples(step), strict=True):
            assert row.tolist() == EXPECTED[drawn.sample * T : drawn.sample * T + T + 1].tolist()
        steps += 1
        if steps == 500:
            break
    files = opened() - before
    print(steps, files, len([open(os.devnull) for _ in range(600)]))
""",
        two,
    )
    assert (int(steps), int(left)) == (500, 600)
    assert 250 <= int(files) <= 260


def test_a_program_that_holds_all_but_a_few_files_can_read_and_open_more(two: Path) -> None:
    compared, *left = run(
        """
limit(512)
dataset = TokenDataset(FOLDERS[0], sequence_length=T)
compared, left = check(dataset, np.arange(100)), []  # opens 40 shards of the 128 allowed
held = hold(but=5)
for start in range(100, len(dataset) - 20, 20):
    compared += check(dataset, np.arange(start, start + 20))
    left.append(len(hold(but=0)))
print(compared, *left)
""",
        two,
    )
    assert int(compared) >= 3000
    # Once none was left, half of the shards are closed, and stay closed.
    assert min(map(int, left[3:])) >= 15


def test_shards_that_are_not_mapped_stay_open_within_the_limit(two: Path) -> None:
    few, some, opens = run(
        """
limit(256)
times = 0
def count(event, arguments):
    global times
    times += event == "open" and str(arguments[0]).endswith(".npy")
sys.addaudithook(count)
dataset = TokenDataset(FOLDERS[0], sequence_length=T, mapped=False)
few = np.arange(100)  # of 41 shards
for _ in range(5):
    check(dataset, few)
print(times)
check(dataset, np.arange(len(dataset)))
print(opened())
dataset.close()
print(opened())
""",
        two,
    )
    assert few == "41"
    assert 41 < int(some) < 128
    assert int(opens) < 10


@pytest.mark.parametrize("mapped", [True, False])
def test_where_no_descriptor_is_left_the_error_says_what_to_do(two: Path, mapped: bool) -> None:
    (_, *said) = run(
        """
from fineshards.errors import OutputError
limit(512)
dataset = TokenDataset(FOLDERS[0], sequence_length=T, mapped=sys.argv[2] == "True")
held = hold(but=0)
for use in (
    lambda: check(dataset, np.arange(5)), lambda: TokenDataset(FOLDERS[1], sequence_length=T)
):
    try:
        print("read", use())
    except OutputError as error:
        print("refused:", error)
del held[-3:]
check(dataset, np.arange(len(dataset)))
""",
        two,
        mapped,
    )
    shard, manifest = " ".join(said).split(" refused: ")
    for message, file in [(shard, "train_0000.npy"), (manifest, "b/metadata/manifest.json")]:
        assert message.endswith(
            f"{file} cannot be read: Too many open files. Close files and connections, or raise "
            "the limit (ulimit -n)."
        )


def test_opening_a_dataset_closes_shards_where_no_descriptor_is_left(two: Path) -> None:
    (compared,) = run(
        """
limit(512)
dataset = TokenDataset(FOLDERS[0], sequence_length=T)
check(dataset, np.arange(300))
held = hold(but=0)
other = TokenDataset(FOLDERS[1], sequence_length=T)
print(check(other, np.arange(len(other))))
""",
        two,
    )
    assert int(compared) == 12_239 // T


def test_a_limit_that_is_lowered_later_is_kept(two: Path) -> None:
    before, after, raised = run(
        """
dataset = TokenDataset(FOLDERS[0], sequence_length=T)
for files in (400, 100, 800):
    limit(files)
    check(dataset, np.arange(len(dataset)))
    print(mapped())
""",
        two,
    )
    assert (int(before), int(after), int(raised)) == (100, 25, 200)


def test_forked_processes_count_their_own_while_threads_of_the_parent_read(many: Path) -> None:
    (*children, parent) = run(
        """
import multiprocessing
limit(256)
datasets = [TokenDataset(folder, sequence_length=T) for folder in FOLDERS]
over = threading.Event()

def read(seed):
    rng, done = np.random.default_rng(seed), 0
    while not over.is_set():
        dataset = datasets[rng.integers(60)]
        done += check(dataset, rng.integers(0, len(dataset), 3))
    return done

def child(results):
    over.set()
    for dataset in datasets:
        check(dataset, np.arange(0, len(dataset), 3))
    results.put(mapped())

with ThreadPoolExecutor(4) as pool:
    threads = [pool.submit(read, seed) for seed in range(4)]
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    for _ in range(3):
        process = context.Process(target=child, args=(results,))
        process.start()
        print(results.get(timeout=60))
        process.join()
    over.set()
    print(sum(thread.result() for thread in threads) > 0)
""",
        many,
    )
    assert parent == "True"
    # What threads of the parent held when it forked may stay open in the child.
    assert all(64 <= int(mapped) <= 64 + 4 * 3 for mapped in children)


# Datasets that are dropped


def mapped_files(folder: Path) -> int:
    return sum(str(folder) in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_a_dropped_or_closed_dataset_holds_no_files_although_others_are_used(
    tmp_path: Path,
) -> None:
    folders = [made(tmp_path / name, 5) for name in ("dropped", "closed", "used")]
    dropped, closed, used = (TokenDataset(folder, sequence_length=T) for folder in folders)
    for dataset in (dropped, closed, used):
        dataset.gather(np.arange(len(dataset)))
    assert [mapped_files(folder) for folder in folders] == [5, 5, 5]
    gc.disable()  # so that a reference cycle would keep the files open
    try:
        del dropped, dataset
        closed.close()
        assert [mapped_files(folder) for folder in folders] == [0, 0, 5]
    finally:
        gc.enable()
    assert closed[2].tolist() == stream(2 * T, 3 * T + 1).tolist()


def test_a_view_of_tokens_stays_valid_when_its_dataset_is_closed(tmp_path: Path) -> None:
    dataset = TokenDataset(made(tmp_path, 5), sequence_length=T)
    view = dataset.read_tokens(12, 19)
    dataset.close()
    del dataset
    assert view.tolist() == stream(12, 19).tolist()
    assert mapped_files(tmp_path) == 1
    del view
    assert mapped_files(tmp_path) == 0


# The bound alone


@settings(max_examples=40)
@given(st.data())
def test_whatever_is_opened_and_dropped_at_most_the_limit_is_open(data: st.DataObject) -> None:
    bound, shelves = OpenShards(), [Shelf() for _ in range(4)]
    limit = bound.limit()
    assert limit >= 100
    bound._limit = limit = data.draw(st.integers(1, 6))
    for _ in range(data.draw(st.integers(0, 60))):
        shelf = data.draw(st.integers(0, 3))
        match data.draw(st.sampled_from(["put", "put", "put", "clear", "drop", "full"])):
            case "put":
                shard = data.draw(st.integers(0, 9))
                if shard not in shelves[shelf]:
                    assert bound.put(shelves[shelf], shard, lambda n=shard: 10 * n) == 10 * shard
                    assert shelves[shelf][shard] == 10 * shard
            case "clear":
                shelves[shelf].clear()
            case "drop":
                shelves[shelf] = Shelf()
            case "full":
                failures = iter([errno.EMFILE, errno.ENFILE, errno.ENOMEM])
                places = len(bound._places)

                def load(failures: object = failures) -> str:
                    code = next(failures, None)  # type: ignore[call-overload]
                    if code is None:
                        return "loaded"
                    raise OutputError("Full.") from OSError(code, os.strerror(code))

                if places >= 4:
                    assert bound.with_room(load) == "loaded"
                    limit = max(1, places // 8)
                    assert bound.limit() == limit
        assert sum(map(len, shelves)) <= limit
    assert bound.limit() == limit


def test_errors_that_closing_cannot_help_are_raised_and_close_nothing() -> None:
    bound, shelf = OpenShards(), Shelf()
    bound.put(shelf, 1, lambda: "shard")

    def missing() -> object:
        raise OutputError("Missing.") from FileNotFoundError(errno.ENOENT, "missing")

    with pytest.raises(OutputError, match="Missing"):
        bound.put(shelf, 2, missing)
    assert shelf == {1: "shard"}
