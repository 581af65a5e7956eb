"""Golden texts, which show whether two encoders, or two versions of a library, agree.

Their tokens are hashed at launch. The hash is part of the job's fingerprint, and every worker
checks it before it starts. So a worker with a different tokenizer stops instead of mixing tokens.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa

from fineshards.encoders.encoder import Encoder

GOLDEN_TEXTS = (
    "",
    " ",
    "Hello, world! It's 2026-11-21, 12:34:56.",
    "I'LL, we'VE, they'd; Big'Small don'TEST ſ'S K'ELVIN",
    "1234567 12 345\t678\r\n\r\n  indented\n\n\n    more   ",
    "<|endoftext|> and <|fim_prefix|> stand here as text",
    "def f(x):\n\treturn {'a': [1, 2.5e-3], \"b\": x != 0}  # ok\n",
    "Ünïcödé naïve café cafe\u0301 ﬁ ﷽ \ufeffbom \u00a0nbsp\u200bzw \u2028ls",
    "中文分词测试。日本語のテキスト、한국어 문장, ไทย, हिन्दी में, עברית, العربية",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 ❤️ 𝕳𝖊𝖑𝖑𝖔 𐍈 \U000323b0 \u088f",
    "\x00\x01\x7f\u0085 \x1c",
    "a" * 1000 + " " * 1000 + "\n" * 100 + "中" * 300 + "x",
)


def golden_sha256(encoder: Encoder) -> str:
    """SHA-256 (hex) of the golden texts' tokens (little-endian uint32) and offsets (int64)."""
    # Not by pa.array, which imports pandas.
    texts = [text.encode() for text in GOLDEN_TEXTS]
    borders = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    buffers = pa.py_buffer(borders), pa.py_buffer(b"".join(texts))
    batch = encoder.encode(pa.LargeStringArray.from_buffers(len(texts), *buffers))
    digest = hashlib.sha256(batch.tokens.astype("<u4").tobytes())
    digest.update(batch.offsets.astype("<i8").tobytes())
    return digest.hexdigest()
