"""`fineshards estimate`: one build of a probe, and what it says of the whole input."""

from __future__ import annotations

import gzip
import itertools
import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import hub_client
from support.build_here import build_here
from support.fresh_interpreter import run_program
from support.gcs_input import Stored
from support.hub_server import HubServer
from support.oracle import ENCODING
from support.source_files import read_all

from fineshards.cli.cli import main
from fineshards.config import BuildConfig
from fineshards.errors import InputError
from fineshards.inspection.dataflow_cost import Dataflow, on_dataflow
from fineshards.inspection.estimate import Estimate, describe_estimate, hub_limit, scaled
from fineshards.inspection.last_estimate import recall
from fineshards.pipeline.probe import estimate, spread
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import SourceFile
from fineshards.storage.open import open_storage

Run = Callable[..., subprocess.CompletedProcess[str]]
KINDS = ["parquet", "jsonl", "jsonl.gz", "jsonl.zst"]
DOCUMENTS = 2000


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's folder for temporary files, in which nothing must be left."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def write(folder: Path, kind: str, number: int, count: int = DOCUMENTS) -> Path:
    """A file of documents whose length grows through it, with words of its own."""
    path = folder / f"{number}.{kind}"
    random = Random(number)
    words = [random.randbytes(2).hex() for _ in range(500)] + ["and", "the", "of"] * 100 * number
    rows = [
        {"text": " ".join([f"{number}", *random.choices(words, k=row % 17 + row // 20)]), "id": row}
        for row in range(count)
    ]
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=10, compression="zstd")
        return path
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if kind.endswith(".gz"):
        lines = gzip.compress(lines)
    if kind.endswith(".zst"):
        lines = pa.compress(lines, codec="zstd", asbytes=True)
    path.write_bytes(lines)
    return path


def write_random(folder: Path, kind: str, number: int) -> Path:
    """A file of 4 MB that no compression makes much smaller."""
    random = Random(number)
    texts = [random.randbytes(5000).hex() for _ in range(400)]
    path = folder / f"{number}.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"text": texts}), path, row_group_size=10)
    else:
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
        path.write_bytes(gzip.compress(lines) if kind.endswith(".gz") else lines)
    return path


def true_tokens(paths: list[Path]) -> int:
    texts = [text for path in paths for _, text, _ in read_all(path).rows]
    return sum(map(len, ENCODING.encode_ordinary_batch(texts))) + len(texts)


# ---- the command


def test_a_small_input_is_built_whole_and_the_numbers_are_those_of_a_build(
    in_process: Run, sample: Path, tmp_path: Path, work: Path
) -> None:
    done = in_process("estimate", "--input", sample, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {field.name for field in fields(Estimate)}
    assert set(found["dataflow"]) == {field.name for field in fields(Dataflow)}
    assert found["exact"]
    assert found["tokens"] == 665_971
    assert found["documents"] == 1063
    assert found["tokens_range"] == [665_971, 665_971]
    assert found["memory_bytes"] > 10 << 20
    assert found["seconds"] > 0
    assert list(work.iterdir()) == []

    done = in_process("build", "--input", sample, "--output", tmp_path / "out")
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(
        r"estimated: 666k tokens, .* \(by fineshards estimate at \d{4}-\d\d-\d\d \d\d:\d\d\)", last
    )
    on_disk = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert found["output_bytes"] == pytest.approx(on_disk, rel=0.01)
    # Both are on the disk: the token blocks with their documents, and the shards.
    assert found["peak_bytes"] > found["output_bytes"] + 4 * 665_971
    manifest = Manifest.load(open_storage(f"{tmp_path}/out"))
    assert manifest is not None
    assert (recall(manifest.files, manifest.settings) or "").startswith("666k tokens, ")
    other = replace(manifest.settings.tokenizer, vocabulary_sha256="another")
    assert recall(manifest.files, replace(manifest.settings, tokenizer=other)) is None


BUILD = 'build = { workers = 3, output = "elsewhere" }\n'
JUDGES = """
[[steps]]
use = "dclm_lines"
max_removed_ratio = 0.3
[[steps]]
use = "length"
min_chars = 1000
"""
LINES = '\n[[steps]]\nuse = "lines"\n'


@pytest.mark.curation
def test_a_recipe_gives_the_tokens_of_a_build(
    in_process: Run, sample: Path, tmp_path: Path, work: Path
) -> None:
    recipe, flags = tmp_path / "recipe.toml", ["--where", "length(text) < 9000"]
    recipe.write_text(BUILD + JUDGES)
    done = in_process("estimate", "--input", sample, "--recipe", recipe, *flags, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    manifest = build_here(
        input=sample, output=tmp_path / "out", recipe=recipe, where="length(text) < 9000"
    )
    counts = manifest.counts()
    assert found["exact"]
    assert found["tokens"] == counts.tokens
    assert found["documents"] == counts.documents
    assert found["tokens_range"] == [counts.tokens] * 2
    left = counts.documents + counts.documents_dropped
    for number, (use, step) in enumerate(
        zip(("where", "dclm_lines", "length"), found["curation"]["steps"], strict=True)
    ):
        kept = left - sum(each.documents for each in counts.dropped if each.step == number)
        assert step == {"name": f"{number + 1} {use}", "documents": left, "kept": kept}
        assert 0 < kept < left
        left = kept
    assert found["curation"]["bytes_per_second"] > 0
    on_disk = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert found["output_bytes"] == pytest.approx(on_disk, rel=0.05)
    assert list(work.iterdir()) == []
    assert not Path("elsewhere").exists()
    # An estimate with steps is not one of a build without them.
    settings = manifest.settings
    assert recall(manifest.files, settings) is not None
    assert recall(manifest.files, replace(settings, recipe=None)) is None


@pytest.mark.curation
def test_steps_that_compare_documents_are_left_out_of_an_estimate(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(LINES + JUDGES)
    assert main(["estimate", f"--input={sample}", f"--recipe={recipe}"]) == 0
    printed = capsys.readouterr().out
    tokens = re.search(r"tokens     up to ([\d,]+)$", printed, re.MULTILINE)
    assert tokens is not None
    assert "left out   1 lines: a probe cannot show what is equal" in printed
    manifest = build_here(input=sample, output=tmp_path / "out", recipe=recipe)
    assert manifest.counts().tokens < int(tokens[1].replace(",", ""))
    recipe.write_text(LINES)
    assert main(["estimate", f"--input={sample}", f"--recipe={recipe}"]) == 0
    assert "tokens     up to 665,971" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("kinds", [["parquet"], KINDS])
def test_a_probe_tells_of_files_that_differ(kinds: list[str], tmp_path: Path, work: Path) -> None:
    folder = tmp_path / "in [1]"  # with special characters of patterns
    folder.mkdir()
    paths = [write(folder, kinds[number % len(kinds)], number) for number in range(4)]
    found = estimate(config_of(f"{tmp_path}/in [[]1]/*"), None, size=400_000)
    assert list(work.iterdir()) == []
    if len(kinds) == 1:
        assert 0.05 < found.probe_share < 0.5
        assert not found.exact
        assert found.tokens_range is not None
        low, high = found.tokens_range
        assert low <= true_tokens(paths) <= high
        assert high - low < 0.2 * found.tokens
    # Lines of these files fit into one record batch, so all of them are read.
    assert found.tokens == pytest.approx(true_tokens(paths), rel=0.03)
    assert found.documents == pytest.approx(4 * DOCUMENTS, rel=0.3)


@pytest.mark.long
def test_the_text_is_a_few_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "parquet", 0)
    assert main(["estimate", f"--input={path}", "--workers=3"]) == 0
    printed = capsys.readouterr()
    assert "reading a probe of the input" in printed.err
    assert printed.out.startswith("from a probe of 100.00 % of the input\n")
    assert f"  tokens     {true_tokens([path]):,}\n" in printed.out
    assert "with 3 workers (n2-standard-4)" in printed.out
    partial = estimate(config_of(path), None, size=50_000)
    assert any(", likely " in line for line in describe_estimate(partial))
    unknown = replace(partial, tokens_range=None)
    assert any("too few places" in line for line in describe_estimate(unknown))


def test_rows_that_cannot_be_encoded_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "a"}\n{\n{"text": 1}\n')
    assert main(["estimate", f"--input={path}"]) == 0
    printed = capsys.readouterr().out
    assert "documents  1\n" in printed
    assert "2 in the probe; a build needs --max_bad_rows" in printed


@pytest.mark.long
@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--input=none*.parquet"], 2, "no file matches"),
        (["--input={sample}", "--text_column=txet"], 1, "no column 'txet'"),
        (["--input={sample}", "--tokenizer=none"], 2, "none"),
        (["--input={sample}", "--workers=0"], 2, "--workers must be from 1 to 4,000, got 0"),
        (["--input={sample}", "--workers=1e20"], 2, "--workers must be from 1 to 4,000"),
        (["--input={sample}", "--output=x"], 1, "x holds no finished dataset"),
        ([], 2, "either --input or --dataset"),
        (["--input={nulls}"], 1, "no documents"),
        (["--input={sample}", "--where=false"], 1, "the recipe drops all 1,063 documents of a"),
        (["--input={sample}", "--recipe={nulls}"], 2, "nulls.parquet"),
    ],
)
def test_mistakes_and_bad_input_end_in_a_sentence(
    flags: list[str],
    code: int,
    words: str,
    sample: Path,
    tmp_path: Path,
    work: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nulls = tmp_path / "nulls.parquet"
    pq.write_table(pa.table({"text": pa.nulls(3, pa.string())}), nulls)
    places = {"sample": sample, "nulls": nulls}
    assert main(["estimate", *(flag.format(**places) for flag in flags)]) == code
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("fineshards: ")
    assert words in last
    assert list(work.iterdir()) == []


# ---- remote input


@pytest.mark.long
def test_a_bucket_is_read_in_part(stored: Stored, tmp_path: Path) -> None:
    paths = [write_random(tmp_path, "parquet", number) for number in range(3)]
    for path in paths:
        stored.put(f"in/{path.name}", path)
    stored.forget()
    remote = estimate(config_of(f"{stored.url}/in/*"), None, size=400_000)
    received = sum(request.received for request in stored.downloads())
    assert 0 < received < sum(path.stat().st_size for path in paths)
    local = estimate(config_of(*paths), None, size=400_000)
    same = ("tokens", "documents", "tokens_range", "probe_share")
    assert [getattr(remote, name) for name in same] == [getattr(local, name) for name in same]


@pytest.mark.long
def test_a_dataset_of_the_hub_is_read_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, home = tmp_path / "repository", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    for number in range(3):
        write_random(folder, "parquet", number)
    size = sum(path.stat().st_size for path in folder.iterdir())
    with HubServer() as hub:
        hub.push("owner/name", folder)
        for name, value in hub_client.environment(hub.url, home).items():
            monkeypatch.setenv(name, value)
        done = run_program(
            "from fineshards.config import BuildConfig\n"
            "from fineshards.pipeline.probe import estimate\n"
            "config = BuildConfig(dataset='owner/name', output='unused')\n"
            "found = estimate(config, None, size=1 << 20)\n"
            "print(found.documents, found.exact)\n",
        )
        assert done.returncode == 0, done.stderr
        sent = sum(request.sent for request in hub.requests)
    documents, exact = done.stdout.split()
    assert int(documents) == pytest.approx(3 * 400, rel=0.05)
    assert exact == "False"
    assert sent < size


# ---- the probe


def config_of(*paths: object, **more: Any) -> BuildConfig:
    return BuildConfig(input=list(map(str, paths)), output="unused", **more)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_probe_larger_than_the_input_is_all_of_it(kind: str, tmp_path: Path) -> None:
    paths = [write(tmp_path, kind, number, count=200) for number in range(3)]
    found = estimate(config_of(*paths), None)
    assert (found.exact, found.documents, found.tokens) == (True, 600, true_tokens(paths))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["parquet", "jsonl", "jsonl.gz"])
def test_the_beginning_of_a_large_block_stands_for_it(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"0.{kind}"
    random = Random(5)
    texts = [f"{number} {random.randbytes(1000).hex()}" for number in range(12_000)]
    if kind == "parquet":
        pq.write_table(pa.table({"text": texts}), path, row_group_size=len(texts))
    else:
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
        path.write_bytes(gzip.compress(lines, 1) if kind.endswith(".gz") else lines)
    found = estimate(config_of(path), None, size=1 << 20)
    # A record batch at the least, of 8 MiB.
    assert 0.1 < found.probe_share < 0.6
    assert found.documents == pytest.approx(len(texts), rel=0.05)
    assert found.tokens_range is None


@pytest.mark.long
@pytest.mark.parametrize("kind", ["dictionary", "short"])
def test_parquet_is_scaled_by_rows(kind: str, tmp_path: Path) -> None:
    """Whatever the size of the column says: a dictionary is small, short texts have prefixes."""
    texts = [" many words" * 1000] * 3000 if kind == "dictionary" else ["a b c d e f"] * 900_000
    table = pa.table({"text": texts})
    dictionary = ["text"] if kind == "dictionary" else False
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=len(texts), use_dictionary=dictionary)
    found = estimate(config_of(path), None, size=1 << 20)
    assert found.documents == pytest.approx(len(texts), rel=0.01)
    assert not found.exact


def test_files_without_documents_are_among_the_probe(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["some text"] * 50}), tmp_path / "0.parquet")
    for number in range(1, 4):
        nulls = pa.table({"text": pa.nulls(50, pa.string())})
        pq.write_table(nulls, tmp_path / f"{number}.parquet")
    found = estimate(config_of(tmp_path), None)
    assert (found.documents, found.exact) == (50, True)


def test_the_input_may_lie_in_the_temporary_folder(work: Path) -> None:
    pq.write_table(pa.table({"text": ["some text"] * 50}), work / "0.parquet")
    assert estimate(config_of(work), None).documents == 50


@pytest.mark.long
def test_a_file_of_another_kind_is_probed_too(tmp_path: Path) -> None:
    paths = [write(tmp_path, "parquet", number) for number in range(3)]
    rare = tmp_path / "9.jsonl"
    rare.write_text(json.dumps({"text": "rare " * 5000}) + "\n")
    found = estimate(config_of(*paths, rare), None, size=400_000)
    assert found.tokens == pytest.approx(true_tokens([*paths, rare]), rel=0.1)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst"])
def test_a_damaged_file_is_named(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path, kind, 0)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(InputError, match=rf"0\.{kind}.* damaged"):
        estimate(config_of(path), None)


@given(st.integers(0, 2000))
def test_a_spread_has_every_number_once(count: int) -> None:
    assert sorted(spread(count)) == list(range(count))


@given(st.integers(1, 2000), st.integers(1, 2000))
def test_no_prefix_of_a_spread_leaves_a_large_gap(count: int, length: int) -> None:
    length = min(length, count)
    chosen = [-1, *sorted(spread(count)[:length]), count]
    gaps = [after - before for before, after in itertools.pairwise(chosen)]
    # The golden ratio leaves gaps of three lengths, the longest less than three times the mean.
    assert max(gaps) <= 3 * count / length + 1


# ---- the arithmetic

sizes = st.lists(st.integers(1, 10**9), min_size=1, max_size=20)


@given(st.dictionaries(st.sampled_from("abc"), sizes, min_size=1), st.integers(0, 10))
def test_a_constant_ratio_is_scaled_exactly(groups: dict[str, list[int]], ratio: int) -> None:
    parts = [(group, size, size * ratio) for group, found in groups.items() for size in found]
    totals = {group: 7 * sum(found) for group, found in groups.items()}
    amount, likely = scaled(parts, totals)
    assert amount == pytest.approx(ratio * sum(totals.values()))
    if min(map(len, groups.values())) == 1:
        assert likely is None
    else:
        assert likely == (amount, amount)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**6)), min_size=1))
