"""`--shuffle_seed`: the oracle's bytes, however documents were sorted; commands and loaders."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.oracle import ENCODING, EOT, oracle_shuffled, read_texts, shards_in
from support.tokenizer_files import oracle_documents, save, train

import fineshards
from fineshards.cli.cli import main
from fineshards.errors import UsageError
from fineshards.shards.dataset_files import Dataset
from fineshards.storage.open import open_storage

pytestmark = pytest.mark.growing

Build = Callable[..., int]

SEED = 20_260_101
SHARD_TOKENS = 20_000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, sample: Path) -> Path:
    """Files of both formats, one without documents; some rows have no text."""
    folder = tmp_path_factory.mktemp("shuffle") / "in"
    folder.mkdir()
    table = pq.read_table(sample, columns=["text", "id"])
    pq.write_table(table.slice(0, 100), folder / "a.parquet", row_group_size=20)
    rows = table.slice(100, 80).to_pylist()
    rows[3]["text"] = rows[40]["text"] = None
    lines = [json.dumps(row) for row in rows]
    (folder / "b.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    pq.write_table(table.slice(0, 0), folder / "c.parquet")
    (folder / "d.jsonl").write_text("\n".join(map(json.dumps, table.slice(180, 60).to_pylist())))
    pq.write_table(table.slice(90, 30), folder / "e.parquet")  # texts of a.parquet and of b, again
    return folder


@pytest.fixture(scope="module")
def texts(source: Path) -> list[list[str | None]]:
    """The texts of each file, by row."""
    return [
        read_texts(path) if path.suffix == ".parquet" else [row["text"] for row in lines_of(path)]
        for path in sorted(source.iterdir())
    ]


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    content = path.read_bytes()
    yield from map(
        json.loads, (gzip.decompress(content) if path.suffix == ".gz" else content).splitlines()
    )


def flags_of(source: Path, output: Path, *flags: str) -> list[str]:
    common = [f"--input={source}", f"--output={output}", f"--shard_tokens={SHARD_TOKENS}"]
    return ["build", *common, f"--shuffle_seed={SEED}", *flags]


@pytest.fixture(scope="module")
def dataset(source: Path) -> Path:
    """A shuffled dataset. Read-only."""
    output = source.parent / "dataset"
    assert main(flags_of(source, output, "--test_fraction=0.2", "--memory_bytes=100k")) == 0
    return output


def tables_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "metadata/documents").iterdir()}


def folders_used(output: Path) -> set[str]:
    """The kinds of token blocks among the checkpoints that were kept."""
    (kept,) = (path for path in (output / "checkpoints").iterdir() if len(path.name) == 64)
    return {name for name in ("blocks", "buckets") if any((kept / name).glob("*"))}


# How documents are sorted: in one bucket; in several; in several, of more blocks.
WAYS = {
    "one": ["--workers=1"],
    "many": ["--workers=2", "--memory_bytes=50k"],
    "small": ["--workers=2", "--memory_bytes=80k", "--block_bytes=20k"],
}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("--test_fraction=0.2", {"fraction": "0.2"}), ("--test_shards=2", {"test_shards": 2})],
)
def test_shards_are_those_of_the_oracle_however_documents_are_sorted(
    source: Path, texts: list[list[str | None]], tmp_path: Path, rule: str, expected: Any
) -> None:
    shards = oracle_shuffled(texts, SEED, SHARD_TOKENS, **expected)
    assert len(shards) > 7
    tables = []
    for name, flags in WAYS.items():
        output = tmp_path / name
        assert main(flags_of(source, output, rule, "--keep_checkpoints", *flags)) == 0
        assert shards_in(output) == shards, name
        again = {"sample": 100} if name == "small" else {}
        assert fineshards.verify(output, **again).problems == []
        tables.append(tables_in(output))
        assert folders_used(output) == {"blocks", "buckets"}
        buckets = list(output.glob("checkpoints/*/buckets/*.tokens"))
        assert (len(buckets) <= 2) == (name == "one")
    assert tables[0] == tables[1] == tables[2]


def test_a_block_larger_than_block_bytes_has_several_runs(
    source: Path, texts: list[list[str | None]], tmp_path: Path
) -> None:
    """A JSON Lines file is one block, whatever its size."""
    flags = ["--test_fraction=0.2", "--block_bytes=5k", "--keep_checkpoints"]
    assert main(flags_of(source, tmp_path / "out", *flags)) == 0
    assert shards_in(tmp_path / "out") == oracle_shuffled(texts, SEED, SHARD_TOKENS, "0.2")
    (record,) = (tmp_path / "out").glob("checkpoints/*/blocks/00003-00000.json")
    entry = json.loads(record.read_bytes())
    assert len(entry["record"]["runs"]) >= 2


def test_sixteen_bits(source: Path, texts: list[list[str | None]], tmp_path: Path) -> None:
    every = [text for of_file in texts for text in of_file if text is not None]
    tokenizer = save(train("gpt2", every[::5], 1000), tmp_path / "mine.json")
    encoded = dict(zip(every, oracle_documents(tokenizer, "<|endoftext|>", every), strict=True))
    flags = [f"--tokenizer={tokenizer}", "--dtype=auto", "--memory_bytes=100k", "--test_shards=1"]
    assert main(flags_of(source, tmp_path / "out", *flags)) == 0
    assert shards_in(tmp_path / "out") == oracle_shuffled(
        texts, SEED, SHARD_TOKENS, test_shards=1, encode=encoded.__getitem__, dtype="<u2"
    )


def places_in(folder: Path) -> list[tuple[str, int]]:
    """The documents of a dataset in their order."""
    pieces = [
        piece
        for path in sorted((folder / "metadata/documents").iterdir())
        for piece in pq.read_table(path, columns=["file", "row", "start"]).to_pylist()
    ]
    return [(piece["file"], piece["row"]) for piece in pieces if piece["start"] == 0]


# The commands and the loader read a shuffled dataset as any other.


def test_every_document_is_found_with_its_tokens(dataset: Path, source: Path) -> None:
    data = Dataset.open(open_storage(str(dataset)))
    texts = {
        path.name: pq.read_table(path)["text"].to_pylist() for path in source.glob("*.parquet")
    }
    places = places_in(dataset)
    assert len(places) == data.manifest.totals["documents"]
    assert texts.keys() < {file for file, _ in places} | {"c.parquet"}
    for number, place in enumerate(places):
        document = data.document(number)
        assert (document.number, document.file, document.row) == (number, *place)
        if document.file in texts:
            expected = [EOT, *ENCODING.encode_ordinary(texts[document.file][document.row])]
            assert document.tokens.tolist() == expected


def test_inspect_names_the_seed(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["inspect", str(dataset)]) == 0
    assert f"  order      --shuffle_seed {SEED}\n" in capsys.readouterr().out
    assert main(["inspect", str(dataset), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shuffle_seed"] == SEED


# Bad input.


def test_memory_bytes_need_a_seed(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--memory_bytes goes with --shuffle_seed"):
        fineshards.build(input=source, output=tmp_path / "out", memory_bytes=1000)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seed", ["-1", str(2**63), "1.5", "x", ""])
def test_a_seed_out_of_range_is_refused(
    build: Build, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: str
) -> None:
    assert build(source, tmp_path / "out", f"--shuffle_seed={seed}") == 2
    assert "--shuffle_seed" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "difference"),
    [([], f"--shuffle_seed: was {SEED}, now None"), (["--shuffle_seed=8"], f"was {SEED}, now 8")],
)
def test_another_order_on_the_same_output_is_refused_and_named(
    build: Build,
    source: Path,
    dataset: Path,
    capsys: pytest.CaptureFixture[str],
    given: list[str],
    difference: str,
) -> None:
    before = shards_in(dataset)
    flags = [f"--shard_tokens={SHARD_TOKENS}", "--test_fraction=0.2", *given]
    assert build(source, dataset, *flags) == 2
    assert difference in capsys.readouterr().err.splitlines()[-1]
    assert shards_in(dataset) == before
    # The size of buckets decides nothing.
    flags = [*flags[:2], f"--shuffle_seed={SEED}", "--memory_bytes=1M"]
    assert build(source, dataset, *flags) == 0
