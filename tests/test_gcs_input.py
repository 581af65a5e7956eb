"""Input on gs://: finding objects, reading one generation of each, and whole jobs."""

from __future__ import annotations

import glob
import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from support.faulty_proxy import CUT_DOWNLOAD, Proxy
from support.fresh_interpreter import run_program
from support.gcs_input import Stored
from support.gcs_server import free_port
from support.oracle import oracle, read_texts, shards_in
from support.source_files import COLUMNS, Read, add

from fineshards.errors import InputError, UsageError
from fineshards.pipeline.cli import main
from fineshards.shards.records import SourceFile
from fineshards.sources.files import READ_AHEAD, open_file
from fineshards.sources.finding import find_files
from fineshards.sources.reading import discover_blocks, read_block

Run = Callable[..., subprocess.CompletedProcess[str]]

TEXTS = [f"text number {number}, and some more words" for number in range(3000)]
LINES = b"".join(
    json.dumps({"text": text, "id": f"n{i}"}).encode() + b"\n" for i, text in enumerate(TEXTS)
)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries end after a tenth of a second, not after minutes."""
    monkeypatch.setattr("fineshards.storage.gcs_objects._RETRY_SECONDS", 0.1)


ALWAYS = range(1, 1 << 30)


def find(*patterns: str) -> list[str]:
    return [file.path for file in find_files(patterns)]


def read(file: SourceFile, block_bytes: int = 1) -> Read:
    found = Read([], [], {})
    for block in discover_blocks(file, COLUMNS, block_bytes):
        add(found, read_block(file, COLUMNS, block))
    return found


def texts_of(file: SourceFile) -> list[str | None]:
    return [text for _, text, _ in read(file).rows]


# ---- finding objects

NAMES = [
    f"{folder}{name}"
    for folder in ("", "a/", "a/b/", "ab/", ".h/", "a/.h/b/", "[a]/", "a/b/ab/", "*/")
    for name in ("a.jsonl", "b.jsonl", "ab.jsonl", "a[1].jsonl", ".h.jsonl", "!.jsonl", "*.jsonl")
]
PARTS = ["*", "?", "**", "a", "b", "ab", "a*", "?b", "[ab]", "[!a]", "[[]a]", "[a]", ".*", ".h"]
ENDS = ["*", "**", "*.jsonl", "a.jsonl", "?.jsonl", "a[1].jsonl", "a[[]1].jsonl", "[!b]*", ".h*"]


@pytest.fixture(scope="module")
def same(gcs_proxy: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The same file names in a local folder and in a bucket."""
    folder, stored = tmp_path_factory.mktemp("same"), Stored(gcs_proxy)
    for name in NAMES:
        (folder / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "in" / name).touch()
        stored.put(f"in/{name}", b"")
    stored.put("in/a/", b"")  # a folder as created by the Cloud console
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("STORAGE_EMULATOR_HOST", gcs_proxy.address)
        yield folder, stored.url


@settings(max_examples=300)
@given(parts=st.lists(st.sampled_from(PARTS), max_size=3), end=st.sampled_from(ENDS))
def test_a_pattern_matches_as_for_local_files(
    same: tuple[Path, str], parts: list[str], end: str
) -> None:
    folder, bucket = same
    pattern = "/".join(["in", *parts, end])

    def names(root: str) -> list[str] | str:
        try:
            return [path.partition("/in/")[2] for path in find(f"{root}/{pattern}")]
        except UsageError as error:
            return str(error).replace(root, "")

    assert names(bucket) == names(glob.escape(str(folder)))


def test_only_objects_that_may_match_are_listed(stored: Stored) -> None:
    for name in ("in/a.jsonl", "in/deep/b.jsonl", "in/c.parquet", "other/d.jsonl"):
        stored.put(name, b"")
    assert find(f"{stored.url}/in/*.jsonl") == [f"{stored.url}/in/a.jsonl"]
    (listing,) = stored.requests()
    assert "prefix=in/&" in listing.line
    assert "delimiter=/&" in listing.line


def test_one_listing_describes_all_files(stored: Stored) -> None:
    urls = [stored.put(f"in/{number}.jsonl.gz", b"x" * number) for number in range(1, 4)]
    files = find_files([f"{stored.url}/in/*"])
    assert len(stored.requests()) == 1
    assert files == [
        SourceFile(
            number,
            url,
            number + 1,
            f"generation:{stored.generation(f'in/{number + 1}.jsonl.gz')}",
            "jsonl",
            "gzip",
        )
        for number, url in enumerate(urls)
    ]


