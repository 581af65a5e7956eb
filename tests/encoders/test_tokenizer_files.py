"""What lies in the place of a tokenizer.json, or beside one: read, or named with what to do."""

import base64
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from support.tokenizer_files import arrow, path_of, save, trained
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from fineshards.encoders.checked_encoder import GOLDEN_TEXTS
from fineshards.encoders.loading import describe_tokenizer, load_encoder
from fineshards.encoders.tokenizer_files import _TEKKEN_SPLIT, read_tokenizer
from fineshards.errors import UsageError
from fineshards.storage.open import open_storage

# Bytes, and merges of them. The last two are beyond the size of the vocabulary.
TOKENS = [*(bytes([byte]) for byte in range(256)), b"he", b"ll", b"hell", b"hello", b" w", b"wo"]
SPECIALS = 10


def tekken(**more: object) -> dict[str, object]:
    """A tekken.json as Mistral publishes them, with few tokens."""
    return {
        "config": {
            "pattern": _TEKKEN_SPLIT,
            "num_vocab_tokens": len(TOKENS),
            "default_vocab_size": SPECIALS + len(TOKENS) - 2,
            "default_num_special_tokens": SPECIALS,
            "version": "v11",
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
            for rank, token in enumerate(TOKENS)
        ],
        "special_tokens": [
            {"rank": rank, "token_str": text, "is_control": True}
            for rank, text in ((0, "<unk>"), (2, "</s>"), (1, "<s>"))
        ],
    } | more


@pytest.mark.parametrize("place", ["tekken.json", "."])
def test_a_tekken_json_has_the_tokens_of_tiktoken_after_the_special_ones(
    place: str, tmp_path: Path
) -> None:
    """As mistral-common encodes with tiktoken, and adds the number of special tokens to each id."""
    (tmp_path / "tekken.json").write_text(json.dumps(tekken()))
    record, data = describe_tokenizer(str(tmp_path / place), "auto", "</s>")
    ids = dict(record.special_tokens)
    assert (record.kind, record.name, record.eot) == ("tiktoken", "tekken.json", 2)
    assert (ids["<unk>"], ids["<SPECIAL_9>"], len(ids)) == (0, 9, SPECIALS)
    assert record.size == SPECIALS + len(TOKENS) - 2
    storage = open_storage(str(tmp_path / "out"))
    storage.write(record.file, data)
    encoder = load_encoder(record, storage, "auto")
    ranks = {token: rank for rank, token in enumerate(TOKENS[:-2])}
    theirs = tiktoken.Encoding("x", pat_str=_TEKKEN_SPLIT, mergeable_ranks=ranks, special_tokens={})
    texts = [*GOLDEN_TEXTS, "hello world", "</s> is text"]
    batch = encoder.encode(arrow(texts))
    for index, text in enumerate(texts):
        expected = [SPECIALS + token for token in theirs.encode_ordinary(text)]
        assert batch.document(index).tolist() == [2, *expected]
        assert encoder.decode(batch.document(index)) == text


def test_special_tokens_of_an_older_tekken_json_are_those_of_mistral_common(tmp_path: Path) -> None:
    content: dict[str, Any] = tekken()
    del content["special_tokens"]
    content["config"] |= {"default_num_special_tokens": 22, "default_vocab_size": 280}
    path = tmp_path / "tekken.json"
    path.write_text(json.dumps(content))
    record, _ = describe_tokenizer(str(path), "auto", "</s>")
    ids = dict(record.special_tokens)
    assert (ids["[INST]"], ids["<pad>"], ids["[TOOL_CONTENT]"], ids["<SPECIAL_20>"]) == (
        *(3, 11, 19, 20),
    )
    with pytest.raises(UsageError, match=r"--tokenizer tekken.json: has no <\|endoftext\|>"):
        describe_tokenizer(str(path), "auto")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["tokenizer.model"], "tokenizer.model cannot be read. .*save_pretrained.* sentencepiece"),
        (["vocab.json", "merges.txt"], "vocab.json and merges.txt cannot be read.*save_pretrained"),
        (["vocab.txt"], r"vocab.txt cannot be read. .*from_pretrained\('{folder}'\)"),
        (["qwen.tiktoken"], "qwen.tiktoken lists tokens alone; .*TikTokenConverter"),
        ([], "the folder has no tokenizer.json"),
        (["README.md"], "the folder has no tokenizer.json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_other_files_are_named_with_what_converts_them(
    files: list[str], message: str, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).write_text("{}")
    places = [tmp_path, *(tmp_path / name for name in files if name != "README.md")]
    for place in places if len(files) < 2 else places[:1]:
        with pytest.raises(UsageError) as caught:
            describe_tokenizer(str(place), "auto")
        assert str(caught.value).startswith(f"--tokenizer {place}: ")
        caught.match(message.format(folder=tmp_path))


