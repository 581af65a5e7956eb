"""Local work in processes: they all end together, and what ends them is said in one sentence."""

import ast
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.checkout import ROOT
from support.fresh_interpreter import run_program
from support.oracle import oracle, read_texts, shards_in
from support.process_tree import alive, children, start, wait_until

from fineshards.config import BuildConfig
from fineshards.cores import _quotas
from fineshards.job_status.progress_words import describe_pace
from fineshards.job_status.status import status
from fineshards.pipeline.launch import prepare
from fineshards.worker.pool import Pool
from fineshards.worker.tasks import discover_files, finish_block
from fineshards.worker.work import Work

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def long_input(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 blocks, each of which takes a while with the slow engine."""
    table = pq.read_table(sample, columns=["text"])
    path = tmp_path_factory.mktemp("long") / "in.parquet"
    pq.write_table(pa.concat_tables([table] * 24), path, row_group_size=len(table))
    return path


def build_flags(source: Path, output: Path, engine: str = "tiktoken") -> list[str]:
    """engine: the slow one for runs that something happens to; `auto` to finish soon."""
    return [
        *("build", f"--input={source}", f"--output={output}", "--block_bytes=1"),
        *("--shard_tokens=3000000", "--test_shards=1", f"--tokenizer_engine={engine}"),
    ]


def begun(output: Path) -> bool:
    """Whether a block is finished, and others are being made."""
    return any(output.glob("checkpoints/*/blocks/*.json"))


@pytest.fixture(scope="module")
def expected(long_input: Path) -> dict[str, bytes]:
    return oracle(read_texts(long_input), 3_000_000, test_shards=1)


def test_workers_begin_before_anyone_asks_for_their_results(sample: Path, tmp_path: Path) -> None:
    """They tokenize in the order of the input while the launching process imports Beam."""
    config = BuildConfig(input=sample, output=tmp_path, shard_tokens=50_000, block_bytes=1)
    launch = prepare(config)
    work = Work.of(launch.checkpoints, launch.job, config)
    with Pool(work, 1, launch.job.files):
        wait_until(lambda: len(launch.checkpoints.blocks.finished_blocks()) == 5)


def test_footers_that_are_asked_for_again_begin_no_second_list_of_blocks(
    sample: Path, tmp_path: Path
) -> None:
    """A runner may repeat what it has done: `--direct_runner_bundle_repeat` and retries do."""
    config = BuildConfig(input=sample, output=tmp_path, shard_tokens=50_000, block_bytes=1)
    launch = prepare(config)
    work = Work.of(launch.checkpoints, launch.job, config)
    files = launch.job.files
    with Pool(work, 1, files, alone=True) as pool:
        for _ in range(2):
            (discovered,) = pool.results([discover_files(*files)])
            blocks = dict(discovered[0])[files[0]]
        done = list(pool.results([finish_block(files[0], block) for block in blocks]))
    resumed = [resumes for (_, resumes), _ in done]
    assert resumed == [False] * 5
    assert len([*tmp_path.glob("checkpoints/*/shards/*.npy")]) > 1, "tokens are at their places"
    assert not [*tmp_path.glob("checkpoints/*/blocks/*.tokens")]


@pytest.mark.long
def test_a_worker_that_is_killed_is_named_with_its_block_and_its_memory(
    fineshards: Run, long_input: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    job = start(*build_flags(long_input, tmp_path), "--workers=2")
    wait_until(lambda: begun(tmp_path), job)
    workers = children(job.pid)
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    _, errors = job.communicate(timeout=120)
    assert job.returncode == 1, errors
    assert "Traceback" not in errors
    assert re.search(
        rf"fineshards: a worker process was killed by SIGKILL while tokenizing block \d+ of 24 of "
        rf"{long_input} \(from row \d+\); it held 0\.\d\d GB of memory at most\. Most likely the "
        r"machine ran out of memory: use fewer --workers\. Finished work is safe; run the same "
        r"command again to resume\.\n$",
        errors,
    )
    wait_until(lambda: not any(map(alive, workers)))
    done = fineshards(*build_flags(long_input, tmp_path, "auto"))
    assert done.returncode == 0, done.stderr
    assert shards_in(tmp_path) == expected


def test_workers_end_with_a_launching_process_that_is_killed(
    long_input: Path, tmp_path: Path
) -> None:
    job = start(*build_flags(long_input, tmp_path))
    wait_until(lambda: begun(tmp_path), job)
    workers = children(job.pid)
    job.kill()
    job.wait()
    assert workers
    wait_until(lambda: not any(map(alive, workers)))


def test_a_worker_that_a_signal_without_a_name_ends_is_a_sentence(
    long_input: Path, tmp_path: Path
) -> None:
    job = start(*build_flags(long_input, tmp_path), "--workers=1")
    wait_until(lambda: children(job.pid), job)
    os.kill(children(job.pid)[0], signal.SIGRTMIN + 6)
    _, errors = job.communicate(timeout=120)
    assert job.returncode == 1, errors
    assert "Traceback" not in errors
    assert f"a worker process was killed by signal {signal.SIGRTMIN + 6} while " in errors


def test_too_many_workers_for_the_system_are_a_sentence(sample: Path, tmp_path: Path) -> None:
    flags = f"--input {sample} --output {tmp_path}/out --workers 40"
    command = f"ulimit -n 40; {sys.executable} -m fineshards build {flags}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert re.fullmatch(
        r"fineshards: only \d+ of 40 worker processes could be started: Too many open files\. Use "
        r"fewer --workers, or raise the limit of processes or open files\.",
        done.stderr.splitlines()[-1],
    )
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_a_build_goes_on_when_no_one_reads_its_log(long_input: Path, tmp_path: Path) -> None:
    """Even if the first thing that it says is that it resumes."""
    job = start(*build_flags(long_input, tmp_path))
    wait_until(lambda: begun(tmp_path), job)
    job.kill()
    job.communicate()
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "fineshards", *build_flags(long_input, tmp_path, "auto")]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=write, check=False)
    os.close(write)
    assert done.returncode == 0
    assert (tmp_path / "metadata/manifest.json").exists()


LAUNCH = """
import sys, threading
from fineshards.config import BuildConfig
from fineshards.encoders.loading import load_encoder
from fineshards.worker import own_process
from fineshards.pipeline.run import prepare
own_process.alone = True
launch = prepare(BuildConfig(dataset=sys.argv[1], output=sys.argv[2]))
load_encoder(launch.job.settings.tokenizer, launch.checkpoints.storage, "auto")
print({"datasets", "apache_beam"} & set(sys.modules), threading.active_count())
"""


AGAIN = """
import sys
from fineshards.cli.cli import main
from fineshards.worker import own_process, tasks
own_process.alone = True
finish_block, doing = tasks.TASKS["finish_block"]
def seen(*arguments):
    done = finish_block(*arguments)
    print("worker", {"apache_beam", "awkward", "pandas"} & set(sys.modules), flush=True)
    return done
tasks.TASKS["finish_block"] = seen, doing
main(["build", "--input", sys.argv[1], "--output", sys.argv[2]])
print({"apache_beam", "awkward", "gigatoken", "pandas", "pymongo"} & set(sys.modules))
"""


def test_a_build_imports_no_more_than_it_needs(sample: Path, tmp_path: Path) -> None:
    """Nor does a finished one, which is recognized without what workers need."""
    first, second = (run_program(AGAIN, sample, tmp_path / "out") for _ in range(2))
    assert first.stdout.splitlines().count("worker set()") == first.stdout.count("worker") > 0
    last = first.stdout.splitlines()[-1]
    assert ast.literal_eval(last) == {"apache_beam", "gigatoken"}, first.stderr
    assert second.stdout.splitlines()[-1] == "set()", second.stdout


def test_workers_are_forked_from_a_process_without_threads_and_large_libraries(
    sample: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "dataset"
    folder.mkdir()
    (folder / "train.parquet").symlink_to(sample)
    done = run_program(LAUNCH, folder, tmp_path / "out")
    assert done.stdout == "set() 1\n", done.stderr


@pytest.mark.kills
@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
    ids=["SIGINT", "SIGTERM"],
)
def test_a_signal_ends_everything_with_one_sentence(
    long_input: Path, tmp_path: Path, number: int, code: int, word: str
) -> None:
    """As early as Python lets a program handle signals, and then at many moments."""
    for attempt in range(12):
        output = tmp_path / str(attempt)
        # Beam's flags are checked in a fresh interpreter.
        beam = ["--job_name=x"] * (attempt % 2)
        job = start(*build_flags(long_input, output), *beam)
        wait_until(lambda job=job: handles(job.pid, number), job)
        time.sleep(attempt**2 / 50)
        workers = children(job.pid)
        os.killpg(job.pid, number)
        _, errors = job.communicate(timeout=120)
        assert job.returncode == code, (attempt, errors)
        (sentence,) = [line for line in errors.splitlines() if line.startswith("fineshards:")]
        resume = " Run the same command again to resume."
        assert sentence.removesuffix(resume) == f"fineshards: {word}.", (attempt, errors)
        assert "Traceback" not in errors, (attempt, errors)
        wait_until(lambda workers=workers: not any(map(alive, workers)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_status_says_whether_the_processes_of_a_build_live(
    fineshards: Run, long_input: Path, tmp_path: Path, number: int
) -> None:
    job = start(*build_flags(long_input, tmp_path))
    wait_until(lambda: begun(tmp_path), job)
    found = status(tmp_path)
    assert found.running is True
    os.killpg(job.pid, number)
    job.communicate(timeout=120)
    wait_until(lambda: status(tmp_path).running is False)
    found = status(tmp_path)
    assert 0 < found.of("tokenize").done < (found.of("tokenize").total or 0)
    assert {(each.rate, each.seconds_left) for each in found.stages} == {(None, None)}
    assert "not running: nothing written for" in describe_pace(found)
    done = fineshards(*build_flags(long_input, tmp_path, "auto"))
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "checkpoints").exists()


def handles(process: int, number: int) -> bool:
    """Whether a process handles a signal; Python's own handling of SIGINT counts too."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
    caught = re.search(r"SigCgt:\s*([0-9a-f]+)", status)
    # SIGTERM has no handler but ours.
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


USERS_PROGRAM = """
import os, sys, threading
import apache_beam
import fineshards

# No `if __name__ == "__main__"`: nothing of this program may run again in a worker.
print("once", flush=True)
threading.Thread(target=threading.Event().wait, daemon=True).start()
lock = threading.Lock()
lock.acquire()
source, output = sys.argv[1:]
try:
    fineshards.build(
        input=source, output=output, block_bytes=1, shard_tokens=3_000_000, test_shards=1,
        tokenizer_engine="tiktoken",
    )
except KeyboardInterrupt:
    print("stopped", flush=True)
"""


@pytest.mark.kills
def test_build_in_a_users_program_works_beside_it_and_stops_with_it(
    long_input: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    program = tmp_path / "train.py"
    program.write_text(USERS_PROGRAM)
    output = tmp_path / "out"
    command = [sys.executable, str(program), str(long_input), str(output)]
    job = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: begun(output), job)
    (interpreter,) = children(job.pid)
    workers = children(interpreter)
    assert workers
    job.send_signal(signal.SIGINT)
    printed, errors = job.communicate(timeout=120)
    assert (printed, errors) == ("once\nstopped\n", "")
    wait_until(lambda: not any(map(alive, [interpreter, *workers])))
    job = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: len(children(job.pid)) == 1, job)
    (interpreter,) = children(job.pid)
    wait_until(lambda: children(interpreter), job)
    workers = children(interpreter)
    job.kill()
    job.communicate()
    wait_until(lambda: not any(map(alive, [interpreter, *workers])))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "once\n")
    # The copies of the sample, which is all that this build warns of.
    assert re.fullmatch(r"commit: .* keep exact duplicates in one split\n", done.stderr)
    assert shards_in(output) == expected