def test_local_and_gs_patterns_keep_their_order(stored: Stored, sample: Path) -> None:
    first, second = stored.put("b.parquet", sample), stored.put("a.parquet", sample)
    assert find(first, str(sample), f"{stored.url}/a*") == [first, str(sample), second]


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        (["{}/in/*.parquet"], r"--input gs://data-\d+/in/\*\.parquet: no file matches"),
        (["{}/no"], "no file matches"),
        (["{}/in"], r"cannot read gs://data-\d+/in/b\.txt; expected \.parquet"),
        (["{}"], r"cannot read gs://data-\d+/in/b\.txt; expected \.parquet"),
        (
            ["{}/in/*.jsonl", "{}/in/a*"],
            r"in/a\.jsonl is matched twice, by --input .*/in/\*\.jsonl",
        ),
        (["{}/in/*"], r"/in/b\.txt: cannot read a file named 'b\.txt'; expected \.parquet"),
        (["gs:///in/*"], "does not name a bucket"),
        (["gs://data-*/in/a.jsonl"], "does not name a bucket"),
    ],
)
def test_unusable_patterns_are_explained(stored: Stored, patterns: list[str], words: str) -> None:
    for name in ("in/a.jsonl", "in/b.txt"):
        stored.put(name, b"{}")
    with pytest.raises(UsageError, match=words):
        find(*(pattern.format(stored.url) for pattern in patterns))


def test_a_missing_bucket_is_named(stored: Stored) -> None:
    with pytest.raises(InputError, match=r"^gs://no-such/a\* cannot be listed: there is no bucket"):
        find("gs://no-such/a*")


def test_missing_permission_is_one_sentence(stored: Stored) -> None:
    url = stored.put("a.jsonl", LINES)
    (file,) = find_files([url])
    stored.proxy.fail("GET", 403, ALWAYS)
    with pytest.raises(InputError, match=rf"^{url} cannot be listed: no permission \(403\)"):
        find(url)
    with pytest.raises(InputError, match=rf"^{url} cannot be read: no permission \(403\)"):
        read(file)
    # Metadata may be read, content may not.
    stored.forget()
    stored.proxy.fail("alt=media", 403, ALWAYS)
    with pytest.raises(InputError, match=rf"^{url} cannot be read: no permission \(403\)"):
        read(file)


@pytest.mark.usefixtures("impatient")
def test_a_persistent_server_failure_is_one_sentence(stored: Stored) -> None:
    url = stored.put("a.jsonl", LINES)
    (file,) = find_files([url])
    stored.proxy.fail("alt=media", CUT_DOWNLOAD, ALWAYS)
    with pytest.raises(InputError, match=rf"^{url} cannot be read: .*\. Run again") as failure:
        read(file)
    assert "\n" not in str(failure.value)
    stored.proxy.fail("GET", 503, ALWAYS)
    with pytest.raises(InputError, match=rf"^{url} cannot be listed: .*\. Run again"):
        find(url)


