"""The layout: windows, splits and shard names of streams of any size."""

from fractions import Fraction
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineshards.shards.layout import Layout, ShardKey, shard_stem
from fineshards.shards.split_rule import ByFraction, FirstShards

BY_DOCUMENT = ByFraction("1/100", "text", 1)

# Small streams reach every edge case quickly; large ones exceed 32 and 64 bits.
counts = st.one_of(st.integers(0, 60), st.integers(2**32, 2**34), st.integers(2**63, 2**65))


def keys_of(layout: Layout) -> list[ShardKey]:
    return [shard.key for shard in layout.shards()]


@st.composite
def layouts(draw: st.DrawFn, most_windows: int = 40) -> Layout:
    tokens = draw(counts)
    shard_tokens = draw(st.integers(max(1, tokens // most_windows), max(1, tokens) + 2))
    by_document = draw(st.booleans())
    rule = BY_DOCUMENT if by_document else FirstShards(draw(st.integers(0, most_windows + 2)))
    layout = Layout(shard_tokens, ())
    cuts = sorted(draw(st.lists(st.integers(0, tokens), max_size=3)))
    for begin, end in pairwise([0, *cuts, tokens]):
        test = draw(st.integers(0, end - begin))
        new = [test, end - begin - test] if by_document else [end - begin]
        layout = Layout.plan(new, shard_tokens, rule, layout.added)
    return layout


@given(layouts())
def test_shards_tile_the_stream(layout: Layout) -> None:
    keys = keys_of(layout)
    assert len(keys) == len(set(keys)) == layout.windows
    size = layout.shard_tokens
    for number, split in enumerate(("test", "train")):
        of_split = [key for key in keys if key.split == split]
        lengths = [layout.shard_length(key) for key in of_split]
        # What each generation adds fills shards of its own, of which the last one may be shorter.
        new = [added[number] for added in layout.added]
        assert lengths == [min(size, left) for all_ in new for left in range(all_, 0, -size)]
        begins = [0, *accumulate(lengths)]
        assert [layout.begin(key) for key in of_split] == begins[:-1]
        if layout.tokens + size < 2**62:
            assert layout.begins(split).tolist() == begins


@given(layouts(), st.data())
def test_the_place_of_a_token_is_in_the_shard_that_has_it(
    layout: Layout, data: st.DataObject
) -> None:
    for split, tokens in (("test", layout.tokens_of("test")), ("train", layout.tokens_of("train"))):
        chosen = data.draw(st.lists(st.integers(0, tokens - 1), max_size=5)) if tokens else []
        places = [layout.place(split, token) for token in chosen]
        for token, (index, at) in zip(chosen, places, strict=True):
            key = ShardKey(split, index)
            assert layout.begin(key) + at == token
            assert at < layout.shard_length(key)
        if layout.tokens + layout.shard_tokens < 2**62:
            shards, offsets = layout.places(split, np.array(chosen, np.int64))
            assert [*zip(shards.tolist(), offsets.tolist(), strict=True)] == places


@given(layouts())
def test_window_is_the_place_of_a_key(layout: Layout) -> None:
    keys = keys_of(layout)
    assert [layout.shard(key) for key in keys] == list(layout.shards())
    test = [key.index for key in keys if key.split == "test"]
    train = [key.index for key in keys if key.split == "train"]
    assert test == list(range(layout.windows_of("test")))
    assert train == list(range(layout.windows - layout.windows_of("test")))
    assert [key.split for key in keys] == ["test"] * len(test) + ["train"] * len(train)


@given(layouts(), st.data())
def test_slices_put_every_token_of_a_run_into_its_window(
    layout: Layout, data: st.DataObject
) -> None:
    offset = data.draw(st.integers(0, layout.tokens))
    count = data.draw(st.integers(0, layout.tokens - offset))
    position = 0
    for piece in layout.slices(offset, count):
        assert piece.start == position < piece.stop
        assert piece.at + piece.stop - piece.start <= layout.shard_length(piece.key)
        begin = layout.tokens_of("test") if piece.key.split == "train" else 0
        assert begin + layout.begin(piece.key) + piece.at == offset + piece.start
        position = piece.stop
    assert position == count


@given(st.fractions(0, 1), st.integers(0, 2**32 - 1))
def test_a_document_is_test_if_its_hash_is_below_the_floor_of_the_fraction(
    fraction: Fraction, number: int
) -> None:
    rule = ByFraction(str(fraction), "text", 1)
    # floor(fraction * 2**32) in integers.
    threshold = fraction.numerator * 2**32 // fraction.denominator
    assert rule.threshold == threshold
    numbers = [number, max(threshold - 1, 0), min(threshold, 2**32 - 1)]
    found = rule.in_test(np.array(numbers, np.uint32))
    assert found.tolist() == [each < threshold for each in numbers]


def test_fractions_are_exact() -> None:
    def threshold(fraction: str) -> int:
        return ByFraction(fraction, "text", 1).threshold

    assert (threshold("0"), threshold("1/2"), threshold("1")) == (0, 2**31, 2**32)
    assert threshold("1/100") == 42_949_672
    assert threshold("1/4294967296") == 1
    # As a binary number the first product is 2**32 - 3.999..., the second 2**32 / 3 + 0.3.
    assert threshold("999999999/1000000000") == 4_294_967_291
    assert threshold("1/3") == 1_431_655_765


@given(st.integers(0, 50), st.integers(0, 50))
def test_a_number_of_test_shards_is_the_rule_of_the_seed_script(number: int, windows: int) -> None:
    # The seed script: split = "test" if shard_index < N else "train".
    expected = sum(window < number for window in range(windows))
    layout = Layout.plan([windows * 7 - 3 if windows else 0], 7, FirstShards(number))
    assert (layout.windows, layout.windows_of("test")) == (windows, expected)


@pytest.mark.parametrize(
    ("test_shards", "windows", "width"),
    [
        (0, 1, 4),
        (0, 10_000, 4),
        (0, 10_001, 5),
        (1, 10_001, 4),
        (1, 10_002, 5),
        (10_000, 20_000, 4),
        (10_001, 10_001, 5),
        (10_001, 10_002, 5),
        (0, 100_000, 5),
        (0, 100_001, 6),
    ],
)
def test_the_index_is_wider_only_when_a_split_needs_it(
    test_shards: int, windows: int, width: int
) -> None:
    layout = Layout.plan([windows], 1, FirstShards(test_shards))
    assert layout.windows == windows
    assert layout.index_width == width
    stems = [shard_stem(layout.shard_name(key)) for key in keys_of(layout)]
    assert {len(stem.rpartition("_")[2]) for stem in stems} == {width}


@pytest.mark.parametrize("windows", [1, 11, 9_999, 10_000, 10_001, 12_345])
@pytest.mark.parametrize("test_shards", [0, 1, 10_001])
def test_shard_names_sort_in_stream_order(windows: int, test_shards: int) -> None:
    layout = Layout.plan([windows], 1, FirstShards(test_shards))
    names = [layout.shard_name(key) for key in keys_of(layout)]
    assert names == sorted(names)
    assert len(names) == len(set(names))


def test_names_are_those_of_the_seed_script() -> None:
    layout = Layout.plan([25], 1, FirstShards(2))
    assert layout.shard_name(ShardKey("test", 1)) == "test/test_0001.npy"
    assert layout.shard_name(ShardKey("train", 17)) == "train/train_0017.npy"
    assert shard_stem("train/train_0017.npy") == "train_0017"
