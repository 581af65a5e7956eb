"""Filters and rewrites that look at texts alone, against plain Python."""

import re
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from support.curated import reasons

from fineshards.curation.batch import Batch
from fineshards.curation.step import Judge
from fineshards.curation.steps.ftfy_text import Ftfy
from fineshards.curation.steps.length import Length
from fineshards.curation.steps.pii import Pii, email_spans
from fineshards.curation.steps.sample import SEED, Sample
from fineshards.curation.steps.unwanted_lines import SymbolLines

TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=30), max_size=5)


def rewritten(step: Judge, *texts: str) -> list[str]:
    found = step.apply(Batch.of_texts(texts)).texts
    assert found is not None
    return list(found)


def at(file: int, rows: list[int], texts: list[str]) -> Batch:
    return Batch(file, np.array(rows), pa.array(texts, pa.large_string()), {})


@given(TEXTS)
def test_length_counts_characters_and_bytes(texts: list[str]) -> None:
    step = Length(min_chars=3, max_chars=20, min_bytes=4, max_bytes=30)

    def expected(text: str) -> str | None:
        chars, size = len(text), len(text.encode())
        if chars < 3:
            return "min_chars"
        if chars > 20:
            return "max_chars"
        return "min_bytes" if size < 4 else "max_bytes" if size > 30 else None

    assert reasons(step, *texts) == list(map(expected, texts))


def test_a_sample_is_the_hash_of_the_position() -> None:
    batch = at(7, list(range(10, 5010)), ["x"] * 5000)
    found = Sample(rate=0.3, seed=5).apply(batch).reasons
    expected = [
        None if xxhash.xxh3_64_intdigest(b"7:%d" % row, SEED + 5) < int(0.3 * 2**64) else "sample"
        for row in range(10, 5010)
    ]
    assert found == expected
    assert 0.27 < expected.count(None) / 5000 < 0.33
    larger = Sample(rate=0.6, seed=5).apply(batch).reasons
    other = Sample(rate=0.3, seed=6).apply(batch).reasons
    assert larger is not None
    assert {row for row, one in enumerate(expected) if one is None} < {
        row for row, one in enumerate(larger) if one is None
    }
    assert other != expected
    assert Sample(rate=1.0).apply(batch).reasons == [None] * 5000
    assert Sample(rate=0).apply(batch).reasons == ["sample"] * 5000


def test_ftfy_repairs_and_leaves_what_is_right() -> None:
    texts = [
        "âœ” No problems",
        "“quotes” ﬁ ＡＢ",
        "a\x00b\x1b[31mred",
        "&lt;b&gt;",
        "&lt;b> <i>",
        "x\r\ny",
    ]
    assert rewritten(Ftfy(), *texts) == [
        *("✔ No problems", "“quotes” ﬁ ＡＢ", "abred", "<b>", "&lt;b> <i>", "x\r\ny")
    ]
    strict = Ftfy(uncurl_quotes=True, fix_line_breaks=True, normalization="NFC")
    assert rewritten(strict, "“e\u0301”\r\n") == ['"é"\n']
    assert set(Ftfy().pins()) == {"ftfy", "unicode"}


# One regular expression for the whole address, as datatrove has it.
_BYTE = "(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
EMAIL = re.compile(
    rf"\b{_ATOM}(?:\.{_ATOM})*@(?:(?:{_LABEL}\.)+{_LABEL}"
    rf"|\[(?:{_BYTE}\.){{3}}(?:{_BYTE}|[A-Za-z0-9-]*[A-Za-z0-9]:)\])"
)


@settings(max_examples=1000)
@given(st.text("ab.-@é _[]19\n", max_size=25))
def test_emails_are_found_as_one_regular_expression_finds_them(text: str) -> None:
    assert list(email_spans(text)) == [found.span() for found in EMAIL.finditer(text)]


@pytest.mark.parametrize("text", ["a-" * 500_000, "a." * 500_000, "a@" * 500_000, "a@b-" * 250_000])
def test_a_text_full_of_almost_addresses_is_read_once(text: str) -> None:
    # If it took time by the square of its length, this would not end today.
    assert rewritten(Pii(), text) == [text]


def test_replacements_follow_from_the_place_in_the_input() -> None:
    texts = ["a@b.org c@d.org 8.8.8.8"] * 300
    whole = Pii().apply(at(2, list(range(300)), texts)).texts
    assert whole is not None
    for first in (0, 17):
        part = Pii().apply(at(2, list(range(first, 300)), texts[first:])).texts
        assert list(part or ()) == list(whole[first:])
    elsewhere = Pii().apply(at(3, list(range(300)), texts)).texts
    assert list(elsewhere or ()) != list(whole)
    used = Counter(word for text in whole for word in text.split())
    assert set(used) == {*Pii().email_replacement, *Pii().ip_replacement}
    assert min(used[mail] for mail in Pii().email_replacement) > 200


def test_which_addresses_are_replaced() -> None:
    one = Pii(email_replacement="M", ip_replacement="I")
    texts = ["8.8.8.8 10.0.0.1 127.0.0.1 01.2.3.4 1.2.3.4.5", "x <a.b@c.org>, @b.org a@b"]
    assert rewritten(one, *texts) == ["I 10.0.0.1 127.0.0.1 01.2.3.4 I.5", "x <M>, @b.org a@b"]
    every = Pii(only_remove_public_ips=False, ip_replacement=["I"], remove_emails=False)
    assert rewritten(every, *texts) == ["I I I 01.2.3.4 I.5", texts[1]]
    assert rewritten(Pii(remove_emails=False, remove_ips=False), *texts) == texts


def plain_symbol_lines(text: str, symbols: set[str], replacement: str) -> str:
    lines: list[str] = []
    removing = False
    for line in text.splitlines():
        if line.strip() and set(line) <= symbols | {" "}:
            if replacement and not removing:
                lines.append(replacement)
            removing = True
        else:
            lines.append(line)
            removing = False
    return "\n".join(lines)


@given(st.lists(st.text("|- \ta\n\r\x1d\u2028", max_size=20)), st.sampled_from(["", "\n", "#"]))
def test_symbol_lines_are_removed(texts: list[str], replacement: str) -> None:
    step = SymbolLines(("|", "-", "\x1d"), replacement)
    expected = [plain_symbol_lines(text, {"|", "-", "\x1d"}, replacement) for text in texts]
    assert rewritten(step, *texts) == expected
