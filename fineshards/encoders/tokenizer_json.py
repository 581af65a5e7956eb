"""Tokenizers of Hugging Face's `tokenizers` library, read from a `tokenizer.json`.

Ids always come from the library. The JSON is read here only for what the library does not expose.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from tiktoken import list_encoding_names

from fineshards.encoders.vocabulary import eot_among
from fineshards.errors import FineshardsError, UsageError
from fineshards.shards.job.settings import HUGGINGFACE
from fineshards.storage.open import open_storage

# Steps that do not change the ids of a text: they add tokens around it, cut it or pad it.
IGNORED_STEPS = ("post_processor", "truncation", "padding")

# Prefix of entries that must not match text: noncharacters, which are for internal use.
_HIDDEN = "\ufffe\uffff"


@dataclass(frozen=True)
class TokenizerJson:
    """A tokenizer.json and the special token that begins documents.

    data: the user's file, byte for byte.
    """

    name: str
    data: bytes
    eot_text: str

    kind = HUGGINGFACE

    @property
    def sha256(self) -> str:
        """SHA-256 of the file, as hex."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def content(self) -> dict[str, Any]:
        """The parsed file without the steps that do not change ids."""
        return _content(self.data)

    @property
    def library(self) -> Any:
        """The tokenizers.Tokenizer, set to treat special tokens in a text as ordinary text.

        Raises FineshardsError if the library cannot read the file.
        """
        return _library(self.data)

    @cached_property
    def special_tokens(self) -> tuple[tuple[str, int], ...]:
        """Sorted (text, id) pairs."""
        added = self.library.get_added_tokens_decoder().items()
        found = {token.content: id_ for id_, token in added if token.special}
        for entry, id_ in self.library.get_vocab(with_added_tokens=False).items():
            if entry.startswith(_HIDDEN):
                found[entry.removeprefix(_HIDDEN)] = id_
        return tuple(sorted(found.items()))

    @property
    def size(self) -> int:
        """One more than the largest id."""
        ids: dict[str, int] = self.library.get_vocab(with_added_tokens=True)
        return 1 + max(ids.values())

    @property
    def eot(self) -> int:
        """The id that begins documents."""
        return dict(self.special_tokens)[self.eot_text]

    @property
    def unknown(self) -> int | None:
        """The id of text that has no token, if there is one."""
        model = self.content["model"]
        if model.get("unk_token") is None:
            return model.get("unk_id")
        id_: int | None = self.library.token_to_id(model["unk_token"])
        return id_

    @cached_property
    def pattern(self) -> str:
        """Everything that determines where text is split, as canonical JSON.

        It excludes the vocabulary, the merges and `ignore_merges`, which has effect only within a
        pretoken.
        """
        model = self.content["model"]
        deciding = {
            "normalizer": _canonical(self.content.get("normalizer")),
            "pre_tokenizer": _canonical(self.content.get("pre_tokenizer")),
            "model": {
                "type": model.get("type", "BPE"),
                "byte_fallback": bool(model.get("byte_fallback")),
                "fuse_unk": bool(model.get("fuse_unk")),
                "continuing_subword_prefix": model.get("continuing_subword_prefix") or "",
                "end_of_word_suffix": model.get("end_of_word_suffix") or "",
            },
        }
        return json.dumps(deciding, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def names_tokenizer_json(name: str) -> bool:
    """Whether `--tokenizer` names a file or a folder, as opposed to a tiktoken encoding."""
    if name.endswith(".json") or "://" in name:
        return True
    # A file or folder that happens to have the name of an encoding is given as ./NAME.
    return Path(name).exists() and name not in list_encoding_names()


def read_tokenizer_json(path: str, eot_token: str | None) -> TokenizerJson:
    """Reads a tokenizer from a file, or from the tokenizer.json in a folder.

    Its name is the file name without folders.

    Raises UsageError for a file that cannot be read or that `tokenizers` rejects, for a tokenizer
    with random output, and for an EOT that it does not have.
    """
    flag, what = f"--tokenizer {path}", ""
    if Path(path).is_dir() or ("://" in path and not path.endswith(".json")):
        path, what = f"{path.rstrip('/')}/tokenizer.json", "its tokenizer.json "
    try:
        if "://" in path:
            folder, _, name = path.rpartition("/")
            data = open_storage(folder).read(name)
        else:
            data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{flag}: {what}cannot be read ({error.strerror or error}).") from error
    tokenizer = TokenizerJson(Path(path).name, data, "")
    try:
        model = tokenizer.content.get("model")
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise UsageError(f"{flag}: not a tokenizer.json ({error}).") from error
    if not isinstance(model, dict):
        raise UsageError(f"{flag}: not a tokenizer.json (it has no model).")
    if model.get("dropout"):
        raise UsageError(
            f"{flag}: its model has dropout {model['dropout']}, so a text has different tokens "
            "each time, and a dataset could be neither resumed nor verified. Set dropout to null."
        )
    try:
        specials = dict(tokenizer.special_tokens)
    except FineshardsError as error:
        raise UsageError(f"{flag}: {error}.") from error
    for token in json.loads(data).get("added_tokens") or []:
        text = token["content"]
        given = specials.get(text, tokenizer.library.token_to_id(text))
        if given != token["id"]:
            raise UsageError(
                f"{flag}: declares id {token['id']} for the added token {text!r}, but the "
                f"tokenizers library gives it id {given}, because it numbers added tokens in "
                "their order, after the vocabulary. A model would be trained on other ids than "
                "the file declares. Put the tokens in the order of their ids, without gaps."
            )
    chosen = replace(tokenizer, eot_text=eot_among(specials, eot_token, path))
    for text, id_ in chosen.library.get_vocab(with_added_tokens=False).items():
        if id_ == chosen.eot and text.removeprefix(_HIDDEN) != chosen.eot_text:
            # The library numbers added tokens from the vocabulary's length on, whatever its ids.
            raise UsageError(
                f"--eot_token {chosen.eot_text}: the tokenizers library gives it id {id_}, which "
                f"{text!r} also has, because ids are missing from the vocabulary of {path}. "
                "Choose another special token."
            )
    return chosen


@lru_cache(maxsize=2)
def _content(data: bytes) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(data)
    return _with_hidden_specials(content | dict.fromkeys(IGNORED_STEPS))


def _with_hidden_specials(content: dict[str, Any]) -> dict[str, Any]:
    """Hides special tokens from Unigram models, which match all entries in any text.

    Other models do not: a byte-pair encoding has no merges that result in a special token.
    """
    model, added = content.get("model"), content.get("added_tokens") or []
    if not isinstance(model, dict) or model.get("type") != "Unigram":
        return content
    specials = {token["content"] for token in added if token["special"]}
    vocab = [
        [_HIDDEN + entry if entry in specials else entry, score] for entry, score in model["vocab"]
    ]
    entries = {entry for entry, _ in model["vocab"]}
    kept = [token for token in added if token["content"] not in specials & entries]
    return content | {"added_tokens": kept, "model": model | {"vocab": vocab}}


@lru_cache(maxsize=2)
def _library(data: bytes) -> Any:
    return library_of(_content(data))


def library_of(content: dict[str, Any]) -> Any:
    """The tokenizers.Tokenizer of a parsed file, which takes special tokens for ordinary text.

    Raises FineshardsError if the library cannot read it.
    """
    # Set before the import: the library's threads would compete with ours for the cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    except (KeyboardInterrupt, SystemExit):
        raise
    # Rust panics are not Exceptions.
    except BaseException as error:
        raise FineshardsError(f"the tokenizers library cannot read it ({error})") from error
    tokenizer.encode_special_tokens = True
    return tokenizer


def _canonical(step: Any) -> Any:
    """A normalizer or pre-tokenizer without fields that have no effect, with explicit defaults."""
    if not isinstance(step, dict):
        return step
    kind = step.get("type")
    if kind == "Sequence":
        inner = _steps(step.get("normalizers") or step.get("pretokenizers") or ())
        return {"type": kind, "steps": inner} if inner else None
    if kind == "ByteLevel":
        # trim_offsets concerns only positions in the text.
        defaults = {"add_prefix_space": True, "use_regex": True}
        return {"type": kind} | {name: step.get(name, value) for name, value in defaults.items()}
    if kind == "Precompiled":
        charsmap = str(step.get("precompiled_charsmap")).encode()
        return {"type": kind, "sha256": hashlib.sha256(charsmap).hexdigest()}
    return step


def _steps(steps: Iterable[Any]) -> list[Any]:
    return [canonical for step in steps if (canonical := _canonical(step)) is not None]
