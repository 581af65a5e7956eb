"""A cache folder of whole shards: shared by processes, bounded, checked, and safe against kills."""

import os
import random
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.checkout import ROOT
from support.oracle import files_in

from benchmarks.far_server import far_server
from benchmarks.made_up_dataset import make_dataset, stream
from fineshards.errors import OutputError, UsageError
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.token_dataset import TokenDataset
from fineshards.storage.open import open_storage

SHARD_BYTES = 4128


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A dataset of ten shards of 1,000 tokens."""
    make_dataset(open_storage(str(tmp_path / "set")), 9900, 1000)
    return tmp_path / "set"


def opened(made: Path | str, cache: Path, shards: int = 100) -> TokenDataset:
    limit = shards * SHARD_BYTES
    return TokenDataset(made, sequence_length=10, cache_folder=cache, cache_folder_bytes=limit)


def check_all(dataset: TokenDataset, order: int = 0) -> None:
    numbers = np.random.default_rng(order).permutation(len(dataset))
    rows = np.concatenate([dataset.gather(part) for part in np.array_split(numbers, 7)])
    starts = numbers[:, None] * 10 + np.arange(11)
    assert np.array_equal(rows, stream(0, 9900)[starts])


def copies(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.npy"))


def used(cache: Path) -> int:
    return sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())


@pytest.mark.parametrize("shards", [1, 3, 10])
def test_samples_are_the_stream_and_the_folder_keeps_its_bound(
    made: Path, tmp_path: Path, shards: int
) -> None:
    dataset = opened(made, tmp_path / "cache", shards)
    for order in range(2):
        check_all(dataset, order)
        assert used(tmp_path / "cache") <= shards * SHARD_BYTES
    start, stop = 995, 2005
    assert np.array_equal(dataset.read_tokens(start, stop), stream(start, stop))
    dataset.close()
    check_all(dataset)


def test_copies_are_the_shards_and_are_read_without_them(made: Path, tmp_path: Path) -> None:
    check_all(opened(made, tmp_path / "cache"))
    shards = sorted((made / "train").glob("*.npy"))
    assert [path.read_bytes() for path in copies(tmp_path / "cache")] == [
        path.read_bytes() for path in shards
    ]
    for path in shards:
        path.unlink()
    check_all(opened(made, tmp_path / "cache"))


def test_the_least_recently_opened_shard_is_deleted_and_its_room_is_given_back(
    made: Path, tmp_path: Path
) -> None:
    dataset = opened(made, tmp_path / "cache", 3)
    for shard in (0, 1, 2):
        dataset[shard * 100]
        time.sleep(0.01)
    dataset.close()
    dataset[0]
    time.sleep(0.01)
    dataset[300]
    names = [path.name.split(".")[1] for path in copies(tmp_path / "cache")]
    assert names == ["train_0000", "train_0002", "train_0003"]
    for shard in (4, 5, 6, 7):
        dataset[shard * 100]
    # A deleted file that is still mapped would keep its room on the disk.
    mapped = Path("/proc/self/maps").read_text()
    assert f"{tmp_path}/cache" in mapped
    assert sum("(deleted)" in line and str(tmp_path) in line for line in mapped.splitlines()) <= 1


def test_a_copy_that_is_not_mapped_and_was_overwritten_in_use_is_made_again(
    made: Path, tmp_path: Path
) -> None:
    dataset = TokenDataset(made, sequence_length=10, cache_folder=tmp_path / "cache", mapped=False)
    check_all(dataset)
    for path in copies(tmp_path / "cache"):
        path.write_bytes(bytes(SHARD_BYTES))
    check_all(dataset)


def test_datasets_do_not_mix_and_equal_ones_share(tmp_path: Path) -> None:
    make_dataset(open_storage(str(tmp_path / "one")), 9900, 1000)
    make_dataset(open_storage(str(tmp_path / "same")), 9900, 1000, files=2)
    make_dataset(open_storage(str(tmp_path / "narrow")), 9900, 1000, dtype="uint16")
    make_dataset(open_storage(str(tmp_path / "small")), 9900, 500)
    for name in ("one", "same", "narrow", "small", "one"):
        check_all(opened(tmp_path / name, tmp_path / "cache"))
    # 10 copies of the first two together, 10 of the third, 20 of the last.
    assert len(copies(tmp_path / "cache")) == 40


def cut(path: Path) -> None:
    os.truncate(path, 4000)


def grow(path: Path) -> None:
    os.truncate(path, 5000)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def change_header(path: Path) -> None:
    path.write_bytes(b"x" + path.read_bytes()[1:])


def change_token(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [cut, grow, empty, change_header])
def test_a_damaged_copy_is_made_again(
    made: Path, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    check_all(opened(made, tmp_path / "cache"))
    for path in copies(tmp_path / "cache")[2:5]:
        harm(path)
    check_all(opened(made, tmp_path / "cache"))
    assert (
        copies(tmp_path / "cache")[3].read_bytes() == (made / "train/train_0003.npy").read_bytes()
    )


def test_a_damaged_shard_is_named_and_never_kept(made: Path, tmp_path: Path) -> None:
    shard = made / "train/train_0003.npy"
    content = shard.read_bytes()
    change_token(shard)
    dataset = opened(made, tmp_path / "cache")
    with pytest.raises(OutputError, match=r"set/train/train_0003\.npy has the crc32c"):
        dataset[310]
    assert copies(tmp_path / "cache") == []
    assert not list((tmp_path / "cache").rglob("*.part"))
    shard.write_bytes(content)
    check_all(dataset)


def test_a_folder_that_cannot_be_used_is_one_sentence(made: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        OutputError, match=r"the cache folder .*/file cannot be used: .*\. Give one"
    ):
        opened(made, tmp_path / "file")
    dataset = opened(made, tmp_path / "cache")
    # A limit of the file size stands for a disk without room.
    program = f"""
