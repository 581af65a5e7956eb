"""Proof by brute force that the fast path is exact: `make encoders`, which takes minutes.

Covers every code point, every token, over a million hostile documents for each vocabulary, 200,000
for each pattern (a million too with FINESHARDS_ALL_DOCUMENTS=1), and all text of ../shared/corpus.
Also shows that memory stays bounded.
"""

import base64
import json
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support import hostile
from support.checkout import ROOT
from support.encoding import SCHEMES, must_be_exact, pair, revealing, scheme, strings
from support.fresh_interpreter import run_program
from support.oracle import read_texts
from support.published import SHA256, UnavailableError, published

from fineshards.encoders.gigatoken.differences import Scheme, load_table
from fineshards.encoders.gigatoken.exact_encoder import ExactEncoder
from tools.scheme_differences import code_points

pytestmark = pytest.mark.heavy

ENCODINGS = ["cl100k_base", *SHA256]
ALL = os.environ.get("FINESHARDS_ALL_DOCUMENTS") == "1"
CORPUS = ROOT.parent / "shared/corpus"


@lru_cache(maxsize=1)
def encoder(name: str) -> ExactEncoder:
    """The encoder of this published vocabulary; skips the test if it cannot be downloaded."""
    try:
        return pair(published(name))
    except UnavailableError as error:
        pytest.skip(str(error))


def table(name: str) -> Scheme:
    found = load_table().scheme("tiktoken", published(name).pattern)
    assert found is not None
    return found


def in_arrays(texts: list[str], size: int = 50_000) -> Iterator[pa.Array]:
    for start in range(0, len(texts), size):
        yield strings(*texts[start : start + size])


def test_the_stored_table_is_the_derived_one() -> None:
    # In a separate process, because it forks. Only the schemes whose reference is tiktoken.
    program = (
        "from tools.scheme_differences import SCHEMES, derive\n"
        "from fineshards.encoders.gigatoken.differences import load_table\n"
        "for name, scheme in derive(SCHEMES):\n"
        "    assert scheme == load_table().schemes[name], name\n"
    )
    done = run_program(program)
    assert done.returncode == 0, done.stderr


# A code point alone, next to its successor, and wherever the patterns look at it: before and after
# letters, digits, marks, signs, white space and contractions, and at both ends of the document.
TEMPLATES = (
    "{0}",
    "{0}{1}",
    "{0} {0}a a{0}a A{0} 1{0}2 {0}{0} !{0}! '{0} '{0}s 's{0} ' {0}\n{0}\r\n{0}\t\u3000{0}\u0301{0}/"
    "\U0001f3fd{0}中{0}é {0}",
)


@pytest.mark.parametrize("template", TEMPLATES, ids=["alone", "pairs", "contexts"])
@pytest.mark.parametrize("name", ENCODINGS)
def test_every_code_point(name: str, template: str) -> None:
    exact = encoder(name)
    codes = code_points()
    assert len(codes) == 0x110000 - 0x800 == 1_112_064
    successors = [*codes[1:], codes[0]]
    texts = [template.format(chr(a), chr(b)) for a, b in zip(codes, successors, strict=True)]
    fast = sum(must_be_exact(exact, array) for array in in_arrays(texts))
    listed = hostile.listed_codes(table(name))
    second = "{1}" in template
    by_table = [
        a in listed or (second and b in listed) for a, b in zip(codes, successors, strict=True)
    ]
    assert fast == len(codes) - sum(by_table)


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_token(name: str) -> None:
    """Each token as a document, among other tokens, and cut by other tokens."""
    exact = encoder(name)
    tokens = []
    for line in published(name).data.splitlines():
        try:
            tokens.append(base64.b64decode(line.split()[0]).decode())
        except UnicodeDecodeError:
            continue
    assert len(tokens) > 0.97 * published(name).data.count(b"\n")
    reversed_tokens = tokens[::-1]
    texts = [
        *tokens,
        *(f"a{token}a" for token in tokens),
        *(f" {token}" for token in tokens),
        *(token + token for token in tokens),
        *(one + other for one, other in zip(tokens, reversed_tokens, strict=True)),
        *(one[1:] + other[:-1] for one, other in zip(tokens, reversed_tokens, strict=True)),
        *(token.upper() + token.lower() for token in tokens),
    ]
    for array in in_arrays(texts):
        must_be_exact(exact, array)


def check_hostile_documents(exact: ExactEncoder, scheme: Scheme, arrays: int) -> None:
    made, fast = [], 0
    for seed in range(arrays):
        array = hostile.documents(1000 + seed, 100_000, scheme)
        assert pc.max(pc.utf8_length(array)).as_py() <= hostile.MOST_CHARACTERS
        fast += must_be_exact(exact, array)
        made.append(array)
    distinct = len(pa.chunked_array(made).unique())
    assert distinct > 0.71 * arrays * 100_000
    assert fast > 0.9 * len(made) * 100_000, "gigatoken must encode most of them"


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_million_hostile_documents(name: str) -> None:
    exact = encoder(name)
    check_hostile_documents(exact, table(name), 14)


