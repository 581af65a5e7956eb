"""BatchLoader: one order for any number of ranks, and where it ends."""

import threading
import warnings
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.numbered_samples import Numbers, mixture, numbers, pairs, saved, scalar_order
from support.scalar_permutation import ScalarPermutation, scalar_key
from support.sentences import refused

from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.mixing.mixture import Mixture
from fineshards.loader.token_dataset import TokenDataset
from fineshards.loader.whole_documents import WholeDocuments


@pytest.fixture
def dataset(folder: Path) -> TokenDataset:
    return TokenDataset(folder, sequence_length=30)


# Order


@pytest.mark.parametrize("samples", [1, 2, 10, 64, 5000])
@pytest.mark.parametrize("seed", [0, -7, 2**64 + 1])
def test_the_global_order_is_one_permutation_per_epoch(samples: int, seed: int) -> None:
    """The order of saved states: when this fails, ALGORITHM_VERSION must change."""
    loader = BatchLoader(Numbers(samples), 8, seed, epochs=4, drop_last=False)
    assert numbers(loader) == scalar_order(samples, seed, 4)


def test_without_shuffle_the_order_is_the_order_of_the_source(dataset: TokenDataset) -> None:
    loader = BatchLoader(dataset, 7, shuffle=False, epochs=1, drop_last=False)
    assert np.array_equal(np.concatenate(list(loader)), dataset.gather(np.arange(len(dataset))))
    loader = BatchLoader(Numbers(5), 3, shuffle=False)
    assert numbers(loader, 4) == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    loader.close()


def test_batches_do_not_share_memory(dataset: TokenDataset) -> None:
    with BatchLoader(dataset, 4, shuffle=False) as loader:
        first = next(loader)
        kept = first.copy()
        assert (first.dtype, first.shape, first.flags.c_contiguous) == (np.uint32, (4, 31), True)
        first[:] = 0
        next(loader)
        loader.restart()
        assert np.array_equal(next(loader), kept)


