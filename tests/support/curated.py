"""Recipes done one document at a time: the definition of what a curated build decides.

Shares no code with the project but the pure functions of single steps: what a filter says of one
document, what a rewrite makes of it, the keys of one text, and the text that a cut leaves.
"""

import gzip
import json
import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fineshards.curation.batch import Batch
from fineshards.curation.recipe import make_step
from fineshards.curation.recipe_text import to_toml
from fineshards.curation.step import Judge, Keyed, KeyedSpans, Scorer
from fineshards.curation.words.normal_form import _kept, simplified_words
from support.oracle import cut, oracle_by_text, oracle_shuffled, tokens_of

# A row of a source: None if it cannot be read.
Row = dict[str, Any] | None
# file, row
Place = tuple[int, int]
# row, step, reason, span, witness file, witness row, similarity
Decision = tuple[int, int, str, int | None, int | None, int | None, float | None]
Steps = Sequence[tuple[str, dict[str, Any]]]

SCHEMA = pa.schema(
    [("text", pa.string()), ("id", pa.string()), ("group", pa.int64()), ("dump", pa.string())]
)
MENU = "Home | Products | Contact us today for more", "© 2019 - all rights reserved by us"
WORDS = [
    *("alpha", "beta", "Γάμμα", "δέλτα", "café", "naïve", "12", "3.5"),
    *("house", "tree", "river", "—", "…", "cloud", "&", "stone"),
]


def made_up_files(seed: int, counts: Sequence[int]) -> list[list[Row]]:
    """Rows of several files, with exact and near duplicates within and across them.

    Among them are texts of nothing, of white space, of symbols, with menus that repeat, and rows
    without text.
    """
    draw = random.Random(seed)
    known: list[str] = []
    files: list[list[Row]] = []
    for file, count in enumerate(counts):
        rows: list[Row] = []
        for number in range(count):
            text = _made_up_text(draw, known)
            if text is not None:
                known.append(text)
            rows.append(
                {
                    "text": text,
                    "id": f"{file}-{number}",
                    "group": draw.choice([None, *range(40)]),
                    "dump": draw.choice(["2019", "2020", None]),
                }
            )
        files.append(rows)
    return files


def _made_up_text(draw: random.Random, known: list[str]) -> str | None:
    kind = draw.random()
    if kind < 0.04:
        return None
    if kind < 0.1:
        return draw.choice(["", " \n\t", "---\n***", "short", "\n\n"])
    if kind < 0.25 and known:
        return draw.choice(known)
    if kind < 0.55 and known:
        return _nearly(draw, draw.choice(known))
    paragraphs = [_paragraph(draw) for _ in range(draw.randint(1, 4))]
    if draw.random() < 0.4:
        paragraphs.insert(0, MENU[0])
    if draw.random() < 0.4:
        paragraphs.append(f"{MENU[1]}\n* * *")
    return "\n\n".join(paragraphs)


def _paragraph(draw: random.Random) -> str:
    lines = [
        " ".join(draw.choices(WORDS, k=draw.randint(3, 25))) for _ in range(draw.randint(1, 4))
    ]
    return draw.choice(["\n", ". "]).join(lines)


def _nearly(draw: random.Random, text: str) -> str:
    """A text with a few other words, so that some pairs share a band key and some do not."""
    words = text.split(" ")
    for _ in range(draw.choice([1, 1, 1, 3, 8])):
        words[draw.randrange(len(words))] = draw.choice(["other", "ALPHA", "new\nline", "7"])
    return " ".join(words)


def reasons(step: Judge, *texts: str) -> list[str | None]:
    """Why a step drops each text, or None."""
    found = step.apply(Batch.of_texts(texts)).reasons
    assert found is not None
    return list(found)


