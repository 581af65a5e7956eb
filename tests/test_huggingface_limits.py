"""tokenizer.json files that go to `tokenizers` alone, and those that are refused: both say why."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from support.tokenizer_files import (
    EOT,
    arrow,
    oracle_documents,
    path_of,
    sample_texts,
    save,
    trained,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from fineshards.encoders.encoder import Encoder
from fineshards.encoders.loading import describe_tokenizer, load_encoder
from fineshards.errors import FineshardsError, UsageError
from fineshards.shards.job import TOKENIZER_JSON_NAME
from fineshards.storage.base import open_storage


def reference_only(path: Path, caplog: pytest.LogCaptureFixture, reason: str) -> Encoder:
    """Checks that a tokenizer goes to its library alone, and says so once."""
    with caplog.at_level(logging.WARNING, "fineshards"):
        record, data = describe_tokenizer(str(path), "auto")
    assert [reason in line.getMessage() for line in caplog.records] == [True]
    assert "tokenizers alone" in caplog.text
    with pytest.raises(UsageError, match=r"--tokenizer_engine gigatoken: not for .*since"):
        describe_tokenizer(str(path), "gigatoken")
    storage = open_storage(str(path.parent / "out"))
    storage.write(TOKENIZER_JSON_NAME, data)
    encoder = load_encoder(record, storage, "auto")
    assert encoder.reference is encoder
    texts = ["a b", "the <|endoftext|> end.", *sample_texts()[:20]]
    batch = encoder.encode(arrow(texts))
    expected = oracle_documents(path, EOT, texts)
    assert [batch.document(index).tolist() for index in range(len(texts))] == expected
    assert batch.by_reference == len(texts)
    return encoder


def added(content: str = "<extra>", **flags: bool) -> dict[str, object]:
    """A token beside those of the trained file."""
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"id": 3_000, "content": content} | dict.fromkeys(names, False) | flags


@pytest.mark.parametrize(
    ("style", "token", "reason"),
    [
        ("gpt2", added(lstrip=True), "take spaces with them"),
        ("gpt2", added(rstrip=True), "take spaces with them"),
        ("gpt2", added(single_word=True), "only as words"),
        ("qwen2", added(normalized=True), "only after normalization"),
        ("gpt2", added(content="|><tool", normalized=True), "added tokens overlap"),
        ("gpt2", added(content="im_end"), "special and of other added tokens overlap"),
        ("gpt2", added(content=">x"), "special and of other added tokens overlap"),
    ],
)
def test_added_tokens_that_gigatoken_would_find_elsewhere(
    style: str,
    token: dict[str, object],
    reason: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tokens = json.loads(path_of(style).read_text())["added_tokens"]
    path = save(trained(style), tmp_path / "t.json", added_tokens=[*tokens, token])
    reference_only(path, caplog, reason)


def test_merges_in_another_order_than_the_ids(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    merges = json.loads(path_of("gpt2").read_text())["model"]["merges"]
    shuffled = {"merges": merges[::2] + merges[1::2]}
    path = save(trained("gpt2"), tmp_path / "t.json", model=shuffled)
    reference_only(path, caplog, "do not come in the order of the ids")


def test_a_vocabulary_without_some_bytes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = json.loads(path_of("gpt2").read_text())["model"]
    vocab = {text.replace("Ď", "一"): id_ for text, id_ in model["vocab"].items()}
    path = save(trained("gpt2"), tmp_path / "t.json", model={"vocab": vocab})
    reference_only(path, caplog, "1 of the 256 bytes have no token")


@pytest.mark.parametrize("ignored", ["merge listed twice", "splitting"])
def test_other_reasons_for_the_reference_alone(
    ignored: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = json.loads(path_of("gpt2").read_text())
    if ignored == "splitting":
        step = {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}],
        }
        step["pretokenizers"].append(content["pre_tokenizer"])
        path = save(trained("gpt2"), tmp_path / "t.json", pre_tokenizer=step)
        reference_only(path, caplog, "never compared")
    else:
        merges = content["model"]["merges"]
        path = save(trained("gpt2"), tmp_path / "t.json", model={"merges": [*merges, merges[-1]]})
        reference_only(path, caplog, "lists a merge twice")


def test_other_models_go_to_their_library(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    words = {word: id_ for id_, word in enumerate(["[UNK]", "the", "a", "b", "end", "."])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([EOT])
    encoder = reference_only(save(tokenizer, tmp_path / "t.json"), caplog, "never compared")
    assert encoder.encode(arrow(["the end"])).tokens.tolist() == [6, 1, 4]
    assert encoder.decode(np.array([6, 1, 4], np.uint32)) == "the end"


def test_a_text_that_a_tokenizer_cannot_take_is_an_error_for_people(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="[UNK]"))
    tokenizer.add_special_tokens([EOT])
    path = save(tokenizer, tmp_path / "t.json")
    with pytest.raises(FineshardsError, match=r"tokenizers 0\..* cannot encode a document \(.*UNK"):
        describe_tokenizer(str(path), "tokenizers")


def broken(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", r"is no tokenizer.json \(Expecting"),
        (b"\xff\xfe", r"is no tokenizer.json"),
        (b"[]", r"is no tokenizer.json"),
        (b"{}", r"is no tokenizer.json \(it has no model\)"),
        (
            b'{"model": {"type": "Strange"}}',
            r"the tokenizers library cannot read it \(data did not",
        ),
        (
            b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}',
            r"cannot read it \(Token `b` out of vocabulary",
        ),
    ],
)
def test_files_that_are_no_tokenizers(tmp_path: Path, content: bytes, message: str) -> None:
    path = broken(tmp_path, content)
    with pytest.raises(UsageError, match=message) as caught:
        describe_tokenizer(path, "auto")
    assert str(caught.value).startswith(f"--tokenizer {path}: ")


def test_mistakes_in_the_command(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--tokenizer missing.json: cannot be read \(No such"):
        describe_tokenizer("missing.json", "auto")
    path = str(path_of("gpt2"))
    listed = r"its special tokens are <\|endoftext\|>, <\|im_start\|>, <\|im_end\|>\."
    with pytest.raises(UsageError, match=rf"--eot_token <eos>: no special token of .*; {listed}"):
        describe_tokenizer(path, "auto", "<eos>")
    with pytest.raises(UsageError, match=r"--eot_token <tool_call>: no special token"):
        describe_tokenizer(path, "auto", "<tool_call>")
    with pytest.raises(UsageError, match=r"--tokenizer_engine tiktoken: not for gpt2.json, which"):
        describe_tokenizer(path, "tiktoken")
    with pytest.raises(UsageError, match=r"--tokenizer_engine tokenizers: .*cl100k.* tiktoken"):
        describe_tokenizer("cl100k_base", "tokenizers")
    with pytest.raises(UsageError, match=r"--eot_token x: no special token of cl100k_base"):
        describe_tokenizer("cl100k_base", "auto", "x")
    dropout = save(trained("gpt2"), tmp_path / "d.json", model={"dropout": 0.1})
    with pytest.raises(UsageError, match=r"dropout 0.1, so that a text has other tokens each time"):
        describe_tokenizer(str(dropout), "auto")
    without = save(trained("gpt2"), tmp_path / "w.json", added_tokens=[added(special=True)])
    with pytest.raises(UsageError, match=r"no <\|endoftext\|> .* --eot_token; .* are <extra>\."):
        describe_tokenizer(str(without), "auto")
    none = save(trained("gpt2"), tmp_path / "n.json", added_tokens=[])
    with pytest.raises(UsageError, match=r"--eot_token; it has no special tokens"):
        describe_tokenizer(str(none), "auto")


def test_an_eot_with_the_id_of_another_token(tmp_path: Path) -> None:
    """Where the vocabulary has holes, the library numbers added tokens into it."""
    vocab = json.loads(path_of("gpt2").read_text())["model"]["vocab"]
    last = max(vocab, key=lambda text: vocab[text])
    del vocab["Ď"]
    path = save(trained("gpt2"), tmp_path / "t.json", model={"vocab": vocab})
    message = rf"the id {vocab[last]}, which {last!r} has as well, since ids are missing"
    with pytest.raises(UsageError, match=message):
        describe_tokenizer(str(path), "auto")


def test_another_eot_of_a_tiktoken_encoding() -> None:
    record, _ = describe_tokenizer("cl100k_base", "auto", "<|fim_prefix|>")
    assert record.eot == 100_258
    assert record.golden_sha256 != describe_tokenizer("cl100k_base", "auto")[0].golden_sha256


def unigram(tmp_path: Path) -> Path:
    """As T5's: special tokens are pieces of the vocabulary, in the first places."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("▁the", -3.0)]
    pieces += [(character, -5.0) for character in "abcdefghijklmnopqrstuvwxyz.</>"]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>", "<extra>"])
    return save(tokenizer, tmp_path / "spiece.json")


