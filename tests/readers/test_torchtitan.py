"""torchtitan's trainer takes our batches, and goes on with another number of ranks after a kill."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.dataset_contents import Contents
from support.saved_arrays import saved_arrays

from fineshards import BatchLoader, TokenDataset

HERE = Path(__file__).parent
EXAMPLES = HERE.parent.parent / "examples"
LENGTH, BATCH, SAVED, KILLED, STEPS = 64, 4, 2, 4, 5


# Its tokenizer is a file, as torchtitan wants it, and small enough for the model.
@pytest.mark.parametrize("dataset", ["uint16"], indirect=True)
def test_the_example_resumes_on_another_number_of_ranks(dataset: Contents, tmp_path: Path) -> None:
    def train(ranks: int, killed_at: int = 0) -> list[list[np.ndarray]]:
        recorded = tmp_path / f"{ranks}"
        recorded.mkdir()
        flags = {
            "dataloader.dataset_path": dataset.folder,
            "validator.dataloader.dataset_path": dataset.folder,
            "hf_assets_path": dataset.folder / "metadata",
            "training.seq_len": LENGTH,
            "training.local_batch_size": BATCH // ranks,
            "training.steps": STEPS,
            "checkpoint.interval": SAVED,
            "validator.freq": SAVED,
            "validator.steps": 1,
            # Gloo has none of what FSDP needs.
            "parallelism.data_parallel_replicate_degree": ranks,
            "parallelism.data_parallel_shard_degree": 1,
        }
        command = [Path(sys.executable).with_name("torchrun"), "--standalone"]
        command += [f"--nproc_per_node={ranks}", HERE / "torchtitan_on_cpu.py"]
        command += ["--module=train_torchtitan", "--config=debugmodel", "--checkpoint.enable"]
        command += ["--validator.enable", "--training.disable_cuda_graphs"]
        done = subprocess.run(
            [*command, *(f"--{name}={value}" for name, value in flags.items())],
            cwd=tmp_path,
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join([str(EXAMPLES), str(EXAMPLES.parent)]),
                "RECORDED": str(recorded),
                "KILLED_AT": str(killed_at),
                "TORCHDYNAMO_DISABLE": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode == 0) == (killed_at == 0), done.stderr
        assert ("SIGKILL" in done.stderr) == (killed_at > 0), done.stderr
        return [saved_arrays(recorded / f"{rank}.npy") for rank in range(ranks)]

    order = BatchLoader(TokenDataset(dataset.folder, sequence_length=LENGTH), BATCH, seed=1)
    inputs = [next(order)[:, :-1] for _ in range(STEPS)]
    half = BATCH // 2
    before = train(2, killed_at=KILLED)
    np.testing.assert_array_equal(before[0], [batch[:half] for batch in inputs[: KILLED - 1]])
    np.testing.assert_array_equal(before[1], [batch[half:] for batch in inputs[: KILLED - 1]])
    (after,) = train(1)
    np.testing.assert_array_equal(after, inputs[SAVED:])
