"""The fast path gives exactly tiktoken's tokens, from gigatoken where the table trusts it.

Tests that take minutes are in test_proofs.py.
"""

import base64
import gc
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import gigatoken
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import hostile
from support.checkout import ROOT
from support.encoding import (
    SCHEMES,
    cl100k,
    documents_with,
    must_be_exact,
    revealing,
    scheme,
    strings,
)
from support.fresh_interpreter import run_program
from support.oracle import ENCODING, EOT, read_texts
from test_encoders import HOSTILE

from fineshards.cores import usable_cores
from fineshards.encoders import loading
from fineshards.encoders.checked_encoder import GOLDEN_TEXTS
from fineshards.encoders.encoder import Encoder
from fineshards.encoders.gigatoken import bounded_tokenizer, differences, exact_encoder
from fineshards.encoders.gigatoken.differences import load_table
from fineshards.encoders.gigatoken.exact_encoder import ExactEncoder
from fineshards.encoders.vocabulary import TiktokenEncoder, Vocabulary, resolve_vocabulary
from fineshards.errors import UsageError
from tools.scheme_differences import CONTEXTS, content_of, revealing_ranks

LISTED = hostile.listed_codes(scheme())

# The ends of each range, and the code points next to them, which may not be listed.
BORDERS = sorted(
    {chr(end + step) for pair_ in scheme().ranges for end in pair_ for step in (-1, 0, 1)}
)
FRAGMENTS = sorted({x for family in hostile.FAMILIES for x in family})


def check(texts: list[str], array: pa.Array | None = None) -> None:
    """Compares with tiktoken itself, and checks how many documents the reference encoded."""
    encoded = cl100k().encode(strings(*texts) if array is None else array)
    expected = [[EOT, *ENCODING.encode_ordinary(text)] for text in texts]
    assert [encoded.document(number).tolist() for number in range(len(texts))] == expected
    assert encoded.offsets.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
    assert encoded.tokens.dtype == np.uint32
    assert encoded.offsets.dtype == np.int64
    assert encoded.by_reference == len(documents_with(LISTED, texts))


def test_sample_golden_and_hostile_texts(sample: Path) -> None:
    check([*read_texts(sample), *GOLDEN_TEXTS, *HOSTILE.values()])


def texts(most: int = 40) -> st.SearchStrategy[str]:
    fragments = st.one_of(
        st.sampled_from(FRAGMENTS),
        st.sampled_from(BORDERS),
        st.sampled_from(sorted(map(chr, LISTED))),
        st.characters(exclude_categories=["Cs"]),
        # Runs of spaces, digits, letters or marks.
        st.tuples(st.sampled_from(FRAGMENTS), st.integers(2, 40)).map(lambda run: run[0] * run[1]),
    )
    return st.lists(fragments, max_size=most).map("".join)


@given(st.lists(st.just("") | texts(), max_size=8))
def test_any_documents(documents: list[str]) -> None:
    check(documents)


@given(st.lists(st.just("") | texts(6), max_size=12), st.integers(0, 12), st.integers(0, 12))
def test_slices_of_larger_arrays(documents: list[str], first: int, count: int) -> None:
    whole = strings("before", *documents, "after")
    check(["before", *documents, "after"][first : first + count], whole.slice(first, count))


@pytest.mark.parametrize("name", SCHEMES)
def test_every_split_is_tiktokens(name: str) -> None:
    encoder = revealing(name)
    generated = hostile.documents(17, 20_000, scheme(name))
    fast = must_be_exact(encoder, generated)
    by_scan = documents_with(hostile.listed_codes(scheme(name)), generated.to_pylist())
    assert fast == len(generated) - len(by_scan)
    assert 0.9 * len(generated) < fast < len(generated), "both encoders are used"
    assert must_be_exact(encoder, strings(*HOSTILE.values())) > 0