def write_files(folder: Path, files: Sequence[Sequence[Row]]) -> list[Path]:
    """Writes sources in turn as parquet, lines and compressed lines; parquet has no bad rows."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, rows in enumerate(files):
        ending = "parquet" if None not in rows and number % 3 == 0 else "jsonl"
        path = folder / f"{number}.{ending}{'.gz' if number % 3 == 2 else ''}"
        if ending == "parquet":
            table = pa.Table.from_pylist(list(rows), SCHEMA)
            pq.write_table(table, path, row_group_size=7)
        else:
            lines = ["{" if row is None else json.dumps(row) for row in rows]
            content = "".join(f"{line}\n" for line in lines).encode()
            path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        paths.append(path)
    return paths


def write_recipe(path: Path, steps: Steps) -> Path:
    """Writes a recipe."""
    lines = []
    for use, parameters in steps:
        lines += ["[[steps]]", f"use = {json.dumps(use)}"]
        lines += [f"{name} = {to_toml(value)}" for name, value in parameters.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


@dataclass
class Expected:
    """What a recipe makes of files.

    texts: those that are tokenized, by row; None where there is no document. decisions: by file, in
    their order. dropped: by file, documents and bytes of text by step and reason. scores: by name,
    of each document that reached the step.
    """

    files: list[list[Row]]
    texts: list[list[str | None]]
    decisions: list[list[Decision]]
    dropped: list[dict[tuple[int, str], tuple[int, int]]]
    scores: dict[str, dict[Place, Any]] = field(default_factory=dict)

    def score_rows(self, file: int) -> list[dict[str, Any]]:
        """The scores of a file's documents, by row."""
        rows = sorted({row for of in self.scores.values() for at, row in of if at == file})
        names = self.scores.items()
        return [{"row": row} | {name: of.get((file, row)) for name, of in names} for row in rows]

    def counts(self, file: int) -> dict[str, Any]:
        """The counts of a file, as the manifest has them."""
        rows, texts = self.files[file], self.texts[file]
        kept = [text for text in texts if text is not None]
        return {
            "rows": len(rows),
            "documents": len(kept),
            "nulls": sum(row is not None and row["text"] is None for row in rows),
            "rejected": rows.count(None),
            "tokens": sum(1 + len(tokens_of(text)) for text in kept),
            "text_bytes": sum(len(text.encode()) for text in kept),
            "dropped": [
                {"step": step, "reason": reason, "documents": documents, "text_bytes": text_bytes}
                for (step, reason), (documents, text_bytes) in sorted(self.dropped[file].items())
            ],
        }

    def shards(
        self, shard_tokens: int, fraction: str | None, test_shards: int = 0, seed: int | None = None
    ) -> dict[str, bytes]:
        """The shard files, split by the text or, without a fraction, by a number of shards."""
        if seed is not None:
            return oracle_shuffled(self.texts, seed, shard_tokens, fraction, test_shards)
        texts = [[text for text in of_file if text is not None] for of_file in self.texts]
        if fraction is not None:
            return oracle_by_text(*texts, shard_tokens=shard_tokens, fraction=fraction)
        stream = [
            token for of_file in texts for text in of_file for token in (100257, *tokens_of(text))
        ]
        return cut(stream, shard_tokens, test_shards)


@dataclass
class _Stream:
    """Documents on their way through the steps. spared: files that steps only look at."""

    files: list[list[Row]]
    texts: dict[Place, str]
    spared: Collection[int] = ()
    decisions: list[list[Decision]] = field(default_factory=list)
    scores: dict[str, dict[Place, pa.Array]] = field(default_factory=dict)

    def batch(self, place: Place, step: Judge | Keyed) -> Batch:
        """A document by itself, as a step takes it."""
        file, number = place
        row = self.files[file][number]
        assert row is not None
        # As the writer above chooses formats. Lines have no types, so values are JSON there.
        is_json = file % 3 != 0 or None in self.files[file]
        columns = {}
        scores = {name: of[place] for name, of in self.scores.items() if place in of}
        for name in step.columns:
            if name.lower() in scores:
                continue
            value = row[name]
            if is_json:
                value = None if value is None else json.dumps(value)
            columns[name] = pa.array([value], pa.string() if is_json else SCHEMA.field(name).type)
        texts = pa.array([self.texts[place]], pa.large_string())
        return Batch(file, np.array([number]), texts, columns, is_json, scores=scores)

    def decide(
        self,
        place: Place,
        number: int,
        reason: str,
        span: int | None = None,
        witness_file: int | None = None,
        witness_row: int | None = None,
        similarity: float | None = None,
    ) -> None:
        """Notes a decision; a document that is not cut is dropped. Spared ones stay."""
        if place[0] in self.spared:
            return
        if span is None:
            del self.texts[place]
        alike = None if similarity is None else float(np.float32(similarity))
        decision = place[1], number, reason, span, witness_file, witness_row, alike
        self.decisions[place[0]].append(decision)


