"""The commands and the Python of docs/trainers.md run as printed, with the genuine trainers."""

import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SAMPLE
from support.dataset_contents import Contents
from support.page_examples import run_examples

from fineshards.cli.cli import main

PAGE = SAMPLE.parent.parent / "docs/trainers.md"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The names that each section of the page has after it ran, in a folder with `out`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        flags = ["--shard_tokens=150k", "--test_fraction=0.1"]
        assert main(["build", "--input", str(SAMPLE), "--output=out", *flags]) == 0
        for command in re.findall(r"^    fineshards (.*)$", PAGE.read_text(), re.M):
            assert main(shlex.split(command)) == 0, command
        patch.setattr("torch.nn.attention.varlen.varlen_attn", varlen)
        yield run_examples(PAGE) | {"dataset": Contents.read(Path("out"))}


def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Causal attention over all tokens: (tokens, heads, dimensions) of each."""
    parts = (each.transpose(0, 1) for each in (query, key, value))
    return torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True).transpose(0, 1)


def varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    window_size: tuple[int, int],
) -> torch.Tensor:
    """What torch's varlen_attn is defined to return; it needs a GPU."""
    assert window_size == (-1, 0)
    assert cu_seqlens_q is cu_seqlens_k
    assert cu_seqlens_q.dtype == torch.int32
    assert max_seqlen_q == max_seqlen_k == cu_seqlens_q.diff().max()
    spans = list(pairwise(cu_seqlens_q.tolist()))
    return torch.cat([plain(query[a:b], key[a:b], value[a:b]) for a, b in spans])


def test_attention_stays_within_documents(ran: dict[str, Any]) -> None:
    names = ran["Attention within documents"]
    inputs, targets = (torch.from_numpy(names["batch"][name]) for name in ("inputs", "targets"))
    parts = [names[name] for name in ("query", "key", "value")]
    documents = 0
    for row, tokens in enumerate(inputs):
        # A document begins with an EOT; a part of one, where the tokens do not go on.
        begins = tokens == ran["dataset"].eot
        begins[1:] |= tokens[1:] != targets[row, :-1]
        starts = {0, *torch.nonzero(begins).flatten().tolist()}
        documents += len(starts)
        for begin, end in pairwise([*sorted(starts), len(tokens)]):
            query, key, value = (part[row, :, begin:end].transpose(0, 1) for part in parts)
            expected = plain(query, key, value)
            flexed = names["attended"][row, :, begin:end].transpose(0, 1)
            torch.testing.assert_close(flexed, expected)
            first = row * len(tokens)
            torch.testing.assert_close(names["varlen"][first + begin : first + end], expected)
    assert documents > len(inputs)


def test_trainers_read_rows_of_the_stream(ran: dict[str, Any]) -> None:
    tokens = ran["dataset"].tokens["train"]
    assert ran["PyTorch"]["tokens"].shape == (32, 1025)
    assert ran["Hugging Face's Trainer"]["batch"]["input_ids"].shape == (32, 1024)
    sample = ran["NeMo Automodel"]["sample"]
    assert sample["input_ids"] == tokens[:1024].tolist()
    assert sample["labels"] == tokens[1:1025].tolist()
    ended = np.concatenate(ran["dataset"].ended("train"))
    # Of a shard's tokens, up to whole rows of 2,049.
    chunk = -(-150_000 // 2049) * 2049
    chunks = [tokens[at : at + chunk] for at in range(0, len(tokens), chunk)]
    for section, length, streams in (
        ("Grain", 1024, [tokens]),
        ("OLMo-core", 1024, [ended]),
        ("LitGPT", 1025, chunks),
    ):
        places = {
            stream[at : at + length].astype(np.int64).tobytes()
            for stream in streams
            for at in range(0, len(stream) - length + 1, length)
        }
        rows = np.asarray(ran[section]["rows"]).astype(np.int64)[:, :length]
        assert {row.tobytes() for row in rows} <= places, section
        assert len(rows) in (8, 32)


def test_nanochat_trains_from_our_loader_and_resumes_on_another_number_of_ranks(
    ran: dict[str, Any],
) -> None:
    """What nanochat's base_train.py asks of its loader, in the order in which it does."""
    shards = ran["nanochat"]["shards"]
    length, steps, saved = 256, 6, 2

    def train(ranks: int, resumed: Any = None) -> tuple[list[torch.Tensor], Any]:
        """The batches trained on, (2, rows, tokens) of all ranks, and the state of a checkpoint."""
        trained, states = [], []
        for rank in range(ranks):
            shards.__globals__.update(rank=rank, world_size=ranks)
            loader = shards(
                *(None, 8 // ranks, length, "train"), device="cpu", resume_state_dict=resumed
            )
            inputs, targets, state = next(loader)
            trained.append([])
            for step in range(steps):
                if step == saved:  # of a batch that is fetched, but not trained on
                    states.append(state)
                assert inputs.shape == targets.shape == (8 // ranks, length)
                assert inputs.dtype == targets.dtype == torch.int64
                assert inputs.is_contiguous()
                assert targets.is_contiguous()
                assert {"epoch", "pq_idx", "rg_idx"} < state.keys()
                trained[-1].append(torch.stack([inputs, targets]))
                inputs, targets, state = next(loader)
        assert all(state == states[0] for state in states)
        return [torch.cat(parts, dim=1) for parts in zip(*trained, strict=True)], states[0]

    whole, _ = train(ranks=1)
    before, state = train(ranks=4)
    after, _ = train(ranks=2, resumed=state)
    assert all(map(torch.equal, before, whole))
    assert all(map(torch.equal, after, whole[saved:]))
    assert len({str(row) for batch in whole for row in batch[0].tolist()}) == 8 * steps

    followers = set(pairwise(ran["dataset"].tokens["train"].tolist()))
    pairs = torch.cat(whole, dim=1).flatten(1).T.tolist()
    assert {tuple(pair) for pair in pairs} <= followers
    assert next(shards(None, 4, length, "val", device="cpu"))[0].shape == (4, length)
