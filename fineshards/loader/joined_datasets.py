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
        tokens = self._begins[which] + numbers * self._length
        shards, offsets = np.divmod(tokens, self._sizes[which])
        order = np.lexsort((shards, which))
        datasets = which[order].tolist()
        try:
            files: dict[int, Any] = {each: self._streams[each].files() for each in set(datasets)}
            readers = [files[each] for each in datasets]
            places = order.tolist(), readers, shards[order].tolist(), offsets[order].tolist()
            fill_rows(out, zip(*places, strict=True))
        except FineshardsError:
            raise
        except BaseException:
            # The handler of a signal may have raised between any two steps of a reader.
            for each in self._streams:
                each.drop()
            raise
