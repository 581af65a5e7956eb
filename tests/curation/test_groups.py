"""Documents of other groups are never duplicates: keys with a group against plain sets."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineshards.curation.batch import Batch
from fineshards.curation.recipe import make_step
from fineshards.curation.step import Keyed

ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([None, "x", "y", "", 0, "0"])))


def keys_of(use: str, parameters: dict[str, Any], batch: Batch) -> list[tuple[int, bytes]]:
    step = make_step(use, parameters, "the test").step
    assert isinstance(step, Keyed)
    found = step.keys(batch)
    keys = [key.tobytes() for key in found.keys]
    return list(zip(found.owners.tolist(), keys, strict=True))


@pytest.mark.parametrize("use", ["exact", "minhash"])
@given(rows=ROWS)
def test_keys_are_equal_where_texts_and_values_are(
    use: str, rows: list[tuple[str, str | int | None]]
) -> None:
    texts = pa.array([text for text, _ in rows], pa.large_string())
    values = [None if value is None else json.dumps(value) for _, value in rows]
    column = {"dump": pa.array(values, pa.string())}
    batch = Batch(0, np.arange(len(rows)), texts, column, columns_are_json=True)
    by_owner: dict[int, list[bytes]] = {}
    for owner, key in keys_of(use, {"within": "column:dump"}, batch):
        by_owner.setdefault(owner, []).append(key)
    # The number 0 and the text "0" are the same bytes, as in keys of columns.
    groups = [(text, None if value is None else str(value)) for text, value in rows]
    for one, keys in by_owner.items():
        for other, others in by_owner.items():
            assert (keys == others) == (groups[one] == groups[other])


def test_values_and_groups_do_not_stand_for_each_other() -> None:
    rows = [(a, b) for a in range(12) for b in range(12)]
    columns = {name: pa.array([row[at] for row in rows]) for at, name in enumerate("vg")}
    texts = pa.array([str(value) for value, _ in rows], pa.large_string())
    for parameters in ({"by": "column:v"}, {"by": "text"}):
        batch = Batch(0, np.arange(len(rows)), texts, columns)
        found = keys_of("exact", parameters | {"within": "column:g"}, batch)
        assert len({key for _, key in found}) == len(rows)
    by_file = [
        key
        for file in range(12)
        for _, key in keys_of(
            "exact",
            {"by": "column:v", "within": "file"},
            Batch(file, np.arange(len(rows)), texts, columns),
        )
    ]
    assert len(set(by_file)) == 12 * 12


@pytest.mark.parametrize("use", ["exact", "minhash"])
def test_files_are_groups(use: str) -> None:
    texts = pa.array(["one", "two", "one"], pa.large_string())
    first, again, second = (
        keys_of(use, {"within": "file"}, Batch(file, np.arange(3), texts, {})) for file in (0, 0, 7)
    )
    assert first == again
    assert not {key for _, key in first} & {key for _, key in second}
    of_text = dict(second)
    assert of_text[0] == of_text[2] != of_text[1]


def test_all_documents_are_one_group_by_default() -> None:
    batch = Batch.of_texts(["one", "two"])
    for use in ("exact", "minhash"):
        assert keys_of(use, {}, batch) == keys_of(use, {"within": "all"}, batch)
