"""What the user sees: a table on a terminal, plain lines elsewhere, and one sentence at the end."""

import errno
import io
import os
import pty
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from support.checkout import ROOT
from support.fresh_interpreter import run_program
from support.growing import made_up_rows, write_rows
from support.kills import kill
from support.shell import on_terminal

from fineshards import status
from fineshards.cli.cli import main
from fineshards.cli.terminal import error_console, report_errors
from fineshards.config import BuildConfig
from fineshards.job_status.progress_words import watch
from fineshards.job_status.status import StatusReader
from fineshards.pipeline.launch import prepare

Run = Callable[..., subprocess.CompletedProcess[str]]
TRACEBACK = "Traceback (most recent call last)"
MAIN = str(ROOT / "fineshards/cli/build_command.py")
STAGES = [
    "read: 1 file, 5 blocks",
    "tokenize: 5 blocks, 665,971 tokens",
    "write: 8 shards",
    "finished",
]


@pytest.fixture
def slow_input(tmp_path: Path, sample: Path) -> Path:
    """Enough blocks and text that the table is drawn between polls."""
    table = pq.read_table(sample, columns=["text"])
    path = tmp_path / "in.parquet"
    pq.write_table(pa.concat_tables([table] * 24), path, row_group_size=1000)
    return path


@pytest.mark.long
def test_a_terminal_shows_stages_rate_and_time_left(slow_input: Path, tmp_path: Path) -> None:
    output = on_terminal(
        *("build", "--input", slow_input, "--output", tmp_path / "out"),
        # The slow engine, so that the table is drawn while some blocks are finished and others not.
        *("--shard_tokens=500000", "--block_bytes=1", "--tokenizer_engine=tiktoken"),
    )
    assert re.search(r"tokenize.* \d+ of \d+ blocks, [\d,]+ of about [\d.]+[kM]? tokens", output)
    assert re.search(r"[\d.]+[kM] tokens/s, about \d+ s left( in stage 2 of 3)?", output)
    assert "━" in output
    assert re.search(r"finished in [\d.]+ s at [\d.]+ MB/s of text: 25,512 doc", output)


SPEAKING = """
import logging, sys
from rich.console import Console
from fineshards.cli.terminal import set_up_logging
set_up_logging(Console(stderr=True), local=sys.argv[1] == "local")
for path in ("/lib/apache_beam/io/gcp/bigquery.py", "/lib/other/module.py"):
    record = logging.LogRecord("root", logging.WARNING, path, 1, "from %s", (path,), None)
    logging.getLogger().handle(record)
"""


@pytest.mark.parametrize("where", ["local", "elsewhere"])
def test_what_beam_logs_under_no_name_is_not_shown(where: str) -> None:
    (line,) = run_program(SPEAKING, where).stderr.splitlines()
    assert line.endswith(" from /lib/other/module.py")


