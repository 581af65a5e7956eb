"""300 rows of input, and ways to break some of them."""

import json

import pyarrow as pa

TEXTS = [f"text number {number}, and some more words" for number in range(300)]
LINES = [json.dumps({"text": text, "id": f"id-{i}"}).encode() for i, text in enumerate(TEXTS)]
JSONL = b"".join(line + b"\n" for line in LINES)


def invalid(*indices: int) -> pa.Array:
    """Strings that are not UTF-8 at `indices`, as careless writers produce them."""
    content = [b"\xff\xfe" if i in indices else text.encode() for i, text in enumerate(TEXTS)]
    return pa.array(content, pa.binary()).view(pa.string())


def with_line(number: int, line: bytes) -> bytes:
    """The JSONL file with one line replaced."""
    return b"".join((line if i == number else good) + b"\n" for i, good in enumerate(LINES))
