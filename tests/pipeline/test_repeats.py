"""Repeats: documents of an append whose text the dataset had before, against plain Python."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.damage import edit_manifest
from support.growing import Row, append, build, content_of, made_up_rows, write_rows
from support.oracle import files_in

import fineshards
from fineshards.cli.cli import main
from fineshards.errors import UsageError
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.layout import SplitRule
from fineshards.shards.tables import repeats
from fineshards.storage.open import open_storage
from fineshards.transforms import count_repeats
from fineshards.verification.check_leaks import check_repeats
from fineshards.worker.tasks import Task

pytestmark = pytest.mark.growing

# With empty texts, and texts longer than a shard, in both parts.
ROWS = made_up_rows(8, 90)
SPLITS = [
    ["--test_fraction=0.3"],
    ["--test_fraction=0.3", "--split_key=row"],
    ["--test_shards=2"],
    ["--test_fraction=0.3", "--shuffle_seed=7"],
    ["--test_fraction=0"],
]


def expected_repeats(earlier: list[Row], new: list[Row]) -> int:
    known = {row["text"] for row in earlier}
    return sum(row["text"] is not None and row["text"] in known for row in new)


def documents(rows: list[Row]) -> int:
    return sum(row["text"] is not None for row in rows)


@pytest.mark.parametrize("flags", SPLITS)
def test_repeats_are_counted_in_every_append(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    parts = [ROWS[:30], ROWS[20:60], ROWS[60:], ROWS[:30]]
    files = [write_rows(tmp_path / f"{n}.parquet", rows) for n, rows in enumerate(parts)]
    output = tmp_path / "out"
    build(output, files[0], "--shard_tokens=300", *flags)
    earlier = parts[0]
    for file, rows in zip(files[1:], parts[1:], strict=True):
        capsys.readouterr()
        append(output, file, "--json")
        expected = expected_repeats(earlier, rows)
        assert expected
        said = capsys.readouterr()
        assert json.loads(said.out)["repeats"] == expected
        manifest = Manifest.load_finished(open_storage(str(output)))
        assert manifest.repeats == expected
        assert fineshards.verify(output).problems == []
        earlier = earlier + rows
    # The last one is the first one from another path: every document repeats.
    assert expected == documents(parts[0])


def test_the_same_text_from_another_path_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_rows(tmp_path / "a/part.parquet", ROWS)
    again = write_rows(tmp_path / "b/part.jsonl", ROWS)
    fresh = write_rows(tmp_path / "c/part.jsonl", [{"text": "never seen before"}] * 2)
    output = tmp_path / "out"
    build(output, first, "--shard_tokens=400")
    capsys.readouterr()
    append(output, again)
    count = documents(ROWS)
    line = (
        f"warning: {count} of {count} new documents have the text of a document that was in the "
        "dataset before"
    )
    assert line in capsys.readouterr().out.splitlines()
    append(output, fresh)
    assert "warning" not in capsys.readouterr().out
    manifest = Manifest.load_finished(open_storage(str(output)))
    assert manifest.repeats == 0, "a text twice among the new ones is no repeat"


def test_fail_on_repeats_changes_nothing_that_readers_see(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_rows(tmp_path / "a.parquet", ROWS[:50])
    again = write_rows(tmp_path / "b.parquet", [{"text": "new"}, *ROWS[10:12]])
    output, plain = tmp_path / "out", tmp_path / "plain"
    build(output, first, "--shard_tokens=400")
    shutil.copytree(output, plain)
    append(plain, again)
    before = (output / "metadata/manifest.json").read_bytes()
    arguments = ["append", str(output), f"--input={again}"]
    assert main([*arguments, "--fail_on_repeats"]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert "2 of 3 new documents have the text of a document that was in the dataset" in said
    assert f"of {again} and row " in said
    assert f"of {first}, so the append is not finished (--fail_on_repeats)." in said
    assert (output / "metadata/manifest.json").read_bytes() == before
    assert fineshards.verify(output).problems == []
    # The same command without it finishes, and then with it fails again.
    assert main(arguments) == 0
    assert content_of(output) == content_of(plain)
    assert main([*arguments, "--fail_on_repeats"]) == 1
    assert "is finished, but 2 of 3 new documents" in capsys.readouterr().err
    with pytest.raises(UsageError, match="goes with an append"):
        fineshards.build(input=first, output=tmp_path / "other", fail_on_repeats=True)


@pytest.mark.parametrize("flags", SPLITS[:3])
def test_ranges_of_hashes_are_added_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    files = [
        write_rows(tmp_path / "0.parquet", ROWS[:60]),
        write_rows(tmp_path / "1.parquet", ROWS[20:]),
    ]
    output = tmp_path / "out"
    build(output, files[0], "--shard_tokens=300", *flags)
    append(output, files[1])
    storage = open_storage(str(output))
    manifest = Manifest.load_finished(storage)
    assert manifest.repeats == expected_repeats(ROWS[:60], ROWS[20:])
    monkeypatch.setattr(repeats, "RANGE_DOCUMENTS", 7)
    assert list(check_repeats(storage, manifest)) == []


def test_only_the_numbers_of_ranges_are_shuffled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows of all shards would be, once for each range."""
    files = [write_rows(tmp_path / f"{n}.parquet", ROWS[n * 20 :]) for n in range(2)]
    build(tmp_path / "out", files[0], "--shard_tokens=300")
    seen: list[object] = []
    task = count_repeats._Compare.task

    def noted(step: count_repeats._Compare, element: object, *side: Any) -> Task:
        seen.append(element)
        return task(step, element, *side)  # type: ignore[arg-type]

    monkeypatch.setattr(count_repeats._Compare, "task", noted)
    monkeypatch.setattr(repeats, "RANGE_DOCUMENTS", 7)
    append(tmp_path / "out", files[1])
    assert sorted(map(str, seen)) == sorted(map(str, range(len(seen))))
    assert len(seen) > 1
    assert fineshards.verify(tmp_path / "out").problems == []


