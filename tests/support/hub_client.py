"""Runs `sources/places/hub.py` in a separate process, because HF_ENDPOINT is read at import.

Standard input is a JSON list of steps, standard output the JSON list of their answers. HURRY=100
makes each wait a hundredth, PATIENCE=2 lets retries end after two seconds.
"""

import hashlib
import json
import logging
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from fineshards.storage import retries

RETRIED = re.compile(r"WARNING:fineshards:hf://.*; (retrying|trying again after \d+ s)$")
ROOT = Path(__file__).parent.parent.parent


def run(endpoint: str, home: Path, *steps: dict[str, Any], **environ: str) -> list[Any]:
    """Returns the answers to the steps, from a process that can reach only the endpoint.

    The endpoint is also the proxy for all other addresses, so it sees requests to them.
    """
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(steps),
        env=environment(endpoint, home) | environ,
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    # Whatever the libraries log. One line of ours says that a request is made again.
    lines = [line for line in done.stderr.splitlines() if not RETRIED.search(line)]
    assert lines == [], done.stderr
    return json.loads(done.stdout)


def fineshards(endpoint: str, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line with the hub at the endpoint."""
    return subprocess.run(
        [sys.executable, "-m", "fineshards", *arguments],
        env=environment(endpoint, home),
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )


def environment(endpoint: str, home: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "tests"),
        "HOME": str(home),
        "HF_HOME": str(home / "huggingface"),
        "HF_ENDPOINT": endpoint,
        "HTTP_PROXY": endpoint,
        "HTTPS_PROXY": endpoint,
        "NO_PROXY": "127.0.0.1,localhost",
    }


def resolve(
    name: str, config: str | None = None, split: str = "train", revision: str | None = None
) -> dict[str, Any]:
    return {"name": name, "config": config, "split": split, "revision": revision}


def find(*patterns: str) -> dict[str, Any]:
    return {"patterns": patterns}


def read_column(file: dict[str, Any], row_group: int, column: str) -> dict[str, Any]:
    return {"file": file, "row_group": row_group, "column": column}


def read_digest(file: dict[str, Any]) -> dict[str, Any]:
    return {"file": file}


def read_texts(file: dict[str, Any]) -> dict[str, Any]:
    return {"texts": file}


def _answer(step: dict[str, Any]) -> Any:
    from fineshards.errors import FineshardsError
    from fineshards.shards.parquet_file import open_parquet
    from fineshards.sources.files import SourceFile, find_files, open_file
    from fineshards.sources.places.hub import DatasetRequest, resolve_dataset
    from fineshards.sources.reading import discover_blocks, read_block

    try:
        if "name" in step:
            return to_builtins(resolve_dataset(DatasetRequest(**step)))
        if "patterns" in step:
            return [to_builtins(file) for file in find_files(step["patterns"])]
        if "texts" in step:
            from support.source_files import COLUMNS, Read, add

            source = SourceFile(**step["texts"])
            found = Read([], [], {})
            for block in discover_blocks(source, COLUMNS, 1):
                add(found, read_block(source, COLUMNS, block))
            return [text for _, text, _ in found.rows]
        with open_file(SourceFile(**step["file"])) as opened:
            if "column" in step:
                # As the job does it: Arrow's own threads may abort a process that ends.
                table = open_parquet(opened).read_row_group(
                    step["row_group"], columns=[step["column"]], use_threads=False
                )
                return table.column(0).to_pylist()
            digest = hashlib.sha256()
            while chunk := opened.read(1 << 16):
                digest.update(chunk)
            return digest.hexdigest()
    except FineshardsError as error:
        return {"error": type(error).__name__, "message": str(error)}


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)  # would show what a library logs
    sleep, hurry = time.sleep, float(os.environ.get("HURRY", 1))
    time.sleep = lambda seconds: sleep(seconds / hurry)
    retries.RETRY_SECONDS = float(os.environ.get("PATIENCE", retries.RETRY_SECONDS))
    json.dump([_answer(step) for step in json.load(sys.stdin)], sys.stdout)