@pytest.mark.long
def test_without_a_terminal_there_is_one_line_per_stage(
    fineshards: Run, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # For colours in the log of a CI service; it makes no terminal.
    monkeypatch.setenv("FORCE_COLOR", "1")
    flags = ["--shard_tokens=100000", "--block_bytes=1"]
    done = fineshards("build", "--input", sample, "--output", tmp_path, *flags)
    assert done.returncode == 0
    lines = [re.fullmatch(r"\d\d:\d\d:\d\d (.+)", line) for line in done.stderr.splitlines()]
    assert [line and line.group(1) for line in lines] == STAGES
    summary, *splits = done.stdout.splitlines()
    assert re.fullmatch(
        r"finished in [\d.]+ s( at [\d.]+ MB/s of text)?: 1,063 documents, 665,971 tokens in "
        rf"{tmp_path}",
        summary,
    )
    assert splits == [
        "  test       10 documents (0.94 %), 4,982 tokens (0.75 %), 1 shard",
        "  train      1,053 documents (99.06 %), 660,989 tokens (99.25 %), 7 shards",
    ]


def test_only_a_terminal_that_can_draw_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with open(theirs, "w") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        for kind, draws in (("xterm-256color", True), ("dumb", False), ("unknown", False)):
            monkeypatch.setenv("TERM", kind)
            assert error_console().is_terminal == draws
    os.close(ours)


def test_an_unexpected_error_of_the_display_is_one_line_and_the_job_goes_on(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    launch = prepare(BuildConfig(input=sample, output=tmp_path / "out"))
    reader = StatusReader(launch.checkpoints.storage)
    monkeypatch.setattr(StatusReader, "read", lambda reader, added: [][0])
    with watch(reader, Console(file=io.StringIO())):
        deadline = time.monotonic() + 60
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.01)
    (line,) = caplog.messages
    assert line.startswith("progress cannot be shown: unexpected IndexError. The build goes on.")


@pytest.mark.long
def test_an_interrupted_build_says_what_it_resumes(slow_input: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    command = [
        *(sys.executable, "-m", "fineshards", "build", f"--input={slow_input}"),
        *(f"--output={output}", "--block_bytes=1"),
    ]
    job = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not list(output.glob("checkpoints/*/blocks/*.json")):
        time.sleep(0.02)
    job.send_signal(signal.SIGINT)
    job.communicate()
    assert job.returncode == 130
    blocks = len(list(output.glob("checkpoints/*/blocks/*.json")))
    resumed = subprocess.run(command, cwd=ROOT, capture_output=True)
    first, *others = resumed.stderr.decode().splitlines()
    total = re.search(r"read: 1 file, (\d+) blocks", "\n".join(others))
    assert total is not None
    assert first[9:].startswith(f"resuming: tokenize {blocks} of {total[1]} blocks, ")
    assert resumed.stdout.startswith(b"finished in ")
    again = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    assert again.stderr == b""
    assert again.stdout.startswith(b"already finished, nothing to do: ")


@pytest.mark.kills
def test_judged_blocks_count_where_a_build_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(12):
        write_rows(tmp_path / f"in/{number:02}.jsonl", made_up_rows(number, 20))
    command = ["build", f"--input={tmp_path}/in/*", f"--output={tmp_path}/out", "--dedup=exact"]
    kill("replace:24", *command, workers=True)
    found = status(tmp_path / "out")
    assert 0 < found.of("judge").done < 12
    assert main(command) == 0
    words = f"resuming: judge {found.of('judge').done} of 12 blocks, step 1 exact\n"
    assert words in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize(
    "entry", [["-m", "fineshards", "build"], ["-m", "fineshards.cli.build_command"], [MAIN]]
)
def test_every_entry_takes_the_same_flags(entry: list[str], small: Path, tmp_path: Path) -> None:
    """The last is what a Flex Template launcher runs: the file itself, from any folder."""
    command = [sys.executable, *entry, f"--input={small}", f"--output={tmp_path}/out"]
    command.append("--overwrite=false")
    environ = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/metadata/manifest.json").exists()


@pytest.mark.long
def test_a_local_run_needs_no_network(fineshards: Run, small: Path, tmp_path: Path) -> None:
    """Beam's DirectRunner would download the Prism binary if it could."""
    with socket.socket() as proxy:
        proxy.bind(("127.0.0.1", 0))
        proxy.listen()
        url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), url)
        environ = os.environ | proxies | {"HOME": str(tmp_path / "home")}
        for flags in ([], ["--runner=DirectRunner"]):
            output = tmp_path / f"out{len(flags)}"
            done = fineshards(
                "build", f"--input={small}", f"--output={output}", *flags, env=environ
            )
            assert done.returncode == 0, done.stderr
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):  # no connection was tried
            proxy.accept()


# Makes libraries look as if they were not installed, then runs the command line.
WITHOUT = """
import sys
sys.modules |= dict.fromkeys(sys.argv[1].split(","))
from fineshards.cli.cli import main
sys.exit(main(sys.argv[2:]))
"""
# A library whose import raises what libraries of other versions raise.
FAILING = """
import sys
from importlib.util import spec_from_file_location
class Failing:
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            return spec_from_file_location(name, sys.argv[2])
sys.meta_path.insert(0, Failing())
from fineshards.cli.cli import main
if __name__ == "__main__":
    sys.exit(main(sys.argv[3:]))
"""
NOT_INSTALLED = (
    "fineshards: {} is not installed. Install it with: pip install 'fineshards[build]'\n"
)


