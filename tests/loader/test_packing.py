"""Packing: windows fill rows as a plain loop says, and no token is lost, repeated or changed."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.checkout import SAMPLE
from support.fresh_interpreter import run_program
from support.sentences import refused

import benchmarks.packing as benchmark
from benchmarks.made_up_dataset import make_dataset
from fineshards.cli.cli import main
from fineshards.loader.joined_datasets import JoinedDatasets
from fineshards.loader.memory import Memory
from fineshards.loader.packed_source import PackedSource, fill_packed, packed_rows
from fineshards.loader.packing import Packing, pack
from fineshards.loader.token_dataset import TokenDataset
from fineshards.loader.tokens.split_documents import SampleDocument
from fineshards.storage.open import open_storage

Placed = list[list[tuple[int, int]]]


def packed_plainly(sizes: Sequence[int], rows: int, length: int, most: int | None) -> Placed:
    """The rule, one document and one row at a time: [first token, tokens] of each row's parts."""
    placed: Placed = [[] for _ in range(rows)]
    items, at, filled = [], 0, 0
    for size in sizes:
        while size >= length:
            placed[filled] = [(at, length)]
            at, size, filled = at + length, size - length, filled + 1
        if size:
            items.append((at, size))
        at += size
    free = [length if row >= filled else 0 for row in range(rows)]
    left = []
    for begin, size in sorted(items, key=lambda item: -item[1]):
        fitting = [
            row
            for row in range(rows)
            if free[row] >= size and (most is None or len(placed[row]) < most)
        ]
        if fitting:
            row = min(fitting, key=lambda row: free[row])
            placed[row].append((begin, size))
            free[row] -= size
        else:
            left.append((begin, size))
    left.sort()
    for row in range(rows):
        while free[row]:
            begin, size = left.pop(0)
            taken = min(size, free[row])
            placed[row].append((begin, taken))
            free[row] -= taken
            if taken < size:
                left.insert(0, (begin + taken, size - taken))
    assert not left
    return placed


def packed_fast(
    sizes: Sequence[int], rows: int, length: int, most: int | None, windows: int = 1
) -> Placed:
    starts = np.cumsum([0, *sizes[:-1]])
    begins, lengths, borders = pack(starts, rows, length, most, windows)
    assert borders[0] == 0
    assert borders[-1] == len(begins) == len(lengths)
    parts = list(zip(begins.tolist(), lengths.tolist(), strict=True))
    return [parts[borders[row] : borders[row + 1]] for row in range(rows * windows)]


