"""What all records keep to, so that equal records are equal bytes."""

from collections.abc import Iterator

import msgspec
from support.fresh_interpreter import run_program

# All modules with records.
import fineshards.cli.cli
import fineshards.pipeline.graph
import fineshards.worker.tasks  # noqa: F401
from fineshards.shards.record import Record


def records(base: type[Record]) -> Iterator[type[Record]]:
    for kind in base.__subclasses__():
        yield kind
        yield from records(kind)


def test_defaults_are_the_same_object_everywhere() -> None:
    """msgspec leaves a default out by identity: of another equal object it would write a field."""
    found = {
        (kind.__name__, field.name): field.default
        for kind in records(Record)
        for field in msgspec.structs.fields(kind)
        if field.default is not msgspec.NODEFAULT
    }
    assert len(found) > 20
    assert {name for name, default in found.items() if default or default == []} == set()


def test_records_refuse_what_they_do_not_know() -> None:
    kinds = list(records(Record))
    assert len(kinds) > 25
    assert [kind for kind in kinds if not kind.__struct_config__.forbid_unknown_fields] == []
    assert [kind for kind in kinds if not kind.__struct_config__.frozen] == []


def test_threads_read_records_of_types_that_none_has_read() -> None:
    """msgspec describes a type when it is first used, and crashed where threads did so at once."""
    done = run_program("""
import sys, threading
from typing import Annotated
import msgspec
from fineshards.shards.record import Record, sealed, unsealed
sys.setswitchinterval(1e-6)
ranges = [(f"f{least}", Annotated[int, msgspec.Meta(ge=least)], 0) for least in range(12)]
def read(kind, barrier, found):
    barrier.wait()
    found.append(unsealed(sealed(b'{"inner":{"f3":5}}'), kind))
for _ in range(500):
    inner = msgspec.defstruct("Inner", ranges, bases=(Record,), frozen=True)
    kind = msgspec.defstruct("Outer", [("inner", inner)], bases=(Record,), frozen=True)
    barrier, found = threading.Barrier(4), []
    threads = [threading.Thread(target=read, args=(kind, barrier, found)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [kind(inner(f3=5))] * 4, found
""")
    assert (done.returncode, done.stderr) == (0, "")
