"""The loader in torch's DataLoader and torchdata's StatefulDataLoader."""

import shutil
import sys
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from support.interruptions import Interruption
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import fineshards
from fineshards.errors import FineshardsError, UsageError
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.token_dataset import TokenDataset
from fineshards.loader.torch_batches import TorchBatches


def torch_loader(dataset: TokenDataset, workers: int) -> Any:
    batches = TorchBatches(BatchLoader(dataset, 12, 5, epochs=2, drop_last=False))
    # Start methods other than fork need an importable main module.
    return DataLoader(batches, batch_size=None, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_torch_gives_the_same_batches_with_any_number_of_workers(
    dataset: TokenDataset, workers: int
) -> None:
    expected = list(BatchLoader(dataset, 12, 5, epochs=2, drop_last=False))
    loader = torch_loader(dataset, workers)
    for _ in range(2):
        batches = list(loader)
        assert len(batches) == len(expected) == 34
        assert all(batch.dtype == torch.int64 for batch in batches)
        assert all(np.array_equal(a, b) for a, b in zip(batches, expected, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_torch_resumes_by_steps_on_another_number_of_workers(
    dataset: TokenDataset, workers: int
) -> None:
    expected = list(BatchLoader(dataset, 12, 5, epochs=2, drop_last=False))
    for steps in (0, 1, 5, 33, 34):
        first = torch_loader(dataset, workers)
        assert len(list(islice(first, steps))) == steps
        state = first.dataset._loader.state_dict(steps)
        second = torch_loader(dataset, 3 - workers)
        second.dataset._loader.load_state_dict(state)
        rest = list(second)
        assert len(rest) == len(expected) - steps
        assert all(np.array_equal(a, b) for a, b in zip(rest, expected[steps:], strict=True))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_torchdata_saves_and_restores_the_position(dataset: TokenDataset, workers: int) -> None:
    def make() -> Any:
        batches = TorchBatches(BatchLoader(dataset, 12, 5, epochs=2, drop_last=False))
        return StatefulDataLoader(batches, batch_size=None, num_workers=workers)

    expected = list(BatchLoader(dataset, 12, 5, epochs=2, drop_last=False))
    for steps in (1, 4, 20, 34):
        first = make()
        taken = list(islice(first, steps))
        state = first.state_dict()
        for _ in range(2):
            # And again from a state that was saved right after a restore.
            second = make()
            second.load_state_dict(state)
            iterator = iter(second)
            state = second.state_dict()
            rest = list(iterator)
            assert len(taken) + len(rest) == len(expected)
            pairs = zip([*taken, *rest], expected, strict=True)
            assert all(np.array_equal(a, b) for a, b in pairs)


def test_dtypes_of_torch_are_known(dataset: TokenDataset) -> None:
    for dtype, expected in ((torch.int64, np.int64), (torch.int32, np.int32)):
        loader = BatchLoader(dataset, 4, dtype=dtype, fields=["inputs"])
        assert next(loader)["inputs"].dtype == expected
        loader.close()
    with pytest.raises(UsageError, match=r"dtype is torch.float32; choose from"):
        BatchLoader(dataset, 4, dtype=torch.float32)


def test_a_data_loader_that_is_given_no_torch_batches_hears_of_them(dataset: TokenDataset) -> None:
    assert fineshards.TorchBatches is TorchBatches
    for epochs, kind in ((1, UsageError), (None, TypeError)):
        given: Any = BatchLoader(dataset, 4, epochs=epochs)
        with pytest.raises(kind, match=r"fineshards\.TorchBatches\(loader\)"):
            next(iter(DataLoader(given, batch_size=None)))
    with pytest.warns(UserWarning, match=r"fineshards\.TorchBatches\(loader\)") as said:
        list(DataLoader(dataset, batch_size=8))
    assert len(said) == 1


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:torch's DataLoader chooses samples itself")
def test_torch_takes_a_map_style_dataset(dataset: TokenDataset, workers: int) -> None:
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=workers, drop_last=False)
    rows = np.concatenate([batch.numpy() for batch in loader])
    expected = dataset.gather(np.arange(len(dataset)))
    assert rows.shape == expected.shape
    assert sorted(map(bytes, rows)) == sorted(map(bytes, expected))


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_that_persist_see_the_epoch(dataset: TokenDataset, workers: int) -> None:
    loader = BatchLoader(dataset, 12, 5, epochs=1, drop_last=False)
    expected = [list(loader) for _ in range(3)]
    assert not np.array_equal(expected[0][0], expected[1][0])
    batches = TorchBatches(BatchLoader(dataset, 12, 5, epochs=1, drop_last=False))
    torch_loader = DataLoader(
        batches, batch_size=None, num_workers=workers, persistent_workers=True
    )
    for epoch in (0, 1, 2, 1):
        batches.set_epoch(epoch)
        pairs = zip(torch_loader, expected[epoch], strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs)


def test_an_exception_at_any_line_gives_the_same_batch_again_or_the_next(
    dataset: TokenDataset,
) -> None:
    """In this process, where handlers of signals run."""
    expected = list(BatchLoader(dataset, 12, 5, epochs=2, fields=["inputs"], dtype="int64"))
    line = 0
    while True:
        loader = BatchLoader(dataset, 12, 5, epochs=2, fields=["inputs"], dtype="int64")
        batches = TorchBatches(loader)
        iterator = iter(DataLoader(batches, batch_size=None))
        next(iterator)
        interruption = Interruption(line)
        interruption.call(lambda: next(iterator))  # noqa: B023
        if not interruption.raised:
            break
        state = batches.state_dict()
        assert state["given"] in (1, 2)
        resumed = TorchBatches(loader)
        resumed.load_state_dict(state)
        for batch, again, right in zip(iterator, resumed, expected[state["given"] :], strict=True):
            assert np.array_equal(batch["inputs"], right["inputs"])
            assert np.array_equal(again["inputs"], right["inputs"])
        line += 1
    assert line > 30


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("direct", [False, True])
def test_two_iterations_are_independent(dataset: TokenDataset, workers: int, direct: bool) -> None:
    expected = list(BatchLoader(dataset, 12, 5, epochs=1))
    batches = TorchBatches(loader := BatchLoader(dataset, 12, 5, epochs=1))
    given = batches if direct else DataLoader(batches, batch_size=None, num_workers=workers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one, two, right in zip(given, given, expected, strict=True):
            assert np.array_equal(one, right)
            assert np.array_equal(two, right)
        abandoned = iter(given)
        next(abandoned)
        for outer, right in zip(given, expected, strict=True):
            assert np.array_equal(next(iter(given)), expected[0])
            assert np.array_equal(outer, right)
        next(loader)
        assert np.array_equal(next(abandoned), expected[1])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_an_iteration_that_begins_again_says_so(
    dataset: TokenDataset, capfd: pytest.CaptureFixture[str], workers: int, persistent: bool
) -> None:
    said = "repeats the batches of the last iteration"

    def warned(batches: TorchBatches, *epochs: int | None) -> list[bool]:
        more = {"persistent_workers": persistent and workers > 0, "num_workers": workers}
        loader, found = DataLoader(batches, batch_size=None, **more), []
        for epoch in epochs:
            if epoch is not None:
                batches.set_epoch(epoch)
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.showwarning = lambda message, *_: print(message, file=sys.stderr)
                list(islice(loader, 20))
            found.append(said in capfd.readouterr().err)
        return found

    def batches(**more: Any) -> TorchBatches:
        return TorchBatches(BatchLoader(dataset, 12, 5, **more))

    assert warned(batches(epochs=1), None, None) == [False, True]
    assert warned(batches(epochs=1), 0, 1, None, 2, 2) == [False, False, True, False, False]
    assert warned(batches(epochs=1, shuffle=False), None, None) == [False, False]
    assert warned(batches(), 0, 1) == [False, True]


class Recorded(lightning.LightningModule):
    """Keeps the batches of each epoch."""

    def __init__(self, *, follow: bool) -> None:
        super().__init__()
        self.follow, self.weight = follow, torch.nn.Parameter(torch.zeros(()))
        self.seen: dict[int, list[Any]] = {}

    def training_step(self, batch: Any, _: int) -> Any:
        self.seen.setdefault(self.current_epoch, []).append(batch.numpy())
        return self.weight

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.parametrize("follow", [True, False])
def test_lightning_has_another_order_in_each_of_three_epochs(
    dataset: TokenDataset, tmp_path: Path, follow: bool
) -> None:
    """As docs/trainers.md says; without that it warns."""
    module = Recorded(follow=follow)

    class Tokens(lightning.LightningDataModule):
        def train_dataloader(self) -> Any:
            batches = TorchBatches(BatchLoader(dataset, 12, 5, epochs=1))
            if follow:
                assert self.trainer is not None
                batches.set_epoch(self.trainer.current_epoch)
            return DataLoader(batches, batch_size=None)

    trainer = lightning.Trainer(
        max_epochs=3,
        reload_dataloaders_every_n_epochs=int(follow),
        default_root_dir=tmp_path,
        **dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False),
        accelerator="cpu",
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer.fit(module, datamodule=Tokens())
    loader = BatchLoader(dataset, 12, 5, epochs=1)
    expected = [list(loader) for _ in range(3)]
    assert any("repeats the batches" in str(each.message) for each in said) != follow
    for epoch, batches in enumerate(expected if follow else [expected[0]] * 3):
        assert all(np.array_equal(*pair) for pair in zip(module.seen[epoch], batches, strict=True))


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_error_never_changes_the_order(
    folder: Path, tmp_path: Path, workers: int, persistent: bool, stateful: bool
) -> None:
    """Without workers the same batch is tried again; with workers the iteration ends."""
    copied = shutil.copytree(folder, tmp_path / "copy")
    dataset = TokenDataset(copied, sequence_length=25)

    def source() -> BatchLoader:
        return BatchLoader(dataset, 6, shuffle=False, epochs=1)

    expected = list(source())
    shard, away = copied / "train/train_0002.npy", tmp_path / "away.npy"
    shard.rename(away)
    dataset.close()
    made = StatefulDataLoader if stateful else DataLoader
    more = {"persistent_workers": persistent and workers > 0, "num_workers": workers}
    given = TorchBatches(source())
    loader = made(given, batch_size=None, **more)
    iterator = iter(loader)
    taken: list[Any] = []
    with pytest.raises(FineshardsError, match=r"train_0002\.npy"):
        taken.extend(iterator)
    assert 3 < len(taken) < len(expected)
    away.rename(shard)
    rest = list(iterator)
    resumed = source()
    resumed.load_state_dict(given._loader.state_dict(len(taken)))
    if workers:
        assert rest == []
        rest = list(resumed)
    assert len(taken) + len(rest) == len(expected)
    assert all(np.array_equal(*pair) for pair in zip([*taken, *rest], expected, strict=True))
    if not stateful:
        again = list(loader)
        assert all(np.array_equal(*pair) for pair in zip(again, expected, strict=True))


@pytest.mark.parametrize("changes", [{"given": True}, {"given": -1}, {"more": 1}])
def test_what_is_no_state_is_refused(dataset: TokenDataset, changes: dict[str, Any]) -> None:
    batches = TorchBatches(BatchLoader(dataset, 12, 5))
    with pytest.raises(UsageError):
        batches.load_state_dict(batches.state_dict() | changes)
