"""Keeps or drops documents by the labels of a fastText classifier.

datatrove's FastTextClassifierFilter, without the scores in the metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from fineshards.curation.batch import Batch
from fineshards.curation.fasttext_model import (
    PREFIX,
    Model,
    fasttext_version,
    load_model,
    refuse_unknown,
)
from fineshards.curation.parameters import assign, check, is_number, nonempty, one_of, rule
from fineshards.curation.reference_files import pin, pinned
from fineshards.curation.step import Judge, Outcome, compared
from fineshards.curation.words import tokenizers

_MODES = ("DOCUMENT", "PARAGRAPH", "SENTENCE")

Labels = tuple[tuple[str, float], ...]


def _labels(value: object) -> Labels:
    """Pairs of label and score. A single pair may stand alone, as in datatrove."""
    single = isinstance(value, Sequence) and len(value) > 0 and isinstance(value[0], str)
    pairs = [value] if single else value
    if isinstance(pairs, Sequence) and len(pairs) > 0 and all(map(_is_pair, pairs)):
        return tuple((pair[0], pair[1]) for pair in pairs)
    raise ValueError("a list of pairs of a label and a score")


def _is_pair(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and len(value) == 2
        and isinstance(value[0], str)
        and is_number(value[1])
    )


def _is_one_line(value: object) -> bool:
    return isinstance(value, str) and "\n" not in value


@dataclass(frozen=True)
class FastText(Judge, name="fasttext"):
    """Keeps what has one of some labels, or drops what has one, by the score of the label.

    Args:
        model_url: The path of a model, local or gs://.
        keep_labels: Pairs of a label, without `__label__`, and the least score that keeps.
        remove_labels: Pairs of a label and the least score that removes. Give one of the two.
        newline_replacement: What the model sees in place of line breaks.
        filter_mode: "DOCUMENT", "PARAGRAPH" or "SENTENCE". Paragraphs and (English) sentences are
            judged by themselves; those that do not pass are cut, and a document is dropped if
            nothing is left.

    Example:
        >>> FastText("quality.bin", keep_labels=[["good", 0.9]]).keep_labels
        (('good', 0.9),)
    """

    # In a mode that cuts, see __post_init__.
    REWRITES: ClassVar[bool] = True

    model_url: Annotated[str, nonempty("the path of a model")]
    keep_labels: Annotated[Labels, _labels] | None = None
    remove_labels: Annotated[Labels, _labels] | None = None
    newline_replacement: Annotated[str, rule("a string without line breaks", _is_one_line)] = ""
    filter_mode: Annotated[str, one_of(*_MODES)] = "DOCUMENT"

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = (self.keep_labels is None) != (self.remove_labels is None)
        check(self.NAME, "keep_labels", self.keep_labels, fits, "this or remove_labels, not both")
        assign(self, "REWRITES", self.filter_mode != "DOCUMENT")

    @property
    def _by_sentence(self) -> bool:
        return self.filter_mode == "SENTENCE"

    def pins(self) -> dict[str, str]:
        """See Step. Raises UsageError for a label that the model does not have."""
        pins = tokenizers.pins() if self._by_sentence else {}
        pins |= {"fasttext": fasttext_version(), self.model_url: pin(self.model_url).sha256}
        asked = [label for label, _ in self.keep_labels or self.remove_labels or ()]
        refuse_unknown("fasttext", self.model_url, asked)
        return pins

    def apply(self, batch: Batch) -> Outcome:
        model = load_model(pinned(self.model_url))
        reasons: list[str | None] = []
        texts = []
        for text in batch.strings:
            units = self._units(text)
            left = "".join(unit for unit in units if self._passes(model, unit))
            texts.append(left)
            reasons.append(None if left.strip() else "fasttext")
        return Outcome(reasons, None if self.filter_mode == "DOCUMENT" else texts)

    def apply_again(self, document: Batch) -> Outcome:
        outcome = self.apply(document)
        if outcome.reasons == [None] or self.filter_mode != "DOCUMENT":
            return outcome
        (text,) = document.strings
        scores = self._scores(load_model(pinned(self.model_url)), text)
        score, least, label = max(scores, key=lambda each: each[0] - each[1])
        what, keeps = f"is the score of {label}", self.keep_labels is not None
        how, parameter = ("below", "keep_labels") if keeps else ("not below", "remove_labels")
        return Outcome([compared("fasttext", score, what, how, least, parameter)])

    def _units(self, text: str) -> list[str]:
        """The parts of a text that are judged by themselves."""
        if self.filter_mode == "PARAGRAPH":
            return paragraphs(text)
        return tokenizers.tokenizer("en").split_sentences(text) if self._by_sentence else [text]

    def _passes(self, model: Model, unit: str) -> bool:
        found = any(score >= least for score, least, _ in self._scores(model, unit))
        return found == (self.keep_labels is not None)

    def _scores(self, model: Model, unit: str) -> list[tuple[float, float, str]]:
        """Of each label its score, -1 where the model gives none, and the least that counts."""
        scores = model.scores(unit.strip().replace("\n", self.newline_replacement))
        labels = self.keep_labels or self.remove_labels or ()
        return [(scores.get(PREFIX + label, -1.0), least, label) for label, least in labels]


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a text, each with the blank lines behind it, as datatrove splits them.

    All line breaks become "\\n"; the last line has none.

    Example:
        >>> paragraphs("one\\n\\ntwo\\nthree")
        ['one\\n\\n', 'two\\n', 'three']
    """
    found: list[str] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        ended = line if number == len(lines) else f"{line}\n"
        if line.strip() or not found:
            found.append(ended)
        else:
            found[-1] += ended
    return found
