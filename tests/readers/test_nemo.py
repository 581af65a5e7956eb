"""NeMo Automodel reads our files: those for Megatron, and those of its nanoGPT dataset."""

import numpy as np
import pytest
from conftest import Exported
from nemo_automodel.components.datasets.llm.megatron.indexed_dataset import IndexedDataset
from nemo_automodel.components.datasets.llm.nanogpt_dataset import NanogptDataset, load_bin_shard
from support.dataset_contents import Contents, same


def test_nemo_reads_every_document_of_megatrons_files(
    dataset: Contents, exported: Exported
) -> None:
    folder = exported("megatron")
    for split in ("test", "train"):
        found = IndexedDataset(str(folder / f"{split}_0000"))
        documents = [np.array(found[number]) for number in range(len(found))]
        assert same(documents, dataset.ended(split))


def test_nemo_reads_the_tokens_of_its_own_format(dataset: Contents, exported: Exported) -> None:
    folder = exported("nemo", "--tokens_per_file", "70k")
    for split, name in (("test", "val"), ("train", "train")):
        paths = sorted(folder.glob(f"*_{name}_*.bin"))
        found = [load_bin_shard(path).numpy() for path in paths]
        assert {str(tokens.dtype) for tokens in found} == {dataset.dtype}
        assert np.array_equal(np.concatenate(found), dataset.tokens[split])


@pytest.mark.parametrize("aligned", [False, True])
def test_nemo_trains_from_its_own_format(
    dataset: Contents, exported: Exported, aligned: bool
) -> None:
    folder = exported("nemo")
    length = 128
    loader = NanogptDataset(
        str(folder / "*_val_*.bin"), length, align_to_bos=aligned, bos_token=dataset.eot
    )
    tokens = dataset.tokens["test"]
    begins = np.arange(0, len(tokens) - length, length + 1)
    if aligned:
        # A sample begins at the first document behind the one before.
        documents = np.flatnonzero(tokens == dataset.eot)
        begins = [0]
        while True:
            later = documents[documents >= begins[-1] + length + 1]
            if not len(later) or later[0] + length >= len(tokens):
                break
            begins.append(int(later[0]))
    samples = [sample for _, sample in zip(begins, loader, strict=False)]
    assert len(samples) == len(begins) > 50
    for begin, sample in zip(begins, samples, strict=True):
        expected = tokens[begin : begin + length + 1].tolist()
        assert (sample["input_ids"], sample["labels"]) == (expected[:-1], expected[1:])
