"""Scratch folders never outlive the next command; no room for them is one sentence."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.checkout import ROOT
from support.fresh_interpreter import run_program
from support.growing import made_up_rows, write_rows
from support.kills import kill
from support.process_tree import children, start, wait_until

import fineshards
from fineshards.errors import OutputError
from fineshards.storage.temporary import (
    _locked_folder,
    remove_abandoned,
    scratch_folder,
    temporary_room,
)

HOLDER = """
import sys
from pathlib import Path
from fineshards.storage.temporary import scratch_folder
with scratch_folder(sys.argv[1]) as folder:
    (Path(folder) / "deep").mkdir()
    (Path(folder) / "deep/text").write_text("some text")
    print(folder, flush=True)
    sys.stdin.read()
"""


def hold(place: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that holds a scratch folder until it is killed, and the folder."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, place],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    return holder, Path(holder.stdout.readline().strip())


def test_a_scratch_folder_is_removed_once_its_process_is_killed(tmp_path: Path) -> None:
    (holder, folder), (other, abandoned) = hold(tmp_path), hold(tmp_path)
    other.kill()
    other.communicate()
    assert (abandoned / "deep/text").exists()
    with scratch_folder(str(tmp_path)) as own:
        assert not abandoned.exists()
        assert (folder / "deep/text").exists()
        remove_abandoned(str(tmp_path))
        assert Path(own).is_dir()
    assert [*tmp_path.iterdir()] == [folder]
    holder.kill()
    holder.communicate()
    remove_abandoned(str(tmp_path))
    assert not any(tmp_path.iterdir())


def test_a_folder_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another command, which takes it for abandoned: before it is opened, and afterwards."""
    for name, module in (("open", os), ("flock", fcntl)):
        call, removed = getattr(module, name), list[Path]()

        def late(*arguments: Any, call: Any = call, removed: list[Path] = removed) -> Any:
            if not removed:
                removed.extend(tmp_path.iterdir())
                removed[0].rmdir()
            return call(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(module, name, late)
            with scratch_folder(str(tmp_path)) as folder:
                assert Path(folder).is_dir()
                assert removed != [Path(folder)]


SIGNALLED = """
import fcntl, os, signal, sys, tempfile
from fineshards.storage.temporary import scratch_folder
from fineshards.worker import own_process
lock, tempfile.tempdir = fcntl.flock, sys.argv[1]
def signalled(*arguments):
    fcntl.flock = lock
    lock(*arguments)
    os.kill(os.getpid(), signal.SIGTERM)
fcntl.flock = signalled
own_process.end_at_once()
with scratch_folder():
    pass
"""


def test_a_command_that_ends_while_it_locks_its_folder_leaves_nothing(tmp_path: Path) -> None:
    done = run_program(SIGNALLED, tmp_path)
    assert (done.returncode, [*tmp_path.iterdir()]) == (128 + signal.SIGTERM, [])


def test_what_is_not_an_abandoned_folder_of_this_host_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious, place = tmp_path / "precious", tmp_path / "place"
    precious.mkdir()
    with scratch_folder(str(place)) as folder:
        prefix = folder.removesuffix(folder[-32:])
    os.mkfifo(prefix + 32 * "0")
    Path(prefix + 32 * "1").symlink_to(precious)
    Path(prefix + 32 * "2").touch()
    (place / ".fineshards-4").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "uname", lambda: SimpleNamespace(nodename="another"))
        foreign, lock = _locked_folder(str(place))
    os.close(lock)
    assert Path(foreign).is_dir()
    names = {path.name for path in place.iterdir()}
    remove_abandoned(str(place))
    assert {path.name for path in place.iterdir()} == names
    assert precious.is_dir()


def test_a_scratch_folder_that_another_command_removes_is_one_sentence(tmp_path: Path) -> None:
    def lose_it() -> None:
        with scratch_folder(str(tmp_path / "a")) as folder:
            os.rename(tmp_path / "a", tmp_path / "b")
            (Path(folder) / "text").write_text("some text")

    with pytest.raises(OutputError, match="was removed by another command"):
        lose_it()


def test_a_folder_in_which_a_process_still_writes_is_removed(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys, time\n"
        "end = time.monotonic() + 0.3\n"
        "while time.monotonic() < end:\n"
        "    made = pathlib.Path(sys.argv[1], 'checkpoints')\n"
        "    try:\n"
        "        made.mkdir(exist_ok=True)\n"
        "        (made / str(time.monotonic())).touch()\n"
        "    except OSError: pass\n"
    )
    with scratch_folder(str(tmp_path)) as folder:
        writer = subprocess.Popen([sys.executable, "-c", program, folder])
        while not os.path.exists(f"{folder}/checkpoints"):
            time.sleep(0.001)
    writer.wait()
    assert [*tmp_path.iterdir()] == []


