"""Loss masks of conversations. In these datasets a token is learned if it is odd, and no EOT."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.odd_tokens import LENGTH, MADE, TOKENS, checked_batches, learned
from support.sentences import refused

from benchmarks.far_server import far_server
from benchmarks.made_up_dataset import EOT, make_dataset, uneven
from fineshards import BatchLoader, ContextParallel, Mixture, Packing, TokenDataset
from fineshards.errors import OutputError
from fineshards.storage.open import open_storage

FIELDS = ("inputs", "targets", "loss_mask", "source_ids")


def make(folder: Path, shard_tokens: int = 1003, **more: Any) -> Path:
    storage = open_storage(str(folder))
    make_dataset(storage, TOKENS, shard_tokens, made=MADE, learned=learned, **more)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards whose masks end with bits that are not used."""
    return make(tmp_path_factory.mktemp("learned") / "set")


def check(batch: dict[str, Any]) -> int:
    """The mask is that of the targets; returns how many count."""
    targets = batch["targets"]
    assert np.array_equal(batch["loss_mask"], (targets % 2 == 1) & (targets != EOT))
    return int(batch["loss_mask"].sum())


@pytest.mark.parametrize("shard_tokens", [500, 504, 1003, 10_000])
@pytest.mark.parametrize("length", [1, 9, 64, 4000])
def test_bits_are_those_of_every_label(tmp_path: Path, shard_tokens: int, length: int) -> None:
    made = uneven(4100, 30)
    bits = np.random.default_rng(1).random(4100) < 0.3
    storage = open_storage(str(tmp_path))
    make_dataset(storage, 4100, shard_tokens, made=made, learned=lambda a, b: bits[a:b])
    dataset = TokenDataset(tmp_path, sequence_length=length)
    numbers = np.random.default_rng(2).permutation(len(dataset))
    expected = [bits[number * length + 1 : (number + 1) * length + 1] for number in numbers]
    assert np.array_equal(dataset.loss_mask(numbers), expected)


@pytest.mark.parametrize("packing", [None, Packing(rows=8, shuffle_windows=3)])
@pytest.mark.parametrize("context", [None, ContextParallel(1, 2)])
def test_the_mask_is_the_product_on_every_rank(
    folder: Path, packing: Packing | None, context: ContextParallel | None
) -> None:
    dataset = TokenDataset(folder, sequence_length=LENGTH)
    given: dict[str, Any] = {"packing": packing, "context_parallel": context, "epochs": 1}
    counted = 0
    for rank in range(2):
        loader = BatchLoader(dataset, 8, 3, rank, 2, dtype="int64", fields=FIELDS, **given)
        for batch in loader:
            if context is None:
                counted += check(batch)
            else:
                # Padding repeats a target, and does not count.
                odd = (batch["targets"] % 2 == 1) & (batch["targets"] != EOT)
                assert not (batch["loss_mask"] & ~odd).any()
                counted += int(batch["loss_mask"].sum())
    expected = int(learned(1, len(dataset) * LENGTH + 1).sum())
    assert counted == expected if context is None else expected / 3 < counted < expected


def test_labels_that_are_not_learned_are_ignored(folder: Path) -> None:
    dataset = TokenDataset(folder, sequence_length=LENGTH)
    names = ("targets", "labels", "loss_mask")
    loader = BatchLoader(dataset, 8, fields=names, dtype="int64", ignore_index=-100, epochs=1)
    for batch in loader:
        assert ((batch["targets"] != -100) == batch["loss_mask"]).all()
        assert np.array_equal(batch["labels"][:, 1:], batch["targets"][:, :-1])
        assert (batch["targets"][batch["loss_mask"]] % 2 == 1).all()


@pytest.mark.parametrize("packing", [None, Packing(rows=4, shuffle_windows=2)])
def test_text_in_a_mixture_counts_as_without_one(
    folder: Path, tmp_path: Path, packing: Packing | None
) -> None:
    make_dataset(open_storage(str(tmp_path)), TOKENS, 1000, made=MADE)
    chat = TokenDataset(folder, sequence_length=LENGTH)
    text = TokenDataset(tmp_path, sequence_length=LENGTH)
    mix = Mixture({"chat": (chat, 0.5), "text": (text, 0.5)})

    def loader(**more: Any) -> BatchLoader:
        return BatchLoader(mix, 8, 3, fields=FIELDS, packing=packing, **more)

    batches, states = checked_batches(loader())
    for step in (3, 8):
        with loader(rank=1, world_size=2, prefetch=0) as resumed:
            resumed.load_state_dict(states[step])
            again = next(resumed)
        assert all(np.array_equal(again[name], batches[step + 1][name][4:]) for name in FIELDS)


