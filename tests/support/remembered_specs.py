"""Beam's search for state and timers, done once per step: it is a third of a small build's time.

For each transform, several times, Beam reads the signatures of all methods of its DoFn. What it
finds depends on the class alone, or on the function of a Map. Builds in processes of their own
search as usual.
"""

from functools import cache
from typing import Any


@cache
def remember_specs() -> None:
    """Makes Beam remember what it has found, in this process."""
    from apache_beam.transforms import userstate
    from apache_beam.transforms.core import CallableWrapperDoFn

    search = userstate.get_dofn_specs
    found: dict[object, Any] = {}

    def specs(dofn: Any) -> Any:
        kind = dofn._process_argspec_fn() if isinstance(dofn, CallableWrapperDoFn) else type(dofn)
        # A function is made again for each pipeline, from the same code.
        kind = getattr(kind, "__code__", kind)
        if kind not in found:
            found[kind] = search(dofn)
        return found[kind]

    userstate.get_dofn_specs = specs
