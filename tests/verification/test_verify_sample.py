"""Verify: foreign files in the folders, and comparison with the sources."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.damage import change_total, edit_manifest, edit_table, load, save_consistently
from support.oracle import EOT

import fineshards
from fineshards.cli.cli import main
from fineshards.errors import UsageError

FLAGS = ["--shard_tokens=1000", "--keep_checkpoints"]
TEXTS = [f"The {number}th of four hundred documents." for number in range(400)]
SHARD = "train/train_0001.npy"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    lines = [json.dumps({"text": text, "id": f"n{i}"}) for i, text in enumerate(TEXTS)]
    (folder / "source.jsonl").write_text("\n".join(lines))
    given = [f"--input={folder / 'source.jsonl'}", f"--output={folder / 'out'}", *FLAGS]
    assert main(["build", *given]) == 0
    return folder


@pytest.fixture
def dataset(built: Path, tmp_path: Path) -> Path:
    """A copy to damage; its source is shared by all tests."""
    return Path(shutil.copytree(built / "out", tmp_path / "out"))


@pytest.fixture
def source(built: Path) -> Path:
    """The source, to damage; it is restored afterwards."""
    path = built / "source.jsonl"
    content, state = path.read_bytes(), path.stat()
    yield path
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def check(capsys: pytest.CaptureFixture[str], folder: Path, *flags: str) -> tuple[int, list[str]]:
    """The number of documents compared, and the problems."""
    capsys.readouterr()
    code = main(["verify", str(folder), "--json", *flags])
    verdict = json.loads(capsys.readouterr().out)
    assert code == (1 if verdict["problems"] else 0)
    return verdict["sampled"], verdict["problems"]


@pytest.mark.parametrize(
    "name",
    [
        "test/notes.txt",
        "train/train_9999.npy",
        "train/deep/train_0000.npy",
        "metadata/notes.txt",
        "metadata/documents/train_9999.parquet",
        "training.txt",
        "README.txt",
        "notes/deep/file.txt",
        "test_old/test_0000.npy",
        "checkpoints/model.pt",
        f"checkpoints/{'0' * 64}/plan.json",
    ],
)
def test_foreign_files_are_named(
    dataset: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (dataset / name).parent.mkdir(parents=True, exist_ok=True)
    (dataset / name).touch()
    _, problems = check(capsys, dataset)
    assert problems
    for problem in problems:
        assert name.startswith(problem.split(" ")[0])
        assert "does not belong to the dataset" in problem


def test_a_folder_or_a_dangling_link_among_shards_is_named(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (dataset / "train/empty").mkdir()
    (dataset / "test/link.npy").symlink_to("nowhere")
    named = {problem.split(" ")[0] for problem in check(capsys, dataset)[1]}
    assert named == {"train/empty/", "test/link.npy"}


def test_what_the_job_itself_leaves_is_not_a_problem(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its checkpoints, and unfinished files of a job that was killed just after its manifest."""
    assert any((dataset / "checkpoints").iterdir())
    (dataset / "checkpoints/unfinished").mkdir()
    (dataset / "checkpoints/unfinished/x.tokens.1").touch()
    assert check(capsys, dataset) == (0, [])


