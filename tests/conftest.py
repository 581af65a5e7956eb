"""Fixtures shared by many tests: the sample input, builds as a user runs them, storage servers."""

from __future__ import annotations

import io
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from support.checkout import ROOT, SAMPLE
from support.faulty_proxy import Proxy, faulty_server
from support.remembered_specs import remember_specs

if TYPE_CHECKING:
    from support.gcs_input import Stored
    from support.s3_proxy import S3Proxy

pytest_plugins = ["support.slices"]

# Every run tries the same examples, so a new failure comes from a change, not from chance.
settings.register_profile("fineshards", derandomize=True, deadline=None)
settings.load_profile("fineshards")

# Background jobs of a shell ignore SIGINT, and so do their children, which some tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup() -> None:
    """Makes builds in this process cheaper, once a test has imported Beam."""
    if "apache_beam" in sys.modules:
        remember_specs()


@pytest.fixture(scope="session")
def sample() -> Path:
    """1,063 documents in 19 languages, 5 row groups."""
    return SAMPLE


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 documents of the sample in eight row groups."""
    import pyarrow.parquet as pq

    path = tmp_path_factory.mktemp("input") / "a.parquet"
    pq.write_table(pq.read_table(SAMPLE).slice(0, 40), path, row_group_size=5)
    return path


@pytest.fixture(scope="session")
def unpublished(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset to publish; no test may change it."""
    from support.described import build_help

    return build_help(sample, tmp_path_factory.mktemp("built"))


@pytest.fixture
def published(unpublished: Path, tmp_path: Path) -> Path:
    """A copy of it that is published."""
    from support.described import SAID

    import fineshards

    folder = shutil.copytree(unpublished, tmp_path / "out")
    assert fineshards.publish(folder, **SAID).missing == []
    return folder


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A storage server with the bucket `data`, used by this process and its children."""
    with faulty_server("data") as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.address)
        yield proxy


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of an S3 server for all tests of a process; it takes seconds to start."""
    from support.s3_server import seaweed_server

    with seaweed_server() as address:
        yield address


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    """That server behind a new proxy, with the empty bucket `data`, used as `cloud` is."""
    from support.s3_proxy import faulty_s3
    from support.s3_server import client_variables

    with faulty_s3(s3_server, "data") as proxy:
        for name, value in client_variables(proxy.address).items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture(params=["gs", "s3"])
def either(request: pytest.FixtureRequest) -> Proxy:
    """Each of the two, `cloud` and `s3`."""
    proxy: Proxy = request.getfixturevalue({"gs": "cloud", "s3": "s3"}[request.param])
    return proxy


@pytest.fixture
def build() -> Callable[..., int]:
    """Runs `fineshards build` in this process: `build(input, output, *flags)` -> exit code."""
    from fineshards.cli.cli import main

    def run(source: Path | str, output: Path, *flags: str) -> int:
        return main(["build", "--input", str(source), "--output", str(output), *flags])

    return run


@pytest.fixture
def fineshards() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command line in a new process: `fineshards("verify", folder)`."""

    def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fineshards", *map(str, arguments)]
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, **options
        )

    return run


@pytest.fixture
def in_process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """As `fineshards`, but in this process, where nothing needs to be imported again."""
    from fineshards.cli.cli import main

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main([str(argument) for argument in arguments])
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    return run


@pytest.fixture(scope="session")
def gcs_proxy() -> Iterator[Proxy]:
    """One storage server, behind a proxy, for all tests that read input from gs://."""
    with faulty_server() as proxy:
        yield proxy


@pytest.fixture
def stored(gcs_proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Stored:
    """A new bucket on `gcs_proxy`, used by this process and its children."""
    from support.gcs_input import Stored

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_proxy.address)
    return Stored(gcs_proxy)
