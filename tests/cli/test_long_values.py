"""Messages show a line of a value that a record or an option has, however long it is."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.damage import sealed
from support.made_up_job import JOB, SETTINGS
from support.numbered_samples import Numbers

from fineshards.config import BuildConfig
from fineshards.errors import OutputError, UsageError
from fineshards.exports.export_options import ExportOptions
from fineshards.exports.record import Export
from fineshards.loader.batch_loader import BatchLoader
from fineshards.shards.job.job import Job
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import describe_state
from fineshards.shards.job.settings import RecipeRecord, StepRecord
from fineshards.storage.open import open_storage

LONG = "x" * 10**6
TOKENIZER = SETTINGS.tokenizer
COLUMNS = SETTINGS.columns
FILE, *OTHERS = JOB.files


def recipe(name: str, parameter: str, pin: str) -> RecipeRecord:
    return RecipeRecord((StepRecord.of(name, {"sql": parameter}, 1, {"model": pin}, False),), "")


@pytest.mark.parametrize(
    "other",
    [
        replace(JOB, settings=replace(SETTINGS, tokenizer=replace(TOKENIZER, pattern=LONG))),
        replace(JOB, settings=replace(SETTINGS, columns=replace(COLUMNS, text=LONG))),
        replace(JOB, settings=replace(SETTINGS, columns=replace(COLUMNS, others=("x",) * 10**6))),
        replace(JOB, files=(replace(FILE, name=f"/{LONG}"), *OTHERS)),
        replace(JOB, files=(replace(FILE, extraction=LONG), *OTHERS)),
        replace(JOB, files=(replace(FILE, identity=f"etag:{LONG}"), *OTHERS)),
    ],
)
def test_a_job_that_differs_in_a_long_value(other: Job) -> None:
    assert 20 < len("; ".join(JOB.differences(other))) < 2_500
    assert 20 < len("; ".join(other.differences(JOB))) < 2_500


@pytest.mark.parametrize("one", [recipe(LONG, "a", "b"), recipe("where", LONG, LONG)])
def test_a_recipe_that_differs_in_a_long_value(one: RecipeRecord) -> None:
    other = recipe("where", "a", "b")
    assert 20 < len("; ".join(one.differences(other))) < 2_500


def test_long_values_are_shown_where_they_differ() -> None:
    one, other = f"{LONG}one{LONG}", f"{LONG}other{LONG}"
    tokenizers = (replace(TOKENIZER, pattern=pattern) for pattern in (one, other))
    was, now = (replace(SETTINGS, tokenizer=tokenizer) for tokenizer in tokenizers)
    (found,) = was.differences(now)
    assert "xone" in found
    assert "xother" in found
    assert len(found) < 250
    (found,) = was.differences(replace(was, tokenizer=replace(now.tokenizer, pattern="one")))
    assert found.endswith("now 'one'")
    saved = BatchLoader(Numbers(9, 0, one), 3).state_dict()
    with pytest.raises(UsageError, match=r"xone.*xother") as refused:
        BatchLoader(Numbers(9, 0, other), 3).load_state_dict(saved)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("value", ["9" * 10**5, "9" * 10**6, "\u00b2", "9" * 24])
def test_a_time_that_no_file_has(value: str) -> None:
    assert describe_state(1, f"mtime:{value}").startswith("1 bytes and mtime:")


@pytest.mark.parametrize(
    "refuse",
    [
        lambda: BuildConfig(input="in", output="out", split_key=LONG),
        lambda: BuildConfig(input="in", output="out", test_fraction=LONG),
        lambda: BuildConfig(input="in", output="out", max_bad_rows=LONG),
        lambda: BuildConfig(input="in", output="out", shard_tokens=LONG),  # type: ignore[arg-type]
        lambda: ExportOptions("a", "b", "raw", split=LONG),
        lambda: ExportOptions("a", "b", "raw", sequence_length=LONG),  # type: ignore[arg-type]
        lambda: BatchLoader(Numbers(9), 3).load_state_dict({LONG: LONG}),
        lambda: BatchLoader(Numbers(9), 3).load_state_dict({"batch_size": 3, "seed": LONG}),
    ],
)
def test_an_option_that_is_long(refuse: Callable[[], Any]) -> None:
    with pytest.raises(UsageError) as refused:
        refuse()
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "content",
    [
        b"\xff" + LONG.encode(),
        sealed({"format": LONG}),
        sealed({"format": "fineshards manifest 4", LONG: 1}),
    ],
)
def test_a_record_that_holds_something_else(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "export.json").write_bytes(content)
    for parse in (
        lambda: Job.parse(content, "job.json"),
        lambda: Manifest.parse(content, "manifest.json"),
        lambda: Export.load(open_storage(str(tmp_path))),
    ):
        with pytest.raises(OutputError) as refused:
            parse()
        assert len(str(refused.value)) < 2_500


def test_a_field_of_a_job_record_that_is_long() -> None:
    content = json.loads(JOB.to_bytes())
    del content["crc32c"]
    for place, name in ((content["settings"]["tokenizer"], "kind"), (content["settings"], "dtype")):
        kept, place[name] = place[name], LONG
        with pytest.raises(OutputError, match="Expected `str` matching regex") as refused:
            Job.parse(sealed(content), "job.json")
        assert len(str(refused.value)) < 500
        place[name] = kept
