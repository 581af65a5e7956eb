"""Tokens and masks of conversations, compared with transformers' apply_chat_template."""

import json
import random
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import load_dataset, load_from_disk
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from olmo_core.data import NumpyFSLDataset
from olmo_core.data.utils import get_labels
from support.chat_families import FAMILIES, Family, made_up
from support.chats import Chats, build_chats, read_chats
from support.conversations import encoded
from support.dataset_contents import same
from transformers import PreTrainedTokenizerFast

import fineshards
from fineshards.chat.chat_template import ChatTemplate, find_chat_template
from fineshards.chat.conversation import BadConversation, canonical
from fineshards.chat.conversation_encoder import ConversationEncoder
from fineshards.chat.placed_tokens import EncodedConversation
from fineshards.encoders.tokenizer_files import read_tokenizer

# Of each family, without special strings in content and with them. More than 10,000 in all.
CONVERSATIONS = 470


def foreign(text: str) -> str:
    """Another string for a special token, which is in no content."""
    return f"⟪{text.strip('<|>')}⟫✂"


class Genuine:
    """transformers' tokenizer of a family.

    renamed: whether special tokens have other strings, in the tokenizer and in the template. Then
    the usual ones are ordinary text for it.
    """

    def __init__(self, family: Family, folder: Path, *, renamed: bool) -> None:
        content = (family.save(folder) / "tokenizer.json").read_text()
        template, strings = family.template, dict(family.special_strings)
        if renamed:
            names = {text: foreign(text) for text in family.special}
            parsed = json.loads(content)
            for token in parsed["added_tokens"]:
                token["content"] = names.get(token["content"], token["content"])
            content = json.dumps(parsed)
            for text, name in names.items():
                template = template.replace(text, name)
            strings = {key: names[text] for key, text in strings.items()}
        path = folder / f"renamed_{renamed}.json"
        path.write_text(content)
        self.family = family
        self.library = PreTrainedTokenizerFast(tokenizer_file=str(path), **strings)
        self.library.chat_template = template

    def encode(self, row: dict[str, Any]) -> tuple[list[int], list[int]]:
        """Tokens, and which of them are the assistant's."""
        found = self.library.apply_chat_template(
            row["messages"],
            tools=row.get("tools"),
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        return found["input_ids"], found["assistant_masks"]


def mask(found: EncodedConversation) -> list[int]:
    bits = np.zeros(len(found.tokens), int)
    for begin, end in found.learned:
        bits[begin:end] = 1
    return bits.tolist()


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_and_masks_are_those_of_transformers(
    name: str, special: bool, tmp_path: Path
) -> None:
    family = FAMILIES[name]
    rng = random.Random(f"{name} {special}")
    vocabulary = read_tokenizer(str(family.save(tmp_path)), family.eot)
    template = find_chat_template("tokenizer", str(tmp_path))
    encoder = ConversationEncoder(template, vocabulary, ("assistant",))
    genuine = Genuine(family, tmp_path, renamed=special)
    # The EOT that the dataset puts before each document is the template's own.
    starts_with_eot = family.eot == family.bos
    for _ in range(CONVERSATIONS):
        row = made_up(family, rng, special=special)
        expected, bits = genuine.encode(row)
        found = encoded(encoder, canonical(row))
        assert found.tokens.tolist() == expected[starts_with_eot:], row
        assert mask(found) == bits[starts_with_eot:], row


SPECIAL = re.compile(r"<\|[^|{}' ]*\|>|<｜[^｜' ]*｜>|<(?:start|end)_of_turn>|<turn\|>")
PIECES = [
    "Hello",
    " world",
    "\n",
    "two\nlines",
    "  x",
    "é",
    "日本語",
    "1 < 2",
    "<b>html</b>",
    "Yes.",
]
# TRL also learns the header of some families, a <think> that the request has, and whitespace.
MORE = re.compile(
    r"(?:<｜Assistant｜>|<｜tool▁outputs▁end｜>|<\|start\|>assistant|\n)?"
    r"(?:<think>\n(?:\n</think>\n\n)?)?"
)


def thoughtful(rng: random.Random) -> dict[str, Any]:
    """A conversation with thoughts, inside content or not, or with calls of a tool."""

    def text() -> str:
        pieces = [*rng.choices(PIECES, k=rng.randrange(6)), "."]
        return "".join(rng.sample(pieces, len(pieces)))

    kind = rng.choice(["plain", "thoughts", "inside", "tools"])
    messages: list[dict[str, Any]] = []
    for _ in range(rng.randrange(1, 4)):
        messages.append({"role": "user", "content": text()})
        if kind == "tools":
            call = {"name": "f", "arguments": {"a": text(), "b": 1}}
            calls = [{"type": "function", "id": "abcdefghi", "function": call}]
            messages.append({"role": "assistant", "content": "", "tool_calls": calls})
            messages.append({"role": "tool", "content": text(), "tool_call_id": "abcdefghi"})
        answer = {"role": "assistant", "content": text()}
        if kind == "thoughts":
            answer["reasoning_content"] = text()
        elif kind == "inside":
            answer["content"] = f"<think>\n{text()}\n</think>\n\n{answer['content']}"
        messages.append(answer)
    return {"messages": messages}


@pytest.mark.parametrize(
    "name",
    [
        *(
            "cohere",
            "cohere2",
            "deepseek_r1_distill",
            "deepseekv3",
            "gemma",
            "gemma3",
            "idefics3",
            "lfm2_v2",
            "llama3",
        ),
        *(
            "muse_glimmer",
            "nemotron_3_nano",
            "nemotron_3_super",
            "nemotron_3_ultra",
            "phi3",
            "phi3_5",
            "qwen2_5",
        ),
        *("qwen3", "qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "qwen3_8", "qwen3_instruct_2507"),
    ],
)
def test_genuine_templates_show_the_turns_that_trl_marks_in_them(name: str, tmp_path: Path) -> None:
    """TRL's copies for training keep the thoughts of earlier answers; those are not compared.

    Both have the tokens of transformers, and the copies its masks.
    """
    spec = find_spec("trl")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0]) / "chat_templates"
    texts = [(folder / f"{name}{end}.jinja").read_text() for end in ("", "_training")]
    special = tuple(dict.fromkeys([*SPECIAL.findall(texts[0]), "<s>", "<|endoftext|>"]))
    family = Family(name, "gpt2", special, "<s>", "<|endoftext|>")
    tokenizer = family.tokenizer()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabulary = read_tokenizer(str(tmp_path / "tokenizer.json"), family.eot)
    library = PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), **dict(family.special_strings)
    )
    if name == "muse_glimmer":  # falls back to no date where there is no clock
        texts = [
            text.replace("strftime_now is defined", "strftime_now is defined and false")
            for text in texts
        ]
    templates = [ChatTemplate(text, family.special_strings) for text in texts]
    genuine, marked = (
        ConversationEncoder(template, vocabulary, ("assistant",)) for template in templates
    )
    rng, compared, refused = random.Random(name), 0, []
    for _ in range(60):
        conversation = thoughtful(rng)
        row = canonical(conversation)
        try:
            expected, document = encoded(marked, row), encoded(genuine, row)
        except BadConversation as error:
            refused.append(str(error))
            continue
        plain, tagged = (
            library.apply_chat_template(
                conversation["messages"],
                chat_template=text,
                return_dict=True,
                return_assistant_tokens_mask=is_tagged,
            )
            for text, is_tagged in zip(texts, (False, True), strict=True)
        )
        assert document.tokens.tolist() == plain["input_ids"]
        assert expected.tokens.tolist() == tagged["input_ids"]
        assert mask(expected) == tagged["assistant_masks"]
        if document.tokens.tolist() != expected.tokens.tolist():
            assert name.startswith(("deepseek_r1", "qwen3"))
            continue
        compared += 1
        assert len(document.learned) == len(expected.learned)
        for (begin, end), (first, last) in zip(document.learned, expected.learned, strict=True):
            before, after = document.tokens[first:begin], document.tokens[end:last]
            assert first <= begin < end <= last
            assert MORE.fullmatch(tokenizer.decode(before, skip_special_tokens=False))
            assert tokenizer.decode(after, skip_special_tokens=False).strip() == ""
    assert compared > 10
    assert all(reason.startswith("the chat template refuses it (") for reason in refused)


