"""Input on gs://: reading one generation of each object, and whole jobs."""

import gzip
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from support.faulty_proxy import CUT_DOWNLOAD
from support.fresh_interpreter import run_program
from support.gcs_input import Stored
from support.oracle import oracle, read_texts, shards_in
from support.source_files import COLUMNS, Read, add, texts_of

from fineshards.cli.cli import main
from fineshards.errors import InputError
from fineshards.sources.files import find_files, open_file
from fineshards.sources.formats.format import READ_AHEAD
from fineshards.sources.reading import discover_blocks, read_block
from fineshards.storage import ranges

pytestmark = pytest.mark.cloud

Run = Callable[..., subprocess.CompletedProcess[str]]

TEXTS = [f"text number {number}, and some more words" for number in range(3000)]
LINES = b"".join(
    json.dumps({"text": text, "id": f"n{i}"}).encode() + b"\n" for i, text in enumerate(TEXTS)
)


# ---- reading


def heavy_parquet(path: Path) -> Path:
    """A little text between two large columns."""
    heavy = [os.urandom(10_000) for _ in range(3000)]
    table = pa.table({"a": heavy, "text": TEXTS, "z": heavy})
    pq.write_table(table, path, row_group_size=1500)
    assert path.stat().st_size > 60_000_000
    return path


