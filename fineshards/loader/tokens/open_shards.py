"""How many shards the datasets of a process keep open together.

An open shard holds a file descriptor, mapped or not, because Python's mmap keeps a duplicate. The
usual limit is 1,024 for the whole process, and a training program needs most of them itself.

There is no lock: each step is one operation of a deque or a dict, which threads may do at the same
time. So a fork cannot inherit a held lock, and a collected dataset has nothing to wait for.
"""

from __future__ import annotations

import errno
import resource
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from fineshards.errors import OutputError

_Loaded = TypeVar("_Loaded")

# At most this many, and at most this share of the limit. A process may also have only 65,530
# mappings (vm.max_map_count).
_MOST = 4096
_SHARE = 4

# No descriptor is left for the process, or for the machine; no mapping is left.
_NONE_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class Shelf(dict[int, Any]):
    """The open shards of one reader, by number. One that is taken off closes after its last use."""


class OpenShards:
    """The open shards on all shelves: above a limit, and when descriptors run out, the oldest go.

    Closing the oldest, not the one that was used the longest ago, keeps the lookup in a shelf as
    fast as in a dict. Shelves are referenced weakly. The places of shards that are no longer there
    count until they are the oldest.
    """

    def __init__(self) -> None:
        self._places: deque[tuple[weakref.ref[Shelf], int]] = deque()
        self._allowed: int | None = None
        self._limit = 1

    def put(self, shelf: Shelf, shard: int, load: Callable[[], _Loaded]) -> _Loaded:
        """Loads a shard and puts it on a shelf; raises what `load` raises."""
        self._keep(self.limit() - 1)
        loaded = self.with_room(load)
        # In this order, so that each shard on a shelf has a place.
        shelf[shard] = loaded
        self._places.append((weakref.ref(shelf), shard))
        return loaded

    def with_room(self, load: Callable[[], _Loaded]) -> _Loaded:
        """Does what needs descriptors; where none are left, closes half of the shards and retries.

        From then on the limit is that half, so that the program's next file finds room as well.
        """
        while True:
            try:
                return load()
            except OutputError as error:
                opened = len(self._places)
                if not opened or not _none_left(error):
                    raise
            # Outside of the handler: the error holds the frames of what failed.
            self._limit = max(1, opened // 2)
            self._keep(opened // 2)

    def limit(self) -> int:
        """How many shards may be open, of all datasets together."""
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if allowed != self._allowed:
            unlimited = allowed == resource.RLIM_INFINITY
            self._limit = _MOST if unlimited else max(1, min(_MOST, allowed // _SHARE))
            self._allowed = allowed
        return self._limit

    def _keep(self, count: int) -> None:
        """Closes the oldest shards until there are at most `count` places."""
        while len(self._places) > count:
            try:
                shelf, shard = self._places.popleft()
            except IndexError:  # another thread was faster
                return
            if (found := shelf()) is not None:
                found.pop(shard, None)


def _none_left(error: OutputError) -> bool:
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in _NONE_LEFT


OPEN_SHARDS = OpenShards()
