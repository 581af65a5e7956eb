"""A real Flink cluster on this machine, for tests, with one process per part.

The parts are a JobManager, a TaskManager with two slots, Beam's job server, and Beam's worker pool,
which starts the Python processes that run the steps. All are ended with the tests.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.checkout import ROOT
from support.engine_downloads import OPENED
from support.gcs_server import free_port

_PATIENCE_SECONDS = 120

# Flink's scripts derive the memory sizes from one number; its processes need each of them.
CONFIGURATION = """\
jobmanager.rpc.address: localhost
jobmanager.rpc.port: {rpc}
jobmanager.bind-host: localhost
rest.address: localhost
rest.bind-address: localhost
rest.port: {rest}
taskmanager.host: localhost
taskmanager.bind-host: localhost
taskmanager.numberOfTaskSlots: 2
taskmanager.cpu.cores: 2
taskmanager.memory.framework.heap.size: 128m
taskmanager.memory.framework.off-heap.size: 128m
taskmanager.memory.task.heap.size: 512m
taskmanager.memory.task.off-heap.size: 0m
taskmanager.memory.managed.size: 128m
taskmanager.memory.network.min: 256m
taskmanager.memory.network.max: 256m
taskmanager.memory.jvm-metaspace.size: 256m
taskmanager.memory.jvm-overhead.min: 192m
taskmanager.memory.jvm-overhead.max: 192m
io.tmp.dirs: {folder}
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: 2
restart-strategy.fixed-delay.delay: 0 s
"""


@dataclass(frozen=True)
class Flink:
    """A running cluster; addresses are `host:port`."""

    master: str
    job_endpoint: str
    workers: str
    pool: subprocess.Popen[bytes]

    def worker_processes(self) -> list[int]:
        """The Python processes that run steps at this moment, the busiest one so far first."""
        command = ["ps", "-o", "pid=,stat=", "--ppid", str(self.pool.pid)]
        listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        found = [line.split() for line in listed.splitlines()]
        running = [int(pid) for pid, state in found if not state.startswith("Z")]
        return sorted(running, key=_processor_time, reverse=True)

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs of the cluster in the order of their start, as its REST API describes them."""
        jobs = _get(f"http://{self.master}/jobs/overview")["jobs"]
        return sorted(jobs, key=lambda job: job["start-time"])

    def failures(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        """The failures of a job's tasks, including those after which it was restarted."""
        found = _get(f"http://{self.master}/jobs/{job['jid']}/exceptions")
        return found["exceptionHistory"]["entries"]


def _processor_time(pid: int) -> int:
    """Clock ticks that a process has worked."""
    # The name in parentheses may contain spaces.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@contextmanager
def flink_cluster(jar: Path, folder: Path) -> Iterator[Flink]:
    """Runs a cluster from `jar` (see engine_downloads); its logs are in `folder`."""
    rest, rpc, service, pool = (free_port() for _ in range(4))
    configuration = folder / "conf"
    configuration.mkdir()
    (configuration / "flink-conf.yaml").write_text(
        CONFIGURATION.format(rest=rest, rpc=rpc, folder=folder)
    )
    java = ["java", *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED)]
    configured = ["--configDir", str(configuration)]
    runtime = "org.apache.flink.runtime"
    session = f"{runtime}.entrypoint.StandaloneSessionClusterEntrypoint"
    with ExitStack() as stack:

        def start(name: str, *command: str) -> subprocess.Popen[bytes]:
            return stack.enter_context(_running(command, folder / f"{name}.log"))

        start("jobmanager", *java, "-Xmx512m", "-cp", str(jar), session, *configured)
        manager = f"{runtime}.taskexecutor.TaskManagerRunner"
        start("taskmanager", *java, "-Xmx1g", "-cp", str(jar), manager, *configured)
        start(
            "jobserver",
            *(*java, "-Xmx512m", "-jar", str(jar), f"--flink-master=localhost:{rest}"),
            *(f"--job-port={service}", "--artifact-port=0", "--expansion-port=0"),
            f"--artifacts-dir={folder}/artifacts",
        )
        module = "apache_beam.runners.worker.worker_pool_main"
        workers = start("workers", sys.executable, "-m", module, f"--service_port={pool}")
        master = f"localhost:{rest}"
        _wait(lambda: _get(f"http://{master}/overview")["slots-total"] == 2, folder)
        for port in (service, pool):
            _wait(lambda port=port: _listens(port), folder)
        yield Flink(master, f"localhost:{service}", f"localhost:{pool}", workers)


@contextmanager
def _running(command: tuple[str, ...], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended with all its children."""
    # The worker pool runs `python`, which must be the one of the tests.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with open(log, "wb") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(condition: Callable[[], bool], folder: Path) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.2)
    logs = "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in folder.glob("*.log"))
    raise AssertionError(f"Flink is not up after {_PATIENCE_SECONDS} s\n{logs}")


def _listens(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


def _get(url: str) -> Any:
    # The cluster is on this machine, so no proxy is used.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as answer:
        return json.loads(answer.read())