def curate(files: Sequence[Sequence[Row]], steps: Steps, spared: Collection[int] = ()) -> Expected:
    """Applies steps to all documents, one document after the other.

    spared: files, before all others, whose documents are compared with, as rewritten, and stay.
    """
    rows = [list(of_file) for of_file in files]
    stream = _Stream(
        rows,
        {
            (file, number): row["text"]
            for file, of_file in enumerate(rows)
            for number, row in enumerate(of_file)
            if row is not None and row["text"] is not None
        },
        spared,
        [[] for _ in rows],
    )
    original = dict(stream.texts)
    for number, (use, parameters) in enumerate(steps):
        if "per_language" in parameters:
            _judge_by_language(stream, number, use, parameters)
            continue
        step = make_step(use, parameters, "the test").step
        if isinstance(step, Judge):
            _judge(stream, number, step)
        elif isinstance(step, KeyedSpans):
            _cut(stream, number, step)
        else:
            assert isinstance(step, Keyed)
            joins = getattr(step, "rule", "earlier") == "components"
            if step.compared:
                _drop_alike(stream, number, step, joins)
            else:
                (_drop_components if joins else _drop_repeated)(stream, number, step)
    dropped: list[dict[tuple[int, str], tuple[int, int]]] = []
    for file, decisions in enumerate(stream.decisions):
        # Cuts before what they lead to.
        decisions.sort(key=lambda each: (*each[:2], 2**40 if each[3] is None else each[3]))
        documents, sizes = Counter(), Counter()
        for row, number, reason, span, *_ in decisions:
            if span is None:
                documents[number, reason] += 1
                sizes[number, reason] += len(original[file, row].encode())
        dropped.append({key: (documents[key], sizes[key]) for key in documents})
    stream.texts |= {place: text for place, text in original.items() if place[0] in spared}
    texts = [
        [stream.texts.get((file, number)) for number in range(len(of_file))]
        for file, of_file in enumerate(rows)
    ]
    scores = {
        name: {place: values[0].as_py() for place, values in of.items()}
        for name, of in stream.scores.items()
    }
    return Expected(rows, texts, stream.decisions, dropped, scores)


def _judge_by_language(stream: _Stream, number: int, use: str, parameters: dict[str, Any]) -> None:
    """Judges the documents of each language as a recipe for that language alone would."""
    own = dict(parameters)
    column, tables = own.pop("language_column"), own.pop("per_language")
    of_language = {table["label"]: own | table for table in tables}
    for place in list(stream.texts):
        row = stream.files[place[0]][place[1]]
        assert row is not None
        given = dict(of_language.get(row[column], own))
        given.pop("label", None)
        step = make_step(use, given, "the test").step
        assert isinstance(step, Judge)
        _judge(stream, number, step, [place])


def _judge(
    stream: _Stream, number: int, step: Judge, places: Sequence[Place] | None = None
) -> None:
    for place in list(stream.texts) if places is None else places:
        if place[0] in stream.spared and not step.REWRITES:
            continue
        outcome = step.apply(stream.batch(place, step))
        if isinstance(step, Scorer):
            assert outcome.scores is not None
            stream.scores.setdefault(step.name, {})[place] = outcome.scores
        if outcome.reasons is not None and outcome.reasons[0] is not None:
            stream.decide(place, number, outcome.reasons[0])
        elif outcome.texts is not None:
            stream.texts[place] = outcome.texts[0]


def _keys(stream: _Stream, place: Place, step: Keyed) -> list[tuple[Any, int]]:
    """The keys of a document, each with the number of its span."""
    found = step.keys(stream.batch(place, step))
    keys = [tuple(key) if isinstance(key, list) else key for key in found.keys.tolist()]
    spans = [0] * len(keys) if found.spans is None else found.spans.tolist()
    return list(zip(keys, spans, strict=True))


