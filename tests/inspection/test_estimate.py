"""`fineshards estimate`: the build of a sample, and what it says of the whole input."""

import gzip
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.build_here import build_here

import fineshards
from fineshards.cli.cli import main
from fineshards.config import BuildConfig
from fineshards.errors import InputError
from fineshards.pipeline import sample as sampling
from fineshards.pipeline.launch import describe_job
from fineshards.shards.job.job import Job

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's folder for temporary files, in which nothing must be left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def write(path: Path, documents: int, group: int = 500) -> Path:
    """A file of documents of about 2 kB, which no compression makes much smaller.

    In each file another share of the text is words, of which fewer tokens are made.
    """
    random = Random(path.name)
    words = " the words of a language" * random.randrange(20, 60)
    texts = [random.randbytes(500).hex() + words for _ in range(documents)]
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": texts}), path, row_group_size=group, compression="none")
        return path
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    path.write_bytes(gzip.compress(lines, 1) if path.suffix == ".gz" else lines)
    return path


# ---- the command


@pytest.mark.curation
def test_a_small_input_is_built_whole_and_the_numbers_are_those_of_a_build(
    in_process: Run, sample: Path, tmp_path: Path, work: Path
) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'build = { workers = 3, output = "elsewhere" }\n[[steps]]\nuse = "length"\nmin_chars = 999'
    )
    flags = ["--input", sample, "--recipe", recipe, "--dedup=exact", "--json"]
    done = in_process("estimate", *flags)
    assert done.returncode == 0, done.stderr
    found, out = json.loads(done.stdout), tmp_path / "out"
    assert list(work.iterdir()) == []
    assert not Path("elsewhere").exists()
    counts = build_here(input=sample, output=out, recipe=recipe, dedup="exact").counts()
    on_disk = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    assert found.pop("disk_bytes") == pytest.approx(on_disk, rel=0.05)
    assert found.pop("seconds") > 0
    assert found == {
        "exact": True,
        "sample_share": 1.0,
        "tokens": counts.tokens,
        "tokens_range": [counts.tokens, counts.tokens],
        "documents": counts.documents,
        "dropped": counts.documents_dropped,
    }


@pytest.mark.long
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_sample_tells_of_files_that_differ(kind: str, tmp_path: Path, work: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number, documents in enumerate((4000, 6500, 2500, 5500, 4500)):
        write(folder / f"{number}.{kind}", documents)
    found = fineshards.estimate(input=folder)
    assert list(work.iterdir()) == []
    counts = build_here(input=folder, output=tmp_path / "out").counts()
    assert not found.exact
    assert found.tokens_range is not None
    low, high = found.tokens_range
    assert low < counts.tokens < high
    assert found.tokens == pytest.approx(counts.tokens, rel=0.1)
    assert found.documents == pytest.approx(counts.documents, rel=0.1)
    on_disk = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert found.disk_bytes == pytest.approx(on_disk, rel=0.1)
    again = fineshards.estimate(input=folder, workers=1, dedup="exact")
    assert (again.tokens, again.documents) == (found.tokens, found.documents)
    assert again.tokens_range is None
    assert "from too little to tell how precisely" in str(again)


def test_rows_that_cannot_be_encoded_are_refused_as_by_a_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "a"}\n{\n{"text": 1}\n')
    assert main(["estimate", f"--input={path}"]) == 1
    assert f"{path}, line 2" in capsys.readouterr().err
    assert main(["estimate", f"--input={path}", "--max_bad_rows=2"]) == 0
    assert "documents  1, and 0 dropped\n" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--input=none*.parquet"], 2, "no file matches"),
        (["--input={sample}", "--text_column=txet"], 1, "no column 'txet'"),
        (["--input={sample}", "--tokenizer=none"], 2, "none"),
        (["--input={sample}", "--limit=5"], 2, "--limit"),
        ([], 2, "give --input or --dataset."),
        (["--input={nulls}"], 1, "no documents"),
        (["--input={sample}", "--where=false"], 1, "the recipe leaves no documents"),
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


def test_the_input_may_lie_in_the_temporary_folder(work: Path) -> None:
    pq.write_table(pa.table({"text": ["some text"] * 50}), work / "0.parquet")
    assert fineshards.estimate(input=work).documents == 50


# ---- what is drawn


def job_of(*paths: Path) -> Job:
    config = BuildConfig(input=list(map(str, paths)), output="unused", block_bytes=2 << 20)
    return describe_job(config)[0]


def test_blocks_are_whole_spread_and_the_same_for_a_copy(tmp_path: Path) -> None:
    """The parts of a file are files to the build: numbered, each with its only block."""
    found = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        paths = [write(tmp_path / f"{name}/{number}.parquet", 15_000) for number in range(3)]
        found.append(sampling._draw(job_of(*paths)))
    parts = found[0]
    assert [part[1:] for part in found[0]] == [part[1:] for part in found[1]]
    assert 28 < len(parts) <= 32
    assert sum(points for *_, points, _ in parts) == 32
    rows = [(Path(file.path).name, block.first_row) for file, block, *_ in parts]
    assert rows == sorted(rows)
    assert {name for name, _ in rows} == {"0.parquet", "1.parquet", "2.parquet"}
    assert all(row % 500 == 0 for _, row in rows)
    for number, (file, block, *_) in enumerate(parts):
        assert (file.index, file.stop_row) == (number, None)
        assert (block.file, block.index, block.blocks) == (number, 0, 1)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["parquet", "jsonl", "jsonl.gz"])
def test_the_beginning_of_a_large_block_stands_for_it(kind: str, tmp_path: Path) -> None:
    documents = 60_000
    path = write(tmp_path / f"0.{kind}", documents, group=documents)
    ((file, block, points, bytes_),) = sampling._draw(job_of(path))
    assert (points, block.blocks) == (32, 1)
    assert file.stop_row is not None
    share = bytes_ / path.stat().st_size
    assert share < 0.8
    assert file.stop_row / share == pytest.approx(documents, rel=0.03)


@pytest.mark.long
def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "0.jsonl.gz", 50)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(InputError, match=r"0\.jsonl\.gz.* damaged"):
        fineshards.estimate(input=path)
