"""The loader's benchmark: reading, starting and mixing speed, other loaders, and exports."""

import os
import sys
import tempfile
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from benchmarks.contestants import ROOT
from benchmarks.exporting import time_exports
from benchmarks.far_reading import time_far_reading
from benchmarks.machine import describe_commit, describe_machine, describe_versions
from benchmarks.mixing import time_mixing
from benchmarks.reading import time_reading
from benchmarks.reading_packed import time_packed
from benchmarks.reading_whole import time_whole
from benchmarks.results import free_path, save
from benchmarks.timings import table, to_json
from benchmarks.training_batches import time_training_batches

# Modules that may be installed, and their packages.
_MODULES = {
    "numba": "numba",
    "torch": "torch",
    "datatrove": "datatrove",
    "megatron": "megatron-core",
    "litdata": "litdata",
    "streaming": "mosaicml-streaming",
    "grain": "grain",
    "datasets": "datasets",
}


def bench_loader(results: Path, name: str, rounds: int, shrink: int, console: Console) -> Path:
    """Measures, prints and saves the timings at 1/`shrink` of the full sizes.

    Returns the path of the JSON file. Raises FineshardsError.
    """
    began, load = datetime.now(UTC).isoformat(timespec="seconds"), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        work = Path(folder)
        timings = [
            *time_reading(work, rounds, shrink),
            *time_training_batches(work, rounds, shrink, console),
            *time_far_reading(work, rounds, shrink),
            *time_packed(work, rounds, shrink),
            *time_whole(work, rounds, shrink),
            *time_mixing(work, rounds, shrink, console),
            *time_exports(work, rounds, shrink),
        ]
        machine = describe_machine(work)
    console.print(table(timings))
    path = free_path(results, began, name)
    content = {
        "format": "fineshards-loader",
        "version": 1,
        "name": name,
        "date": began,
        "commit": describe_commit(ROOT),
        "machine": machine,
        "versions": describe_versions(sys.executable, _packages()),
        "load": load,
        "rounds": rounds,
        "shrink": shrink,
        "timings": to_json(timings),
    }
    save(content, path)
    console.print(f"written to {os.path.relpath(path)}", highlight=False)
    return path


def _packages() -> tuple[str, ...]:
    """The installed packages whose versions matter."""
    return "numpy", *(name for module, name in _MODULES.items() if find_spec(module))