def documents(draw: st.DrawFn, tokens: int, length: int) -> list[int]:
    """Document lengths with the sum `tokens`: short ones, some of one size, and long ones."""
    size = st.one_of(
        st.integers(1, max(1, length // 4)),
        st.sampled_from([length // 2, length // 2 + 1, length - 1, length, length + 1]),
        st.integers(1, 3 * length),
    )
    sizes: list[int] = []
    while tokens:
        sizes.append(min(tokens, max(1, draw(size))))
        tokens -= sizes[-1]
    return sizes


@st.composite
def windows(draw: st.DrawFn) -> tuple[list[int], int, int]:
    length, rows = draw(st.integers(1, 50)), draw(st.integers(1, 12))
    return documents(draw, rows * length, length), rows, length


@settings(max_examples=400)
@given(windows(), st.one_of(st.none(), st.integers(1, 6)))
@example(([1], 1, 1), None)
@example(([5] * 7 + [1], 4, 9), 1)
def test_windows_are_packed_as_the_rule_says(
    window: tuple[list[int], int, int], most: int | None
) -> None:
    sizes, rows, length = window
    placed = packed_fast(sizes, rows, length, most)
    assert placed == packed_plainly(sizes, rows, length, most)
    # Rows are full, and every token is in one place.
    assert [sum(size for _, size in row) for row in placed] == [length] * rows
    tokens = [at for row in placed for begin, size in row for at in range(begin, begin + size)]
    assert sorted(tokens) == list(range(rows * length))


@settings(max_examples=200)
@given(st.data(), st.one_of(st.none(), st.integers(1, 6)))
def test_many_windows_are_packed_as_each_alone(data: st.DataObject, most: int | None) -> None:
    length, rows = data.draw(st.integers(1, 50)), data.draw(st.integers(1, 12))
    sizes = [
        documents(data.draw, rows * length, length) for _ in range(data.draw(st.integers(2, 5)))
    ]
    together = packed_fast([each for own in sizes for each in own], rows, length, most, len(sizes))
    alone = [
        [(begin + window * rows * length, size) for begin, size in row]
        for window, own in enumerate(sizes)
        for row in packed_plainly(own, rows, length, most)
    ]
    assert together == alone


@pytest.mark.parametrize("seed", range(6))
def test_windows_of_the_usual_size_are_packed_as_the_rule_says(seed: int) -> None:
    rng, rows, length = np.random.default_rng(seed), 64, 512
    sizes = np.maximum(2, rng.lognormal(4.6 + seed / 4, 1.0, 4000)).astype(int).tolist()
    while sum(sizes) >= rows * length:
        sizes.pop()
    sizes.append(rows * length - sum(sizes))
    for most in (None, 2, 5):
        assert packed_fast(sizes, rows, length, most) == packed_plainly(sizes, rows, length, most)


def test_documents_of_one_length_keep_the_order_of_the_stream() -> None:
    """Sorting must be stable. numpy's default is not, and depends on the processor."""
    sizes = [8] * 500 + [96] * 500
    placed = packed_fast(sizes, 520, 100, None)
    assert [row[0] for row in placed[:500]] == [(4000 + 96 * at, 96) for at in range(500)]
    assert [row[0] for row in placed[500:]] == [(96 * at, 8) for at in range(20)]


PACK_ON_OTHER_PROCESSOR = """
import zlib
import numpy as np
from fineshards.loader.packing import pack
random, digest = np.random.default_rng(0), 0
for _ in range(20):
    starts = np.append(0, np.cumsum(random.integers(1, 60, 2000) * 8))
    for part in pack(starts[starts < 256 * 512], 256, 512):
        digest = zlib.crc32(part.tobytes(), digest)
print(digest, np.show_config(mode="dicts")["SIMD Extensions"].get("found", []))
"""


def test_processors_with_and_without_wide_instructions_pack_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = run_program(PACK_ON_OTHER_PROCESSOR)
    features = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])  # type: ignore[call-overload]
    monkeypatch.setenv("NPY_DISABLE_CPU_FEATURES", " ".join(features))
    without = run_program(PACK_ON_OTHER_PROCESSOR)
    assert usual.stdout.split(maxsplit=1)[1].strip() == repr(features)
    assert without.stdout.split() == [usual.stdout.split()[0], "[]"]


def test_most_documents_are_whole() -> None:
    """At most 2.5 % of those that fit are cut, of lengths as in FineWeb; in order it is a fifth."""
    sizes = np.maximum(2, np.random.default_rng(1).lognormal(6.0, 0.95, 9000)).astype(np.int64)
    tokens, starts = int(sizes.sum()), np.cumsum(sizes) - sizes
    assert benchmark.in_windows(starts, tokens, 2048, 256).cut < 0.025
    assert benchmark.in_order(starts, tokens, 2048).cut > 0.15


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"rows": 0}, "Packing: rows is 0; give an integer of at least 1."),
        ({"rows": 2.5}, "Packing: rows is 2.5; give an integer of at least 1."),
        ({"rows": None}, "Packing: rows is None; give an integer of at least 1."),
        ({"max_documents": 0}, "Packing: max_documents is 0; give an integer of at least 1."),
        (
            {"shuffle_windows": "16"},
            "Packing: shuffle_windows is '16'; give an integer of at least 1.",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object], said: str) -> None:
    assert refused(lambda: Packing(**arguments)) == said  # type: ignore[arg-type]


# Reading


class Tokens:
    """A source of tokens in memory."""

    fingerprint = "tokens"

    def __init__(self, tokens: np.ndarray, length: int, eot: int = 0) -> None:
        self.tokens, self.sequence_length, self.eot = tokens, length, eot
        self.reads: list[tuple[int, int]] = []
        self.requested: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.sequence_length

    def __getitem__(self, index: int) -> np.ndarray:
        at = index * self.sequence_length
        return self.tokens[at : at + self.sequence_length + 1].astype(np.uint32)

    def read_tokens(self, start: int, stop: int) -> np.ndarray:
        assert 0 <= start < stop <= len(self.tokens)
        self.reads.append((start, stop))
        return self.tokens[start:stop].copy()  # as from far storage

    def loss_mask(self, numbers: np.ndarray) -> np.ndarray:
        """Targets that are multiples of three do not count."""
        return np.array([self[number][1:] % 3 != 0 for number in numbers.tolist()])

    def request_tokens(self, start: int, stop: int) -> None:
        self.requested.append((start, stop))


