"""Runs torchtitan's trainer, which expects a GPU, on a CPU: `torchtitan_on_cpu.py ARGUMENTS`.

The tokens that reach the model's embedding go to the file RANK.npy in the folder that RECORDED
names, one array after the other. The process kills itself at the beginning of the step that
KILLED_AT names, from 1.
"""

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import torch
import torch._inductor.compile_fx  # which must find no triton
from torch.nn.attention.flex_attention import BlockMask

# Kernels that are never called.
for name in ("triton", "triton.language"):
    sys.modules[name] = MagicMock()
torch._utils._get_available_device_type = lambda: "cpu"
torch.cpu.get_device_name = lambda device: "cpu"
torch.cpu.get_device_properties = lambda device: SimpleNamespace(total_memory=1)
torch.cpu.current_device = lambda: 0
torch.cpu.memory_stats = lambda device: {}
torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda: None

from torchtitan.models.common.attention import FlexAttention  # noqa: E402
from torchtitan.train import main  # noqa: E402


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_mask: BlockMask, **_: object
) -> tuple[torch.Tensor, None]:
    """Plain attention under the same mask: torch's flex_attention cannot train on a CPU."""
    batch, position = (torch.arange(size) for size in (q.shape[0], q.shape[2]))
    mask = block_mask.mask_mod(
        batch[:, None, None], torch.tensor(0), position[None, :, None], position[None, None, :]
    )
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask[:, None]), None


recorded = Path(os.environ["RECORDED"], f"{os.environ['RANK']}.npy")
embedding, steps = torch.nn.functional.embedding, 0


def recording(tokens: torch.Tensor, weight: torch.Tensor, *others: object) -> torch.Tensor:
    global steps
    if torch.is_grad_enabled():
        steps += 1
        if steps == int(os.environ["KILLED_AT"]):
            os.kill(os.getpid(), signal.SIGKILL)
        with recorded.open("ab") as file:
            np.save(file, tokens.numpy())
    return embedding(tokens, weight, *others)


FlexAttention._compiled_flex_attn = attention
torch.nn.functional.embedding = recording
main()