def test_missing_credentials_are_one_sentence(tmp_path: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "CLOUDSDK_CONFIG": str(tmp_path),
        "NO_GCE_CHECK": "true",
        "PYTHONPATH": str(ROOT / "tests"),
    }
    command = [sys.executable, "-m", "fineshards", "build", "--input=gs://data-1/*.parquet"]
    done = subprocess.run(
        [*command, f"--output={tmp_path / 'out'}"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("fineshards: gs://data-1/*.parquet cannot be listed: no ")
    assert "Google credentials were found" in line


def test_an_unreachable_server_is_one_sentence(tmp_path: Path) -> None:
    program = (
        "import sys, fineshards.storage.gcs_objects as objects; objects._RETRY_SECONDS = 0.1; "
        "from fineshards.pipeline.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "build", "--input=gs://data-1/*.parquet"]
    done = subprocess.run(
        [*command, f"--output={tmp_path / 'out'}"],
        env=os.environ
        | {
            "PYTHONPATH": str(ROOT / "tests"),
            "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{free_port()}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("fineshards: gs://data-1/*.parquet cannot be listed: ")
    assert line.endswith("Run again when Cloud Storage is reachable.")


def test_a_gs_url_as_dataset_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "--dataset=gs://bucket/folder", "--output=out"]) == 2
    assert "use --input, such as --input 'gs://" in capsys.readouterr().err


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
    assert [text for _, text, _ in found.rows] == [str(n) for n in range(-(-len(noise) // 5000))]
    assert len(content) > READ_AHEAD
    downloads = stored.downloads()
    assert len(downloads) == -(-len(content) // READ_AHEAD)
    assert sum(request.received for request in downloads) == len(content)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json.gz"])
def test_lines_that_are_stored_compressed_are_read_as_stored(stored: Stored, name: str) -> None:
    """By default, Cloud Storage would decompress them on download."""
    compressed = gzip.compress(LINES)
    (file,) = find_files([stored.put(name, compressed, encoding="gzip")])
    assert (file.size, file.compression) == (len(compressed), "gzip")
    assert texts_of(file) == TEXTS


@pytest.mark.parametrize(
    ("name", "encoding"), [("a.parquet", "gzip"), ("a.jsonl", "br"), ("a.jsonl.zst", "gzip")]
)
def test_other_stored_encodings_are_refused(stored: Stored, name: str, encoding: str) -> None:
    url = stored.put(name, b"whatever", encoding)
    with pytest.raises(InputError, match=rf"^{url} is stored with Content-Encoding {encoding}"):
        find(url)


_PEAK = """
import re, sys
from pathlib import Path
sys.path.insert(0, "tests")
from support.source_files import COLUMNS
from fineshards.sources.finding import find_files
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
    assert peak(16_000) - peak(4_000) < 60_000_000


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


def test_a_cut_download_neither_loses_nor_repeats_rows(stored: Stored) -> None:
    (file,) = find_files([stored.put("a.jsonl", LINES)])
    (block,) = discover_blocks(file, COLUMNS, 1)
    stored.forget()
    rule = stored.proxy.fail("alt=media", CUT_DOWNLOAD)
    found = Read([], [], {})
    add(found, read_block(file, COLUMNS, block))
    assert rule.hits == 1
    assert found.rows == [(n, text, f"n{n}") for n, text in enumerate(TEXTS)]


# ---- objects that change


def change(stored: Stored, name: str, how: str) -> None:
    if how == "delete":
        stored.bucket.delete_blob(name)
    else:
        stored.put(name, LINES.replace(b"text number", b"test number"))


def error_pattern(stored: Stored, name: str, how: str, before: int) -> str:
    """A regular expression for the error about a changed object."""
    what = "was deleted" if how == "delete" else "changed"
    now = "" if how == "delete" else f"generation:{stored.generation(name)} of"
    return (
        rf"gs://{stored.name}/{re.escape(name)} {what} since the job was launched: it was "
        rf"generation:{before} of .*{now}.*--overwrite"
    )


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
    monkeypatch.setattr(open_file, "__defaults__", (1 << 16,))  # many small requests
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
    assert [text for _, text, _ in rows.rows] == texts[: len(rows.rows)]


# ---- whole jobs

MODES = [
    [],
    ["--workers=3"],
]


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


@pytest.mark.parametrize("flags", MODES, ids=lambda flags: flags[0])
@pytest.mark.parametrize("to", ["local", "gs"])
def test_a_build_from_a_bucket_equals_the_oracle(
    stored: Stored,
    source: str,
    expected: dict[str, bytes],
    tmp_path: Path,
    to: str,
    flags: list[str],
) -> None:
    output = tmp_path / "out" if to == "local" else f"{stored.url}/out"
    assert build(source, output, "--block_bytes=100000", *flags) == 0
    assert (shards_in(tmp_path / "out") if to == "local" else stored.shards("out")) == expected
    assert main(["verify", str(output), "--sample=100"]) == 0


def test_the_command_line_reads_from_a_bucket(
    fineshards: Run, source: str, expected: dict[str, bytes], tmp_path: Path
) -> None:
    """In a separate process, which has not yet imported the Cloud Storage modules."""
    flags = ["--shard_tokens", "50000"]
    done = fineshards("build", "--input", source, "--output", tmp_path / "out", *flags)
    assert done.returncode == 0, done.stderr
    assert shards_in(tmp_path / "out") == expected
    manifest = json.loads((tmp_path / "out/metadata/manifest.json").read_text())
    assert [file["path"] for file in manifest["files"]] == [
        f"{source.removesuffix('*')}{name}"
        for name in ("0.parquet", "1.parquet", "2.jsonl.gz", "3.jsonl")
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


@pytest.mark.parametrize("how", ["replace", "delete"])
@pytest.mark.parametrize("name", ["1.parquet", "2.jsonl.gz"])
@pytest.mark.parametrize("moment", [1, 2, -1], ids=["discovery", "reading", "last"])
def test_an_object_that_changes_during_a_job_stops_it_with_one_sentence(
    stored: Stored,
    source: str,
    expected: dict[str, bytes],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    how: str,
    name: str,
    moment: int,
) -> None:
    """Afterwards, --overwrite builds from the new objects."""
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
    assert main(["verify", str(output), "--sample=100", "--json"]) == 1
    changed, deleted = json.loads(capsys.readouterr().out)["problems"]
    assert re.match(
        r"gs://\S+/in/1\.parquet changed since .*generation:\d+ .*generation:\d+", changed
    )
    assert re.match(r"gs://\S+/in/3\.jsonl was deleted since", deleted)


def test_a_small_input_in_a_bucket_is_estimated_exactly(fineshards: Run, source: str) -> None:
    done = fineshards("estimate", "--input", source, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tokens"] == 665_971