def test_a_whole_input_has_no_range(found: list[tuple[int, int]]) -> None:
    parts = [("all", *part) for part in found]
    total = sum(amount for _, amount in found)
    assert scaled(parts, {"all": sum(size for size, _ in found)}) == (total, (total, total))


def test_the_range_of_a_worked_example() -> None:
    # Ratio 2, residuals of 2 and -2, so a variance of (100/20)^2 * 8 * 2 * 0.8 = 320.
    amount, likely = scaled([("a", 10, 22), ("a", 10, 18)], {"a": 100})
    assert amount == 200
    assert likely == (200 - 36, 200 + 36)


@pytest.mark.parametrize(
    ("tokens", "workers", "machine_hours", "minutes", "dollars", "month"),
    [
        # The table of docs/cloud.md: vCPU hours, minutes without the start, dollars together.
        (10e9 / 4.04, 2, (0.0975 + 0.8) / 4, 1, 0.0637 + 0.0046, 0.184),
        (10e12 / 4.04, 50, (97.5 + 20) / 4, 29, 8.33 + 4.63 + 0.25, 184),
        (15_000e9, 250, (591 + 100) / 4, 35, 49 + 28 + 1, 1118),
    ],
)
def test_the_cost_is_that_of_the_documented_example(
    tokens: float, workers: int, machine_hours: float, minutes: float, dollars: float, month: float
) -> None:
    cost = on_dataflow(int(tokens), 4, 14.1e6, workers, tokens * 4.04 / (64 << 20), tokens / 1e8)
    assert cost.machine_hours == pytest.approx(machine_hours, rel=0.01)
    assert cost.seconds / 60 - 6 == pytest.approx(minutes, abs=1)
    assert cost.dollars == pytest.approx(dollars, rel=0.03)
    assert cost.dollars_per_month == pytest.approx(month, rel=0.01)


@given(st.integers(1, 10**14))
def test_without_a_number_of_workers_a_job_takes_about_an_hour_or_less(tokens: int) -> None:
    cost = on_dataflow(tokens, 4, 14.1e6, None, 4 * tokens / (64 << 20), tokens / 1e8)
    assert 1 <= cost.workers <= 1000
    assert cost.seconds <= 1.1 * 3600 or cost.workers == 1000
    assert cost.workers == 1 or cost.seconds > 0.5 * 3600


def test_what_the_limit_of_the_hub_means_is_said() -> None:
    def files(count: int) -> list[SourceFile]:
        return [
            SourceFile(n, f"hf://datasets/a/b@c/{n}.parquet", 1, "etag:", "parquet", "none")
            for n in range(count)
        ]

    assert hub_limit(files(3000)) is None
    assert (
        hub_limit([SourceFile(0, "gs://a/b.parquet", 1, "generation:1", "parquet", "none")] * 4000)
        is None
    )
    assert hub_limit(files(27_000)) == (
        "27,000 files take at least 45 min at the hub's limit of 3,000 requests in 5 minutes from "
        "an address, 27 min with a token (HF_TOKEN)"
    )
