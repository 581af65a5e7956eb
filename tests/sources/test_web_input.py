"""Input on web servers: single files by ranges, of one version, and what servers get wrong."""

import gzip
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from support.fresh_interpreter import run_program
from support.oracle import shards_in
from support.source_files import COLUMNS, Read, add, read_file
from support.web_server import Web

from fineshards.cli.cli import main
from fineshards.config import BuildConfig
from fineshards.errors import InputError, UsageError
from fineshards.sources.files import find_files, open_file
from fineshards.sources.reading import discover_blocks, read_block

Run = Callable[..., subprocess.CompletedProcess[str]]

TEXTS = [f"text number {number}, and some more words" for number in range(3000)]
LINES = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in TEXTS)
OTHER_LINES = LINES.replace(b"words", b"verbs")


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as server:
        yield server


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits are short, and so is the time for which requests are retried."""
    monkeypatch.setattr("fineshards.storage.retries.FIRST_WAIT", 0.001)
    monkeypatch.setattr("fineshards.storage.retries.RETRY_SECONDS", 0.5)
    monkeypatch.setattr("fineshards.sources.places.http_files._FIND_SECONDS", 0.1)


def texts_of(url: str) -> list[str | None]:
    (file,) = find_files([url])
    return read_file(file).texts


def parquet_with_an_unused_column(path: Path) -> bytes:
    unused = [number.to_bytes(4) * 1000 for number in range(3000)]
    table = pa.table({"a": unused, "text": TEXTS})
    pq.write_table(table, path, row_group_size=1500, compression="none", use_dictionary=False)
    return path.read_bytes()


@pytest.mark.parametrize("absent", [403, 404])
def test_a_file_that_a_saved_dataset_does_not_list_is_refused(web: Web, absent: int) -> None:
    web.absent = absent  # where nothing was saved, there is no such record
    (file,) = find_files([web.put("in/data.arrow", b"")])
    web.put("in/state.json", b'{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
    with pytest.raises(UsageError, match=r"in/data\.arrow: not listed by state\.json beside it"):
        find_files([file.path])


# ---- requests


def test_a_block_of_many_row_groups_takes_few_requests(web: Web, tmp_path: Path) -> None:
    """As FineWeb's: a row group per 1,000 documents, and columns beside the text."""
    path = tmp_path / "a.parquet"
    texts = [f"{number} " + "some words " * (number % 200) for number in range(20_000)]
    more = {"dump": ["CC-MAIN"] * 20_000, "url": [f"https://{text[:40]}" for text in texts]}
    ids = [f"<urn:uuid:{number}>" for number in range(20_000)]
    pq.write_table(pa.table({"text": texts, "id": ids, **more}), path, row_group_size=1000)
    url = web.put("in/a.parquet", path.read_bytes())
    (file,) = find_files([url])
    columns = replace(COLUMNS, id="id", others=("dump",))
    (block,) = discover_blocks(file, columns, 64 << 20)
    web.requests.clear()
    found = Read([], [], {})
    add(found, read_block(file, columns, block))
    assert found.texts == texts
    assert len(web.requests) <= 4
    assert sum(request.sent for request in web.requests) <= path.stat().st_size


# ---- finding


def test_a_file_is_described_by_one_request_for_one_byte(web: Web) -> None:
    url = web.put("in/a.jsonl", LINES)
    (file,) = find_files([url])
    assert (file.path, file.size, file.format, file.compression) == (
        url, len(LINES), "jsonl", "none"
    )  # fmt: skip
    assert [(request.range, request.sent) for request in web.requests] == [("bytes=0-0", 1)]


@pytest.mark.parametrize(
    ("says", "kind"),
    [
        (("ETag", "Last-Modified"), "etag:"),
        (("Last-Modified",), "mtime:Sun, 22 Nov 2026 01:00:00 GMT"),
        ((), f"size:{len(LINES)}"),
    ],
)
def test_a_file_is_pinned_by_the_best_that_the_server_says(
    web: Web, says: tuple[str, ...], kind: str
) -> None:
    web.says = says
    (file,) = find_files([web.put("a.jsonl", LINES)])
    assert file.identity.startswith(kind)
    assert read_file(file).texts == TEXTS


