"""Shares of a build on a real Slurm cluster, and a node that dies: `make test-slurm`."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.checkout import ROOT
from support.engine_downloads import OPENED, MissingError, flink_jar
from support.flink_cluster import CONFIGURATION
from support.gcs_server import free_port
from support.oracle import files_in
from support.slurm_cluster import Slurm, missing, slurm_cluster

from fineshards.job_status.status import status

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(missing()), reason=f"no Slurm: {missing()}"),
]
SHARE, FINISH = (ROOT / "examples/slurm" / f"{name}.sbatch" for name in ("share", "finish"))


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def flags(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Those of a build of 64 blocks with the slow engine, so that there is a middle."""
    source = tmp_path_factory.mktemp("in") / "a.parquet"
    table = pq.read_table(sample, columns=["text"])
    pq.write_table(pa.concat_tables([table] * 12), source, row_group_size=200)
    flags = [f"--input={source}", "--shard_tokens=500k", "--test_fraction=0.2", "--block_bytes=1"]
    return [*flags, "--tokenizer_engine=tiktoken", "--workers=1"]


@pytest.fixture(scope="module")
def plain(flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """All files of a build by one command."""
    output = tmp_path_factory.mktemp("plain") / "out"
    command = [sys.executable, "-m", "fineshards", "build", *flags, f"--output={output}"]
    subprocess.run(command, cwd=ROOT, check=True)
    return files_in(output)


def submit(slurm: Slurm, command: list[str]) -> tuple[str, str, str]:
    """Submits an array for the blocks, one for the shards, and the command that finishes."""
    blocks = slurm.submit("--array=1-3", SHARE, *command)
    shards = slurm.submit("--array=1-3", f"--dependency=afterany:{blocks}", SHARE, *command)
    return blocks, shards, slurm.submit(f"--dependency=afterany:{shards}", FINISH, *command)


def test_a_node_that_dies_is_replaced_and_the_bytes_are_the_same(
    slurm: Slurm, flags: list[str], plain: dict[str, bytes], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    blocks, shards, last = submit(slurm, [*flags, f"--output={output}"])
    slurm.wait_until(lambda: [*output.glob("checkpoints/*/blocks/*.tokens")])
    running = {name: (node, state) for name, (_, node, state) in slurm.tasks().items()}
    (killed,) = (name for name, place in running.items() if place == ("node2", "RUNNING"))
    slurm.kill_node("node2")
    at_the_kill = status(output)
    assert 0 < at_the_kill.of("tokenize").done < (at_the_kill.of("tokenize").total or 0)
    # Slurm notices by itself and puts the task back (--requeue), for two minutes later.
    slurm.wait_until(lambda: slurm.tasks()[killed][2] == "PENDING")
    slurm.run("scontrol", "update", f"JobId={killed}", "StartTime=now")
    slurm.wait_until(lambda: not slurm.tasks())
    logs = {path.name: path.read_text() for path in slurm.folder.glob("fineshards-*.log")}
    assert {f"fineshards-share-{job}-{k}.log" for job in (blocks, shards) for k in (1, 2, 3)} < {
        *logs
    }
    assert (
        f"share {killed.partition('_')[2]}/3 ends"
        in logs[f"fineshards-share-{killed.replace('_', '-')}.log"]
    )
    written = [text for name, text in logs.items() if f"share-{shards}-" in name]
    assert any("all shards are written" in text for text in written)
    assert "finished in" in logs[f"fineshards-finish-{last}.log"]
    assert files_in(output) == plain


def test_flink_inside_an_allocation_gives_the_same_bytes(
    slurm: Slurm, flags: list[str], plain: dict[str, bytes], tmp_path: Path
) -> None:
    """A JobManager where the batch script runs, and a TaskManager on each node."""
    try:
        jar = flink_jar()
    except MissingError as error:
        pytest.skip(str(error))
    output, rest, pool = tmp_path / "out", free_port(), free_port()
    configuration = CONFIGURATION.format(rest=rest, rpc=free_port(), folder=tmp_path)
    (tmp_path / "flink-conf.yaml").write_text(configuration)
    opened = " ".join(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED)
    java = f"java -Xmx512m {opened} -cp {jar} org.apache.flink.runtime"
    # Two worker pools would have the same port: here all nodes are one machine.
    lines = [
        "#!/bin/bash",
        "trap 'kill $(jobs -p)' EXIT",
        f"{java}.entrypoint.StandaloneSessionClusterEntrypoint --configDir {tmp_path} &",
        f"srun --overlap {java}.taskexecutor.TaskManagerRunner --configDir {tmp_path} &",
        "srun --overlap --nodes=1 --ntasks=1 python -m "
        f"apache_beam.runners.worker.worker_pool_main --service_port={pool} &",
        f"until curl --silent localhost:{rest}/overview | grep '\"taskmanagers\":2'",
        "do sleep 1; done",
        " ".join(
            [
                *("fineshards build", *(flag for flag in flags if "workers" not in flag)),
                *(f"--output={output}", "--runner=FlinkRunner", f"--flink_master=localhost:{rest}"),
                *(f"--flink_job_server_jar={jar}", "--parallelism=2"),
                *("--environment_type=EXTERNAL", f"--environment_config=localhost:{pool}"),
            ]
        ),
    ]
    (tmp_path / "flink.sbatch").write_text("\n".join(lines))
    slurm.submit("--nodes=2", "--ntasks=2", tmp_path / "flink.sbatch")
    slurm.wait_until(lambda: not slurm.tasks())
    logs = "".join(log.read_text()[-3000:] for log in slurm.folder.glob("slurm-*.out"))
    assert (output / "metadata/manifest.json").exists(), logs
    assert files_in(output) == plain
