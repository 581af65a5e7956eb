"""Tokens and masks of conversations, compared with transformers' apply_chat_template."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.chat_families import FAMILIES, Family, made_up
from transformers import PreTrainedTokenizerFast

from fineshards.chat.chat_template import find_chat_template
from fineshards.chat.conversation import canonical
from fineshards.chat.conversation_encoder import ConversationEncoder
from fineshards.chat.placed_tokens import EncodedConversation
from fineshards.encoders.tokenizer_json import read_tokenizer_json

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
    vocabulary = read_tokenizer_json(str(family.save(tmp_path)), family.eot)
    template = find_chat_template("tokenizer", str(tmp_path))
    encoder = ConversationEncoder(template, vocabulary, ("assistant",))
    genuine = Genuine(family, tmp_path, renamed=special)
    # The EOT that the dataset puts before each document is the template's own.
    starts_with_eot = family.eot == family.bos
    for _ in range(CONVERSATIONS):
        row = made_up(family, rng, special=special)
        expected, bits = genuine.encode(row)
        found = encoder.encode(canonical(row))
        assert found.tokens.tolist() == expected[starts_with_eot:], row
        assert mask(found) == bits[starts_with_eot:], row
