"""Splits by document: the rule, builds against a plain oracle, and what verify proves."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from support.build_here import build_here
from support.damage import edit_table
from support.growing import KEYS, Row, made_up_rows, write_rows
from support.oracle import (
    ENCODING,
    joined,
    oracle_by_document,
    shards_in,
    side_of,
    split_shards,
)
from support.sentences import refused

import fineshards
from fineshards import TokenDataset
from fineshards.cli.cli import main
from fineshards.errors import InputError, UsageError
from fineshards.shards.split_hash import SEED, hash_keys, host_names
from fineshards.shards.split_rule import ByFraction

# The rule: a hash of the key's bytes.


def test_the_hash_is_xxh3_with_the_documented_seed() -> None:
    # The value of the reference implementation for no bytes, with the seed 0.
    assert xxhash.xxh3_64_intdigest(b"") == 0x2D06800538D394C2
    assert SEED.to_bytes(8, "big") == b"fs-split"
    rows = np.arange(4)
    keys = pa.array(["", "text", None, "Grüße"])
    # As in docs/growing.md.
    assert hash_keys(keys, rows * 0 + 3, rows).tolist() == GOLDEN
    assert hash_keys(None, rows * 0 + 3, rows)[2] == GOLDEN[2], "the row key is 3:2"


GOLDEN = [1529064891, 2402446600, 1184310523, 1605682217]

texts = st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=9))


@given(
    texts, st.sampled_from([pa.string(), pa.large_string()]), st.integers(0, 5), st.integers(0, 999)
)
def test_the_hash_of_a_document_depends_on_its_key_alone(
    keys: list[str | None], kind: pa.DataType, first: int, seed: int
) -> None:
    rows = np.arange(len(keys)) + seed
    array = pa.array(keys, kind)
    files = np.full(len(keys), 7)
    expected = [
        xxhash.xxh3_64_intdigest((key if key is not None else f"7:{row}").encode(), SEED) >> 32
        for key, row in zip(keys, rows.tolist(), strict=True)
    ]
    assert hash_keys(array, files, rows).tolist() == expected
    # Also of a part of an array.
    assert hash_keys(array[first:], files[first:], rows[first:]).tolist() == expected[first:]


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://example.com/a", "example.com"),
        ("HTTPS://WWW.Example.COM", "www.example.com"),
        ("http://me:secret@example.com:8080/a@b:c", "example.com"),
        ("https://example.com?q=http://other.org/", "example.com"),
        ("https://example.com#a", "example.com"),
        ("ftp://example.com.:21/", "example.com."),
        ("http://[2001:DB8::1]:80/", "[2001:db8::1]"),
        ("https://bücher.example/", "bücher.example"),
        ("https://ÄRGER.example/", "Ärger.example"),
        ("example.com/a", None),
        ("//example.com/a", None),
        ("https:///a", None),
        ("https://user@/a", None),
        ("mailto:someone@example.com", None),
        ("", None),
        (None, None),
    ],
)
def test_the_host_of_a_url(url: str | None, host: str | None) -> None:
    found = host_names(pa.array([url, "http://other/"], pa.string())).to_pylist()
    assert found == [host and host.encode(), b"other"]


@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_a_larger_fraction_only_adds_test_documents(first: int, second: int) -> None:
    hashes = hash_keys(None, np.zeros(200, np.int64), np.arange(200))
    small, large = (
        ByFraction(str(Fraction(number, 2**32)), "row", 1).in_test(hashes)
        for number in sorted((first, second))
    )
    assert not np.any(small & ~large)


# Builds.


def write_parquet(path: Path, rows: list[Row]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=17)


NO_HOST = {"text": "a page", "id": "no host", "url": "none", "group": None}
FILES = [[*made_up_rows(1, 90), NO_HOST], made_up_rows(2, 40), made_up_rows(3, 1)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("ending", "key", "fraction", "shard_tokens", "block_bytes"),
    [
        (".parquet", "text", "0.3", 100, 1),
        (".jsonl.gz", "text", "1/3", 7_000, 10**9),
        (".parquet", "id", "0.5", 333, 2_000),
        (".jsonl.gz", "id", "0.2", 50, 1),
        (".parquet", "host", "0.5", 64, 5_000),
        (".parquet", "row", "0.05", 5_000, 1),
        (".parquet", "column:group", "0.4", 1_000, 3_000),
        (".jsonl.gz", "column:group", "0.4", 1_000, 1),
    ],
)
def test_a_build_is_the_oracle_and_is_verified(
    tmp_path: Path, ending: str, key: str, fraction: str, shard_tokens: int, block_bytes: int
) -> None:
    for number, rows in enumerate(FILES):
        write_rows(tmp_path / f"{number}{ending}", rows)
    manifest = build_here(
        input=tmp_path / f"*{ending}",
        output=tmp_path / "out",
        test_fraction=fraction,
        split_key=key,
        shard_tokens=shard_tokens,
        block_bytes=block_bytes,
    )
    expected = oracle_by_document(FILES, shard_tokens, fraction, KEYS[key])
    assert shards_in(tmp_path / "out") == expected
    assert {name.partition("/")[0] for name in expected} == {"test", "train"}
    verdict = fineshards.verify(tmp_path / "out", sample=100)
    assert (verdict.problems, verdict.sampled) == ([], manifest.totals["documents"])
    assert manifest.splits["test"]["documents"] == sum(
        side_of(found if (found := KEYS[key](row)) is not None else f"{file}:{number}", fraction)
        == "test"
        for file, rows in enumerate(FILES)
        for number, row in enumerate(rows)
        if row["text"] is not None
    )


def texts_left(seen: set[str], rows: list[Row], dedup: str | None) -> list[str]:
    texts = [row["text"] for row in rows if row["text"] is not None]
    return [text for text in texts if not (dedup and (text in seen or seen.add(text)))]


@pytest.mark.parametrize(("block_bytes", "dedup"), [(1, None), (4_000, "exact"), (10**9, None)])
def test_the_documents_of_test_files_are_test(
    tmp_path: Path, block_bytes: int, dedup: str | None
) -> None:
    for number, rows in enumerate(FILES):
        write_parquet(tmp_path / f"{number}.parquet", rows)
    manifest = build_here(
        input=[tmp_path / "0.parquet", tmp_path / "2.parquet"],
        test_input=tmp_path / "1.parquet",
        output=tmp_path / "out",
        shard_tokens=100,
        block_bytes=block_bytes,
        dedup=dedup,
        keep_keys=dedup is not None,
    )
    test = texts_left(set(), FILES[1], None)
    seen = set(test)
    train = [text for rows in (FILES[0], FILES[2]) for text in texts_left(seen, rows, dedup)]
    made: list[dict[str, bytes]] = []

    def check(test: list[str], train: list[str]) -> None:
        made.append(split_shards(100, test, train))
        assert shards_in(tmp_path / "out") == joined(made)
        assert fineshards.verify(tmp_path / "out", sample=100).ok

    check(test, train)
    leaked = [sum(text in train for text in test), sum(text in test for text in train)]
    assert [manifest.leaks.test_documents, manifest.leaks.train_documents] == leaked
    assert (leaked == [0, 0]) is (dedup is not None)
    more = made_up_rows(4, 30)
    write_parquet(tmp_path / "more.parquet", more)
    build_here(input=tmp_path / "more.parquet", output=tmp_path / "out", append=True)
    check([], texts_left(seen, more, dedup))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"test_fraction": 0.1}, "--test_fraction and --test_input exclude each other"),
        ({"test_shards": 1}, "--test_shards and --test_input exclude each other"),
        ({"split_key": "row"}, "--split_key and --test_input exclude each other"),
        ({"append": True, "curate_test": True}, "--curate_test is the dataset's own, and an"),
        ({"test_input": "nothing*.jsonl"}, "--test_input nothing*.jsonl: no file matches"),
        ({"test_input": "link.parquet"}, "matched twice, by --test_input link.parquet and --input"),
    ],
)
def test_test_files_that_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.parquet", "b.parquet"):
        write_parquet(tmp_path / name, [{"text": name}])
    (tmp_path / "link.parquet").symlink_to("a.parquet")
    options = {"input": "a.parquet", "test_input": "b.parquet", "output": "out"} | given
    assert reason in refused(lambda: build_here(**options))
    assert not (tmp_path / "out").exists()


def texts_of(folder: Path, split: str) -> set[str]:
    tokens = [np.load(path) for path in sorted((folder / split).glob("*.npy"))]
    return set(ENCODING.decode(np.concatenate(tokens).tolist()).split("<|endoftext|>")[1:])


def test_exact_duplicates_are_in_one_split(tmp_path: Path) -> None:
    rows = [{"text": f"text {number % 40}"} for number in range(400)]
    write_parquet(tmp_path / "in.parquet", rows)
    by_key = {}
    for key in ("text", "row"):
        output = tmp_path / key
        build_here(
            input=tmp_path / "in.parquet",
            output=output,
            test_fraction=0.5,
            split_key=key,
            shard_tokens=50,
        )
        by_key[key] = texts_of(output, "test"), texts_of(output, "train")
        assert len(by_key[key][0] | by_key[key][1]) == 40
    assert not by_key["text"][0] & by_key["text"][1]
    assert by_key["row"][0] & by_key["row"][1], "otherwise the test above could not fail"


@pytest.mark.parametrize(
    ("flags", "empty", "why"),
    [
        (["--test_fraction=0"], "test", "--test_fraction 0 --split_key text chose none of"),
        (["--test_fraction=1"], "train", "--test_fraction 1 --split_key text chose all documents"),
        (["--test_fraction=1e-9"], "test", "--test_fraction 1e-09 --split_key text chose none of"),
        (["--test_shards=0"], "test", "--test_shards 0 chose none of the shards"),
        (["--test_shards=9"], "train", "--test_shards 9 chose all shards"),
    ],
)
def test_an_empty_split_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], empty: str, why: str
) -> None:
    write_parquet(tmp_path / "in.parquet", [{"text": "one two three"}, {"text": "four"}])
    output = tmp_path / "out"
    given = [f"--input={tmp_path / 'in.parquet'}", f"--output={output}"]
    assert main(["build", *given, *flags]) == 0
    printed = capsys.readouterr().out
    assert f"\n  {empty:<10} 0 documents (0.00 %), 0 tokens (0.00 %), 0 shards\n" in printed
    assert "2 documents (100.00 %), " in printed
    is_asked_for = flags[0] in ("--test_fraction=0", "--test_fraction=1", "--test_shards=0")
    assert (f"\nthe {empty} split is empty: {why}" in printed) != is_asked_for
    assert {name.partition("/")[0] for name in shards_in(output)} == {"test", "train"} - {empty}
    assert main(["verify", str(output), "--sample=100%"]) == 0
    with pytest.raises(UsageError, match=f"the {empty} split is empty, because {why}"):
        TokenDataset(output, empty, sequence_length=2)


def test_validation_is_another_name_for_test(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", [{"text": f"some words {n}"} for n in range(50)])
    build_here(
        input=tmp_path / "in.parquet", output=tmp_path / "out", test_fraction=0.5, shard_tokens=40
    )
    datasets = [
        TokenDataset(tmp_path / "out", split, sequence_length=8)
        for split in ("test", "val", "validation")
    ]
    assert len({dataset.fingerprint for dataset in datasets}) == 1
    assert all(np.array_equal(each[3], datasets[0][3]) for each in datasets)
    # Documents keep their numbers in the whole dataset: train documents follow the test ones.
    train = TokenDataset(tmp_path / "out", sequence_length=8)
    tables = [pq.read_table(path) for path in sorted((tmp_path / "out/metadata").rglob("test*.p*"))]
    last = max(table["document"][-1].as_py() for table in tables)
    assert train.documents(0)[0].number == last + 1
    assert train.documents(0)[0].position == 0


@pytest.mark.parametrize("ending", [".parquet", ".jsonl.gz"])
@pytest.mark.parametrize(("key", "column"), [("id", "id"), ("host", "url"), ("column:x", "x")])
def test_a_file_without_the_column_of_the_key_is_refused(
    tmp_path: Path, ending: str, key: str, column: str
) -> None:
    write = write_parquet if ending == ".parquet" else write_rows
    write(tmp_path / f"in{ending}", [{"text": "a"}])
    with pytest.raises(InputError, match=f"has no (column|field) '{column}'.*--(split_key|id_col)"):
        build_here(input=tmp_path / f"in{ending}", output=tmp_path / "out", split_key=key)


# Verify.


OTHER_SIDE = "has documents of the other split, by their split_hash"


def damaged(tmp_path: Path, key: str, shard: str, change: Callable[[int], int]) -> list[str]:
    """What verify finds if one split hash of a shard's table is changed."""
    write_parquet(tmp_path / "in.parquet", made_up_rows(5, 80))
    output = tmp_path / "out"
    build_here(
        input=tmp_path / "in.parquet",
        output=output,
        test_fraction=0.5,
        split_key=key,
        shard_tokens=10**6,
    )

    def edit(columns: dict[str, list[Any]]) -> None:
        columns["split_hash"][4] = change(columns["split_hash"][4])

    edit_table(output, shard, edit)
    return fineshards.verify(output, sample=100).problems


