"""JSON lines, plain and compressed: every line once and in order, and bad lines reported."""

import bz2
import gzip
import json
import lzma
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from support.source_files import COLUMNS, blocks_of, describe, read_all

from fineshards.errors import InputError
from fineshards.shards.job.settings import Columns
from fineshards.sources import compression
from fineshards.sources.formats import jsonl
from fineshards.sources.reading import read_block
from fineshards.sources.rows import BATCH_BYTES, BATCH_ROWS

LINES = b'{"text":"a","id":1}\n{"text":null,"id":"x"}\n{"text":"","id":null}\n{"id":4,"text":"d"}\n'
ROWS = [(0, "a", "1"), (1, None, "x"), (2, "", None), (3, "d", "4")]


def compress_gzip(content: bytes) -> bytes:
    # Without a timestamp, so that all processes that collect the tests have the same parameters.
    return gzip.compress(content, mtime=0)


# Members and frames end in the middle of a line, as from parallel compressors.
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "a.jsonl": lambda content: content,
    "a.ndjson": lambda content: content,
    "a.json": lambda content: content,
    "a.jsonl.gz": compress_gzip,
    "a.json.gz": lambda content: compress_gzip(content[:25]) + compress_gzip(content[25:]),
    "a.jsonl.zst": zstandard.compress,
    "a.jsonl.xz": lambda content: lzma.compress(content[:25]) + lzma.compress(content[25:]),
    # The first bytes tell how a file is compressed, whatever its name says.
    "zstd.jsonl": zstandard.compress,
    "bzip2.jsonl.gz": bz2.compress,
    "a.ndjson.xz": lambda content: lzma.compress(content) + bytes(8),
    "a.jsonl.bz2": lambda content: b"".join(
        map(bz2.compress, (content[:25], b"", content[25:], b""))
    ),
    "a.json.zst": lambda content: b"".join(
        zstandard.compress(content[start : start + 7]) for start in range(0, len(content) or 1, 7)
    ),
}


@pytest.fixture(params=COMPRESSORS)
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[bytes], Path]:
    """Writes content to a file of each compression and extension."""

    def run(content: bytes) -> Path:
        path = tmp_path / request.param
        path.write_bytes(COMPRESSORS[request.param](content))
        return path

    return run


def test_every_line_is_a_row_with_any_compression(write: Callable[[bytes], Path]) -> None:
    read = read_all(write(LINES))
    assert read.rows == ROWS
    assert read.bad == []


def test_windows_line_ends_blank_lines_and_a_missing_last_line_end(
    write: Callable[[bytes], Path],
) -> None:
    content = b"\r\n  \n" + LINES.replace(b"\n", b"\r\n\r\n\t\n") + b"\n\n" + b'{"text":"last"}'
    assert read_all(write(content)).rows == [*ROWS, (4, "last", None)]


def test_a_byte_order_mark_before_the_first_line_is_removed(write: Callable[[bytes], Path]) -> None:
    assert read_all(write(b"\xef\xbb\xbf" + LINES)).rows == ROWS


