"""Large files that cannot be split are named when a build is launched."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from fineshards.config import BuildConfig
from fineshards.pipeline.input_files import warn_of_long_files
from fineshards.pipeline.launch import prepare
from fineshards.shards.job.records import SourceFile

GB = 10**9


def test_a_launch_names_the_file_and_the_time_of_one_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "Hello."}\n')
    with source.open("r+b") as file:
        file.truncate(50 * GB)  # a sparse file: it takes no room, and a launch reads its head only
    with caplog.at_level(logging.WARNING, "fineshards"):
        prepare(BuildConfig(input=source, output=tmp_path / "out"))
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.startswith(f"{source} (50 GB) cannot be split: one worker")
    assert "for about 15 min or longer" in message


@pytest.mark.parametrize(
    ("format_", "compression", "gigabytes", "words"),
    [
        ("jsonl", "zstd", 50, "for about 58 min"),
        ("csv", "gzip", 12, "for about 11 min"),
        ("jsonl", "zstd", 5, None),
        ("parquet", "none", 500, None),
        ("arrow", "none", 500, None),
    ],
)
def test_only_what_takes_ten_minutes_is_named(
    format_: str,
    compression: str,
    gigabytes: int,
    words: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = [
        SourceFile(n, f"gs://b/{n}", gigabytes * GB + n, "v", format_, compression) for n in (0, 1)
    ]
    with caplog.at_level(logging.WARNING, "fineshards"):
        warn_of_long_files(files)
    assert len(caplog.records) == (words is not None)
    if words is not None:
        assert "gs://b/1 (" in caplog.text
        assert "and 1 other file cannot be split" in caplog.text
        assert words in caplog.text
