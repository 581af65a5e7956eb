"""Two real distributed engines, Prism and Flink: `make test-engines`.

Every dataset is built with the command of docs/cloud.md and compared byte by byte: its shards
with the oracle, all its files with those of a build by the DirectRunner.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.checkout import ROOT, SAMPLE
from support.curated import Steps, write_recipe
from support.engine_downloads import MissingError, flink_jar, prism
from support.flink_cluster import Flink, flink_cluster
from support.oracle import files_in, oracle, read_texts, shards_in

from fineshards.job_status.status import StatusReader
from fineshards.storage.open import open_storage

pytestmark = pytest.mark.engines

COPIES = 6  # of the sample: enough work to interrupt it in the middle
SHARD_TOKENS = 200_000
WINDOWS = 20


@pytest.fixture(scope="session")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files of 5 row groups each."""
    folder = tmp_path_factory.mktemp("input")
    for number in range(COPIES):
        shutil.copy(SAMPLE, folder / f"{number:02d}.parquet")
    return folder


@pytest.fixture(scope="session")
def built(copies: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset as the DirectRunner builds it, its shards those of the oracle."""
    output = tmp_path_factory.mktemp("direct") / "out"
    done = run(build_flags(copies, output, "--runner=DirectRunner"))
    assert done.returncode == 0, done.stderr
    texts = read_texts(*sorted(copies.iterdir()))
    assert shards_in(output) == oracle(texts, SHARD_TOKENS, test_shards=WINDOWS // 10)
    return output


@pytest.fixture(scope="session")
def direct(built: Path) -> dict[str, bytes]:
    """All files of that dataset."""
    return files_in(built)


@pytest.fixture(scope="session")
def with_prism() -> list[str]:
    """The flags that submit a job to Prism."""
    try:
        return ["--runner=PrismRunner", f"--prism_location={prism()}"]
    except MissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def jar() -> Path:
    try:
        return flink_jar()
    except MissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def flink(jar: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flink]:
    """A cluster with two slots."""
    with flink_cluster(jar, tmp_path_factory.mktemp("flink")) as cluster:
        yield cluster


@pytest.fixture
def with_flink(flink: Flink) -> list[str]:
    """The flags that submit a job to the cluster through its job server."""
    return [
        *("--runner=PortableRunner", f"--job_endpoint={flink.job_endpoint}"),
        *("--environment_type=EXTERNAL", f"--environment_config={flink.workers}"),
        "--parallelism=2",
    ]


def build_flags(source: Path, output: Path, *flags: str) -> list[str]:
    arguments = ["build", f"--input={source}/*", f"--output={output}", "--block_bytes=1"]
    split = f"--test_shards={WINDOWS // 10}"
    return [*arguments, f"--shard_tokens={SHARD_TOKENS}", split, *flags]


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fineshards", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_flink_gives_the_same_bytes(
    copies: Path, direct: dict[str, bytes], flink: Flink, jar: Path, tmp_path: Path
) -> None:
    before = len(flink.jobs())
    flags = [
        *("--runner=FlinkRunner", f"--flink_master={flink.master}"),
        *(f"--flink_job_server_jar={jar}", "--parallelism=2", "--object_reuse"),
        *("--environment_type=EXTERNAL", f"--environment_config={flink.workers}"),
    ]
    done = run(build_flags(copies, tmp_path / "out", *flags))
    assert done.returncode == 0, done.stderr
    assert files_in(tmp_path / "out") == direct
    assert [job["state"] for job in flink.jobs()[before:]] == ["FINISHED"]


def test_flink_continues_when_a_worker_is_killed(
    copies: Path, direct: dict[str, bytes], flink: Flink, with_flink: list[str], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    slow = "--tokenizer_engine=tiktoken"
    assert run(build_flags(copies, tmp_path / "direct", slow)).returncode == 0
    flags = build_flags(copies, output, *with_flink, slow, "--keep_checkpoints")
    flags.append("--sdk_worker_parallelism=2")
    command = [sys.executable, "-m", "fineshards", *flags]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as job:
        wait_for_blocks(output, job, 3)
        # Flink passes blocks on while the footers of other files are still being read.
        reader = StatusReader(open_storage(str(output)))
        while reader.read().stage == "discovering":
            time.sleep(0.02)
        workers = flink.worker_processes()
        assert len(workers) == 2
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        at_the_kill = StatusReader(open_storage(str(output))).read()
        finished = token_blocks(output)
        # The busiest one tokenizes; the other may serve steps that have no more work.
        os.kill(workers[0], signal.SIGKILL)
        os.kill(workers[1], signal.SIGCONT)
        _, errors = job.communicate()
    assert job.returncode == 0, errors
    # The job was in the middle of its work,
    assert at_the_kill.stage == "tokenizing"
    assert 3 <= at_the_kill.of("tokenize").done < at_the_kill.of("tokenize").total == 5 * COPIES
    # the cluster noticed, and did only the work that was not finished,
    assert len(flink.failures(flink.jobs()[-1])) == 1
    assert finished.items() <= token_blocks(output).items()
    # and the dataset shows no trace of it.
    shutil.rmtree(output / "checkpoints")
    assert files_in(output) == files_in(tmp_path / "direct")
    assert shards_in(output).items() <= direct.items()


def test_flink_continues_when_no_one_waits_for_the_job(
    copies: Path, direct: dict[str, bytes], flink: Flink, with_flink: list[str], tmp_path: Path
) -> None:
    flags = build_flags(copies, tmp_path / "out", *with_flink)
    command = [sys.executable, "-m", "fineshards", *flags]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as job:
        wait_for_blocks(tmp_path / "out", job, 1)
        job.send_signal(signal.SIGINT)
        _, errors = job.communicate()
    assert job.returncode == 1
    assert errors.splitlines()[-1].startswith("fineshards: interrupted, but the job continues ")
    while flink.jobs()[-1]["state"] == "RUNNING":
        time.sleep(0.2)
    assert flink.jobs()[-1]["state"] == "FINISHED"
    assert files_in(tmp_path / "out") == direct


@pytest.fixture(scope="session")
def curated(
    copies: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[str], dict[str, bytes]]:
    """The flags of a build with keyed steps of each kind, and its files by the DirectRunner."""
    folder = tmp_path_factory.mktemp("curated")
    steps: Steps = [
        ("exact", {}),
        ("lines", {}),
        ("minhash", {"rule": "components"}),
        ("length", {"min_chars": 300}),
    ]
    recipe = write_recipe(folder / "recipe.toml", steps)
    flags = [f"--recipe={recipe}", "--memory_bytes=200k"]
    done = run(build_flags(copies, folder / "out", *flags))
    assert done.returncode == 0, done.stderr
    return flags, files_in(folder / "out")


@pytest.fixture(params=["with_prism", "with_flink"])
def engine(request: pytest.FixtureRequest) -> list[str]:
    """The flags of each engine."""
    flags: list[str] = request.getfixturevalue(request.param)
    return flags


def test_an_engine_makes_the_same_decisions(
    copies: Path, curated: tuple[list[str], dict[str, bytes]], engine: list[str], tmp_path: Path
) -> None:
    flags, expected = curated
    done = run(build_flags(copies, tmp_path / "out", *flags, *engine))
    assert done.returncode == 0, done.stderr
    assert files_in(tmp_path / "out") == expected


def test_an_export_on_an_engine_gives_the_same_bytes(
    built: Path, engine: list[str], tmp_path: Path
) -> None:
    flags = ["export", str(built), "--to=megatron", f"--tokens_per_file={SHARD_TOKENS}"]
    assert run([*flags, f"--output={tmp_path}/here"]).returncode == 0
    done = run([*flags, f"--output={tmp_path}/there", *engine])
    assert done.returncode == 0, done.stderr
    assert files_in(tmp_path / "there") == files_in(tmp_path / "here")


def test_a_bad_row_ends_in_the_same_sentence(engine: list[str], tmp_path: Path) -> None:
    """Where the steps run in the launching process, Beam's worker prints tracebacks before it."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/bad.jsonl").write_text('{"text": "good"}\n{"text": "bad \\ud800"}\n')
    expected = run(build_flags(tmp_path / "in", tmp_path / "direct"))
    done = run(build_flags(tmp_path / "in", tmp_path / "out", *engine))
    assert (expected.returncode, done.returncode) == (1, 1)
    sentence = expected.stderr.splitlines()[-1]
    assert f"{tmp_path}/in/bad.jsonl, line 2, row 1: is not valid JSON" in sentence
    assert sentence in done.stderr.splitlines()
    assert not (tmp_path / "out/metadata/manifest.json").exists()
    assert "Traceback" not in done.stderr or "--runner=PrismRunner" in engine


def test_a_misspelt_flag_is_refused_on_prism(
    copies: Path, with_prism: list[str], tmp_path: Path
) -> None:
    must_refuse(build_flags(copies, tmp_path / "out", *with_prism, "--test_shard=1"))
    assert not (tmp_path / "out").exists()


def test_a_misspelt_flag_is_refused_when_flink_does_not_know_it(
    copies: Path, flink: Flink, with_flink: list[str], tmp_path: Path
) -> None:
    before = flink.jobs()
    must_refuse(build_flags(copies, tmp_path / "out", *with_flink, "--test_shard=1"))
    assert flink.jobs() == before


def must_refuse(arguments: list[str]) -> None:
    done = run(arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("fineshards: unknown flag --test_shard: ")


def wait_for_blocks(output: Path, job: subprocess.Popen[str], blocks: int) -> None:
    """Returns when this many blocks are finished."""
    while job.poll() is None:
        if len(token_blocks(output)) >= blocks:
            return
        time.sleep(0.02)
    raise AssertionError(f"the job has already ended:\n{job.communicate()[1]}")


def token_blocks(output: Path) -> dict[str, int]:
    """The finished token blocks, and when they were finished."""
    return {
        path.name: path.stat().st_mtime_ns for path in output.glob("checkpoints/*/blocks/*.parquet")
    }
