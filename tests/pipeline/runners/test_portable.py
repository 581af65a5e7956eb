"""Runners with a job service, tested with Beam's own service in this process.

Real engines are in test_engines.py.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.oracle import oracle, read_texts, shards_in

from fineshards.cli.options import add_build_flags, parse_build_flags
from fineshards.config import BuildConfig
from fineshards.errors import UsageError
from fineshards.parser import Parser
from fineshards.pipeline.runners.choice import check_beam_args, runs_here

Build = Callable[..., int]
EMBEDDED = ["--runner=PortableRunner", "--job_endpoint=embed", "--environment_type=LOOPBACK"]


def parse(*flags: str) -> BuildConfig:
    parser = Parser()
    add_build_flags(parser)
    return parse_build_flags(parser, ["--input=in", "--output=out", *flags])


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("runner", ["FlinkRunner", "flink", "SparkRunner", "PortableRunner"])
def test_flags_of_a_job_service_are_left_to_it(runner: str) -> None:
    flags = (f"--runner={runner}", "--object_reuse", "--savepoint_path=x")
    config = parse(*flags)
    check_beam_args(config)
    assert config.beam_args == flags
    assert not runs_here(config)


@pytest.mark.parametrize("runner", [None, "DirectRunner", "direct", "PrismRunner", "Dataflow"])
def test_an_unknown_flag_is_refused_by_runners_without_a_job_service(runner: str | None) -> None:
    flags = [f"--runner={runner}"] if runner else []
    with pytest.raises(UsageError, match="unknown flag --object_reuse"):
        check_beam_args(parse(*flags, "--object_reuse"))


@pytest.mark.parametrize("runner", ["DirectRunner", "direct", "FnApiRunner", "fnapi"])
def test_local_runners_are_recognized_by_every_name_that_beam_takes(runner: str) -> None:
    assert runs_here(parse(f"--runner={runner}"))


def test_a_job_service_gives_the_same_bytes(build: Build, sample: Path, tmp_path: Path) -> None:
    assert build(sample, tmp_path, "--shard_tokens=50000", "--test_shards=1", *EMBEDDED) == 0
    assert shards_in(tmp_path) == oracle(read_texts(sample), 50_000, test_shards=1)


def test_a_flag_that_the_job_service_does_not_describe_is_refused(
    build: Build, sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(sample, tmp_path, *EMBEDDED, "--test_shard=1") == 2
    assert last_line(capsys).startswith("fineshards: unknown flag --test_shard: ")
    assert not shards_in(tmp_path)


@pytest.mark.long
def test_an_error_of_a_worker_in_this_process_ends_with_its_sentence(
    fineshards: Callable[..., object], tmp_path: Path
) -> None:
    source = tmp_path / "bad.jsonl"
    source.write_text('{"text": "good"}\n{"text": 1}\n')
    done = fineshards("build", f"--input={source}", f"--output={tmp_path}/out", *EMBEDDED)
    assert done.returncode == 1
    # Beam's own workers print tracebacks before it.
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("fineshards:")]
    assert sentence == done.stderr.splitlines()[-1]
    assert f"{source}, line 2, row 1: " in sentence


@pytest.mark.long
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            ["--runner=PortableRunner", "--job_endpoint=localhost:1", "--job_server_timeout=1"],
            "PortableRunner has no job service: localhost:1 does not answer within 1 s. Give the ",
        ),
        (["--runner=PortableRunner"], "PortableRunner has no job service: You must specify a --jo"),
        (
            ["--runner=FlinkRunner", "--flink_job_server_jar=/missing.jar"],
            'FlinkRunner has no job service: Unable to parse jar URL "/missing.jar". Give the add',
        ),
        (
            ["--runner=spark", "--spark_job_server_jar=http://localhost:1/x.jar"],
            "SparkRunner has no job service: Unable to fetch remote job server jar at http://local",
        ),
        (
            ["--runner=prism", "--prism_location=/missing"],
            'PrismRunner has no job service: Unable to parse binary URL "/missing". Give the addr',
        ),
        (
            [
                *("--runner=flink", "--flink_master=localhost:1", "--flink_submit_uber_jar"),
                f"--flink_job_server_jar={__file__}",
            ],
            "FlinkRunner has no job service: http://localhost:1/v1/jars/upload does not answer. ",
        ),
    ],
)
def test_a_missing_job_service_is_one_sentence(
    build: Build,
    sample: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    expected: str,
) -> None:
    assert build(sample, tmp_path, *flags) == 2
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith(f"fineshards: {expected}")
    assert said.endswith(" --job_endpoint=HOST:PORT. See docs/cloud.md.\n")
    assert "waiting for the job service" in said.splitlines()[0]
    assert len(said.splitlines()) < 8