@pytest.mark.parametrize("name", SCHEMES)
def test_hostile_documents_with_every_split_visible(name: str) -> None:
    check_hostile_documents(revealing(name), scheme(name), 14 if ALL else 2)


# gigatoken treats pre-tokens of up to 15 bytes differently from longer ones. The other lengths are
# those at which a program might change its method.
LENGTHS = [*range(1, 70), 127, 128, 129, 255, 256, 257, 1023, 4096, 65_535, 65_536, 65_537, 100_000]
ALPHABETS = [*"ax \n\t1!=-中é\u0301\u3000\xa0\x00", "\r\n", "aA", "'s", "👍", "𝕳", "the", "/"]
MIXES = ["abcdefghijklmnopqrstuvwxyz", "ab", "aAbB", "éàü", "中文字", "0123456789abcdef", "กขคงจ"]


@pytest.mark.parametrize("name", ENCODINGS)
def test_long_runs(name: str) -> None:
    exact = encoder(name)
    rng = np.random.default_rng(1)
    runs = [(unit * length)[:length] for unit in ALPHABETS for length in LENGTHS]
    texts = [text for run in runs for text in (run, run + "x", f"x{run}\n", f"{run} x")]
    texts += [
        "".join(rng.choice(list(mix), length))
        for mix in MIXES
        for length in [*LENGTHS, *range(70, 400)]
    ]
    assert must_be_exact(exact, strings(*texts)) == len(texts)


def test_one_document_of_many_megabytes(sample: Path) -> None:
    text = "\n".join(read_texts(sample))
    texts = strings("before", text * (1 + 20_000_000 // len(text)), "after")
    assert must_be_exact(encoder("cl100k_base"), texts) == 3


FILES = sorted(CORPUS.glob("*.parquet"))


# All files for the encoding that most jobs use, and one file of each kind for the others.
@pytest.mark.skipif(not FILES, reason="../shared/corpus does not exist")
@pytest.mark.parametrize(
    ("name", "file"),
    [
        pytest.param(name, file, id=f"{name}-{file.stem}")
        for name in ENCODINGS
        for file in FILES
        if name == "cl100k_base" or file.stem.endswith("00000")
    ],
)
def test_all_text_of_the_corpus(name: str, file: Path) -> None:
    exact = encoder(name)
    rows = 0
    with pq.ParquetFile(file) as opened:
        assert opened.metadata.num_rows > 1_000
        for record_batch in opened.iter_batches(4_096, columns=["text"]):
            texts = record_batch.column(0).drop_null().cast(pa.large_string())
            must_be_exact(exact, texts)
            rows += len(record_batch)
        assert rows == opened.metadata.num_rows


GROWTH = """
import json, sys
import numpy as np
import pyarrow as pa
from fineshards.encoders.gigatoken import bounded_tokenizer
from fineshards.encoders.loading import encoder_of_vocabulary
from fineshards.encoders.vocabulary import resolve_vocabulary

def resident():
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * 4096

bounded_tokenizer.REBUILD_SECONDS = float(sys.argv[1])
bounded_tokenizer.REBUILD_BYTES = 0
encoder = encoder_of_vocabulary(resolve_vocabulary("cl100k_base"), "gigatoken")
rng = np.random.default_rng(0)
sizes = []
for _ in range(60):
    # Words of random letters, all of them new: the worst case for its cache.
    letters = rng.integers(97, 123, (200_000, 10), np.uint8)
    letters[:, 0] = 32
    documents = [bytes(part).decode() for part in np.array_split(letters.ravel(), 100)]
    encoder.encode(pa.array(documents, pa.large_string()))
    sizes.append(resident())
json.dump(sizes, sys.stdout)
"""


def memory(rebuild_seconds: float) -> list[int]:
    """Resident bytes after each of 60 calls with 2 MB of text."""
    done = run_program(GROWTH, rebuild_seconds)
    assert done.returncode == 0, done.stderr
    sizes: list[int] = json.loads(done.stdout)
    return sizes


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_memory_stays_flat() -> None:
    bounded, unbounded = memory(0.3), memory(float("inf"))
    growth = unbounded[-1] - unbounded[0]
    assert growth > 5e8, "without rebuilds it grows with the text"
    assert max(bounded) - bounded[0] < growth / 4
    # How much is held when it is rebuilt depends on the time that encoding takes.
    more = max(bounded[30:]) - max(bounded[:30])
    assert more < (unbounded[-1] - unbounded[30]) / 4, "twice the text takes no more memory"
