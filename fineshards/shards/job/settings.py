"""The settings of a job: the options that decide the bytes of a dataset, and their JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from fineshards.errors import contrasted, quoted
from fineshards.shards.job.recipe_record import RecipeRecord
from fineshards.shards.job.records import as_number, as_text, from_fields
from fineshards.shards.layout import FRACTION, HASH_VERSION, KEY_VERSION, Shuffle, SplitRule
from fineshards.shards.npy import DTYPES
from fineshards.text_template import template_parts

VOCABULARY_NAME = "metadata/vocabulary.tiktoken"
TOKENIZER_JSON_NAME = "metadata/tokenizer.json"
CHAT_TEMPLATE_NAME = "metadata/chat_template.jinja"

# The kinds of tokenizers, and the file that is stored with a dataset for each.
TIKTOKEN = "tiktoken"
HUGGINGFACE = "huggingface"
TOKENIZER_FILES = {TIKTOKEN: VOCABULARY_NAME, HUGGINGFACE: TOKENIZER_JSON_NAME}
# The files that may be stored with the job record.
STORED_FILES = (*TOKENIZER_FILES.values(), CHAT_TEMPLATE_NAME)


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the columns to read.

    Args:
        text: Column of the text.
        id: Column of the documents' ids.
        id_required: Whether a file without the id column is an error; true if the user named it, or
            if it is the split key.
        split: Column that is read for the split key alone; None if there is none.
        others: Columns that the steps of a recipe ask for.
        template: How the text consists of several columns; None where it is `text` alone.
        scores: Names that a recipe gives to scores, so that no column may have them.
        conversations: Whether the text is the JSON of a conversation
            (`sources/formats/conversations.py`).
    """

    text: str
    id: str
    id_required: bool
    split: str | None = None
    others: tuple[str, ...] = ()
    template: str | None = None
    scores: tuple[str, ...] = ()
    conversations: bool = False

    @property
    def of_text(self) -> tuple[str, ...]:
        """The columns that the text consists of."""
        if self.template is None:
            return (self.text,)
        return tuple(dict.fromkeys(template_parts(self.template)[1::2]))

    @property
    def text_flag(self) -> str:
        """The flag that names the columns of the text."""
        return "--text_column" if self.template is None else "--text_template"


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A tokenizer, except for its vocabulary, which is stored in `file`.

    Args:
        kind: `tiktoken` (an encoding of tiktoken, a rank file) or `huggingface` (a
            tokenizer.json).
        name: Name of the encoding, or of the user's file without folders.
        vocabulary_sha256: SHA-256 of the stored file, as hex.
        pattern: Regular expression that splits text, or the parts of a tokenizer.json that do.
        special_tokens: Sorted (text, id) pairs.
        eot: Token id that begins every document.
        size: One more than the largest token id.
        golden_sha256: SHA-256 of the tokens of the golden texts, as hex.
    """

    kind: str
    name: str
    vocabulary_sha256: str
    pattern: str
    special_tokens: tuple[tuple[str, int], ...]
    eot: int
    size: int
    golden_sha256: str

    @property
    def file(self) -> str:
        """Path of the vocabulary below the output folder."""
        return TOKENIZER_FILES[self.kind]


@dataclass(frozen=True, slots=True)
class Chat:
    """How conversations become tokens, except for the template, which is stored with the dataset.

    Args:
        template_sha256: SHA-256 of `metadata/chat_template.jinja`, as hex.
        learn: Roles whose messages are learned, sorted.
        special_strings: Sorted (name, text) pairs that the template may use, such as bos_token.
        golden_sha256: SHA-256 of the tokens and learned ranges of golden conversations, as hex.
    """

    template_sha256: str
    learn: tuple[str, ...]
    special_strings: tuple[tuple[str, str], ...]
    golden_sha256: str


@dataclass(frozen=True, slots=True)
class FillInMiddle:
    """Which documents are rearranged to fill in the middle: see `encoders/fill_in_middle.py`.

    Args:
        rate: The share of documents, a fraction in lowest terms.
        spm_rate: The share of these whose suffix is first.
        prefix: Id of the special token before a prefix.
        middle: Id of the special token before a middle.
        suffix: Id of the special token before a suffix.
    """

    rate: str
    spm_rate: str
    prefix: int
    middle: int
    suffix: int


@dataclass(frozen=True, slots=True)
class Settings:
    """The options that decide the bytes of a dataset, and the block size, which does not.

    Args:
        columns: Columns of the source files.
        tokenizer: The tokenizer.
        shard_tokens: Tokens per shard.
        split: Which documents, or which shards, are the test split.
        block_bytes: Bytes of text per block; a block ends once it has this many.
        dtype: Type of the tokens in the shards, `uint32` (the default) or `uint16`.
        shuffle: The order of documents; None for that of their sources.
        recipe: The steps that documents pass before they are tokenized; None if there are none.
        statistics: Whether `metadata/statistics/` is made.
        chat: How conversations become tokens; None where documents are texts.
        fim: Which documents are rearranged to fill in the middle; None if none are.

    Example:
        >>> from fineshards.shards.job.manifest import Manifest
        >>> from fineshards.storage.open import open_storage
        >>> settings = Manifest.load(open_storage(dataset_folder)).settings
        >>> settings.tokenizer.name, settings.shard_tokens, settings.dtype
        ('cl100k_base', 100000, 'uint32')
    """

    columns: Columns
    tokenizer: Tokenizer
    shard_tokens: int
    split: SplitRule
    block_bytes: int
    dtype: str = "uint32"
    shuffle: Shuffle | None = None
    recipe: RecipeRecord | None = None
    statistics: bool = False
    chat: Chat | None = None
    fim: FillInMiddle | None = None

    @property
    def token_dtype(self) -> np.dtype[np.unsignedinteger]:
        """NumPy dtype of the tokens in the shards: `<u4` or `<u2`."""
        return DTYPES[self.dtype]

    @property
    def stored_files(self) -> tuple[str, ...]:
        """The files that are stored with the job record."""
        return (self.tokenizer.file, *([CHAT_TEMPLATE_NAME] if self.chat else []))

    def differences(self, other: Settings) -> list[str]:
        """How other settings differ from these, by flag; empty if they do not."""
        found = [
            f"{name}: {contrasted(old, new)}"
            for (name, old), (_, new) in zip(_by_flag(self), _by_flag(other), strict=True)
            if old != new
        ]
        mine, others = self.recipe, other.recipe
        if mine is not None and others is not None:
            return found + mine.differences(others)
        if mine is not None or others is not None:
            was, now = ("none" if each is None else "one" for each in (mine, others))
            found.append(f"recipe: was {was}, now {now}")
        return found


def settings_to_json(settings: Settings) -> dict[str, Any]:
    """Settings as the job record and the manifest have them."""
    fields = asdict(settings)
    # Left out where there is none, so that records without them stay as they were.
    del fields["recipe"]
    if settings.recipe is not None:
        fields["recipe"] = settings.recipe.to_json()
    for name in ("others", "template", "scores", "conversations"):
        if not fields["columns"][name]:
            del fields["columns"][name]
    for name in ("statistics", "chat", "fim"):
        if not fields[name]:
            del fields[name]
    return fields


def settings_from_json(fields: dict[str, Any]) -> Settings:
    """The inverse of `settings_to_json`; raises KeyError, TypeError or ValueError."""
    specials = tuple(
        (as_text(text), as_number(token)) for text, token in fields["tokenizer"]["special_tokens"]
    )
    if fields["tokenizer"]["kind"] not in TOKENIZER_FILES:
        raise ValueError(f"unknown kind of tokenizer {quoted(fields['tokenizer']['kind'])}")
    if fields["dtype"] not in DTYPES:
        raise ValueError(f"unknown dtype {quoted(fields['dtype'])}")
    eot, size = (as_number(fields["tokenizer"][name]) for name in ("eot", "size"))
    if size > 1 << 32 or any(token >= size for token in (eot, *(id_ for _, id_ in specials))):
        raise ValueError(f"{size} is not the size of its tokenizer")
    return from_fields(
        Settings,
        fields,
        columns=_columns_from_json(fields["columns"]),
        tokenizer=from_fields(Tokenizer, fields["tokenizer"], special_tokens=specials),
        split=_rule_from_json(fields["split"]),
        shuffle=_shuffle_from_json(fields["shuffle"]),
        recipe=RecipeRecord.from_json(fields["recipe"]) if "recipe" in fields else None,
        statistics=fields.get("statistics") is True,
        chat=_chat_from_json(fields["chat"]) if "chat" in fields else None,
        fim=_fim_from_json(fields["fim"], size) if "fim" in fields else None,
    )


def _chat_from_json(fields: dict[str, Any]) -> Chat:
    strings = tuple((as_text(name), as_text(text)) for name, text in fields["special_strings"])
    learn = tuple(map(as_text, fields["learn"]))
    return from_fields(Chat, fields, learn=learn, special_strings=strings)


def _fim_from_json(fields: dict[str, Any], size: int) -> FillInMiddle:
    found = from_fields(FillInMiddle, fields)
    rates = (found.rate, found.spm_rate)
    if not all(FRACTION.fullmatch(rate) and Fraction(rate) <= 1 for rate in rates):
        raise ValueError(f"unknown shares {rates}")
    if max(found.prefix, found.middle, found.suffix) >= size:
        raise ValueError(f"{size} is not the size of its tokenizer")
    return found


def _columns_from_json(fields: dict[str, Any]) -> Columns:
    lists = {
        kind: tuple(as_text(name) for name in fields.get(kind, ())) for kind in ("others", "scores")
    }
    found = {"template": None, "conversations": False} | fields
    if found["template"] is not None:
        template_parts(as_text(found["template"]))
    return from_fields(Columns, found, **lists)


def _shuffle_from_json(fields: dict[str, Any] | None) -> Shuffle | None:
    if fields is None:
        return None
    shuffle = from_fields(Shuffle, fields)
    if shuffle.key_version != KEY_VERSION:
        raise ValueError(f"unknown version of the shuffle's keys, {shuffle.key_version}")
    return shuffle


def _rule_from_json(fields: dict[str, Any]) -> SplitRule:
    rule = from_fields(SplitRule, fields)
    if rule.by_document:
        valid = FRACTION.fullmatch(rule.test_fraction or "") and rule.hash_version == HASH_VERSION
        if not valid or rule.threshold > 1 << 32 or (rule.test_files or 0) < 0:
            raise ValueError(f"unknown split {fields}")
    return rule


def _by_flag(settings: Settings) -> list[tuple[str, object]]:
    """The settings as (flag or description, value) pairs."""
    columns, tokenizer, split = settings.columns, settings.tokenizer, settings.split
    chat, fim = settings.chat, settings.fim
    return [
        ("--text_column", columns.text),
        ("--text_template", columns.template),
        ("--id_column", columns.id),
        ("--id_column given", columns.id_required),
        ("columns for the recipe", columns.others),
        ("--statistics", settings.statistics),
        ("sha256 of --chat_template", chat and chat.template_sha256),
        ("--learn", chat and " ".join(chat.learn)),
        ("special tokens of the chat template", chat and chat.special_strings),
        ("tokens of golden conversations (libraries)", chat and chat.golden_sha256),
        ("--fim", fim and f"{fim.rate},{fim.spm_rate}"),
        ("--fim_tokens", fim and (fim.prefix, fim.middle, fim.suffix)),
        ("kind of tokenizer", tokenizer.kind),
        ("--tokenizer", tokenizer.name),
        ("vocabulary sha256", tokenizer.vocabulary_sha256),
        ("tokenizer's pattern", tokenizer.pattern),
        ("special tokens", tokenizer.special_tokens),
        ("end-of-text token", tokenizer.eot),
        ("vocabulary size", tokenizer.size),
        ("tokens of the golden texts (tokenizer library)", tokenizer.golden_sha256),
        ("--shard_tokens", settings.shard_tokens),
        ("--test_fraction", split.test_fraction),
        ("--test_shards", split.test_shards),
        ("--split_key", split.key),
        ("version of the split's hash", split.hash_version or HASH_VERSION),
        ("--shuffle_seed", settings.shuffle and settings.shuffle.seed),
        ("--block_bytes", settings.block_bytes),
        ("--dtype", settings.dtype),
    ]
