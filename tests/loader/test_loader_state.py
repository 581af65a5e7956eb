"""The state of a BatchLoader: exact resuming at every step, and what is refused."""

from collections import UserDict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from support.numbered_samples import Numbers, mixture, numbers, saved, scalar_order
from support.scalar_permutation import ScalarPermutation, scalar_key
from support.sentences import refused

from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.token_dataset import TokenDataset


@pytest.mark.parametrize("samples", [24, 25, 60])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_it_resumes_at_every_step_of_three_epochs(samples: int, prefetch: int) -> None:
    def make(batch: int = 12, rank: int = 0, world: int = 1) -> BatchLoader:
        return BatchLoader(
            Numbers(samples), batch, 3, rank, world, epochs=3, drop_last=False, prefetch=prefetch
        )

    order = scalar_order(samples, 3, 6)
    expected, later = order[: 3 * samples], order[3 * samples :]
    loader = make()
    states = [saved(loader)]
    for _ in loader:
        states.append(saved(loader))
    assert [state["consumed"] for state in states] == [
        min(at, 3 * samples) for at in range(0, 3 * samples + 12, 12)
    ]
    other = make()
    for state in states:
        rest = expected[state["consumed"] :]
        # Into a new loader; saved at once and loaded again; into a loader that was in use.
        fresh = make()
        fresh.load_state_dict(state)
        assert saved(fresh) == state
        assert numbers(fresh) == rest
        next(iter(other), None)
        other.load_state_dict(state)
        other.load_state_dict(saved(other))
        assert numbers(other, 1) == rest[:12]
        again = make()
        again.load_state_dict(saved(other))
        # `other` has seen the end if nothing was left: its next iteration is epochs 3 to 5.
        assert numbers(again) == (rest[12:] if rest else later)
        # With other world sizes and batch sizes.
        for batch, world in ((8, 4), (5, 1), (36, 2)):
            ranks = [make(batch, rank, world) for rank in range(world)]
            for each in ranks:
                each.load_state_dict(state)
            batches = zip(*map(list, ranks), strict=True)
            assert [int(row[1]) for parts in batches for part in parts for row in part] == rest
    loader.close()


def test_a_state_is_equal_on_all_ranks_and_counts_returned_batches() -> None:
    loaders = [BatchLoader(Numbers(100), 8, 0, rank, 4, prefetch=9) for rank in range(4)]
    for taken in range(1, 30):
        for loader in loaders:
            next(loader)
        states = [loader.state_dict() for loader in loaders]
        assert all(state == states[0] for state in states)
        assert states[0]["consumed"] == 8 * taken
    for loader in loaders:
        loader.close()


def test_a_state_can_count_steps_taken_elsewhere() -> None:
    loader = BatchLoader(Numbers(50), 8, epochs=2, drop_last=True)
    taken = [loader.state_dict(steps)["consumed"] for steps in range(14)]
    assert taken == [*range(0, 97, 8), 96]
    loader = BatchLoader(Numbers(50), 8, epochs=2, drop_last=False)
    assert loader.state_dict(13)["consumed"] == 100
    assert loader.state_dict(10**9)["consumed"] == 100


