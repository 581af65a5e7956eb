"""datatrove reads our files, with the places of documents from its index and from the tokens."""

import numpy as np
import pytest
from conftest import Exported
from datatrove.pipeline.tokens.merger import load_doc_ends
from datatrove.utils.dataset import DatatroveFolderDataset
from support.dataset_contents import Contents

LENGTH = 500


@pytest.mark.parametrize("flags", [[], ["--tokens_per_file", "100k"]])
def test_datatrove_reads_every_token(
    dataset: Contents, exported: Exported, flags: list[str]
) -> None:
    folder = exported("datatrove", *flags)
    for split in ("test", "train"):
        found = folder_dataset(folder / split, dataset)
        expected = []
        for path in sorted((folder / split).glob("*.ds")):
            tokens = np.fromfile(path, dataset.dtype)
            # datatrove leaves out the end of each file.
            expected.append(tokens[: len(tokens) // (LENGTH + 1) * (LENGTH + 1)])
        samples = [found[number]["input_ids"].numpy() for number in range(len(found))]
        assert np.array_equal(np.concatenate(samples), np.concatenate(expected))
        everything = [
            np.fromfile(path, dataset.dtype) for path in sorted((folder / split).glob("*.ds"))
        ]
        assert np.array_equal(np.concatenate(everything), np.concatenate(dataset.ended(split)))


def folder_dataset(folder: object, dataset: Contents, **options: object) -> DatatroveFolderDataset:
    size = np.dtype(dataset.dtype).itemsize
    return DatatroveFolderDataset(str(folder), LENGTH, token_size=size, **options)


def test_positions_from_the_index_are_those_from_the_tokens(
    dataset: Contents, exported: Exported
) -> None:
    folder = exported("datatrove") / "train"
    indexed = folder_dataset(folder, dataset, return_positions=True)
    counted = folder_dataset(
        folder, dataset, return_positions=True, positions_from_eos_token_id=dataset.eot
    )
    resets = 0
    for number in range(len(indexed)):
        positions = indexed[number]["positions"].numpy()
        assert np.array_equal(positions, counted[number]["positions"].numpy())
        resets += int((positions[1:] == 0).sum())
    assert resets > 900


def test_datatroves_merger_finds_where_documents_end(dataset: Contents, exported: Exported) -> None:
    folder = exported("datatrove")
    for split in ("test", "train"):
        with open(folder / split / "00000_unshuffled.ds.index", "rb") as index:
            ends = load_doc_ends(index)
        assert ends.tolist() == np.cumsum([len(each) for each in dataset.documents[split]]).tolist()
