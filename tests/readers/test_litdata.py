"""litdata reads our chunks; its writer writes the same chunks."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Exported
from litdata import StreamingDataset, TokensLoader
from litdata.streaming.writer import BinaryWriter
from support.dataset_contents import Contents

BLOCK = 129


@pytest.mark.parametrize(
    "flags",
    [[], ["--tokens_per_file", "70k"], ["--sequence_length", "129"], ["--eot", "end"]],
    ids=" ".join,
)
def test_litdata_reads_every_block(dataset: Contents, exported: Exported, flags: list[str]) -> None:
    folder = exported("litdata", *flags)
    before = {path: path.read_bytes() for path in dataset.folder.rglob("*.npy")}
    for split in ("test", "train"):
        tokens = dataset.tokens[split]
        if "end" in flags:
            tokens = np.concatenate(dataset.ended(split))
        chunks = json.loads((folder / split / "index.json").read_text())["chunks"]
        sizes = [chunk["dim"] for chunk in chunks]
        assert sum(sizes) == len(tokens)
        loader = StreamingDataset(str(folder / split), item_loader=TokensLoader(BLOCK))
        # litdata leaves out the end of each chunk.
        parts = np.split(tokens, np.cumsum(sizes)[:-1])
        blocks = [part[: len(part) // BLOCK * BLOCK].reshape(-1, BLOCK) for part in parts]
        found = np.stack(list(loader))
        assert found.dtype == dataset.dtype
        assert np.array_equal(found, np.concatenate(blocks))
        if "--sequence_length" in flags:
            assert len(tokens) - found.size < BLOCK
    assert {path: path.read_bytes() for path in dataset.folder.rglob("*.npy")} == before
    assert all((folder / "train" / chunk["filename"]).exists() for chunk in chunks)


def test_litdatas_writer_writes_the_same_chunks(
    dataset: Contents, exported: Exported, tmp_path: Path
) -> None:
    folder = exported("litdata", "--tokens_per_file", "70k")
    index = json.loads((folder / "train/index.json").read_text())
    # One item per chunk.
    writer = BinaryWriter(str(tmp_path), chunk_size=1, item_loader=TokensLoader(BLOCK))
    cuts = np.cumsum([chunk["dim"] for chunk in index["chunks"]])[:-1]
    for number, tokens in enumerate(np.split(dataset.tokens["train"], cuts)):
        writer[number] = tokens
    writer.done()
    writer.merge()
    own = json.loads((tmp_path / "index.json").read_text())
    # A clock.
    assert own.pop("updated_at") != index.pop("updated_at")
    assert index == own
    for chunk in own["chunks"]:
        name = chunk["filename"]
        assert (folder / "train" / name).read_bytes() == (tmp_path / name).read_bytes()