def run_without(modules: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs the command line in a process that cannot import `modules`, separated by commas."""
    command = [sys.executable, "-c", WITHOUT, modules, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("library", ["pyarrow", "apache_beam"])
def test_build_without_a_library_of_its_extra_says_what_to_install(
    library: str, sample: Path, tmp_path: Path
) -> None:
    done = run_without(library, "build", f"--input={sample}", f"--output={tmp_path}/out")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == NOT_INSTALLED.format(library)


@pytest.mark.parametrize("command", ["verify", "status", "inspect"])
def test_commands_without_pyarrow_say_what_to_install(command: str, tmp_path: Path) -> None:
    done = run_without("pyarrow", command, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == NOT_INSTALLED.format("pyarrow")


def test_commands_on_a_dataset_need_no_beam(build: Any, sample: Path, tmp_path: Path) -> None:
    assert build(sample, tmp_path) == 0
    for command in ("verify", "status", "inspect"):
        done = run_without("apache_beam", command, tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("flags", "level", "command"),
    [
        (["-OO", "-m", "fineshards"], "0", "build --input {} --output out"),
        (["-m", "fineshards.cli.build_command"], "2", "--input {} --output out"),
        (["-m", "fineshards"], "2", "build --input {} --output out --direct_test_wait_until=1"),
        (["-m", "fineshards"], "2", "estimate --input {}"),
        (["-OO", "-m", "fineshards"], "0", "export made --to olmo --output out --runner Flink"),
        (
            ["-c", "import fineshards, sys; fineshards.build(input=sys.argv[1], output='out')"],
            "2",
            "{}",
        ),
    ],
)
def test_python_without_docstrings_is_refused_where_beam_begins(
    build: Any, small: Path, tmp_path: Path, flags: list[str], level: str, command: str
) -> None:
    if "made" in command:
        assert build(small, tmp_path / "made") == 0
    said = subprocess.run(
        [sys.executable, *flags, *command.format(small).split()],
        cwd=tmp_path,
        env=os.environ | {"PYTHONOPTIMIZE": level},
        capture_output=True,
        text=True,
        check=False,
    )
    needs = "Apache Beam needs docstrings, which python -OO and PYTHONOPTIMIZE=2 leave out."
    assert f"{needs} Run it " in said.stderr.splitlines()[-1]
    assert said.returncode == (1 if "-c" in flags else 2)
    assert not (tmp_path / "out/metadata").exists()


@pytest.mark.parametrize(
    ("library", "command"),
    [
        ("regex", "inspect {tmp}/made --shard train/0 --document 0"),
        ("tokenizers", "inspect {tmp}/json --shard train/0 --document 0"),
        ("gigatoken", "build --input {small} --output {tmp}/out"),
        ("requests", "build --input {small} --output {tmp}/out --tokenizer gpt2"),
        ("fasttext.FastText", "build --input {small} --output {tmp}/out --recipe {tmp}/r.toml"),
        ("adlfs", "build --input az://data/a.csv --output {tmp}/out"),
        ("trafilatura", "build --input {tmp}/a.warc --output {tmp}/out --extract trafilatura"),
    ],
)
def test_a_library_that_fails_in_its_import_is_not_blamed_on_a_file(
    build: Any, small: Path, tmp_path: Path, library: str, command: str
) -> None:
    if "made" in command:
        assert build(small, tmp_path / "made", "--test_fraction=0") == 0
    if "json" in command:
        tokenizer = ROOT / "tests/fixtures/tokenizer.json"
        assert build(small, tmp_path / "json", "--test_fraction=0", f"--tokenizer={tokenizer}") == 0
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>A page of some words.</p>"
    record = b"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a.test/\r\n"
    record += b"Content-Type: application/http; msgtype=response\r\nContent-Length: %d\r\n\r\n%s"
    (tmp_path / "a.warc").write_bytes(record % (len(page), page) + b"\r\n\r\n")
    (tmp_path / "r.toml").write_text("[[steps]]\nuse = 'language'\nlanguages = ['en']\n")
    (tmp_path / "failing.py").write_text("raise ValueError('binary incompatibility')\n")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            FAILING,
            library,
            tmp_path / "failing.py",
            *command.format(tmp=tmp_path, small=small).split(),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert re.search(
        r"^fineshards: a library cannot be loaded: .*binary incompatibility.* again\.$",
        done.stderr,
        re.MULTILINE,
    ), done.stderr


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EIO, "Input/output error", "/mnt/a"), "Input/output error (/mnt/a)."),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "there is not enough memory"),
        (MemoryError(), "there is not enough memory."),
        (RuntimeError("can't start new thread"), "there is not enough memory (can't start"),
        (ImportError("x.so: undefined symbol: y"), "cannot be loaded: x.so: undefined symbol: y."),
        (KeyError("crc32c"), "unexpected KeyError, at test_terminal.py:"),
        (ValueError(), "unexpected ValueError, at test_terminal.py:"),
        (RuntimeError(f"failed:\n{TRACEBACK}\n  File x\nValueError: why\n"), ": ValueError: why."),
    ],
)
def test_an_unexpected_error_is_one_sentence_and_a_variable_shows_its_traceback(
    error: Exception,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert report_errors(lambda: _raise(error)) == 1
    said = capsys.readouterr().err
    assert words in said
    assert (said.count("\n"), said.startswith("fineshards: ")) == (1, True)
    assert TRACEBACK not in said
    monkeypatch.setenv("FINESHARDS_TRACEBACK", "1")
    assert report_errors(lambda: _raise(error)) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(TRACEBACK)
    assert shown.endswith(said)


@pytest.mark.parametrize("command", ["verify {}", "estimate --input={}/a.jsonl"])
def test_a_process_without_memory_ends_with_one_sentence(command: str, tmp_path: Path) -> None:
    """So little that the libraries cannot be mapped into it. Neither command resumes anything."""
    (tmp_path / "a.jsonl").write_text('{"text": "some words"}\n')
    limit = 200 << 20
    done = subprocess.run(
        [sys.executable, "-m", "fineshards", *command.format(tmp_path).split()],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert "there is not enough memory (" in said
    assert "resume" not in said
