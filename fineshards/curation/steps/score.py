"""Gives each document a number or a label, which is stored and can be asked for: drops nothing."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isfunction
from numbers import Real
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.curation.batch import Batch
from fineshards.curation.fasttext_model import load_model, model_pins
from fineshards.curation.parameters import Positive, assign, check, nonempty, one_of, rule
from fineshards.curation.reference_files import pinned
from fineshards.curation.step import Outcome, Scorer
from fineshards.curation.steps.fineweb_quality import RATIOS, nonempty_lines
from fineshards.curation.steps.gopher_quality import WORD_RATIOS, word_ratios
from fineshards.curation.steps.language import model_path
from fineshards.curation.steps.user_function import FUNCTION_NAME, UserFunction
from fineshards.curation.words.tokenizers import WordRules
from fineshards.curation.words.tokenizers import pins as word_pins
from fineshards.shards.tables.statistics import measure

# Columns of `measure`.
_MEASURES = {"bytes": 0, "words": 1, "lines": 2}
_MODELS = ("language", "language_score", "fasttext", "fasttext_score")
_KNOWN = ("characters", *_MEASURES, *RATIOS, *WORD_RATIOS, *_MODELS)
_TYPES = {"number": pa.float64(), "text": pa.large_string()}
# A label names a class of documents. A longer text could be one that a redaction should remove.
_LONGEST_LABEL = 100

# Columns of exported texts.
_TAKEN = ("text", "id", "file", "row", "exact_copies", "near_copies")
_NAMES = f"lower case letters, digits and underscores, and none of {', '.join(_TAKEN)}"


def _is_name(value: object) -> bool:
    is_word = isinstance(value, str) and re.fullmatch("[a-z_][a-z0-9_]*", value)
    return bool(is_word) and value not in _TAKEN


def _is_known(value: object) -> bool:
    return value in _KNOWN or (isinstance(value, str) and bool(FUNCTION_NAME.fullmatch(value)))


@dataclass(frozen=True)
class Score(Scorer, name="score"):
    """Stores a number or a label of each document, and drops none.

    A later `where` finds it under its name, and the dataset has it in `metadata/scores/`.

    `characters`, `bytes`, `words` and `lines` are lengths. `line_punct_ratio`, `short_line_ratio`
    and `char_dup_ratio` are the ratios of the step `fineweb_quality` with its defaults.
    `textual_words` (words that are not only punctuation), `mean_word_length` (of these),
    `hash_ratio` and `ellipsis_ratio` (per word), `alpha_ratio` (of words with a letter) and
    `stop_words` (how many of its eight) are what `gopher_quality` compares. `language` and
    `fasttext` are the best label of a model of fastText, `language_score` and `fasttext_score` its
    probability, or that of another label. The model sees a space in place of a line break. A
    function gets the dict of one document and returns a finite number, or a text of at most 100
    characters. Its None, and a ratio of no lines or words, are NULL.

    Args:
        name: The name of the score: lower case letters, digits and underscores.
        by: One of these names, or `package.module:function`.
        type: What a function returns: "number" or "text".
        columns: Columns of the input that a function sees in addition to the text.
        batch: The most documents that a function takes at a time, in a list; None where it takes
            one, and no list.
        arguments: A table of the function's keyword arguments, such as a model and its SHA-256.
        model: The path of a model, local or gs://. None: for languages, lid.176.ftz.
        label: The label, without `__label__`, whose probability is the score. None: the best.
        words: The language of the words of what `gopher_quality` compares, by spaCy's name; or
            "space": what stands between white space.

    Example:
        >>> step = Score("length", by="characters")
        >>> step.apply(Batch.of_texts(["four", "three"])).scores.to_pylist()
        [4.0, 5.0]
    """

    name: Annotated[str, rule(_NAMES, _is_name)]
    by: Annotated[str, rule(f"one of {', '.join(_KNOWN)}, or package.module:function", _is_known)]
    type: Annotated[str, one_of(*_TYPES)] | None = None
    columns: tuple[str, ...] = ()
    batch: Positive | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    model: Annotated[str, nonempty("the path of a model")] | None = None
    label: Annotated[str, nonempty("a label of the model")] | None = None
    words: WordRules = "en"

    def __post_init__(self) -> None:
        if isfunction(self.by):
            assign(self, "by", UserFunction(self.by).use)
        super().__post_init__()
        calls = self._function is not None
        # Other people's code may fail on golden documents.
        assign(self, "GOLDEN", not calls)
        number_or_text = "number or text" if calls else "none: only a function needs it"
        check(self.NAME, "type", self.type, calls == (self.type is not None), number_or_text)
        for name in ("columns", "batch", "arguments"):
            value = getattr(self, name)
            check(self.NAME, name, value, calls or not value, "none: only a function takes it")
        needs, may = self.by.startswith("fasttext"), self.by in _MODELS
        fits = may if self.model is not None else not needs
        check(self.NAME, "model", self.model, fits, "the path of a model" if needs else "none")
        fits = self.label is None or self.by in ("language_score", "fasttext_score")
        check(self.NAME, "label", self.label, fits, "none: language_score or fasttext_score has it")
        fits = self.words == "en" or self.by in WORD_RATIOS
        check(self.NAME, "words", self.words, fits, "en: what gopher_quality compares has others")

    @property
    def score_type(self) -> pa.DataType:
        return _TYPES[self.type or ("text" if self.by in ("language", "fasttext") else "number")]

    @property
    def advice(self) -> str:
        return super().advice if self._function is None else self._function.advice

    @property
    def _function(self) -> UserFunction | None:
        if ":" not in self.by:
            return None
        return UserFunction(self.by, self.columns, self.arguments, self.batch)

    def pins(self) -> dict[str, str]:
        """See Step. Raises UsageError for a label that the model does not have."""
        if self._function is not None:
            return self._function.pins()
        if self.by in WORD_RATIOS:
            return word_pins(self.words)
        if self.by not in _MODELS:
            return {}
        labels = [] if self.label is None else [self.label]
        return model_pins(self.NAME, model_path(self.model), labels)

    def apply(self, batch: Batch) -> Outcome:
        return Outcome(scores=pa.array(self._values(batch), self.score_type))

    def apply_again(self, document: Batch) -> Outcome:
        if self.by not in WORD_RATIOS:
            return self.apply(document)
        values = word_ratios(self.by, document, self.words, again=True)
        return Outcome(scores=pa.array(values, self.score_type))

    def _values(self, batch: Batch) -> Sequence[Any] | pa.Array:
        if self._function is not None:
            return list(self._function.answers(batch, self._read))
        if self.by in _MODELS:
            return self._of_model(batch)
        if self.by in WORD_RATIOS:
            return word_ratios(self.by, batch, self.words)
        if self.by in RATIOS:
            ratio = RATIOS[self.by]
            of_lines = [(text, nonempty_lines(text)) for text in batch.strings]
            return [ratio(text, lines) if lines else None for text, lines in of_lines]
        if self.by in _MEASURES:
            return measure(batch.texts)[:, _MEASURES[self.by]].astype(np.float64)
        return pc.utf8_length(batch.texts).cast(pa.float64())

    def _of_model(self, batch: Batch) -> list[Any]:
        path = model_path(self.model)
        model = load_model(pinned(path))
        if self.label is not None:
            return [model.scores(text).get(self.label, 0.0) for text in batch.strings]
        best = batch.derived(
            f"the best label of {path}",
            lambda texts: [_best(model.scores(text)) for text in texts],
        )
        return [label_and_score[self.score_type == pa.float64()] for label_and_score in best]

    def _read(self, answer: object, _: str) -> float | str | None:
        """A score from what a function returned."""
        if answer is None:
            return None
        if self.type == "text" and isinstance(answer, str) and len(answer) <= _LONGEST_LABEL:
            answer.encode()  # a lone surrogate cannot be stored
            return answer
        if self.type == "number" and isinstance(answer, Real) and not isinstance(answer, bool):
            number = float(answer)
            if math.isfinite(number):
                return number
        expected = f"a text of at most {_LONGEST_LABEL} characters"
        if self.type == "number":
            expected = "a finite number"
        raise TypeError(f"it returned {answer!r:.100}, expected {expected}, or None")


def _best(scores: dict[str, float]) -> tuple[str | None, float | None]:
    """The label with the highest score, and the score; None if there is none.

    Of equal scores, that of the first label in order of the alphabet.
    """
    if not scores:
        return None, None
    label = min(scores, key=lambda name: (-scores[name], name))
    return label, scores[label]
