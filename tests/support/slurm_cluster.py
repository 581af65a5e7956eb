"""A real Slurm cluster on this machine, for tests: three nodes of one core, each with a slurmd.

Debian's packages `slurm-wlm` and `munge` have the programs. Everything that they write is in one
folder, and all of them end with the tests.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.gcs_server import free_port

NODES = ("node1", "node2", "node3")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo", "scontrol")
_PATIENCE_SECONDS = 180
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdTimeout=5
SchedulerParameters=sched_interval=1,batch_sched_delay=1
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why there can be no cluster on this machine; "" if there can be one."""
    absent = [name for name in _PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"{absent[0]} is not installed: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "only root can start the daemons of Slurm"


@dataclass
class Slurm:
    """A running cluster. environment: of the commands that use it."""

    folder: Path
    environment: dict[str, str]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def run(self, *command: object) -> str:
        """What a command of Slurm prints."""
        done = subprocess.run(
            list(map(str, command)),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit(self, *arguments: object) -> str:
        """Submits a batch job; returns its number."""
        return self.run("sbatch", "--parsable", *arguments)

    def tasks(self) -> dict[str, tuple[str, str, str]]:
        """The number, the node and the state of each task in the queue, by its name, as 7_2."""
        lines = self.run("squeue", "--noheader", "--array", "--format=%i|%A|%N|%T").splitlines()
        return {name: (*rest,) for name, *rest in (line.split("|") for line in lines)}  # type: ignore[misc]

    def wait_until(self, true: Callable[[], object]) -> None:
        """Waits until something is true."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while not true():
            assert time.monotonic() < end, f"{self.tasks()}\n{self.logs()}"
            time.sleep(0.1)

    def logs(self) -> str:
        """The ends of all logs."""
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in files)

    def kill_node(self, node: str) -> None:
        """Kills a node: its daemon, and all processes of the task that runs there."""
        (number,) = (number for number, name, _ in self.tasks().values() if name == node)
        processes = self.run("ps", "-eo", "pid=,sid=,args=").splitlines()
        found = [line.split(maxsplit=2) for line in processes]
        # slurmstepd, which starts a task, is in one session with it.
        (session,) = (sid for _, sid, args in found if args == f"slurmstepd: [{number}.batch]")
        for pid, sid, _ in found:
            if sid == session:
                os.kill(int(pid), signal.SIGKILL)
        self.daemons[node].kill()


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[Slurm]:
    """Runs a cluster; its logs, and those of jobs, are in `folder`."""
    nodes = "\n".join(
        f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={free_port()} CPUs=1 "
        "RealMemory=1000"
        for node in NODES
    )
    configuration = _CONFIGURATION.format(folder=folder, port=free_port(), nodes=nodes)
    (folder / "slurm.conf").write_text(configuration)
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path}
    slurm = Slurm(folder, environment)
    with ExitStack() as stack:

        def start(name: str, *command: object) -> None:
            log = stack.enter_context(open(folder / f"{name}.log", "wb"))
            slurm.daemons[name] = daemon = subprocess.Popen(
                list(map(str, command)), env=environment, stdout=log, stderr=log
            )
            stack.callback(daemon.wait)
            stack.callback(daemon.kill)

        files = {kind: folder / f"munge.{kind}" for kind in ("socket", "pid", "seed")}
        options = [f"--{kind}-file={files[kind]}" for kind in ("pid", "seed")]
        options += [f"--socket={files['socket']}", f"--key-file={key}"]
        start("munge", "munged", "--foreground", "--force", *options)
        slurm.wait_until(files["socket"].exists)
        start("slurmctld", "slurmctld", "-D", "-c")
        for node in NODES:
            (folder / "spool" / node).mkdir(parents=True)
            start(node, "slurmd", "-D", "-N", node)
        stack.callback(_cancel_all, slurm)
        slurm.wait_until(lambda: _idle(slurm) == len(NODES))
        yield slurm


def _idle(slurm: Slurm) -> int:
    command = ["sinfo", "--noheader", "--Node", "--states=idle", "--format=%N"]
    done = subprocess.run(command, env=slurm.environment, capture_output=True, check=False)
    return len(done.stdout.split())


def _cancel_all(slurm: Slurm) -> None:
    """Ends what jobs are left, while there is a daemon that can."""
    if slurm.tasks():
        slurm.run("scancel", "--user=root")
        slurm.wait_until(lambda: not slurm.tasks())
