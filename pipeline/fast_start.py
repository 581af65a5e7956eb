"""Sooner at work: what a run on this machine need not wait for when it starts."""

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

# Beam imports these if it can, for connectors that local runs do not have; so does pyarrow pandas.
# They are almost half of the time that Beam takes to be imported.
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
    """Makes modules that a local run has no use for look as if they were not installed.

    For a process that does nothing else: what imports them later does not find them either. Nor
    has it linear algebra to do, for which numpy would start threads that spin for a while.
    """
    sys.meta_path.insert(0, _NotInstalled())
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # It complains of what it does not find.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """No cyclic garbage collection in the body, and none later of what it made.

    Imports and the building of a graph make hundreds of thousands of objects that stay; looking
    through them again and again costs half a second.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