def test_a_byte_order_mark_in_text_is_text_and_elsewhere_is_not_json(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text":"\xef\xbb\xbfa"}\n\xef\xbb\xbf{"text":"b"}\n')
    read = read_all(path)
    assert read.rows == [(0, "\ufeffa", None)]
    assert [(bad.row, bad.place) for bad in read.bad] == [(1, "line 2")]


@pytest.mark.parametrize("content", [b"", b"\n", b"\r\n \n\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_a_file_without_lines_has_no_rows(write: Callable[[bytes], Path], content: bytes) -> None:
    path = write(content)
    (block,) = blocks_of(path)
    assert (block.first_group, block.stop_group, block.first_row) == (0, 0, 0)
    assert read_all(path).rows == []


def test_a_file_is_one_block_for_any_block_size(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES)
    assert blocks_of(path, 1) == blocks_of(path, 10**12)
    (block,) = blocks_of(path)
    assert (block.index, block.blocks, block.bytes) == (0, 1, len(LINES))


def test_very_long_lines_and_many_lines_are_several_record_batches(tmp_path: Path) -> None:
    texts = ["a" * (BATCH_BYTES * 2), "b", "中" * BATCH_BYTES, *map(str, range(2 * BATCH_ROWS))]
    path = tmp_path / "a.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=1) as file:
        file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    file_ = describe(path)
    (block,) = blocks_of(path)
    batches = list(read_block(file_, COLUMNS, block))
    assert len(batches) >= 4
    assert [number for batch in batches for number in batch.numbers.tolist()] == list(
        range(len(texts))
    )
    assert [text for batch in batches for text in batch.texts.to_pylist()] == texts


def test_escapes_become_the_characters_they_represent(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        rb'{"text":"\u00e4\n\t\"\\\/ \ud83d\ude00 \u0000 \u2028","id":"\u0069"}' + b"\n"
    )
    assert read_all(path).rows == [(0, 'ä\n\t"\\/ 😀 \x00 \u2028', "i")]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_only_line_feeds_end_a_line(tmp_path: Path, separator: str) -> None:
    text = f"a{separator}b"
    path = tmp_path / "a.jsonl"
    path.write_bytes(json.dumps({"text": text}).encode() + b"\n")
    raw = tmp_path / "b.jsonl"
    line = json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n"
    raw.write_bytes(line)
    assert read_all(path).rows == [(0, text, None)]
    if separator >= "\x20":
        assert read_all(raw).rows == [(0, text, None)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (rb'{"text":"\ud800"}', "is not valid JSON"),
        (rb'{"text":"\ude00\ud83d"}', "is not valid JSON"),
        (b'{"text":"\xed\xa0\x80"}', "is not valid JSON"),
        (b'{"text":"\xff"}', "is not valid JSON"),
        (b'{"text":"a"', "is not valid JSON"),
        (b'{"text":"a"} {"text":"b"}', "is not valid JSON"),
        (b'{"text":"caf\xe9"}', "is not valid JSON (byte 0xE9 at column 13 is not UTF-8)"),
        (b'{"text":"NaN","score":[Nan', "is not valid JSON"),
        (b'{"text":"a\tb"}', "is not valid JSON"),
        (b"\x00", "is not valid JSON"),
        (b'["text"]', "holds an array, expected an object"),
        (b'"text"', "holds a string, expected an object"),
        (b"null", "holds null, expected an object"),
        (b'{"content":"a","id":1}', "has no field 'text' (an object of 2 fields)"),
        (b'{"what a person wrote":1}', "has no field 'text' (an object of 1 field)"),
        (b'{"text":5}', "its 'text' is a number, expected a string"),
        (b'{"text":["a"]}', "its 'text' is an array, expected a string"),
        (b'{"text":{}}', "its 'text' is an object, expected a string"),
        (b'{"text":true}', "its 'text' is a boolean, expected a string"),
        (b'{"text":' + b"[" * 5_000 + b"]" * 5_000 + b"}", "is not valid JSON (depth limit"),
        (b'{"text":"a","id":1e30,"x":' + b"[" * 1_020 + b"]" * 1_020 + b"}", "is nested too deep"),
    ],
)
def test_a_bad_line_is_a_bad_row_and_keeps_its_number(
    tmp_path: Path, line: bytes, reason: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text":"first"}\n\n' + line + b'\n{"text":"last"}\n')
    read = read_all(path)
    assert read.rows == [(0, "first", None), (2, "last", None)]
    (bad,) = read.bad
    assert (bad.row, bad.place) == (1, "line 3")
    assert bad.reason.startswith(reason)


def test_numbers_that_are_none_are_null(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'{"text":"a","x":NaN,"s":1}\n{"text":"NaN \\"Infinity","s":-Infinity}\n'
        b'{"text":NaN,"s":[NaN,12345678901234567890123]}\n{"text":"c","x":[' + b"1," * 9 + b"\n"
    )
    read = read_all(path, columns=Columns("text", "id", False, others=("s",)))
    assert read.texts == ["a", 'NaN "Infinity', None]
    assert read.others == {"s": ["1", None, "[null,12345678901234567890123]"]}
    assert [bad.row for bad in read.bad] == [3]


def random_value(chosen: random.Random, depth: int = 0) -> Any:
    if depth < 3 and chosen.random() < 0.4:
        values = [random_value(chosen, depth + 1) for _ in range(chosen.randrange(4))]
        return values if chosen.random() < 0.5 else dict(zip("ab]}", values, strict=False))
    text = "".join(chosen.choices('a"\\[]{},: é中😀\n', k=chosen.randrange(20)))
    return chosen.choice([text, None, True, 10**30, -1.5e300])


@pytest.mark.parametrize("name", ["a.json", "a.jsonl.gz"])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("piece", [7, 100, 1 << 20])
def test_an_array_is_read_by_its_elements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, indent: int | None, piece: int
) -> None:
    monkeypatch.setattr(jsonl, "_PIECE", piece)
    chosen = random.Random(1)
    rows = [
        {"x": random_value(chosen), "text": f'{number} "]}},{{é😀', "id": number, "y": {"]": 1}}
        for number in range(300)
    ]
    content = "\ufeff\n" + json.dumps(rows, indent=indent, ensure_ascii=indent is None) + "\r\n"
    path = tmp_path / name
    path.write_bytes(gzip.compress(content.encode()) if ".gz" in name else content.encode())
    read = read_all(path)
    assert read.rows == [(row["id"], row["text"], str(row["id"])) for row in rows]
    assert read.bad == []


def test_elements_of_an_array_that_are_no_documents_are_bad_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'[{"text":"a"}, 12, null, [1], {"text":"\xe9"}, {"text":"b"}]')
    read = read_all(path)
    assert read.rows == [(0, "a", None), (5, "b", None)]
    assert [(bad.row, bad.place) for bad in read.bad] == [(n, f"element {n}") for n in range(1, 5)]
    path.write_text('[{"content":"a"}]')
    with pytest.raises(InputError, match=r"a\.json: its first object has no field 'text'"):
        blocks_of(path)
    path.write_text(" [ ] ")
    assert read_all(path).rows == []


@pytest.mark.parametrize(
    "end",
    [
        *("", "{", '{"text":"b', ",", ', {"text": tru}]' + " " * 99, "]]", "]\n{}"),
        *(' {"text":"b"}]', ',, {"text":"b"}]', ",]", " , ]"),
    ],
)
def test_what_is_not_one_array_is_an_error(tmp_path: Path, end: str) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"text":"a"}' + end)
    words = "more follows its array" if end.startswith("]") else "begins an array, but after"
    with pytest.raises(InputError, match=words):
        read_all(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('[,{"text":"a"}]', "but after its beginning it does not go on as one"),
        ('[{"text":"a"},{"x":' + "[" * 5_000 + "]" * 5_000 + "}]", "after element 0 an element .*"),
        ("[" * 5_000, "after its beginning an element of its array is nested too deep"),
    ],
)
def test_an_array_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, content: str, said: str
) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(InputError, match=rf"a\.json: .*{said}"):
        read_all(path)


