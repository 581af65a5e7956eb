"""Megatron's IndexedDataset reads our files, and its builder writes the same ones."""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SAMPLE, Exported
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder
from support import oracle
from support.dataset_contents import Contents, Tokens, same

from fineshards.cli.cli import main


def documents_of(stem: Path, mmap: bool) -> list[Tokens]:
    found = IndexedDataset(str(stem), mmap=mmap)
    assert np.array_equal(found.document_indices, np.arange(len(found) + 1))
    # Copies, because Megatron unmaps the file under views of it.
    return [np.array(found[number]) for number in range(len(found))]


@pytest.mark.parametrize("mmap", [True, False])
def test_megatron_reads_every_document(dataset: Contents, exported: Exported, mmap: bool) -> None:
    folder = exported("megatron")
    for split in ("test", "train"):
        documents = documents_of(folder / f"{split}_0000", mmap)
        assert same(documents, dataset.ended(split))


def test_megatron_reads_parts_of_documents(dataset: Contents, exported: Exported) -> None:
    found = IndexedDataset(str(exported("megatron") / "train_0000"))
    expected = dataset.ended("train")
    for number in range(0, len(expected), 7):
        length = len(expected[number])
        middle = np.array(found.get(number, offset=length // 3, length=length // 2))
        assert np.array_equal(middle, expected[number][length // 3 :][: length // 2])


def fragments(tokens: Tokens, eot: int, side: str) -> list[Tokens]:
    """The documents, and parts of them, in one shard."""
    if side == "begin":
        cuts = np.flatnonzero(tokens == eot)
        return np.split(tokens, cuts[cuts > 0])
    tokens = tokens[int(tokens[0] == eot) :]
    cuts = np.flatnonzero(tokens == eot) + 1
    return np.split(tokens, cuts[cuts < len(tokens)])


def test_files_of_several_parts_hold_whole_documents(dataset: Contents, exported: Exported) -> None:
    folder = exported("megatron", "--tokens_per_file", "100k")
    stems = sorted(path.with_suffix("") for path in folder.glob("train_*.bin"))
    assert len(stems) > 3
    documents = [document for stem in stems for document in documents_of(stem, mmap=True)]
    assert same(documents, dataset.ended("train"))


def test_megatrons_builder_writes_the_same_bytes(
    dataset: Contents, exported: Exported, tmp_path: Path
) -> None:
    folder = exported("megatron")
    dtype = DType.optimal_dtype(100_277 if dataset.dtype == "uint32" else 2_000)
    for split in ("test", "train"):
        write_by_megatron(tmp_path / "own", dataset.ended(split), dtype)
        for kind in (".bin", ".idx"):
            own = (tmp_path / f"own{kind}").read_bytes()
            assert (folder / f"{split}_0000{kind}").read_bytes() == own


def test_an_export_is_what_megatron_makes_of_the_texts(tmp_path: Path) -> None:
    """The loop of Megatron's preprocess_data.py with --append-eod, over the same lines of JSON."""
    texts = oracle.read_texts(SAMPLE)[:200]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    documents = [np.array([*oracle.tokens_of(text), oracle.EOT]) for text in texts]
    write_by_megatron(tmp_path / "own", documents, DType.optimal_dtype(100_277))
    built, out = str(tmp_path / "built"), tmp_path / "out"
    flags = ["--shard_tokens", "10k", "--test_shards", "0"]
    assert main(["build", "--input", str(tmp_path / "texts.jsonl"), "--output", built, *flags]) == 0
    assert main(["export", built, "--to", "megatron", "--output", str(out)]) == 0
    for kind in (".bin", ".idx"):
        own = (tmp_path / f"own{kind}").read_bytes()
        assert (out / f"train_0000{kind}").read_bytes() == own


def test_the_example_finds_that_megatron_reads_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["export_for_megatron.py", f"--output={tmp_path}"])
    runpy.run_path(str(SAMPLE.parent.parent / "examples/export_for_megatron.py"))
    assert "megatron-core reads the same tokens" in capsys.readouterr().out


def write_by_megatron(stem: Path, documents: list[Tokens], dtype: type[np.number]) -> None:
    builder = IndexedDatasetBuilder(f"{stem}.bin", dtype=dtype)
    for document in documents:
        builder.add_document(torch.from_numpy(document.astype(np.int64)), [len(document)])
    builder.finalize(f"{stem}.idx")
