"""16-bit shards: the oracle's bytes, and only for tokenizers whose ids all fit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import jsonschema
import numpy as np
import pyarrow as pa
import pytest
from support.checkout import ROOT
from support.oracle import cut, read_texts, shards_in
from support.tokenizer_files import EOT, oracle_documents, save, train
from tokenizers import Tokenizer, models, pre_tokenizers

from fineshards.cli.cli import main
from fineshards.errors import OutputError
from fineshards.shards.block_writer import Documents
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.counts import Counts
from fineshards.shards.job.job import Job
from fineshards.shards.job.records import TokenBlock
from fineshards.shards.npy import DTYPES, HEADER_BYTES, file_bytes, header, parse_header
from fineshards.shards.split_rule import FirstShards
from fineshards.shards.tables.documents import source_schema
from fineshards.storage.open import open_storage

Run = Callable[..., CompletedProcess[str]]

SCHEMA = json.loads((ROOT / "docs/manifest.schema.json").read_text())
SHARD_TOKENS = 150_001
UINT16 = DTYPES["uint16"]


def build(source: Path, output: Path, *flags: str) -> int:
    command = ["build", f"--input={source}", f"--output={output}", "--test_shards=1"]
    return main([*command, f"--shard_tokens={SHARD_TOKENS}", "--block_bytes=700000", *flags])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, sample: Path) -> Path:
    trained = train("gpt2", read_texts(sample)[::4])
    return save(trained, tmp_path_factory.mktemp("tokenizer") / "mine.json")


@pytest.fixture(scope="module")
def dataset(tokenizer: Path, sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("dataset") / "out"
    flags = [f"--tokenizer={tokenizer}", "--dtype=uint16", "--keep_checkpoints"]
    assert build(sample, output, *flags) == 0
    return output


def test_shards_are_what_numpy_saves(dataset: Path, tokenizer: Path, sample: Path) -> None:
    documents = oracle_documents(tokenizer, EOT, read_texts(sample))
    stream = [token for document in documents for token in document]
    shards = shards_in(dataset)
    assert shards == cut(stream, SHARD_TOKENS, 1, "<u2")
    loaded = [np.load(dataset / name) for name in sorted(shards)]
    assert {tokens.dtype for tokens in loaded} == {np.dtype("<u2")}
    assert np.concatenate(loaded).tolist() == stream


def test_every_command_reads_16_bit_shards(dataset: Path, in_process: Run) -> None:
    done = in_process("verify", dataset, "--sample", "10%")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", uint16, mine.json with " in in_process("inspect", dataset).stdout
    shown = in_process("inspect", dataset, "--shard", "train/1", "--token", "5")
    assert shown.returncode == 0, shown.stderr
    status = json.loads(in_process("status", dataset, "--json").stdout)
    manifest = json.loads((dataset / "metadata/manifest.json").read_text())
    assert status["tokens"] == manifest["totals"]["tokens"]


def test_the_dtype_in_effect_is_recorded(
    dataset: Path, tokenizer: Path, sample: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    manifest = json.loads((dataset / "metadata/manifest.json").read_text())
    jsonschema.validate(manifest, SCHEMA)
    assert manifest["settings"]["dtype"] == "uint16"
    for shard in manifest["shards"]:
        assert shard["bytes"] == HEADER_BYTES + 2 * shard["tokens"]
    # auto resolves to uint16, so this is the same job; the default dtype makes another job.
    named = f"--tokenizer={tokenizer}"
    assert build(sample, dataset, named, "--dtype=auto", "--keep_checkpoints") == 0
    assert "already finished" in capsys.readouterr().out
    assert build(sample, dataset, named) == 2
    assert "--dtype: was 'uint16', now 'uint32'" in capsys.readouterr().err
    wide = tmp_path / "wide"
    assert build(sample, wide, named) == 0
    for name in shards_in(wide):
        tokens = np.load(wide / name)
        assert tokens.dtype == np.dtype("<u4")
        assert np.array_equal(tokens, np.load(dataset / name))


def test_a_job_resumes_from_16_bit_blocks(dataset: Path, tokenizer: Path, sample: Path) -> None:
    output = dataset.parent / "again"
    shutil.copytree(dataset, output)
    job = Job.load(open_storage(str(output)))
    assert job is not None
    checkpoints = Checkpoints.of(open_storage(str(output)), job)
    blocks = [block for file in job.files for block in checkpoints.read_blocks(file.index) or []]
    assert len(blocks) > 1
    for block in blocks:
        summary = checkpoints.blocks.read_summary(block.place)
        assert summary is not None
        assert (
            checkpoints.blocks.finished_blocks()[block.file, block.index][0]
            == summary.counts.tokens
        )
        path = output / checkpoints.blocks.tokens_name(block.place)
        assert path.stat().st_size == 2 * summary.counts.tokens
    expected = shards_in(dataset)
    (output / "metadata/manifest.json").unlink()
    (output / "train/train_0000.npy").unlink()
    before = path.stat().st_mtime_ns
    flags = [f"--tokenizer={tokenizer}", "--dtype=uint16", "--keep_checkpoints"]
    assert build(sample, output, *flags) == 0
    assert path.stat().st_mtime_ns == before, "finished blocks are not made again"
    assert shards_in(output) == expected


@pytest.mark.long
@pytest.mark.parametrize(("words", "fits"), [(65_534, True), (65_535, True), (65_536, False)])
def test_the_largest_id_decides(
    words: int, fits: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The EOT counts too; it has the largest id here."""
    source = tmp_path / "text.jsonl"
    source.write_text(json.dumps({"text": f"w0 w{words - 1}"}) + "\n")
    vocab = {f"w{number}": number for number in range(words)}
    model = Tokenizer(models.WordLevel(vocab, unk_token="w0"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model.add_special_tokens([EOT])
    named = f"--tokenizer={save(model, tmp_path / 'words.json')}"
    output = tmp_path / "auto"
    assert build(source, output, named, "--dtype=auto", "--test_shards=0") == 0
    tokens = np.load(output / "train/train_0000.npy")
    assert tokens.tolist() == [words, 0, words - 1]
    assert tokens.dtype == np.dtype("<u2" if fits else "<u4")
    capsys.readouterr()
    code = build(source, tmp_path / "narrow", named, "--dtype=uint16")
    assert code == (0 if fits else 2)
    if not fits:
        message = "the ids of words.json go up to 65,536, but 16 bits hold at most 65,535"
        assert f"--dtype uint16: {message}" in capsys.readouterr().err


def test_cl100k_base_does_not_fit(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(sample, tmp_path / "out", "--dtype=uint16") == 2
    assert "cl100k_base go up to 100,276" in capsys.readouterr().err
    assert build(sample, tmp_path / "out", "--dtype=int64") == 2
    assert "--dtype: must be auto or uint16 or uint32" in capsys.readouterr().err


@pytest.mark.parametrize("tokens", [0, 1, 9, 10, 99, 1024, 10**9, 2**40])
def test_the_header_is_the_one_numpy_writes(tokens: int) -> None:
    file = pa.BufferOutputStream()
    fields = {"descr": "<u2", "fortran_order": False, "shape": (tokens,)}
    np.lib.format.write_array_header_1_0(file, fields)
    assert header(tokens, UINT16) == file.getvalue().to_pybytes()
    assert parse_header(header(tokens, UINT16), UINT16) == tokens
    assert file_bytes(tokens, UINT16) == 128 + 2 * tokens
    with pytest.raises(ValueError, match="holds dtype '<u2', expected '<u4'"):
        parse_header(header(tokens, UINT16))


def test_an_id_that_does_not_fit_is_never_truncated(tmp_path: Path) -> None:
    checkpoints = Checkpoints(open_storage(str(tmp_path)), "f1ng3r", UINT16)
    block = TokenBlock("blocks", 0, 0)
    schema = source_schema(FirstShards(0))
    sources = pa.table({"file": [0], "row": [0], "id": ["a"], "text_hash": [0]}).cast(schema)

    def write(*tokens: int) -> None:
        with checkpoints.blocks.create_block(block) as writer:
            offsets = np.array([0, len(tokens)])
            flat = np.array(tokens, np.uint32)
            writer.append(Documents(flat, offsets, *sources.to_batches()))
            writer.finish(0, 1, Counts(rows=1, documents=1, tokens=len(tokens)))

    with pytest.raises(OutputError, match="the id 65536, which uint16 cannot hold"):
        write(1, 65_536)
    name = tmp_path / checkpoints.blocks.tokens_name(block)
    assert not name.exists()
    write(1, 65_535)
    assert np.fromfile(name, "<u2").tolist() == [1, 65_535]
