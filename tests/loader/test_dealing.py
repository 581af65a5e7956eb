"""Equal attention for all ranks: a batch keeps its rows, and the rule is that of a plain loop."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sentences import refused

from benchmarks.made_up_dataset import make_dataset, uneven
from fineshards import BatchLoader, Mixture, Packing, TokenDataset
from fineshards.loader.ranks import deal
from fineshards.storage.open import open_storage

LENGTH = 64
FIELDS = ("inputs", "targets", "sample_ids", "source_ids", "cu_seqlens")


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 7))
def test_rows_are_dealt_as_the_rule_says(works: list[int], ranks: int) -> None:
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    rooms = [len(works) * (rank + 1) // ranks - len(works) * rank // ranks for rank in range(ranks)]
    for row in sorted(range(len(works)), key=lambda row: (-works[row], row)):
        open_ranks = [rank for rank in range(ranks) if len(dealt[rank]) < rooms[rank]]
        best = min(open_ranks, key=lambda rank: (sum(works[each] for each in dealt[rank]), rank))
        dealt[best].append(row)
    assert deal(works, ranks) == [sorted(rows) for rows in dealt]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[TokenDataset]:
    found = []
    for name, samples, mean in (("a", 69, 30), ("b", 30, 20)):
        folder, tokens = tmp_path_factory.mktemp(name), samples * LENGTH + 20
        make_dataset(open_storage(str(folder)), tokens, 1000, made=uneven(tokens, mean))
        found.append(TokenDataset(folder, sequence_length=LENGTH))
    return found


def work(batch: dict[str, Any]) -> int:
    return int((np.diff(batch["cu_seqlens"].astype(np.int64)) ** 2).sum())


def sorted_rows(parts: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """All rows of some parts, with their tokens and where they are from."""
    return sorted(
        (int(source), int(sample), inputs.tobytes(), targets.tobytes())
        for part in parts
        for inputs, targets, sample, source in zip(
            *(part[name] for name in FIELDS[:4]), strict=True
        )
    )


@pytest.mark.parametrize("most", [None, 2])
@pytest.mark.parametrize("mixed", [False, True])
def test_ranks_get_equal_work_of_the_same_batch(
    datasets: list[TokenDataset], mixed: bool, most: int | None
) -> None:
    a, b = datasets
    source = Mixture({"a": (a, 0.7), "b": (b, 0.3)}) if mixed else a
    packing = Packing(rows=8, max_documents=most, shuffle_windows=3)
    options: dict[str, Any] = {"packing": packing, "fields": FIELDS, "uneven": True}
    options["sequence_length"] = {0: 16, 5: LENGTH}

    def loader(rank: int, ranks: int, balanced: bool) -> BatchLoader:
        given = options | {"balance_attention": balanced}
        return BatchLoader(source, 18, 3, rank, ranks, **given)

    plain = loader(0, 1, False)
    ranks = [loader(rank, 4, True) for rank in range(4)]
    consecutive = [loader(rank, 4, False) for rank in range(4)]
    spread = {True: 0, False: 0}
    for step, whole in enumerate(islice(plain, 25)):
        parts, before = [next(each) for each in ranks], [next(each) for each in consecutive]
        # Rows of a sample, where a shorter length cuts it.
        times = len(whole["inputs"]) // 18
        assert [len(part["inputs"]) // times for part in parts] == [4, 5, 4, 5]
        assert sorted_rows(parts) == sorted_rows([whole])
        works = [work(part) for part in parts]
        assert sum(works) == work(whole)
        spread[True] += max(works) - min(works)
        spread[False] += max(map(work, before)) - min(map(work, before))
        for each, part in zip(ranks, parts, strict=True):
            drawn, names = each.samples(step), each.batches.names
            assert [drawn_row.sample for drawn_row in drawn] == part["sample_ids"][::times].tolist()
            sources = [names[number] for number in part["source_ids"][::times]]
            assert [drawn_row.source for drawn_row in drawn] == sources
            for one in (drawn[0], drawn[-1]):
                assert one in each.occurrences(one.sample, one.source, one.epoch + 1)
    assert spread[True] < 0.6 * spread[False]
    assert ranks[2].state_dict() == plain.state_dict()
    following = next(plain)
    plain.load_state_dict(ranks[2].state_dict())
    assert sorted_rows([next(plain)]) == sorted_rows([following])
    for each in (plain, *ranks, *consecutive):
        each.close()


def test_what_cannot_be_balanced_is_refused(datasets: list[TokenDataset]) -> None:
    a, _ = datasets
    assert "needs packing" in refused(lambda: BatchLoader(a, 8, balance_attention=True))
    assert "or uneven=True" in refused(lambda: BatchLoader(a, 9, world_size=2))
