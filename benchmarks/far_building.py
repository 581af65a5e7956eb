"""`make bench-far`: a build from a far hub beside one from the local disk, and what the hub counts.

The files are laid out as FineWeb's, with a row group per 1,000 documents, but smaller: each is one
block. All builds must give the same shards.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.far_server import FarServer, far_server
from benchmarks.machine import describe_commit, describe_machine
from benchmarks.timings import in_turn

ROOT = Path(__file__).parent.parent
DELAY = 0.03
ROW_GROUP = 1000
PROCESSES = 4


def write_files(source: Path, folder: Path, files: int, documents: int) -> int:
    """Writes files of documents from Parquet files, over again as needed; returns text bytes."""
    names = ["text", "id"]
    found = pa.concat_tables(
        pq.read_table(path, columns=names) for path in sorted(source.glob("*.parquet"))
    )
    at = size = 0
    for number in range(files):
        taken: list[pa.Table] = []
        while (missing := documents - sum(part.num_rows for part in taken)) > 0:
            taken.append(found.slice(at, missing))
            at = (at + taken[-1].num_rows) % found.num_rows
        table = pa.concat_tables(taken)
        size += table["text"].nbytes
        pq.write_table(table, folder / f"{number:05d}.parquet", row_group_size=ROW_GROUP)
    return size


def compare(
    source: Path, files: int, documents: int, rounds: int, outage: float = 0
) -> dict[str, object]:
    """Builds from both, in turn; returns seconds, their ratio, and the requests to the hub.

    outage: for how many seconds the hub hangs in the middle of another build, after these.
    """
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "in").mkdir()
        text_bytes = write_files(source, work / "in", files, documents)
        with far_server(work / "in", DELAY, "benchmarks.far_hub") as server:
            variables = {**os.environ, "HF_ENDPOINT": server.address, "HF_HOME": str(work / "hub")}
            variables |= {"NO_PROXY": "127.0.0.1,localhost", "HF_TOKEN": ""}
            inputs = {"far": "hf://datasets/bench/text/*.parquet", "near": f"{work}/in/*.parquet"}

            def build(output: str) -> None:
                shutil.rmtree(work / output, ignore_errors=True)
                os.sync()
                command = [
                    sys.executable,
                    "-m",
                    "fineshards",
                    "build",
                    "--input",
                    inputs.get(output, inputs["far"]),
                ]
                command += ["--output", f"{work}/{output}", "--workers", str(PROCESSES)]
                subprocess.run(command, env=variables, cwd=ROOT, check=True)

            runs = in_turn({output: partial(build, output) for output in inputs}, rounds)
            counts = server.counts()
            if outage:
                stop_in_the_middle(server, files, outage, partial(build, "late"))
        for output in ("far", "late")[: 2 if outage else 1]:
            command = ["diff", "-r", f"{work}/{output}/train", f"{work}/near/train"]
            if subprocess.run(command, check=False).returncode != 0:
                raise SystemExit(f"the builds {output} and near have different shards")
    ratios = [far / near for far, near in zip(runs["far"], runs["near"], strict=True)]
    return {
        "text_bytes": text_bytes,
        "seconds": {name: [round(each, 1) for each in seconds] for name, seconds in runs.items()},
        "far / near": [round(ratio, 2) for ratio in sorted(ratios)],
        "requests to the hub per build": {
            kind: round(count / rounds, 1) for kind, count in counts.items()
        },
    }


def stop_in_the_middle(
    server: FarServer, files: int, seconds: float, build: Callable[[], None]
) -> None:
    """Builds, while the server hangs for some time once all footers and some blocks were read."""
    before = server.counts()["content"]
    with ThreadPoolExecutor() as pool:
        building = pool.submit(build)
        while server.counts()["content"] - before < 1.5 * files and not building.done():
            time.sleep(0.1)
        os.kill(server.process, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(server.process, signal.SIGCONT)
        building.result()


def main() -> None:
    """Measures, and prints JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="a folder of Parquet files with text and id")
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--documents", type=int, default=5000, help="of each file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--outage", type=float, default=180, help="seconds that the hub hangs")
    args = parser.parse_args()
    found = compare(args.source, args.files, args.documents, args.rounds, args.outage)
    about = {
        "machine": describe_machine(Path(tempfile.gettempdir())),
        "commit": describe_commit(ROOT),
    }
    print(json.dumps({**about, **found}, indent=2))


if __name__ == "__main__":
    main()
