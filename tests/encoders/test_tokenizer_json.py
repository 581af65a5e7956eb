"""What a tokenizer.json may be, its record, and the texts that its encoder refuses."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from support.encoding import stored_encoder
from support.tokenizer_files import (
    EOT,
    added,
    arrow,
    oracle_documents,
    path_of,
    sample_texts,
    save,
    trained,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from fineshards.encoders.fill_in_middle import MiddleEncoder
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
from fineshards.storage.open import open_storage


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


def test_a_text_that_a_tokenizer_cannot_encode_is_refused(tmp_path: Path) -> None:
    """Golden texts too, which stop no tokenizer from starting."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="[UNK]"))
    tokenizer.add_special_tokens([EOT])
    encoder, _ = stored_encoder(save(tokenizer, tmp_path / "t.json"), tmp_path, "tokenizers")
    batch = encoder.encode(arrow(["a", "b", "a"]))
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
    encoder, record = stored_encoder(path, tmp_path, eot="</s>")
    assert dict(record.special_tokens) == {"<pad>": 0, "</s>": 1, "<unk>": 2, "<extra>": 35}
    assert (record.eot, record.size, record.special_tokens[0]) == (1, 36, ("</s>", 1))
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
    encoder, _ = stored_encoder(save(tokenizer, tmp_path / "t.json"), tmp_path, eot="end")
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
