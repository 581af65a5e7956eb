"""Chat templates in the manner of model families, with small tokenizers; made-up conversations."""

import json
import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from fineshards.chat.chat_template import ChatTemplate
from fineshards.chat.conversation import BadConversation, canonical
from fineshards.chat.conversation_encoder import ConversationEncoder
from fineshards.chat.placed_tokens import EncodedConversation
from fineshards.encoders.tokenizer_files import read_tokenizer
from fineshards.encoders.tokenizer_json import TokenizerJson
from support.conversations import encoded
from support.tokenizer_files import sample_texts, trained

TEMPLATES = Path(__file__).resolve().parent.parent / "fixtures/chat_templates"
# Begins documents, and is in no template.
DOCUMENT = "<|document|>"
ASSISTANT = ("assistant",)
HELLO = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


@dataclass(frozen=True)
class Family:
    """A template, its tokenizer's style, and its special tokens; named ones by name.

    alternates: whether user and assistant must take turns. system, tools: whether it has these.
    """

    name: str
    style: str
    special: tuple[str, ...]
    bos: str | None = None
    eos: str | None = None
    eot: str = DOCUMENT
    tools: bool = False
    system: bool = True
    strips: bool = False

    @property
    def template(self) -> str:
        """Its template, with {% generation %}."""
        return (TEMPLATES / f"{self.name}.jinja").read_text()

    @property
    def special_strings(self) -> tuple[tuple[str, str], ...]:
        """As ChatTemplate has them."""
        named = {"bos_token": self.bos, "eos_token": self.eos}
        return tuple((name, text) for name, text in named.items() if text)

    def tokenizer(self) -> Tokenizer:
        """A tokenizer of the family's style, with its special tokens."""
        tokenizer = Tokenizer.from_str(_base(self.style).to_str())
        tokens = [
            AddedToken(text, special=True, normalized=False, rstrip=self.strips)
            for text in dict.fromkeys([DOCUMENT, *self.special])
        ]
        tokenizer.add_special_tokens(tokens)
        tokenizer.add_tokens(
            [AddedToken(text, normalized=False) for text in ("<think>", "</think>")]
        )
        return tokenizer

    def save(self, folder: Path) -> Path:
        """Writes its tokenizer.json and tokenizer_config.json."""
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer().save(str(folder / "tokenizer.json"))
        config = {"chat_template": self.template, **dict(self.special_strings)}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return folder