def test_the_format_is_that_of_the_path_and_not_of_the_query(web: Web) -> None:
    url = web.put("a.jsonl.gz", gzip.compress(LINES)) + "?download=true&name=x.csv"
    (file,) = find_files([url])
    assert (file.path, file.format, file.compression) == (url, "jsonl", "gzip")
    assert texts_of(url) == TEXTS
    assert {request.path for request in web.requests} == {url.removeprefix(web.url)}


def test_the_id_of_a_text_holds_no_query(web: Web) -> None:
    (file,) = find_files([web.put("note.txt", b"a text") + "?download=true"])
    assert read_file(file).rows == [(0, "a text", file.path.removesuffix("?download=true"))]


def test_signs_in_a_query_are_no_wildcards(web: Web) -> None:
    url = web.put("a.jsonl", LINES) + "?part=[1]&all=*"
    assert texts_of(url) == TEXTS


@pytest.mark.parametrize("path", ["/", "", "/folder/", "/in/*.jsonl"])
def test_folders_and_patterns_are_refused(web: Web, path: str) -> None:
    with pytest.raises(UsageError, match="does not list its files, so patterns and folders cannot"):
        find_files([web.url + path])
    assert web.requests == []


@pytest.mark.parametrize(
    "secret",
    ["X-Amz-Signature=", "x-goog-signature=", "Signature=", "sv=1&sig=", "q-signature=", ""],
)
def test_a_password_or_signature_is_refused_and_not_repeated(web: Web, secret: str) -> None:
    url = web.put("a.jsonl", LINES)
    url = f"{url}?{secret}secret" if secret else url.replace("http://", "http://me:secret@")
    with pytest.raises(UsageError, match=r"a user or password in a URL") as raised:
        find_files([url])
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://[x/a.csv", "is not a URL: Invalid IPv6 URL"),
        ("http://127.0.0.1:99999/a.csv", r"cannot be read: LocationParseError: Failed to parse"),
        ("http://a b/a.csv", r"Host 'a b' contains invalid character ' '. Check the URL"),
    ],
)
def test_what_is_no_url_is_one_sentence(url: str, said: str) -> None:
    with pytest.raises((InputError, UsageError), match=said):
        find_files([url])


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (404, r"a\.jsonl cannot be read: there is no such file \(404\)"),
        (403, r"a\.jsonl cannot be read: the server refuses access \(403\)"),
        (451, r"a\.jsonl cannot be read in parts: to a range request the server answered 451"),
    ],
)
def test_a_refusal_is_said_at_once(web: Web, status: int, said: str) -> None:
    url = web.put("a.jsonl", LINES)
    web.faults = [status]
    with pytest.raises(InputError, match=said):
        find_files([url])
    assert len(web.requests) == 1


def test_a_server_that_is_not_there_is_an_error() -> None:
    with pytest.raises(InputError, match=r"cannot be read: .*refused\. Run the same"):
        find_files(["http://127.0.0.1:9/a.jsonl"])


def test_a_server_without_ranges_is_refused(web: Web) -> None:
    web.ranges = False
    with pytest.raises(InputError, match="in parts: its server ignores range requests"):
        find_files([web.put("a.jsonl", LINES)])


def test_an_empty_file_is_empty(web: Web) -> None:
    for web.ranges in (True, False):
        (file,) = find_files([web.put("a.jsonl", b"")])
        assert (file.size, read_file(file).rows) == (0, [])


def test_a_redirect_is_followed(web: Web) -> None:
    web.redirects["/latest.jsonl"] = web.put("b.jsonl", LINES)
    assert texts_of(f"{web.url}/latest.jsonl") == TEXTS


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip"])
def test_a_content_encoding_is_how_the_file_is_stored(web: Web, encoding: str) -> None:
    web.headers = {"Content-Encoding": encoding}
    for name in ("a.jsonl", "a.jsonl.gz"):
        url = web.put(name, gzip.compress(LINES))
        assert texts_of(url) == TEXTS


# ---- reading


def test_unused_columns_are_not_downloaded(web: Web, tmp_path: Path) -> None:
    content = parquet_with_an_unused_column(tmp_path / "a.parquet")
    assert texts_of(web.put("a.parquet", content)) == TEXTS
    sent = sum(request.sent for request in web.requests)
    assert 100_000 < sent < 1_000_000 < 12_000_000 < len(content)


