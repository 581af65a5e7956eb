"""A filter or rewrite with other parameters for each language of the documents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fineshards.curation.batch import Batch
from fineshards.curation.column_values import strings_of
from fineshards.curation.parameters import assign, check, checked, nonempty
from fineshards.curation.step import Judge, Outcome, Scorer


@dataclass(frozen=True)
class PerLanguage(Judge, name="per_language"):
    """Judges each document by the step of its language.

    Args:
        steps: The step of each language, by its name in the column or of the model.
        others: The step of documents that have another language, or none.
        language_column: The column of the input, or the score, that has each document's language.
    """

    steps: Mapping[str, Judge]
    others: Judge
    language_column: str

    def __post_init__(self) -> None:
        column = nonempty("the name of a column")
        checked(self.NAME, "language_column", self.language_column, column)
        kind = type(self.others)
        # Steps that are other people's code have no NAME of their class.
        fits = isinstance(self.others, Judge) and hasattr(self.others, "NAME")
        fits = fits and not isinstance(self.others, Scorer | PerLanguage)
        check(self.NAME, "others", self.others, fits, "a filter or a rewrite of fineshards")
        fits = bool(self.steps) and all(type(step) is kind for step in self.all_steps)
        check(self.NAME, "steps", self.steps, fits, f"a {kind.__name__} for each language")
        # Nothing may depend on the order of the tables, not even what golden documents become.
        assign(self, "steps", dict(sorted(self.steps.items())))
        for name in ("NAME", "VERSION", "GOLDEN"):
            assign(self, name, getattr(self.others, name))
        assign(self, "REWRITES", any(step.REWRITES for step in self.all_steps))

    @property
    def all_steps(self) -> list[Judge]:
        """The steps of all languages; that of the others comes first."""
        return [self.others, *self.steps.values()]

    @property
    def columns(self) -> tuple[str, ...]:
        others = (name for step in self.all_steps for name in step.columns)
        return tuple(dict.fromkeys((self.language_column, *others)))

    @property
    def reads_scores(self) -> tuple[str, ...]:
        """See Step. A rewrite is done again where a text is read, without the scores."""
        if self.REWRITES:
            return ()
        read = (name for step in self.all_steps for name in step.reads_scores)
        return (self.language_column, *read)

    def pins(self) -> dict[str, str]:
        pins: dict[str, str] = {}
        for language, step in [("others", self.others), *self.steps.items()]:
            for name, value in step.pins().items():
                if pins.setdefault(name, value) != value:
                    pins[f"{name} of {language}"] = value
        return pins

    def apply(self, batch: Batch) -> Outcome:
        reasons: list[str | None] = [None] * len(batch)
        texts: list[str] | None = None
        for step, indices in self._parts(batch):
            chosen = np.zeros(len(batch), np.bool_)
            chosen[indices] = True
            part = batch.keep(chosen)
            outcome = step.apply(part)
            batch.learn(part, indices)
            if outcome.reasons is not None:
                for index, reason in zip(indices, outcome.reasons, strict=True):
                    reasons[index] = reason
            if outcome.texts is not None:
                texts = texts or list(batch.strings)
                for index, text in zip(indices, outcome.texts, strict=True):
                    texts[index] = text
        return Outcome(reasons, texts)

    def apply_again(self, document: Batch) -> Outcome:
        ((step, _),) = self._parts(document)
        return step.apply_again(document)

    def _parts(self, batch: Batch) -> Sequence[tuple[Judge, list[int]]]:
        """The steps that have documents in a batch, and the places of each one's, ascending."""
        score = batch.scores.get(self.language_column.lower())
        languages: Sequence[str | None] = (
            strings_of(batch, self.language_column) if score is None else score.to_pylist()
        )
        parts: dict[str | None, list[int]] = {}
        for index, language in enumerate(languages):
            parts.setdefault(language if language in self.steps else None, []).append(index)
        return [
            (self.others if language is None else self.steps[language], indices)
            for language, indices in parts.items()
        ]
