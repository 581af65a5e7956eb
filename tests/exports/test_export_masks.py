"""Exports of conversations say which tokens are learned, or are refused."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.chats import Chats, build_chats, read_chats
from support.dataset_contents import same
from support.foreign_readers import read_megatron

import fineshards
from fineshards.cli.cli import main
from fineshards.errors import UsageError
from fineshards.exports.format import EXPORTS
from fineshards.maintenance.redact import redact

SIDES = pytest.mark.parametrize("side", ["begin", "end"])


@pytest.fixture(scope="module", params=["whole", "redacted"])
def chats(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Chats:
    folder = build_chats(tmp_path_factory.mktemp(request.param))
    if request.param == "redacted":
        redact(str(folder), documents=[0, 1, 70, 71, 149])
    found = read_chats(folder)
    assert all(np.concatenate(bits).any() for bits in found.learned.values())
    return found


def without_redacted(chats: Chats, split: str, side: str) -> tuple[list, list]:
    documents, learned = chats.sided(split, side)
    left = [number for number, each in enumerate(documents) if set(each.tolist()) != {chats.eot}]
    return [documents[number] for number in left], [learned[number] for number in left]


@SIDES
def test_olmo_has_a_byte_per_token(chats: Chats, side: str, tmp_path: Path) -> None:
    fineshards.export(chats.folder, tmp_path / "x", "olmo", eot=side, tokens_per_file=2_000)
    for split in ("test", "train"):
        documents, learned = without_redacted(chats, split, side)
        files = sorted((tmp_path / "x" / split).glob("*.npy"))
        assert len(files) > 1
        masks = [tmp_path / "x/label_mask" / split / path.name for path in files]
        assert np.array_equal(
            np.concatenate([np.fromfile(path, "<u4") for path in files]), np.concatenate(documents)
        )
        assert np.array_equal(
            np.concatenate([np.fromfile(path, np.bool_) for path in masks]), np.concatenate(learned)
        )
    assert fineshards.verify(tmp_path / "x").ok


@SIDES
def test_megatron_has_a_number_per_token_in_files_of_the_same_documents(
    chats: Chats, side: str, tmp_path: Path
) -> None:
    fineshards.export(chats.folder, tmp_path / "x", "megatron", eot=side)
    for split in ("test", "train"):
        documents, learned = chats.sided(split, side)
        stems = sorted(path.with_suffix("") for path in (tmp_path / "x").glob(f"{split}_????.bin"))
        read, masks = [], []
        for stem in stems:
            read += read_megatron(stem)
            masks += read_megatron(stem.with_name(f"{stem.name}.loss_mask"))
        assert [len(each) for each in read] == [len(each) for each in masks]
        assert same([np.array(each) for each in read], documents)
        assert np.array_equal(np.concatenate(masks), np.concatenate(learned))


@SIDES
@pytest.mark.parametrize("length", [None, 128])
def test_labels_are_ignored_where_nothing_is_learned(
    chats: Chats, side: str, length: int | None, tmp_path: Path
) -> None:
    for to in ("parquet", "hf-arrow"):
        flags = {"eot": side, "sequence_length": length}
        fineshards.export(chats.folder, tmp_path / to, to, **flags)
        for split in ("test", "train"):
            if to == "parquet":
                paths = sorted((tmp_path / to).glob(f"{split}-*.parquet"))
                table = pa.concat_tables([pq.read_table(path) for path in paths])
            else:
                paths = sorted((tmp_path / to / split).glob("*.arrow"))
                table = pa.concat_tables([pa.ipc.open_stream(path).read_all() for path in paths])
            skipped = length is not None
            both = without_redacted(chats, split, side) if skipped else chats.sided(split, side)
            tokens, bits = (np.concatenate(each) for each in both)
            assert table.column_names == ["input_ids", "labels"]
            flat = {name: table[name].combine_chunks().flatten() for name in table.column_names}
            assert np.array_equal(flat["input_ids"], tokens)
            assert np.array_equal(flat["labels"], np.where(bits, tokens.astype(np.int64), -100))


@SIDES
def test_datatrove_has_a_byte_per_token(chats: Chats, side: str, tmp_path: Path) -> None:
    fineshards.export(chats.folder, tmp_path / "x", "datatrove", eot=side)
    for split in ("test", "train"):
        (path,) = (tmp_path / "x" / split).glob("*.ds")
        documents, learned = chats.sided(split, side)
        assert np.array_equal(np.fromfile(path, "<u4"), np.concatenate(documents))
        loss = np.fromfile(path.with_name(f"{path.name}.loss"), np.bool_)
        assert np.array_equal(loss, np.concatenate(learned))


@pytest.mark.parametrize(
    "to", [name for name in EXPORTS if name != "modded-nanogpt" and not EXPORTS[name].masks]
)
def test_a_format_without_masks_is_refused(chats: Chats, to: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"--to {to} cannot say which tokens .* say --no_masks"):
        fineshards.export(chats.folder, tmp_path / "x", to)


def test_masks_are_left_out_if_that_is_said(chats: Chats, tmp_path: Path) -> None:
    for to in ("raw", "olmo", "parquet"):
        export = fineshards.export(chats.folder, tmp_path / to, to, no_masks=True)
        assert not any("mask" in file.name for file in export.files)
    table = pq.read_table(next((tmp_path / "parquet").glob("train-*")))
    assert table.column_names == ["input_ids"]


def test_the_advice_names_the_folder_and_the_export_is_short_in_a_notebook(
    chats: Chats, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(chats.folder), "--to=olmo", f"--output={tmp_path}/x"]) == 0
    assert f'label_mask_paths=["{tmp_path}/x/label_mask/train/*.npy"]' in capsys.readouterr().out
    assert "FileRecord" not in repr(fineshards.export(chats.folder, tmp_path / "x", "olmo"))