def test_gigatoken_alone_is_not_exact() -> None:
    """Otherwise the table would be useless and its tests could not fail."""
    for name in SCHEMES:
        encoder = revealing(name)
        for first, last in scheme(name).ranges:
            documents = strings(*(CONTEXTS.replace("_", chr(code)) for code in (first, last)))
            fast = encoder._fast.encode(documents)
            exact = encoder.reference.encode(documents)
            for number in range(2):
                assert not np.array_equal(fast.document(number), exact.document(number))
            assert encoder.encode(documents).by_reference == 2


@pytest.mark.parametrize(
    "documents",
    [
        [],
        [""],
        ["", "a", "", ""],
        [""] * 10_000,
        ["\u088f"],
        ["\u088f"] * 300,
        ["", "\u088f", "", "\u088fb", "c\u088f", "", "d"],
        ["<|endoftext|>\u088f", "<|endoftext|>", "<|fim_prefix|><|endofprompt|>"],
        ["\U000323b0\u088f\ua7ce", "\u088f\u0301", "\u0301\u088f"],
        ["x" * 70_000, " " * 70_000 + "x", "7" * 70_000, "\u088f" * 70_000, "中\n" * 30_000],
    ],
    ids=lambda documents: f"{len(documents)} {''.join(documents)[:12]!a}",
)
def test_edge_cases(documents: list[str]) -> None:
    check(documents)


@pytest.mark.heavy
def test_texts_that_tiktoken_cannot_split_are_exact_too() -> None:
    # See test_encoders.py on a million spaces before a letter.
    documents = ["before", " " * 1_200_000 + "a", " " * 1_200_000 + "a\u088f", "after"]
    assert must_be_exact(cl100k(), strings(*documents)) == 3


# The table's scan.


