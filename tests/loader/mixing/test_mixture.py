"""Mixtures: weights, plans, and batches of a mixture."""

import json
import math
import pickle
import re
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.build_here import build_here
from support.made_up_sources import MadeUp, is_a_prefix_of_each, mixture, pairs
from support.sentences import refused
from support.tokenizer_files import EOT, sample_texts, save, train, trained

from benchmarks.made_up_dataset import make_dataset, stream
from fineshards.errors import OutputError
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.mixing.apportionment import MAX_DRAWS, WEIGHT_SUM
from fineshards.loader.mixing.mixture import Mixture
from fineshards.loader.token_dataset import TokenDataset
from fineshards.loader.whole_documents import WholeDocuments
from fineshards.storage.open import open_storage


def test_every_way_to_ask_for_draws_gives_the_same_ones() -> None:
    mix = Mixture({"web": (MadeUp(1000), 0.7), "code": (MadeUp(100), 0.3)}, seed=1)
    every = pairs(mix.draws(0, 500))
    assert [mix[draw] for draw in range(500)] == [
        (("web", "code")[source], number) for source, number in every
    ]
    assert mix[np.int64(7)] == mix[7]
    for draws in range(501):
        first = Counter(source for source, _ in every[:draws])
        assert mix.counts(draws) == {"web": first[0], "code": first[1]}
    assert mix.counts(10**10) == {"web": 7 * 10**9, "code": 3 * 10**9}
    assert mix.length is None
    assert pairs(mix.draws(5, 5)) == []


weight_lists = st.lists(
    st.sampled_from([0, 1e-9, 0.001, 0.3, 0.999, 1, 1.0, 7, Fraction(1, 3)]),
    min_size=1,
    max_size=8,
).filter(any)


@given(weight_lists, st.integers(), st.data())
def test_the_first_draws_are_a_prefix_of_each_source_whatever_the_schedule(
    weights: list[Any], seed: int, data: st.DataObject
) -> None:
    switches = data.draw(st.lists(st.integers(1, 250), max_size=4, unique=True))
    schedule = {
        at: data.draw(
            st.lists(
                st.sampled_from([0, 1, 2.5]), min_size=len(weights), max_size=len(weights)
            ).filter(any)
        )
        for at in switches
    }
    names = mixture(weights).names
    mix = mixture(
        weights,
        seed=seed,
        schedule={at: dict(zip(names, each, strict=True)) for at, each in schedule.items()},
    )
    every = pairs(mix.draws(0, 300))
    assert is_a_prefix_of_each(every)
    for at in [*range(0, 300, 37), *(at - 1 for at in switches), *switches]:
        assert pairs(mix.draws(at, at + 1)) == every[at : at + 1]
    # Between two switches each source follows its current weight.
    for start, stop in pairwise([0, *sorted(switches), 300]):
        current = schedule.get(start, weights)
        drawn = Counter(source for source, _ in every[start:stop])
        for source, weight in enumerate(current):
            share = float(Fraction(weight) / sum(map(Fraction, current)))
            bound = (1 + share * (sum(map(bool, current)) - 2)) * (1 + 2**-10)
            assert abs(drawn[source] - share * (stop - start)) <= max(bound, 0)
            assert weight or not drawn[source]


@pytest.mark.parametrize("weights", [[7, 3], [0.7, 0.3], [70, 30], [Fraction(7, 10), 0.3]])
def test_weights_may_have_any_sum(weights: list[Any]) -> None:
    assert mixture(weights).counts(10**6) == {"a": 700_000, "b": 300_000}


def test_weights_are_kept_over_nine_orders_of_magnitude() -> None:
    mix = mixture([1, 1e-9, 0, 1e-5])
    counts = mix.counts(10**12)
    assert counts["c"] == 0
    total = 1 + 1e-9 + 1e-5
    assert abs(counts["b"] - 10**12 * 1e-9 / total) < 2
    assert abs(counts["d"] - 10**12 * 1e-5 / total) < 2


