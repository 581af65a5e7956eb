"""Runs the command line with a gigatoken that is wrong for documents that contain a given text.

It is a separate process, so that other tests never use that encoder. The arguments are the text,
then those of the command line.
"""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.cli.cli import main
from fineshards.encoders.encoder import TokenBatch
from fineshards.encoders.gigatoken.bounded_tokenizer import BoundedTokenizer


def spoil(mark: str) -> None:
    """Changes the last token of documents that contain `mark`. All lengths stay the same."""
    encode = BoundedTokenizer.encode

    def wrong(self: BoundedTokenizer, texts: pa.Array) -> TokenBatch:
        batch = encode(self, texts)
        places = np.flatnonzero(pc.match_substring(texts, mark).to_numpy(zero_copy_only=False))
        tokens = batch.tokens.copy()
        tokens[batch.offsets[places + 1] - 1] ^= 1
        return TokenBatch(tokens, batch.offsets, batch.by_reference)

    BoundedTokenizer.encode = wrong  # type: ignore[method-assign]


if __name__ == "__main__":
    spoil(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
