"""Texts in both splits, and texts that an append adds again, counted against plain Python."""

import json
import shutil
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Barrier
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.build_here import build_here
from support.damage import edit_manifest, edit_table
from support.growing import KEYS, Row, append, build, made_up_rows, published_files, write_rows
from support.oracle import side_of, tokens_of

import fineshards
from fineshards.cli.cli import main
from fineshards.errors import OutputError, UsageError
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import Leaks
from fineshards.shards.split_rule import ByFraction, SplitRule
from fineshards.shards.tables import shared_texts
from fineshards.shards.tables.documents import table_schema
from fineshards.shards.tables.shared_texts import Comparison, Rows, SharedTexts, compare_range
from fineshards.storage.base import Storage
from fineshards.storage.open import open_storage
from fineshards.wording import warn_of_leaks

pytestmark = pytest.mark.growing


def expected_leaks(documents: list[tuple[str, Any]]) -> Leaks:
    """The definition: documents, as (split, text), whose text is also in the other split."""
    texts = [{text for side, text in documents if side == split} for split in ("test", "train")]
    found = Counter(split for split, text in documents if text in texts[0] & texts[1])
    return Leaks(found["test"], found["train"])


def expected_repeats(earlier: list[Any], new: list[Any]) -> int:
    return sum(text in set(earlier) for text in new)


# Counting.

# Few values, so that there are duplicates, at both ends of the hashes and between.
hashes = st.sampled_from([0, 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1])
tables = st.lists(st.tuples(st.booleans(), st.booleans(), st.lists(hashes)), max_size=6)


@settings(max_examples=40)
@given(tables, st.integers(1, 9))
def test_texts_are_counted_however_hashes_are_cut_into_ranges(
    made_up: list[tuple[bool, bool, list[int]]], ranges: int
) -> None:
    rule, rows = ByFraction("1/4", "row", 1), []
    with TemporaryDirectory() as folder:
        (Path(folder) / "metadata/documents").mkdir(parents=True)
        for number, (train, earlier, found) in enumerate(made_up):
            size, schema = len(found) + 1, table_schema(rule)
            columns: dict[str, Any] = {name: [0] * size for name in schema.names}
            columns |= {"file": ["a"] * size, "id": [None] * size, "text_hash": [2**62, *found]}
            columns |= {"file": pa.array(columns["file"]).dictionary_encode()}
            table = pa.table(columns, schema=schema)
            pq.write_table(table, f"{folder}/metadata/documents/train_{number:04}.parquet")
            # Not its first row, which is not compared.
            rows.append(Rows(f"train/train_{number:04}.npy", 1, size, int(train), int(earlier)))
        comparison, storage = Comparison(tuple(rows), ranges), open_storage(folder)
        parts = [compare_range(storage, rule, comparison, number, 2) for number in range(ranges)]
    sides = [("train" if train else "test", text) for train, _, found in made_up for text in found]
    new = [text for _, earlier, found in made_up if not earlier for text in found]
    old = [text for _, earlier, found in made_up if earlier for text in found]
    total = SharedTexts.total(parts)
    assert (total.leaks, total.repeats) == (expected_leaks(sides), expected_repeats(old, new))
    in_test = {text for split, text in sides if split == "test"}
    in_train = {text for split, text in sides if split == "train"}
    assert total.leaking == min(in_test & in_train, default=None)
    assert total.repeated == min(set(old) & set(new), default=None)