IM = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
HEADERS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
INSTRUCT = ("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]")
PHI = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>")
CALLS = ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")
OUTPUTS = ("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>")
SENTENCES = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")
FAMILIES = {
    family.name: family
    for family in [
        Family("qwen2.5", "qwen2", IM, eos="<|im_end|>", tools=True),
        Family("qwen3", "qwen2", IM, eos="<|im_end|>", tools=True),
        Family("llama3", "llama3", HEADERS, HEADERS[0], "<|eot_id|>", HEADERS[0], tools=True),
        Family("llama2", "llama2", ("<s>", "</s>"), "<s>", "</s>"),
        Family(
            "mistral",
            "mistral",
            ("<s>", "</s>", *INSTRUCT, "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
            "<s>",
            "</s>",
            tools=True,
        ),
        Family(
            "gemma",
            "gemma",
            ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
            "<bos>",
            "<eos>",
            system=False,
        ),
        Family("phi3", "llama2", ("<s>", *PHI), "<s>", "<|endoftext|>", strips=True),
        Family(
            "deepseek",
            "gpt2",
            (*SENTENCES, *CALLS, *OUTPUTS),
            SENTENCES[0],
            SENTENCES[1],
            tools=True,
        ),
        Family("zephyr", "mistral", ("<s>", "</s>"), "<s>", "</s>"),
        Family("smollm", "gpt2", IM, "<|im_start|>", "<|im_end|>"),
        Family("olmo", "gpt2", ("<|endoftext|>",), "<|endoftext|>", "<|endoftext|>"),
    ]
}


@lru_cache
def _base(style: str) -> Tokenizer:
    """A tokenizer without special tokens."""
    if style not in ("llama2", "mistral", "gemma"):
        content = json.loads(trained(style).to_str())
        return Tokenizer.from_str(json.dumps(content | {"added_tokens": []}))
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", "▁")
    if style == "llama2":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
    elif style == "mistral":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = replace
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    # Without a pre-tokenizer merges would span words, and training would take minutes.
    trained_with = Tokenizer(models.BPE(unk_token="<unk>"))
    trained_with.pre_tokenizer = pre_tokenizers.Metaspace()
    alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = BpeTrainer(vocab_size=1500, special_tokens=["<unk>"], show_progress=False)
    trained_with.train_from_iterator(sample_texts()[::8], trainer)
    model = json.loads(trained_with.to_str())["model"]
    content = json.loads(tokenizer.to_str())
    vocab = dict(model["vocab"])
    for byte in alphabet:
        vocab[byte] = len(vocab)
    content["model"] |= {"vocab": vocab, "merges": model["merges"]}
    return Tokenizer.from_str(json.dumps(content))


PIECES = [
    *("Hello", " world", "\n", "\n\n", "  ", "\t", "é", "e\u0301", "日本語", "😀", "\u200d", ""),
    *("<", "<|", "|>", ">", "<think>", "</think>", "1 < 2", "{", '"', "\\", "'", "&amp;", "0123"),
    *("assistant", "user\n", "{{ messages }}", "{% if %}", "def f(x):\n    return x\n", "\u00a0"),
]


def made_up(family: Family, rng: random.Random, *, special: bool) -> dict[str, Any]:
    """A conversation as a row. special: whether special strings are in its content."""
    pieces = (
        [*PIECES, *family.special, *[text[:-1] for text in family.special]] if special else PIECES
    )

    def text(most: int = 8) -> str:
        return "".join(rng.choices(pieces, k=rng.randrange(most)))

    messages: list[dict[str, Any]] = []
    if family.system and rng.random() < 0.4:
        messages.append({"role": "system", "content": text()})
    tools = family.tools and rng.random() < 0.4
    for _ in range(rng.randrange(1, 4)):
        messages.append({"role": "user", "content": text()})
        if tools and rng.random() < 0.7:
            arguments = {text(3): rng.choice([1, 2.5, False, True, text()]) for _ in range(2)}
            function = {"name": f"f{text(2)}", "arguments": arguments}
            call = {"type": "function", "id": "abcdefghi", "function": function}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            messages.append({"role": "tool", "content": text(), "tool_call_id": "abcdefghi"})
        answer: dict[str, Any] = {"role": "assistant", "content": text()}
        if rng.random() < 0.2:
            answer["reasoning_content"] = text()
        messages.append(answer)
    row: dict[str, Any] = {"messages": messages}
    if tools:
        parameters = {"type": "object", "properties": {"zone": {"type": "string"}, "at": {}}}
        function = {"name": "f", "description": text(), "parameters": parameters}
        row["tools"] = [{"type": "function", "function": function}]
    return row


def without_tags(template: str) -> str:
    """The template without {% generation %}, which is in its place a block that does nothing."""
    return template.replace(" generation ", " if true ").replace(" endgeneration ", " endif ")


@lru_cache
def vocabulary_of(family: Family) -> TokenizerJson:
    return read_tokenizer(str(family.save(Path(mkdtemp()))), family.eot)


def encoder_of(
    family: Family, template: str | None = None, learn: tuple[str, ...] = ASSISTANT
) -> ConversationEncoder:
    text = family.template if template is None else template
    return ConversationEncoder(
        ChatTemplate(text, family.special_strings), vocabulary_of(family), learn
    )


def learned_texts(family: Family, document: EncodedConversation) -> list[str]:
    """The texts that are learned."""
    tokenizer = family.tokenizer()
    return [
        tokenizer.decode(document.tokens[begin:end].tolist(), skip_special_tokens=False)
        for begin, end in document.learned
    ]


def reason(encoder: ConversationEncoder, messages: list[Any], **row: Any) -> str:
    """Why a conversation is refused."""
    with pytest.raises(BadConversation) as caught:
        encoded(encoder, canonical({"messages": messages, **row}))
    return str(caught.value)
