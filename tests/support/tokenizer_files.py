"""Small tokenizer.json files, trained on the sample in the styles of widely used ones."""

import json
import tempfile
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from support.oracle import read_texts

SAMPLE = Path(__file__).resolve().parent.parent.parent / "samples/debian_text.parquet"
EOT = "<|endoftext|>"
SPECIALS = [EOT, "<|im_start|>", "<|im_end|>"]
ADDED = ["<tool_call>", "</tool_call>"]

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
STYLES = ("gpt2", "llama3", "llama3 without ignore_merges", "qwen2")


def train(style: str, texts: Iterable[str], size: int = 2000) -> Tokenizer:
    """Trains a byte-level BPE tokenizer; with ignore_merges, some tokens result from no merge."""
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=style == "gpt2")
    tokenizer.pre_tokenizer = byte_level
    if style != "gpt2":
        split = pre_tokenizers.Split(Regex(QWEN2 if style == "qwen2" else LLAMA3), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    if style == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    if style == "llama3":
        content = json.loads(tokenizer.to_str())
        del content["model"]["merges"][::5]
        content["model"]["ignore_merges"] = True
        tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ADDED])
    return tokenizer


def save(tokenizer: Tokenizer, path: Path, **changes: Any) -> Path:
    """Writes a tokenizer.json with some fields replaced; `model` is updated, not replaced."""
    content = json.loads(tokenizer.to_str())
    content["model"] |= changes.pop("model", {})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | changes))
    return path


def added(content: str = "<extra>", **flags: bool) -> dict[str, object]:
    """One more added token for a trained file."""
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"id": 2_005, "content": content} | dict.fromkeys(names, False) | flags


def oracle_documents(path: Path, eot: str, texts: Iterable[str]) -> list[list[int]]:
    """The definition of correct, in plain Python: the library itself, one text at a time."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    first = tokenizer.token_to_id(eot)
    return [[first, *tokenizer.encode(text, add_special_tokens=False).ids] for text in texts]


def arrow(texts: list[str]) -> pa.Array:
    return pa.array(texts, pa.large_string())


@lru_cache
def sample_texts() -> list[str]:
    return read_texts(SAMPLE)


@lru_cache
def trained(style: str) -> Tokenizer:
    return train(style, sample_texts()[::4])


@lru_cache
def path_of(style: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fineshards-tokenizers-"))
    return save(trained(style), folder / f"{style.split()[0]}.json")
