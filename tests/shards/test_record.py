"""What all records keep to, so that equal records are equal bytes."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

# All modules with records.
import fineshards.cli.cli
import fineshards.pipeline.graph
import fineshards.worker.worker  # noqa: F401
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
