"""Trains a small GPT on a CPU, from raw text to text that it writes, and resumes exactly.

pip install '.[build,torch]'
python examples/train_small_gpt.py

Stop it at any time: the same command continues after the last checkpoint. It needs about a minute.
"""

import argparse
import os
from pathlib import Path

import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from torch.nn import functional

import fineshards
from fineshards import BatchLoader, TokenDataset

SAMPLE = Path(__file__).resolve().parent.parent / "samples/debian_text.parquet"
EOT = "<|endoftext|>"
LENGTH, BATCH_SIZE = 128, 16

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--output", type=Path, default=Path("small_gpt"), help="default: small_gpt")
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--save_steps", type=int, default=50)
args = parser.parse_args()
# With one thread, sums are always made in the same order, so a resumed run has the same bits.
torch.set_num_threads(1)


class Block(nn.Module):
    """Attention to earlier tokens, then a small network for each token."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shape (rows, T, width) in and out."""
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """Tokens in, shape (rows, T); scores of the next token out, shape (rows, T, vocabulary)."""

    def __init__(self, vocabulary: int, width: int = 128, heads: int = 4, layers: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(LENGTH, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.embedding.weight, std=0.1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The embedding is used again to score the next tokens."""
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        return self.norm(self.blocks(x)) @ self.embedding.weight.T


def loss_of(model: GPT, tokens: torch.Tensor) -> torch.Tensor:
    """The cross-entropy of each token after those before it."""
    return functional.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:])


def write(model: GPT, tokens: list[int], count: int) -> list[int]:
    """Draws tokens one by one, each after the last LENGTH ones."""
    chance = torch.Generator().manual_seed(1)
    for _ in range(count):
        scores = model(torch.tensor([tokens[-LENGTH:]]))[0, -1]
        likely = functional.softmax(scores / 0.7, dim=0)
        tokens = [*tokens, int(torch.multinomial(likely, 1, generator=chance))]
    return tokens


# 1. Raw text: the English documents of the sample. A tokenizer of 2,000 tokens is trained on them.
args.output.mkdir(parents=True, exist_ok=True)
text_file, tokenizer_file = args.output / "english.parquet", args.output / "tokenizer.json"
if not tokenizer_file.exists():
    table = pq.read_table(SAMPLE, columns=["text"], filters=[("language", "=", "en")])
    pq.write_table(table, text_file)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=[EOT], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(table["text"].to_pylist(), trainer)
    tokenizer.save(str(tokenizer_file))
tokenizer = Tokenizer.from_file(str(tokenizer_file))

# 2. Token shards. A second run finds them finished.
folder = args.output / "dataset"
manifest = fineshards.build(
    input=text_file, output=folder, tokenizer=tokenizer_file, dtype="uint16", test_fraction=0.05
)
totals = manifest.totals
print(f"{totals['documents']} documents, {totals['tokens']:,} tokens in {folder}")

# 3. Train. A checkpoint has the states of the model, the optimizer and the loader.
dataset = TokenDataset(folder, sequence_length=LENGTH)
loader = BatchLoader(dataset, BATCH_SIZE, seed=1, dtype="int64")
torch.manual_seed(1)
model = GPT(dataset.vocabulary_size)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
parts = {"model": model, "optimizer": optimizer, "loader": loader}
checkpoint = args.output / "checkpoint.pt"
if checkpoint.exists():
    saved = torch.load(checkpoint)
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    print(f"resumed after step {loader.step}")

while loader.step < args.steps:
    loss = loss_of(model, torch.from_numpy(next(loader)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if loader.step % args.save_steps == 0:
        torch.save({name: part.state_dict() for name, part in parts.items()}, f"{checkpoint}.new")
        os.replace(f"{checkpoint}.new", checkpoint)
        print(f"step {loader.step}: loss {loss.item():.3f}", flush=True)
loader.close()

# 4. The loss of documents that the model has not seen, and a document that it writes after an EOT.
model.eval()
with torch.no_grad():
    test = TokenDataset(folder, "test", sequence_length=LENGTH)
    evaluation = BatchLoader(test, len(test), shuffle=False, epochs=1, dtype="int64")
    print(f"test loss {loss_of(model, torch.from_numpy(next(evaluation))).item():.3f}\n")
    print(tokenizer.decode(write(model, [dataset.eot], 100)))