@given(
    samples=st.integers(1, 60),
    share=st.integers(1, 5),
    world=st.integers(1, 6),
    shuffle_shards=st.sampled_from([None, 1, 3]),
)
def test_concatenated_ranks_are_the_same_for_every_world_size(
    samples: int, share: int, world: int, shuffle_shards: int | None
) -> None:
    source = Numbers(samples)
    source.shard_bounds = np.append(np.arange(0, samples, 7), samples)  # type: ignore[attr-defined]
    batch = share * world
    options = {"shuffle_shards": shuffle_shards, "epochs": 3, "drop_last": False}
    whole = list(BatchLoader(source, batch, 5, prefetch=0, **options))  # type: ignore[arg-type]
    ranks = [
        list(BatchLoader(source, batch, 5, rank, world, prefetch=0, **options))  # type: ignore[arg-type]
        for rank in range(world)
    ]
    assert {len(each) for each in ranks} == {len(whole)} == {-(-3 * samples // batch)}
    for step, together in enumerate(whole):
        parts = [each[step] for each in ranks]
        assert np.array_equal(np.concatenate(parts), together)
        sizes = {len(part) for part in parts}
        assert max(sizes) - min(sizes) <= (0 if len(together) == batch else 1)
    everything = Counter(int(row[1]) for together in whole for row in together)
    assert everything == Counter(dict.fromkeys(range(samples), 3))


@pytest.mark.parametrize("shuffle_shards", [1, 2, 4, 9, 100])
def test_shuffle_shards_mixes_a_few_shards_at_a_time(
    dataset: TokenDataset, shuffle_shards: int
) -> None:
    bounds = dataset.shard_bounds
    shard_of = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    rows = {row.tobytes(): i for i, row in enumerate(dataset)}
    epochs = []
    for epoch in range(2):
        loader = BatchLoader(dataset, 1, seed=epoch, shuffle_shards=shuffle_shards, epochs=1)
        order = [rows[batch[0].tobytes()] for batch in loader]
        assert sorted(order) == list(range(len(dataset)))
        shards = shard_of[order].tolist()
        # All samples of a shard come within its group, and groups come one after the other.
        firsts = list(dict.fromkeys(shards))
        groups = [
            set(firsts[at : at + shuffle_shards]) for at in range(0, len(firsts), shuffle_shards)
        ]
        if shuffle_shards <= 2:
            at = 0
            for group in groups:
                size = sum(int(np.diff(bounds)[shard]) for shard in group)
                assert set(shards[at : at + size]) == group
                at += size
        epochs.append(order)
        assert order != sorted(order)
    assert epochs[0] != epochs[1]


def test_shuffle_shards_orders_the_shards_differently_in_every_epoch(dataset: TokenDataset) -> None:
    shard_of = np.repeat(np.arange(9), np.diff(dataset.shard_bounds))
    rows = {row.tobytes(): i for i, row in enumerate(dataset)}
    with BatchLoader(dataset, len(dataset), shuffle_shards=1) as loader:
        orders = [
            tuple(dict.fromkeys(shard_of[rows[row.tobytes()]] for row in batch))
            for batch in islice(loader, 6)
        ]
    assert all(sorted(order) == list(range(9)) for order in orders)
    assert len(set(orders)) == 6


# The end


@pytest.mark.parametrize(("drop_last", "given"), [(False, 25), (True, 24)])
@pytest.mark.parametrize("epochs", [1, 2])
def test_the_next_iteration_is_the_next_epochs(drop_last: bool, given: int, epochs: int) -> None:
    order = scalar_order(25, 8, 4 * epochs)
    length = 25 * epochs
    left_out = length % 4 if drop_last else 0

    def make() -> BatchLoader:
        return BatchLoader(Numbers(25), 4, 8, epochs=epochs, drop_last=drop_last)

    loader = make()
    for iteration in range(3):
        expected = order[iteration * length :][: length - left_out]
        middle = []
        for batch in loader:
            middle += numbers(iter([batch]))
            inside = saved(loader)
        assert middle == expected
        assert next(loader, None) is None
        # Resumed from the last batch, nothing is left of this iteration.
        resumed = make()
        resumed.load_state_dict(inside)
        assert numbers(resumed) == []
        # Resumed from the end of the iteration, the next one follows; so it does in this loader.
        for each in (resumed, make()):
            each.load_state_dict(saved(loader))
            assert numbers(each, 2) == order[(iteration + 1) * length :][:8]
            each.close()
    loader.restart()
    assert numbers(loader) == order[: length - left_out]


def test_a_mixture_that_has_ended_is_not_read_twice_without_a_word() -> None:
    loader = BatchLoader(mixture(exhausted="drop"), 10)
    first = pairs(loader)
    assert "the mixture has ended" in refused(lambda: iter(loader))
    loader.restart()
    assert pairs(loader) == first


def test_an_iteration_continues_where_the_last_one_stopped() -> None:
    loader = BatchLoader(Numbers(30), 4, shuffle=False)
    assert numbers(iter(loader), 2) == list(range(8))
    assert numbers(iter(loader), 2) == list(range(8, 16))
    loader.close()
    assert numbers(iter(loader), 2) == list(range(16, 24))
    loader.close()


def test_a_batch_larger_than_the_source_wraps_around() -> None:
    with BatchLoader(Numbers(3), 8, shuffle=False) as loader:
        assert numbers(loader, 2) == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert "drop_last leaves out all" in refused(
        lambda: BatchLoader(Numbers(3), 8, epochs=2, drop_last=True)
    )
    assert len(numbers(BatchLoader(Numbers(3), 8, epochs=2))) == 6


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"batch_size": 0}, "batch_size is 0; give an integer of at least 1"),
        ({"batch_size": 6.0}, "batch_size is 6.0; give an integer"),
        ({"world_size": 4}, "batch_size 6 cannot be divided by world_size 4"),
        ({"world_size": 0}, "world_size is 0"),
        ({"rank": 2, "world_size": 2}, "rank is 2, but with world_size 2 ranks go from 0 to 1"),
        ({"rank": -1}, "rank is -1"),
        ({"epochs": 0}, "epochs is 0"),
        ({"shuffle_shards": 0}, "shuffle_shards is 0"),
        ({"shuffle_shards": 2, "shuffle": False}, "shuffle_shards is 2, but shuffle is False"),
        ({"shuffle_shards": 2}, "but the source has no shards; leave shuffle_shards out"),
        ({"prefetch": -1}, "prefetch is -1"),
        ({"seed": "a"}, "seed is 'a'; give an integer"),
    ],
)
def test_contradictory_arguments_are_refused(arguments: dict[str, Any], said: str) -> None:
    assert said in refused(lambda: BatchLoader(Numbers(10), **({"batch_size": 6} | arguments)))


