"""Ramps, and which samples each step holds, against counting step by step."""

import json
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.numbered_samples import Numbers, numbers, scalar_order
from support.sentences import refused

from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.steps import Position, Ramp, Steps

RAMPS = st.builds(
    lambda first, later: {0: first, **later},
    st.integers(1, 9),
    st.dictionaries(st.integers(1, 30), st.integers(1, 9), max_size=5),
)


def value(ramp: dict[int, int], step: int) -> int:
    return ramp[max(at for at in ramp if at <= step)]


@given(RAMPS, st.integers(0, 60), st.integers(0, 300))
def test_sums_of_a_ramp_and_their_inverse(given: dict[int, int], step: int, room: int) -> None:
    ramp = Ramp("size", given)
    assert ramp(step) == value(given, step)
    assert ramp.before(step) == sum(value(given, each) for each in range(step))
    steps = 0
    while sum(value(given, step + each) for each in range(steps + 1)) <= room:
        steps += 1
    assert ramp.steps_within(step, room) == steps
    saved = ramp.saved()
    again = Ramp("size", saved if isinstance(saved, int) else dict(json.loads(saved)))
    assert [again(each) for each in range(60)] == [ramp(each) for each in range(60)]


@given(RAMPS, st.integers(1, 40), st.booleans())
def test_positions_are_those_of_counting(
    given: dict[int, int], length: int, drop_last: bool
) -> None:
    steps = Steps(Ramp("size", given), length, True, drop_last)
    # (step, first sample, end) of every batch of six passes.
    batches: list[tuple[int, int, int]] = []
    for begin in range(0, 6 * length, length):
        at = begin
        while at < begin + length:
            end = min(at + value(given, len(batches)), begin + length)
            if drop_last and end - at < value(given, len(batches)):
                break
            batches.append((len(batches), at, end))
            at = end
    for step, at, end in batches:
        found = steps.at(step)
        assert found is not None
        assert (found.step, found.consumed, steps.size(found)) == (step, at, end - at)
        assert found.begin == at // length * length
    for sample in range(6 * length):
        holder = [step for step, at, end in batches if at <= sample < end]
        found = steps.find(sample)
        assert [found.step] == holder if found else not holder
    # From any position, some batches on.
    for step, at, _ in batches:
        begin = at // length * length
        for more in (0, 1, 3, 100):
            last = [
                each for each in batches[step : step + more] if begin <= each[1] < begin + length
            ]
            position = steps.advance(Position(step, at, begin), more)
            assert position.step == step + len(last)
            assert position.consumed == (last[-1][2] if last else at)


# A ramp in the loader

RAMP = {0: 4, 3: 6, 5: 12, 20: 4}


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_ramp_repeats_and_skips_nothing_on_any_number_of_ranks(prefetch: int) -> None:
    order = scalar_order(70, 3, 5)
    expected = []
    at = 0
    for step in range(25):
        expected.append(order[at : at + value(RAMP, step)])
        at += value(RAMP, step)
    for world in (1, 2):
        ranks = [
            BatchLoader(Numbers(70), RAMP, 3, rank, world, prefetch=prefetch)
            for rank in range(world)
        ]
        for batch in expected:
            parts = [numbers(each, 1) for each in ranks]
            assert [number for part in parts for number in part] == batch
            assert len({len(part) for part in parts}) == 1
        for each in ranks:
            each.close()


