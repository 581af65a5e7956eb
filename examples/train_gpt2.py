"""Goes from raw text to text that GPT-2 writes, on a GPU, or small on a CPU; resumes exactly.

pip install '.[build,torch]'  # torch 2.11 or later
python examples/train_gpt2.py --input pages.parquet

Stop it at any time: the same command continues after the last checkpoint. Without --input it reads
the English documents of the sample. Without a GPU it trains a tiny model for about a minute.
"""

import argparse
import os
from pathlib import Path

import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer, decoders, models, trainers
from tokenizers.pre_tokenizers import ByteLevel
from torch import nn
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn

import fineshards
from fineshards import BatchLoader, Packing, TokenDataset

SAMPLE = Path(__file__).resolve().parent.parent / "samples/debian_text.parquet"
FIELDS = ("inputs", "position_ids", "cu_seqlens", "targets")
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
# GPT-2 of 124 million parameters, or a tiny one. Multiples of 64 are fast.
VOCABULARY, LENGTH, RATE = (50304, 1024, 6e-4) if GPU else (1984, 128, 1e-3)
WIDTH, HEADS, LAYERS = (768, 12, 12) if GPU else (128, 4, 3)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--input", type=Path, help="a Parquet file with a column text")
parser.add_argument("--output", type=Path, default=Path("gpt2"), help="default: gpt2")
parser.add_argument("--steps", type=int, default=1000 if GPU else 300)
parser.add_argument("--save_steps", type=int, default=50)
args = parser.parse_args()
# Sums are made in one order, so a resumed run has the same bits.
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)


def attend(qkv: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Lets tokens see the earlier ones of their document; shape (tokens, 3, heads, size) in."""
    if GPU:
        return varlen_attn(*qkv.unbind(1), ends, ends, LENGTH, LENGTH, window_size=(-1, 0))
    documents = (each.permute(1, 2, 0, 3) for each in qkv.tensor_split(ends[1:-1].tolist()))
    seen = [functional.scaled_dot_product_attention(*each, is_causal=True) for each in documents]
    return torch.cat(seen, dim=1).transpose(0, 1)


class Block(nn.Module):
    """Attention, then a small network for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        wide, narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.mlp = nn.Sequential(wide, nn.GELU(), narrow)

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Shape (tokens, width) in and out."""
        qkv = self.qkv(self.attention_norm(x)).unflatten(1, (3, HEADS, -1))
        x = x + self.projection(attend(qkv, ends).flatten(1))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """The rows of a batch are one sequence, which `ends` cuts into documents."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, at: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Tokens and their places in their documents in, scores of the next tokens out."""
        x = self.embedding(tokens) + self.positions[at]
        for block in self.blocks:
            x = block(x, ends)
        return functional.linear(self.norm(x), self.embedding.weight)


# 1. A tokenizer, trained on the first documents, and token shards. A second run finds them.
args.output.mkdir(parents=True, exist_ok=True)
text_file, tokenizer_file = args.input or args.output / "en.parquet", args.output / "tokenizer.json"
if not tokenizer_file.exists():
    if not args.input:
        english = pq.read_table(SAMPLE, columns=["text"], filters=[("language", "=", "en")])
        pq.write_table(english, text_file)
    documents = next(pq.ParquetFile(text_file).iter_batches(10_000, columns=["text"]))["text"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    known = {"special_tokens": ["<|endoftext|>"], "initial_alphabet": ByteLevel.alphabet()}
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, **known)
    tokenizer.train_from_iterator(documents.to_pylist(), trainer)
    tokenizer.save(str(tokenizer_file))
tokenizer = Tokenizer.from_file(str(tokenizer_file))
folder = args.output / "dataset"
fineshards.build(input=text_file, output=folder, tokenizer=tokenizer_file, dtype="uint16")

# 2. Batches of rows that are packed with whole documents, and a model.
dataset = TokenDataset(folder, sequence_length=LENGTH)
loader = BatchLoader(dataset, 16, 1, packing=Packing(), fields=FIELDS, dtype="int64")
torch.manual_seed(1)
model = GPT(dataset.vocabulary_size).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), fused=GPU)
compiled = torch.compile(model) if GPU else model
bf16 = torch.autocast(DEVICE, torch.bfloat16, enabled=GPU)

# 3. Train. A checkpoint has the states of the model, the optimizer and the loader.
parts = {"model": model, "optimizer": optimizer, "loader": loader}
checkpoint = args.output / "checkpoint.pt"
if checkpoint.exists():
    for name, state in torch.load(checkpoint, map_location=DEVICE).items():
        parts[name].load_state_dict(state)
    print(f"resumed after step {loader.step}")

while loader.step < args.steps:
    batch = (torch.from_numpy(each).flatten().to(DEVICE) for each in next(loader).values())
    tokens, at, ends, targets = batch
    torch._dynamo.mark_dynamic(ends, 0)  # batches differ in the number of their documents
    with bf16:
        loss = functional.cross_entropy(compiled(tokens, at, ends).float(), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {loader.step}: loss {loss.item()}", flush=True)
    if loader.step % args.save_steps == 0:
        torch.save({name: part.state_dict() for name, part in parts.items()}, f"{checkpoint}.new")
        os.replace(f"{checkpoint}.new", checkpoint)
loader.close()

# 4. A document that the model writes after an EOT.
tokens, at = torch.tensor([dataset.eot], device=DEVICE), torch.arange(100, device=DEVICE)
with torch.no_grad(), bf16:
    for count in range(1, 100):
        ends = torch.tensor([0, count], dtype=torch.int32, device=DEVICE)
        likely = functional.softmax(model(tokens, at[:count], ends)[-1].float() / 0.7, dim=0)
        tokens = torch.cat([tokens, torch.multinomial(likely, 1)])
print(tokenizer.decode(tokens[1:].tolist()))
