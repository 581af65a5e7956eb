"""tokenizer.json files: exactly the tokens of `tokenizers`, with gigatoken or without."""

import json
import logging
import re
import unicodedata
from functools import lru_cache
from pathlib import Path

import gigatoken
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support.fresh_interpreter import run_program
from support.tokenizer_files import (
    ADDED,
    EOT,
    SPECIALS,
    STYLES,
    arrow,
    oracle_documents,
    path_of,
    sample_texts,
    save,
    trained,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from fineshards.encoders.checked_encoder import GOLDEN_TEXTS
from fineshards.encoders.encoder import Encoder
from fineshards.encoders.fill_in_middle import MiddleEncoder
from fineshards.encoders.gigatoken.bounded_tokenizer import BoundedTokenizer
from fineshards.encoders.gigatoken.differences import SchemeTable, load_table
from fineshards.encoders.gigatoken.exact_encoder import (
    ExactEncoder,
    gigatoken_json,
    obstacles,
    trial,
)
from fineshards.encoders.loading import (
    describe_tokenizer,
    encoder_of_vocabulary,
    load_encoder,
    load_reference,
)
from fineshards.encoders.tokenizer_files import read_tokenizer
from fineshards.encoders.tokenizer_json import TokenizerJson
from fineshards.errors import FineshardsError, UsageError
from fineshards.shards.job.settings import TOKENIZER_JSON_NAME, FillInMiddle
from fineshards.shards.job.settings import Tokenizer as Record
from fineshards.storage.open import open_storage
from tools import scheme_differences
from tools.huggingface_schemes import PIPELINES


@lru_cache
def loaded(style: str) -> tuple[Encoder, Record]:
    record, data = describe_tokenizer(str(path_of(style)), "gigatoken")
    storage = open_storage(str(path_of(style).parent / "out"))
    storage.write(TOKENIZER_JSON_NAME, data)
    return load_encoder(record, storage, "gigatoken"), record


def assert_exact(style: str, texts: list[str]) -> int:
    """Compares with the library; returns the number of texts that the reference encoded."""
    encoder, _ = loaded(style)
    batch = encoder.encode(arrow(texts))
    expected = oracle_documents(path_of(style), EOT, texts)
    assert batch.tokens.dtype == np.uint32
    assert batch.offsets.dtype == np.int64
    found = [batch.document(index).tolist() for index in range(len(texts))]
    wrong = [text for text, a, b in zip(texts, found, expected, strict=True) if a != b]
    assert wrong == []
    return batch.by_reference


@pytest.mark.long
@pytest.mark.parametrize("style", STYLES)
def test_the_fast_path_is_exact_on_the_whole_sample(style: str) -> None:
    encoder, record = loaded(style)
    assert isinstance(encoder, ExactEncoder)
    assert "gigatoken" in encoder.name
    assert "tokenizers" in encoder.name
    by_reference = assert_exact(style, [*sample_texts(), *GOLDEN_TEXTS])
    assert by_reference < 10
    assert record.size == trained(style).get_vocab_size()


# Texts that split, compose or are added tokens, and characters newer than the libraries' Unicode.
HOSTILE = [
    *" \n\r\t\u00a0\u3000'sStTmMdDlLvVrReEſK'aA1½١.,/<|>_😀\u200d\x00\x85\ufeff中ǅʰ",
    *"\u0301\u0323\u0345\u0334e\u0301ñn\u0303Å\u212bÅ한각\u1112\u1161\u11ab\u0958\u2126",
    *"\u088f\u0c5c\u0cdc\ua7ce\U00010940\U00011db0\U000187f8\U0001e6c0\U000323b0",
    *"\u0378\u0897\U00011935\U00011930\U00016d67\U00016d63\U0001611e\U000e0fff\U0010ffff\ue000",
    *SPECIALS,
    *ADDED,
    "<|endof",
    "<tool_",
    "call>",
    " " * 40,
    "\n" * 9,
    "the ",
    "don't",
    "1234567",
]


@pytest.mark.parametrize("style", STYLES)
@hypothesis_settings(max_examples=30)
@given(
    texts=st.lists(
        st.one_of(
            st.lists(st.sampled_from(HOSTILE), max_size=30).map("".join),
            st.text(max_size=40),
            st.text(max_size=20).map(lambda text: unicodedata.normalize("NFD", text)),
        ),
        max_size=25,
    )
)
def test_the_fast_path_is_exact_on_hostile_texts(style: str, texts: list[str]) -> None:
    assert_exact(style, texts)


@pytest.mark.long
@pytest.mark.parametrize("style", ["gpt2", "qwen2"])
def test_the_fast_path_is_exact_on_every_character_of_the_lower_planes(style: str) -> None:
    codes = [code for code in range(0x20000) if not 0xD800 <= code < 0xE000]
    texts = [f"a{chr(code)}1{chr(code)}A\u0301" for code in codes]
    encoder, _ = loaded(style)
    batch, reference = (x.encode(arrow(texts)) for x in (encoder, encoder.reference))
    assert np.array_equal(batch.offsets, reference.offsets)
    assert np.array_equal(batch.tokens, reference.tokens)
    assert 0 < batch.by_reference < 2_000


@pytest.mark.long
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("unit", ["a", " ", "\n", "1", "中", "\u0301", "=-", "<tool_call>"])
def test_the_fast_path_is_exact_on_long_runs(style: str, unit: str) -> None:
    assert_exact(style, [unit * (200_000 // len(unit)) + end for end in ("", "a")])


@pytest.mark.parametrize("style", STYLES)
def test_special_tokens_in_a_text_are_text_and_other_added_tokens_match(style: str) -> None:
    encoder, record = loaded(style)
    text = "".join(SPECIALS) + "<tool_call>x</tool_call>"
    tokens = encoder.encode(arrow([text])).tokens.tolist()
    ids = dict(record.special_tokens)
    assert sorted(ids) == sorted(SPECIALS)
    assert tokens[0] == record.eot == ids[EOT]
    assert not set(ids.values()) & set(tokens[1:])
    for added in ADDED:
        assert trained(style).token_to_id(added) in tokens
    assert encoder.decode(np.array(tokens, np.uint32)) == text


def test_ignore_merges_matches_tokens_that_no_merge_produces() -> None:
    content = json.loads(path_of("llama3").read_text())["model"]
    merged = {"".join(pair) for pair in content["merges"]}
    others = [token for token in content["vocab"] if len(token) > 1 and token not in merged]
    assert len(others) > 200
    words = [token for token in others if token.isascii() and token.isalpha()]
    encoder, _ = loaded("llama3")
    batch = encoder.encode(arrow(words))
    assert np.diff(batch.offsets).tolist() == [2] * len(words)
    assert assert_exact("llama3", words) == 0


@pytest.mark.parametrize("change", ["later", "swapped"])
def test_declared_ids_that_the_library_does_not_honour_are_refused(
    change: str, tmp_path: Path
) -> None:
    """It numbers added tokens by their order, so shards would hold ids that no file declares."""
    content = json.loads(path_of("gpt2").read_text())
    tokens = content["added_tokens"]
    first, second = tokens[:2]
    if change == "later":
        first["id"] += 100
    else:
        first["id"], second["id"] = second["id"], first["id"]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    given = Tokenizer.from_file(str(path)).token_to_id(first["content"])
    assert given != first["id"]
    with pytest.raises(UsageError) as caught:
        describe_tokenizer(str(path), "auto")
    assert f"declares id {first['id']} for the added token {first['content']!r}, " in str(
        caught.value
    )
    assert f"gives it id {given}, " in str(caught.value)


def test_why_an_id_is_not_honoured_is_said(tmp_path: Path) -> None:
    """A token of the vocabulary keeps that id, and one without text is ignored."""
    content = json.loads(path_of("gpt2").read_text())
    word = next(text for text, id_ in content["model"]["vocab"].items() if id_ == 700)
    for text, reason in (
        (word, f"{word!r}, but the vocabulary has this token with id 700. Declare that id."),
        ("", "'', but the tokenizers library ignores this token. Remove it from added_tokens."),
    ):
        tokens = [*content["added_tokens"], added(text)]
        path = save(trained("gpt2"), tmp_path / "t.json", added_tokens=tokens)
        message = f"--tokenizer {path}: declares id 2005 for the added token {reason}"
        with pytest.raises(UsageError, match=re.escape(message)):
            describe_tokenizer(str(path), "auto")


def test_the_name_of_an_encoding_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(trained("gpt2"), tmp_path / "mine.json").rename(tmp_path / "cl100k_base")
    assert describe_tokenizer("cl100k_base", "auto")[0].kind == "tiktoken"
    assert describe_tokenizer("./cl100k_base", "auto")[0].kind == "huggingface"


def test_the_record_has_no_folder_and_the_data_is_the_user_s_file(tmp_path: Path) -> None:
    path = save(trained("gpt2"), tmp_path / "somewhere/mine.json")
    path.write_text(json.dumps(json.loads(path.read_text()), indent=3))
    record, data = describe_tokenizer(str(path), "auto")
    assert data == path.read_bytes()
    assert (record.kind, record.name, record.file) == (
        "huggingface",
        "mine.json",
        TOKENIZER_JSON_NAME,
    )
    assert "somewhere" not in repr(record)
    other, _ = describe_tokenizer(str(save(trained("gpt2"), tmp_path / "b/mine.json")), "auto")
    assert record.pattern == other.pattern
    assert record.vocabulary_sha256 != other.vocabulary_sha256
    storage = open_storage(str(tmp_path / "out"))
    storage.write(TOKENIZER_JSON_NAME, data)
    reference = load_reference(record, storage)
    assert reference.reference is reference
    assert reference.encode(arrow([])).offsets.tolist() == [0]
    storage.write(TOKENIZER_JSON_NAME, data + b" ")
    with pytest.raises(FineshardsError, match=r"metadata/tokenizer.json has sha256"):
        load_encoder(record, storage, "auto")


def test_steps_that_change_no_ids_are_ignored(tmp_path: Path) -> None:
    """Templates, truncation and padding are for models, not for a stream of documents."""
    tokenizer = Tokenizer.from_str(trained("gpt2").to_str())
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=9)
    path = save(tokenizer, tmp_path / "tokenizer.json")
    content = TokenizerJson("x", path.read_bytes(), EOT)
    text = sample_texts()[0]
    ids = content.library.encode(text, add_special_tokens=False).ids
    assert [[content.eot, *ids]] == oracle_documents(path_of("gpt2"), EOT, [text])


def test_the_trial_detects_a_different_merge() -> None:
    """A vocabulary with which gigatoken's tokens would differ is detected before any text."""
    tokenizer = read_tokenizer(str(path_of("gpt2")), None)
    assert obstacles(tokenizer) == []
    encoder, _ = loaded("gpt2")
    assert trial(tokenizer, encoder) is None
    other = json.loads(gigatoken_json(tokenizer))
    assert other["added_tokens"] == []
    del other["model"]["merges"][100]
    fast = BoundedTokenizer(
        lambda: gigatoken.Tokenizer.from_json(json.dumps(other).encode()), tokenizer.eot
    )
    scheme = load_table().schemes["huggingface gpt2"]
    assert trial(tokenizer, ExactEncoder(fast, encoder.reference, scheme)) is not None


def test_a_special_token_that_merges_make_is_not_in_documents(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = json.loads(path_of("gpt2").read_text())["model"]
    word, id_ = max(model["vocab"].items(), key=lambda item: item[1])
    special = added(word.replace("Ġ", " "), special=True) | {"id": id_, "content": word}
    tokens = json.loads(path_of("gpt2").read_text())["added_tokens"]
    path = save(trained("gpt2"), tmp_path / "t.json", added_tokens=[special, *tokens])
    tokenizer = read_tokenizer(str(path), None)
    with caplog.at_level(logging.WARNING, "fineshards"):
        encoder = encoder_of_vocabulary(tokenizer, "auto")
    assert "gigatoken encodes" in caplog.text
    text = word.replace("Ġ", " ")
    batch = encoder.encode(arrow(["a", text, ""]))
    assert [index for index, _ in batch.refused] == [1]


@pytest.mark.long
@pytest.mark.parametrize("name", PIPELINES)
def test_the_table_lists_where_the_libraries_differ(name: str) -> None:
    """Checks both ends of every range of the table, and the code points next to them."""
    scheme = load_table().schemes[name]
    ends = {end + step for pair in scheme.ranges for end in pair for step in (-1, 0, 1)}
    codes = sorted(code for code in ends if not 0xD800 <= code < 0xE000)
    contexts = scheme_differences.CONTEXTS + (
        scheme_differences.NORMAL_CONTEXTS if "qwen" in name else ""
    )
    texts = [contexts.replace("_", chr(code)) for code in codes]
    differing = {codes[index] for index in scheme_differences._differing_texts(name, texts)}
    inside = {code for code in codes if any(a <= code <= b for a, b in scheme.ranges)}
    assert differing <= inside
    # Compositions differ only in pairs; all other code points differ alone.
    assert len(inside - differing) <= (40 if "qwen" in name else 0)
    assert all(first >= 128 for first, _ in scheme.ranges)


def test_versions_of_one_reference_do_not_affect_the_other() -> None:
    table = load_table()
    assert table.other_versions("tiktoken") == table.other_versions("tokenizers") == []
    changed = SchemeTable(table.versions | {"tokenizers": "0.1"}, table.schemes)
    assert changed.other_versions("tiktoken") == []
    (reason,) = changed.other_versions("tokenizers")
    assert reason.startswith("tokenizers is 0.")
    assert reason.endswith(", not 0.1")


def test_tiktoken_needs_no_tokenizers() -> None:
    program = """
import sys
sys.modules["tokenizers"] = None
from fineshards.encoders.loading import describe_tokenizer
record, _ = describe_tokenizer("cl100k_base", "gigatoken")
print(record.kind)
"""
    done = run_program(program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "tiktoken\n"


# ---- tokenizers without a fast path, and files that are refused


def reference_only(path: Path, caplog: pytest.LogCaptureFixture, reason: str) -> Encoder:
    """Checks that only the library encodes, and that one warning gives the reason."""
    record, data = describe_tokenizer(str(path), "auto")
    with pytest.raises(UsageError, match=r"--tokenizer_engine gigatoken: cannot be used for "):
        describe_tokenizer(str(path), "gigatoken")
    storage = open_storage(str(path.parent / "out"))
    storage.write(TOKENIZER_JSON_NAME, data)
    with caplog.at_level(logging.WARNING, "fineshards"):
        encoder = load_encoder(record, storage, "auto")
    assert [reason in line.getMessage() for line in caplog.records] == [True]
    assert "is encoded with tokenizers only" in caplog.text
    assert encoder.reference is encoder
    texts = ["a b", "the <|endoftext|> end.", *sample_texts()[:20]]
    batch = encoder.encode(arrow(texts))
    expected = oracle_documents(path, EOT, texts)
    assert [batch.document(index).tolist() for index in range(len(texts))] == expected
    assert batch.by_reference == len(texts)
    return encoder


def added(content: str = "<extra>", **flags: bool) -> dict[str, object]:
    """One more added token for the trained file."""
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"id": 2_005, "content": content} | dict.fromkeys(names, False) | flags


@pytest.mark.parametrize(
    ("style", "token"),
    [
        ("gpt2", added(single_word=True)),
        ("qwen2", added(normalized=True)),
    ],
)
def test_added_tokens_that_no_search_finds(
    style: str, token: dict[str, object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = json.loads(path_of(style).read_text())["added_tokens"]
    path = save(trained(style), tmp_path / "t.json", added_tokens=[*tokens, token])
    reference_only(path, caplog, "'<extra>' matches only as a word, or after normalization")


def test_many_added_tokens_are_left_to_the_reference(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a vocabulary that was extended for another language."""
    tokens = json.loads(path_of("gpt2").read_text())["added_tokens"]
    tokens += [added(f"w{number}w") | {"id": 2_005 + number} for number in range(501)]
    path = save(trained("gpt2"), tmp_path / "t.json", added_tokens=tokens)
    reference_only(path, caplog, f"it has {501 + len(ADDED)} added tokens")


@pytest.mark.parametrize(
    "token",
    [
        added(lstrip=True),
        added(rstrip=True),
        added("|><tool", normalized=True),
        added("im_end"),
        added(">x"),
        added("  "),
        added("éé"),
        added("+*("),
        added("\n\n"),
        added("a\tb"),
    ],
    ids=lambda token: f"{token['content']}",
)
def test_documents_with_an_added_token_go_to_the_reference(
    token: dict[str, object], tmp_path: Path
) -> None:
    """However it matches, and whatever it overlaps: gigatoken knows no added tokens."""
    tokens = json.loads(path_of("gpt2").read_text())["added_tokens"]
    path = save(trained("gpt2"), tmp_path / "t.json", added_tokens=[*tokens, token])
    tokenizer = read_tokenizer(str(path), None)
    encoder = encoder_of_vocabulary(tokenizer, "gigatoken")
    text = str(token["content"])
    contexts = ["{0}", "a{0}b", " {0} ", "<|im_end|>x<tool_call>{0}>x", "a {0}\n<|im_end{0}|>"]
    texts = [context.format(text) for context in contexts] + ["a b <tool", "x", "", text[:-1]]
    batch = encoder.encode(arrow(texts))
    expected = oracle_documents(path, EOT, texts)
    assert [batch.document(index).tolist() for index in range(len(texts))] == expected
    assert batch.by_reference == len(contexts)


def test_merges_in_another_order_than_the_ids(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    merges = json.loads(path_of("gpt2").read_text())["model"]["merges"]
    shuffled = {"merges": merges[::2] + merges[1::2]}
    path = save(trained("gpt2"), tmp_path / "t.json", model=shuffled)
    reference_only(path, caplog, "not in the order of the ids")


def test_a_vocabulary_without_some_bytes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = json.loads(path_of("gpt2").read_text())["model"]
    vocab = {text.replace("Ď", "一"): id_ for text, id_ in model["vocab"].items()}
    path = save(trained("gpt2"), tmp_path / "t.json", model={"vocab": vocab})
    reference_only(path, caplog, "1 of the 256 bytes have no token")


@pytest.mark.parametrize("reason", ["merge listed twice", "splitting"])
def test_other_reasons_for_the_reference_only(
    reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = json.loads(path_of("gpt2").read_text())
    if reason == "splitting":
        step = {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}],
        }
        step["pretokenizers"].append(content["pre_tokenizer"])
        path = save(trained("gpt2"), tmp_path / "t.json", pre_tokenizer=step)
        reference_only(path, caplog, "has not been compared")
    else:
        merges = content["model"]["merges"]
        path = save(trained("gpt2"), tmp_path / "t.json", model={"merges": [*merges, merges[-1]]})
        reference_only(path, caplog, "lists a merge twice")


def test_other_models_are_encoded_by_their_library(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = {word: id_ for id_, word in enumerate(["[UNK]", "the", "a", "b", "end", "."])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([EOT])
    path = save(tokenizer, tmp_path / "t.json")
    encoder = reference_only(path, caplog, "has not been compared")
    assert encoder.encode(arrow(["the end"])).tokens.tolist() == [6, 1, 4]
    assert encoder.decode(np.array([6, 1, 4], np.uint32)) == "the end"


def test_a_text_that_a_tokenizer_cannot_encode_is_refused(tmp_path: Path) -> None:
    """Golden texts too, which stop no tokenizer from starting."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="[UNK]"))
    tokenizer.add_special_tokens([EOT])
    record, data = describe_tokenizer(str(save(tokenizer, tmp_path / "t.json")), "tokenizers")
    storage = open_storage(str(tmp_path / "out"))
    storage.write(TOKENIZER_JSON_NAME, data)
    batch = load_encoder(record, storage, "auto").encode(arrow(["a", "b", "a"]))
    assert (batch.tokens.tolist(), batch.offsets.tolist()) == ([1, 0, 1, 0], [0, 2, 2, 4])
    ((index, reason),) = batch.refused
    assert index == 1
    assert re.fullmatch(r"tokenizers 0\..* cannot encode it \(.*UNK.*\)", reason)


def broken(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", r"not a tokenizer.json \(Expecting"),
        (b"\xff\xfe", r"not a tokenizer.json"),
        (b"[]", r"not a tokenizer.json"),
        (b"{}", r"not a tokenizer.json \(it has no model\)"),
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
def test_files_that_are_not_tokenizers_are_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = broken(tmp_path, content)
    with pytest.raises(UsageError, match=message) as caught:
        describe_tokenizer(path, "auto")
    assert str(caught.value).startswith(f"--tokenizer {path}: ")


def test_flags_that_do_not_fit_are_explained(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--tokenizer missing.json: cannot be read \(No such"):
        describe_tokenizer("missing.json", "auto")
    path = str(path_of("gpt2"))
    listed = r"Its special tokens are <\|endoftext\|>, <\|im_start\|>, <\|im_end\|>\."
    with pytest.raises(UsageError, match=rf"--eot_token <eos>: not a special token of .*{listed}"):
        describe_tokenizer(path, "auto", "<eos>")
    with pytest.raises(UsageError, match=r"--eot_token <tool_call>: not a special token"):
        describe_tokenizer(path, "auto", "<tool_call>")
    with pytest.raises(UsageError, match=r"engine tiktoken: cannot be used for gpt2.json, which"):
        describe_tokenizer(path, "tiktoken")
    with pytest.raises(UsageError, match=r"--tokenizer_engine tokenizers: .*cl100k.* tiktoken"):
        describe_tokenizer("cl100k_base", "tokenizers")
    with pytest.raises(UsageError, match=r"--eot_token x: not a special token of cl100k_base"):
        describe_tokenizer("cl100k_base", "auto", "x")
    dropout = save(trained("gpt2"), tmp_path / "d.json", model={"dropout": 0.1})
    with pytest.raises(UsageError, match=r"dropout 0.1, so a text has different tokens each time"):
        describe_tokenizer(str(dropout), "auto")
    without = save(
        trained("gpt2"), tmp_path / "w.json", added_tokens=[added(special=True) | {"id": 2_000}]
    )
    with pytest.raises(UsageError, match=r"no <\|endoftext\|> .* --eot_token\. .* are <extra>\."):
        describe_tokenizer(str(without), "auto")
    none = save(trained("gpt2"), tmp_path / "n.json", added_tokens=[])
    with pytest.raises(UsageError, match=r"--eot_token\. It has no special tokens"):
        describe_tokenizer(str(none), "auto")


@pytest.mark.parametrize("is_special", [True, False])
def test_an_added_token_with_the_id_of_another_token_is_refused(
    is_special: bool, tmp_path: Path
) -> None:
    """If ids are missing, the library gives added tokens ids of the vocabulary."""
    content = json.loads(path_of("gpt2").read_text())
    vocab = content["model"]["vocab"]
    last = max(vocab, key=lambda text: vocab[text])
    del vocab["Ď"]
    end, *others = ({**token, "id": token["id"] - 1} for token in content["added_tokens"])
    tokens = [added(special=is_special) | {"id": end["id"]}]
    if is_special:
        tokens = [end, *others]
    path = save(trained("gpt2"), tmp_path / "t.json", model={"vocab": vocab}, added_tokens=tokens)
    message = (
        f"--tokenizer {path}: the added token '{tokens[0]['content']}' has id {vocab[last]}, which "
        f"'{last}' in the vocabulary also has, so text could become this token. Give"
    )
    for eot in (None, "<|im_end|>"):
        with pytest.raises(UsageError, match=re.escape(message)):
            describe_tokenizer(str(path), "auto", eot)


def test_another_eot_of_a_tiktoken_encoding() -> None:
    record, _ = describe_tokenizer("cl100k_base", "auto", "<|fim_prefix|>")
    assert record.eot == 100_258
    assert record.golden_sha256 != describe_tokenizer("cl100k_base", "auto")[0].golden_sha256


def unigram(tmp_path: Path) -> Path:
    """Like T5's tokenizer: the first entries of the vocabulary are special tokens."""
    entries = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("▁the", -3.0)]
    entries += [(character, -5.0) for character in "abcdefghijklmnopqrstuvwxyz.</>"]
    tokenizer = Tokenizer(models.Unigram(entries, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>", "<extra>"])
    return save(tokenizer, tmp_path / "spiece.json")


def test_unigram_models_refuse_texts_with_special_tokens(tmp_path: Path) -> None:
    """They match all entries of their vocabulary in any text. The unknown token stands for text."""
    path = unigram(tmp_path)
    record, data = describe_tokenizer(str(path), "auto", "</s>")
    assert dict(record.special_tokens) == {"<pad>": 0, "</s>": 1, "<unk>": 2, "<extra>": 35}
    assert (record.eot, record.size, record.special_tokens[0]) == (1, 36, ("</s>", 1))
    storage = open_storage(str(tmp_path / "out"))
    storage.write(TOKENIZER_JSON_NAME, data)
    encoder = load_encoder(record, storage, "auto")
    texts = ["the end.", "a</s> b", "", "<unk> and A<extra>", "b<pad>"]
    batch = encoder.encode(arrow(texts))
    for index in (0, 2, 3):
        assert [batch.document(index).tolist()] == oracle_documents(path, "</s>", [texts[index]])
    assert batch.refused == (
        (1, "the tokenizer encodes part of it as the special token </s>"),
        (4, "the tokenizer encodes part of it as the special token <pad>"),
    )
    assert encoder.decode(batch.document(0)) == "the end."


def test_no_special_token_occurs_within_a_document(tmp_path: Path) -> None:
    """A word-level model matches its tokens in any text, with every setting."""
    tokenizer = Tokenizer(
        models.WordLevel({"[UNK]": 0, "end": 1, "a": 2, "pad": 3}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["[UNK]", "end", "pad"])
    record, data = describe_tokenizer(str(save(tokenizer, tmp_path / "t.json")), "auto", "end")
    storage = open_storage(str(tmp_path / "out"))
    storage.write(TOKENIZER_JSON_NAME, data)
    encoder = load_encoder(record, storage, "auto")
    assert encoder.encode(arrow(["a b"])).tokens.tolist() == [1, 2, 0]
    batch = encoder.encode(arrow(["a end", "end", "a", "pad"]))
    assert (batch.tokens.tolist(), batch.offsets.tolist()) == ([1, 2], [0, 0, 0, 2, 2])
    assert batch.refused == tuple(
        (index, f"the tokenizer encodes part of it as the special token {text}")
        for index, text in ((0, "end"), (1, "end"), (3, "pad"))
    )


def test_a_refused_part_refuses_the_whole_document(tmp_path: Path) -> None:
    """With fill-in-the-middle, whichever of the three parts it is in; others are unchanged."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "end": 2}))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["end"])
    path = save(tokenizer, tmp_path / "t.json")
    plain = encoder_of_vocabulary(read_tokenizer(str(path), "end"))
    encoder = MiddleEncoder(plain, FillInMiddle("1/2", "1/2", prefix=10, middle=11, suffix=12))
    texts = ["a b", "a end b", "", "end", "b a"] * 20
    rows = np.arange(len(texts))
    batch = encoder.encode_at(arrow(texts), 0, rows)
    refused = dict(batch.refused)
    lengths = np.diff(batch.offsets)
    assert (lengths == 0).tolist() == [index in refused for index in range(len(texts))]
    assert refused.keys() == {row for row in rows.tolist() if "end" in texts[row]}
    alone = [encoder.encode_at(arrow([texts[row]]), 0, rows[row : row + 1]) for row in rows]
    assert [one.tokens.tolist() for one in alone] == [batch.document(row).tolist() for row in rows]
