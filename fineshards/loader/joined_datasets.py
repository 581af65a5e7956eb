"""Several datasets on a local disk, whose samples or documents are read together."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from fineshards.errors import FineshardsError
from fineshards.loader.memory import Memory
from fineshards.loader.sample_sources import Numbers, Samples
from fineshards.loader.token_dataset import TokenDataset
from fineshards.loader.tokens.local_shards import Parts, read_rows
from fineshards.shards.layout import SPLITS

# Where tokens are: their shards, and their places there.
Places = tuple[Numbers, Numbers]


class JoinedDatasets:
    """Reads the rows of a batch in one pass, and finds the places of many batches at once."""

    def __init__(self, datasets: Sequence[TokenDataset]) -> None:
        self._streams = [dataset.stream for dataset in datasets]
        self._length = datasets[0].sequence_length
        self._dtypes = {dataset.dtype for dataset in datasets}
        # Where token 0 of each dataset is among the tokens of all. Of each run of shards of one
        # size: where it ends there, where it begins, its first shard, and the tokens of a shard.
        zeros, runs, end = list[int](), list[tuple[int, int, int, int]](), 0
        for stream in self._streams:
            zeros.append(end + stream.begin)
            shard, layout = 0, stream.split.layout
            for added in layout.added:
                begin, end = end, end + added[SPLITS.index(stream.split.name)]
                runs.append((end, begin, shard, layout.shard_tokens))
                shard -= (begin - end) // layout.shard_tokens
        self._zeros, self._runs = np.array(zeros, np.int64), np.array(runs, np.int64).T

    @classmethod
    def of(cls, sources: Sequence[Any]) -> Self | None:
        """None unless all sources are such datasets."""
        local = all(type(one) is TokenDataset and one.stream.is_local for one in sources)
        return cls(sources) if local else None

    def places(self, which: Numbers, tokens: Numbers) -> Places:
        """Where token `tokens[i]` of dataset `which[i]` is."""
        ends, begins, firsts, sizes = self._runs
        at = self._zeros[which] + tokens
        if len(ends) == 1:
            return np.divmod(at, sizes[0])
        run = np.searchsorted(ends, at, "right")
        shards, offsets = np.divmod(at - begins[run], sizes[run])
        return shards + firsts[run], offsets

    def gather(
        self,
        memory: Memory,
        dtype: np.dtype[Any],
        which: Numbers,
        numbers: Numbers,
        places: Places | None = None,
    ) -> tuple[Samples, int]:
        """Sample `numbers[i]` of dataset `which[i]`, at its place, as row i; the largest token."""
        count, width = len(numbers), self._length + 1
        in_order = count and len(self._streams) == 1 and numbers[-1] - numbers[0] == count - 1
        if in_order and (np.diff(numbers) == 1).all():
            begin = int(numbers[0]) * self._length
            run = self._streams[0].read(begin, begin + count * self._length + 1)
            out = memory.empty((count, width), dtype)
            out[:, :-1] = run[:-1].reshape(-1, self._length)
            out[:, -1] = run[self._length :: self._length]
            return out, int(run.max())
        places = self.places(which, numbers * self._length) if places is None else places
        parts = Parts(*[column.tolist() for column in (which, *places, places[1] + width)])
        return self.read(memory, (count, width), dtype, parts, range(count + 1))

    def parts(self, which: Numbers, begins: Numbers, stops: Numbers) -> Numbers:
        """Where tokens `[begins[i], stops[i])` of dataset `which[i]` are: `Parts` as an array."""
        shards, places = self.places(which, begins)
        return np.stack((which, shards, places, places + stops - begins))

    def read(
        self,
        memory: Memory,
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        parts: Parts,
        borders: Sequence[int],
    ) -> tuple[Samples, int]:
        """See `read_rows`."""
        shelves = [stream.shelf for stream in self._streams]
        try:
            return read_rows(
                memory, shape, dtype, parts, borders, shelves, self._dtypes, self._readers
            )
        except FineshardsError:
            raise
        except BaseException:
            # The handler of a signal may have raised between any two steps of a reader.
            for stream in self._streams:
                stream.drop()
            raise

    def _readers(self) -> list[Any]:
        return [stream.files() for stream in self._streams]
