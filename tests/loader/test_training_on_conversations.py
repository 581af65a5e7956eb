"""A small model learns from text and conversations: killed, and moved to fewer processes."""

import json
import multiprocessing
import random
import shutil
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.build_here import build_here
from support.checkout import SAMPLE

from fineshards import BatchLoader, Mixture, Packing, TokenDataset, WholeDocuments
from fineshards.maintenance.redact import redact

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] }}\n{% endgeneration %}{% else %}{{ m['content'] }}\n{% endif %}{% endfor %}"
)
# The model: from the class of a token to that of the next one.
CLASSES, LENGTH, BATCH = 61, 128, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets of text and of conversations, whose answers alone say yes."""
    folder, chosen = tmp_path_factory.mktemp("training"), random.Random(1)
    lines = []
    for number in range(300):
        words = {"user": f" why {number}", "assistant": f" yes {number}"}
        turns = [
            {"role": role, "content": words[role] * chosen.randrange(1, 12)}
            for _ in range(chosen.randint(1, 3))
            for role in words
        ]
        lines.append(json.dumps({"messages": turns, "id": str(number)}))
    (folder / "chat.jsonl").write_text("\n".join(lines))
    (folder / "chat.jinja").write_text(TEMPLATE)
    chat = {"input": folder / "chat.jsonl", "chat_template": str(folder / "chat.jinja")}
    build_here(output=folder / "chat", shard_tokens=5_003, test_fraction="0", **chat)
    build_here(input=SAMPLE, output=folder / "text", shard_tokens=100_000)
    return folder


def opened(
    folder: Path, whole: bool, state: dict[str, Any] | None, rank: int, ranks: int
) -> BatchLoader:
    chat = TokenDataset(folder / "chat", sequence_length=LENGTH)
    text = TokenDataset(folder / "text", sequence_length=LENGTH)
    source = WholeDocuments(chat, 16) if whole else chat
    loader = BatchLoader(
        Mixture({"text": (text, 0.5), "chat": (source, 0.5)}),
        BATCH,
        5,
        rank,
        ranks,
        packing=None if whole else Packing(rows=8, shuffle_windows=2),
        fields=("inputs", "targets", "loss_mask", "source_ids"),
    )
    if state is not None:
        loader.load_state_dict(state)
    return loader


def gradients(weights: np.ndarray, batch: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, int]:
    """Each row's loss and gradient, and how many targets count."""
    losses, found = [], []
    for inputs, targets, counts in zip(
        batch["inputs"] % CLASSES, batch["targets"] % CLASSES, batch["loss_mask"], strict=True
    ):
        scores = np.exp(weights[inputs])
        likely = scores / scores.sum(axis=1, keepdims=True)
        places = np.arange(LENGTH)
        losses.append(-(np.log(likely[places, targets]) * counts).sum())
        likely[places, targets] -= 1
        gradient = np.zeros_like(weights)
        np.add.at(gradient, inputs, likely * counts[:, np.newaxis])
        found.append(gradient)
    return np.array(losses), np.array(found), int(batch["loss_mask"].sum())


def serve(connection: Connection, *given: Any) -> None:
    """A rank: for each weights that it gets, its part of the next batch's gradient."""
    with opened(*given) as loader:
        while True:
            weights = connection.recv()
            part = gradients(weights, next(loader))
            connection.send((part, loader.state_dict()))