@pytest.mark.parametrize("fault", [500, 503, 429, 0, 1000])
def test_what_passes_is_tried_again(web: Web, fault: int) -> None:
    (file,) = find_files([web.put("a.jsonl", LINES)])
    (block,) = discover_blocks(file, COLUMNS, 1)
    web.requests.clear()
    web.faults = [fault, None, fault, fault]  # of the check, and of the content
    found = Read([], [], {})
    add(found, read_block(file, COLUMNS, block))
    assert found.texts == TEXTS
    assert web.faults == []
    assert len(web.requests) == 3 + 3


def test_what_does_not_pass_is_an_error(web: Web) -> None:
    (file,) = find_files([web.put("a.jsonl", LINES)])
    web.faults = [503] * 1000
    with pytest.raises(
        InputError, match=r"a\.jsonl cannot be read: the server answered 503\. Run the same"
    ):
        read_file(file)
    web.faults = [1000] * 1000
    with open_file(file) as opened, pytest.raises(InputError, match=r"cannot be read: .*1000"):
        opened.read()


def test_a_server_that_asks_to_wait_is_given_the_time(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says seconds, or a date, which is a full second."""
    monkeypatch.setattr("fineshards.storage.retries.RETRY_SECONDS", 10.0)
    url = web.put("a.jsonl", LINES)
    (file,) = find_files([url])
    for said in ("1", format_datetime(datetime.now(UTC) + timedelta(seconds=4), usegmt=True)):
        web.retry_after, web.faults = said, [429]
        with open_file(file) as opened:
            began = time.monotonic()
            assert opened.read() == LINES
            assert time.monotonic() - began > 0.9


def test_a_server_that_asks_to_wait_too_long_is_an_error_at_once(web: Web) -> None:
    (file,) = find_files([web.put("a.jsonl", LINES)])
    web.retry_after, web.faults = "3600", [503]
    web.requests.clear()
    with (
        open_file(file) as opened,
        pytest.raises(InputError, match=r"the server answered 503, and asks to wait 3,600 s\. Run"),
    ):
        opened.read()
    assert len(web.requests) == 1


@pytest.mark.parametrize("said", ["nonsense", "-1", "9" * 5000, "Sun, 22 Nov 2026 99:00:00 GMT"])
def test_a_wait_that_cannot_be_read_is_the_usual_one(web: Web, said: str) -> None:
    (file,) = find_files([web.put("a.jsonl", LINES)])
    web.retry_after, web.faults = said, [503]
    with open_file(file) as opened:
        assert opened.read() == LINES


@pytest.mark.parametrize("says", [("ETag",), ("Last-Modified",)])
@pytest.mark.parametrize("first", [True, False])
def test_a_change_before_and_while_a_block_is_read_is_noticed(
    web: Web, says: tuple[str, ...], first: bool, tmp_path: Path
) -> None:
    web.says = says
    content = parquet_with_an_unused_column(tmp_path / "a.parquet")
    other = content.replace(b"words", b"verbs")
    (file,) = find_files([web.put("a.parquet", content)])
    blocks = discover_blocks(file, COLUMNS, 1)
    assert len(blocks) == 2

    def change() -> None:
        web.put("a.parquet", other, changed="01:00:01")

    # The check before the block, then its content.
    web.faults = [change] if first else [None, change]
    with pytest.raises(InputError, match=r"a\.parquet changed since the job was launched: it had"):
        list(read_block(file, COLUMNS, blocks[0]))
    assert len(web.requests) > 2


def test_a_file_that_became_shorter_is_noticed_by_its_size_alone(web: Web) -> None:
    web.says = ()
    (file,) = find_files([web.put("a.jsonl", LINES)])
    for shorter in (LINES[:-20], b""):
        with open_file(file) as opened:
            web.put("a.jsonl", shorter)
            opened.seek(len(LINES) - 10)
            with pytest.raises(InputError, match=rf"changed .* now {len(shorter)} bytes"):
                opened.read(10)


def test_ranges_that_end_in_the_middle_of_a_job_are_noticed(web: Web) -> None:
    (file,) = find_files([web.put("a.jsonl", LINES)])
    with open_file(file, 100) as opened:
        assert opened.read(100) == LINES[:100]
        web.ranges = False
        with pytest.raises(InputError, match="in parts: its server ignores range requests"):
            opened.read(100)


def test_another_range_than_asked_for_is_refused(web: Web) -> None:
    (file,) = find_files([web.put("a.jsonl", LINES)])
    web.headers = {"Content-Range": f"bytes 0-99/{len(LINES)}"}
    with open_file(file, 100) as opened:
        opened.seek(100)
        with pytest.raises(InputError, match="expected 100 to 199"):
            opened.read(100)
    web.headers = {"Content-Range": "bytes 0-99/*"}
    with pytest.raises(InputError, match=r"answered 206 with Content-Range 'bytes 0-99/\*'"):
        find_files([file.path])


# ---- jobs


def test_launch_describes_files_in_another_process(web: Web) -> None:
    url = web.put("a.jsonl", LINES)
    done = run_program(
        "import sys\n"
        "from fineshards.worker import own_process\n"
        "from fineshards.pipeline.input_files import Patterns, find_input\n"
        "from fineshards.config import BuildConfig\n"
        "own_process.alone = True\n"
        f"config = BuildConfig(input={url!r}, output='x')\n"
        "files = find_input(config, Patterns.of(config))[0]\n"
        "print(files[0].size, 'requests' in sys.modules)\n"
    )
    assert done.stdout.split() == [str(len(LINES)), "False"], done.stderr


@pytest.mark.cloud
def test_a_build_from_urls_has_the_bytes_of_one_from_paths(
    web: Web, tmp_path: Path, sample: Path, in_process: Run
) -> None:
    """A whole job, and the commands that read its source again."""
    flags = ["--shard_tokens=200000", "--tokenizer=cl100k_base"]
    local, far, out = tmp_path / "local.jsonl", tmp_path / "far", tmp_path / "out"
    local.write_bytes(LINES)
    assert main(["build", f"--input={local}", f"--input={sample}", f"--output={out}", *flags]) == 0
    urls = [web.put("a.jsonl", LINES) + "?signed=yes", sample.as_uri()]
    done = in_process("build", *(f"--input={url}" for url in urls), f"--output={far}", *flags)
    assert done.returncode == 0, done.stderr
    assert shards_in(far) == shards_in(out)
    assert web.requests[0].path == "/a.jsonl?signed=yes"
    verified = in_process("verify", far, "--sample=5%")
    assert verified.returncode == 0, verified.stdout + verified.stderr

    appended = web.put("b.jsonl", OTHER_LINES)
    done = in_process("append", far, f"--input={appended}")
    assert done.returncode == 0, done.stderr
    before = shards_in(far)
    again = in_process("append", far, f"--input={web.put('a.jsonl', OTHER_LINES)}?signed=yes")
    assert "Give --trust_input if the content is the same" in again.stderr
    verified = in_process("verify", far, "--sample=100%")
    assert "its tokens differ from those of" in verified.stdout
    longer = in_process("append", far, f"--input={web.put('a.jsonl', LINES + LINES)}?signed=yes")
    assert "is in the dataset already, and has changed since" in longer.stderr
    web.put("a.jsonl", LINES)

    (damaged, *_) = sorted((far / "train").iterdir())
    damaged.unlink()
    repaired = in_process("repair", far)
    assert repaired.returncode == 0, repaired.stdout + repaired.stderr
    assert shards_in(far) == before


@pytest.mark.cloud
def test_estimate_and_recipe_check_read_web_files(web: Web, in_process: Run) -> None:
    url = web.put("a.jsonl", LINES)
    done = in_process("estimate", f"--input={url}", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["documents"] == len(TEXTS)
    done = in_process("recipe", "check", f"--input={url}", "--where=length(text) > 36")
    assert done.returncode == 0, done.stderr
    assert "3,000" in done.stdout


def test_a_file_url_is_a_local_path(tmp_path: Path) -> None:
    path = tmp_path / "a name.jsonl"
    for url in (path.as_uri(), path.as_uri().replace("///", "//localhost/")):
        assert BuildConfig(input=url, output="out").patterns == (str(path),)
    with pytest.raises(UsageError, match=r"file://far/a\.jsonl: expected file:///path"):
        BuildConfig(input="file://far/a.jsonl", output="out")
    with pytest.raises(UsageError, match=r"https:/far/a\.jsonl: give a URL as text, with two sla"):
        BuildConfig(input=Path("https://far/a.jsonl"), output="out")
