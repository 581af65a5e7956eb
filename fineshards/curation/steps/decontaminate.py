"""Drops documents that share n-grams of words with evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

from fineshards.curation.batch import Batch
from fineshards.curation.evaluations import EvaluationRecord, chosen, records, strings_in, task_of
from fineshards.curation.ngram_index import NgramIndex, Passage
from fineshards.curation.parameters import Positive, check, nonempty, some
from fineshards.curation.reference_files import Pinned, pin_pattern, pinned_pattern
from fineshards.curation.step import Judge, Outcome
from fineshards.curation.words import normal_form
from fineshards.curation.words.normal_form import simplified_words, word_hashes
from fineshards.errors import UsageError

_Column = Annotated[str, nonempty("the name of a column")]


class Witness(NamedTuple):
    """What a document shares with an evaluation.

    task, file, line: where the passage is: its task, file and line (or record), from 1. ngram: the
    words that are shared, simplified.
    """

    task: str
    file: str
    line: int
    ngram: str


@dataclass(frozen=True)
class Decontaminate(Judge, name="decontaminate"):
    """Drops a document if it has `ngram` words in a row that an evaluation has.

    Texts are compared without case, punctuation, accents and numbers, as datatrove simplifies them;
    words are what stands between spaces then. The reason is `contaminated:TASK`, where the task is
    the name of the evaluation's file without its endings; of several tasks, the one whose file is
    first by path, for the first such words of the document. Hashes find candidates; words decide.
    Documents with fewer words than `ngram` are kept, and texts of evaluations with fewer words find
    nothing.

    Each worker holds the evaluations: about 5 MB of memory per MB of text, which is 1.5 GB for all
    of the common benchmarks. Use `seen_in` for what is larger.

    Args:
        files: Patterns of evaluation files, local or gs://: JSON Lines, csv, tsv or Parquet.
        ngram: Words in a row that must be shared.
        evaluation_columns: The columns to compare, each text by itself. None: all strings of a
            record, also those within its lists and objects.
        label_column: Instead of `evaluation_columns`: the column with the answer or answers, as in
            datatrove.
        query_column: With `label_column`: the column with the question.
        find_query_ngrams: Whether words of the question alone count.
        find_overlap_ngrams: Whether words from the end of the question and the beginning of the
            answer count.

    Example:
        >>> Decontaminate(["evaluations/*.jsonl"], ngram=12).ngram
        12
    """

    files: Annotated[tuple[str, ...], some("pattern of files")]
    ngram: Positive = 13
    evaluation_columns: Annotated[tuple[str, ...], some("column")] | None = None
    label_column: _Column | None = None
    query_column: _Column | None = None
    find_query_ngrams: bool = False
    find_overlap_ngrams: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        label, query = self.label_column, self.query_column
        fits = self.evaluation_columns is None or label is None
        check(self.NAME, "label_column", label, fits, "either this or evaluation_columns")
        fits = query is None or label is not None
        check(self.NAME, "query_column", query, fits, "label_column with it")

    def pins(self) -> dict[str, str]:
        """See Step. Raises UsageError if no text of the evaluations is long enough."""
        files = [file for pattern in self.files for file in pin_pattern(pattern)]
        if not len(self._index()):
            raise UsageError(
                f"decontaminate: ngram is {self.ngram}, but no text in {', '.join(self.files)} has "
                "that many words. Choose fewer, or other columns."
            )
        return normal_form.pins() | {file.path: file.sha256 for file in files}

    def apply(self, batch: Batch) -> Outcome:
        hits = self._index().hits(batch.strings)
        files = self._files()
        return Outcome(
            [hit and f"contaminated:{task_of(files[hit.passage.task].path)}" for hit in hits]
        )

    def witness(self, text: str) -> Witness | None:
        """What a text shares with an evaluation; None if nothing."""
        [hit] = self._index().hits([text])
        if hit is None:
            return None
        path = self._files()[hit.passage.task].path
        words = simplified_words(text)[hit.word : hit.word + self.ngram]
        return Witness(task_of(path), path, hit.passage.line, " ".join(words))

    def _files(self) -> tuple[Pinned, ...]:
        found = {file for pattern in self.files for file in pinned_pattern(pattern)}
        return tuple(sorted(found))

    def _index(self) -> NgramIndex:
        return _index(self, self._files())

    def passages(self, task: int, file: Pinned) -> Iterator[Passage]:
        """Yields the passages of an evaluation file, with the n-grams of each that count."""
        for record in records(file):
            for query, label in self._texts(file, record):
                hashes = word_hashes([query, label])
                before, after = (len(part) // 8 for part in hashes)
                first = 0 if self.find_query_ngrams else before
                if self.find_overlap_ngrams and not self.find_query_ngrams:
                    first = max(0, before - self.ngram + 1)
                last = before + after - self.ngram
                if self.find_overlap_ngrams:
                    pieces = [range(first, last + 1)]
                else:
                    pieces = [range(first, before - self.ngram + 1), range(before, last + 1)]
                words = " ".join(simplified_words(query) + simplified_words(label))
                for starts in pieces:
                    if starts:
                        yield Passage(words, b"".join(hashes), starts, task, record.line)

    def _texts(self, file: Pinned, record: EvaluationRecord) -> Iterator[tuple[str, str]]:
        """Pairs of a question, which may be empty, and an answer."""
        if self.label_column is None:
            values: Any = record.values
            if self.evaluation_columns is not None:
                values = chosen(file, record, self.evaluation_columns)
            for text in strings_in(values):
                yield "", text
            return
        [labels] = chosen(file, record, [self.label_column])
        query = ""
        if self.query_column is not None:
            [value] = chosen(file, record, [self.query_column])
            query = value if isinstance(value, str) else ""
        for label in strings_in(labels):
            yield query, label


@lru_cache(maxsize=2)
def _index(step: Decontaminate, files: tuple[Pinned, ...]) -> NgramIndex:
    found = [passage for task, file in enumerate(files) for passage in step.passages(task, file)]
    return NgramIndex(found, step.ngram)