def test_tables_are_read_side_by_side_for_an_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, schema = ByFraction("1/4", "row", 1), table_schema(ByFraction("1/4", "row", 1))
    (tmp_path / "metadata/documents").mkdir(parents=True)
    rows = []
    for number in range(8):
        columns: dict[str, Any] = {name: [0] for name in schema.names} | {"id": [None]}
        columns |= {"file": pa.array([f"f{number}"]).dictionary_encode(), "text_hash": [number % 4]}
        name = f"train_{number:04}"
        pq.write_table(
            pa.table(columns, schema=schema), tmp_path / f"metadata/documents/{name}.parquet"
        )
        rows.append(Rows(f"train/{name}.npy", 0, 1, number // 4, 1))
    storage, meeting = open_storage(str(tmp_path)), Barrier(4)
    read = shared_texts._read_hashes

    def wait(storage: Storage, rule: SplitRule, rows: Rows) -> shared_texts.Hashes:
        meeting.wait(60)  # for the three others of a side
        return read(storage, rule, rows)

    monkeypatch.setattr(shared_texts, "_read_hashes", wait)
    found = shared_texts.example(storage, rule, Comparison(tuple(rows), 1), 3, "train")
    assert found == "row 0 of f3 (test) and row 0 of f7 (train)"


def test_no_table_is_read_to_compare_no_documents(tmp_path: Path) -> None:
    manifest = build_here(
        input=write_rows(tmp_path / "a.parquet", ROWS), output=tmp_path / "out", test_shards=0
    )
    comparison = Comparison.of(manifest.shards, (), manifest.settings.split)
    assert comparison == Comparison((), 1)
    nowhere = open_storage(str(tmp_path / "nowhere"))
    found = compare_range(nowhere, manifest.settings.split, comparison, 0, 2)
    assert found == SharedTexts(Leaks(0, 0), 0, None, None)


# Builds and appends.

# With empty texts, and texts longer than a shard, in all parts.
ROWS = made_up_rows(8, 90)
PARTS = [ROWS[:30], ROWS[20:60], ROWS[60:], ROWS[:30]]


def sides_of(parts: list[list[Row]], flag: str) -> list[tuple[str, Any]]:
    """The split and the text of each document, by the rule of a flag."""
    name, _, value = flag.partition("=")
    sides, tokens = [], 0
    for file, rows in enumerate(parts):
        for number, row in enumerate(rows):
            if row["text"] is None:
                continue
            if name == "--test_shards":
                sides.append("test" if tokens < int(value) * 300 else "train")
            else:
                key = KEYS[value](row)
                sides.append(side_of(f"{file}:{number}" if key is None else key, "0.3"))
            tokens += 1 + len(tokens_of(row["text"]))
    texts = [row["text"] for rows in parts for row in rows if row["text"] is not None]
    return list(zip(sides, texts, strict=True))


@pytest.mark.parametrize(
    "flags",
    [
        ["--split_key=text"],
        ["--split_key=text", "--shuffle_seed=7"],
        ["--split_key=id"],
        ["--split_key=row", "--shuffle_seed=7"],
        ["--split_key=host"],
        ["--split_key=column:group"],
        ["--test_shards=2"],
    ],
)
def test_leaks_and_repeats_are_counted_in_every_generation(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
) -> None:
    by_text = flags[0] == "--split_key=text"
    fraction = [] if flags[0].startswith("--test_shards") else ["--test_fraction=0.3"]
    output = tmp_path / "out"
    for number, rows in enumerate(PARTS):
        # Builds compare in many ranges, and verify in one.
        monkeypatch.setattr(shared_texts, "RANGE_DOCUMENTS", 7)
        file = write_rows(tmp_path / f"{number}.parquet", rows)
        capsys.readouterr()
        if number:
            append(output, file, "--json")
        else:
            build(output, file, "--shard_tokens=300", "--json", *fraction, *flags)
        said = json.loads(capsys.readouterr().out)
        manifest = Manifest.load_finished(open_storage(str(output)))
        monkeypatch.undo()

        leaks = expected_leaks(sides_of(PARTS[: number + 1], flags[0]))
        assert manifest.leaks == (None if by_text else leaks)
        assert by_text == (leaks == Leaks(0, 0))
        texts = [[row["text"] for row in part if row["text"] is not None] for part in PARTS]
        earlier = [text for part in texts[:number] for text in part]
        repeats = expected_repeats(earlier, texts[number])
        assert manifest.repeats == (repeats if number else None)
        assert said["repeats"] == manifest.repeats
        assert said["leaks"] == (
            None if by_text else {name: getattr(leaks, name) for name in Leaks.__slots__}
        )
        assert fineshards.verify(output, sample="20%").problems == []
    # The last part is the first one from another path: every document repeats.
    assert repeats == len(texts[0])
    # A command that has nothing to do warns as one that has.
    assert main(["append", str(output), f"--input={file}"]) == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if "warning: " in line]
    assert warnings == [
        *([] if by_text else [f"warning: {warn_of_leaks(leaks, manifest.settings.split)}"]),
        f"warning: {repeats} of {repeats} new documents have the text of a document that was in "
        "the dataset before",
    ]
    fresh = write_rows(tmp_path / "fresh.jsonl", [ROWS[0] | {"text": "never seen"}] * 2)
    append(output, fresh)
    manifest = Manifest.load_finished(open_storage(str(output)))
    assert manifest.repeats == 0, "a text twice among the new ones is no repeat"


def test_a_document_across_the_border_is_in_test(tmp_path: Path) -> None:
    # 1 + 6 tokens; the border is in the second document, most of which is in train.
    rows = [{"text": text} for text in ("one", "two " * 6, "three", "four " * 6)]
    options: dict[str, Any] = {"test_shards": 1, "shard_tokens": 4}
    alone = build_here(
        input=write_rows(tmp_path / "a.jsonl", rows), output=tmp_path / "a", **options
    )
    table = pq.read_table(tmp_path / "a/metadata/documents/train_0000.parquet")
    assert table["start"][0].as_py() > 0
    assert alone.leaks == Leaks(0, 0), "its own rest is not a duplicate of it"
    rows += [rows[1], rows[1], rows[3]]
    again = build_here(
        input=write_rows(tmp_path / "b.jsonl", rows), output=tmp_path / "b", **options
    )
    assert again.leaks == Leaks(1, 2)
    empty = build_here(
        input=tmp_path / "b.jsonl", output=tmp_path / "c", test_shards=99, fail_on_leak=True
    )
    assert empty.leaks == Leaks(0, 0)


# --fail_on_leak and --fail_on_repeats.


def test_fail_on_leak_finishes_nothing_and_the_build_goes_on_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": f"text {number}"} for number in range(50)]
    files = [write_rows(tmp_path / f"in-{number}.parquet", rows) for number in range(2)]
    output = tmp_path / "out"
    command = ["build", f"--input={tmp_path}/in-*.parquet", f"--output={output}"]
    command += ["--test_fraction=0.3", "--split_key=row", "--shard_tokens=100"]
    assert main([*command, "--fail_on_leak"]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert not (output / "metadata/manifest.json").exists()
    leaks = expected_leaks(sides_of([rows, rows], "--split_key=row"))
    has = f"{leaks.test_documents} test documents have the same text as {leaks.train_documents}"
    assert said.startswith(f"fineshards: {has} train documents, such as row ")
    assert "--split_key text and --overwrite" in said
    # The example is a row of one file, and the same row of the other one.
    words = said.partition("such as row ")[2].split()
    (first, second) = ((words[0], words[2]), (words[6], words[8]))
    assert first[0] == second[0]
    assert {first[1], second[1]} == {file.name for file in files}
    for (row, path), split in ((first, "test"), (second, "train")):
        assert side_of(f"{path[-9]}:{row}", "0.3") == split

    before = {path: path.stat().st_mtime_ns for path in output.rglob("*.npy")}
    assert main(command) == 0
    assert before == {path: path.stat().st_mtime_ns for path in output.rglob("*.npy")} != {}
    assert "warning: " in capsys.readouterr().out
    # A finished dataset does not pass either.
    assert main([*command, "--fail_on_leak"]) == 1
    assert f" is finished, but {has}" in capsys.readouterr().err
    assert main(["inspect", str(output)]) == 0
    assert f"  leaks      {has}" in capsys.readouterr().out


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
    assert f"of {again.name} and row " in said
    assert f"of {first.name}, so the append is not finished (--fail_on_repeats)." in said
    assert (output / "metadata/manifest.json").read_bytes() == before
    assert fineshards.verify(output).problems == []
    # The same command without it finishes, and then with it fails again.
    assert main(arguments) == 0
    assert published_files(output) == published_files(plain)
    assert main([*arguments, "--fail_on_repeats"]) == 1
    assert "is finished, but 2 of 3 new documents" in capsys.readouterr().err
    with pytest.raises(UsageError, match="goes with --append"):
        fineshards.build(input=first, output=tmp_path / "other", fail_on_repeats=True)


# Verify.


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    build(
        tmp_path / "out",
        write_rows(tmp_path / "0.parquet", ROWS[:60]),
        *("--test_fraction=0.3", "--split_key=row", "--shard_tokens=100000"),
    )
    append(tmp_path / "out", write_rows(tmp_path / "1.parquet", ROWS[30:]))
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (
            {"leaks": {"test_documents": 1, "train_documents": 1}},
            "by the hashes in the document tables: the number of test documents with a ",
        ),
        ({"repeats": 3}, "the number of new documents with the text of an earlier one is"),
    ],
)
def test_verify_finds_other_counts(dataset: Path, edit: dict[str, Any], problem: str) -> None:
    edit_manifest(dataset, lambda content: content.update(edit))
    shutil.copy(dataset / "metadata/manifest.json", dataset / "metadata/generations/0002.json")
    assert any(problem in found for found in fineshards.verify(dataset).problems)


def test_a_manifest_without_its_counts_of_leaks_is_refused(dataset: Path) -> None:
    edit_manifest(dataset, lambda content: content.update(leaks=None))
    with pytest.raises(OutputError, match="it counts leaks where there can be none"):
        fineshards.verify(dataset)


def test_verify_finds_a_text_hash_that_is_not_of_the_text(dataset: Path) -> None:
    in_test = pq.read_table(dataset / "metadata/documents/test_0000.parquet")["text_hash"]

    def edit(columns: dict[str, list[Any]]) -> None:
        # A text that occurs once, so that the counts stay the same.
        found = Counter(columns["text_hash"] + in_test.to_pylist())
        once = [number for number, text in enumerate(columns["text_hash"]) if found[text] == 1]
        columns["text_hash"][once[0]] ^= 1

    edit_table(dataset, "train/train_0000.npy", edit)
    shutil.copy(dataset / "metadata/manifest.json", dataset / "metadata/generations/0002.json")
    assert fineshards.verify(dataset).ok
    (problem,) = fineshards.verify(dataset, sample=100).problems
    assert "its text_hash differs" in problem
