"""Keys of texts, words, URLs and columns: what is the same, and what is not."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_digest, xxh3_128_intdigest

from fineshards.curation.batch import Batch
from fineshards.curation.steps.exact_duplicates import Exact, normalized_url
from fineshards.curation.words.normal_form import simplified_words
from fineshards.errors import InputError


def with_column(name: str, values: list[Any] | pa.Array, as_json: bool = False) -> Batch:
    texts = pa.array(["text"] * len(values), pa.large_string())
    if as_json:
        column = pa.array([None if value is None else json.dumps(value) for value in values])
    else:
        column = values if isinstance(values, pa.Array) else pa.array(values)
    return Batch(0, np.arange(len(values)), texts, {name: column}, as_json)


def numbers(keys: np.ndarray) -> list[int]:
    """Keys as numbers of 128 bits."""
    assert keys.dtype == np.uint64
    assert keys.shape[1:] == (2,)
    return [high << 64 | low for high, low in keys.tolist()]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_keys_of_texts_are_hashes_of_their_bytes(texts: list[str]) -> None:
    keys = Exact().keys(Batch.of_texts(texts))
    assert numbers(keys.keys) == [xxh3_128_intdigest(text.encode()) for text in texts]
    assert keys.owners.tolist() == list(range(len(texts)))
    assert keys.spans is None


@given(st.lists(st.text("aé…1 .")))
def test_keys_of_words_are_hashes_of_the_hashes_of_simplified_words(texts: list[str]) -> None:
    keys = Exact("normalized").keys(Batch.of_texts(texts))
    words = [simplified_words(text) for text in texts]
    assert keys.owners.tolist() == [owner for owner, found in enumerate(words) if found]
    expected = [
        xxh3_128_intdigest(b"".join(xxh3_64_digest(word.encode())[::-1] for word in found))
        for found in words
        if found
    ]
    assert numbers(keys.keys) == expected


@pytest.mark.parametrize("as_json", [False, True])
def test_a_null_has_no_key(as_json: bool) -> None:
    keys = Exact("column:id").keys(with_column("id", [None, "a", None, "b", "a"], as_json))
    assert keys.owners.tolist() == [1, 3, 4]
    assert numbers(keys.keys) == [xxh3_128_intdigest(value) for value in (b"a", b"b", b"a")]
    assert len(Exact("column:id").keys(with_column("id", [None], as_json)).keys) == 0


@pytest.mark.parametrize("by", ["text", "normalized", "url", "column:url"])
def test_an_empty_batch_has_no_keys(by: str) -> None:
    keys = Exact(by).keys(with_column("url", []))
    assert keys.keys.shape == (0, 2)
    assert keys.owners.dtype == np.int64


@pytest.mark.parametrize(
    "values", [["a", "ü\ud800"], [1, 2**53 + 1], [True, False], [0.1, 1e300], [[1, 2], []]]
)
def test_a_value_has_the_same_key_whether_it_is_typed_or_json(values: list[Any]) -> None:
    parsed = Exact("column:x").keys(with_column("x", values, as_json=True)).keys
    assert len(set(numbers(parsed))) == len(values)
    if "ü\ud800" not in values:
        assert np.array_equal(Exact("column:x").keys(with_column("x", values)).keys, parsed)


def test_the_order_of_keys_in_an_object_does_not_matter() -> None:
    batch = with_column("x", [{"a": 1, "b": 2}, {"b": 2, "a": 1}], as_json=True)
    first, second = numbers(Exact("column:x").keys(batch).keys)
    assert first == second


@pytest.mark.parametrize(
    "kinds",
    [
        [pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")],
        [pa.timestamp(unit, "Asia/Tokyo") for unit in ("s", "ns")],
        [pa.duration(unit) for unit in ("s", "ms", "us", "ns")],
        [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")],
        [pa.date32(), pa.date64(), pa.timestamp("ns")],
    ],
    ids=str,
)
def test_times_have_the_same_key_in_each_unit(kinds: list[pa.DataType]) -> None:
    whole = {"s": 86_400, "ms": 86_400_000, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}
    found = []
    for kind in kinds:
        day = 1 if kind == pa.date32() else whole[getattr(kind, "unit", "ms")]
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        if pa.types.is_time(kind):
            day //= 2  # half a day
        times = pa.array([0, day, None], width).cast(kind)
        columns = [times, times.dictionary_encode()]
        found.append([numbers(Exact("column:x").keys(with_column("x", c)).keys) for c in columns])
        lists = pa.ListArray.from_arrays([0, 1, 2, 3], times)
        maps = pa.MapArray.from_arrays([0, 1, 2, 3], pa.array(["a", "b", "c"]), times)
        for nested in (pa.StructArray.from_arrays([times], ["t"]), lists, maps):
            with pytest.raises(InputError, match=r"row 0: its 'x' of type .* has times within it"):
                Exact("column:x").keys(with_column("x", nested))
    assert all(len(set(keys)) == len(keys) for keys in found[0])
    assert found[1:] == found[:-1]


def test_nanoseconds_and_far_years_are_told_apart() -> None:
    times = pa.array([1, 2, 1000], pa.timestamp("ns"))
    far = pa.array([2**62, 2**62 + 1], pa.timestamp("s"))
    for values in (times, far):
        keys = Exact("column:x").keys(with_column("x", values)).keys
        assert len(set(numbers(keys))) == len(values)


def test_bytes_are_compared_as_they_are() -> None:
    keys = Exact("column:x").keys(with_column("x", [b"\xff\x00", b"a"]))
    assert numbers(keys.keys) == [xxh3_128_intdigest(b"\xff\x00"), xxh3_128_intdigest(b"a")]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://example.org", "http://example.org/"),
        ("HTTPS://EXAMPLE.org:443/A?b=C#d", "https://example.org/A?b=C"),
        ("http://example.org:443/", "http://example.org:443/"),
        ("http://example.org:/x", "http://example.org/x"),
        ("ftp://example.org:21/x", "ftp://example.org/x"),
        (" http://example.org/ \n", "http://example.org/"),
        ("http://Me:Pass@Example.org:8080/x", "http://Me:Pass@example.org:8080/x"),
        ("http://example.org?x#y?z", "http://example.org/?x"),
        ("http://example.org/a/?", "http://example.org/a/?"),
        ("http://[2001:DB8::1]:80/x", "http://[2001:db8::1]/x"),
        ("http://EXÄMPLE.org/", "http://exÄmple.org/"),
        # What is no URL with a host.
        ("example.org/A#b", "example.org/A#b"),
        ("mailto:A@example.org", "mailto:A@example.org"),
        ("", ""),
        ("http://a:b:c/", "http://a:b:c/"),
        ("http://example.org:8x/A#b", "http://example.org:8x/A"),
    ],
)
def test_a_url_is_normalized(url: str, expected: str) -> None:
    assert normalized_url(url) == expected
    assert normalized_url(expected) == expected
    keys = Exact("url").keys(with_column("url", [url, expected]))
    assert numbers(keys.keys) == [xxh3_128_intdigest(expected.encode())] * 2


def test_only_the_compared_column_is_read() -> None:
    assert Exact().columns == Exact("normalized").columns == ()
    assert Exact("url").columns == ("url",)
    assert Exact("column:a:b").columns == ("a:b",)
    assert Exact("url").reason == "exact_url"
    assert Exact("column:id").reason == "exact_column"