def warnings(path: Path, caplog: pytest.LogCaptureFixture, eot: str | None = None) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "fineshards"):
        read_tokenizer(str(path), eot)
    return [record.getMessage() for record in caplog.records]


def declared(content: str, **flags: bool) -> dict[str, object]:
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"content": content} | dict.fromkeys(names, False) | flags


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer_config.json", {"add_prefix_space": True}, "add_prefix_space true"),
        ("tokenizer_config.json", {"do_lower_case": True}, "do_lower_case true"),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {"2005": declared("<x>")}},
            "the token '<x>'",
        ),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {"2004": declared("<tool_call>", rstrip=True)}},
            "other flags of '<tool_call>'",
        ),
        ("tokenizer_config.json", {"pad_token": "<pad>"}, "the token '<pad>'"),
        (
            "tokenizer_config.json",
            {"extra_special_tokens": [declared("<y>"), "<z>"]},
            "the token '<y>', the token '<z>'",
        ),
        ("special_tokens_map.json", {"unk_token": declared("<unk>")}, "the token '<unk>'"),
        ("added_tokens.json", {"<x>": 2005}, "the token '<x>'"),
        (
            "tokenizer_config.json",
            {
                "add_prefix_space": False,
                "do_lower_case": False,
                "add_bos_token": True,
                "unk_token": None,
                "eos_token": declared("<|endoftext|>", special=True),
                "additional_special_tokens": ["<|im_start|>"],
                "added_tokens_decoder": {
                    "2004": declared("<tool_call>"),
                    "2000": declared("<|endoftext|>", special=True, rstrip=True),
                },
                "chat_template": "{{ messages }}",
            },
            "",
        ),
    ],
)
def test_what_files_beside_a_tokenizer_json_say_otherwise_is_not_obeyed_and_said(
    name: str,
    content: dict[str, object],
    words: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """AutoTokenizer of transformers 5.23 gives other tokens with each, and none with the last."""
    path = save(trained("gpt2"), tmp_path / "tokenizer.json")
    assert warnings(path, caplog) == []
    (tmp_path / name).write_text(json.dumps(content))
    expected = [
        f"--tokenizer {tmp_path}: files beside it say {words}, which is not obeyed. If the model "
        "was trained so, give a tokenizer.json that AutoTokenizer has saved"
    ]
    assert warnings(tmp_path, caplog) == (expected if words else [])


@pytest.mark.parametrize("content", ["{", "[]", '{"added_tokens_decoder": {"0": "x"}}', '"x"'])
def test_a_file_beside_that_is_none_is_said(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = save(trained("gpt2"), tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(content)
    (warning,) = warnings(path, caplog)
    assert "files beside it cannot be understood (" in warning


def test_a_space_and_lower_case_that_a_file_writes_are_not_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens(["</s>"])
    path = save(tokenizer, tmp_path / "tokenizer.json")
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"add_prefix_space": True, "do_lower_case": True}))
    assert warnings(path, caplog, "</s>") == []
    config.write_text(json.dumps({"add_prefix_space": False, "do_lower_case": False}))
    (warning,) = warnings(path, caplog, "</s>")
    assert "say add_prefix_space false, do_lower_case false, which is not obeyed" in warning


@pytest.mark.parametrize("is_right", [True, False])
def test_the_wrong_split_rule_of_mistral_is_named(
    is_right: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = Tokenizer.from_str(trained("llama3").to_str())
    llama3 = json.loads(path_of("llama3").read_text())["pre_tokenizer"]
    regex = llama3["pretokenizers"][0]["pattern"]["Regex"]
    split = pre_tokenizers.Split(Regex(_TEKKEN_SPLIT if is_right else regex), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    assert warnings(save(tokenizer, tmp_path / "other.json"), caplog) == []
    tokenizer.add_special_tokens(["[INST]", "[AVAILABLE_TOOLS]"])
    found = warnings(save(tokenizer, tmp_path / "tokenizer.json"), caplog)
    assert [
        "known to be wrong for Mistral's vocabularies" in x and "fix_mistral_regex=True" in x
        for x in found
    ] == ([] if is_right else [True])