def test_unused_columns_are_not_downloaded(stored: Stored, tmp_path: Path) -> None:
    url = stored.put("a.parquet", heavy_parquet(tmp_path / "a.parquet"))
    (file,) = find_files([url])
    stored.forget()
    assert texts_of(file) == TEXTS
    sent = sum(request.received for request in stored.requests())
    assert 10_000 < sent < 1_000_000
    # The footer each time the file is opened, and one request for the text of each row group.
    assert len(stored.downloads()) <= 3 + 2


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_lines_are_read_sequentially_in_large_requests(stored: Stored, ending: str) -> None:
    noise = os.urandom(4 * READ_AHEAD // 3).hex()
    lines = b"".join(
        b'{"text": "%d", "noise": "%s"}\n' % (number, noise[start : start + 5000].encode())
        for number, start in enumerate(range(0, len(noise), 5000))
    )
    compress: dict[str, Callable[[bytes], bytes]] = {
        "": bytes,
        ".gz": lambda content: gzip.compress(content, 1),
        ".zst": zstandard.ZstdCompressor().compress,
    }
    content = compress[ending](lines)
    url = stored.put(f"a.jsonl{ending}", content)
    (file,) = find_files([url])
    stored.forget()
    (block,) = discover_blocks(file, COLUMNS, 1)
    assert sum(request.received for request in stored.downloads()) <= 1 << 20
    stored.forget()
    found = Read([], [], {})
    add(found, read_block(file, COLUMNS, block))
    assert found.texts == [str(n) for n in range(-(-len(noise) // 5000))]
    assert len(content) > READ_AHEAD
    downloads = stored.downloads()
    assert len(downloads) == -(-len(content) // READ_AHEAD)
    assert sum(request.received for request in downloads) == len(content)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json.gz"])
def test_lines_that_are_stored_compressed_are_read_as_stored(stored: Stored, name: str) -> None:
    """By default, Cloud Storage would decompress them on download."""
    compressed = gzip.compress(LINES)
    (file,) = find_files([stored.put(name, compressed, encoding="gzip")])
    assert file.size == len(compressed)
    assert texts_of(file) == TEXTS


_PEAK = """
import re, sys
from pathlib import Path
sys.path.insert(0, "tests")
from support.source_files import COLUMNS
from fineshards.sources.files import find_files
from fineshards.sources.reading import discover_blocks, read_block
(file,) = find_files(sys.argv[1:])
total = 0
for block in discover_blocks(file, COLUMNS, 1):
    for batch in read_block(file, COLUMNS, block):
        total += len(batch.numbers)
print(total, re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def test_memory_does_not_grow_with_the_row_group(stored: Stored, tmp_path: Path) -> None:
    def peak(rows: int) -> int:
        texts = [os.urandom(5_000).hex() for _ in range(rows)]
        pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=rows)
        url = stored.put(f"{rows}.parquet", tmp_path / "a.parquet")
        done = run_program(_PEAK, url)
        assert done.returncode == 0, done.stderr
        found, kilobytes = map(int, done.stdout.split())
        assert found == rows
        return kilobytes * 1024

    # 120 MB more text in one row group; a few buffers and batches are the same for both.
    assert peak(20_000) - peak(8_000) < 60_000_000


# ---- faults while reading


@pytest.mark.parametrize("fault", [503, 429, 408, 500, CUT_DOWNLOAD])
@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.gz"])
def test_a_transient_fault_changes_nothing(
    stored: Stored, tmp_path: Path, name: str, fault: int | str
) -> None:
    if name == "a.parquet":
        pq.write_table(pa.table({"text": TEXTS}), tmp_path / name, row_group_size=1000)
    else:
        (tmp_path / name).write_bytes(gzip.compress(LINES))
    (file,) = find_files([stored.put(name, tmp_path / name)])
    rule = stored.proxy.fail("GET", fault, range(1, 1000, 4))
    assert texts_of(file) == TEXTS
    assert rule.hits > 1


# ---- objects that change


def change(stored: Stored, name: str, how: str) -> None:
    if how == "delete":
        stored.bucket.delete_blob(name)
    else:
        stored.put(name, LINES.replace(b"text number", b"test number"))


def error_pattern(stored: Stored, name: str, how: str, before: int) -> str:
    """A regular expression for the error about a changed object."""
    what = "was deleted" if how == "delete" else "changed"
    generation = "" if how == "delete" else stored.generation(name)
    now = "" if how == "delete" else rf", now \d+ bytes and generation:{generation}"
    had = rf"had \d+ bytes and generation:{before}{now}"
    advice = "(Put .*--overwrite|If its content is the same, run .* with --trust_input)"
    url = f"gs://{stored.name}/{re.escape(name)}"
    return rf"{url} {what} since the job was launched: it {had}\. {advice}"


@pytest.mark.parametrize("how", ["replace", "delete"])
def test_an_object_that_changed_before_it_is_read(stored: Stored, how: str) -> None:
    (file,) = find_files([stored.put("a.jsonl", LINES)])
    before = stored.generation("a.jsonl")
    (block,) = discover_blocks(file, COLUMNS, 1)
    change(stored, "a.jsonl", how)
    for step in (
        lambda: discover_blocks(file, COLUMNS, 1),
        lambda: list(read_block(file, COLUMNS, block)),
    ):
        with pytest.raises(InputError, match="^" + error_pattern(stored, "a.jsonl", how, before)):
            step()


@pytest.mark.parametrize("how", ["replace", "delete"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
@pytest.mark.parametrize("moment", [1, 2, 3])
def test_an_object_that_changes_while_it_is_read(
    stored: Stored,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    name: str,
    moment: int,
) -> None:
    """At each download in turn: bytes of two generations never mix, even if they are similar."""
    # Many small requests.
    monkeypatch.setattr(open_file, "__defaults__", (1 << 16,))
    monkeypatch.setattr(ranges, "PIECE_BYTES", 1 << 16)
    texts = [os.urandom(100).hex() for _ in range(3000)]
    path = tmp_path / name
    if name == "a.parquet":
        pq.write_table(pa.table({"text": texts}), path, row_group_size=1000)
    else:
        lines = b"".join(b'{"text": "%s"}\n' % text.encode() for text in texts)
        compress = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}
        path.write_bytes(compress.get(path.suffix, bytes)(lines))
    (file,) = find_files([stored.put(name, path)])
    before = stored.generation(name)
    (block,) = discover_blocks(file, COLUMNS, 10**9)
    stored.proxy.fail("alt=media", lambda: change(stored, name, how), [moment])
    rows = Read([], [], {})
    with pytest.raises(InputError) as failure:
        add(rows, read_block(file, COLUMNS, block))
    assert re.match(error_pattern(stored, name, how, before), str(failure.value))
    assert rows.texts == texts[: len(rows.rows)]


# ---- whole jobs


@pytest.fixture
def source(stored: Stored, sample: Path, tmp_path: Path) -> str:
    """The sample in a bucket, as parquet, plain lines and compressed lines."""
    table = pq.read_table(sample, columns=["text", "id"])
    parts = [table.slice(start, 300) for start in range(0, table.num_rows, 300)]
    for number, part in enumerate(parts[:2]):
        pq.write_table(part, tmp_path / "part.parquet", row_group_size=100)
        stored.put(f"in/{number}.parquet", tmp_path / "part.parquet")
    lines = ["".join(json.dumps(row) + "\n" for row in part.to_pylist()) for part in parts[2:]]
    stored.put("in/2.jsonl.gz", gzip.compress(lines[0].encode()))
    stored.put("in/3.jsonl", lines[1].encode())
    stored.forget()
    return f"{stored.url}/in/*"


@pytest.fixture
def expected(sample: Path) -> dict[str, bytes]:
    return oracle(read_texts(sample), 50_000, test_shards=1)


def build(source: str, output: Path | str, *flags: str) -> int:
    arguments = [f"--input={source}", f"--output={output}", "--shard_tokens=50000", *flags]
    arguments.append("--test_shards=1")
    return main(["build", *arguments])


@pytest.mark.parametrize("to", ["local", "gs"])
def test_a_build_from_a_bucket_equals_the_oracle(
    stored: Stored, source: str, expected: dict[str, bytes], tmp_path: Path, to: str
) -> None:
    output = tmp_path / "out" if to == "local" else f"{stored.url}/out"
    assert build(source, output, "--block_bytes=100000") == 0
    assert (shards_in(tmp_path / "out") if to == "local" else stored.shards("out")) == expected
    assert main(["verify", str(output), "--sample=100%"]) == 0


def test_the_command_line_reads_from_a_bucket(
    in_process: Run, source: str, expected: dict[str, bytes], tmp_path: Path
) -> None:
    """By worker processes, and in a process that has not yet imported Cloud Storage's modules."""
    flags = ["--shard_tokens", "50000", "--test_shards", "1", "--block_bytes", "100000"]
    done = in_process("build", "--input", source, "--output", tmp_path / "out", *flags)
    assert done.returncode == 0, done.stderr
    assert shards_in(tmp_path / "out") == expected
    manifest = json.loads((tmp_path / "out/metadata/manifest.json").read_text())
    assert manifest["generations"][0]["root"] == source.removesuffix("*")
    assert [file["name"] for file in manifest["files"]] == [
        *("0.parquet", "1.parquet", "2.jsonl.gz", "3.jsonl")
    ]
    assert all(re.fullmatch(r"generation:\d+", file["identity"]) for file in manifest["files"])


@pytest.mark.parametrize("fault", [503, 429, CUT_DOWNLOAD])
def test_faults_while_a_job_reads_change_no_byte(
    stored: Stored, source: str, expected: dict[str, bytes], tmp_path: Path, fault: int | str
) -> None:
    rule = stored.proxy.fail("GET", fault, range(1, 1000, 4))
    assert build(source, tmp_path / "out") == 0
    assert rule.hits > 5
    assert shards_in(tmp_path / "out") == expected


@pytest.mark.parametrize(
    ("how", "name", "moment"),  # the first request, of Discover; the first of Tokenize; the last
    [
        ("replace", "1.parquet", 1),
        ("delete", "1.parquet", 2),
        ("replace", "1.parquet", -1),
        ("delete", "2.jsonl.gz", 1),
        ("replace", "2.jsonl.gz", 2),
        ("delete", "2.jsonl.gz", -1),
    ],
)
def test_an_object_that_changes_during_a_job_stops_it_with_one_sentence(
    stored: Stored,
    source: str,
    expected: dict[str, bytes],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    name: str,
    moment: int,
) -> None:
    """Afterwards, --overwrite builds from the new objects."""
    monkeypatch.setattr(ranges, "PIECE_BYTES", 1 << 14)
    output = tmp_path / "out"
    # Twice, because the second build knows the footers already.
    assert build(source, output) == 0
    first = len(stored.downloads())
    assert build(source, output, "--overwrite") == 0
    downloads = sum(f"/{name}?" in request.line for request in stored.downloads()[first:])
    content = stored.bucket.blob(f"in/{name}").download_as_bytes(raw_download=True)
    before = stored.generation(f"in/{name}")

    def change() -> None:
        if how == "delete":
            stored.bucket.delete_blob(f"in/{name}")
        else:
            stored.put(f"in/{name}", content)

    pattern = rf"/{re.escape(name)}\?.*alt=media"
    rule = stored.proxy.fail(pattern, change, [moment if moment > 0 else downloads])
    capfd.readouterr()
    assert build(source, output, "--overwrite") == 1
    assert rule.hits == 1
    errors = capfd.readouterr().err
    assert "Traceback" not in errors
    line = errors.splitlines()[-1]
    assert re.match("fineshards: " + error_pattern(stored, f"in/{name}", how, before), line), line
    assert not (output / "metadata/manifest.json").exists()
    if how == "replace":
        assert build(source, output, "--overwrite") == 0
        assert shards_in(output) == expected


def test_a_job_is_not_resumed_with_another_generation(
    stored: Stored, source: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert build(source, output) == 0
    stored.put("in/3.jsonl", b'{"text": "new"}\n')
    assert build(source, output) == 2
    assert "holds another job" in capfd.readouterr().err


def test_verify_names_changed_sources(
    stored: Stored, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert build(source, output) == 0
    stored.put("in/1.parquet", b"another")
    stored.bucket.delete_blob("in/3.jsonl")
    assert main(["verify", str(output)]) == 0
    capsys.readouterr()
    assert main(["verify", str(output), "--sample=100%", "--json"]) == 1
    changed, deleted = json.loads(capsys.readouterr().out)["problems"]
    assert re.match(
        r"gs://\S+/in/1\.parquet changed since .*: it had \d+ bytes and .*, now 7 bytes", changed
    )
    assert re.match(r"gs://\S+/in/3\.jsonl was deleted since the dataset was built", deleted)


def test_a_small_input_in_a_bucket_is_estimated_exactly(in_process: Run, source: str) -> None:
    done = in_process("estimate", "--input", source, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tokens"] == 665_971
