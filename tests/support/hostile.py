"""Generated documents on which two tokenizers may disagree, reproducible by seed.

A document is a random string of fragments, each of which matters to some alternative of the
splitting patterns. numpy and Arrow generate a million documents in a second or two.
"""

from itertools import product

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.encoders.gigatoken.differences import Scheme

SPACES = [*" \n\r\t\x0b\x0c\x85\xa0\u3000\u2003\u2028\u1680\x1c\u200b\ufeff", "\r\n", "  ", "\n\n"]
# In either case, and with U+017F and U+212A, which match s and k regardless of case.
CONTRACTIONS = [
    "'" + "".join(letters)
    for ending in ("s", "t", "re", "ve", "m", "ll", "d", "k")
    for letters in product(*({x, x.upper()} | ({"ſ"} if x == "s" else set()) for x in ending))
] + ["'\u212a", "\u2019s", "''", "'", "'l", "'r", "'V"]
DIGITS = ["0", "12", "123", "1234567", "٣", "४२", "½", "Ⅷ", "²", "\U0001d7d8", "〇", "一"]
LETTERS = [*"aZéßIİıǅʰªمकก中あ한ꙮſ\u212a\u1e9e\U00010400\U0001d573\u0378", "the", "The", "THE"]
MARKS = ["\u0301", "\u0345", "\u093e", "\u20dd", "\u3099", "\ufe0f", "\U000e0100", "e\u0301"]
SIGNS = [*"!/_-.,<|>$+\\\x00\x07\x7f\ufffd\uffff\ue000\u061c\u200e", "://", "...", "/\n"]
EMOJI = ["👩\u200d👩\u200d👧", "🏳️\u200d🌈", "🇩🇪", "👍🏽", "\u200d", "❤️", "#️⃣", "\U0001faea"]
SPECIAL = ["<|endoftext|>", "<|fim_prefix|>", "<|endofprompt|>", "<|endoftext", "<|im_start|>"]

# A document is made of one family of fragments. Small families give dense runs of difficult ones.
FAMILIES = [
    SPACES,
    [*SPACES, "a", "1", "!"],
    [*CONTRACTIONS, *"aZ \n1"],
    [*DIGITS, " ", "a", "."],
    [*LETTERS, *MARKS, " ", "'s"],
    [*MARKS, *SIGNS, " ", "\n"],
    [*EMOJI, *MARKS, " ", "a"],
    [*SPECIAL, *SIGNS, "\n", " ", "a"],
    [*SPACES, *CONTRACTIONS, *DIGITS, *LETTERS, *MARKS, *SIGNS, *EMOJI, *SPECIAL],
]

MOST_FRAGMENTS = 60
MOST_CHARACTERS = 200

# Arbitrary code points per call, drawn again for each seed.
_ANY = 200


def documents(seed: int, count: int, table: Scheme | None = None) -> pa.Array:
    """Generates `count` documents of 0 to 200 characters, as large_strings.

    With `table`, one document in twenty may contain code points of the table, at any position.
    """
    rng = np.random.default_rng(seed)
    families = [*FAMILIES, [*any_characters(rng, _ANY, table), *"aZ1 \n'!"]]
    if table is not None:
        families.append([*listed_characters(rng, _ANY, table), *LETTERS, *SPACES, "1", "'s"])
    fragments = np.array([x for family in families for x in family], dtype=object)
    firsts = np.cumsum([0, *map(len, families)])
    share = np.array([1.0] * len(families))
    if table is not None:
        share[-1] = 0.05 * len(families)
    family = rng.choice(len(families), count, p=share / share.sum())
    # Half of them are short, because the beginning and end of a text matter most.
    lengths = np.where(
        rng.random(count) < 0.5, rng.integers(0, 8, count), rng.integers(0, MOST_FRAGMENTS, count)
    )
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    of = np.repeat(family, lengths)
    width = np.diff(firsts)[of]
    # Squaring favours a few fragments, different ones in each document, which gives runs.
    draw = rng.random(len(of)) ** 2 * width + np.repeat(rng.integers(0, 1 << 20, count), lengths)
    chosen = firsts[of] + draw.astype(np.int64) % width
    strings = pa.array(fragments, pa.string()).take(pa.array(chosen))
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets.astype(np.int32), strings), "")
    return pc.utf8_slice_codeunits(joined, 0, MOST_CHARACTERS).cast(pa.large_string())


def any_characters(rng: np.random.Generator, count: int, table: Scheme | None = None) -> list[str]:
    """Code points of all planes, more often low ones, and none of the table."""
    widths = rng.choice([0x250, 0x3000, 0x20000, 0x110000], 2 * count)
    codes = [int(code) for code in rng.random(2 * count) * widths]
    listed = set() if table is None else listed_codes(table)
    return [chr(x) for x in codes if not 0xD800 <= x < 0xE000 and x not in listed][:count]


def listed_codes(table: Scheme) -> set[int]:
    """All code points of the table."""
    return {code for first, last in table.ranges for code in range(first, last + 1)}


def listed_characters(rng: np.random.Generator, count: int, table: Scheme) -> list[str]:
    """Code points of the table, from each range with the same probability."""
    ends: npt.NDArray[np.int64] = rng.choice(np.array(table.ranges), count)
    return [chr(rng.integers(first, last, endpoint=True)) for first, last in ends]
