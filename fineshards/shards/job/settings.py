"""The settings of a job: the options that decide the bytes of a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, json

from fineshards.errors import clipped, contrasted, contrasted_texts
from fineshards.shards.job.records import SourceFile
from fineshards.shards.layout import Shuffle
from fineshards.shards.npy import DTYPES
from fineshards.shards.record import Count, Record, canonical
from fineshards.shards.split_rule import FRACTION, SplitRule
from fineshards.text_template import template_parts

VOCABULARY_NAME = "metadata/vocabulary.tiktoken"
TOKENIZER_JSON_NAME = "metadata/tokenizer.json"
CHAT_TEMPLATE_NAME = "metadata/chat_template.jinja"

# The kinds of tokenizers, and the file that is stored with a dataset for each.
TIKTOKEN = "tiktoken"
HUGGINGFACE = "huggingface"
TOKENIZER_FILES = {TIKTOKEN: VOCABULARY_NAME, HUGGINGFACE: TOKENIZER_JSON_NAME}
_TokenizerKind = Annotated[str, Meta(pattern=f"^({'|'.join(TOKENIZER_FILES)})$")]
_Dtype = Annotated[str, Meta(pattern=f"^({'|'.join(DTYPES)})$")]
# The files that may be stored with the job record.
STORED_FILES = (*TOKENIZER_FILES.values(), CHAT_TEMPLATE_NAME)


class TokenIds(Record, frozen=True):
    """The ids of documents that are tokens already.

    Args:
        eot: That of the end of text, which is removed at either end of a document.
        size: One more than the largest id.
    """

    eot: Count
    size: Count


class Columns(Record, frozen=True):
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
            (`sources/columns.py`).
        tokens: The ids that the text consists of; None where it is text.
        drop_reasoning: Whether conversations are without the reasoning of their answers.
    """

    text: str
    id: str
    id_required: bool
    split: str | None = None
    others: tuple[str, ...] = ()
    template: str | None = None
    scores: tuple[str, ...] = ()
    conversations: bool = False
    tokens: TokenIds | None = None
    drop_reasoning: bool = False

    def __post_init__(self) -> None:
        if self.template is not None:
            template_parts(self.template)

    @property
    def of_text(self) -> tuple[str, ...]:
        """The columns that the text consists of."""
        if self.template is None:
            return (self.text,)
        return tuple(dict.fromkeys(template_parts(self.template)[1::2]))

    @property
    def text_flag(self) -> str:
        """The flag that names the columns of the text."""
        if self.tokens is not None:
            return "--tokens_column"
        return "--text_column" if self.template is None else "--text_template"


class Tokenizer(Record, frozen=True):
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

    kind: _TokenizerKind
    name: str
    vocabulary_sha256: str
    pattern: str
    special_tokens: tuple[tuple[str, Count], ...]
    eot: Count
    size: Annotated[int, Meta(ge=0, le=1 << 32)]
    golden_sha256: str

    def __post_init__(self) -> None:
        if max(self.eot, *(token for _, token in self.special_tokens)) >= self.size:
            raise ValueError(f"{self.size} is not the size of its tokenizer")

    @property
    def file(self) -> str:
        """Path of the vocabulary below the output folder."""
        return TOKENIZER_FILES[self.kind]


class Chat(Record, frozen=True):
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


class FillInMiddle(Record, frozen=True):
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
    prefix: Count
    middle: Count
    suffix: Count

    def __post_init__(self) -> None:
        rates = (self.rate, self.spm_rate)
        if not all(FRACTION.fullmatch(rate) and Fraction(rate) <= 1 for rate in rates):
            raise ValueError(f"unknown shares {rates}")


class StepRecord(Record, frozen=True):
    """A step, with everything that it decides by.

    Args:
        use: The step's name, as a recipe gives it.
        parameters: All parameters by name, with those that the recipe leaves out.
        version: The version of the step's code.
        pins: What else decides, by name: versions, SHA-256 of files.
        keyed: Whether the step compares keys of all documents.
    """

    use: str
    parameters: dict[str, Any]
    version: Count
    pins: dict[str, str]
    keyed: bool = False

    @classmethod
    def of(
        cls,
        use: str,
        parameters: Mapping[str, Any],
        version: int,
        pins: Mapping[str, str],
        keyed: bool,
    ) -> StepRecord:
        """The record of a step; parameters must be values that JSON has."""
        return cls(
            use, json.decode(canonical(parameters)), version, dict(sorted(pins.items())), keyed
        )

    @property
    def rule(self) -> str:
        """The rule of a keyed step."""
        return str(self.parameters.get("rule", "earlier"))

    @property
    def verifies(self) -> bool:
        """Whether a keyed step compares texts before it drops one."""
        return self.keyed and self.parameters.get("verify", "none") != "none"

    @property
    def compares(self) -> bool:
        """Whether documents of the dataset are compared with each other."""
        return self.keyed and self.use != "seen_in"

    @property
    def score(self) -> str | None:
        """The name of the score that the step gives documents; None if it gives none."""
        return str(self.parameters.get("name")) if self.use == "score" else None


