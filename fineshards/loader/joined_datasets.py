"""Several datasets on a local disk, read together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fineshards.errors import FineshardsError
from fineshards.loader.sample_sources import Samples
from fineshards.loader.token_dataset import TokenDataset
from fineshards.loader.tokens.local_shards import fill_rows


class JoinedDatasets:
    """Reads the samples of a batch in one pass, from several datasets on a local disk."""

    def __init__(self, datasets: Sequence[TokenDataset]) -> None:
        self._streams = [each.stream for each in datasets]
        self._length = datasets[0].sequence_length
        self._begins = np.array([each.begin for each in self._streams])
        self._sizes = np.array([each.shard_tokens for each in self._streams])

    @classmethod
    def of(cls, sources: Sequence[Any]) -> Self | None:
        """None unless all sources are such datasets."""
        local = all(type(each) is TokenDataset and each.stream.is_local for each in sources)
        return cls(sources) if local else None

    def gather_into(
        self, out: Samples, which: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]
    ) -> None:
        """Copies sample `numbers[i]` of dataset `which[i]` to `out[i]`; see TokenDataset."""
        single = len(self._streams) == 1
        begins, sizes = (each[0] if single else each[which] for each in (self._begins, self._sizes))
        shards, offsets = np.divmod(begins + numbers * self._length, sizes)
        try:
            used = [0] if single else set(which.tolist())
            readers: dict[int, Any] = {each: self._streams[each].files() for each in used}
            samples = len(numbers)
            in_order = samples and single and numbers[-1] - numbers[0] == samples - 1
            if in_order and (np.diff(numbers) == 1).all():
                count = samples * self._length + 1
                run = readers[0].view(int(shards[0]), int(offsets[0]), count)
                if run is not None:
                    out[:, :-1] = run[:-1].reshape(-1, self._length)
                    out[:, -1] = run[self._length :: self._length]
                    return
            fill_rows(out, readers, which.tolist(), shards.tolist(), offsets.tolist())
        except FineshardsError:
            raise
        except BaseException:
            # The handler of a signal may have raised between any two steps of a reader.
            for each in self._streams:
                each.drop()
            raise
