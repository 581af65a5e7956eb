"""The command line with a gigatoken that is wrong for the documents that hold a certain text.

A process of its own, so that no other test meets that encoder. The arguments: the text, then those
of the command line.
"""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.encoders.encoder import TokenBatch
from fineshards.encoders.gigatoken_encoder import GigatokenTokenizer
from fineshards.pipeline.cli import main


def spoil(mark: str) -> None:
    """Makes the last token of documents with `mark` another one; all lengths stay as they are."""
    encode = GigatokenTokenizer.encode

    def wrong(self: GigatokenTokenizer, texts: pa.Array) -> TokenBatch:
        batch = encode(self, texts)
        places = np.flatnonzero(pc.match_substring(texts, mark).to_numpy(zero_copy_only=False))
        tokens = batch.tokens.copy()
        tokens[batch.offsets[places + 1] - 1] ^= 1
        return TokenBatch(tokens, batch.offsets, batch.by_reference)

    GigatokenTokenizer.encode = wrong  # type: ignore[method-assign]


if __name__ == "__main__":
    spoil(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
