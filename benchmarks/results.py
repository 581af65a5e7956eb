"""Results: medians, rates and ratios of the contestants, as JSON and as a table."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from benchmarks.inputs import Contents
from benchmarks.measure import Measurement

RESULT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """A contestant and its runs, in the order of the rounds.

    command: its command line, with INPUT and OUTPUT for the folders.
    """

    name: str
    what: str
    command: str
    versions: dict[str, str]
    runs: tuple[Measurement, ...]

    @property
    def wall(self) -> float:
        """Median seconds."""
        return median(run.wall for run in self.runs)


@dataclass(frozen=True, slots=True)
class Result:
    """A whole benchmark. The others are compared with the first entry.

    date: ISO 8601, UTC. files: names of the input files. loads: the load of the machine before each
    round.
    """

    name: str
    date: str
    commit: str
    machine: dict[str, Any]
    files: tuple[str, ...]
    contents: Contents
    repeat: int
    tokens: int
    loads: tuple[float, ...]
    entries: tuple[Entry, ...]

    def to_json(self) -> dict[str, Any]:
        """The result as JSON; times in seconds, memory in bytes."""
        return {
            "format": "fineshards-benchmark",
            "version": RESULT_VERSION,
            "name": self.name,
            "date": self.date,
            "commit": self.commit,
            "machine": self.machine,
            "input": asdict(self.contents) | {"repeat": self.repeat, "names": list(self.files)},
            "tokens": self.tokens,
            "rounds": len(self.loads),
            "loads": list(self.loads),
            "contestants": [self._entry_json(entry) for entry in self.entries],
        }

    def megabytes_per_second(self, seconds: float) -> float:
        """The rate in MB/s (10^6 bytes of text) of a run of this length."""
        return self.contents.text_bytes / 1e6 / seconds

    def _entry_json(self, entry: Entry) -> dict[str, Any]:
        return {
            "name": entry.name,
            "what": entry.what,
            "command": entry.command,
            "versions": entry.versions,
            **{
                figure: _spread([getattr(run, figure) for run in entry.runs])
                for figure in ("wall", "cpu", "peak_process", "peak_tree")
            },
            "megabytes_per_second": self.megabytes_per_second(entry.wall),
            "tokens_per_second": self.tokens / entry.wall,
            "time_ratio": entry.wall / self.entries[0].wall,
            "runs": [asdict(run) for run in entry.runs],
        }

    def table(self) -> Table:
        """The result as a table."""
        machine, contents = self.machine, self.contents
        table = Table(
            title=f"{contents.text_bytes / 1e6:,.0f} MB of text, {contents.documents:,} documents, "
            f"{contents.files} files, {self.tokens:,} tokens",
            caption=f"medians of {len(self.loads)} runs; {machine['cores']} cores of "
            f"{machine['cpu']}, {machine['memory_bytes'] / 2**30:.0f} GiB, "
            f"{machine['file_system']}; fineshards {self.commit}\n"
            "peak memory: of all processes together (PSS, sampled); peak process: resident set",
        )
        first = self.entries[0].name
        table.add_column("")
        for title in (
            "seconds",
            "min - max",
            "MB/s",
            "M tokens/s",
            f"time / {first}",
            "CPU s",
            "peak memory",
            "peak process",
        ):
            table.add_column(title, justify="right")
        for entry in self.entries:
            figures = self._entry_json(entry)
            table.add_row(
                entry.name,
                f"{entry.wall:.2f}",
                f"{figures['wall']['min']:.2f} - {figures['wall']['max']:.2f}",
                f"{figures['megabytes_per_second']:.1f}",
                f"{figures['tokens_per_second'] / 1e6:.2f}",
                f"{figures['time_ratio']:.2f}",
                f"{figures['cpu']['median']:.1f}",
                f"{figures['peak_tree']['median'] / 1e6:,.0f} MB",
                f"{figures['peak_process']['median'] / 1e6:,.0f} MB",
            )
        return table


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


def free_path(folder: Path, date: str, name: str) -> Path:
    """The path for a result: `<day>-<name>.json`, with a number if that exists."""
    path = folder / f"{date[:10]}-{name}.json"
    number = 2
    while path.exists():
        path = folder / f"{date[:10]}-{name}-{number}.json"
        number += 1
    return path


def save(content: dict[str, Any], path: Path) -> None:
    """Writes a result as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
