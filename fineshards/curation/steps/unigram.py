"""Drops documents of rare words: datatrove's UnigramLogProbFilter."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np

from fineshards.curation.batch import Batch
from fineshards.curation.parameters import nonempty
from fineshards.curation.reference_files import Pinned, pin, pinned, read
from fineshards.curation.step import Judge, Outcome
from fineshards.curation.words.tokenizers import WordLanguage, pins, tokenizer, words
from fineshards.errors import InputError

# The probability of a word that is not in the file.
_UNKNOWN = 1e-9


@dataclass(frozen=True)
class Unigram(Judge, name="unigram"):
    """Keeps a document if the mean of its words' log probabilities is above a threshold.

    A text without words has the mean 0.

    Args:
        frequencies: The path of a csv file, local or gs://, with the columns `word` (lower case)
            and `count`. datatrove downloads unigram_freq.csv of the English word frequencies.
        logprobs_threshold: What the mean must exceed.
        language: The language of the words, as spaCy names it.

    Example:
        >>> Unigram("unigram_freq.csv").logprobs_threshold
        -10
    """

    frequencies: Annotated[str, nonempty("the path of a csv file")]
    logprobs_threshold: float = -10
    language: WordLanguage = "en"

    def pins(self) -> dict[str, str]:
        return pins(self.language) | {self.frequencies: pin(self.frequencies).sha256}

    def apply(self, batch: Batch) -> Outcome:
        found = [each.strings for each in words(batch, self.language)]
        return self._judge(found)

    def apply_again(self, document: Batch) -> Outcome:
        """See Judge. The words are from spaCy itself."""
        plain = tokenizer(self.language).plain
        return self._judge([plain(text) for text in document.strings])

    def _judge(self, documents: list[list[str]]) -> Outcome:
        known = _log_probabilities(pinned(self.frequencies))
        unknown = float(np.log(_UNKNOWN))
        reasons = []
        for document in documents:
            each = np.array([known.get(word.lower(), unknown) for word in document])
            # Added one by one, as the original does: the order decides the last bits.
            mean = np.add.accumulate(each)[-1] / len(document) if document else 0
            reasons.append(None if mean > self.logprobs_threshold else "unigram")
        return Outcome(reasons)


@lru_cache(maxsize=2)
def _log_probabilities(file: Pinned) -> dict[str, float]:
    """The logarithm of each word's share of all counts."""
    content = read(file)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{file.path}, line {line}, is not UTF-8: convert it.") from error
    table = csv.DictReader(io.StringIO(text, newline=""))
    counts = []
    try:
        for row in table:
            counts.append((row["word"], int(row["count"])))
            if counts[-1][1] < 1:
                raise ValueError(f"the count is {row['count']}")
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise InputError(
            f"{file.path}, line {table.line_num}: {error!r}; expected the columns word and count, "
            "which is a whole number from 1."
        ) from error
    if not counts:
        raise InputError(
            f"{file.path}, line {table.line_num + 1}: there is no word, expected lines of a word "
            "and its count after the line word,count."
        )
    total = sum(count for _, count in counts)
    return {word: float(np.log(count / total)) for word, count in counts}