def test_a_ramp_goes_on_where_it_was_saved() -> None:
    loader = BatchLoader(Numbers(70), RAMP, 3)
    everything = [numbers(iter([batch])) for batch in islice(loader, 30)]
    loader.close()
    for step in range(28):
        first = BatchLoader(Numbers(70), RAMP, 3)
        list(islice(first, step))
        state = first.state_dict()
        first.close()
        assert state["step"] == step == first.step
        resumed = BatchLoader(Numbers(70), RAMP, 3)
        resumed.load_state_dict(state)
        assert [numbers(resumed, 1), numbers(resumed, 1)] == everything[step : step + 2]
        assert [each.sample for each in resumed.samples(0)] == everything[0]
        resumed.close()
        # Another ramp from here on: the same order, in other batches, and steps go on counting.
        other = BatchLoader(Numbers(70), {0: 4, step + 1: 8}, 3)
        other.load_state_dict(state)
        rest = [number for batch in everything[step:] for number in batch]
        assert numbers(other, 2) == rest[: value({0: 4, step + 1: 8}, step) + 8]
        assert other.step == step + 2
        assert [each.sample for each in other.samples(step)] == rest[:4]
        if step > 4:  # here the first steps were different
            assert "other batch sizes" in refused(lambda: other.samples(0))  # noqa: B023
        other.close()


class Tokens(Numbers):
    """Samples of T + 1 consecutive numbers."""

    sequence_length: int

    def __init__(self, samples: int, length: int) -> None:
        super().__init__(samples)
        self.sequence_length = length

    def __getitem__(self, index: int) -> np.ndarray:
        first = index * self.sequence_length
        return np.arange(first, first + self.sequence_length + 1, dtype=np.uint32)


@pytest.mark.parametrize("fields", [None, ("inputs", "targets", "sample_ids")])
def test_shorter_sequences_cut_samples_and_keep_their_tokens(fields: Any) -> None:
    lengths = {0: 3, 2: 6, 4: 12}
    source = Tokens(50, 12)
    long = BatchLoader(source, 4, 7)
    cut = BatchLoader(source, 4, 7, sequence_length=lengths, fields=fields)
    for step in range(6):
        whole, batch = next(long), next(cut)
        length = value(lengths, step)
        inputs = batch[:, :-1] if fields is None else batch["inputs"]
        targets = batch[:, 1:] if fields is None else batch["targets"]
        assert inputs.shape == targets.shape == (4 * 12 // length, length)
        assert np.array_equal(inputs.reshape(4, 12), whole[:, :-1])
        assert np.array_equal(targets.reshape(4, 12), whole[:, 1:])
        if fields:
            assert (
                batch["sample_ids"].tolist() == np.repeat(whole[:, 0] // 12, 12 // length).tolist()
            )
    long.close()
    cut.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": {}}, "batch_size has no value for step 0"),
        ({"batch_size": {5: 4}}, "batch_size has no value for step 0"),
        ({"batch_size": {0: 4, -1: 4}}, "a step of batch_size is -1"),
        ({"batch_size": {0: 4, 5: 0}}, "batch_size is 0"),
        ({"batch_size": {0: 4, 5: 5}, "world_size": 2}, "batch_size 5 cannot be divided"),
        ({"sequence_length": 3}, "sequence_length is 3; give a ramp"),
        ({"sequence_length": {0: 5}}, "sequence_length 5 does not divide the dataset's, 12"),
        ({"sequence_length": {0: 24}}, "sequence_length 24 does not divide"),
        ({"dtype": "float32"}, "dtype is 'float32'; choose from uint16, uint32, int32, int64"),
        ({"dtype": "nothing"}, "dtype is 'nothing'"),
        ({"dtype": "uint16"}, "dtype is uint16, but a source's tokens are of unknown size"),
        ({"fields": []}, "fields is []"),
        ({"fields": "inputs"}, "fields is 'inputs'; give a list"),
        ({"fields": ["input"]}, "there is no field 'input'. Did you mean inputs?"),
        ({"fields": ["position_ids"]}, "does not say which token starts its documents"),
        ({"fields": ["targets"], "ignore_index": -100}, "ignore_index -100 is not a number of"),
        ({"ignore_index": -100}, "ignore_index needs fields"),
        ({"fields": ["targets"], "ignore_index": "x"}, "ignore_index is 'x'; give an integer"),
        ({"fields": ["targets"], "ignore_index": True}, "ignore_index is True; give an integer"),
    ],
)
def test_arguments_that_cannot_work_are_refused(options: dict[str, Any], said: str) -> None:
    assert said in refused(lambda: BatchLoader(Tokens(50, 12), **({"batch_size": 4} | options)))
