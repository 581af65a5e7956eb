"""Inspect: every document's text is recovered exactly, by its number or by a token of it."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fineshards.cli.cli import main
from fineshards.encoders.loading import load_reference
from fineshards.shards.dataset_files import Dataset
from fineshards.storage.open import open_storage

# So small that most documents span several shards.
SHARD_TOKENS = 300
ROWS = 60


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, sample: Path) -> Path:
    path = tmp_path_factory.mktemp("inspect") / "source.parquet"
    pq.write_table(pq.read_table(sample).slice(0, ROWS), path, row_group_size=17)
    return path


@pytest.fixture(scope="module")
def dataset(source: Path) -> Path:
    output = source.parent / "out"
    given = [f"--input={source}", f"--output={output}", f"--shard_tokens={SHARD_TOKENS}"]
    given.append("--test_shards=1")
    assert main(["build", *given]) == 0
    return output


def inspect(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert main(["inspect", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_every_text_of_the_sample_is_recovered(
    tmp_path_factory: pytest.TempPathFactory, sample: Path
) -> None:
    output = tmp_path_factory.mktemp("all")
    given = [f"--input={sample}", f"--output={output}", "--shard_tokens=5000", "--test_shards=1"]
    assert main(["build", *given]) == 0
    opened = Dataset.open(open_storage(str(output)))
    encoder = load_reference(opened.manifest.settings.tokenizer, opened.storage)
    for row, fields in enumerate(pq.read_table(sample, columns=["text", "id"]).to_pylist()):
        document = opened.document(row)
        assert encoder.decode(document.tokens) == fields["text"]
        assert (document.row, document.id, document.file) == (row, fields["id"], sample.name)
    with pytest.raises(IndexError):
        opened.document(row + 1)


def test_a_document_is_found_by_each_of_its_shards(
    dataset: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pq.read_table(source, columns=["text", "id"]).to_pylist()
    opened = Dataset.open(open_storage(str(dataset)))
    spans = 0
    for position, shard in list(enumerate(opened.manifest.shards))[::7]:
        last = len(opened.table(position)) - 1
        piece = opened.table(position).piece(last)
        by_number = inspect(capsys, dataset, "--shard", shard.name, "--document", last)
        name = f"{shard.split}/{shard.index}"
        by_token = inspect(capsys, dataset, "--shard", name, "--token", shard.tokens - 1)
        assert by_number == by_token
        head, _, text = by_number.partition("\n\n")
        row = rows[piece.row]
        assert text == row["text"] + "\n"
        assert f"  source  {source}, row {piece.row}\n  id      {row['id']}\n" in head
        spans += piece.start >= SHARD_TOKENS
        assert ("  begins  in " in head) == (
            piece.length != len(opened.document(piece.document).tokens)
        )
    assert spans > 0


def test_a_document_is_found_in_the_whole_dataset(
    dataset: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = pq.read_table(source)["id"].to_pylist()
    opened = Dataset.open(open_storage(str(dataset)))
    # One that lies in two shards is shown where it begins.
    shard = opened.manifest.shards[1]
    number = opened.table(1).piece(0).document
    document = opened.document(number)
    assert document.shard is not shard
    at = sum(each.tokens for each in opened.manifest.shards[:1])
    by_number = inspect(capsys, dataset, "--document", number)
    assert f"{document.shard.name}, document " in by_number
    assert f"; number {number:,} in the dataset\n" in by_number
    assert inspect(capsys, dataset, "--token", at) == by_number
    assert ids.count(document.id) == 1
    assert inspect(capsys, dataset, "--id", document.id) == by_number


def test_the_first_document_is_shown_by_default(
    dataset: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = pq.read_table(source)["text"][0].as_py()
    assert inspect(capsys, dataset, "--shard=test/0").endswith(f"\n\n{text}\n")


def test_a_dataset_is_described(
    dataset: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = inspect(capsys, dataset)
    assert str(dataset) in text
    assert f"documents  {ROWS} " in text
    assert f"  input      {source.parent}/" in text


@pytest.mark.parametrize(
    "flags",
    [
        "--shard=train/9999",
        "--shard=other",
        "--shard=test/0 --document=300",
        "--shard=test/0 --document=-1",
        f"--shard=test/0 --token={SHARD_TOKENS}",
        "--shard=test/0 --token=-1",
        "--shard=test/0 --document=x",
        "--shard=test/0 --document=0 --token=0",
        "--document=999999999",
        "--token=999999999",
        "--id=no-such-id",
    ],
)
def test_a_shard_document_or_token_that_does_not_exist_is_a_usage_error(
    dataset: Path, capsys: pytest.CaptureFixture[str], flags: str
) -> None:
    assert main(["inspect", str(dataset), *flags.split()]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("fineshards: ")
    assert flags.split()[-1].split("=")[0] in printed.err


def test_an_unfinished_dataset_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path)]) == 1
    assert f"{tmp_path} holds no finished dataset" in capsys.readouterr().err
