"""What a BatchLoader reads from: a source of numbered samples."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
# Tokens of samples: uint16 where the dataset has them, uint32, int32 or int64.
Samples = npt.NDArray[np.integer]


class Source(Protocol):
    """Samples by number; `TokenDataset` is one.

    More members are optional; a BatchLoader uses those that a source has:

    - `gather_into(out, rows, numbers)` copies sample `numbers[i]` to `out[rows[i]]`, for many
      samples at once. out: shape (any, T + 1), of any dtype that holds the tokens.
    - `shard_bounds` makes `shuffle_shards` possible: int64, shape (shards + 1,), the number of each
      shard's first sample, then the number of samples.
    - `expect(shuffle, shuffle_shards)` is called once: the order in which samples will be read.
    - `request(numbers)` says which samples will be read soon; it must not wait for them.
    - `eot`, the token that starts every document, is what fields such as `position_ids` need.
    - `within_redacted(places)`: bool, shape (len(places),): which EOTs of the stream, each of which
      follows another one, are in a redacted document.
    - `loss_mask(numbers)`: bool, shape (len(numbers), T), False for labels that must not count.
      `has_loss_mask`, of conversations, and `has_padding` are True where a BatchLoader that does
      not use it should warn.
    - `read_tokens(start, stop)`, tokens of the source's stream, is what packing needs;
      `request_tokens(start, stop)` says which will be read soon, and must not wait for them.
    - `vocabulary_size`, one more than the largest token, makes a BatchLoader check each batch;
      `refuse_unknown(numbers)` then says which file is wrong.
    - `vocabulary`, any object that has `==` and reads well as text, must be equal in all sources
      of a mixture that have one.
    - `documents(number)` is what `BatchLoader.explain` needs, and `documents_between(begin, end)`,
      those of tokens of the stream, where it packs.
    """

    @property
    def fingerprint(self) -> str:
        """Changes when any sample changes."""

    @property
    def sequence_length(self) -> int:
        """T: tokens per sample, without the label of the last one."""

    def __len__(self) -> int:
        """The number of samples."""

    def __getitem__(self, index: int, /) -> npt.NDArray[np.uint32]:
        """One sample: uint32, shape (T + 1,)."""