class Run:
    """A training whose ranks are processes of their own."""

    def __init__(self, folder: Path, whole: bool, ranks: int, saved: Any = None) -> None:
        self.weights, state = saved or (np.zeros((CLASSES, CLASSES)), None)
        context = multiprocessing.get_context("spawn")
        self.connections, self.processes = [], []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            given = (theirs, folder, whole, state, rank, ranks)
            self.processes.append(context.Process(target=serve, args=given, daemon=True))
            self.processes[-1].start()
            self.connections.append(ours)
        self.losses: list[float] = []

    def train(self, steps: int) -> Any:
        """The weights, and the state that all ranks have, after some steps."""
        for _ in range(steps):
            for each in self.connections:
                each.send(self.weights)
            answers = [each.recv() for each in self.connections]
            states = [state for _, state in answers]
            assert all(state == states[0] for state in states)
            # In the order of the rows of the global batch, so that all sums are the same.
            losses = np.concatenate([part[0] for part, _ in answers])
            rows = np.concatenate([part[1] for part, _ in answers])
            count = sum(part[2] for part, _ in answers)
            self.losses.append(float(losses.sum() / count))
            self.weights = self.weights - 20 * rows.sum(axis=0) / count
        return self.weights, json.loads(json.dumps(states[0]))

    def kill(self) -> None:
        for each in self.processes:
            each.kill()
            each.join()


@pytest.mark.parametrize("whole", [False, True])
def test_a_killed_training_goes_on_with_fewer_ranks(folder: Path, whole: bool) -> None:
    one = Run(folder, whole, 1)
    one.train(24)
    one.kill()
    first = Run(folder, whole, 4)
    saved = first.train(9)
    first.train(3)  # lost
    first.kill()
    second = Run(folder, whole, 2, saved)
    second.train(15)
    second.kill()
    assert first.losses == one.losses[:12]
    assert second.losses == one.losses[9:]
    assert one.losses[-1] < 0.9 * one.losses[0]
    assert len(set(one.losses)) == 24


@pytest.mark.parametrize("whole", [False, True])
def test_only_answers_are_learned_from_conversations(folder: Path, whole: bool) -> None:
    dataset = TokenDataset(folder / "chat", sequence_length=LENGTH)
    with opened(folder, whole, None, 0, 1) as loader:
        seen = [0, 0]
        for _ in range(30):
            batch = next(loader)
            chat = batch["source_ids"] == 1
            targets, counts = batch["targets"], batch["loss_mask"]
            assert (counts[~chat] == (targets[~chat] != dataset.eot)).all()
            learned = dataset.decode(targets[chat][counts[chat]])
            others = dataset.decode(targets[chat][~counts[chat]])
            assert "why" not in learned
            assert "yes" not in others
            seen[0] += learned.count("yes")
            seen[1] += others.count("why")
        assert min(seen) > 500


def answers(text: str) -> list[str]:
    """The words after each mark of the assistant, up to the line's end."""
    lines = [line.removeprefix("<assistant>") for line in text.split("\n")]
    return " ".join(line for line in lines if not line.startswith("<user>")).split()


def document_places(whole: WholeDocuments) -> list[Any]:
    """Where documents begin in rows, padding too."""
    with BatchLoader(whole, 8, fields=("cu_seqlens", "loss_mask"), epochs=1) as loader:
        return [batch["cu_seqlens"].tolist() for batch in loader]


def test_a_redacted_conversation_is_not_learned_and_moves_nothing(
    folder: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "chat"
    shutil.copytree(folder / "chat", copy)
    before = TokenDataset(copy, sequence_length=LENGTH)
    numbers = np.arange(len(before))
    tokens, counted = before.gather(numbers)[:, 1:], before.loss_mask(numbers)
    places = document_places(WholeDocuments(before))
    state = BatchLoader(before, 4).state_dict()
    redact(str(copy), documents=[100])
    after = TokenDataset(copy, sequence_length=LENGTH)
    gone = after.gather(numbers)[:, 1:] != tokens
    assert gone.sum() > 8
    assert np.array_equal(after.loss_mask(numbers), counted & ~gone)
    assert counted[gone].any()
    assert document_places(WholeDocuments(after)) == places
    resumed = BatchLoader(after, 4, fields=("targets", "loss_mask"))
    resumed.load_state_dict(state)
    batch = next(resumed)
    assert not batch["loss_mask"][batch["targets"] == after.eot].any()