def test_a_split_hash_of_the_other_side_is_found(tmp_path: Path) -> None:
    problems = damaged(tmp_path, "text", "test/test_0000.npy", lambda found: found + 2**31)
    assert f"metadata/documents/test_0000.parquet {OTHER_SIDE}" in problems


@pytest.mark.parametrize("key", ["text", "id", "row"])
def test_a_split_hash_of_the_same_side_is_found(tmp_path: Path, key: str) -> None:
    problems = damaged(tmp_path, key, "train/train_0000.npy", lambda found: found ^ 1)
    assert any("its split_hash differs from that of" in problem for problem in problems), problems


def test_a_document_on_the_other_side_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dataset that is consistent but for one document, which a wrong build put into test."""
    # One row group, so that one record batch has all rows.
    pq.write_table(pa.Table.from_pylist(made_up_rows(5, 80)), tmp_path / "in.parquet")
    right = ByFraction.in_test

    def wrong(rule: ByFraction, hashes: np.ndarray) -> np.ndarray:
        found = right(rule, hashes)
        found[np.flatnonzero(~found)[:1]] = True
        return found

    with monkeypatch.context() as patch:
        patch.setattr(ByFraction, "in_test", wrong)
        flags = ["--test_fraction=0.1", "--shard_tokens=1000000"]
        assert (
            main(["build", f"--input={tmp_path}/in.parquet", f"--output={tmp_path}/out", *flags])
            == 0
        )
    (problem,) = fineshards.verify(tmp_path / "out").problems
    assert problem == f"metadata/documents/test_0000.parquet {OTHER_SIDE}"
