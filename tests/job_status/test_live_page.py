"""`status --serve`: what the server answers, and to whom. The page itself: tests/browser."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.checkout import ROOT
from support.faulty_proxy import Proxy

from fineshards.cli.cli import main
from fineshards.config import BuildConfig
from fineshards.job_status import live
from fineshards.job_status.live import LiveServer, answer_of, live_server
from fineshards.job_status.status import StatusReader, status
from fineshards.pipeline.launch import prepare

Serve = Callable[[Path | str], LiveServer]


@pytest.fixture(scope="module")
def source(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten documents."""
    path = tmp_path_factory.mktemp("source") / "in.parquet"
    pq.write_table(pq.read_table(sample).slice(0, 10), path)
    return path


@pytest.fixture
def job(source: Path, tmp_path: Path) -> Path:
    """The folder of a job that was launched, and that no one works on."""
    prepare(BuildConfig(input=source, output=tmp_path / "out"))
    return tmp_path / "out"


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Serves the page of a folder, in a thread; it looks as often as it is asked."""
    monkeypatch.setattr(live, "_RUNNING_SECONDS", 0.0)
    monkeypatch.setattr(live, "_FINISHED_SECONDS", 0.0)
    servers = []

    def start(folder: Path | str) -> LiveServer:
        server = live_server(str(folder), 0)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(
    server: LiveServer, path: str = "/", method: str = "GET", host: str | None = None
) -> tuple[http.client.HTTPResponse, str]:
    port = server.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer, content


def told(server: LiveServer) -> dict[str, Any]:
    """What the page is told."""
    answer, content = ask(server, "/status.json")
    assert answer.status == 200
    found: dict[str, Any] = json.loads(content)
    return found


def until_told(server: LiveServer, is_right: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Asks again while a look is younger than ten times what it took."""
    ends = time.monotonic() + 60
    while not is_right(found := told(server)):
        assert time.monotonic() < ends, found
        time.sleep(0.05)
    return found


def test_the_page_and_what_it_asks_for(serve: Serve, job: Path) -> None:
    server = serve(job)
    page, content = ask(server)
    assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert content.startswith("<!doctype html>")
    found = told(server)
    expected = json.loads(json.dumps(asdict(status(job))))
    del found["status"]["seconds_idle"], expected["seconds_idle"]
    assert found["status"] == expected
    assert found["shown"]["state"] == "discovering"
    assert [stage["name"] for stage in found["shown"]["stages"]] == ["read", "tokenize", "write"]
    assert ask(server, "/metadata/job.json")[0].status == 404


def test_every_answer_says_what_a_browser_may_do_with_it(serve: Serve, job: Path) -> None:
    server = serve(job)
    for path in ("/", "/status.json", "/nothing"):
        headers = ask(server, path)[0].headers
        policy = headers["Content-Security-Policy"].split("; ")
        assert {"default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'"} <= {*policy}
        assert "unsafe" not in " ".join(policy)
        assert headers["X-Content-Type-Options"] == "nosniff"
        # No other site may read the answer.
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers


def test_only_this_machines_names_are_answered(serve: Serve, job: Path) -> None:
    server = serve(job)
    port = server.server_address[1]
    # A tunnel of ssh may have another port.
    names = ("127.0.0.1", "localhost", "LOCALHOST", f"127.0.0.1:{port}", "localhost:9000")
    for host in names:
        assert ask(server, "/status.json", host=host)[0].status == 200
    attacker = "attacker.example"
    others = (
        attacker,
        f"{attacker}:{port}",
        f"127.0.0.1.{attacker}",
        f"localhost:{port}@{attacker}",
    )
    for host in (*others, "127.0.0.2"):
        answer, content = ask(server, "/status.json", host=host)
        assert (answer.status, content) == (403, f"This page is at {server.address} only.\n")


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        ["localhost", "localhost"],
        ["localhost", "attacker.example"],
        ["attacker.example", "localhost"],
        ["localhost", "", "localhost"],
    ],
)
def test_a_request_without_one_host_is_refused(serve: Serve, job: Path, hosts: list[str]) -> None:
    with socket.create_connection(serve(job).server_address) as client:
        lines = ["GET /status.json HTTP/1.1", *(f"Host: {host}" for host in hosts), "", ""]
        client.sendall("\r\n".join(lines).encode())
        answer = client.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"folder"' not in answer


def test_only_reading_is_answered(serve: Serve, job: Path) -> None:
    server = serve(job)
    answer, content = ask(server, "/status.json", "HEAD")
    assert (answer.status, content) == (200, "")
    assert int(answer.headers["Content-Length"]) > 0
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(server, "/status.json", method)[0].status == 501


def test_it_listens_on_the_loopback_interface_alone(serve: Serve, job: Path) -> None:
    server = serve(job)
    # 127.0.0.2 is this machine too: who listens on all addresses answers there.
    with socket.socket() as other, pytest.raises(ConnectionRefusedError):
        other.connect(("127.0.0.2", server.server_address[1]))