def scalar_mixture(mixed: Mixture, seed: int, draws: int) -> list[tuple[int, int]]:
    """(source, sample) pairs by the definition, one draw at a time."""
    order = []
    for draw in range(draws):
        name, number = mixed[draw]
        source = mixed.names.index(name)
        samples = len(mixed.sources[source])
        epoch, place = divmod(number, samples)
        shuffled = ScalarPermutation(samples, scalar_key(seed, "epoch", name, epoch))
        order.append((source + 1, shuffled.forward(place)))
    return order


def test_a_mixture_is_read_in_the_order_of_its_draws() -> None:
    mixed = mixture(seed=4)
    expected = scalar_mixture(mixed, 9, 480)
    with BatchLoader(mixed, 12, 9) as loader:
        assert pairs(loader, 40) == expected
    ranks = [BatchLoader(mixed, 12, 9, rank, 3) for rank in range(3)]
    together = [pairs(iter([next(each)])) for _ in range(40) for each in ranks]
    assert [pair for part in together for pair in part] == expected
    # Each source is read in passes over all its samples, each shuffled differently.
    of_b = [number for source, number in expected if source == 2]
    passes = [of_b[at : at + 7] for at in range(0, len(of_b) - 6, 7)]
    assert all(sorted(each) == list(range(7)) for each in passes)
    assert len(set(map(tuple, passes))) > 10
    for step in (0, 1, 17, 39):
        fresh = BatchLoader(mixture(seed=4), 4, 9)
        fresh.load_state_dict(ranks[0].state_dict() | {"consumed": 12 * step, "step": step})
        assert pairs(fresh, 3) == expected[12 * step :][:12]
        fresh.close()
    for each in ranks:
        each.close()


def test_a_mixture_ends_where_its_draws_do() -> None:
    mixed = mixture(exhausted="drop")
    given = pairs(BatchLoader(mixed, 10, drop_last=False))
    assert sorted(given) == [(name, i) for name, n in ((1, 50), (2, 7), (3, 400)) for i in range(n)]
    assert len(pairs(BatchLoader(mixed, 10, drop_last=True))) == 450


# Faults


def test_two_threads_on_one_loader_get_one_sentence() -> None:
    """The first thread is held inside the loader; the second one must not disturb its place."""
    entered, release = threading.Event(), threading.Event()

    class Slow(Numbers):
        def __getitem__(self, index: int) -> np.ndarray:
            entered.set()
            assert release.wait(60)
            return super().__getitem__(index)

    loader = BatchLoader(Slow(40), 4, 2, prefetch=0)
    taken: list[int] = []
    first = threading.Thread(target=lambda: taken.extend(numbers(loader, 1)))
    first.start()
    assert entered.wait(60)
    said = refused(lambda: next(loader))
    release.set()
    first.join()
    assert "two threads read from one BatchLoader" in said
    assert taken + numbers(loader, 9) == scalar_order(40, 2, 1)


def test_passes_far_out_are_found() -> None:
    """Seven batches per epoch of 25 samples, the last one of one sample."""
    loader = BatchLoader(Numbers(25), 4, 6, epochs=1)
    step = 7 * 10**12 + 3
    drawn = loader.samples(step)
    assert {each.epoch for each in drawn} == {10**12}
    shuffled = ScalarPermutation(25, scalar_key(6, "epoch", "", 10**12))
    assert [each.sample for each in drawn] == [shuffled.forward(place) for place in range(12, 16)]
    position = loader.batches.steps.find(25 * 10**12 + 24)
    assert position is not None
    assert (position.step, position.consumed) == (7 * 10**12 + 6, 25 * 10**12 + 24)


@pytest.mark.parametrize("name", ["shuffle", "drop_last"])
def test_flags_are_true_or_false(name: str) -> None:
    assert f"{name} is 'False'; give True or False" in refused(
        lambda: BatchLoader(Numbers(25), 4, **{name: "False"})  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [4, {0: 3, 5: 8}])
