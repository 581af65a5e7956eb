"""Genuine readers learn from the tokens of conversations that are learned, and from no other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import load_dataset, load_from_disk
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from olmo_core.data import NumpyFSLDataset
from olmo_core.data.utils import get_labels
from support.chats import Chats, build_chats, read_chats
from support.dataset_contents import same

import fineshards

LENGTH = 128


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Chats:
    return read_chats(build_chats(tmp_path_factory.mktemp("chats")))


def test_olmo_learns_from_what_its_label_masks_say(chats: Chats, tmp_path: Path) -> None:
    fineshards.export(chats.folder, tmp_path / "x", "olmo")
    path = tmp_path / "x/train/part-0-00000.npy"
    loader = NumpyFSLDataset(
        path,
        sequence_length=LENGTH,
        pad_token_id=chats.eot,
        eos_token_id=chats.eot,
        vocab_size=200_000,
        dtype=np.uint32,
        label_mask_paths=[tmp_path / "x/label_mask/train/part-0-00000.npy"],
    )
    loader.work_dir = tmp_path
    loader.prepare()
    documents, learned = chats.sided("train", "end")
    tokens, bits = np.concatenate(documents).astype(np.int64), np.concatenate(learned)
    assert len(loader) == len(tokens) // LENGTH
    for number in range(len(loader)):
        batch = {
            name: value[None] for name, value in loader[number].items() if torch.is_tensor(value)
        }
        labels = get_labels(batch)[0].numpy()
        here = slice(number * LENGTH + 1, (number + 1) * LENGTH)
        assert np.array_equal(labels[:-1], np.where(bits[here], tokens[here], -100))


def test_megatrons_builder_writes_the_same_loss_masks(chats: Chats, tmp_path: Path) -> None:
    """The pair of files that ApertusSFTDataset of swiss-ai/Megatron-LM reads: 1 at each target."""
    fineshards.export(chats.folder, tmp_path / "x", "megatron")
    documents, learned = chats.sided("train", "end")
    builder = IndexedDatasetBuilder(str(tmp_path / "own.bin"), dtype=np.float32)
    for bits in learned:
        builder.add_document(torch.from_numpy(bits.astype(np.float32)), [len(bits)])
    builder.finalize(str(tmp_path / "own.idx"))
    for kind in (".bin", ".idx"):
        found = (tmp_path / f"x/train_0000.loss_mask{kind}").read_bytes()
        assert found == (tmp_path / f"own{kind}").read_bytes()
    read = IndexedDataset(str(tmp_path / "x/train_0000"))
    assert same([np.array(read[number]) for number in range(len(read))], documents)


def test_datatroves_writer_writes_the_same_loss_masks(chats: Chats, tmp_path: Path) -> None:
    fineshards.export(chats.folder, tmp_path / "x", "datatrove")
    writer = TokenizedFile(
        str(tmp_path), "own.ds", save_index=True, save_loss_metadata=True, token_size=4
    )
    for tokens, bits in zip(*chats.sided("train", "end"), strict=True):
        writer.write(tokens.tolist(), bits.astype(np.float64))
    writer.close()
    for kind in ("", ".index", ".loss"):
        found = (tmp_path / f"x/train/00000_unshuffled.ds{kind}").read_bytes()
        assert found == (tmp_path / f"own.ds{kind}").read_bytes()


@pytest.mark.parametrize("to", ["parquet", "hf-arrow"])
def test_datasets_has_labels_that_transformers_ignores(
    chats: Chats, to: str, tmp_path: Path
) -> None:
    fineshards.export(chats.folder, tmp_path / "x", to)
    load = load_dataset if to == "parquet" else load_from_disk
    for split in ("test", "train"):
        rows = load(str(tmp_path / "x"))[split]
        assert same([np.array(row) for row in rows["input_ids"]], chats.documents[split])
        for row, tokens, bits in zip(
            rows["labels"], chats.documents[split], chats.learned[split], strict=True
        ):
            assert np.array_equal(row, np.where(bits, tokens.astype(np.int64), -100))