def test_a_port_that_cannot_be_used_is_one_sentence(
    serve: Serve, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = serve(job).server_address[1]
    for given, sentence in (
        (port, f"port {port} cannot be used: Address already in use. Give another one, such as"),
        (70000, "--serve: must be a port, a number up to 65535, got '70000'. Give the folder"),
        ("1k", "--serve: must be a port, a number up to 65535, got '1k'. Give the folder first"),
    ):
        assert main(["status", str(job), "--serve", str(given)]) == 2
        assert capsys.readouterr().err.startswith(f"fineshards: {sentence}")
    assert main(["status", "--serve", str(job)]) == 2
    assert "Give the folder first, then --serve [PORT]" in capsys.readouterr().err
    with socket.socket() as taken:
        with suppress(PermissionError):  # and then it cannot be had either
            taken.bind(("127.0.0.1", 1023))
            taken.listen()
        assert main(["status", str(job), "--serve", "1023"]) == 2
    assert "such as --serve 8765, or --serve 0" in capsys.readouterr().err
    assert main(["status", str(job), "--serve", "--json"]) == 2
    assert "--serve prints no JSON" in capsys.readouterr().err
    assert main(["status", str(job / "no"), "--serve"]) == 1
    assert "holds no fineshards job" in capsys.readouterr().err


def test_a_browser_that_goes_away_leaves_nothing_on_the_terminal(
    serve: Serve, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(job)
    before = threading.active_count()
    for sent in (b"GET / HT", b"GET /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        with socket.create_connection(server.server_address) as browser:
            browser.sendall(sent)
            # Closes with a reset.
            browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    ask(server)  # connections are accepted in order
    while threading.active_count() > before:
        time.sleep(0.01)
    assert capsys.readouterr().err == ""


def test_an_unexpected_error_is_one_sentence_and_does_not_end_it(
    serve: Serve, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(job)
    with monkeypatch.context() as wrong:
        wrong.setattr(StatusReader, "read", lambda reader: [][0])
        assert told(server)["error"].startswith("the status cannot be read: unexpected IndexError.")
    assert until_told(server, lambda found: not found["error"])["shown"]["state"] == "discovering"


def test_who_asks_often_is_told_what_was_read_last(
    serve: Serve, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(job)
    monkeypatch.setattr(live, "_RUNNING_SECONDS", 20.0)
    assert told(server)["error"] is None
    shutil.rmtree(job)
    assert told(server)["error"] is None


def test_the_title_is_the_name_of_the_folder(
    serve: Serve, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(job)
    assert told(serve("."))["folder"] == str(job)


def test_ctrl_c_ends_it_with_a_sentence(job: Path) -> None:
    command = [sys.executable, "-m", "fineshards", "status", str(job), "--serve", "0"]
    server = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    assert f"{job} is shown at http://127.0.0.1:" in server.stderr.readline()
    server.send_signal(signal.SIGINT)
    assert server.stderr.read() == "fineshards: interrupted.\n"
    assert server.wait() == 130
    server.stderr.close()


def test_a_job_that_is_deleted_is_said_and_one_that_comes_is_shown(serve: Serve, job: Path) -> None:
    server = serve(job)
    assert told(server)["error"] is None
    shutil.move(job, f"{job}-elsewhere")
    found = until_told(server, lambda found: found["error"] is not None)
    assert found["error"].startswith(f"{job} does not hold this job any more")
    assert (found["status"], found["shown"]) == (None, None)
    until_told(server, lambda found: "holds no fineshards job" in (found["error"] or ""))
    shutil.move(f"{job}-elsewhere", job)
    assert until_told(server, lambda found: not found["error"])["shown"]["state"] == "discovering"


def test_a_job_that_stopped_and_one_that_finished(
    serve: Serve, source: Path, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in job.rglob("*"):
        os.utime(path, times=(time.time() - 900,) * 2)
    server = serve(job)
    shown = told(server)["shown"]
    assert shown["state"] == "probably not running"
    assert shown["note"].startswith("No worker has written for 15 min: it is probably not running")
    assert main(["build", f"--input={source}", f"--output={job}"]) == 0
    shown = until_told(server, lambda found: found["shown"]["state"] == "finished")["shown"]
    figures = dict(shown["figures"])
    assert (figures["Documents"], figures["Tokens"]) == ("10", f"{status(job).tokens:,}")
    assert [split for split, *_ in shown["splits"]] == ["test", "train"]
    assert shown["commands"] == [f"fineshards verify {job}", f"fineshards report {job}"]
    assert {stage["state"] for stage in shown["stages"]} == {"done"}


def test_a_folders_name_is_quoted_for_the_shell_and_made_visible(job: Path) -> None:
    finished = replace(status(job), stage="finished")
    found = answer_of("out; rm -r \x1b[2J", finished)
    assert found["folder"] == r"out; rm -r \x1b[2J"
    assert found["shown"]["commands"][0] == r"fineshards verify 'out; rm -r \x1b[2J'"


@pytest.mark.cloud
def test_a_far_folder_that_fails_for_a_while_is_shown_again(
    serve: Serve, either: Proxy, source: Path
) -> None:
    folder = f"{either.scheme}://data/out"
    prepare(BuildConfig(input=source, output=folder))
    server = serve(folder)
    assert told(server)["shown"]["state"] == "discovering"
    rule = either.fail("^(GET|HEAD)", 403, range(1, 1000))
    found = until_told(server, lambda found: found["error"] is not None)
    assert "403" in found["error"]
    rule.numbers = ()
    assert until_told(server, lambda found: not found["error"])["shown"]["state"] == "discovering"
