"""A model of fastText that is made by hand: few words, known numbers, and what it should say."""

import struct
from pathlib import Path

import numpy as np

LABELS = ("good", "plain", "odd")
# A word's vector has a place for each label.
WORDS = {"house": (3, 0, 0), "river": (0, 2, 0), "12": (0, 0, 4), "&": (0, 1, 1), "beta": (1, 0, 2)}
_SUPERVISED, _SOFTMAX = 3, 3


def write_model(path: Path) -> Path:
    """Writes the model, in the format that `fasttext_model.py` describes."""
    places = len(LABELS)
    # Dimension, window, epochs, least count, negatives, n-grams of words, loss, model, buckets,
    # n-grams of letters from and to, updates.
    numbers = places, 5, 5, 1, 5, 1, _SOFTMAX, _SUPERVISED, 0, 0, 0, 100
    entries = len(WORDS) + places
    content = struct.pack("<ii12id", 793712314, 12, *numbers, 0.0001)
    content += struct.pack("<iiiqq", entries, len(WORDS), places, 100, -1)
    kinds = [*((word, 0) for word in WORDS), *((f"__label__{label}", 1) for label in LABELS)]
    for word, kind in kinds:
        content += word.encode() + b"\0" + struct.pack("<qb", 10, kind)
    for matrix in (np.array(list(WORDS.values())), np.eye(places)):
        content += struct.pack("<?qq", False, *matrix.shape) + matrix.astype("<f4").tobytes()
    path.write_bytes(content)
    return path


def probabilities(text: str) -> dict[str, float]:
    """The probability of each label, by the definition; empty for a text without known words."""
    vectors = [WORDS[word] for word in text.split() if word in WORDS]
    if not vectors:
        return {}
    powers = np.exp(np.mean(vectors, axis=0))
    return dict(zip(LABELS, (powers / powers.sum()).tolist(), strict=True))