def test_sampling_compares_every_document_and_agrees(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(capsys, dataset, "--sample=100%") == (len(TEXTS), [])


def test_a_sample_is_about_as_large_as_asked_and_repeatable(
    dataset: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every text is changed, so the problems name exactly the sampled documents."""
    source.write_bytes(source.read_bytes().replace(b"The", b"Teh"))
    first, second = (check(capsys, dataset, "--sample=30%") for _ in range(2))
    assert first == second
    sampled, problems = first
    assert sampled == len(set(problems))
    # Seven standard deviations: only a wrong rate fails.
    assert abs(sampled - 120) < 7 * (400 * 0.3 * 0.7) ** 0.5
    more = set(check(capsys, dataset, "--sample=60%")[1])
    assert more > set(problems)


@pytest.mark.parametrize("percent", ["0.01", "1e-300"])
def test_the_smallest_sample_is_one_document_and_the_share_is_told(
    dataset: Path, capsys: pytest.CaptureFixture[str], percent: str
) -> None:
    assert check(capsys, dataset, f"--sample={percent}") == (1, [])
    assert main(["verify", str(dataset), f"--sample={percent}"]) == 0
    assert capsys.readouterr().out.endswith(
        "; 1 of 400 documents (0.25 %) compared with their sources\n"
    )


def test_other_valid_tokens_are_found_only_by_sampling(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = load(dataset, SHARD)
    begin, end = np.flatnonzero(tokens == EOT)[5:7]
    tokens[begin + 1 : end] = tokens[begin + 1 : end][::-1]
    save_consistently(dataset, SHARD, tokens)
    assert check(capsys, dataset) == (0, [])
    (problem,) = check(capsys, dataset, "--sample=100%")[1]
    assert problem.startswith(SHARD)
    assert "its tokens differ from those of" in problem


def test_another_id_in_the_document_table_is_found_by_sampling(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_table(dataset, SHARD, lambda columns: columns["id"].__setitem__(5, "other"))
    (problem,) = check(capsys, dataset, "--sample=100%")[1]
    assert "id other differs from that of" in problem


def test_wrong_counts_that_balance_are_found_by_sampling(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(content: dict) -> None:
        for what in ("rows", "nulls", "text_bytes"):
            change_total(content, what, 1)

    edit_manifest(dataset, change)
    assert check(capsys, dataset) == (0, [])
    problems = check(capsys, dataset, "--sample=1%")[1]
    assert ["without text" in problem or "bytes of text" in problem for problem in problems] == [
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda path: path.write_bytes(path.read_bytes() + b"\n"), "changed since"),
        (lambda path: path.unlink(), "was deleted since"),
    ],
    ids=["size", "gone"],
)
def test_a_changed_source_is_named_by_sampling_and_not_read_otherwise(
    dataset: Path,
    source: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Path], object],
    expected: str,
) -> None:
    change(source)
    (problem,) = check(capsys, dataset, "--sample=1%")[1]
    assert str(source) in problem
    assert expected in problem
    assert check(capsys, dataset, "--sample=0%") == (0, [])


def test_one_edited_document_of_a_source_is_named_with_its_row(
    dataset: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.utime(source, ns=(1, 1))
    assert check(capsys, dataset, "--sample=100%") == (len(TEXTS), [])
    source.write_bytes(source.read_bytes().replace(b"The 250th", b"The 205th"))
    (document,) = check(capsys, dataset, "--sample=100%")[1]
    assert document.endswith(f"its tokens differ from those of {source}, row 250")


@pytest.mark.parametrize("sample", ["100%", "300", "1k", "500"])
def test_a_sample_is_a_share_or_a_number_of_documents(
    dataset: Path, capsys: pytest.CaptureFixture[str], sample: str
) -> None:
    compared, problems = check(capsys, dataset, f"--sample={sample}")
    wanted = {"300": 300}.get(sample, len(TEXTS))
    assert abs(compared - wanted) <= (60 if wanted < len(TEXTS) else 0)
    assert problems == []
    assert compared == fineshards.verify(dataset, sample=sample.replace("1k", "1000")).sampled


@pytest.mark.parametrize("sample", [1.0, 0.01, 1, 99, "5"])
def test_a_program_says_whether_it_means_a_share_or_a_number(
    dataset: Path, sample: float | str
) -> None:
    with pytest.raises(
        UsageError, match="--sample is a share such as 1%, or a number of documents above"
    ):
        fineshards.verify(dataset, sample=sample)


def test_a_bare_percentage_is_noted(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(dataset), "--sample=30"]) == 0
    bare = capsys.readouterr()
    assert "--sample 30 means 30% of the documents; write --sample 30%." in bare.err
    assert main(["verify", str(dataset), "--sample=30%"]) == 0
    assert capsys.readouterr() == (bare.out, "")


@pytest.mark.parametrize("percent", ["-1", "101%", "nan", "-1%", "inf", "many"])
def test_a_sample_that_is_neither_is_a_usage_error(
    dataset: Path, capsys: pytest.CaptureFixture[str], percent: str
) -> None:
    assert main(["verify", str(dataset), f"--sample={percent}"]) == 2
    assert "--sample" in capsys.readouterr().err
