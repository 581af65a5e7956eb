"""A faster start for a process that does nothing but build on this machine."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Beam imports these where they are installed, for connectors that local runs do not use, and
# pyarrow imports pandas. They take almost half of the time of importing Beam.
_OPTIONAL = (
    "apitools",
    "apache_beam.io.gcp.bigquery",
    "google.cloud.bigquery",
    "google.cloud.dataflow",
    "google.cloud.pubsub",
    "google.cloud.storage",
    "pandas",
    "pymongo",
)


class _NotInstalled(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in _OPTIONAL:
            raise ModuleNotFoundError(f"{name} is left out of local runs", name=name)
        return None


def leave_out_what_is_not_needed() -> None:
    """Hides modules that a local run does not use, as if they were not installed.

    Only for a process that does nothing else, since later imports do not find them either. It also
    keeps numpy from starting threads for linear algebra, which spin for a while.
    """
    sys.meta_path.insert(0, _NotInstalled())
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Beam warns about modules that it does not find.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """No cyclic garbage collection in the body, nor later of the objects made in it.

    Imports and the graph make hundreds of thousands of objects that stay. Scanning them again and
    again costs half a second.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
