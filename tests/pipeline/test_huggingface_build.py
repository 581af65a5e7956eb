"""A whole job with a tokenizer.json: the oracle's bytes, and every command on the dataset."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import jsonschema
import pytest
from support.checkout import ROOT
from support.oracle import cut, read_texts, shards_in
from support.tokenizer_files import EOT, STYLES, oracle_documents, save, train
from tokenizers import Tokenizer, models, pre_tokenizers

from fineshards.cli.cli import main
from fineshards.shards.job.job import Job
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage

Run = Callable[..., CompletedProcess[str]]

SCHEMA = json.loads((ROOT / "docs/manifest.schema.json").read_text())
SHARD_TOKENS = 200_000
SPLIT = "--test_shards=1"


def build(source: Path, output: Path, tokenizer: Path, *flags: str) -> int:
    command = ["build", f"--input={source}", f"--output={output}", f"--tokenizer={tokenizer}"]
    return main([*command, f"--shard_tokens={SHARD_TOKENS}", "--block_bytes=700000", SPLIT, *flags])


def expected(source: Path, tokenizer: Path, eot: str = EOT) -> dict[str, bytes]:
    documents = oracle_documents(tokenizer, eot, read_texts(source))
    stream = [token for document in documents for token in document]
    return cut(stream, SHARD_TOKENS, test_shards=1)


@pytest.fixture(scope="module", params=STYLES)
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, sample: Path
) -> Path:
    trained = train(request.param, read_texts(sample)[::4])
    return save(trained, tmp_path_factory.mktemp("tokenizer") / "mine.json")


@pytest.fixture(scope="module")
def dataset(tokenizer: Path, sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("dataset") / "out"
    # The user's file must not be needed after the build.
    moved = save(Tokenizer.from_file(str(tokenizer)), output.parent / "before/mine.json")
    assert build(sample, output, moved, "--tokenizer_engine=gigatoken") == 0
    moved.unlink()
    return output


@pytest.mark.long
def test_a_build_equals_the_oracle(dataset: Path, tokenizer: Path, sample: Path) -> None:
    shards = shards_in(dataset)
    assert len(shards) > 3
    assert shards == expected(sample, tokenizer)


def test_verify_and_inspect_need_only_the_dataset(
    dataset: Path, sample: Path, in_process: Run
) -> None:
    for arguments in (["verify"], ["verify", "--sample", "20%"]):
        done = in_process(*arguments, dataset)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.startswith("verified: ")
    shown = in_process("inspect", dataset, "--shard", "test/0", "--document", "0")
    assert shown.returncode == 0, shown.stderr
    text = Tokenizer.from_file(str(dataset / "metadata/tokenizer.json")).normalizer
    first = read_texts(sample)[0]
    assert shown.stdout.rstrip("\n").endswith(
        (text.normalize_str(first) if text else first).rstrip("\n")
    )
    assert "mine.json" in in_process("inspect", dataset).stdout
    assert "finished" in in_process("status", dataset).stdout


def test_the_manifest_records_the_tokenizer(dataset: Path, tokenizer: Path) -> None:
    manifest = json.loads((dataset / "metadata/manifest.json").read_text())
    jsonschema.validate(manifest, SCHEMA)
    record = manifest["settings"]["tokenizer"]
    assert (record["kind"], record["name"]) == ("huggingface", "mine.json")
    assert record["eot"] == Tokenizer.from_file(str(tokenizer)).token_to_id(EOT)
    assert (dataset / "metadata/tokenizer.json").read_bytes() == tokenizer.read_bytes()
    assert not (dataset / "metadata/vocabulary.tiktoken").exists()
    assert "before" not in json.dumps(manifest["settings"])
    assert manifest["totals"]["by_reference"] < 10
    storage = open_storage(str(dataset))
    loaded, job = Manifest.load(storage), Job.load(storage)
    assert loaded is not None
    assert job is not None
    assert job.settings == loaded.settings
    assert job.fingerprint() == manifest["fingerprint"]


@pytest.mark.long
def test_the_same_job_is_resumed_and_another_is_refused(
    dataset: Path, tokenizer: Path, sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    shutil.copytree(dataset, output)
    # Another folder and another engine, but the same bytes: the same job.
    assert build(sample, output, tokenizer, "--tokenizer_engine=tokenizers") == 0
    assert "already finished" in capsys.readouterr().out
    (output / "metadata/manifest.json").unlink()
    (output / "train/train_0001.npy").unlink()
    assert build(sample, output, tokenizer, "--tokenizer_engine=tokenizers") == 0
    assert shards_in(output) == shards_in(dataset)
    capsys.readouterr()
    assert build(sample, output, tokenizer, "--eot_token=<|im_end|>") == 2
    assert "another job: end-of-text token: was " in capsys.readouterr().err
    assert main(["build", f"--input={sample}", f"--output={output}"]) == 2
    assert "kind of tokenizer: was 'huggingface', now 'tiktoken'" in capsys.readouterr().err
    content = json.loads(tokenizer.read_text())
    other = tmp_path / "mine.json"
    other.write_text(json.dumps(content, indent=2))
    assert build(sample, output, other) == 2
    assert "another job: vocabulary sha256: was " in capsys.readouterr().err


@pytest.mark.long
def test_a_model_of_another_type_is_encoded_by_its_library(
    sample: Path, tmp_path: Path, in_process: Run, fineshards: Run
) -> None:
    words = {word for text in read_texts(sample) for word in text.split()}
    vocab = {word: id_ for id_, word in enumerate(["[UNK]", "<s>", *sorted(words)[::3]])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["[SEP]"])
    path = save(tokenizer, tmp_path / "words.json")
    output = tmp_path / "out"
    flags = ["--input", sample, "--output", output, "--tokenizer", path]
    missing = in_process("build", *flags)
    assert missing.returncode == 2
    assert "--eot_token. Its special tokens are [SEP]." in missing.stderr
    assert "Traceback" not in missing.stderr
    flags += ["--eot_token", "[SEP]", f"--shard_tokens={SHARD_TOKENS}", SPLIT]
    # In a process of its own, with the log lines of one.
    done = fineshards("build", *flags)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("words.json is encoded with tokenizers only, which is slow") == 1
    assert shards_in(output) == expected(sample, path, "[SEP]")
    assert in_process("verify", output, "--sample", "5%").returncode == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tokenizer=missing.json"], "--tokenizer missing.json: cannot be read"),
        (["--tokenizer=cl100k_base", "--eot_token=x"], "--eot_token x: not a special token of cl"),
        (["--tokenizer_engine=tokenizers"], "engine tokenizers: cannot be used for cl100k_base"),
    ],
)
def test_invalid_flags_are_one_sentence(
    sample: Path, tmp_path: Path, in_process: Run, flags: list[str], message: str
) -> None:
    done = in_process("build", "--input", sample, "--output", tmp_path / "out", *flags)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("flags", [(), ("--shuffle_seed=3",)])
def test_texts_that_make_special_tokens_are_bad_rows(
    flags: tuple[str, ...], tmp_path: Path, in_process: Run
) -> None:
    """Of a word-level model, which knows its tokens by their text alone."""
    words = ["[UNK]", "end", "a", "x", "y", "z"]
    tokenizer = Tokenizer(models.WordLevel({x: n for n, x in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([x for x in words if x != "a"])
    path = save(tokenizer, tmp_path / "t.json")
    source = tmp_path / "a.jsonl"
    texts = ["a b", "a end ", "end", "", "x a", "a a a a"]
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    common = ["--input", source, "--output", tmp_path / "out", "--tokenizer", path]
    common += ["--eot_token=end", "--test_fraction=0.5", *flags]
    refused = in_process("build", *common)
    assert refused.returncode == 1
    assert "row 1: the tokenizer encodes part of it as the special token end. Fix the row and " in (
        refused.stderr
    )
    assert in_process("build", *common, "--max_bad_rows=3").returncode == 0
    manifest = Manifest.load_finished(open_storage(str(tmp_path / "out")))
    assert (manifest.totals["documents"], manifest.totals["rejected"]) == (3, 3)
    verified = in_process("verify", tmp_path / "out", "--sample", "100%")
    assert verified.returncode == 0, verified.stdout