def test_no_table_is_read_to_compare_no_documents(tmp_path: Path) -> None:
    sides = repeats.Sides((), (repeats.RowSpan("train/train_0000.npy", 0, 5),))
    storage, rule = open_storage(str(tmp_path)), SplitRule("1/4", None, "text", 1)
    assert repeats.count_repeats(storage, rule, sides, 0, 1) == repeats.RepeatCount(0)


def test_verify_finds_another_number(tmp_path: Path) -> None:
    files = [write_rows(tmp_path / f"{n}.parquet", ROWS[:40]) for n in range(2)]
    rows = ROWS[:40]
    write_rows(tmp_path / "1.jsonl", rows)
    output = tmp_path / "out"
    build(output, files[0], "--shard_tokens=400")
    append(output, tmp_path / "1.jsonl")
    generations = output / "metadata/generations/0002.json"
    for wrong, problem in (
        (3, f"by the hashes in the document tables {documents(rows)} new documents repeat earlier"),
        (1000, "1000 documents repeat earlier ones, more than were appended"),
    ):
        edit_manifest(output, lambda content, wrong=wrong: content.update(repeats=wrong))
        generations.write_bytes((output / "metadata/manifest.json").read_bytes())
        assert any(problem in each for each in fineshards.verify(output).problems)


def test_a_manifest_without_the_number_is_verified(tmp_path: Path) -> None:
    """Such as one that was written before repeats were counted."""
    rows = ROWS[:40]
    files = [
        write_rows(tmp_path / f"{n}.{kind}", rows) for n, kind in enumerate(["parquet", "jsonl"])
    ]
    output = tmp_path / "out"
    build(output, files[0], "--shard_tokens=400")
    append(output, files[1])
    edit_manifest(output, lambda content: content.pop("repeats"))
    content = (output / "metadata/manifest.json").read_bytes()
    (output / "metadata/generations/0002.json").write_bytes(content)
    assert fineshards.verify(output).problems == []
    append(output, write_rows(tmp_path / "2.jsonl", [{"text": "more"}]))
    assert fineshards.verify(output).problems == []


@pytest.mark.parametrize("flags", SPLITS)
def test_estimate_says_it_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    output = tmp_path / "out"
    build(output, write_rows(tmp_path / "0.parquet", ROWS[:60]), "--shard_tokens=300", *flags)
    before = files_in(output)
    new = write_rows(tmp_path / "1.jsonl", ROWS[30:])
    expected = expected_repeats(ROWS[:60], ROWS[30:])
    capsys.readouterr()
    assert main(["estimate", f"--output={output}", f"--input={new}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["documents"], found["repeats"]) == (documents(ROWS[30:]), expected)
    assert main(["estimate", f"--output={output}", f"--input={new}"]) == 0
    share = 100 * expected / documents(ROWS[30:])
    line = f"  repeats    {expected} documents ({share:.2f} %) are in the"
    assert line in capsys.readouterr().out
    assert files_in(output) == before
    append(output, new)
    manifest = Manifest.load_finished(open_storage(str(output)))
    assert manifest.repeats == expected


def test_estimates_of_appends_that_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, file = tmp_path / "out", write_rows(tmp_path / "0.parquet", ROWS[:20])
    build(output, file, "--shard_tokens=300")
    capsys.readouterr()
    for arguments, sentence in (
        ([f"--output={tmp_path}/no"], "holds no finished dataset"),
        ([f"--output={output}"], f"{output} has all of these files, so nothing is appended."),
        ([f"--output={output}", "--tokenizer=gpt2"], "--tokenizer is the dataset's own"),
    ):
        assert main(["estimate", f"--input={file}", *arguments]) != 0
        assert sentence in capsys.readouterr().err