class RecipeRecord(Record, frozen=True):
    """The steps that a job's documents pass before they are tokenized.

    Args:
        steps: The steps, in order.
        golden_sha256: SHA-256, as hex, of what the steps make of the golden documents.
        keep_keys: Whether the keys of documents stay with the dataset, for appends.
        indexes: What `seen_in` looks documents up in, by the number of the step: source files, and
            files of keys of other datasets, whose format is `keys`.
        curate_test: Whether the steps judge the documents of test files too.
    """

    steps: tuple[StepRecord, ...]
    golden_sha256: str
    keep_keys: bool = False
    indexes: tuple[tuple[Count, SourceFile], ...] = ()
    curate_test: bool = False

    @property
    def keyed(self) -> tuple[int, ...]:
        """The numbers of the keyed steps."""
        return tuple(number for number, step in enumerate(self.steps) if step.keyed)

    @property
    def scores(self) -> dict[str, int]:
        """The scores that documents get, by name: the number of the step that gives each."""
        return {name: number for number, step in enumerate(self.steps) if (name := step.score)}

    def step_name(self, number: int) -> str:
        """A step's number, from 1, and name, as people see it: `3 gopher_quality`."""
        return f"{number + 1} {self.steps[number].use}"

    def differences(self, other: RecipeRecord) -> list[str]:
        """How another recipe differs, for an error message; empty if it does not."""
        mine, theirs = [step.use for step in self.steps], [step.use for step in other.steps]
        if mine != theirs:
            return [f"steps: {contrasted_texts(', '.join(mine), ', '.join(theirs))}"]
        differences = []
        for number, (old, new) in enumerate(zip(self.steps, other.steps, strict=True)):
            step = f"step {clipped(self.step_name(number))}"
            pairs = ("parameter", old.parameters, new.parameters), ("pin", old.pins, new.pins)
            for what, was, now in pairs:
                for name in sorted({*was, *now}):
                    if was.get(name) != now.get(name):
                        change = contrasted(was.get(name), now.get(name))
                        advice = " (put that file back to go on)" if ":" in name else ""
                        differences.append(
                            f"{what} {clipped(name)} of {step}: {change}{advice * (what == 'pin')}"
                        )
            if old.version != new.version:
                differences.append(f"version of {step}: was {old.version}, now {new.version}")
        if self.indexes != other.indexes:
            differences.append(
                "what seen_in looks documents up in: other files, or they have changed"
            )
        for name in ("keep_keys", "curate_test"):
            if (was := getattr(self, name)) != (now := getattr(other, name)):
                differences.append(f"--{name}: was {was}, now {now}")
        if not differences and self.golden_sha256 != other.golden_sha256:
            differences.append(
                "what the steps make of the golden documents: was "
                f"{self.golden_sha256[:12]}, now {other.golden_sha256[:12]}"
            )
        return differences


class Settings(Record, frozen=True):
    """The options that decide the bytes of a dataset, and the block size, which does not.

    Args:
        columns: Columns of the source files.
        tokenizer: The tokenizer.
        shard_tokens: Tokens per shard.
        split: Which documents, or which shards, are the test split.
        block_bytes: Bytes of text per block; a block ends once it has this many.
        dtype: Type of the tokens in the shards, `uint32` or `uint16`.
        shuffle: The order of documents; None for that of their sources.
        recipe: The steps that documents pass before they are tokenized; None if there are none.
        statistics: Whether `metadata/statistics/` is made.
        chat: How conversations become tokens; None where documents are texts.
        fim: Which documents are rearranged to fill in the middle; None if none are.
    """

    columns: Columns
    tokenizer: Tokenizer
    shard_tokens: Count
    split: SplitRule
    block_bytes: Count
    dtype: _Dtype
    shuffle: Shuffle | None = None
    recipe: RecipeRecord | None = None
    statistics: bool = False
    chat: Chat | None = None
    fim: FillInMiddle | None = None

    def __post_init__(self) -> None:
        fim = self.fim
        if fim and max(fim.prefix, fim.middle, fim.suffix) >= self.tokenizer.size:
            raise ValueError(f"{self.tokenizer.size} is not the size of its tokenizer")

    @property
    def token_dtype(self) -> np.dtype[np.unsignedinteger]:
        """NumPy dtype of the tokens in the shards: `<u4` or `<u2`."""
        return DTYPES[self.dtype]

    @property
    def stored_files(self) -> tuple[str, ...]:
        """The files that are stored with the job record."""
        return (self.tokenizer.file, *([CHAT_TEMPLATE_NAME] if self.chat else []))

    def spares(self, file: SourceFile) -> bool:
        """Whether the recipe leaves the documents of a file as they are: those of test files."""
        return file.test and self.recipe is not None and not self.recipe.curate_test

    def differences(self, other: Settings) -> list[str]:
        """How other settings differ from these, by flag; empty if they do not."""
        differences = [
            f"{name}: {contrasted(old, new)}"
            for (name, old), (_, new) in zip(_by_flag(self), _by_flag(other), strict=True)
            if old != new
        ]
        if self.split != other.split:
            rules = contrasted_texts(self.split.described(), other.split.described())
            differences.append(f"split: {rules}")
        mine, theirs = self.recipe, other.recipe
        if mine is not None and theirs is not None:
            return differences + mine.differences(theirs)
        if mine is not None or theirs is not None:
            was, now = ("none" if recipe is None else "one" for recipe in (mine, theirs))
            differences.append(f"recipe: was {was}, now {now}")
        return differences


def _by_flag(settings: Settings) -> list[tuple[str, object]]:
    """The settings as (flag or description, value) pairs."""
    columns, tokenizer = settings.columns, settings.tokenizer
    chat, fim = settings.chat, settings.fim
    return [
        ("--text_column", columns.text),
        ("--text_template", columns.template),
        ("--tokens_column", columns.tokens and columns.text),
        ("--drop_reasoning", columns.drop_reasoning),
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
        ("--shuffle_seed", settings.shuffle and settings.shuffle.seed),
        ("--block_bytes", settings.block_bytes),
        ("--dtype", settings.dtype),
    ]
