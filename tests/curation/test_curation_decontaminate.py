"""Decontamination: a document that shares n words in a row with an evaluation is dropped."""

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from support.curated import reasons

from fineshards.curation.evaluations import strings_in, task_of
from fineshards.curation.steps.decontaminate import Decontaminate, NgramIndex, Passage, Witness
from fineshards.curation.words.normal_form import simplified_words, word_hashes
from fineshards.errors import InputError, UsageError

QUESTION = "If a train leaves the station at 9:30 and arrives at noon, how long does it take?"
ANSWER = "It takes two and a half hours, since noon is two and a half hours after half past nine."


def write(path: Path, *records: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_the_task_the_line_and_the_words_are_found(tmp_path: Path) -> None:
    short = write(tmp_path / "boolq.jsonl", {"q": "Too short to find"})
    path = write(tmp_path / "gsm8k.jsonl", {"id": 1}, {"q": [QUESTION], "a": {"text": ANSWER}})
    step = Decontaminate((f"{tmp_path}/*.jsonl",))
    assert step.pins().keys() == {"unicode", short, path}
    copied = "He asked: IF A TRAIN LEAVES THE STATION — at 10:45 — and arrives at noon! Então..."
    fewer = " ".join(QUESTION.split()[:11])
    assert reasons(step, copied, fewer, "", ANSWER, "Too short to find") == [
        *("contaminated:gsm8k", None, None, "contaminated:gsm8k", None)
    ]
    ngram = "if a train leaves the station at 0 0 and arrives at"
    found = Decontaminate((path,), ngram=12).witness(QUESTION)
    assert found == Witness("gsm8k", path, 2, ngram)
    assert step.witness("nothing of the kind") is None


def test_the_first_file_by_path_is_named(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "c.jsonl"):
        write(tmp_path / name, {"q": QUESTION})
    step = Decontaminate((f"{tmp_path}/c.jsonl", f"{tmp_path}/*.jsonl"))
    assert reasons(step, QUESTION) == ["contaminated:a"]


def test_formats(tmp_path: Path) -> None:
    records = [{"q": QUESTION, "n": 1}, {"q": ANSWER + "\nnext line", "n": 2}]
    lines = "".join(json.dumps(record) + "\n" for record in records).encode()
    table = pa.Table.from_pylist(records)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "b.ndjson.zst").write_bytes(zstandard.compress(lines))
    pq.write_table(table, tmp_path / "c.parquet")
    quoted = "".join(f'"{record["q"]}",{record["n"]}\n' for record in records)
    (tmp_path / "d.csv").write_text("q,n\n" + quoted)
    (tmp_path / "e.tsv.gz").write_bytes(
        gzip.compress(("q\tn\n" + quoted.replace('",', '"\t')).encode())
    )
    for name in ("a.jsonl.gz", "b.ndjson.zst", "c.parquet", "d.csv", "e.tsv.gz"):
        step = Decontaminate((str(tmp_path / name),), evaluation_columns=("q",))
        assert reasons(step, QUESTION, "x " + ANSWER) == [f"contaminated:{name[0]}"] * 2
        found = step.witness(ANSWER)
        assert found is not None
        assert found.line == 2
        with pytest.raises(UsageError, match=r"record 1 has no column 'z'; its columns are q, n"):
            Decontaminate((str(tmp_path / name),), evaluation_columns=("z",)).pins()


def test_a_file_may_begin_with_a_byte_order_mark_and_json_be_an_array(tmp_path: Path) -> None:
    records = [{"q": QUESTION}, {"q": ANSWER}]
    lines = "".join(json.dumps(record) + "\n" for record in records).encode()
    mark = b"\xef\xbb\xbf"
    contents = {
        "a.jsonl": mark + lines,
        "b.json": lines,
        "c.json": json.dumps(records, indent=1).encode(),
        "d.json": mark + b" \n" + json.dumps(records).encode(),
        "e.csv": mark + b"q\n" + b"".join(f'"{record["q"]}"\n'.encode() for record in records),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        step = Decontaminate((str(tmp_path / name),), evaluation_columns=("q",))
        assert reasons(step, QUESTION, "x " + ANSWER) == [f"contaminated:{name[0]}"] * 2
        found = step.witness(ANSWER)
        assert found is not None
        assert found.line == 2


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.json", b'[{"q": 1}, 2]', "element 2 is not an object"),
        ("x.json", b'[{"q": 1}', "x.json cannot be read as json: "),
        ("x.jsonl", b'{"q": 1}\n{"q": \n', "x.jsonl cannot be read as jsonl: line 2: "),
        ("x.jsonl", b"[1]\n", "element 1 is not an object"),
        ("x.jsonl.gz", gzip.compress(b"{}" * 999, mtime=0)[:-9], "x.jsonl.gz cannot be read"),
        ("x.jsonl.gz", b"{}", "x.jsonl.gz cannot be read as jsonl"),
        ("x.parquet", b"PAR1", "x.parquet cannot be read as parquet"),
        ("x.csv", b'a,b\n1,2\n"3', "x.csv cannot be read as csv"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=re.escape(said)):
        Decontaminate((str(tmp_path / name),)).pins()


def test_evaluations_without_enough_words_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"q": "yes or no"})
    with pytest.raises(UsageError, match=r"ngram is 13, but no text in .* has that many words"):
        Decontaminate((path,)).pins()
    assert reasons(Decontaminate((path,), ngram=3), "So YES, or no?", "no or yes") == [
        *("contaminated:a", None)
    ]