@pytest.mark.long
def test_the_process_that_builds_can_be_killed_too(long_input: Path, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(USERS_PROGRAM)
    output = tmp_path / "out"
    command = [sys.executable, str(program), str(long_input), str(output)]
    job = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: begun(output), job)
    (interpreter,) = children(job.pid)
    os.kill(interpreter, signal.SIGKILL)
    _, errors = job.communicate(timeout=120)
    assert errors.splitlines()[-1].startswith(
        "fineshards.errors.FineshardsError: the process that did the work was killed by SIGKILL"
    )


@pytest.mark.long
def test_no_block_is_begun_before_all_footers_are_read(
    fineshards: Run, sample: Path, tmp_path: Path
) -> None:
    """So a wrong column that only some files have can be corrected without --overwrite."""
    folder, output = tmp_path / "input", tmp_path / "out"
    folder.mkdir()
    table = pq.read_table(sample).slice(0, 30)
    pq.write_table(table.append_column("body", table["text"]), folder / "a.parquet")
    pq.write_table(table, folder / "b.parquet")
    flags = [f"--input={folder}/*.parquet", f"--output={output}"]
    done = fineshards("build", *flags, "--text_column=body")
    assert done.returncode == 1
    assert "b.parquet" in done.stderr.splitlines()[-1]
    assert list(output.glob("checkpoints/*/blocks/*")) == []
    assert fineshards("build", *flags).returncode == 0


def test_the_cores_that_may_be_used_are_counted() -> None:
    program = "from fineshards.cores import usable_cores; print(usable_cores())"
    every = run_program(program)
    one = run_program("import os; os.sched_setaffinity(0, {0}); " + program)
    assert (int(every.stdout) <= len(os.sched_getaffinity(0)), one.stdout) == (True, "1\n")


@pytest.mark.parametrize(
    ("membership", "files", "quotas"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "250000 100000"}, [2.5]),
        ("0::/\n", {"cpu.max": "50000 100000"}, [0.5]),
        ("0::/a\n", {}, []),
    ],
)
def test_the_quota_of_a_control_group_is_read(
    tmp_path: Path, membership: str, files: dict[str, str], quotas: list[float]
) -> None:
    (tmp_path / "cgroup").write_text(membership)
    for name, content in files.items():
        path = tmp_path / "mount" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert list(_quotas(tmp_path / "cgroup", tmp_path / "mount")) == quotas
