"""Shards that are damaged, cut short, grown or redacted: found when opened, named in one sentence.

Each is tried mapped and read by pread.
"""

import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.damage import flip_bit
from support.fresh_interpreter import run_program
from support.growing import append, build, made_up_rows, unfinished_append, write_parts
from support.oracle import shards_in
from support.sentences import refused

from benchmarks.made_up_dataset import make_dataset, stream
from fineshards import BatchLoader, Packing
from fineshards.errors import OutputError
from fineshards.loader.token_dataset import TokenDataset
from fineshards.maintenance.redact import redact
from fineshards.shards import npy
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage

SHARD_TOKENS = 1000
TOKENS = 5321
SHARD = "train/train_0002.npy"
both_ways = pytest.mark.parametrize("mapped", [True, False])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made_up")
    make_dataset(open_storage(str(folder)), TOKENS, SHARD_TOKENS)
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """A dataset to damage."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def everything(dataset: TokenDataset) -> np.ndarray:
    return dataset.gather(np.arange(len(dataset)))


@both_ways
@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (Path.unlink, "cannot be read: No such file"),
        (lambda path: rewrite(path, lambda old: old[:-1]), "has 4,127 bytes, expected 4,128"),
        (lambda path: rewrite(path, lambda old: old + b"\0"), "has 4,129 bytes, expected 4,128"),
        (lambda path: rewrite(path, lambda _: b""), "has 0 bytes, expected 4,128"),
        (lambda path: rewrite(path, lambda old: b"x" + old[1:]), "is not a .npy file"),
        (
            lambda path: rewrite(path, lambda old: old.replace(b"<u4", b"<i4")),
            "holds dtype '<i4', expected '<u4'",
        ),
        (
            lambda path: rewrite(path, lambda old: old.replace(b"(1000,)", b"(1001,)")),
            "has 1,001 tokens in its header, expected 1,000",
        ),
    ],
)
def test_a_missing_or_damaged_shard_is_an_error_that_names_it(
    copy: Path, harm: Callable[[Path], object], said: str, mapped: bool
) -> None:
    harm(copy / SHARD)
    dataset = TokenDataset(copy, sequence_length=100, mapped=mapped)
    for samples in ([25], [0, 25, 1], list(range(53)), [19]):
        message = refused(partial(dataset.gather, np.array(samples)), OutputError)
        assert said in message
        assert SHARD in message
    # All other samples can still be read.
    assert np.array_equal(dataset[31], stream(3100, 3201))


@given(st.data())
def test_reading_by_pread_gives_the_stream(whole: Path, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 3000), "length")
    dataset = TokenDataset(whole, sequence_length=length, mapped=False)
    numbers = data.draw(st.lists(st.integers(0, len(dataset) - 1), max_size=8), "numbers")
    expected = [stream(i * length, i * length + length + 1) for i in numbers]
    gathered = dataset.gather(np.array(numbers, np.int64))
    assert np.array_equal(gathered, np.array(expected).reshape(gathered.shape))
    start = data.draw(st.integers(0, TOKENS), "start")
    stop = data.draw(st.integers(start, TOKENS), "stop")
    assert np.array_equal(dataset.read_tokens(start, stop), stream(start, stop))


# Shards that are cut short in use

_CUT_SHORT = """
import os, sys
from pathlib import Path
from fineshards import BatchLoader, TokenDataset
folder, mapped = Path(sys.argv[1]), sys.argv[2] == "True"
dataset = TokenDataset(folder, sequence_length=100, mapped=mapped)
dataset[15000 // 100]  # opens the second shard
loader = BatchLoader(dataset, 10, shuffle=False, epochs=1)
print(next(loader)[0, :3].tolist(), flush=True)
os.truncate(folder / "train/train_0001.npy", 128)
for batch in loader:
    pass
"""


@both_ways
def test_a_shard_cut_short_under_a_loader(tmp_path: Path, mapped: bool) -> None:
    """Mapped, it is the end of the process, as docs/loader.md says; otherwise it is an error."""
    make_dataset(open_storage(str(tmp_path)), 30_001, 10_000)
    done = run_program(_CUT_SHORT, tmp_path, mapped, timeout=60)
    assert done.stdout == f"{stream(0, 3).tolist()}\n"
    if mapped:
        assert done.returncode == -signal.SIGBUS
        return
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("fineshards.errors.OutputError: the shard ")
    assert "train/train_0001.npy has 128 bytes, expected 40,128: it is damaged." in last


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (npy.HEADER_BYTES + 4 * 501, "has 2,132 bytes, expected 4,128"),
        (4128, "is not a .npy file"),
        (1_000_000, "has 1,000,000 bytes, expected 4,128"),
    ],
)
def test_a_shard_that_was_replaced_by_zeros_after_its_first_use_is_refused(
    copy: Path, size: int, said: str
) -> None:
    dataset = TokenDataset(copy, sequence_length=100, mapped=False)
    everything(dataset)
    rewrite(copy / SHARD, lambda _: bytes(size))
    for use in (lambda: dataset[24], lambda: dataset.read_tokens(2400, 2500)):
        assert f"{SHARD} {said}" in refused(use, OutputError)


def test_a_shard_that_is_not_mapped_and_was_replaced_is_read_from_its_new_file(copy: Path) -> None:
    dataset = TokenDataset(copy, sequence_length=100, mapped=False)
    before = everything(dataset)
    (copy / "new").write_bytes((copy / SHARD).read_bytes()[:-4] + bytes(4))
    (copy / "new").replace(copy / SHARD)
    assert dataset[29].tolist() == [*before[29][:-2].tolist(), 0, before[29][-1]]


# Reading that fails


def test_a_header_that_cannot_be_read_names_the_shard(copy: Path) -> None:
    (copy / SHARD).unlink()
    (copy / SHARD).symlink_to("/proc/self/mem")  # a file whose first page cannot be read
    dataset = TokenDataset(copy, sequence_length=100, mapped=False)
    message = refused(lambda: everything(dataset), OutputError)
    assert SHARD in message


# Tokens that no vocabulary has


@both_ways
@pytest.mark.parametrize("dtype", ["uint32", "int32", "int64"])
@pytest.mark.parametrize("packing", [None, Packing(rows=4)])
def test_a_token_beyond_the_vocabulary_names_the_shard(
    copy: Path, mapped: bool, dtype: str, packing: Packing | None
) -> None:
    whole = (copy / SHARD).read_bytes()
    wrong = bytearray(whole)
    wrong[npy.HEADER_BYTES + 4 * 777 + 3] |= 0x80  # a negative int32
    dataset = TokenDataset(copy, sequence_length=100, mapped=mapped)
    options: Any = {"shuffle": False, "epochs": 1, "dtype": dtype, "packing": packing}
    expected = [as_bytes(batch) for batch in BatchLoader(dataset, 10, **options)]
    loader = BatchLoader(dataset, 10, **options)
    dataset.close()
    (copy / SHARD).unlink()  # a mapped file must not change
    (copy / SHARD).write_bytes(wrong)
    found = list[bytes]()
    message = refused(lambda: found.extend(as_bytes(batch) for batch in loader), OutputError)
    assert f"{SHARD} has the token" in message
    assert "at 777, but the vocabulary ends before 50257" in message
    assert found == expected[:2]
    assert f"{SHARD} has the token" in refused(lambda: next(loader), OutputError)
    if packing is None:
        assert f"{SHARD} has the token" in refused(lambda: dataset[27], OutputError)
    (copy / SHARD).unlink()
    (copy / SHARD).write_bytes(whole)
    assert [as_bytes(batch) for batch in loader] == expected[2:]


def as_bytes(batch: Any) -> bytes:
    return b"".join(each.tobytes() for each in (batch.values() if type(batch) is dict else [batch]))


def test_with_numpy_alone_what_needs_more_says_what_to_install(whole: Path) -> None:
    program = """
import sys
for name in ("google_crc32c", "pyarrow", "tiktoken", "tokenizers"):
    sys.modules[name] = None
from fineshards import BatchLoader, TokenDataset, WholeDocuments
from fineshards.errors import UsageError
def opened(**more): return TokenDataset(sys.argv[1], sequence_length=100, **more)
dataset = opened()
assert next(BatchLoader(WholeDocuments(dataset), 2, fields=["loss_mask", "document_ids"]))
calls = [
    lambda: opened(cache_folder="unused"), lambda: dataset.decode(dataset[0]),
    lambda: dataset.document(0), lambda: next(dataset.all_documents()),
    lambda: BatchLoader(dataset, 2).explain(0), lambda: WholeDocuments(dataset).documents(0),
]
for call in calls:
    try: call()
    except UsageError as error: print(error)
"""
    crc32c = "google-crc32c is not installed. Install it with: pip install 'fineshards[gcs]'\n"
    pyarrow = "pyarrow is not installed. Install it with: pip install 'fineshards[build]'\n"
    done = run_program(program, whole)
    assert done.stdout == crc32c + 5 * pyarrow, done.stderr


# Datasets that changed since


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two generations, with short shards in the middle; and more input."""
    folder = tmp_path_factory.mktemp("grown")
    files = write_parts(folder, made_up_rows(11, 120), 40)
    build(folder / "out", files[0], "--shard_tokens=600", "--block_bytes=1", "--test_fraction=0.3")
    append(folder / "out", files[1])
    return folder


@pytest.mark.growing
@pytest.mark.parametrize("change", ["append", "unfinished append", "redact", "redact and append"])
def test_an_earlier_generation_is_copied_and_compared_after_later_changes(
    grown: Path, tmp_path: Path, change: str
) -> None:
    folder = Path(shutil.copytree(grown / "out", tmp_path / "out"))
    before = {split: everything(opened(folder, split)) for split in ("train", "test")}
    shards = shards_in(folder)
    if "redact" in change:
        redact(str(folder), documents=range(0, 60, 7))
    if change == "unfinished append":
        unfinished_append(folder, grown / "2.parquet")
    elif "append" in change:
        append(folder, grown / "2.parquet")
    now = shards_in(folder)
    assert (len(now) > len(shards)) == ("append" in change)
    assert bool(shards.items() - now.items()) == ("redact" in change)
    for split, tokens in before.items():
        found = everything(opened(folder, split))
        # Redacted tokens are EOT; without a redaction nothing differs.
        assert ((found != tokens) <= (found == opened(folder, split).eot)).all()
        assert bool((found != tokens).any()) == ("redact" in change)
    # A flipped bit is still found, in a shard that was redacted too.
    for name in sorted(shards):
        split = name.partition("/")[0]
        last_read = npy.HEADER_BYTES + 4 * 10
        flip_bit(folder / name, last_read)
        message = refused(lambda at=split: everything(opened(folder, at)), OutputError)
        assert f"{name} has the crc32c" in message
        flip_bit(folder / name, last_read)


def opened(folder: Path, split: str) -> TokenDataset:
    """Generation 2, by a new cache folder, for which each shard is compared."""
    cache = mkdtemp(dir=folder.parent)
    return TokenDataset(folder, split, sequence_length=50, generation=2, cache_folder=cache)


@pytest.mark.growing
def test_redactions_under_a_running_reader_are_not_taken_for_damage(
    grown: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(grown / "out", tmp_path / "out"))
    before = everything(opened(folder, "train"))
    dataset = opened(folder, "train")
    first = Manifest.load_finished(open_storage(str(folder))).first_number("train")
    redact(str(folder), documents=[first])
    assert (dataset[0] != before[0]).any()
    # What the reader learnt from the first redaction is old now.
    redact(str(folder), documents=range(first + 9, first + 30, 3))
    now = everything(dataset)
    assert ((now == before) | (now == dataset.eot)).all()
    assert (now[9:] != before[9:]).any()


@pytest.mark.growing
def test_while_another_change_is_not_finished_the_error_says_so(
    grown: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(grown / "out", tmp_path / "out"))
    unfinished_append(folder, grown / "2.parquet")
    flip_bit(folder / "train/train_0000.npy", 200)
    message = refused(lambda: opened(folder, "train")[0], OutputError)
    assert "is not finished (see metadata/generations/0003.job.json)" in message
