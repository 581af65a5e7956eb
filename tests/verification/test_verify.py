"""Verify: an undamaged dataset passes; every kind of damage is found and named."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.damage import (
    MANIFEST,
    change_total,
    checksum,
    edit_manifest,
    edit_table,
    entry_of,
    flip_bit,
    load,
    rewrite_table,
    save_consistently,
)
from support.oracle import ENCODING, EOT, read_texts

from fineshards.cli.cli import main

SHARD_TOKENS = 60_000
SHARD = "train/train_0003.npy"  # in the middle of the stream
TABLE = "metadata/documents/train_0003.parquet"
Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory: pytest.TempPathFactory, sample: Path) -> Path:
    folder = tmp_path_factory.mktemp("verify") / "dataset"
    flags = [f"--shard_tokens={SHARD_TOKENS}", "--block_bytes=300000", "--test_shards=1"]
    assert main(["build", "--input", str(sample), "--output", str(folder), *flags]) == 0
    return folder


@pytest.fixture
def dataset(undamaged: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(undamaged, tmp_path / "copy"))


def problems_of(
    folder: Path, capsys: pytest.CaptureFixture[str], *flags: str, code: int = 1
) -> list[str]:
    """What verify finds, the same as JSON and as text."""
    capsys.readouterr()
    ended = main(["verify", str(folder), "--json", *flags])
    printed = capsys.readouterr()
    assert (ended, printed.err) == (code, "")
    verdict = json.loads(printed.out)
    assert verdict["ok"] == (code == 0)
    ended = main(["verify", str(folder), *flags])
    as_text = capsys.readouterr()
    assert (ended, as_text.err) == (code, "")
    missing = [problem for problem in verdict["problems"] if f"  {problem}\n" not in as_text.out]
    assert missing == []
    return verdict["problems"]


def test_an_undamaged_dataset_passes_with_its_counts(
    undamaged: Path, sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = read_texts(sample)
    tokens = sum(1 + len(ENCODING.encode_ordinary(text)) for text in texts)
    shards = -(-tokens // SHARD_TOKENS)
    capsys.readouterr()
    ended = main(["verify", str(undamaged), "--json"])
    printed = capsys.readouterr()
    assert (ended, printed.err) == (0, "")
    assert json.loads(printed.out) == {
        "ok": True,
        "problems": [],
        "shards": shards,
        "tokens": tokens,
        "documents": len(texts),
        "sampled": 0,
        "judged": 0,
        "files": 0,
        "hashed": 0,
    }
    assert main(["verify", str(undamaged)]) == 0
    text = capsys.readouterr().out
    assert text == f"verified: {shards} shards, {tokens:,} tokens, {len(texts):,} documents\n"


def _truncate(name: str, size: int) -> Damage:
    def change(folder: Path) -> None:
        os.truncate(folder / name, size if size >= 0 else (folder / name).stat().st_size + size)

    return change


def _save(array: Any) -> Damage:
    return lambda folder: np.save(folder / SHARD, array(load(folder, SHARD)))


def _swap(first: str, second: str) -> Damage:
    def change(folder: Path) -> None:
        (folder / first).rename(folder / "aside")
        (folder / second).rename(folder / first)
        (folder / "aside").rename(folder / second)

    return change


@pytest.mark.parametrize(
    ("damage", "named", "expected"),
    [
        pytest.param(lambda f: (f / SHARD).unlink(), SHARD, "is missing", id="gone"),
        pytest.param(_truncate(SHARD, -1000), SHARD, "bytes; the manifest says", id="cut short"),
        pytest.param(_truncate(SHARD, 0), SHARD, "has 0 bytes", id="empty file"),
        pytest.param(lambda f: flip_bit(f / SHARD, 4711), SHARD, "has crc32c", id="one bit"),
        pytest.param(
            _save(lambda a: a.astype("<u2")), SHARD, "bytes; the manifest says", id="uint16"
        ),
        pytest.param(_swap(SHARD, "train/train_0004.npy"), SHARD, "has crc32c", id="swapped"),
        pytest.param(
            _swap("test/test_0000.npy", "train/train_0000.npy"),
            "test/test_0000.npy",
            "has crc32c",
            id="swapped between splits",
        ),
    ],
)
def test_a_damaged_shard_is_found(
    dataset: Path, capsys: pytest.CaptureFixture[str], damage: Damage, named: str, expected: str
) -> None:
    damage(dataset)
    found = problems_of(dataset, capsys)
    assert any(named in problem and expected in problem for problem in found), found


def _move_eot(tokens: np.ndarray) -> int:
    place = np.flatnonzero(tokens == EOT)[2]
    tokens[[place, place + 1]] = tokens[[place + 1, place]]
    return 0


def _add_eot(tokens: np.ndarray) -> int:
    tokens[np.flatnonzero(tokens == EOT)[2] + 2] = EOT
    return 1


def _remove_eot(tokens: np.ndarray) -> int:
    tokens[np.flatnonzero(tokens == EOT)[2]] = 1
    return -1


@pytest.mark.parametrize("change", [_move_eot, _add_eot, _remove_eot])
def test_a_misplaced_eot_is_found_without_any_other_sign(
    dataset: Path, capsys: pytest.CaptureFixture[str], change: Callable[[np.ndarray], int]
) -> None:
    tokens = load(dataset, SHARD)
    more = change(tokens)
    save_consistently(dataset, SHARD, tokens)

    def hide_it(content: dict[str, Any]) -> None:
        entry_of(content, SHARD)["documents"] += more
        change_total(content, "documents", more)
        change_total(content, "rows", more)

    edit_manifest(dataset, hide_it)
    found = problems_of(dataset, capsys)
    assert f"{SHARD}: its EOT tokens are not where its documents begin" in found
    if more == 0:
        assert len(found) == 1


def _rewrite_table(change: Callable[[pa.Table], pa.Table]) -> Damage:
    return lambda folder: rewrite_table(folder, SHARD, change)


def _no_table(folder: Path) -> None:
    """The manifest has the size and checksum of a file that is not a table."""
    (folder / TABLE).write_text("{}" * 99)
    numbers = {"table_bytes": 198, "table_crc32c": checksum(b"{}" * 99)}
    edit_manifest(folder, lambda content: entry_of(content, SHARD).update(numbers))


def _cell(column: str, row: int, by: int) -> Damage:
    """Adds to one value of the table."""

    def change(columns: dict[str, list[Any]]) -> None:
        columns[column][row] += by

    return lambda folder: edit_table(folder, SHARD, change)


def _swap_values(*names: str) -> Damage:
    def change(columns: dict[str, list[Any]]) -> None:
        for name in names or columns:
            values = columns[name]
            values[10], values[11] = values[11], values[10]

    return lambda folder: edit_table(folder, SHARD, change)


def _set_column(name: str, value: object) -> Damage:
    def change(columns: dict[str, list[Any]]) -> None:
        columns[name] = [value] * len(columns[name])

    return lambda folder: edit_table(folder, SHARD, change)


def _shift_border(folder: Path) -> None:
    """One document is a token longer and the next a token shorter: no gap, no overlap."""
    _cell("length", 10, 1)(folder)
    _cell("offset", 11, 1)(folder)
    _cell("length", 11, -1)(folder)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        pytest.param(lambda f: (f / TABLE).unlink(), "is missing", id="gone"),
        pytest.param(_no_table, "cannot be read", id="no table"),
        pytest.param(
            _rewrite_table(lambda t: t.drop_columns(["row"])), "has the columns", id="no row"
        ),
        pytest.param(
            _rewrite_table(lambda t: t.append_column("more", t["row"])),
            "has the columns",
            id="more",
        ),
        pytest.param(
            _rewrite_table(lambda t: t.set_column(2, "length", t["length"].cast("int32"))),
            "has the columns",
            id="other type",
        ),
        pytest.param(
            _rewrite_table(lambda t: t.slice(0, 0)), "the number of rows is 0", id="no rows"
        ),
        pytest.param(
            _rewrite_table(lambda t: t.slice(1)), "the number of rows is", id="first row missing"
        ),
        pytest.param(_rewrite_table(lambda t: t[:-1]), "does not cover", id="last row missing"),
        pytest.param(
            _rewrite_table(lambda t: pa.concat_tables([t, t[-1:]])),
            "does not cover",
            id="row twice",
        ),
        pytest.param(_swap_values(), "does not cover", id="two rows swapped"),
        pytest.param(_swap_values("document"), "not consecutive", id="two documents swapped"),
        pytest.param(_swap_values("row"), "not in the order of", id="two source rows swapped"),
        pytest.param(_cell("offset", 10, 1), "does not cover", id="gap"),
        pytest.param(_cell("offset", 0, 1), "does not cover", id="late start"),
        pytest.param(_cell("length", -1, -1), "does not cover", id="early end"),
        pytest.param(_cell("document", 10, 1), "not consecutive", id="document skipped"),
        pytest.param(_cell("start", 10, 1), "'start' is negative, or not 0", id="start inside"),
        pytest.param(_cell("start", 0, 1), "does not continue", id="other start"),
        pytest.param(_cell("start", 0, -(10**9)), "'start' is negative", id="negative start"),
        pytest.param(_cell("row", 0, 1), "does not continue", id="continues another row"),
        pytest.param(_set_column("file", "elsewhere"), "of elsewhere in the", id="other file"),
    ],
)
def test_a_damaged_document_table_is_found(
    dataset: Path, capsys: pytest.CaptureFixture[str], damage: Damage, expected: str
) -> None:
    damage(dataset)
    found = problems_of(dataset, capsys)
    assert any(expected in problem for problem in found), found
    assert any(Path(TABLE).stem in problem for problem in found), found


def test_a_document_border_moved_only_in_the_table_is_found(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _shift_border(dataset)
    assert problems_of(dataset, capsys) == [
        f"{SHARD}: its EOT tokens are not where its documents begin"
    ]


def _set(change: Callable[[dict[str, Any]], object]) -> Damage:
    return lambda folder: edit_manifest(folder, change)


def _moved(layout: dict[str, Any]) -> dict[str, Any]:
    """Two test shards instead of one."""
    ((_, train),) = layout["added"]
    return {"added": [(2 * SHARD_TOKENS, train - SHARD_TOKENS)]}


def _add(what: str, by: int) -> Damage:
    def change(content: dict[str, Any]) -> None:
        of = content["files"][0] if what == "size" else content["reports"][0]["counts"]
        of[what] = of.get(what, 0) + by

    return _set(change)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        pytest.param(_add("tokens", 1), "the files have", id="tokens of a file"),
        pytest.param(_add("documents", 1), "the files have", id="documents of a file"),
        pytest.param(_add("rows", 1), "does not balance", id="rows of a file"),
        pytest.param(_add("rejected", 1), "does not balance", id="rejected"),
        pytest.param(_add("size", 1), "its fingerprint is", id="size of a file"),
        pytest.param(_set(lambda c: c["totals"].update(rows=1)), "its totals are", id="totals"),
        pytest.param(_set(lambda c: c["totals"].pop("tokens")), "its totals are", id="no total"),
        pytest.param(_set(lambda c: c["shards"].pop(5)), "11 shards, expected 12", id="one less"),
        pytest.param(
            _set(lambda c: c["shards"].append(c["shards"][5])),
            "13 shards, expected",
            id="one twice",
        ),
        pytest.param(_set(lambda c: c["shards"].reverse()), "names of the shards", id="reversed"),
        pytest.param(
            _set(lambda c: entry_of(c, SHARD).update(documents=1)),
            "documents that begin is",
            id="documents",
        ),
        pytest.param(
            _set(lambda c: entry_of(c, SHARD).update(tokens=59_999)), f"{SHARD} has", id="tokens"
        ),
        pytest.param(_set(lambda c: entry_of(c, SHARD).update(pieces=1)), "rows", id="pieces"),
        pytest.param(
            _set(lambda c: entry_of(c, SHARD).update(index=7)), "recorded as train 7", id="index"
        ),
        pytest.param(_set(lambda c: c["metadata"].pop(0)), "does not belong", id="no file"),
        pytest.param(
            _set(lambda c: entry_of(c, SHARD).update(first_document=1)), "begins with", id="first"
        ),
        pytest.param(
            _set(lambda c: c["layout"].update(added=[(0, 10**15)])), "expected 16", id="layout"
        ),
        pytest.param(
            _set(lambda c: c["layout"].update(_moved(c["layout"]))), "names of the sh", id="split"
        ),
        pytest.param(
            _set(lambda c: c["settings"].update(shard_tokens=7)), "fingerprint is", id="settings"
        ),
        pytest.param(_set(lambda c: c.update(fingerprint="0")), "fingerprint is 0", id="print"),
    ],
)
def test_an_edited_manifest_is_found(
    dataset: Path, capsys: pytest.CaptureFixture[str], damage: Damage, expected: str
) -> None:
    damage(dataset)
    found = problems_of(dataset, capsys)
    assert any(expected in problem for problem in found), found


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda f: (f / MANIFEST).write_text("not JSON"), id="no JSON"),
        pytest.param(lambda f: (f / MANIFEST).write_bytes(b"\xff" * 9), id="no text"),
        pytest.param(lambda f: (f / MANIFEST).write_text("[1, 2]"), id="a list"),
        pytest.param(_truncate(MANIFEST, 0), id="empty"),
        pytest.param(_truncate(MANIFEST, -50), id="cut short"),
        pytest.param(
            _set(lambda c: c.update(format="fineshards manifest 3")), id="another version"
        ),
        pytest.param(_set(lambda c: c.update(format="other")), id="another format"),
        pytest.param(_set(lambda c: c.pop("shards")), id="no shards"),
        pytest.param(_set(lambda c: c["shards"].clear()), id="empty shards"),
        pytest.param(_set(lambda c: c.update(origin=[])), id="origin is a list"),
        pytest.param(_set(lambda c: c.update(more=1)), id="more"),
        pytest.param(_set(lambda c: c["layout"].update(dtype="<u2")), id="dtype"),
        pytest.param(_set(lambda c: c["files"].append(c["files"][0])), id="file twice"),
        pytest.param(_set(lambda c: c["files"][0].update(index=8)), id="another index"),
        pytest.param(_set(lambda c: entry_of(c, SHARD).update(tokens="9")), id="text for number"),
        pytest.param(_set(lambda c: c["layout"].update(shard_tokens=0)), id="shards of nothing"),
        pytest.param(
            _set(lambda c: entry_of(c, SHARD).update(name="../train_0003.npy")), id="shard outside"
        ),
        pytest.param(
            _set(lambda c: c["metadata"][0].update(name="/etc/passwd")), id="file outside"
        ),
    ],
)
def test_an_unreadable_manifest_is_named(
    dataset: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Damage,
    request: pytest.FixtureRequest,
) -> None:
    damage(dataset)
    assert main(["verify", str(dataset)]) == 1
    printed = capsys.readouterr()
    version = request.node.callspec.id in ("another version", "another format")
    what = "not of the format 'fineshards manifest 4'" if version else "damaged"
    assert printed.err.startswith(f"fineshards: {dataset / MANIFEST} is {what}")
    assert (printed.out, printed.err.count("\n")) == ("", 1)
