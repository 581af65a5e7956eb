"""Find: every document by its id, and every token by its number, against the source."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineshards.cli.cli import main
from fineshards.errors import OutputError, UsageError
from fineshards.inspection.inspect import find_id, find_token
from fineshards.shards.dataset_files import Dataset
from fineshards.storage.open import open_storage

Run = Callable[..., CompletedProcess[str]]
ROWS = 40


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, sample: Path) -> Path:
    """Rows of the sample, some without an id, and two with the same."""
    table = pq.read_table(sample, columns=["text", "id"]).slice(0, ROWS)
    ids = table["id"].to_pylist()
    ids[3], ids[7], ids[31] = None, "twice", "twice"
    path = tmp_path_factory.mktemp("find") / "source.parquet"
    pq.write_table(pa.table({"text": table["text"], "id": ids}), path)
    return path


@pytest.fixture(scope="module")
def dataset(source: Path) -> Path:
    output = source.parent / "out"
    given = [f"--input={source}", f"--output={output}", "--shard_tokens=700", "--test_shards=2"]
    assert main(["build", *given]) == 0
    return output


def opened(folder: Path) -> Dataset:
    return Dataset.open(open_storage(str(folder)))


def test_every_id_is_found_with_all_tokens_of_its_document(dataset: Path, source: Path) -> None:
    data = opened(dataset)
    straddling = 0
    ids = pq.read_table(source)["id"].to_pylist()
    for id_, times in Counter(filter(None, ids)).items():
        found = find_id(data, id_)
        assert [match.row for match in found.matches] == [
            row for row, other in enumerate(ids) if other == id_
        ]
        assert len(found.matches) == times
        for match in found.matches:
            assert (match.id, match.file) == (id_, source.name)
            shards = {piece.shard: np.load(dataset / piece.shard) for piece in match.pieces}
            tokens = [shards[piece.shard][piece.offset : piece.end] for piece in match.pieces]
            whole = data.document(match.number).tokens
            assert np.concatenate(tokens).tolist() == whole.tolist()
            straddling += len(match.pieces) > 1
    assert straddling > 5


def test_every_token_is_found_in_the_order_of_test_then_train(dataset: Path) -> None:
    data = opened(dataset)
    splits = [shard.split for shard in data.manifest.shards]
    assert splits == sorted(splits)
    stream = np.concatenate([np.load(dataset / shard.name) for shard in data.manifest.shards])
    begins = np.flatnonzero(stream == data.manifest.settings.tokenizer.eot)
    for token in [0, 699, 700, *range(1, len(stream), 997), len(stream) - 1]:
        found = find_token(data, token)
        assert found.tokens == len(stream)
        assert found.token_id == stream[token] == np.load(dataset / found.shard)[found.offset]
        assert found.match.number == np.searchsorted(begins, token, side="right") - 1
        (piece,) = found.match.pieces
        assert piece.offset <= found.offset < piece.end
    for token in (-1, len(stream)):
        with pytest.raises(UsageError, match=f"--token {token}: the dataset has "):
            find_token(data, token)


def test_the_search_reads_the_ids_alone(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[str] | None] = []
    real = pq.ParquetFile.read

    def recorded(self: pq.ParquetFile, columns: Any = None, **others: object) -> pa.Table:
        read.append(columns)
        return real(self, columns=columns, **others)

    monkeypatch.setattr(pq.ParquetFile, "read", recorded)
    data = opened(dataset)
    assert find_id(data, "nobody").matches == []
    assert read == [["id"]] * len(data.manifest.shards)


def test_the_command_prints_all_matches(dataset: Path, source: Path, in_process: Run) -> None:
    done = in_process("inspect", "--find", dataset, "--id", "twice")
    assert done.returncode == 0, done.stderr
    assert f"  source  {source}, row 7\n  id      twice\n" in done.stdout
    assert f"  source  {source}, row 31\n" in done.stdout
    record = json.loads(in_process("inspect", "--find", dataset, "--id", "twice", "--json").stdout)
    assert [match["row"] for match in record["matches"]] == [7, 31]
    for match in record["matches"]:
        for piece in match["pieces"]:
            place = f"{piece['offset']:,} to {piece['end']:,} of {piece['shard']}"
            assert f"  tokens  {place}, its document {piece['document']:,}\n" in done.stdout


def test_an_id_that_no_document_has_is_exit_code_1(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags in (["--id=nobody"], ["--id="]):
        assert main(["inspect", "--find", str(dataset), *flags]) == 1
        assert capsys.readouterr().out.startswith("no document has the id ")
        assert main(["inspect", "--find", str(dataset), *flags, "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["matches"] == []


def test_a_token_is_shown_with_its_document(dataset: Path, in_process: Run) -> None:
    done = in_process("inspect", "--find", dataset, "--token", "1_000")
    assert done.returncode == 0, done.stderr
    head, document, *_ = done.stdout.splitlines()
    place = find_token(opened(dataset), 1000)
    assert head == (
        f"token 1,000 of {place.tokens:,} is {place.token_id}, at 300 in test/test_0001.npy"
    )
    assert document == f"document {place.match.number:,}"
    record = json.loads(in_process("inspect", "--find", dataset, "--token=1k", "--json").stdout)
    assert (record["shard"], record["offset"]) == ("test/test_0001.npy", 300)
    shown = in_process("inspect", dataset, "--shard=test/1", "--token=300", "--json")
    assert json.loads(shown.stdout)["number"] == record["match"]["number"]


def test_a_damaged_table_is_named(dataset: Path) -> None:
    data = opened(dataset)
    name = "metadata/documents/train_0001.parquet"
    content = (dataset / name).read_bytes()
    try:
        (dataset / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(OutputError, match=f"{name} cannot be read as a document table"):
            find_id(data, "x")
    finally:
        (dataset / name).write_bytes(content)