def test_strings_are_found_at_any_depth_and_in_maps() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [{"key": deep}]
    assert list(strings_in(["a", {"k": ["b", 1, None]}, deep, "c"])) == ["a", "b", "x", "c"]
    maps = pa.array(
        [[("k", ["a", "b"]), ("l", ["c"])]], pa.map_(pa.string(), pa.list_(pa.string()))
    )
    assert list(strings_in(maps.to_pylist())) == ["a", "b", "c"]


def test_names_of_tasks() -> None:
    assert task_of("x/mmlu.parquet") == "mmlu"
    assert task_of("a.b.csv.zst") == "a.b"


WORDS = st.lists(st.sampled_from("abcd"), max_size=12)


@settings(max_examples=150, deadline=None)
@given(st.lists(WORDS, max_size=3), st.lists(WORDS, max_size=6), st.integers(1, 5))
def test_documents_with_an_ngram_of_an_evaluation_are_dropped(
    tmp_path_factory: pytest.TempPathFactory,
    passages: list[list[str]],
    documents: list[list[str]],
    n: int,
) -> None:
    folder = tmp_path_factory.mktemp("evaluation")
    path = write(folder / "t.jsonl", {"q": [" ".join(words) for words in passages]})

    def ngrams(words: list[str]) -> set[tuple[str, ...]]:
        return {tuple(words[at : at + n]) for at in range(len(words) - n + 1)}

    bad = set().union(*map(ngrams, passages))
    found = reasons(Decontaminate((path,), n), *map(" ".join, documents))
    assert [reason is not None for reason in found] == [
        not bad.isdisjoint(ngrams(document)) for document in documents
    ]


def passage(text: str, task: int = 0) -> Passage:
    words = simplified_words(text)
    return Passage(" ".join(words), word_hashes([text])[0], task, 1)


def test_equal_hashes_of_other_words_decide_nothing() -> None:
    index = NgramIndex([passage("a b c d e f")], 3)
    index._keys[:] = index._keys[0]
    index._bitmap[:] = 255
    # Every key that is found now is of another n-gram, or the right one among others.
    assert index.hits(["u v w x", "a b x c"]) == [None, None]
    for text in ("a b c", "d e f"):
        [hit] = index.hits([text])
        assert hit is None or hit.passage.line == 1


def test_words_at_borders_of_documents_are_not_joined() -> None:
    index = NgramIndex([passage("a b c")], 3)
    assert index.hits(["x a", "b c", "a b", "c", "", "a b c"])[:5] == [None] * 5
    [*_, hit] = index.hits(["x a", "a b c"])
    assert hit is not None
    assert hit.word == 0


def test_many_documents_against_sets_of_ngrams() -> None:
    chance = random.Random(1)
    vocabulary = [f"w{number}" for number in range(60)]
    texts = [" ".join(chance.choices(vocabulary, k=chance.randint(0, 40))) for _ in range(400)]
    index = NgramIndex([passage(text, task) for task, text in enumerate(texts[:100])], 3)

    def ngrams(text: str) -> list[tuple[str, ...]]:
        words = simplified_words(text)
        return [tuple(words[at : at + 3]) for at in range(len(words) - 2)]

    known: dict[tuple[str, ...], int] = {}
    for task, text in enumerate(texts[:100]):
        for ngram in ngrams(text):
            known.setdefault(ngram, task)
    assert len(index) == len(known)
    for text, hit in zip(texts, index.hits(texts), strict=True):
        first = next(((at, one) for at, one in enumerate(ngrams(text)) if one in known), None)
        assert (hit is None) == (first is None)
        if hit and first:
            assert (hit.word, hit.passage.task) == (first[0], known[first[1]])
