"""What a program hears of a build: warnings in its log, and progress."""

import logging
import time
from pathlib import Path

import pytest
from support.fresh_interpreter import run_program, tell_many

import fineshards
from fineshards.errors import UsageError
from fineshards.job_status.status import Status
from fineshards.worker.fresh_interpreter import call_in_fresh_interpreter


def test_what_libraries_log_in_a_fresh_interpreter_is_not_shown() -> None:
    done = run_program(
        "import logging\n"
        "from fineshards.worker.fresh_interpreter import call_in_fresh_interpreter\n"
        "call_in_fresh_interpreter(logging.warning, 'apitools not found')\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_calling_process_logs_what_a_build_warns_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, copy = tmp_path / "first.jsonl", tmp_path / "copy.jsonl"
    for source in (first, copy):
        source.write_text('{"text": "one"}\n{"text": "two"}\n')
    fineshards.build(input=first, output=tmp_path / "out")
    assert caplog.messages == []
    # Tests of commands that ran in this process before may have set another level.
    caplog.set_level(logging.WARNING, "fineshards.worker.commit")
    fineshards.append(tmp_path / "out", input=copy)
    (message,) = caplog.messages
    assert "2 of 2 new documents have the text of a document" in message


def test_who_is_slow_hears_the_latest_alone(tmp_path: Path) -> None:
    told, heard = tmp_path / "told", []

    def hear(number: int) -> None:
        heard.append(number)
        while not told.exists():
            time.sleep(0.01)

    assert call_in_fresh_interpreter(tell_many, told, hear=hear) == "done"
    assert heard in ([heard[0], 99], [99])


@pytest.mark.long
def test_progress_is_told_to_a_function_and_an_error_in_it_ends_the_build(
    sample: Path, tmp_path: Path
) -> None:
    seen: list[Status] = []
    manifest = fineshards.build(input=sample, output=tmp_path / "out", progress=seen.append)
    assert seen[-1].stage == "finished"
    assert seen[-1].tokens == manifest.totals["tokens"]
    appended: list[Status] = []
    more = tmp_path / "more.jsonl"
    more.write_text('{"text": "one"}\n')
    fineshards.append(tmp_path / "out", input=more, progress=appended.append)
    assert {each.generation for each in appended} == {2}

    def fail(status: Status) -> None:
        raise EOFError("the user's own error")

    with pytest.raises(EOFError, match="the user's own error"):
        fineshards.build(input=sample, output=tmp_path / "other", progress=fail)
    again = fineshards.build(input=sample, output=tmp_path / "other")
    assert again.totals == manifest.totals


def test_progress_is_a_flag_or_a_function(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="progress is 'yes'; give True, False or a function"):
        fineshards.build(input="a", output=tmp_path, progress="yes")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Did you mean progress"):
        fineshards.append(tmp_path, input="a", progres=True)


@pytest.mark.long
def test_progress_is_printed_as_lines_without_a_terminal(sample: Path, tmp_path: Path) -> None:
    program = "import sys, fineshards\nfineshards.build(input=sys.argv[1], output=sys.argv[2], {})"
    done = run_program(program.format("progress=True"), sample, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "read: 1 file, 1 block"
    assert done.stdout.splitlines()[-1] == "finished"
    quiet = run_program(program.format("progress=False"), sample, tmp_path / "quiet")
    assert (quiet.stdout, quiet.stderr) == ("", "")