def test_unigram_models_do_not_find_special_tokens_in_text(tmp_path: Path) -> None:
    path = unigram(tmp_path)
    record, data = describe_tokenizer(str(path), "auto", "</s>")
    assert dict(record.special_tokens) == {"<pad>": 0, "</s>": 1, "<unk>": 2, "<extra>": 35}
    assert (record.eot, record.size, record.special_tokens[0]) == (1, 36, ("</s>", 1))
    storage = open_storage(str(tmp_path / "out"))
    storage.write(TOKENIZER_JSON_NAME, data)
    encoder = load_encoder(record, storage, "auto")
    texts = ["the end.", "A </s> b<pad><extra>", ""]
    batch = encoder.encode(arrow(texts))
    for index in (0, 2):
        assert [batch.document(index).tolist()] == oracle_documents(path, "</s>", [texts[index]])
    tokens = batch.document(1).tolist()
    assert tokens[0] == 1
    assert not {0, 1, 35} & set(tokens[1:])
    assert encoder.decode(batch.document(0)) == "the end."


def test_the_token_that_begins_documents_never_stands_in_one(tmp_path: Path) -> None:
    """A word-level model knows its tokens by their texts; no setting changes that."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "end": 1, "a": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["end"])
    record, data = describe_tokenizer(str(save(tokenizer, tmp_path / "t.json")), "auto", "end")
    storage = open_storage(str(tmp_path / "out"))
    storage.write(TOKENIZER_JSON_NAME, data)
    encoder = load_encoder(record, storage, "auto")
    assert encoder.encode(arrow(["a b"])).tokens.tolist() == [1, 2, 0]
    with pytest.raises(FineshardsError, match=r"stands in one, as .* text: 'a end'\. Name another"):
        encoder.encode(arrow(["a end"]))
