"""Counts: sums in any order and grouping, and their forms in JSON."""

from functools import reduce
from operator import add

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import ValidationError, convert, json, to_builtins
from msgspec.structs import replace

from fineshards.shards.counts import MANY_VALUES, Counts, LabelCount

NUMBERS = (
    *("rows", "documents", "nulls", "rejected", "tokens"),
    *("text_bytes", "by_reference", "compared"),
)
amounts = st.integers(0, 2**50)


@st.composite
def counts(draw: st.DrawFn) -> Counts:
    """Any counts, with few distinct labels, so that sums often add equal ones."""
    keys = st.tuples(st.sampled_from(["dump", "language"]), st.sampled_from(["a", "b", ""]))
    labels = draw(st.dictionaries(keys, st.tuples(amounts, amounts), max_size=4))
    return Counts(
        **{name: draw(amounts) for name in NUMBERS},
        labels=tuple(LabelCount(*key, *labels[key]) for key in sorted(labels)),
    )


@given(st.lists(counts(), max_size=6))
def test_a_total_is_the_sum_of_each_number_and_of_each_label(parts: list[Counts]) -> None:
    total = Counts.total(parts)
    for name in NUMBERS:
        assert getattr(total, name) == sum(getattr(part, name) for part in parts)
    of_labels: dict[tuple[str, str], tuple[int, int]] = {}
    for label in (label for part in parts for label in part.labels):
        documents, tokens = of_labels.get((label.column, label.value), (0, 0))
        of_labels[label.column, label.value] = documents + label.documents, tokens + label.tokens
    assert list(total.labels) == [LabelCount(*key, *of_labels[key]) for key in sorted(of_labels)]


@given(st.lists(counts(), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_order_and_grouping_do_not_change_a_total(parts: list[Counts], random: object) -> None:
    shuffled = list(parts)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    cut = len(parts) // 2
    total = Counts.total(parts)
    assert Counts.total(shuffled) == reduce(add, parts) == total
    assert Counts.total(parts[:cut]) + Counts.total(parts[cut:]) == total
    assert total + Counts() == Counts() + total == total


@given(
    st.lists(st.dictionaries(st.integers(0, 12), st.tuples(amounts, amounts)), max_size=6),
    st.randoms(use_true_random=False),
)
def test_a_column_with_many_values_is_one_label_in_any_order_and_grouping(
    columns: list[dict[int, tuple[int, int]]], random: object
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fineshards.shards.counts.MAX_VALUES", 5)
        parts = [
            Counts(
                labels=tuple(
                    LabelCount("dump", str(value), *numbers)
                    for value, numbers in sorted(column.items())
                )
            )
            for column in columns
        ]
        total = Counts.total(parts)
        random.shuffle(parts)  # type: ignore[attr-defined]
        cut = len(parts) // 2
        assert Counts.total(parts[:cut]) + Counts.total(parts[cut:]) == total
    values = set().union(*columns) if columns else set()
    assert {label.value for label in total.labels} == (
        {str(value) for value in values} if len(values) <= 5 else {MANY_VALUES}
    )
    sums = [sum(numbers[n] for column in columns for numbers in column.values()) for n in (0, 1)]
    assert [
        sum(label.documents for label in total.labels),
        sum(label.tokens for label in total.labels),
    ] == sums


def test_the_total_of_nothing_is_zero() -> None:
    assert Counts.total([]) == Counts()
    assert Counts().labels == ()
    assert Counts().balances()


@pytest.mark.parametrize("name", ["rows", "documents", "nulls", "rejected"])
def test_counts_balance_if_every_row_is_a_document_null_or_rejected(name: str) -> None:
    whole = Counts(rows=10, documents=5, nulls=3, rejected=2, tokens=50)
    assert whole.balances()
    off = replace(whole, **{name: getattr(whole, name) - 1})
    assert not off.balances()
    assert off.imbalance() == (
        f"{off.rows} rows, but {off.documents} documents, {off.nulls} null and "
        f"{off.rejected} rejected"
    )


@given(counts())
def test_counts_round_trip_through_their_record(value: Counts) -> None:
    assert json.decode(json.encode(value), type=Counts) == value


@pytest.mark.parametrize("change", [{"rows": "5"}, {"rows": None}, {"rows": True}, {"rows": -5}])
def test_a_count_that_is_not_a_whole_number_is_refused(change: dict[str, object]) -> None:
    value = Counts(rows=5, documents=5, tokens=9)
    with pytest.raises(ValidationError, match=r"Expected `int`.* at `\$.rows`"):
        convert(to_builtins(value) | change, Counts)
