"""The manifest and the document tables, compared with an independent reading of the input."""

import ast
import base64
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import jsonschema
import numpy as np
import pyarrow.parquet as pq
import pytest
import xxhash
from support.checkout import ROOT, SAMPLE
from support.oracle import ENCODING, EOT, files_in

from fineshards.shards.layout import table_name

SHARD_TOKENS = 30_000
BLOCK_BYTES = 600_000


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from fineshards.cli.cli import main

    output = tmp_path_factory.mktemp("dataset")
    flags = ["--input", str(SAMPLE), "--output", str(output), f"--shard_tokens={SHARD_TOKENS}"]
    flags.append("--test_shards=1")
    assert main(["build", *flags, f"--block_bytes={BLOCK_BYTES}"]) == 0
    return output


@pytest.fixture(scope="module")
def manifest(dataset: Path) -> dict[str, Any]:
    return json.loads((dataset / "metadata/manifest.json").read_text())


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    """The sample's rows, with their tokens."""
    rows = pq.read_table(SAMPLE).to_pylist()
    return [row | {"tokens": [EOT, *ENCODING.encode_ordinary(row["text"])]} for row in rows]


def test_manifest_follows_its_schema(manifest: dict[str, Any]) -> None:
    schema = json.loads((ROOT / "docs/manifest.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(manifest, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(manifest | {"surprise": 1}, schema)


def test_totals_are_those_of_the_input(
    manifest: dict[str, Any], documents: list[dict[str, Any]]
) -> None:
    metadata = pq.read_metadata(SAMPLE)
    sizes = [metadata.row_group(g).column(0).total_uncompressed_size for g in range(5)]
    blocks, filled = 1, 0
    for size in sizes:
        if filled >= BLOCK_BYTES:
            blocks, filled = blocks + 1, 0
        filled += size
    assert manifest["totals"] == {
        "blocks": blocks,
        "rows": len(documents),
        "documents": len(documents),
        "nulls": 0,
        "rejected": 0,
        "tokens": sum(len(row["tokens"]) for row in documents),
        "text_bytes": sum(len(row["text"].encode()) for row in documents),
        "by_reference": 0,
        "compared": manifest["totals"]["compared"],
    }
    for column in ("dump", "language"):
        tokens: Counter[str] = Counter()
        for row in documents:
            tokens[row[column]] += len(row["tokens"])
        numbers = Counter(row[column] for row in documents)
        (report,) = manifest["reports"]
        assert [each for each in report["counts"]["labels"] if each["column"] == column] == [
            {"column": column, "value": value, "documents": numbers[value], "tokens": tokens[value]}
            for value in sorted(numbers)
        ]


def test_source_and_tokenizer_are_recorded(manifest: dict[str, Any], dataset: Path) -> None:
    (file,) = manifest["files"]
    assert manifest["generations"][0]["root"] + file["name"] == str(SAMPLE)
    assert file["size"] == SAMPLE.stat().st_size
    assert file["identity"] == f"mtime:{SAMPLE.stat().st_mtime_ns}"
    tokenizer = manifest["settings"]["tokenizer"]
    ranks = (dataset / "metadata/vocabulary.tiktoken").read_bytes()
    assert tokenizer["vocabulary_sha256"] == hashlib.sha256(ranks).hexdigest()
    assert tokenizer["pattern"] == ENCODING._pat_str
    assert (tokenizer["eot"], tokenizer["size"]) == (EOT, ENCODING.n_vocab)
    assert manifest["versions"]["tiktoken"] == "0.14.0"


def test_shards_are_recorded_with_their_checksums(manifest: dict[str, Any], dataset: Path) -> None:
    for shard in manifest["shards"]:
        content = (dataset / shard["name"]).read_bytes()
        checksum = google_crc32c.value(content).to_bytes(4, "big")
        assert shard["crc32c"] == base64.b64encode(checksum).decode()
        assert shard["bytes"] == len(content) == 128 + 4 * shard["tokens"]
        tokens = np.load(dataset / shard["name"])
        assert shard["documents"] == np.count_nonzero(tokens == EOT)


def test_document_tables_are_those_of_the_oracle(
    manifest: dict[str, Any], dataset: Path, documents: list[dict[str, Any]]
) -> None:
    expected = defaultdict(list)
    position = 0
    for number, row in enumerate(documents):
        start = 0
        while start < len(row["tokens"]):
            window, offset = divmod(position + start, SHARD_TOKENS)
            length = min(len(row["tokens"]) - start, SHARD_TOKENS - offset)
            piece = {"document": number, "offset": offset, "length": length, "start": start}
            piece |= {"file": SAMPLE.name, "row": number, "id": row["id"]}
            text_hash = xxhash.xxh3_64_intdigest(row["text"].encode(), seed=0x66732D73706C6974)
            piece |= {"text_hash": text_hash, "redacted": False}
            expected[window].append(piece)
            start += length
        position += len(row["tokens"])
    assert len(manifest["shards"]) == len(expected)
    for window, shard in enumerate(manifest["shards"]):
        assert pq.read_table(dataset / table_name(shard["name"])).to_pylist() == expected[window]
        assert shard["pieces"] == len(expected[window])
        assert shard["first_document"] == expected[window][0]["document"]


@pytest.mark.long
def test_metadata_does_not_depend_on_workers_or_hash_seeds(
    fineshards: Callable[..., Any], dataset: Path, tmp_path: Path
) -> None:
    """The dataset was made by as many workers as there are cores, with another seed of hashes."""
    import os

    done = fineshards(
        "build",
        f"--input={SAMPLE}",
        f"--output={tmp_path / 'out'}",
        f"--shard_tokens={SHARD_TOKENS}",
        f"--block_bytes={BLOCK_BYTES}",
        "--test_shards=1",
        "--workers=1",
        env=os.environ | {"PYTHONHASHSEED": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert files_in(tmp_path / "out/metadata") == files_in(dataset / "metadata")


def test_a_dag_reads_the_beginning_of_a_manifest(dataset: Path, manifest: dict[str, Any]) -> None:
    tree = ast.parse((ROOT / "templates/composer_dag.py").read_text())
    functions = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
    content = (dataset / "metadata/manifest.json").read_bytes()

    class Hook:
        def exists(self, bucket: str, name: str) -> bool:
            return (bucket, name) == ("data", "out/metadata/manifest.json")

        def download(self, bucket: str, name: str) -> bytes:
            return content

    names: dict[str, Any] = {"GCSHook": Hook, "json": json, "MANIFEST": "metadata/manifest.json"}
    names["Any"] = Any
    module = ast.Module([functions["load_manifest"]], [])
    exec(compile(module, "composer_dag.py", "exec"), names)
    found = names["load_manifest"]("gs://data/out")
    assert {"origin", "settings", "generations", "splits", "totals"} < set(found)
    assert found == {name: manifest[name] for name in found}
    assert "shards" not in found
    content = json.dumps(manifest).encode()  # of another writer
    assert names["load_manifest"]("gs://data/out") == manifest
