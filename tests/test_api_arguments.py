"""What the public functions take, and how they refuse the rest."""

import json
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

import fineshards
from fineshards import TokenDataset
from fineshards.config import BuildConfig
from fineshards.errors import UsageError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input": "a", "dataset": "b", "output": "out"}, "--input or --dataset"),
        ({"input": "a", "output": "out", "shard_tokens": 1e6}, "whole number, got 1000000.0"),
        ({"input": "a", "output": "out", "shard_tokens": True}, "whole number, got True"),
        ({"input": "a", "output": "out", "shard_tokens": None}, "whole number, got None"),
        ({"input": "a", "output": None}, "--output"),
        ({"input": 5, "output": "out"}, "--input"),
        ({"input": "a", "output": "out", "tokenizer": None}, "--tokenizer must be text or a path"),
        ({"input": "a", "output": "out", "text_column": None}, "--text_column must be text"),
        ({"input": "a", "output": "out", "beam_args": "--x=1"}, "must be a list such as ['--x=1']"),
        ({"input": "a", "output": "out", "beam_args": ["--test_shard=1"]}, "--test_shard"),
        ({"input": "a", "output": Path("gs://b/x")}, "A Path drops one slash"),
        ({"input": "a", "output": "out", "test_fraction": "1e9999999"}, "got '1e9999999'"),
        ({"input": "a", "output": "out", "test_fraction": "1E-9_999_999"}, "such as 0.1"),
        ({"input": "a", "output": "out", "test_fraction": Decimal("1e9999999")}, "such as 0.1"),
        (
            {"input": "a", "output": "s3://b/o", "shard_tokens": 1_342_177_249},
            "at most 5 GiB, 1,34",
        ),
        ({"input": "a", "output": "out", "overwrite": "no"}, "--overwrite must be True or False"),
    ],
)
def test_a_wrong_option_is_refused_with_one_sentence(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        fineshards.build(**options)
    assert message in str(refused.value)


@pytest.mark.parametrize("function", ["build", "estimate", "recipe_check"])
def test_an_unknown_option_is_named_and_the_right_one_suggested(function: str) -> None:
    with pytest.raises(TypeError, match=rf"{function} has no option 'inptu'\. Did you mean input"):
        getattr(fineshards, function)(inptu="a", output="b")


def test_an_unknown_option_of_an_append_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"append has no option 'inputs'\. Did you mean input"):
        fineshards.append(tmp_path, inputs="a")
    with pytest.raises(TypeError, match=r"by name: build\(input="):
        fineshards.build("a")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("function", "options"),
    [
        *((name, {}) for name in ("verify", "status", "stats", "report", "publish", "repair")),
        ("redact", {"documents": 1}),
        ("find", {"token": 1}),
        ("explain", {"document": 1}),
        ("export", {"output": "out", "to": "olmo"}),
    ],
)
def test_what_is_no_folder_is_refused(function: str, options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="the folder is 3; give a path"):
        getattr(fineshards, function)(3, **options)


@pytest.mark.parametrize("option", ["limit", "share", "append", "beam_args"])
def test_what_an_estimate_does_not_count_is_refused(option: str) -> None:
    with pytest.raises(TypeError, match=f"estimate does not take '{option}'"):
        fineshards.estimate(input="a", **{option: "b"})


@pytest.mark.long
def test_an_id_is_one_id_and_not_its_letters(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    lines = [json.dumps({"id": str(n), "text": f"text {n}"}) for n in range(15)]
    source.write_text("\n".join(lines))
    out = tmp_path / "out"
    manifest = fineshards.build(input=source, output=out, test_fraction=0)
    assert "1 shard, 15 documents" in repr(manifest)
    for wrong, said in (
        ({"ids": [12]}, "12 is not an id: give ids as text"),
        ({"ids": 12}, "12 is not an id"),
        ({"documents": ["5"]}, "documents is '5'; give an integer"),
        ({"documents": "5"}, "documents is '5'"),
        ({"documents": True}, "documents is True"),
        ({}, "give the ids or the numbers"),
    ):
        with pytest.raises(UsageError, match=said):
            fineshards.redact(out, **wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--id is 3; give text"):
        fineshards.find(out, id=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--token is 'a'; give an integer"):
        fineshards.find(out, token="a")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"--date_published is datetime\.date.*; give text"):
        fineshards.publish(out, date_published=date(2026, 11, 30))  # type: ignore[arg-type]
    assert fineshards.redact(out, "12").documents == 1
    assert fineshards.redact(out, documents=np.int64(3)).documents == 1
    texts = [each.text for each in TokenDataset(out, sequence_length=8).all_documents()]
    assert texts == ["" if n in (3, 12) else f"text {n}" for n in range(15)]
    assert fineshards.verify(out)
    (out / "train/train_0000.npy").write_bytes(b"")
    assert not fineshards.verify(out)


def test_fractions_that_are_the_same_are_one_job() -> None:
    given = [0.01, "0.01", "0.010", "1/100", np.float64(0.01), Decimal("0.01"), None]
    assert {BuildConfig(input="a", output="b", test_fraction=f).test_share for f in given} == {
        "1/100"
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test_shards": 1, "split_key": "id"}, "--split_key and --test_shards exclude"),
        ({"split_key": "url"}, "must be text, id, host, row or column:NAME, got 'url'"),
        ({"split_key": "column:"}, "must be text, id, host, row or column:NAME"),
        ({"split_key": 1}, "must be text"),
        ({"test_fraction": 1e-10}, "must be 0 or at least 1/4294967296"),
    ],
)
def test_a_split_that_cannot_be_meant_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BuildConfig(input="a", output="b", **options)


def test_a_config_can_be_changed_and_takes_integers_of_numpy() -> None:
    config = BuildConfig(input=None, dataset="a", output="b", shard_tokens=np.int64(7))
    assert type(config.shard_tokens) is int
    assert replace(config, test_shards=2) == BuildConfig(
        dataset="a", output="b", shard_tokens=7, test_shards=2
    )


def test_a_source_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing\*.parquet: no file matches"):
        fineshards.build(input=tmp_path / "nothing*.parquet", output=tmp_path / "out")


@pytest.mark.parametrize("digits", [41, 3000])
def test_a_fraction_that_no_record_holds_is_refused_at_launch(
    sample: Path, tmp_path: Path, digits: int
) -> None:
    with pytest.raises(UsageError, match="has more than 40 digits above or below the line"):
        fineshards.build(input=sample, output=tmp_path / "out", test_fraction="0." + "3" * digits)
    assert not (tmp_path / "out").exists()