def _drop_repeated(stream: _Stream, number: int, step: Keyed) -> None:
    first: dict[Any, Place] = {}
    for place in list(stream.texts):
        witnesses = []
        for key, _ in _keys(stream, place, step):
            if first.setdefault(key, place) != place:
                witnesses.append(first[key])
        if witnesses:
            stream.decide(place, number, step.reason, None, *min(witnesses))


def _drop_alike(stream: _Stream, number: int, step: Any, joins: bool) -> None:
    """Compares sets of runs of words, not of hashes."""
    shingles = {place: _shingles(text, step) for place, text in stream.texts.items()}
    members: dict[Any, list[Place]] = {}
    pairs: dict[Place, set[Place]] = {}
    for place in stream.texts:
        for key in {key for key, _ in _keys(stream, place, step)}:
            earlier = members.setdefault(key, [])
            pairs.setdefault(place, set()).update(earlier[: step.candidates])
            earlier.append(place)
    links = []
    for place, others in pairs.items():
        for other in sorted(others):
            both = len(shingles[place] & shingles[other])
            sizes = len(shingles[place]), len(shingles[other])
            among = min(sizes) if step.verify == "containment" else sum(sizes) - both
            if both / among >= step.threshold:
                links.append((other, place, both / among))
                if not joins:
                    break
    if joins:
        least = {place: place for place in stream.texts}
        for _ in least:
            for one, other, _ in links:
                least[one] = least[other] = min(least[one], least[other])
        links = [(witness, place, None) for place, witness in least.items() if place != witness]
    for witness, place, similarity in links:
        stream.decide(place, number, step.reason, None, *witness, similarity)


def _shingles(text: str, step: Any) -> set[tuple[str, ...]]:
    kept = step.numbers == "keep"
    words = list(map(_kept, text.split())) if kept else simplified_words(text)
    if step.words == "characters":
        words = list("".join(words))
    size = min(step.n_grams, len(words))
    return {tuple(words[at : at + size]) for at in range(len(words) - size + 1)}


def _drop_components(stream: _Stream, number: int, step: Keyed) -> None:
    """Relabels until nothing changes: slow, and plain."""
    members: dict[Any, list[Place]] = {}
    for place in stream.texts:
        for key, _ in _keys(stream, place, step):
            members.setdefault(key, []).append(place)
    label = {place: place for place in stream.texts}
    changed = True
    while changed:
        changed = False
        for places in members.values():
            least = min(label[place] for place in places)
            for place in places:
                changed |= label[place] != least
                label[place] = least
    for place, least in label.items():
        if place != least:
            stream.decide(place, number, step.reason, None, *least)


def _cut(stream: _Stream, number: int, step: KeyedSpans) -> None:
    first: dict[Any, tuple[Place, int]] = {}
    cuts: dict[Place, dict[int, Place]] = {}
    for place in stream.texts:
        for key, span in _keys(stream, place, step):
            found = first.setdefault(key, (place, span))
            if found != (place, span):
                witness = cuts.setdefault(place, {}).setdefault(span, found[0])
                cuts[place][span] = min(witness, found[0])
    for place, spans in cuts.items():
        if place[0] in stream.spared:
            continue
        for span, witness in spans.items():
            stream.decide(place, number, step.reason, span, *witness)
        left, reason = step.cut(stream.texts[place], sorted(spans))
        if left is None:
            stream.decide(place, number, reason)
        else:
            stream.texts[place] = left


def decisions_in(folder: Path, files: int) -> list[list[Decision]]:
    """The decisions that a dataset has stored, by file."""
    found: list[list[Decision]] = []
    for number in range(files):
        path = folder / f"metadata/decisions/{number:05d}.parquet"
        rows = pq.read_table(path).to_pylist() if path.exists() else []
        # Without similarities there is no such column.
        found.append([(*list(row.values())[:6], row.get("similarity")) for row in rows])
    return found


def counts_in(folder: Path) -> Iterator[dict[str, Any]]:
    """The counts of each file in a dataset's manifest."""
    names = ("rows", "documents", "nulls", "rejected", "tokens", "text_bytes", "dropped")
    for report in json.loads((folder / "metadata/manifest.json").read_text())["reports"]:
        # What is 0 or empty is left out.
        yield {name: report["counts"].get(name, [] if name == "dropped" else 0) for name in names}
