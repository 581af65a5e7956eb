"""Training on one GPU: what the loader costs, and attention within documents by two kernels.

A GPT with GPT-2's 124M parameters trains in bf16, compiled, in turn on batches of a BatchLoader and
on a batch that lies on the GPU. Run as `python -m benchmarks.gpu [DATASET]`; without a dataset it
reads made-up tokens.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from rich.console import Console
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.attention.varlen import varlen_attn

from benchmarks.made_up_dataset import make_dataset, uneven
from benchmarks.timings import Timing, in_turn, table
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.packing import Packing
from fineshards.loader.token_dataset import TokenDataset
from fineshards.storage.open import open_storage

LENGTH, WIDTH, HEADS, LAYERS = 1024, 768, 12, 12
PACKED = ("inputs", "targets", "cu_seqlens", "max_seqlen")


class Block(nn.Module):
    """Attention to earlier tokens of the row, then a small network for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        wide, narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.mlp = nn.Sequential(wide, nn.GELU(), narrow)

    def forward(self, x: Any) -> Any:
        """Shape (rows, T, width) in and out."""
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (3, HEADS, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """Tokens and their targets in, shape (rows, T); the mean loss out."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(-(-vocabulary // 64) * 64, WIDTH)
        self.positions = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens: Any, targets: Any) -> Any:
        """The scores are made in eight parts, to hold fewer of them at a time."""
        x = self.norm(self.blocks(self.embedding(tokens) + self.positions)).flatten(0, 1)
        loss: Any = 0.0
        for part, expected in zip(x.chunk(8), targets.flatten().chunk(8), strict=True):
            scores = functional.linear(part, self.embedding.weight).float()
            loss = loss + functional.cross_entropy(scores, expected) / 8
        return loss


def by_document(query: Any, key: Any, value: Any, batch: dict[str, Any]) -> Any:
    """Causal attention of one document after another; shape (tokens, heads, size) in and out."""
    parts = []
    for start, end in pairwise(batch["cu_seqlens"].tolist()):
        document = (each[start:end].transpose(0, 1) for each in (query, key, value))
        attended = functional.scaled_dot_product_attention(*document, is_causal=True)
        parts.append(attended.transpose(0, 1))
    return torch.cat(parts)


def by_cu_seqlens(query: Any, key: Any, value: Any, batch: dict[str, Any]) -> Any:
    """The same by varlen_attn, which takes the flattened batch."""
    ends = torch.from_numpy(batch["cu_seqlens"]).to(query.device)
    longest = batch["max_seqlen"]
    return varlen_attn(query, key, value, ends, ends, longest, longest, window_size=(-1, 0))


def by_document_ids(query: Any, key: Any, value: Any, batch: dict[str, Any]) -> Any:
    """The same by FlexAttention, which takes rows and a mask."""
    ids = torch.from_numpy(batch["document_ids"]).to(query.device)

    def earlier_in_document(row: Any, _: Any, at: Any, other: Any) -> Any:
        return (at >= other) & (ids[row, at] == ids[row, other])

    rows, length = ids.shape
    mask = create_block_mask(earlier_in_document, rows, None, length, length, device=ids.device)
    in_rows = (each.unflatten(0, (rows, length)).transpose(1, 2) for each in (query, key, value))
    attended = torch.compile(flex_attention)(*in_rows, block_mask=mask)
    return attended.transpose(1, 2).flatten(0, 1)


def attention_difference(dataset: TokenDataset, kernel: Callable[..., Any], rows: int = 4) -> float:
    """The largest difference of a kernel in bf16 from attention by document in float32."""
    fields = (*PACKED, "document_ids")
    with BatchLoader(dataset, rows, 1, fields=fields, packing=Packing()) as loader:
        batch = next(loader)
    chance = torch.Generator("cuda").manual_seed(1)
    shape = (3, rows * dataset.sequence_length, HEADS, WIDTH // HEADS)
    query, key, value = torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=chance)
    expected = by_document(query.float(), key.float(), value.float(), batch)
    return float((kernel(query, key, value, batch).float() - expected).abs().max())


def time_loader(dataset: TokenDataset, rows: int, batches: int, rounds: int) -> list[Timing]:
    """The loader without a model, in this process."""

    def read(**given: Any) -> None:
        with BatchLoader(dataset, rows, 1, dtype="int64", **given) as loader:
            for _ in range(batches):
                next(loader)

    actions = {
        "loader alone, shuffled": read,
        "loader alone, packed": lambda: read(fields=PACKED, packing=Packing()),
    }
    return _timings(in_turn(actions, rounds), batches, rows)


def time_training(dataset: TokenDataset, rows: int, steps: int, rounds: int) -> list[Timing]:
    """Steps of one compiled model, on batches of the loader and on one that stays on the GPU."""
    model = GPT(dataset.vocabulary_size).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    compiled = torch.compile(model)
    loader = BatchLoader(dataset, rows, 1, dtype="int64")

    def loaded() -> Any:
        return torch.from_numpy(next(loader)).pin_memory().to("cuda", non_blocking=True)

    def train(batch: Callable[[], Any], count: int = steps) -> None:
        for _ in range(count):
            tokens = batch()
            with torch.autocast("cuda", torch.bfloat16):
                loss = compiled(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()

    with loader:
        train(loaded, 10)
        staying = loaded()
        there = "train, a batch on the GPU"
        actions = {there: lambda: train(lambda: staying), "train, loader": lambda: train(loaded)}
        return _timings(in_turn(actions, rounds), steps, rows, there)


def _timings(runs: Any, batches: int, rows: int, beside: str | None = None) -> list[Timing]:
    tokens = batches * rows * LENGTH
    return [
        Timing(name, batches, "batches", taken, beside=beside, tokens=tokens)
        for name, taken in runs.items()
    ]


def main() -> int:
    """Measures and prints; returns 1 where there is no GPU."""
    parser = argparse.ArgumentParser(description="Measures training from the loader on one GPU.")
    parser.add_argument("dataset", nargs="?", help="folder that fineshards wrote")
    parser.add_argument("--rows", type=int, default=64, help="rows of 1,024 tokens per batch")
    parser.add_argument("--steps", type=int, default=60, help="per round")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("This benchmark needs an NVIDIA GPU, and torch finds none here.", file=sys.stderr)
        return 1
    torch.set_float32_matmul_precision("high")
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        if not given.dataset:
            tokens = 100_000_000
            make_dataset(open_storage(folder), tokens, tokens // 2, made=uneven(tokens, 700))
        dataset = TokenDataset(given.dataset or folder, sequence_length=LENGTH)
        for kernel in (by_cu_seqlens, by_document_ids):
            difference = attention_difference(dataset, kernel)
            print(f"attention {kernel.__name__}: largest difference {difference:.4f}", flush=True)
        timings = time_loader(dataset, given.rows, 10 * given.steps, given.rounds)
        timings += time_training(dataset, given.rows, given.steps, given.rounds)
    Console(width=140).print(table(timings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