@pytest.mark.parametrize("encoding", ["UTF-16LE", "UTF-16BE", "UTF-32LE"])
@pytest.mark.parametrize("start", ["[", "[\n", "\n["])
def test_an_array_in_another_encoding_is_named_by_it(
    tmp_path: Path, encoding: str, start: str
) -> None:
    path = tmp_path / "a.json"
    path.write_text(start + '{"text":"a"}]', encoding=encoding)
    with pytest.raises(InputError, match=f"is in {encoding}, expected UTF-8"):
        read_all(path)


def test_an_array_with_an_invalid_element_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"[tru, " + b'{"text":"a"},' * 1_000_000 + b"]")
    with path.open("rb") as opened:
        with pytest.raises(InputError, match="begins an array, but after its beginning"):
            [*jsonl._elements(describe(path), opened)]
        assert opened.tell() < 2 << 20


def test_ids_and_labels_become_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'{"text":"a","id":12345678901234567890,"language":"en","dump":"CC-1","http_body":"<p>"}\n'
        b'{"text":"b","id":"z","language":null}\n'
    )
    read = read_all(path)
    assert read.rows == [(0, "a", "12345678901234567890"), (1, "b", "z")]
    assert read.labels == {"language": ["en", None], "dump": ["CC-1", None]}


def test_integers_beyond_64_bits_are_kept_exactly(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    numbers = [2**63 - 1, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**200 + 1]
    rows = [{"text": "a", "id": number, "dump": number} for number in numbers]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = read_all(path)
    assert [id_ for _, _, id_ in read.rows] == [*map(str, numbers)]
    assert read.labels["dump"] == [*map(str, numbers)]


def test_an_id_that_is_not_a_value_is_null_unless_its_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    deep = b"[" * 1_000 + b"]" * 1_000
    path.write_bytes(
        b'{"text":"a","id":{"b":1},"dump":[]}\n{"text":"b","id":' + deep + b"}\n"
        b'{"text":"c","id":true}\n'
    )
    read = read_all(path)
    assert read.rows == [(0, "a", None), (1, "b", None), (2, "c", "true")]
    read = read_all(path, columns=Columns("text", "id", id_required=True))
    assert [bad.reason for bad in read.bad] == [
        "its 'id' is an object, expected a string or a number",
        "its 'id' is an array, expected a string or a number",
    ]


@pytest.mark.parametrize("where", ["id", "language"])
def test_a_lone_surrogate_outside_the_text_is_a_bad_row_too(tmp_path: Path, where: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text":"a"}\n{"text":"b","%s":"\\ud800"}\n' % where.encode())
    read = read_all(path)
    assert read.rows == [(0, "a", None)]
    assert [bad.row for bad in read.bad] == [1]


def test_a_zstd_file_cut_anywhere_is_an_error(tmp_path: Path) -> None:
    whole = zstandard.compress(LINES) + zstandard.compress(LINES)
    between = len(zstandard.compress(LINES))
    path = tmp_path / "a.jsonl.zst"
    for length in range(4, len(whole)):
        path.write_bytes(whole[:length])
        if length == between:
            assert read_all(path).rows == ROWS
            continue
        with pytest.raises(InputError, match="Truncated compressed stream"):
            read_all(path)


@pytest.mark.parametrize("window_log", [27, 31])
def test_a_zstd_file_may_have_a_long_window(tmp_path: Path, window_log: int) -> None:
    """As `zstd --long=31` writes; the header of a frame names its window, whatever it holds."""
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=window_log)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(stream.compress(LINES) + stream.flush())
    assert zstandard.get_frame_parameters(path.read_bytes()).window_size == 1 << window_log
    assert read_all(path).rows == ROWS


def test_a_zstd_file_may_begin_with_a_skippable_frame(tmp_path: Path) -> None:
    """The parallel compressor pzstd writes one before each frame."""
    skippable = struct.pack("<II", 0x184D2A50, 4) + b"abcd"
    path = tmp_path / "a.jsonl.zst"
    half = len(LINES) // 2
    frames = [zstandard.compress(LINES[:half]), zstandard.compress(LINES[half:])]
    path.write_bytes(b"".join(skippable + frame for frame in frames))
    assert read_all(path).rows == ROWS


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_another_encoding_is_named(tmp_path: Path, encoding: str, ending: str) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    content = '{"text":"a"}\n'.encode(encoding)
    path.write_bytes(gzip.compress(content) if ending else content)
    name = encoding.upper().replace("-LE", "LE").replace("-BE", "BE")
    with pytest.raises(InputError, match=rf"a\.jsonl.*: is in {name}, expected UTF-8\. .*{name} "):
        blocks_of(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json.gz", "a.csv"])
def test_parquet_by_another_name_is_recognised(tmp_path: Path, name: str, sample: Path) -> None:
    path, content = tmp_path / name, sample.read_bytes()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(InputError, match=rf"{name}: is a Parquet file\. Rename it"):
        blocks_of(path)


def test_a_line_longer_than_the_longest_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "LONGEST", 100)
    monkeypatch.setattr(compression, "_READ_BYTES", 30)
    path = tmp_path / "a.jsonl.gz"
    rows = [json.dumps({"text": "a" * length}) + "\n" for length in range(88)]
    path.write_bytes(gzip.compress("".join(rows).encode()))
    assert read_all(path).texts == ["a" * n for n in range(88)]
    rows.append(rows[-1].replace("aa", "aaa", 1))
    path.write_bytes(gzip.compress("".join(rows).encode()))
    with pytest.raises(InputError, match=r"a\.jsonl\.gz: line 89 has more than 100 bytes"):
        read_all(path)


def test_a_line_that_compresses_a_thousandfold_is_read(tmp_path: Path) -> None:
    text = "a" * 50_000_000
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstandard.compress(json.dumps({"text": text}).encode()))
    assert path.stat().st_size < 50_000
    assert read_all(path).rows == [(0, text, None)]
