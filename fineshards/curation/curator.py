"""The steps of a recipe, applied to the documents of a batch.

Keyed steps need the keys of all documents, so they cut the recipe into stages. A stage is the
filters and rewrites up to a keyed step, and that step's keys; the last stage has no keyed step.
Between two stages the keys are compared. A filter judges each document once, in its own stage; a
rewrite is done again in each later stage, because texts are not stored.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fineshards.curation.batch import Batch
from fineshards.curation.per_language import PerLanguage
from fineshards.curation.recipe import NamedStep, load_steps, named_in_errors
from fineshards.curation.step import Judge, Keyed, KeyedSpans, Keys, Outcome, Scorer, Step
from fineshards.errors import FineshardsError, InputError
from fineshards.shards.job.records import SourceFile
from fineshards.shards.job.settings import RecipeRecord
from fineshards.shards.parquet_file import completed
from fineshards.shards.tables.decisions import NO_DECISIONS, Decisions, drops
from fineshards.shards.tables.hash_sample import sampled
from fineshards.shards.tables.scores import score_schema, scored, values_at
from fineshards.shards.tables.statistics import Tally

# The share of documents that each step judges again, by themselves and in its plainest way.
COMPARED_SHARE = 1 / 1000

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Judged(NamedTuple):
    """What a stage makes of a batch.

    kept: the documents that are left, with their texts. dropped: the stage's decisions, in the
    form of `decisions.SCHEMA`. keys: those of the keyed step that ends the stage. scores: what each
    scorer of the stage gave the documents that reached it.
    """

    kept: Batch
    dropped: list[pa.Table]
    keys: Keys | None
    scores: list[pa.Table]


class Curator:
    """The steps of a job, loaded and checked."""

    def __init__(self, steps: Sequence[NamedStep]) -> None:
        self.steps = [named.step for named in steps]
        self.names = [f"{number} {named.use}" for number, named in enumerate(steps, 1)]
        keyed = [number for number, step in enumerate(self.steps) if isinstance(step, Keyed)]
        # The keyed step that ends each stage.
        self._ends = [*keyed, len(self.steps)]

    @classmethod
    def of(cls, recipe: RecipeRecord) -> Curator:
        """The steps of a job's recipe.

        Raises FineshardsError if a step is not what it was when the job was launched.
        """
        steps = load_steps(recipe.steps)
        now = describe(steps, recipe.keep_keys, recipe.indexes, recipe.curate_test)
        differences = recipe.differences(now)
        if differences:
            raise FineshardsError(
                "the steps of the recipe are not what they were when the job was launched: "
                f"{'; '.join(differences)}. Install the same versions, and give the same files, "
                "or start again with --overwrite."
            )
        return cls(steps)

    @property
    def stages(self) -> int:
        """The number of stages; one more than there are keyed steps."""
        return len(self._ends)

    def keyed(self, stage: int) -> Keyed:
        """The keyed step that ends a stage."""
        step = self.steps[self._ends[stage]]
        assert isinstance(step, Keyed)
        return step

    def number_of_keyed(self, stage: int) -> int:
        """The number in the recipe of the keyed step that ends a stage."""
        return self._ends[stage]

    def score_schema(self, stages: Iterable[int]) -> pa.Schema | None:
        """The schema of the scores of some stages; None if they have no scorers."""
        firsts = [0, *self._ends]
        steps = [step for n in stages for step in self.steps[firsts[n] : self._ends[n]]]
        types = {step.name: step.score_type for step in steps if isinstance(step, Scorer)}
        return score_schema(types) if types else None

    def first_step(self, stage: int) -> int:
        """The number of the first step whose decisions a stage makes or counts."""
        return self._ends[stage - 1] if stage else 0

    def judge(
        self,
        batch: Batch,
        stage: int,
        decisions: Decisions,
        tally: Tally | None = None,
        scores: pa.Table | None = None,
    ) -> Judged:
        """Does a stage's steps, the first of which is the keyed step that ended the one before.

        batch: documents as the first step finds them: see `texts`. decisions: what that keyed step
        does is taken from there. tally: counts what each step changes and drops. scores: those of
        the stages before; None if they have no scorers.

        Raises InputError for a document that cannot be judged, and FineshardsError if a step
        decides differently about the same document.
        """
        if tally is not None and stage == 0:
            tally.add("input", batch.texts)
        if scores is not None:
            batch = batch.with_scores(values_at(scores, batch.rows))
        dropped: list[pa.Table] = []
        scored_tables: list[pa.Table] = []
        for number in range(self.first_step(stage), self._ends[stage]):
            if not len(batch):
                break
            step, before = self.steps[number], batch
            outcome = self.decide(number, batch, decisions)
            if isinstance(step, Judge):
                self.compare(step, number, batch, outcome)
            if isinstance(step, Scorer):
                scored_tables.append(scored(batch.rows, step.name, outcome.scores))
            batch = self.left(number, batch, outcome)
            if tally is not None and outcome.texts is not None:
                changed = [outcome.texts[index] for index in outcome.changed(before.strings)]
                tally.add("changed", pa.array(changed, pa.large_string()), number)
            if len(batch) == len(before):
                continue
            gone = np.array([reason is not None for reason in outcome.reasons or ()])
            named = [reason for reason in outcome.reasons or () if reason is not None]
            if isinstance(step, Judge | KeyedSpans):  # other keyed steps decided with their marks
                dropped.append(drops(before.rows[gone], number, named))
            if tally is not None:
                tally.add("dropped", before.keep(gone).texts, number, named)
        keys = None
        if stage + 1 < self.stages:
            keys = self.keyed(stage).keys(batch)
        return Judged(batch, dropped, keys, scored_tables)

    def decide(self, number: int, batch: Batch, decisions: Decisions) -> Outcome:
        """What a step makes of documents. decisions: what keyed steps do is taken from there."""
        step = self.steps[number]
        if isinstance(step, KeyedSpans):
            return _cut(step, batch, number, decisions)
        if isinstance(step, Keyed):
            dropped = (decisions.dropping(batch.rows) == number).tolist()
            return Outcome([step.reason if marked else None for marked in dropped])
        assert isinstance(step, Judge)
        return step.apply(batch)

    def spare(self, batch: Batch, stage: int) -> Judged:
        """What a stage makes of documents that it leaves as they are: keys, and null scores."""
        keys, schema, scores = None, self.score_schema([stage]), list[pa.Table]()
        if stage + 1 < self.stages:
            compared = self.texts(batch, NO_DECISIONS, self._ends[stage], spared=True)
            keys = self.keyed(stage).keys(compared)
        if schema is not None:
            scores.append(completed(pa.table({"row": batch.rows}), schema))
        return Judged(batch, [], keys, scores)

    def texts(
        self, batch: Batch, decisions: Decisions, step: int | None = None, spared: bool = False
    ) -> Batch:
        """The documents of a batch with their texts as a step finds them; None: after all steps.

        decisions: all those about the source file, at least of the steps before. All documents must
        reach that step: the caller leaves out those that an earlier one dropped. Raises
        FineshardsError if a rewrite drops one of them now. spared: they are in a test file, so what
        a rewrite would drop keeps its text.
        """
        for number, rewrite in enumerate(self.steps[:step]):
            if rewrites(rewrite):
                outcome = self.decide(number, batch, decisions)
                for index, reason in enumerate(outcome.reasons or ()):
                    if reason is not None and isinstance(rewrite, Judge) and not spared:
                        self._complain(number, batch, index, "kept", "dropped")
                batch = self._rewritten(number, batch, outcome)
        return batch

    def judge_again(
        self, batch: Batch, decisions: Decisions
    ) -> tuple[dict[int, tuple[int, str]], list[pa.Table]]:
        """Judges documents in all steps.

        decisions: all those about the source file. What keyed steps do is taken from there.

        Returns the step and the reason of those that are dropped, by row; and what each scorer
        gave.
        """
        dropped_rows: dict[int, tuple[int, str]] = {}
        scores: list[pa.Table] = []
        for number in range(len(self.steps)):
            outcome, step = self.decide(number, batch, decisions), self.steps[number]
            if isinstance(step, Scorer):
                scores.append(scored(batch.rows, step.name, outcome.scores))
            dropped = zip(batch.rows.tolist(), outcome.reasons or (), strict=False)
            dropped_rows |= {row: (number, reason) for row, reason in dropped if reason is not None}
            batch = self.left(number, batch, outcome)
        return dropped_rows, scores

    def left(self, number: int, batch: Batch, outcome: Outcome) -> Batch:
        """The documents that a step keeps, with the texts that it gives them."""
        batch, step = self._rewritten(number, batch, outcome), self.steps[number]
        if isinstance(step, Scorer):
            return batch.with_scores({step.name: outcome.scores})
        if outcome.reasons is None:
            return batch
        return batch.keep(np.array([reason is None for reason in outcome.reasons], np.bool_))

    def _rewritten(self, number: int, batch: Batch, outcome: Outcome) -> Batch:
        """A batch with the texts that a step gives; raises InputError if one is not valid."""
        texts, reasons = outcome.texts, outcome.reasons
        if texts is None:
            return batch
        step = self.steps[number]
        if not rewrites(step):
            raise FineshardsError(
                f"step {self.names[number]} gives other texts, but does not say that it rewrites: "
                "it would not be done again where the texts are read again. Set REWRITES = True."
            )
        if reasons is not None:
            # The text of a dropped document does not matter.
            judged = zip(batch.strings, texts, reasons, strict=True)
            texts = [new if reason is None else old for old, new, reason in judged]
        try:
            return batch.with_texts(texts)
        except UnicodeEncodeError:
            for row, text in zip(batch.rows.tolist(), texts, strict=True):
                if (match := _LONE_SURROGATE.search(text)) is not None:
                    raise InputError(
                        f"{batch.place(row)}: step {self.names[number]} gives it a text with the "
                        f"lone surrogate {match[0]!r} at character {match.start()}, which is not "
                        "valid Unicode. Correct the step, or drop the document before it."
                    ) from None
            raise

    def compare(self, step: Judge, number: int, batch: Batch, once: Outcome) -> None:
        """Judges a sample again; raises FineshardsError for the first document that differs."""
        chosen = np.flatnonzero(sampled(batch.rows, COMPARED_SHARE, salt=batch.file))
        for index in chosen.tolist():
            self._compare_one(number, batch, index, once, step.apply_again(batch.only(index)))

    def _compare_one(
        self, number: int, batch: Batch, index: int, once: Outcome, again: Outcome
    ) -> None:
        """Compares two outcomes for a document, which is the only one in the second."""
        first = None if once.reasons is None else once.reasons[index]
        second = None if again.reasons is None else again.reasons[0]
        if first != second:
            self._complain(number, batch, index, *map(_verdict, (first, second)))
        if first is None:
            one = batch.strings[index] if once.texts is None else once.texts[index]
            other = batch.strings[index] if again.texts is None else again.texts[0]
            if one != other:
                self._complain(number, batch, index, "gave one text", "gave another text")
        if once.scores is not None and again.scores is not None:
            scores = once.scores[index].as_py(), again.scores[0].as_py()
            if scores[0] != scores[1]:
                self._complain(number, batch, index, *(f"gave {score!r} to" for score in scores))

    def _complain(self, number: int, batch: Batch, index: int, once: str, again: str) -> None:
        raise FineshardsError(
            f"{batch.place(batch.rows[index])}: step {self.names[number]} {once} this "
            f"document and {again} it when it was judged again. A step must be a function of the "
            f"document alone. {self.steps[number].advice}"
        )


def describe(
    steps: Sequence[NamedStep],
    keep_keys: bool,
    indexes: tuple[tuple[int, SourceFile], ...],
    curate_test: bool = False,
) -> RecipeRecord:
    """The record of steps; raises FineshardsError if what they need is missing."""
    records = tuple(named.record() for named in steps)
    golden = golden_sha256(steps)
    return RecipeRecord(records, golden, keep_keys, indexes, curate_test)


def _verdict(reason: str | None) -> str:
    return "kept" if reason is None else f"dropped ({reason})"


def rewrites(step: Step) -> bool:
    """Whether a step is done again whenever a text is read."""
    return isinstance(step, KeyedSpans) or (isinstance(step, Judge) and step.REWRITES)


def _cut(step: KeyedSpans, batch: Batch, number: int, decisions: Decisions) -> Outcome:
    """Cuts the spans that an earlier span has the keys of."""
    spans = [decisions.spans(number, row) for row in batch.rows.tolist()]
    if not any(spans):
        return Outcome()
    texts, reasons = [], []
    for text, cut in zip(batch.strings, spans, strict=True):
        left, reason = step.cut(text, cut) if cut else (text, "")
        texts.append("" if left is None else left)
        reasons.append(reason if left is None else None)
    return Outcome(reasons, texts)


GOLDEN_TEXTS = (
    "",
    " \n\t ",
    "Hello, world! It's 2026-11-21, 12:34:56; mail me@example.org or 8.8.8.8.",
    "the and of to that with be have: a short line of stop words\n" * 3,
    'One sentence. Another one! A third? "A fourth." And a fifth one, that ends here.\n\n' * 4,
    "- a bullet\n* another\n• a third ...\nan ellipsis…\n# a heading # with ## hashes\n",
    "lorem ipsum dolor { sit } amet, javascript must be enabled. Terms of use, cookie policy[1].\n",
    "Ünïcödé naïve café cafe\u0301 ﬁ ﷽ \ufeffbom \u00a0nbsp\u200bzw \u2028ls \u0085nel\r\n",
    "中文分词测试。日本語のテキスト、한국어 문장, ไทย, हिन्दी में, עברית, العربية",
    "👩‍👩‍👧‍👦 :-) :O(( 8) 🇩🇪 ❤️ don't can't U.S. e.g. 10km $5.00 3,000.50 ١٢٣",
    " ".join(f"word{number % 7} is number {number}" for number in range(200)),
    "âœ” schÃ¶n &amp; broken “quotes” <b>",
    "a" * 2000 + " " * 50 + "\n" * 10 + "|" * 30 + "\n||\n",
)


def golden_sha256(steps: Iterable[NamedStep]) -> str:
    """SHA-256, as hex, of what each step makes of the golden documents.

    Steps that read columns of the input are left out: golden documents have none.
    """
    digest = hashlib.sha256()
    batch = Batch.of_texts(GOLDEN_TEXTS)
    for named in steps:
        own: Sequence[Step] = [named.step]
        if isinstance(named.step, PerLanguage):
            own = named.step.all_steps
        for step in own:
            if not step.columns and step.GOLDEN:
                with named_in_errors(named.where):
                    digest.update(_golden_bytes(step, batch))
    return digest.hexdigest()


def _golden_bytes(step: Step, batch: Batch) -> bytes:
    if isinstance(step, Judge):
        outcome = step.apply(batch)
        made = [outcome.reasons and [*outcome.reasons], outcome.texts and [*outcome.texts]]
        if outcome.scores is not None:
            made.append(outcome.scores.to_pylist())
        return json.dumps(made).encode()
    assert isinstance(step, Keyed)
    keys = step.keys(batch)
    parts = [keys.keys.astype("<u8"), keys.owners.astype("<i8")]
    parts += [] if keys.spans is None else [keys.spans.astype("<u4")]
    return b"".join(part.tobytes() for part in parts)
