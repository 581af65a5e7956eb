"""Prism, Flink and MinIO for tests: built once, into a cache outside the repository.

The cache is $FINESHARDS_ENGINES, or fineshards/engines in the user's cache folder. An entry gets
its final name when it is complete.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apache_beam

_MINIO = "v0.0.0-20260212201848-7aac2a2c5b7c"
_POM = Path(__file__).with_name("flink-pom.xml")

# Packages of Java that Flink and Beam access by reflection (as in Flink's bin/config.sh).
OPENED = (
    *("java.io", "java.lang", "java.lang.reflect", "java.net", "java.nio", "java.text"),
    *("java.time", "java.util", "java.util.concurrent", "java.util.concurrent.atomic"),
    *("java.util.concurrent.locks", "sun.nio.ch"),
)


class MissingError(Exception):
    """An engine is not available on this machine; the message says why."""


def prism() -> Path:
    """The program `prism` of the same release as the Python SDK. Raises MissingError."""
    release = apache_beam.__version__
    folder = _cache() / f"prism-{release}"
    if not folder.exists():
        _need("go", "it builds Prism")
        with _appears(folder) as unfinished:
            package = f"github.com/apache/beam/sdks/v2/go/cmd/prism@v{release}"
            _run(["go", "install", package], os.environ | {"GOBIN": str(unfinished)})
    return folder / "prism"


def flink_jar() -> Path:
    """Flink and Beam's Flink job server in one jar. Raises MissingError.

    `java -jar` runs the job server, as with the jar that Beam publishes. `java -cp` runs the
    processes of the cluster.
    """
    _need("java", "it runs Flink")
    folder = _cache() / f"flink-{hashlib.sha256(_POM.read_bytes()).hexdigest()[:12]}"
    if not folder.exists():
        _need("mvn", "it downloads Flink")
        with _appears(folder) as unfinished:
            opened = " ".join(f"java.base/{package}" for package in OPENED)
            settings = [f"-Doutput={unfinished}", f"-Dopened={opened}"]
            _run(["mvn", "-B", "-q", "-f", str(_POM), "package", *settings], os.environ)
    return folder / "flink.jar"


def minio() -> Path:
    """The program `minio`, of the last release; takes minutes to build. Raises MissingError."""
    folder = _cache() / f"minio-{_MINIO}"
    if not folder.exists():
        _need("go", "it builds MinIO")
        with _appears(folder) as unfinished:
            package = f"github.com/minio/minio@{_MINIO}"
            _run(["go", "install", package], os.environ | {"GOBIN": str(unfinished)})
    return folder / "minio"


def _cache() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("FINESHARDS_ENGINES") or f"{caches}/fineshards/engines")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _need(program: str, why: str) -> None:
    if shutil.which(program) is None:
        raise MissingError(f"{program} is not installed: {why}.")


def _run(command: list[str], environment: dict[str, str] | os._Environ[str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        output = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise MissingError(f"`{' '.join(command)}` failed:\n{output}")


@contextmanager
def _appears(folder: Path) -> Iterator[Path]:
    """A folder to fill; it gets its name when it is complete."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        unfinished = Path(scratch, folder.name)
        unfinished.mkdir()
        yield unfinished
        unfinished.rename(folder)