def test_an_estimate_that_is_killed_leaves_nothing_after_the_next_command(tmp_path: Path) -> None:
    place, source = tmp_path / "temporary", tmp_path / "a.jsonl"
    place.mkdir()
    source.write_text('{"text": "a secret of some words"}\n' * 200_000)
    environment = os.environ | {"TMPDIR": str(place)}
    job = start("estimate", f"--input={source}", env=environment)
    wait_until(lambda: [*place.glob(".fineshards-*/metadata/job.json")], job)
    job.kill()
    job.communicate()
    assert [*place.iterdir()]
    next_one = start("status", tmp_path / "nothing", env=environment)
    next_one.communicate()
    assert not [*place.iterdir()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_estimate_that_is_interrupted_leaves_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    """As a terminal does it: the signal goes to the command and to all that it has started."""
    place, source = tmp_path / "temporary", tmp_path / "a.jsonl"
    place.mkdir()
    source.write_text('{"text": "a secret of some words"}\n' * 200_000)
    for made in (".fineshards-*", ".fineshards-*/checkpoints/*/blocks/*"):
        environment = os.environ | {"TMPDIR": str(place)}
        job = start("estimate", f"--input={source}", env=environment)
        wait_until(lambda made=made: [*place.glob(made)], job)
        os.killpg(job.pid, number)
        job.communicate()
        assert (job.returncode, [*place.iterdir()]) == (128 + number, [])


def test_an_estimate_whose_worker_dies_does_not_speak_of_resuming(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "some words"}\n' * 400_000)
    job = start("estimate", f"--input={source}", "--workers=1")
    found: list[int] = []
    wait_until(
        lambda: found.extend(w for c in children(job.pid) for w in children(c)) or found, job
    )
    os.kill(found[0], signal.SIGKILL)
    said = job.communicate()[1]
    assert job.returncode == 1
    assert "a worker process was killed by SIGKILL" in said
    assert "resume" not in said


@pytest.mark.kills
def test_what_beam_makes_is_gone_after_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill, after Ctrl-C, and after success at once, on this machine and on a service."""
    place, embedded = tmp_path / "temporary", ("--runner=PortableRunner", "--job_endpoint=embed")
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "tokenizers"))
    source = write_rows(tmp_path / "a.jsonl", made_up_rows(1, 40))
    command = ("build", f"--input={source}", f"--output={tmp_path}/out", "--block_bytes=500")
    for beam_args, workers in (((), True), ((*embedded, "--environment_type=LOOPBACK"), False)):
        kill("replace:9", *command, *beam_args, workers=workers)
        start("status", tmp_path / "out").communicate()
        assert not [*place.iterdir()]
        job = start(*command, *beam_args)
        job.communicate()
        assert (job.returncode, [*place.iterdir()]) == (0, [])
        export = ("export", tmp_path / "out", "--to=megatron", "--output", tmp_path / "e")
        for flags in (
            ["--runner=direct"],
            beam_args,
            [*embedded[:1], "--job_endpoint=localhost:1"],
        ):
            start(*export, *flags).communicate()
            assert not [*place.iterdir()]
        shutil.rmtree(tmp_path / "out")
    # A program's build is in an interpreter that is killed once it has answered.
    fineshards.build(input=source, output=tmp_path / "out", beam_args=beam_args)
    assert not [*place.iterdir()]
    waits = start(*command, "--overwrite", *embedded, "--environment_type=EXTERNAL")
    wait_until(lambda: [*place.glob(".fineshards-*/beam*")], waits)
    waits.send_signal(signal.SIGINT)
    waits.communicate()
    assert not [*place.iterdir()]


def test_a_full_disk_is_named_with_what_to_do() -> None:
    words = rf"cannot be written in {tempfile.gettempdir()}: No space left .* set TMPDIR"
    full = Path("/dev/full")  # the kernel's own full disk
    with pytest.raises(OutputError, match=words), temporary_room(), full.open("wb", 0) as opened:
        opened.write(b"x")


def test_no_folder_for_temporary_files_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/no/such/folder"])
    words = r"no folder with space for temporary files"
    with pytest.raises(OutputError, match=words), temporary_room():
        pass


def test_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), temporary_room():
        (tmp_path / "missing").read_bytes()