import resource, signal, sys
from fineshards.errors import OutputError
from fineshards.loader.token_dataset import TokenDataset
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
dataset = TokenDataset({str(made)!r}, sequence_length=10, cache_folder={str(tmp_path / "full")!r})
try:
    dataset[0]
except OutputError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "full cannot be used: File too large. Give one that you may write to" in done.stdout
    assert not list((tmp_path / "full").rglob("*.part"))
    check_all(dataset)


def test_a_cache_folder_that_is_too_small_is_warned_of_where_the_loader_is_made(
    tmp_path: Path,
) -> None:
    make_dataset(open_storage(str(tmp_path / "set")), 10_000, 1000)

    def dataset(shards: int) -> TokenDataset:
        return TokenDataset(
            tmp_path / "set",
            sequence_length=100,
            cache_folder=tmp_path / "cache",
            cache_folder_bytes=shards * 4128,
        )

    with pytest.warns(UserWarning, match=r"cache_folder_bytes=12384 or more") as caught:
        BatchLoader(dataset(2), 4, shuffle_shards=2)
    assert [Path(each.filename).name for each in caught] == [Path(__file__).name]
    with pytest.warns(UserWarning, match="cache_folder_bytes=41280 or more"):
        BatchLoader(dataset(9), 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BatchLoader(dataset(3), 4, shuffle_shards=2)
        BatchLoader(dataset(2), 4, shuffle=False)
        BatchLoader(dataset(10), 4)


def test_arguments_that_cannot_be_are_refused(tmp_path: Path) -> None:
    make_dataset(open_storage(str(tmp_path / "set")), 10_000, 1000)
    for options, said in [
        ({"cache_folder": tmp_path / "c", "cache_folder_bytes": 4127}, "one shard has 4,128"),
        ({"cache_folder_bytes": 5000}, "cache_folder is not"),
        ({"cache_folder": ""}, "give a folder"),
        ({"cache_folder": tmp_path / "c", "cache_folder_bytes": 0}, "at least 1"),
    ]:
        with pytest.raises(UsageError, match=said):
            TokenDataset(tmp_path / "set", sequence_length=10, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["copy", "part", "lock"])
@pytest.mark.parametrize("there", [True, False])
def test_nothing_is_read_or_written_through_a_link_in_the_folder(
    made: Path, tmp_path: Path, place: str, there: bool
) -> None:
    """there: the link leads to something."""
    cache, outside = tmp_path / "cache", tmp_path / "outside"
    outside.mkdir()
    dataset = opened(made, cache)
    check_all(dataset)
    dataset.close()
    copy = copies(cache)[3]
    link = {"copy": copy, "part": Path(f"{copy}.part"), "lock": cache / "lock"}[place]
    for name in [path.name for path in copies(cache)] if there else []:
        (outside / name).write_bytes(b"a canary")
    copy.unlink()
    link.unlink(missing_ok=True)
    link.symlink_to(outside / copy.name)
    before = files_in(outside)
    if place == "part":  # one that was left
        check_all(opened(made, cache))
    else:
        with pytest.raises(OutputError, match=r"the cache folder .* cannot be used: .* link"):
            check_all(opened(made, cache))
    assert files_in(outside) == before


def test_threads_and_loaders_share_one_folder(made: Path, tmp_path: Path) -> None:
    wrong: list[BaseException] = []

    def read(order: int) -> None:
        try:
            check_all(opened(made, tmp_path / "cache", 3), order)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(order,)) for order in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert used(tmp_path / "cache") <= 3 * SHARD_BYTES


