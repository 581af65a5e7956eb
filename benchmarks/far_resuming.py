"""The launch of a resume, and `status`, of a job of FineWeb's size on a store 30 ms away.

The store is a server that lists made-up names: all blocks and half of the shards are finished, and
then once more before there is a plan of the shards.
With a folder and a delay, this module is that server.
"""

import json
import os
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from benchmarks.far_server import Counts, StorageConnection, far_server, response_of, serve
from benchmarks.machine import describe_machine
from benchmarks.measure import measure
from fineshards.config import BuildConfig
from fineshards.pipeline.launch import describe_job
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job.records import Block
from fineshards.shards.layout import Layout, shard_stem
from fineshards.storage.base import TEMPORARY
from fineshards.storage.open import open_storage

ROOT = Path(__file__).parent.parent
DELAY = 0.03
FILES, BLOCKS_PER_FILE, SHARDS, SHARD_TOKENS = 27_000, 25, 150_000, 100_000_000
TOKENS = SHARDS * SHARD_TOKENS
CONFIG = {
    "input": "gs://data/in/*",
    "output": "gs://data/out",
    "test_fraction": "1/100",
    "shard_tokens": SHARD_TOKENS,
}
PROGRAMS = {
    "launch of a resume": "from fineshards.cli.build_command import *; "
    f"print(left_by_an_earlier_run(prepare(BuildConfig(**{CONFIG}))))",
    "status": "import fineshards; print(fineshards.status('gs://data/out'))",
}
NOT_PLANNED = ", no plan yet"
ALL_PROGRAMS = [(what + when, PROGRAMS[what]) for when in ("", NOT_PLANNED) for what in PROGRAMS]
SIZES = {
    "json": 400,
    "npy": 4 * SHARD_TOKENS + 128,
    "parquet": 2 * 10**9,
    "tokens": 2 * TOKENS // (FILES * BLOCKS_PER_FILE),  # half of a block's in each stream
}


def names(job: str) -> Iterator[str]:
    """The objects of the input, and of a job's folder and checkpoints if it is there."""
    yield from (f"in/{file:05d}.parquet" for file in range(FILES))
    if not job:
        return
    for file in range(FILES):
        yield f"{job}/files/{file:05d}.json"
        for index in range(BLOCKS_PER_FILE):
            for suffix in ("json", "test.parquet", "test.tokens", "train.parquet", "train.tokens"):
                yield f"{job}/blocks/{file:05d}-{index:05d}.{suffix}"
    shards = layout()
    for key in [shard.key for shard in shards.shards()][::2]:
        yield f"out/{shards.shard_name(key)}"
        yield f"{job}/shards/{shard_stem(shards.shard_name(key))}.json"


def layout() -> Layout:
    """The shards."""
    return Layout(SHARD_TOKENS, ((TOKENS // 100, TOKENS - TOKENS // 100),))


class MadeUpConnection(StorageConnection):
    """Lists the names, and reads what a folder has or a file's blocks."""

    def __init__(self, folder: Path, delay: float, counts: Counts, listed: list[str]) -> None:
        super().__init__(folder, delay, counts)
        self._listed = listed

    def response(self, target: str, headers: bytes) -> bytes:
        url = urlsplit(target)
        if url.path.endswith("/o"):
            self.counts.requests["listing"] += 1
            return response_of(200, json.dumps(self._page(dict(parse_qsl(url.query)))).encode())
        folder, _, name = unquote(url.path).rpartition("/")
        if folder.endswith("/files"):
            self.counts.requests["blocks"] += 1
            return response_of(200, _entry(name))
        return super().response(target, headers)

    def _page(self, query: dict[str, str]) -> dict[str, object]:
        """A thousand objects or folders. Objects have the fields that are asked for, or all."""
        prefix, delimiter = query["prefix"], query.get("delimiter")
        at = bisect_left(self._listed, query.get("pageToken", prefix))
        stop = bisect_left(self._listed, prefix + "\uffff", at)
        wanted = query.get("fields", "").partition("(")[2].partition(")")[0].split(",")
        items: list[dict[str, str]] = []
        folders: list[str] = []
        while at < stop and len(items) + len(folders) < 1000:
            name = self._listed[at]
            end = name.find(delimiter, len(prefix)) if delimiter else -1
            if end < 0:
                items.append(_about(name, wanted))
                at += 1
            else:
                folders.append(name[: end + 1])
                at = bisect_left(self._listed, folders[-1] + "\uffff", at)
        more = {"nextPageToken": self._listed[at]} if at < stop else {}
        return {"items": items, "prefixes": folders, **more}


def _about(name: str, wanted: list[str]) -> dict[str, str]:
    found = {
        "name": name,
        "size": str(SIZES[name.rpartition(".")[2]]),
        "updated": "2026-01-01T00:00:00.000Z",
        "crc32c": "AAAAAA==",
        "generation": "1767225600000000",
    }
    if wanted == [""]:
        return found | {"other fields": "made up " * 80}
    return {field: value for field, value in found.items() if field in wanted}


def _entry(name: str) -> bytes:
    """An entry of the blocks of a file."""
    first = int(name[:5])
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(open_storage(folder), "job")
        checkpoints.write_blocks(first, list(_blocks(first)))
        return (Path(folder) / "checkpoints/job/files" / name).read_bytes()


def _blocks(file: int) -> Iterator[Block]:
    for index in range(BLOCKS_PER_FILE):
        yield Block(file, index, BLOCKS_PER_FILE, 20 * index, 20 * index + 20, index, 64 << 20)


def main() -> None:
    """Measures, and prints JSON."""
    about: dict[str, object] = {"machine": describe_machine(Path(tempfile.gettempdir()))}
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        with far_server(folder, 0, "benchmarks.far_resuming") as server:
            os.environ["STORAGE_EMULATOR_HOST"] = server.address
            job, _ = describe_job(BuildConfig(**CONFIG))  # type: ignore[arg-type]
        output = open_storage(folder / "data/out")
        output.write(job.record_name, job.to_bytes())
        checkpoints = Checkpoints.of(output, job)
        checkpoints.write_layout(layout())
        output.delete_folder(TEMPORARY)
        plan = f"{checkpoints.folder}/plan.json"
        with far_server(folder, DELAY, "benchmarks.far_resuming") as server:
            for what, program in ALL_PROGRAMS:
                if what.endswith(NOT_PLANNED):
                    (folder / "data/out" / plan).unlink(missing_ok=True)
                server.counts()
                command = [sys.executable, "-c", program]
                variables = {"STORAGE_EMULATOR_HOST": server.address}
                measured = measure(command, folder / "log", ROOT, variables)
                counts = server.counts()
                about[what] = {
                    "seconds": round(measured.wall, 1),
                    "processor seconds": round(measured.cpu, 1),
                    "peak MB": measured.peak_tree // 10**6,
                    "requests": counts.total() - counts[""],
                    "answer": (folder / "log").read_text().splitlines()[-1],
                }
    print(json.dumps(about, indent=2))


if __name__ == "__main__":
    if sys.argv[1:]:
        served, delay = Path(sys.argv[1]), float(sys.argv[2])
        jobs = [f"out/checkpoints/{each.name}" for each in served.glob("data/out/checkpoints/*")]
        listed, counts = sorted(names(*jobs or [""])), Counts()
        serve(lambda: MadeUpConnection(served, delay, counts, listed))
    main()
