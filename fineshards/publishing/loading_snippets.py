"""Code that loads a dataset, with the names and numbers of this one."""

from __future__ import annotations

from fineshards.shards.job.manifest import Manifest

# T of the snippets, unless the split is shorter.
_SEQUENCE_LENGTH = 1024


def loading_snippets(manifest: Manifest) -> list[tuple[str, str]]:
    """Programs by the name of what they load with; each runs in the dataset's folder."""
    split = "train" if manifest.layout.train_tokens else "test"
    tokens = manifest.splits()[split]["tokens"]
    shard = next(shard for shard in manifest.shards if shard.split == split)
    length = _SEQUENCE_LENGTH
    while length >= tokens and length > 1:
        length //= 2
    batch = max(1, min(32, (tokens - 1) // length))
    chosen = f'"{split}", ' if split == "test" else ""
    # A later generation makes a shard longer that is not full.
    part = "" if shard.tokens == manifest.layout.shard_tokens else f"[:{shard.tokens}]"
    chosen += f"generation={manifest.generation}, "
    return [
        (
            "NumPy",
            f"""\
import numpy as np

tokens = np.load("{shard.name}", mmap_mode="r"){part}
print(tokens.dtype, len(tokens))  # {manifest.settings.dtype} {shard.tokens}
""",
        ),
        *(
            (
                name,
                f"""\
{imported}from fineshards import BatchLoader, TokenDataset

dataset = TokenDataset(".", {chosen}sequence_length={length})
with BatchLoader(dataset, batch_size={batch}, seed=1{option}) as loader:
    batch = {loaded}  # {dtype}, shape ({batch}, {length + 1})
    inputs, targets = batch[:, :-1], batch[:, 1:]
""",
            )
            for name, imported, option, loaded, dtype in (
                ("Batches of NumPy", "", "", "next(loader)", manifest.settings.dtype),
                (
                    "PyTorch",
                    "import torch\n",
                    ', dtype="int64"',
                    "torch.from_numpy(next(loader))",
                    "int64",
                ),
                ("JAX", "import jax\n", ', dtype="int32"', "jax.device_put(next(loader))", "int32"),
            )
        ),
    ]