def test_ten_thousand_sources() -> None:
    weights = np.random.default_rng(5).lognormal(0, 3, 10_000).tolist()
    mix = mixture(weights, exhausted="drop", lengths=3)
    assert mix.length == len(mix) == 30_000
    every = pairs(mix.draws(0, 30_000))
    assert is_a_prefix_of_each(every)
    assert Counter(source for source, _ in every) == dict.fromkeys(range(10_000), 3)
    endless = mixture(weights)
    first = pairs(endless.draws(0, 20_000))
    assert is_a_prefix_of_each(first)
    assert pairs(endless.draws(10**9, 10**9 + 1)) == [
        (source, endless.counts(10**9)[endless.names[source]])
        for source, _ in pairs(endless.draws(10**9, 10**9 + 1))
    ]


def test_batches_of_a_mixture_are_the_same_for_every_world_size_and_after_a_restart() -> None:
    mix = mixture([5, 3, 1e-3], [40, 7, 3], schedule={55: {"a": 1, "b": 0, "c": 1}})

    def read(world_size: int, state: dict[str, Any] | None, batches: int) -> tuple[Any, Any]:
        loaders = [
            BatchLoader(mix, 6, seed=-5, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        for loader in loaders:
            if state:
                loader.load_state_dict(state)
        read = [np.concatenate([next(loader) for loader in loaders]) for _ in range(batches)]
        states = [loader.state_dict() for loader in loaders]
        for loader in loaders:
            loader.close()
        return np.concatenate(read), states[-1]

    expected, _ = read(1, None, 40)
    first, state = read(3, None, 7)
    second, state = read(2, state, 20)
    third, state = read(6, state, 13)
    assert np.array_equal(np.concatenate([first, second, third]), expected)
    which, _ = mix.draws(0, 240)
    assert np.array_equal(expected[:, 0], which)


def test_datasets_are_mixed_token_by_token(tmp_path: Path) -> None:
    sizes, length = {"web": 5000, "code": 900}, 64
    for name, tokens in sizes.items():
        storage = open_storage(str(tmp_path / name))
        make_dataset(storage, tokens, shard_tokens=700, dtype="uint16")
    datasets = {name: TokenDataset(tmp_path / name, sequence_length=length) for name in sizes}
    mix = Mixture({"web": (datasets["web"], 0.8), "code": (datasets["code"], 0.2)}, seed=9)
    with BatchLoader(mix, 8, seed=9, shuffle=False) as loader:
        for batch in range(20):
            samples = next(loader)
            assert samples.dtype == np.uint32
            for row, sample in enumerate(samples):
                name, number = mix[8 * batch + row]
                start = number % ((sizes[name] - 1) // length) * length
                assert np.array_equal(sample, stream(start, start + length + 1))


@pytest.mark.long
def test_datasets_of_different_vocabularies_are_refused(tmp_path: Path) -> None:
    """Of tokenizer.json files the tokens count, not their other contents."""
    texts = sample_texts()
    files = {
        "one": save(trained("gpt2"), tmp_path / "one/tokenizer.json"),
        "two": save(trained("gpt2"), tmp_path / "two/tokenizer.json", decoder=None),
        "other": save(train("gpt2", texts[::2]), tmp_path / "other/tokenizer.json"),
    }
    source = tmp_path / "texts.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:20]))
    for name, tokenizer in {"bpe": "cl100k_base", **files}.items():
        build_here(
            input=str(source),
            output=str(tmp_path / f"{name}-out"),
            tokenizer=str(tokenizer),
            test_fraction=0,
            **({"eot_token": EOT} if name in files else {}),
        )

    def opened(name: str) -> TokenDataset:
        return TokenDataset(tmp_path / f"{name}-out", sequence_length=16)

    for name, same in (("bpe", {"bpe"}), ("one", {"one", "two"}), ("other", {"other"})):
        for against in ("bpe", *files):
            for one, two in ((opened(name), opened(against)), (opened(against), opened(name))):
                pair = {"a": (one, 1), "b": (WholeDocuments(two), 0)}
                if against in same:
                    assert Mixture(pair).names == ("a", "b")
                else:
                    message = refused(lambda: Mixture(pair))  # noqa: B023
                    assert "the sources 'a' and 'b' have different vocabularies" in message
                    assert name != "bpe" or "cl100k_base (100,277 tokens, EOT 100257)" in message
    (tmp_path / "two-out/metadata/tokenizer.json").write_text("{}")
    damaged = {"a": (opened("one"), 1), "b": (opened("two"), 1)}
    assert "two-out/metadata/tokenizer.json" in refused(lambda: Mixture(damaged), OutputError)


def test_the_fingerprint_covers_everything_the_draws_depend_on() -> None:
    variants = [
        mixture([1, 2]),
        mixture([1, 3]),
        mixture([1, 2], seed=1),
        mixture([1, 2], seed=-1),
        mixture([1, 2], seed=2**64),
        mixture([1, 2], [10, 11]),
        mixture([1, 2], exhausted="drop"),
        mixture([1, 2], exhausted="stop"),
        mixture([1, 2], schedule={9: {"a": 1, "b": 1}}),
        mixture([1, 2], schedule={8: {"a": 1, "b": 1}}),
        Mixture({"a": (MadeUp(10**6), 1), "c": (MadeUp(10**6, 1), 2)}),
        Mixture({"b": (MadeUp(10**6, 1), 2), "a": (MadeUp(10**6), 1)}),
    ]
    assert len({each.fingerprint for each in variants}) == len(variants)
    # Sources that are never drawn change nothing.
    assert mixture([1, 2, 0]).fingerprint == variants[0].fingerprint
    again = mixture([1.0, 2.0], seed=0)
    assert again.fingerprint == variants[0].fingerprint
    assert pickle.loads(pickle.dumps(again)).fingerprint == again.fingerprint


def test_seeds_interleave_sources_differently() -> None:
    weights = [3, 2, 1, 1]
    seen = {tuple(pairs(mixture(weights, seed=seed).draws(0, 100))) for seed in range(-8, 8)}
    assert len(seen) > 1


def test_the_order_is_that_of_saved_states() -> None:
    # Saved states resume in this order: if it changes, ALGORITHM_VERSION must change.
    phases = [Fraction(3, 8), Fraction(7, 8), Fraction(1, 8), Fraction(5, 8)]
    times = sorted(
        ((number + 1 - phase) / weight, source, number)
        for source, (weight, phase) in enumerate(zip([4, 3, 2, 1], phases, strict=True))
        for number in range(100)
    )
    drawn = pairs(mixture([4, 3, 2, 1], seed=42).draws(0, 200))
    assert drawn == [(source, number) for _, source, number in times[:200]]


def test_the_plan_is_what_will_be_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    mix = mixture([0.6, 0.3, 0.1, 0], [1000, 50, 9, 5])
    batch, steps = 16, 30
    plan = mix.plan(steps, batch)
    assert capsys.readouterr().out == ""
    every = pairs(mix.draws(0, steps * batch))
    for source, row in enumerate(plan.sources):
        mine = [at for at, (each, _) in enumerate(every) if each == source]
        length = len(mix.sources[source])
        assert row.name == mix.names[source]
        assert row.samples == len(mine)
        assert row.tokens == 4 * len(mine)
        assert row.epochs == pytest.approx(len(mine) / length)
        repeated = [at // batch for at in mine[length:]]
        assert row.first_repeated_step == (repeated[0] if repeated else None)
    assert [row.weight for row in plan.sources] == pytest.approx([0.6, 0.3, 0.1, 0])
    header, *rows, total = str(plan).splitlines()
    assert header.split() == [
        *("source", "weight", "samples", "tokens", "epochs"),
        *("first", "repeated", "step"),
    ]
    assert [row.split()[0] for row in rows] == list(mix.names)
    assert rows[3].split() == ["d", "0", "0", "0", "0.000", "-"]
    assert total.split() == ["30", "steps", "480", "1,920"]


def test_the_plan_finds_a_repetition_after_changes_of_weights() -> None:
    schedule = {100: {"a": 1, "b": 0}, 200: {"a": 1, "b": 1}}
    mix = mixture([1, 1], [10**6, 80], schedule=schedule)
    every = pairs(mix.draws(0, 400))
    assert mix.plan(400).sources[1].first_repeated_step == every.index((1, 80))


def test_the_plan_of_a_mixture_that_ends_early_covers_all_of_it() -> None:
    plan = mixture([1, 1], [10, 14], exhausted="drop").plan(1000, 16)
    assert [row.samples for row in plan.sources] == [10, 14]
    assert str(plan).splitlines()[-1].split() == ["1.5", "steps", "24", "96"]


A, B = MadeUp(10), MadeUp(20, 1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Mixture({}), "at least one source"),
        (lambda: Mixture(None), "sources of the mixture are None; give a mapping"),
        (lambda: Mixture([A, B]), r"give a mapping from each name to \(source, weight\)"),
        (lambda: Mixture({1: (A, 1)}), "is named 1; give it a string"),
        (lambda: Mixture({"a": (None, 1)}), "source 'a' of the mixture is None; give a TokenD"),
        (lambda: Mixture({"a": ("web", 1)}), "source 'a' of the mixture is 'web'; give a TokenD"),
        (lambda: Mixture({"a": (mixture([1]), 1)}), "give a TokenDataset or another source"),
        (lambda: mixture([True, 1]), "weight of source 'a' is True; give a number"),
        (lambda: mixture([None, 1]), "weight of source 'a' is None; give a number"),
        (lambda: mixture([1], seed=True), "seed is True; give an integer"),
        (lambda: mixture([1], schedule=[5]), r"schedule is \[5\]; give a mapping from draws"),
        (lambda: mixture([1], schedule={5: None}), "schedule has None at draw 5; give a mapping"),
        (lambda: mixture([1], schedule={True: {"a": 1}}), "changes weights at True; give a draw"),
        (lambda: mixture([1], schedule={10**99: {"a": 1}}), "at 1000.*; give a draw"),
        (lambda: mixture([1], schedule={5: {"a": True}}), "weight of source 'a' is True"),
        (lambda: mixture([1], schedule={5: {3: 1}}), "unknown source, '3' at draw 5"),
        (lambda: mixture([1]).plan(True), "steps is True; give an integer"),
        (lambda: mixture([1]).counts(2.5), "draws is 2.5; give an integer"),
        (lambda: mixture([1]).draws(0, 2**45), "35184372088832 draws do not fit into memory"),
        (
            lambda: Mixture({"a": MadeUp(5)}),
            r"source 'a' of the mixture is not a pair \(source, weight\)",
        ),
        (lambda: mixture([1, -0.5]), r"weight of source 'b' is -0\.5; give 0 or more"),
        (lambda: mixture([0, 0.0]), "all weights of the mixture are zero; at least one"),
        (lambda: mixture([1, math.nan]), "weight of source 'b' is nan; give a number"),
        (lambda: mixture([math.inf, 1]), "weight of source 'a' is inf; give a number"),
        (lambda: mixture([1, "2"]), "weight of source 'b' is '2'; give a number"),
        (lambda: mixture([1, 1], [5, 0]), "source 'b' of the mixture has no samples"),
        (lambda: mixture([1, 1], MAX_DRAWS), "a mixture can hold 35184372088832"),
        (lambda: mixture([1], exhausted="end"), "exhausted is 'end'; choose 'repeat'"),
        (
            lambda: Mixture({"": (MadeUp(5, 0, 100), 1), "b": (MadeUp(5, 1, 400), 1)}),
            "of '' is 100, but that of 'b' is 400: open both with the same one",
        ),
        (lambda: mixture([1], seed=0.5), r"seed is 0\.5; give an integer"),
        (
            lambda: mixture([1], schedule={0: {"a": 1}}),
            "changes weights at 0; give a draw of at least 1",
        ),
        (lambda: mixture([1], schedule={1.5: {"a": 1}}), r"at 1\.5; give a draw"),
        (lambda: mixture([1, 1], schedule={5: {"a": 1}}), "no weight for 'b' at draw 5"),
        (lambda: mixture([1], schedule={5: {"a": 1, "z": 1}}), "unknown source, 'z' at draw 5"),
        (lambda: mixture([1], schedule={5: {"a": 0}}), "are zero from draw 5 on"),
        (lambda: mixture([1], schedule={5: {"a": -1}}), "weight of source 'a' is -1"),
        (lambda: mixture([1]).plan(0), "steps is 0; give an integer of at least 1"),
        (lambda: mixture([1]).plan(1, 0), "batch_size is 0"),
    ],
)
def test_mistakes_are_one_sentence(make: Any, words: str) -> None:
    assert re.search(words, refused(make))


def test_draws_beyond_the_end_are_an_index_error() -> None:
    endless, finite = mixture([1]), mixture([1], 5, exhausted="stop")
    for outside in (lambda: endless[-1], lambda: finite[5], lambda: finite.counts(6)):
        with pytest.raises(IndexError):
            outside()
    assert finite[4] == ("a", 4)
    assert len(finite) == 5
    with pytest.raises(TypeError, match="endless"):
        len(endless)
    assert endless.counts(MAX_DRAWS) == {"a": MAX_DRAWS}
    assert WEIGHT_SUM == 2**50