LENGTH = 128


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Chats:
    return read_chats(build_chats(tmp_path_factory.mktemp("chats")))


def test_olmo_learns_from_what_its_label_masks_say(chats: Chats, tmp_path: Path) -> None:
    fineshards.export(chats.folder, tmp_path / "x", "olmo")
    path = tmp_path / "x/train/part-0-00000.npy"
    loader = NumpyFSLDataset(
        path,
        sequence_length=LENGTH,
        pad_token_id=chats.eot,
        eos_token_id=chats.eot,
        vocab_size=200_000,
        dtype=np.uint32,
        label_mask_paths=[tmp_path / "x/label_mask/train/part-0-00000.npy"],
    )
    loader.work_dir = tmp_path
    loader.prepare()
    documents, learned = chats.sided("train", "end")
    tokens, bits = np.concatenate(documents).astype(np.int64), np.concatenate(learned)
    assert len(loader) == len(tokens) // LENGTH
    for number in range(len(loader)):
        batch = {
            name: value[None] for name, value in loader[number].items() if torch.is_tensor(value)
        }
        labels = get_labels(batch)[0].numpy()
        here = slice(number * LENGTH + 1, (number + 1) * LENGTH)
        assert np.array_equal(labels[:-1], np.where(bits[here], tokens[here], -100))


