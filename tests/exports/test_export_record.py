"""`export.json` and the records of parts: every change is found, and no name leads elsewhere."""

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.damage import sealed
from support.sentences import refused

import fineshards
from fineshards.cli.cli import main
from fineshards.errors import FineshardsError, OutputError
from fineshards.exports.export_job import prepare, write_part
from fineshards.exports.export_options import ExportOptions
from fineshards.exports.record import Export
from fineshards.shards.job.manifest_file import EXPORT_NAME
from fineshards.storage.open import open_storage

NAMES = ["../victim", "{victim}", "a/../../victim", "./x", "a//b", "a\0b", "\ud800", "", "."]
NAMES += ["n" * 5000, "n" * 300, "a/" * 2500 + "b", "export.json"]


@pytest.fixture(scope="module")
def dataset(by_document: Path) -> Path:
    return by_document


@pytest.fixture(scope="module")
def finished(folder: Path, dataset: Path) -> Path:
    fineshards.export(dataset, folder / "export", "raw")
    return folder / "export"


@pytest.fixture
def export(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "export")


def fields_of(export: Path) -> dict[str, Any]:
    """The content of `export.json` without its seal."""
    fields: dict[str, Any] = json.loads((export / EXPORT_NAME).read_bytes())
    del fields["crc32c"]
    return fields


def store(export: Path, fields: object) -> None:
    """Writes `export.json` as fineshards writes it."""
    content = sealed(fields) if isinstance(fields, dict) else json.dumps(fields).encode()
    (export / EXPORT_NAME).write_bytes(content)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name[:20]))
def test_no_name_leads_out_of_the_folder(dataset: Path, export: Path, name: str) -> None:
    victim = export.parent / "victim"
    victim.write_text("mine, 14 bytes")
    fields = fields_of(export)
    fields["files"][0] |= {"name": name.format(victim=victim), "bytes": 1}
    store(export, fields)
    for command in (
        lambda: fineshards.verify(export),
        lambda: fineshards.export(dataset, export, "raw"),
    ):
        try:
            found = command()
            message = " ".join(found.problems)  # a name that no disk has, of one file
            assert name == "n" * 300
        except OutputError as error:
            message = str(error).replace(str(export.parent), "")
        assert "14 bytes" not in message
        assert len(message) < 1500
        assert "mine" in victim.read_text()
    assert main(["verify", str(export)]) == 1


def test_a_record_of_a_part_names_no_file_elsewhere(dataset: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(dataset, tmp_path / "dataset")
    victim = tmp_path / "victim"
    for name in ("../victim", str(victim)):
        victim.write_text("mine")
        output = tmp_path / f"out{len(name)}"
        job, _ = prepare(ExportOptions(damaged, output, "raw"))
        for part in job.parts:
            write_part(job, part)
        for record in (output / "checkpoints" / job.fingerprint).iterdir():
            fields = json.loads(record.read_bytes())
            del fields["crc32c"]
            fields["record"]["files"].append({"name": name, "bytes": 4, "crc32c": "AAAAAA=="})
            record.write_bytes(sealed(fields))
        shard = damaged / "train/train_0000.npy"
        shard.write_bytes(shard.read_bytes()[:-1] + b"\x7f")
        with pytest.raises(OutputError, match="damaged"):
            fineshards.export(damaged, output, "raw")
        assert victim.read_text() == "mine"
        shutil.copyfile(dataset / "train/train_0000.npy", shard)


def test_nothing_is_deleted_through_a_link(dataset: Path, tmp_path: Path) -> None:
    output, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    fineshards.export(dataset, output, "mds", sequence_length=16)
    (output / "train").rename(elsewhere)
    (output / "train").symlink_to(elsewhere)
    assert fineshards.verify(output).ok  # what is read may lie behind a link
    kept = {path.name: path.read_bytes() for path in elsewhere.iterdir()}
    record = json.loads((output / EXPORT_NAME).read_bytes())
    for file in record["files"]:
        file["bytes"] += 1
    del record["crc32c"]
    store(output, record)
    message = refused(
        lambda: fineshards.export(dataset, output, "mds", sequence_length=16), OutputError
    )
    assert "a link leads to" in message
    assert {path.name: path.read_bytes() for path in elsewhere.iterdir()} == kept


@pytest.mark.long
def test_every_bit_of_the_record_counts(finished: Path, export: Path) -> None:
    content = (finished / EXPORT_NAME).read_bytes()
    storage, record = open_storage(str(export)), export / EXPORT_NAME
    assert Export.load(storage) is not None
    changes = [content[:end] for end in range(len(content))] + [content + b"\n", content + b"x"]
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        changes.append(bytes(changed))
    for number, changed in enumerate(changes):
        record.write_bytes(changed)
        with pytest.raises(
            OutputError, match=r"export\.json is (damaged|not of the format).* again\.$"
        ):
            Export.load(storage)
        if number % 997 == 0:
            assert main(["verify", str(export)]) == 1


def test_keys_that_are_missing_or_of_another_type_end_in_a_sentence(
    dataset: Path, export: Path
) -> None:
    values = [None, [], {}, "x", -1, 1 << 70, 1.5, True, [[]], {"x": {}}]

    def places(value: Any) -> list[tuple[Any, Any]]:
        keys = value.keys() if isinstance(value, dict) else range(len(value))
        found = [(value, key) for key in keys]
        return found + [
            each
            for key in keys
            if isinstance(value[key], dict | list)
            for each in places(value[key])
        ]

    original = json.dumps(fields_of(export))
    for number in range(len(places(json.loads(original)))):
        for new in ["missing", *values]:
            fields = json.loads(original)
            where, key = places(fields)[number]
            if new == "missing":
                del where[key]
            else:
                where[key] = new
            store(export, fields)
            for command in (
                lambda: fineshards.verify(export),
                lambda: fineshards.export(dataset, export, "raw"),
            ):
                with suppress(FineshardsError):
                    command()
            for file in ("train.bin", "val.bin"):
                if not (export / file).exists():
                    shutil.copyfile(dataset.parent / "export" / file, export / file)
            shutil.rmtree(export / "checkpoints", ignore_errors=True)


def test_links_of_the_hub_s_cache_are_followed(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    for number, file in enumerate(finished.iterdir()):
        shutil.copyfile(file, tmp_path / f"blobs/{number}")
        os.symlink(f"../blobs/{number}", tmp_path / "snapshot" / file.name)
    assert fineshards.verify(tmp_path / "snapshot").ok