@pytest.mark.parametrize("cached", [False, True])
def test_masks_are_read_as_shards_are(folder: Path, tmp_path: Path, cached: bool) -> None:
    options: dict[str, Any] = {"mapped": False}
    if cached:
        options = {"cache_folder": tmp_path / "cache"}
    dataset = TokenDataset(folder, sequence_length=LENGTH, **options)
    for batch in BatchLoader(dataset, 8, fields=FIELDS, epochs=2):
        check(batch)
    # As torch's workers get it.
    again = pickle.loads(pickle.dumps(dataset))
    numbers = np.arange(len(dataset))
    assert np.array_equal(again.loss_mask(numbers), dataset.loss_mask(numbers))
    if cached:
        masks = {path.read_bytes() for path in (folder / "metadata/masks").iterdir()}
        copies = {path.read_bytes() for path in (tmp_path / "cache").glob("*.npy")}
        assert masks < copies


@pytest.mark.parametrize("order", [{"shuffle": False}, {"shuffle_shards": 2}, {}])
@pytest.mark.parametrize("packing", [None, Packing(rows=4, shuffle_windows=2)])
def test_masks_in_a_store_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: dict[str, Any], packing: Packing | None
) -> None:
    if packing and "shuffle_shards" in order:
        return
    make(tmp_path / "data/set")
    with far_server(tmp_path, 0) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.address)
        dataset = TokenDataset("gs://data/set", sequence_length=LENGTH)
        loader = BatchLoader(dataset, 8, fields=FIELDS, packing=packing, epochs=2, **order)
        assert sum(map(check, loader)) == 2 * learned(1, len(dataset) * LENGTH + 1).sum()
        dataset.close()


def test_a_damaged_or_missing_mask_is_an_error_that_names_it(tmp_path: Path) -> None:
    mask = make(tmp_path) / "metadata/masks/train_0001.npy"
    content = mask.read_bytes()
    changed = content[:-1] + bytes([content[-1] ^ 1])
    for damaged, options in (
        (content[:-1], {}),
        (changed, {"cache_folder": tmp_path / "cache"}),
        (None, {}),
    ):
        mask.unlink()
        if damaged is not None:
            mask.write_bytes(damaged)
        dataset = TokenDataset(tmp_path, sequence_length=LENGTH, **options)  # type: ignore[arg-type]
        with pytest.raises(OutputError, match=r"masks/train_0001\.npy"):
            dataset.loss_mask(np.arange(len(dataset)))
        mask.write_bytes(content)


def test_what_is_learned_is_part_of_the_identity(folder: Path, tmp_path: Path) -> None:
    make_dataset(open_storage(str(tmp_path)), TOKENS, 1003, made=MADE)
    chat = TokenDataset(folder, sequence_length=LENGTH)
    text = TokenDataset(tmp_path, sequence_length=LENGTH)
    assert chat.fingerprint.startswith(text.fingerprint)
    assert (chat.has_loss_mask, text.has_loss_mask) == (True, False)
    state = BatchLoader(chat, 8, fields=FIELDS).state_dict()
    assert "fingerprint" in refused(
        lambda: BatchLoader(text, 8, fields=FIELDS).load_state_dict(state)
    )
    assert text.loss_mask(np.arange(len(text))).all()


def test_a_loader_that_does_not_use_the_mask_warns(folder: Path) -> None:
    dataset = TokenDataset(folder, sequence_length=LENGTH)
    for fields in (None, ("inputs", "targets")):
        with pytest.warns(UserWarning, match="prompts are trained on too") as warned:
            loader = BatchLoader(dataset, 8, fields=fields)
        assert [each.filename for each in warned] == [__file__]
        with warnings.catch_warnings(), loader:
            warnings.simplefilter("error")
            next(loader)
    with warnings.catch_warnings(), BatchLoader(dataset, 8, fields=FIELDS) as loader:
        warnings.simplefilter("error")
        next(loader)
