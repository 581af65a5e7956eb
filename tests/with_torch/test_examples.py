"""The scripts in examples/ train, and after a kill go on as if there was none."""

import hashlib
import json
import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import tokenizers
import torch
import transformers
from support.saved_arrays import saved_arrays

from benchmarks.made_up_dataset import make_dataset
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.packing import Packing
from fineshards.loader.token_dataset import TokenDataset
from fineshards.storage.open import open_storage

HERE = Path(__file__).parent
EXAMPLES = HERE.parent.parent / "examples"
STEPS, SAVED, KILLED = 6, 3, 5


class Training:
    """An example that trains on a dataset in a folder of its own."""

    def __init__(self, name: str, dataset: Path, folder: Path) -> None:
        self._name, self._dataset, self._folder = name, dataset, folder
        self._runs = 0
        folder.mkdir()

    def run(self, killed_at: int = 0) -> tuple[list[list[np.ndarray]], dict[str, float]]:
        """Trains up to the last step: for each rank the batches it read, and the losses."""
        self._runs += 1
        recorded = self._folder / f"recorded-{self._runs}"
        recorded.mkdir()
        torchrun = Path(sys.executable).with_name("torchrun")
        command = [torchrun, "--standalone", "--nproc_per_node=2", HERE / "recorded.py"]
        command += [EXAMPLES / self._name, self._dataset, f"--steps={STEPS}"]
        done = subprocess.run(
            [*command, f"--save_steps={SAVED}"],
            cwd=self._folder,
            env=os.environ | {"RECORDED": str(recorded), "KILLED_AT": str(killed_at)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ("SIGKILL" in done.stderr) == (killed_at > 0), done.stderr
        assert (done.returncode == 0) == (killed_at == 0), done.stderr
        printed = re.findall(r"(step \d+ rank \d+) loss ([\d.]+)", done.stdout)
        losses = {place: float(loss) for place, loss in printed}
        return [
            saved_arrays(recorded / f"{rank}.npy") for rank in range(2)
        ], losses or self._logged()

    def _logged(self) -> dict[str, float]:
        """The losses that the Trainer of Hugging Face logs in its last checkpoint."""
        path = self._folder / f"checkpoints/checkpoint-{STEPS}/trainer_state.json"
        if not path.exists():
            return {}
        logged = json.loads(path.read_text())["log_history"]
        return {f"step {entry['step']}": entry["loss"] for entry in logged}


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    make_dataset(open_storage(str(folder)), 20_001, 7000)
    return folder


@pytest.mark.parametrize(
    ("name", "batch_size"),
    [
        ("train_ddp.py", 8),
        ("train_fsdp.py", 8),
        ("train_hf_trainer.py", 16),
        ("train_lightning.py", 8),
    ],
)
def test_two_ranks_share_batches_and_resume_exactly(
    name: str, batch_size: int, dataset: Path, tmp_path: Path
) -> None:
    order = BatchLoader(TokenDataset(dataset, sequence_length=64), batch_size, seed=1)
    inputs = [next(order)[:, :-1] for _ in range(STEPS)]
    half = batch_size // 2
    expected = [[batch[:half] for batch in inputs], [batch[half:] for batch in inputs]]

    whole, losses = Training(name, dataset, tmp_path / "whole").run()
    np.testing.assert_array_equal(whole, expected)
    assert len(set(losses.values())) == len(losses) >= STEPS

    killed = Training(name, dataset, tmp_path / "killed")
    before, _ = killed.run(killed_at=KILLED)
    np.testing.assert_array_equal(before, [batches[: KILLED - 1] for batches in expected])
    after, again = killed.run()
    np.testing.assert_array_equal(after, [batches[SAVED:] for batches in expected])
    assert len(again) >= STEPS - SAVED
    assert again.items() <= losses.items()


def test_gpt2_goes_on_bit_by_bit_after_a_kill(tmp_path: Path) -> None:
    """Kills it after a checkpoint, goes on, and compares with a run that was not killed."""

    def train(name: str, killed_at: int = 0) -> list[np.ndarray]:
        recorded = tmp_path / name
        recorded.mkdir()
        command = [sys.executable, HERE / "recorded.py", EXAMPLES / "train_gpt2.py"]
        done = subprocess.run(
            [*command, f"--steps={STEPS}", f"--save_steps={SAVED}", "--output=gpt"],
            cwd=tmp_path,
            env=os.environ
            | {"RECORDED": str(recorded), "RANK": "0", "KILLED_AT": str(killed_at)}
            | {"CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == (-signal.SIGKILL if killed_at else 0), done.stderr
        assert (f"resumed after step {SAVED}" in done.stdout) == (name == "resumed")
        return saved_arrays(recorded / "0.npy")

    whole = train("whole")
    expected = torch.load((tmp_path / "gpt/checkpoint.pt").rename(tmp_path / "whole.pt"))
    dataset = TokenDataset(tmp_path / "gpt/dataset", sequence_length=128)
    order = BatchLoader(dataset, 16, seed=1, packing=Packing())
    expected_tokens = [next(order)["inputs"].flatten() for _ in range(STEPS)]
    np.testing.assert_array_equal(whole[:STEPS], expected_tokens)

    before, after = train("killed", killed_at=KILLED), train("resumed")
    np.testing.assert_array_equal(before, whole[: KILLED - 1])
    # After the last step come the tokens that the model writes.
    assert len(after) == len(whole) - SAVED
    assert all(map(np.array_equal, after, whole[SAVED:]))
    resumed = torch.load(tmp_path / "gpt/checkpoint.pt")
    assert resumed.pop("loader") == expected.pop("loader")
    torch.testing.assert_close(resumed, expected, rtol=0, atol=0)


def write_classifier(folder: Path) -> str:
    """A small classifier with weights of chance, in the files of Hugging Face; its SHA-256."""
    words = ["[UNK]", "[PAD]", *["the", "of", "to", "and", "a", "file", "click", "in", "is", "you"]]
    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, "[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    marks = {"unk_token": "[UNK]", "pad_token": "[PAD]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks).save_pretrained(
        folder
    )
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 1}
    config = transformers.BertConfig(vocab_size=len(words), pad_token_id=1, **sizes)
    torch.manual_seed(1)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_a_classifier_of_hugging_face_scores_documents_one_by_one(tmp_path: Path) -> None:
    sha256 = write_classifier(tmp_path / "edu")
    command = [sys.executable, EXAMPLES / "edu_classifier.py", "--model=edu", "--limit=60"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+ of 60 documents are educational\n", done.stdout)
    table = pq.read_table(tmp_path / "scored/metadata/scores/00000.parquet")
    classifier = runpy.run_path(str(EXAMPLES / "edu_classifier.py"))
    texts = pq.read_table(classifier["SAMPLE"])["text"].to_pylist()
    tokenizer, network = classifier["load"](str(tmp_path / "edu"), sha256)
    for row, found in zip(table["row"].to_pylist(), table["edu"].to_pylist(), strict=True):
        words = torch.tensor([tokenizer(texts[row])["input_ids"][:512]])
        with torch.inference_mode():
            assert found == pytest.approx(network(words).logits.item(), rel=1e-5)
    assert len(set(table["edu"].to_pylist())) > 30
    with pytest.raises(ValueError, match="has other weights than those of the job"):
        classifier["load"](str(tmp_path / "edu"), "0" * 64)