def test_a_far_step_is_reached_like_a_near_one() -> None:
    """2^60 samples later, in a source of more than 2^32 samples."""
    n = 2**33 + 1
    loader = BatchLoader(Numbers(n), 4, 1)
    consumed = 2**60
    loader.load_state_dict(loader.state_dict(2**58))
    shuffled = ScalarPermutation(n, scalar_key(1, "epoch", "", consumed // n))
    expected = [shuffled.forward(consumed % n + i) % 2**32 for i in range(8)]
    assert numbers(loader, 2) == expected
    loader.close()


def test_a_state_of_another_order_or_source_is_refused_by_name(folder: Path) -> None:
    source = TokenDataset(folder, sequence_length=30)
    loader = BatchLoader(source, 4, seed=1, shuffle_shards=2)
    state = saved(loader)
    for other, said in [
        (BatchLoader(source, 4, seed=2, shuffle_shards=2), "seed is 1 in the state but 2 here"),
        (BatchLoader(source, 4, seed=1), "shuffle_shards is 2 in the state but None here"),
        (
            BatchLoader(source, 4, seed=1, shuffle=False),
            "shuffle is True in the state but False here",
        ),
        (
            BatchLoader(TokenDataset(folder, sequence_length=31), 4, seed=1, shuffle_shards=2),
            "sequence_length is 30 in the state but 31 here",
        ),
        (
            BatchLoader(
                TokenDataset(folder, "test", sequence_length=30), 4, seed=1, shuffle_shards=2
            ),
            "/train' in the state but",
        ),
    ]:
        before = saved(other)
        message = refused(lambda other=other: other.load_state_dict(state))  # type: ignore[misc]
        assert said in message
        assert saved(other) == before
    for name, value, said in [
        ("version", 3, "version is 3 in the state but 2 here"),
        ("version", 1, "version is 1 in the state but 2 here"),
        ("algorithm", 0, "algorithm is 0 in the state but 1 here"),
        ("consumed", -1, "Expected `int` >= 0 - at `$.consumed`"),
        ("consumed", 1.5, "Expected `int`, got `float` - at `$.consumed`"),
        ("consumed", None, "Expected `int`, got `null` - at `$.consumed`"),
    ]:
        message = refused(lambda v={name: value}: loader.load_state_dict(state | v))  # type: ignore[misc]
        assert said in message
    assert "missing required field `seed`" in refused(
        lambda: loader.load_state_dict(
            {key: state[key] for key in state if key not in ("seed", "shuffle")}
        )
    )
    assert saved(loader) == state


@pytest.mark.parametrize("kind", [MappingProxyType, UserDict])
def test_a_state_may_be_another_mapping_with_strings_of_numpy(kind: Any) -> None:
    loader = BatchLoader(Numbers(25), 4, epochs=1)
    later = loader.state_dict(3)
    names = [name for name, value in later.items() if isinstance(value, str)]
    assert names
    loader.load_state_dict(kind(later | {name: np.str_(later[name]) for name in names}))
    assert saved(loader) == later


@pytest.mark.parametrize("kind", [np.int64, np.array])
def test_numbers_may_come_back_as_those_of_numpy(kind: Any) -> None:
    loader = BatchLoader(Numbers(25), 4, 2**70, epochs=1)
    state = saved(loader)
    later = loader.state_dict(3)
    others = {name: kind(later[name]) for name in ("step", "consumed", "begin", "samples")}
    loader.load_state_dict(later | others | {"since": [kind(0)] * 3})
    assert saved(loader) == later != state


@pytest.mark.parametrize("state", [None, [], "state", 3, {1: 2}, object()])
def test_what_is_no_state_is_refused(state: Any) -> None:
    loader = BatchLoader(Numbers(10), 2)
    next(loader)
    assert "this is not the state of a BatchLoader" in refused(
        lambda: loader.load_state_dict(state)
    )
    assert loader.consumed == 2
    loader.close()


@pytest.mark.long
@pytest.mark.parametrize("saved_epochs", [None, 1, 2, 3])
@pytest.mark.parametrize("epochs", [None, 1, 2, 3])
def test_other_epochs_repeat_and_skip_nothing(saved_epochs: int | None, epochs: int | None) -> None:
    order = scalar_order(25, 6, 12)
    for steps in range(1, 22):
        loader = BatchLoader(Numbers(25), 4, 6, epochs=saved_epochs)
        taken: list[int] = []
        while loader.step < steps:
            taken += numbers(iter(loader), steps - loader.step)
        state = saved(loader)
        loader.close()
        assert taken == order[: len(taken)]
        other = BatchLoader(Numbers(25), 4, 6, epochs=epochs)
        other.load_state_dict(state)
        while len(taken) < 200:
            taken += numbers(iter(other), 1 if epochs is None else None)
        assert taken[:200] == order[:200]
        other.close()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"step": 10**15},
            "the state says step 1,000,000,000,000,000, consumed 12, begin 0, but its batches of 4 "
            "samples do not lead there.",
        ),
        ({"begin": 13}, "the state says step 3, consumed 12, begin 13, but its batches of 4"),
        ({"consumed": 13}, "the state says step 3, consumed 13, begin 0, but its batches of 4"),
        ({"consumed": 12, "step": 2}, "the state says step 2, consumed 12"),
        ({"since": [0, 4, 0]}, "do not lead there"),
        ({"since": [2, 1, 0], "consumed": 5}, "do not lead there"),
        ({"since": [4, 16, 0]}, "do not lead there"),
        ({"since": "start"}, "Expected `array`, got `str` - at `$.since`"),
        ({"since": [0, "0", 0]}, "Expected `int`, got `str` - at `$.since[1]`"),
        ({"batch_size": 0}, "batch_size in the state is 0; give an integer of at least 1"),
        ({"batch_size": 5}, "but its batches of 5 samples do not lead there"),
        ({"batch_size": "four"}, "batch_size in the state is 'four'"),
        ({"batch_size": "[[0, 4], [2, 8]]"}, "do not lead there"),
        ({"batch_size": "[[1, 4]]"}, "batch_size in the state has no value for step 0"),
        ({"epochs": 0}, "Expected `int` >= 1 - at `$.epochs`"),
        ({"epochs": "many"}, "Expected `int | null`, got `str` - at `$.epochs`"),
        ({"begin": -1}, "Expected `int` >= 0 - at `$.begin`"),
        ({"step": None}, "Expected `int`, got `null` - at `$.step`"),
        ({"consumed": 2**62}, "Expected `int` <= 2305843009213693952 - at `$.consumed`"),
    ],
)
def test_numbers_that_no_loader_saves_are_refused(changes: dict[str, Any], said: str) -> None:
    for options in ({}, {"epochs": 1}):
        loader = BatchLoader(Numbers(25), 4, 6, **options)
        for _ in range(3):
            next(loader)
        state = saved(loader)
        assert said in refused(lambda: loader.load_state_dict(state | changes))  # noqa: B023
        assert saved(loader) == state
        loader.close()


@pytest.mark.parametrize(
    "changes",
    [{"seed": True}, {"consumed": True}, {"samples": False}, {"shuffle": 1}, {"rank": 3}, {"x": 0}]
    + [{name: True} for name in ("version", "batch_size", "epochs", "step", "begin", "since")],
)
def test_booleans_and_unknown_keys_are_no_state(changes: dict[str, Any]) -> None:
    loader = BatchLoader(Numbers(25), 1, 1, epochs=1)
    next(loader)
    state = saved(loader)
    (name,) = changes
    message = refused(lambda: loader.load_state_dict(state | changes))
    assert f"at `$.{name}`" in message or f"unknown field `{name}`" in message
    assert saved(loader) == state
    loader.close()


def test_more_draws_than_a_mixture_has_are_refused() -> None:
    for options, end in (({}, 2**45), ({"exhausted": "drop"}, 457)):
        loader = BatchLoader(mixture(**options), 4)
        state = saved(loader) | {"consumed": 2**50}
        assert f"but the mixture ends after {end}" in refused(
            lambda: loader.load_state_dict(state)  # noqa: B023
        )