@given(
    st.lists(st.lists(st.sampled_from([*BORDERS, *"aé中👩"]), max_size=6).map("".join), max_size=8),
    st.integers(1, 9),
    st.integers(0, 8),
    st.sampled_from(SCHEMES),
)
def test_the_scan_agrees_with_a_plain_one(
    documents: list[str], chunk: int, first: int, name: str
) -> None:
    found_by_scan = documents_with(hostile.listed_codes(scheme(name)), documents[first:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(differences, "_CHUNK", chunk)
        found = scheme(name).documents(strings(*documents).slice(first))
    assert found.tolist() == found_by_scan.tolist()


@pytest.mark.parametrize("listed", ["\u088f", "\u0c5c", "\ua7d2", "\U00010940", "\U00033479"])
def test_a_listed_character_at_a_chunk_boundary_is_found(listed: str) -> None:
    for place in range(differences._CHUNK - 5, differences._CHUNK + 2):
        documents = ["", "x" * place + listed + "y", "z"]
        assert scheme().documents(strings(*documents)).tolist() == [1]
        before = place - 5
        documents = ["x" * 5, "x" * before, listed, "x" * before, "é"]
        assert scheme().documents(strings(*documents)).tolist() == [2]
        assert scheme().documents(strings(*documents).slice(1)).tolist() == [1]
        assert scheme().documents(strings(*documents).slice(3)).tolist() == []


def test_a_table_without_code_points_finds_nothing() -> None:
    """As for two libraries with the same Unicode version, which never differ."""
    nothing = replace(scheme(), ranges=())
    assert nothing.documents(strings("", "\u088f\U00033479\U0010ffff")).tolist() == []


# Memory and threads.

AWKWARD = """
import sys, threading
from support.encoding import cl100k, documents_with, must_be_exact, strings
texts = strings("", "one", "Zwölf Boxkämpfer", "")
for each in (texts, texts[1:], texts[:0]):
    must_be_exact(cl100k(), each)
alone, stop = "awkward" in sys.modules, threading.Event()
other = threading.Thread(target=stop.wait)
other.start()
for each in (texts, texts[1:], texts[:0]):
    must_be_exact(cl100k(), each)
stop.set()
print(alone, "awkward" in sys.modules)
"""


def test_awkward_is_imported_only_where_another_thread_might_see_its_stand_in() -> None:
    assert run_program(AWKWARD).stdout == "False True\n"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A list that receives every gigatoken tokenizer that is built."""
    found: list[object] = []

    build = gigatoken.Tokenizer.from_tiktoken

    def counted(*arguments: Any) -> gigatoken.Tokenizer:
        found.append(tokenizer := build(*arguments))
        return tokenizer

    monkeypatch.setattr(gigatoken.Tokenizer, "from_tiktoken", counted)
    return found


def test_tokenizers_are_rebuilt_after_enough_work(
    built: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The clock is read before and after each call, so each call takes one second.
    clock = count()
    monkeypatch.setattr(bounded_tokenizer.time, "thread_time", lambda: float(next(clock)))
    monkeypatch.setattr(bounded_tokenizer, "REBUILD_SECONDS", 4.0)
    monkeypatch.setattr(bounded_tokenizer, "REBUILD_BYTES", 1 << 50)
    encoder = revealing.__wrapped__("cl100k_base")
    for seed in range(9):
        must_be_exact(encoder, hostile.documents(seed, 50, scheme()))
    assert len(built) == 1, "there is room for its cache"
    monkeypatch.setattr(bounded_tokenizer, "REBUILD_BYTES", 0)
    encoder = revealing.__wrapped__("cl100k_base")
    built.clear()
    built.append(encoder._fast._idle.queue[-1][0])
    numbers = []
    for seed in range(14):
        must_be_exact(encoder, hostile.documents(seed, 50, scheme()))
        numbers.append(len(built))
    assert numbers == [1] * 4 + [2] * 4 + [3] * 4 + [4] * 2
    idle = [tokenizer for tokenizer, _ in filter(None, encoder._fast._idle.queue)]
    assert idle == built[-1:], "replaced tokenizers are not kept"


def test_a_tokenizer_that_fails_does_not_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(gigatoken.Tokenizer):
        def encode_batch(self, texts: object, *, parallel: bool | None = None) -> NoReturn:
            raise MemoryError

    monkeypatch.setattr(gigatoken, "Tokenizer", Failing)
    encoder = revealing.__wrapped__("cl100k_base")
    for _ in range(2 * usable_cores()):  # and none waits for one that has failed
        with pytest.raises(MemoryError):
            encoder.encode(strings("text"))
    gc.collect()
    assert not [x for x in gc.get_objects() if isinstance(x, Failing)]
    monkeypatch.undo()
    must_be_exact(encoder, hostile.documents(1, 50, scheme()))


@pytest.mark.long
@pytest.mark.parametrize("bound", [0.0, 0.002, bounded_tokenizer.REBUILD_SECONDS])
def test_many_threads_get_the_same_tokens_as_one(
    monkeypatch: pytest.MonkeyPatch, bound: float
) -> None:
    monkeypatch.setattr(bounded_tokenizer, "REBUILD_SECONDS", bound)
    monkeypatch.setattr(bounded_tokenizer, "REBUILD_BYTES", 0)
    encoder = revealing.__wrapped__("cl100k_base")
    threads, rounds = 8, 4
    inputs = [hostile.documents(seed, 300, scheme()) for seed in range(threads * rounds)]
    encoded: list[object] = [None] * len(inputs)
    start = threading.Barrier(threads)

    def work(thread: int) -> None:
        start.wait()
        for number in range(thread, len(inputs), threads):
            encoded[number] = encoder.encode(inputs[number])

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for array, found in zip(inputs, encoded, strict=True):
        expected = encoder.reference.encode(array)
        assert np.array_equal(found.tokens, expected.tokens)  # type: ignore[attr-defined]
        assert np.array_equal(found.offsets, expected.offsets)  # type: ignore[attr-defined]


# Which vocabularies, and which versions of the libraries, have a fast path.


@pytest.fixture
def fresh() -> Iterator[None]:
    """Starts with no encoder in the cache, and leaves none."""
    loading._build.cache_clear()
    yield
    loading._build.cache_clear()


def refused(vocabulary: Vocabulary, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """`auto` warns and uses tiktoken; `gigatoken` is a usage error. Both name the reason."""
    with pytest.raises(UsageError, match=f"--tokenizer_engine gigatoken.*{reason}"):
        loading.encoder_of_vocabulary(vocabulary, "gigatoken")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "fineshards.worker"):
        encoder = loading.encoder_of_vocabulary(vocabulary, "auto")
    assert isinstance(encoder, TiktokenEncoder)
    (record,) = caplog.records
    assert reason in record.getMessage()
    assert "which is slow" in record.getMessage()


def test_the_stored_table_is_for_the_pinned_and_installed_versions() -> None:
    pinned = dict(
        line.split("==")
        for line in (ROOT / "requirements.txt").read_text().splitlines()
        if "==" in line
    )
    assert set(load_table().versions) == {"gigatoken", "tiktoken", "tokenizers"}
    for package, wanted in load_table().versions.items():
        assert wanted == pinned[package] == version(package)
    assert load_table().other_versions("tiktoken") == []


def test_the_stored_table_is_as_the_tool_writes_it() -> None:
    assert content_of(load_table()) == differences.TABLE.read_text("utf-8")


@pytest.mark.usefixtures("fresh")
def test_engines_choose_the_encoder() -> None:
    vocabulary = resolve_vocabulary("cl100k_base")
    engines: dict[str, type[Encoder]] = {"auto": ExactEncoder, "gigatoken": ExactEncoder}
    for engine, kind in (engines | {"tiktoken": TiktokenEncoder}).items():
        encoder = loading.encoder_of_vocabulary(vocabulary, engine)
        assert isinstance(encoder, kind)
        assert isinstance(encoder.reference, TiktokenEncoder)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("package", ["gigatoken", "tiktoken"])
def test_a_table_for_other_versions_is_refused(
    package: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = load_table()
    other = replace(table, versions=table.versions | {package: "0.1.2"})
    monkeypatch.setattr(exact_encoder, "load_table", lambda: other)
    reason = f"{package} is {version(package)}, not 0.1.2"
    refused(resolve_vocabulary("cl100k_base"), reason, caplog)


@pytest.mark.usefixtures("fresh")
def test_a_pattern_that_is_not_in_the_table_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    vocabulary = resolve_vocabulary("cl100k_base")
    other = replace(vocabulary, pattern=vocabulary.pattern.replace("{1,3}", "{1,2}"))
    refused(other, "has not been compared with gigatoken's", caplog)


def revealing_vocabulary(ranks: bytes, eot: int = 1 << 17) -> Vocabulary:
    return Vocabulary("revealing", ranks, scheme().pattern, (("<|endoftext|>", eot),))


@pytest.mark.usefixtures("fresh")
def test_ranks_that_gigatoken_cannot_load_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    # gigatoken panics on a five-byte token that no merge of two other tokens makes.
    ranks = revealing_ranks()
    ranks += base64.b64encode(b"abcde") + b" %d\n" % ranks.count(b"\n")
    vocabulary = revealing_vocabulary(ranks)
    assert len(vocabulary.encoding().encode_ordinary("abcde")) == 1
    refused(vocabulary, "gigatoken cannot read it", caplog)


@pytest.mark.usefixtures("fresh")
def test_ranks_with_gaps_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    """As of p50k_base, whose EOT has an id among the ranks."""
    lines = revealing_ranks().splitlines(keepends=True)
    vocabulary = revealing_vocabulary(b"".join(lines[:300] + lines[301:]), eot=300)
    refused(vocabulary, "gigatoken cannot read it", caplog)