# Processes

READ = """
import os, sys, time
import numpy as np
from benchmarks.made_up_dataset import stream
from fineshards.loader.token_dataset import TokenDataset
dataset, cache, shards, rounds, order = sys.argv[1:]
dataset = TokenDataset(
    dataset, sequence_length=10, cache_folder=cache, cache_folder_bytes=int(shards) * 4128
)
expected = stream(0, 9900)
generator = np.random.default_rng(int(order))
print("ready", flush=True)
for _ in range(int(rounds)):
    for part in np.array_split(generator.permutation(len(dataset)), 7):
        starts = part[:, None] * 10 + np.arange(11)
        assert np.array_equal(dataset.gather(part), expected[starts])
    dataset.close()
"""


def reading(
    made: Path | str, cache: Path, shards: int, rounds: int, order: int
) -> subprocess.Popen[str]:
    arguments = [str(made), str(cache), str(shards), str(rounds), str(order)]
    return subprocess.Popen(
        [sys.executable, "-c", READ, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.cloud
def test_four_processes_fetch_each_shard_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dataset(open_storage(str(tmp_path / "far/data/set")), 9900, 1000)
    with far_server(tmp_path / "far", 0.01) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.address)
        running = [reading("gs://data/set", tmp_path / "cache", 10, 2, order) for order in range(4)]
        assert [(process.wait(60), process.communicate()[1]) for process in running] == [
            (0, "")
        ] * 4
        counts = server.counts()
    for shard in range(10):
        name = f"data/set/train/train_{shard:04d}.npy"
        # One for the header, one for all of it.
        assert counts[name] == 2
    assert len(copies(tmp_path / "cache")) == 10


@pytest.mark.cloud
def test_an_order_of_few_shards_copies_the_next_ones_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dataset(open_storage(str(tmp_path / "far/data/set")), 9900, 1000)
    with far_server(tmp_path / "far", 0.05) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.address)
        dataset = opened("gs://data/set", tmp_path / "cache")
        with BatchLoader(dataset, 10, shuffle=False, epochs=1, prefetch=1) as loader:
            next(loader)
            deadline = time.monotonic() + 60
            while len(copies(tmp_path / "cache")) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
        names = [path.name.split(".")[1] for path in copies(tmp_path / "cache")]
        assert names == ["train_0000", "train_0001"]


@pytest.mark.long
def test_kills_at_any_moment_leave_nothing_wrong(made: Path, tmp_path: Path) -> None:
    """Processes that copy all the time are killed; the others and later ones read what is right."""
    cache, moments = tmp_path / "cache", random.Random(5)
    steady = reading(made, cache, 4, 12, 100)
    for order in range(8):
        killed = reading(made, cache, 4, 1000, order)
        assert killed.stdout is not None
        assert killed.stdout.readline() == "ready\n"
        time.sleep(moments.random() * 0.2)
        killed.kill()
        killed.communicate()
    assert (steady.wait(100), steady.communicate()[1]) == (0, "")
    last = reading(made, cache, 4, 1, 7)
    assert (last.wait(60), last.communicate()[1]) == (0, "")
    check_all(opened(made, cache, 4))
    assert used(cache) <= 4 * SHARD_BYTES
    assert not list(cache.rglob("*.part"))


def test_a_part_that_a_killed_process_left_is_deleted_for_room(made: Path, tmp_path: Path) -> None:
    left = tmp_path / "cache/other.train_0000.00000000.npy.part"
    left.parent.mkdir(parents=True)
    left.write_bytes(bytes(9 * SHARD_BYTES))
    check_all(opened(made, tmp_path / "cache", 10))
    assert not left.exists()


def test_a_child_does_not_hold_its_parents_lock(made: Path, tmp_path: Path) -> None:
    """The parent is killed while it copies; its child lives on, and another process copies."""
    program = f"""
import os, sys, time
from fineshards.loader.far import cached_shards
from fineshards.loader.token_dataset import TokenDataset
def stall(*arguments):
    child = os.fork()
    if child:
        print("stalled", flush=True)
    time.sleep(30)
    os._exit(0)
cached_shards._Copies._download = stall
TokenDataset({str(made)!r}, sequence_length=10, cache_folder={str(tmp_path / "cache")!r})[0]
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "stalled\n"
        time.sleep(0.2)
        parent.kill()
        parent.wait()
        other = reading(made, tmp_path / "cache", 10, 1, 0)
        assert (other.wait(20), other.communicate()[1]) == (0, "")
    finally:
        os.killpg(parent.pid, 9)
