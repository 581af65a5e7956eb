"""Runs a script: `recorded.py SCRIPT ARGUMENTS`. What reaches its model's embedding is recorded.

The tokens of each step go to the file RANK.npy in the folder that RECORDED names, one array after
the other. The process kills itself at the beginning of the step that KILLED_AT names, from 1.
"""

import os
import runpy
import signal
import sys
from pathlib import Path

import numpy as np
import torch

recorded = Path(os.environ["RECORDED"], f"{os.environ['RANK']}.npy")
killed_at = int(os.environ["KILLED_AT"])
forward = torch.nn.Embedding.forward
steps = 0


def recording(embedding: torch.nn.Embedding, tokens: torch.Tensor) -> torch.Tensor:
    global steps
    steps += 1
    if steps == killed_at:
        os.kill(os.getpid(), signal.SIGKILL)
    with recorded.open("ab") as file:
        np.save(file, tokens.numpy())
    return forward(embedding, tokens)


torch.nn.Embedding.forward = recording
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
