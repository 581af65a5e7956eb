"""OLMo-core reads our arrays and the places of documents in them."""

import json
from pathlib import Path

import numpy as np
from conftest import SAMPLE, Exported
from olmo_core.data import NumpyFSLDataset
from olmo_core.data.utils import iter_document_indices, load_array_slice
from support.dataset_contents import Contents, same
from support.foreign_readers import read_olmo

from fineshards.cli.cli import main

LENGTH = 128


def parts_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.npy"))


def test_olmo_reads_every_document(dataset: Contents, exported: Exported) -> None:
    folder = exported("olmo", "--tokens_per_file", "100k")
    dtype = np.dtype(dataset.dtype).type
    for split in ("test", "train"):
        found = [
            load_array_slice(path, start, end, dtype)
            for path in parts_of(folder / split)
            for start, end in iter_document_indices(path, use_array_if_local=False, dtype=dtype)
        ]
        assert same(found, dataset.ended(split))


def test_the_table_of_documents_is_what_olmo_finds_in_the_array(
    dataset: Contents, exported: Exported
) -> None:
    dtype = np.dtype(dataset.dtype).type
    (path,) = parts_of(exported("olmo") / "train")
    listed = [*iter_document_indices(path, use_array_if_local=False)]
    found = [*iter_document_indices(path, eos_token_id=dataset.eot, dtype=dtype)]
    assert listed == [(int(start), int(end)) for start, end in found]
    assert len(listed) == len(dataset.documents["train"])


def test_olmo_trains_from_the_arrays(dataset: Contents, exported: Exported, tmp_path: Path) -> None:
    paths = parts_of(exported("olmo", "--tokens_per_file", "200k") / "train")
    assert len(paths) > 1
    loader = NumpyFSLDataset(
        *paths,
        sequence_length=LENGTH,
        pad_token_id=dataset.eot,
        eos_token_id=dataset.eot,
        vocab_size=200_000,
        dtype=np.dtype(dataset.dtype).type,
    )
    loader.work_dir = tmp_path
    loader.prepare()
    expected = []
    for path in paths:
        tokens = np.fromfile(path, dataset.dtype)
        # OLMo-core leaves out the end of each file.
        expected.append(tokens[: len(tokens) // LENGTH * LENGTH].reshape(-1, LENGTH))
    rows = np.concatenate(expected)
    assert len(loader) == len(rows)
    assert all(
        np.array_equal(loader[number]["input_ids"].numpy(), row) for number, row in enumerate(rows)
    )


def test_olmo_finds_no_document_where_one_was_redacted(tmp_path: Path) -> None:
    built, out = tmp_path / "built", tmp_path / "out"
    build = ["build", "--input", str(SAMPLE), "--output", str(built), "--test_shards", "0"]
    assert main([*build, "--limit", "50"]) == 0
    assert main(["redact", str(built), "--documents", "0", "7", "8", "49"]) == 0
    counts = {}
    for skip in ("redacted", "none"):
        folder = out / skip
        export = ["export", str(built), "--to", "olmo", "--output", str(folder), "--skip", skip]
        assert main(export) == 0
        eot = json.loads((folder / "export.json").read_text())["options"]["eot_id"]
        path = folder / "train/part-0-00000.npy"
        counts[skip] = len([*iter_document_indices(path, eos_token_id=eot, dtype=np.uint32)])
    assert counts["redacted"] == 46
    assert counts["none"] > 1000


def test_ids_of_several_lines_do_not_end_a_line(tmp_path: Path) -> None:
    rows = [{"text": "one", "id": 'a,"b"\nc'}, {"text": "two", "id": "d\r\ne"}, {"text": "three"}]
    source, built, out = tmp_path / "rows.jsonl", tmp_path / "built", tmp_path / "out"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    build = ["build", "--input", str(source), "--output", str(built), "--test_shards", "0"]
    assert main(build) == 0
    assert main(["export", str(built), "--to", "olmo", "--output", str(out)]) == 0
    path = out / "train/part-0-00000.npy"
    assert [*iter_document_indices(path, use_array_if_local=False)] == [(0, 2), (2, 4), (4, 6)]
    names = [name for _, name, _, _ in read_olmo(path, "<u4")]
    assert names == [r'a,"b"\nc', r"d\r\ne", ""]
