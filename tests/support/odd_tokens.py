"""Made-up conversations, in which a token is learned if it is odd and no EOT."""

import json
from itertools import islice
from typing import Any

import numpy as np

from benchmarks.made_up_dataset import EOT, uneven
from fineshards import BatchLoader

LENGTH, TOKENS = 64, 69 * 64 + 20
MADE = uneven(TOKENS, 30)


def learned(start: int, stop: int) -> np.ndarray:
    tokens = MADE(start, stop)
    return (tokens % 2 == 1) & (tokens != EOT)


def checked_batches(loader: BatchLoader) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Twelve batches of a mixture, with the state after each.

    Source 0 has conversations. Of other sources all targets count but EOTs.
    """
    states, batches = [], []
    with loader:
        for batch in islice(loader, 12):
            batches.append(batch)
            states.append(json.loads(json.dumps(loader.state_dict())))
            odd, target = batch["targets"] % 2 == 1, batch["targets"] != EOT
            of_chat = batch["source_ids"][:, np.newaxis] == 0
            assert np.array_equal(batch["loss_mask"], target & (odd | ~of_chat))
            assert 0 < of_chat.sum() < len(of_chat)
    return batches, states
