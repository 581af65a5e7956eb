"""Tokens and masks of conversations, compared with transformers' apply_chat_template."""

import json
import random
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
from fineshards.chat.chat_template import find_chat_template
from fineshards.chat.conversation import canonical
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