def test_its_length_is_what_is_left_of_the_iteration(size: Any, drop_last: bool) -> None:
    loader = BatchLoader(Numbers(25), size, 1, epochs=2, drop_last=drop_last)
    for taken in (0, 1, 5, 100, 3):
        for _ in islice(loader, taken):
            assert loader
        left = len(loader)
        resumed = BatchLoader(Numbers(25), size, 1, epochs=2, drop_last=drop_last)
        resumed.load_state_dict(loader.state_dict())
        assert left == len(resumed) == len(list(resumed)) > 0
    loader.close()
    ended = BatchLoader(mixture(exhausted="drop"), 10)
    assert len(ended) == len(list(ended)) == 46
    endless = BatchLoader(Numbers(25), 4)
    assert endless
    with pytest.raises(TypeError, match="give epochs"):
        len(endless)
    assert "fineshards.TorchBatches(loader)" in refused(lambda: endless[0])


@pytest.mark.parametrize("prefetch", [0, 2])
def test_iterations_that_would_share_a_position_are_refused(prefetch: int) -> None:
    order = scalar_order(25, 1, 2)
    loader = BatchLoader(Numbers(25), 4, 1, epochs=1, prefetch=prefetch)
    said = "a later iteration of this BatchLoader has begun"
    assert said in refused(lambda: list(zip(loader, loader, strict=True)))
    assert loader.step == 0
    outer = iter(loader)
    assert numbers(outer, 2) == order[:8]
    assert numbers(loader, 1) == order[8:12]
    assert said in refused(lambda: next(outer))
    assert numbers(loader) == order[12:25]
    assert numbers(loader) == order[25:]


def test_batches_that_train_on_nothing_are_refused(dataset: TokenDataset) -> None:
    for size in (26, {0: 26, 5: 4}):
        said = refused(lambda: BatchLoader(Numbers(25), size, epochs=1, drop_last=True))  # noqa: B023
        assert "an iteration has 25 samples, fewer than the batch_size 26" in said
        assert len(BatchLoader(Numbers(25), size, epochs=1)) == 1
        assert BatchLoader(Numbers(25), size, epochs=2, drop_last=True)
    grown = BatchLoader(Numbers(25), {0: 4, 2: 26}, epochs=1, drop_last=True)
    assert len(list(grown)) == 2
    for _ in range(2):
        said = refused(lambda: next(iter(grown)))
        assert "an iteration has 25 samples, fewer than the batch_size 26" in said
    ended = mixture(exhausted="drop")
    assert "has 457 samples" in refused(lambda: BatchLoader(ended, 458, drop_last=True))
    given: dict[str, Any] = {"dtype": "int64", "fields": ["inputs", "targets"]}
    for token in (0, 7, dataset.vocabulary_size - 2):
        said = refused(lambda: BatchLoader(dataset, 4, ignore_index=token, **given))  # noqa: B023
        assert f"ignore_index {token} is a token of the vocabulary" in said
    # Targets that are EOTs count nowhere.
    for number in (-100, dataset.eot, dataset.vocabulary_size):
        batch = next(BatchLoader(dataset, 4, ignore_index=number, prefetch=0, **given))
        plain = next(BatchLoader(dataset, 4, prefetch=0, **given))
        counts = plain["targets"] != dataset.eot
        assert np.array_equal(batch["targets"], np.where(counts, plain["targets"], number))


@pytest.mark.parametrize("mixed", [False, True])
def test_targets_that_are_padding_are_warned_of(dataset: TokenDataset, mixed: bool) -> None:
    whole = WholeDocuments(dataset, 4)
    source = Mixture({"a": (dataset, 1), "b": (whole, 1)}) if mixed else whole
    for fields in (None, ["inputs", "targets"], ["labels"]):
        with pytest.warns(UserWarning, match="padded, and their padding counts") as said:
            BatchLoader(source, 4, fields=fields)
        assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BatchLoader(source, 4, fields=["inputs", "targets", "loss_mask"])
        BatchLoader(source, 4, fields=["targets"], dtype="int64", ignore_index=-100)
        BatchLoader(dataset, 4)