def test_megatrons_builder_writes_the_same_loss_masks(chats: Chats, tmp_path: Path) -> None:
    """The pair of files that ApertusSFTDataset of swiss-ai/Megatron-LM reads: 1 at each target."""
    fineshards.export(chats.folder, tmp_path / "x", "megatron")
    documents, learned = chats.sided("train", "end")
    builder = IndexedDatasetBuilder(str(tmp_path / "own.bin"), dtype=np.float32)
    for bits in learned:
        builder.add_document(torch.from_numpy(bits.astype(np.float32)), [len(bits)])
    builder.finalize(str(tmp_path / "own.idx"))
    for kind in (".bin", ".idx"):
        found = (tmp_path / f"x/train_0000.loss_mask{kind}").read_bytes()
        assert found == (tmp_path / f"own{kind}").read_bytes()
    read = IndexedDataset(str(tmp_path / "x/train_0000"))
    assert same([np.array(read[number]) for number in range(len(read))], documents)


def test_datatroves_writer_writes_the_same_loss_masks(chats: Chats, tmp_path: Path) -> None:
    fineshards.export(chats.folder, tmp_path / "x", "datatrove")
    writer = TokenizedFile(
        str(tmp_path), "own.ds", save_index=True, save_loss_metadata=True, token_size=4
    )
    for tokens, bits in zip(*chats.sided("train", "end"), strict=True):
        writer.write(tokens.tolist(), bits.astype(np.float64))
    writer.close()
    for kind in ("", ".index", ".loss"):
        found = (tmp_path / f"x/train/00000_unshuffled.ds{kind}").read_bytes()
        assert found == (tmp_path / f"own.ds{kind}").read_bytes()


@pytest.mark.parametrize("to", ["parquet", "hf-arrow"])
def test_datasets_has_labels_that_transformers_ignores(
    chats: Chats, to: str, tmp_path: Path
) -> None:
    fineshards.export(chats.folder, tmp_path / "x", to)
    load = load_dataset if to == "parquet" else load_from_disk
    for split in ("test", "train"):
        rows = load(str(tmp_path / "x"))[split]
        assert same([np.array(row) for row in rows["input_ids"]], chats.documents[split])
        for row, tokens, bits in zip(
            rows["labels"], chats.documents[split], chats.learned[split], strict=True
        ):
            assert np.array_equal(row, np.where(bits, tokens.astype(np.int64), -100))
