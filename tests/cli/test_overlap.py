"""An input and an output that overlap are refused before anything is written or deleted."""

import shutil
from pathlib import Path

import pytest

from fineshards.config import BuildConfig
from fineshards.errors import UsageError
from fineshards.pipeline.input_files import Patterns, refuse_overlap
from fineshards.pipeline.launch import prepare
from fineshards.shards.job.records import SourceFile
from fineshards.storage.open import open_storage


@pytest.fixture
def data(tmp_path: Path, sample: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an input file, reached as `data`, as `link` and by an absolute path."""
    folder = tmp_path / "data"
    for name in ("a.parquet", "metadata/a.parquet"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(sample, folder / name)
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    return folder


def everything(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


@pytest.mark.parametrize("output", ["data", "link", "data/metadata", "."])
@pytest.mark.parametrize("given", ["data/metadata/a.parquet", "data/*/*", "link/metadata"])
def test_input_in_the_output_folder_is_refused_and_kept(
    data: Path, tmp_path: Path, output: str, given: str
) -> None:
    before = everything(tmp_path)
    with pytest.raises(UsageError, match=r"metadata/a\.parquet is input and lies in --output /"):
        prepare(BuildConfig(input=given, output=output, overwrite=True))
    assert everything(tmp_path) == before


@pytest.mark.parametrize(
    ("given", "output"),
    [
        ("data", "data/out"),
        ("data", "link/out"),
        ("link", "data/out"),
        ("data/**", "data/out"),
        ("link/**/*.parquet", "data/deep/out"),
        ("data/*/*/*/*.parquet", "data/out"),
        ("data/**/*.json*", "data/out"),
    ],
)
def test_an_output_that_would_match_its_own_input_is_refused(
    data: Path, tmp_path: Path, given: str, output: str
) -> None:
    (data / "a/b/c").mkdir(parents=True)
    shutil.copy(data / "a.parquet", data / "a/b/c/d.parquet")
    (data / "e.jsonl").write_text('{"text": "a"}\n')
    before = everything(tmp_path)
    with pytest.raises(UsageError, match=r"/out lies where --input or --dataset .* would find its"):
        prepare(BuildConfig(input=given, output=output))
    assert everything(tmp_path) == before


@pytest.mark.parametrize("scheme", ["file", "local"])
@pytest.mark.parametrize(
    ("given", "output", "said"),
    [
        ("data/a.parquet", "data", "is input and lies in --output"),
        ("data", "link/out", "lies where --input or --dataset"),
        ("data/**/*.parquet", "data/out", "lies where --input or --dataset"),
    ],
)
def test_input_that_a_url_names_is_compared_with_the_output(
    data: Path, scheme: str, given: str, output: str, said: str
) -> None:
    before = everything(data.parent)
    with pytest.raises(UsageError, match=said):
        prepare(BuildConfig(input=f"{scheme}://{data.parent}/{given}", output=output))
    assert everything(data.parent) == before


@pytest.mark.parametrize("given", ["flat/*", "fl*/*", "flat/o*"])
def test_an_output_folder_that_would_match_is_refused(data: Path, given: str) -> None:
    (data.parent / "flat").mkdir()
    shutil.copy(data / "a.parquet", data.parent / "flat/o.parquet")
    with pytest.raises(UsageError, match=r"/out lies where --input or --dataset .* would find its"):
        prepare(BuildConfig(input=given, output="flat/out"))


def test_a_dataset_folder_does_not_hold_its_output(data: Path) -> None:
    with pytest.raises(UsageError, match=r"/data/out lies where .* data would find its files"):
        prepare(BuildConfig(dataset="data", output="data/out"))


@pytest.mark.parametrize(
    ("given", "output"),
    [("data/*.parquet", "data/out"), ("data/a.parquet", "data/.out"), ("data", "data2")],
)
def test_neighbours_do_not_overlap(data: Path, given: str, output: str) -> None:
    launch = prepare(BuildConfig(input=given, output=output))
    assert launch.job.files


@pytest.mark.parametrize(
    ("given", "output", "words"),
    [
        ("gs://b/in/**", "gs://b/in/out", "lies where"),
        ("gs://b/in/", "gs://b/in/out", "lies where"),
        ("gs://b/in", "gs://b/in/out/", "lies where"),
        ("gs://b", "gs://b/out", "lies where"),
        ("gs://b/in/*", "gs://b/in", "gs://b/in/a.parquet is input and lies in --output gs://b/in"),
        ("gs://b/in/*", "gs://b/in/out", "lies where"),
        ("gs://b/in/*.parquet", "gs://b/in/out", None),
        ("gs://b/in/", "gs://b/in2", None),
        ("gs://b/in/*", "gs://c/in", None),
    ],
)
def test_buckets_overlap_as_folders_do(given: str, output: str, words: str | None) -> None:
    files = [SourceFile(0, "gs://b/in/a.parquet", 1, "generation:1", "parquet", "none")]
    config = BuildConfig(input=given, output=output)
    patterns = Patterns.of(config)
    if words is None:
        refuse_overlap(open_storage(output), files, None, patterns)
    else:
        with pytest.raises(UsageError, match=words):
            refuse_overlap(open_storage(output), files, None, patterns)
