"""What lies in the place of a tokenizer.json, or beside one: read, or named with what to do."""

import base64
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import tiktoken
from support.tokenizer_files import arrow, path_of, save, trained
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from fineshards.encoders.checked_encoder import GOLDEN_TEXTS
from fineshards.encoders.loading import describe_tokenizer, load_encoder
from fineshards.encoders.tokenizer_files import read_tokenizer
from fineshards.encoders.vocabulary import TEKKEN_SPLIT
from fineshards.errors import UsageError
from fineshards.storage.open import open_storage

# Bytes, and merges of them. The last two are beyond the size of the vocabulary.
TOKENS = [*(bytes([byte]) for byte in range(256)), b"he", b"ll", b"hell", b"hello", b" w", b"wo"]
SPECIALS = 10


def tekken(**more: object) -> dict[str, object]:
    """A tekken.json as Mistral publishes them, with few tokens."""
    return {
        "config": {
            "pattern": TEKKEN_SPLIT,
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
    theirs = tiktoken.Encoding("x", pat_str=TEKKEN_SPLIT, mergeable_ranks=ranks, special_tokens={})
    texts = [*GOLDEN_TEXTS, "hello world", "</s> is text"]
    batch = encoder.encode(arrow(texts))
    for index, text in enumerate(texts):
        expected = [SPECIALS + token for token in theirs.encode_ordinary(text)]
        assert batch.document(index).tolist() == [2, *expected]
        assert encoder.decode(batch.document(index)) == text


def test_special_tokens_of_an_older_tekken_json_are_those_of_mistral_common(tmp_path: Path) -> None:
    content: dict[str, Any] = tekken()
    del content["special_tokens"]
    content["config"] |= {
        "default_num_special_tokens": 22,
        "default_vocab_size": 280,
        "version": "v3",
    }
    path = tmp_path / "tekken.json"
    path.write_text(json.dumps(content))
    record, _ = describe_tokenizer(str(path), "auto", "</s>")
    ids = dict(record.special_tokens)
    assert (ids["[INST]"], ids["<pad>"], ids["[TOOL_CONTENT]"], ids["<SPECIAL_20>"]) == (
        *(3, 11, 19, 20),
    )
    with pytest.raises(UsageError, match=r"--tokenizer tekken.json: has no <\|endoftext\|>"):
        describe_tokenizer(str(path), "auto")


def test_special_tokens_of_a_tekken_json_have_their_rank_as_id(tmp_path: Path) -> None:
    ranks = ((0, "<unk>"), (5, "</s>"))
    content = tekken(special_tokens=[{"rank": rank, "token_str": text} for rank, text in ranks])
    (tmp_path / "tekken.json").write_text(json.dumps(content))
    ids = dict(read_tokenizer(str(tmp_path), "</s>").special_tokens)
    assert (ids["</s>"], ids["<SPECIAL_1>"], ids["<SPECIAL_6>"], len(ids)) == (5, 1, 6, SPECIALS)
    assert "<SPECIAL_5>" not in ids


def special(rank: object, text: object) -> dict[str, object]:
    return {"rank": rank, "token_str": text, "is_control": True}


@pytest.mark.parametrize(
    ("key", "change", "reason"),
    [
        ("special_tokens", lambda listed: [*listed, special(3, "<s>")], "not 10 different ones"),
        ("special_tokens", lambda listed: [*listed, special(2, "<x>")], "not 10 different ones"),
        ("special_tokens", lambda listed: [*listed, special(10, "<x>")], "not 10 different ones"),
        ("special_tokens", lambda listed: [*listed, special(3, None)], "`str`, got `null`.*token_"),
        ("special_tokens", lambda _: None, "has no special_tokens, and its version is 'v11'"),
        ("special_tokens", lambda _: 5, r"got `int` - at `\$.special_tokens`"),
        ("config", lambda config: config | {"default_num_special_tokens": 2}, "not 2 different"),
        ("config", lambda config: config | {"default_vocab_size": 5}, "not begin with -5 diff"),
        ("config", lambda config: config | {"default_vocab_size": 10**12}, "default_vocab_size"),
        ("config", lambda config: config | {"default_num_special_tokens": 10**12}, "<= 1048576"),
        ("config", lambda config: config | {"default_vocab_size": 20}, "begin with the 256 bytes"),
        ("config", lambda config: {"pattern": config["pattern"]}, "`default_vocab_size`"),
        ("config", lambda config: config | {"pattern": "("}, r"missing \)"),
        ("config", lambda config: config | {"pattern": r"(?V1)[a--b]"}, "Unknown group flag"),
        ("config", lambda config: config | {"pattern": 5}, "`str`, got `int`"),
        ("config", lambda _: {}, "missing required field `pattern`"),
        ("vocab", lambda vocab: vocab[:258], "begin with 260 different tokens in rank order"),
        ("vocab", lambda vocab: vocab[1:] + vocab[:1], "in rank order"),
        ("vocab", lambda vocab: [*vocab[:259], vocab[258] | {"rank": 259}], "260 different"),
        ("vocab", lambda vocab: [{"rank": 0}, *vocab[1:]], r"`token_bytes` - at `\$.vocab\[0\]`"),
        ("vocab", lambda vocab: [vocab[0] | {"token_bytes": "!!"}, *vocab[1:]], "base64"),
        (
            "vocab",
            lambda vocab: [vocab[0] | {"token_bytes": "BwcH"}, *vocab[1:]],
            "begin with the 256 bytes",
        ),
    ],
)
def test_a_damaged_tekken_json_is_one_sentence(
    key: str, change: Callable[[Any], object], reason: str, tmp_path: Path
) -> None:
    """What mistral-common rejects, and what no tekken.json has."""
    content = tekken()
    (tmp_path / "tekken.json").write_text(json.dumps(content | {key: change(content[key])}))
    with pytest.raises(UsageError, match=rf": not a tekken.json \(.*{reason}.*\)\.$"):
        describe_tokenizer(str(tmp_path), "auto", "</s>")


@pytest.mark.parametrize("text", ["", "[]", "5", "{}", "[" * 100_000])
@pytest.mark.parametrize("name", ["tekken.json", "tokenizer.json"])
def test_a_file_of_other_content_is_one_sentence(text: str, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=rf"--tokenizer {tmp_path}: not a {name} \("):
        describe_tokenizer(str(tmp_path), "auto")


@pytest.mark.parametrize("name", ["en-vocab.json", "my-merges.txt", "my-spiece.model.json"])
def test_a_tokenizer_json_may_have_any_other_name(name: str, tmp_path: Path) -> None:
    path = save(trained("gpt2"), tmp_path / name)
    assert read_tokenizer(f"{path}", None).name == name


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


@pytest.mark.parametrize(
    "content", ["{", "[" * 100_000, "[]", '{"added_tokens_decoder": {"0": "x"}}', '"x"']
)
def test_a_file_beside_that_is_none_is_said(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = save(trained("gpt2"), tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(content)
    (warning,) = warnings(path, caplog)
    assert "files beside it cannot be understood (" in warning


def test_a_file_beside_that_cannot_be_read_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = save(trained("gpt2"), tmp_path / "tokenizer.json")
    (tmp_path / "added_tokens.json").mkdir()
    (warning,) = warnings(path, caplog)
    assert "files beside it cannot be understood (" in warning


@pytest.mark.parametrize(("scheme", "has_space"), [("first", 1), ("always", 1), ("never", 0)])
def test_a_space_and_lower_case_that_a_file_writes_are_not_said(
    scheme: Literal["first", "always", "never"],
    has_space: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.add_special_tokens(["</s>"])
    path = save(tokenizer, tmp_path / "tokenizer.json")
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"add_prefix_space": bool(has_space), "do_lower_case": True}))
    assert warnings(path, caplog, "</s>") == []
    config.write_text(json.dumps({"add_prefix_space": not has_space, "do_lower_case": False}))
    (warning,) = warnings(path, caplog, "</s>")
    space = f"add_prefix_space {str(not has_space).lower()}"
    assert f"say {space}, do_lower_case false, which is not obeyed" in warning


@pytest.mark.parametrize("is_right", [True, False])
def test_the_wrong_split_rule_of_mistral_is_named(
    is_right: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = Tokenizer.from_str(trained("llama3").to_str())
    llama3 = json.loads(path_of("llama3").read_text())["pre_tokenizer"]
    regex = llama3["pretokenizers"][0]["pattern"]["Regex"]
    split = pre_tokenizers.Split(Regex(TEKKEN_SPLIT if is_right else regex), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    assert warnings(save(tokenizer, tmp_path / "other.json"), caplog) == []
    tokenizer.add_special_tokens(["[INST]", "[AVAILABLE_TOOLS]"])
    found = warnings(save(tokenizer, tmp_path / "tokenizer.json"), caplog)
    assert [
        "known to be wrong for Mistral's vocabularies" in x and "fix_mistral_regex=True" in x
        for x in found
    ] == ([] if is_right else [True])
