"""Golden documents, which show whether two versions of a step, or of a library, agree.

What the steps make of them is hashed at launch. The hash is part of the job's fingerprint, and
every worker checks it before it starts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator

from fineshards.curation.batch import Batch
from fineshards.curation.per_language import PerLanguage
from fineshards.curation.step import Judge, Keyed, Step

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


def golden_sha256(steps: Iterable[Step]) -> str:
    """SHA-256, as hex, of what each step makes of the golden documents.

    Steps that read columns of the input are left out: golden documents have none.
    """
    digest = hashlib.sha256()
    batch = Batch.of_texts(GOLDEN_TEXTS)
    for step in _parts(steps):
        if step.columns or not step.GOLDEN:
            continue
        if isinstance(step, Judge):
            outcome = step.apply(batch)
            made = [outcome.reasons and [*outcome.reasons], outcome.texts and [*outcome.texts]]
            if outcome.scores is not None:
                made.append(outcome.scores.to_pylist())
            digest.update(json.dumps(made).encode())
        elif isinstance(step, Keyed):
            keys = step.keys(batch)
            digest.update(keys.keys.astype("<u8").tobytes())
            digest.update(keys.owners.astype("<i8").tobytes())
            if keys.spans is not None:
                digest.update(keys.spans.astype("<u4").tobytes())
    return digest.hexdigest()


def _parts(steps: Iterable[Step]) -> Iterator[Step]:
    """The steps, with those of each language instead of what chooses between them."""
    for step in steps:
        yield from step.all_steps if isinstance(step, PerLanguage) else (step,)