def stream_of(sizes: Sequence[int], dtype: str = "uint32") -> np.ndarray:
    """Documents of these lengths: EOT, which is 0, and then their places in the stream."""
    tokens = np.arange(1, sum(sizes) + 1).astype(dtype)
    tokens[np.cumsum([0, *sizes[:-1]])] = 0
    return tokens


def read(source: PackedSource, dtype: str = "uint32") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All rows of a source, the last one first."""
    shape = (len(source), source._length)
    inputs, targets = np.full(shape, -1).astype(dtype), np.full(shape, -1).astype(dtype)
    starts = np.ones(shape, np.bool_)
    numbers = np.arange(len(source))
    fill(source, inputs[::-1], targets[::-1], starts[::-1], numbers[::-1])
    return inputs, targets, starts


def fill(
    source: PackedSource,
    inputs: np.ndarray,
    targets: np.ndarray,
    starts: np.ndarray | None,
    numbers: np.ndarray,
) -> None:
    joined = JoinedDatasets.of([source._source])
    rows = packed_rows([source], np.zeros_like(numbers), numbers, joined)
    both, _ = fill_packed(rows, source._length, Memory(1), inputs.dtype, joined)
    inputs[...], targets[...] = both
    if starts is not None:
        starts[...] = rows.starts(source._length)


@settings(max_examples=60)
@given(st.data())
def test_rows_hold_the_pairs_of_inputs_and_targets_of_the_stream(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 30), "length")
    tokens = data.draw(st.integers(length + 1, 40 * length), "tokens")
    sizes = documents(data.draw, tokens, length)
    rows = data.draw(st.integers(1, 15), "rows")
    most = data.draw(st.one_of(st.none(), st.integers(1, 4)), "most")
    stored = data.draw(st.sampled_from(["uint16", "uint32"]), "stored")
    dtype = data.draw(st.sampled_from([stored, "int32", "int64"]), "dtype")
    skipped = data.draw(st.integers(0, 5), "skipped")
    # Windows begin anywhere: also within a document.
    stream = stream_of([skipped + 1, *sizes], stored)[1:]
    source = Tokens(stream, length)
    packed = PackedSource(source, Packing(rows, most, 2))
    inputs, targets, starts = read(packed, dtype)
    assert inputs.dtype == targets.dtype == dtype
    for first in range(0, len(source), rows):
        stop = min(first + rows, len(source))
        window = stream[first * length : stop * length + 1]
        begins = np.flatnonzero(window[:-1] == 0).tolist()
        begins = begins if begins[:1] == [0] else [0, *begins]
        lengths = np.diff([*begins, len(window) - 1]).tolist()
        placed = packed_plainly(lengths, stop - first, length, most)
        for row, parts in enumerate(placed, first):
            places = [at for begin, size in parts for at in range(begin, begin + size)]
            assert inputs[row].tolist() == window[places].tolist()
            assert targets[row].tolist() == window[np.array(places) + 1].tolist()
            columns = np.cumsum([0, *(size for _, size in parts)])[:-1]
            assert np.flatnonzero(starts[row]).tolist() == columns.tolist()
    numbers = np.arange(len(source))[::-1]
    assert np.array_equal(packed.loss_mask(numbers), targets[::-1] % 3 != 0)


def test_any_rows_in_any_order_are_those_of_reading_all() -> None:
    rng = np.random.default_rng(0)
    stream = stream_of(rng.integers(1, 90, 900).tolist())
    source = Tokens(stream, 32)
    all_rows = read(PackedSource(source, Packing(16)))
    packed = PackedSource(source, Packing(16, shuffle_windows=1))
    for _ in range(30):
        numbers = rng.integers(0, len(source), 50)
        arrays = [np.zeros((50, 32), dtype) for dtype in ("uint32", "int64", "bool")]
        fill(packed, arrays[0], arrays[1], arrays[2], numbers)
        for array, whole in zip(arrays, all_rows, strict=True):
            assert np.array_equal(array, whole[numbers])
    fill(packed, arrays[0][:0], arrays[1][:0], None, np.empty(0, np.int64))
    assert packed.loss_mask(np.empty(0, np.int64)).shape == (0, 32)


def test_a_window_is_read_once_and_kept_while_its_rows_are_shuffled() -> None:
    source = Tokens(stream_of([7] * 1000), 10)
    packed = PackedSource(source, Packing(8, shuffle_windows=3))
    out = np.empty((1, 10), np.int64)
    rng = np.random.default_rng(0)
    for group in range(0, 80, 3):
        for number in (group * 8 + rng.permutation(24)).tolist():
            fill(packed, out, out.copy(), None, np.array([number]))
    assert len(source.reads) == len(set(source.reads)) == 81
    # And no more of them than that and a few.
    fill(packed, out, out.copy(), None, np.array([0]))
    assert len(source.reads) == 82
    assert len(packed._windows) == 7


def test_requests_are_for_windows_that_are_not_kept() -> None:
    source = Tokens(stream_of([7] * 100), 10)
    packed = PackedSource(source, Packing(8))
    packed.request(np.array([68, 3, 9, 12]))
    assert source.requested == [(0, 81), (80, 161), (640, 691)]
    out = np.empty((1, 10), np.int64)
    fill(packed, out, out.copy(), None, np.array([3]))
    source.requested.clear()
    packed.request(np.array([5, 68]))
    assert source.requested == [(640, 691)]
    assert source.reads == [(0, 81)]


def test_threads_share_a_source() -> None:
    rng = np.random.default_rng(0)
    source = Tokens(stream_of(rng.integers(1, 90, 1000).tolist()), 32)
    inputs, targets, _ = read(PackedSource(source, Packing(16)))
    packed = PackedSource(source, Packing(16, shuffle_windows=1))

    def check(seed: int) -> bool:
        numbers = np.random.default_rng(seed).integers(0, len(source), 100)
        out = np.empty((2, 100, 32), np.uint32)
        fill(packed, out[0], out[1], None, numbers)
        return np.array_equal(out, [inputs[numbers], targets[numbers]])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(check, range(24)))


def test_a_source_without_tokens_is_refused() -> None:
    class Samples:
        sequence_length = 4

    assert refused(lambda: PackedSource(Samples(), Packing())) == (  # type: ignore[arg-type]
        "packing needs a source with read_tokens, such as a TokenDataset, but Samples has none. "
        "Leave packing out."
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packing") / "out"
    assert (
        main(["build", "--input", str(SAMPLE), "--output", str(folder), "--shard_tokens=50000"])
        == 0
    )
    return folder


@pytest.mark.parametrize(("length", "rows"), [(64, 256), (700, 32), (1024, 1000)])
def test_an_epoch_of_a_dataset_has_the_same_pairs_packed_or_not(
    built: Path, length: int, rows: int
) -> None:
    dataset = TokenDataset(built, sequence_length=length)
    inputs, targets, starts = read(PackedSource(dataset, Packing(rows)))
    samples = dataset.gather(np.arange(len(dataset))).astype(np.int64)
    plain = np.sort(samples[:, :-1] << 32 | samples[:, 1:], axis=None)
    packed = np.sort(inputs.astype(np.int64) << 32 | targets, axis=None)
    assert np.array_equal(packed, plain)
    # Within a run the targets are the next inputs, and every EOT starts one.
    same = ~starts[:, 1:]
    assert np.array_equal(targets[:, :-1][same], inputs[:, 1:][same])
    assert starts[inputs == dataset.eot].all()
    assert starts[:, 0].all()


def test_the_documents_of_a_row_are_those_of_its_tokens(built: Path) -> None:
    dataset = TokenDataset(built, sequence_length=256)
    packed = PackedSource(dataset, Packing(64))
    inputs, targets, starts = read(packed)
    # Which document each token is of, by the unpacked samples.
    of: dict[int, list[SampleDocument]] = {}
    for number in range(len(dataset)):
        for document in dataset.documents(number):
            of.setdefault(document.number, []).append(document)
    for number in range(0, len(dataset), 7):
        found = packed.documents(number)
        for token in (number * 256, number * 256 + 255):
            (row,) = packed.rows_of(token, token + 1)
            tokens = dataset.read_tokens(token, token + 2).tolist()
            assert tokens in np.stack((inputs[row], targets[row]), axis=1).tolist()
        assert [document.begin for document in found] == np.flatnonzero(starts[number]).tolist()
        assert [document.end for document in found] == [
            *(document.begin for document in found[1:]),
            256,
        ]
        for document in found:
            assert (inputs[number, document.begin] == dataset.eot) == (document.position == 0)
            same = of[document.number][0]
            assert (document.file, document.row, document.id) == (same.file, same.row, same.id)


def test_windows_cross_from_shard_to_shard(tmp_path: Path) -> None:
    for name, shard_tokens in (("whole", 10**5), ("parts", 777)):
        make_dataset(open_storage(str(tmp_path / name)), 20_000, shard_tokens, dtype="uint16")
    whole, parts = (
        read(PackedSource(TokenDataset(tmp_path / name, sequence_length=128), Packing(16)))
        for name in ("whole", "parts")
    )
    for a, b in zip(whole, parts, strict=True):
        assert np.array_equal(a, b)
