"""`--tokenizer` as a file or a folder: what is read, and what to do about all else that lies there.

A tokenizer.json is read by `tokenizers`, a tekken.json by tiktoken, as Mistral's own library does.
No library converts other files without knowing the model, so a sentence names the command that
saves a tokenizer.json. transformers also obeys files beside a tokenizer.json; what would change
tokens there is not obeyed here, and a warning says so.
"""

import json
import logging
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import regex
from tiktoken import list_encoding_names

from fineshards.encoders.tokenizer_json import TokenizerJson
from fineshards.encoders.vocabulary import Vocabulary, eot_among
from fineshards.errors import FineshardsError, UsageError
from fineshards.storage.base import Storage
from fineshards.storage.open import open_storage

_log = logging.getLogger("fineshards.worker")
_READ = ("tokenizer.json", "tekken.json")
# Names of other vocabulary files, and the ends of such names.
_OTHERS = (
    *("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "qwen.tiktoken"),
    *("vocab.json", "merges.txt", "vocab.txt"),
)
_ENDS = (".tiktoken", ".model")
_SAVE = (
    'python -c "from transformers import AutoTokenizer; '
    "AutoTokenizer.from_pretrained('{0}').save_pretrained('{0}')\""
)
# Errors of files with other content than expected.
_DAMAGED = (
    *(ValueError, TypeError, AttributeError, LookupError, RecursionError),
    *(msgspec.ValidationError, regex.error),
)
# Special tokens of a tekken.json of these versions that lists none, as in mistral-common.
_TEKKEN_UNLISTED = ("v1", "v2", "v3", "v7")
_TEKKEN_SPECIALS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
)
# How Mistral's vocabularies split text, as in each tekken.json.
_TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Steps that write a space before a text, and those that write it in lower case.
_PREFIXES = (
    *('"add_prefix_space":true', '"type":"Prepend"'),
    *('"prepend_scheme":"first"', '"prepend_scheme":"always"'),
)
_LOWERS = ('"lowercase":true', '"type":"Lowercase"')
# Ends of keys of special tokens, such as pad_token and extra_special_tokens.
_SPECIAL_KEYS = ("_token", "special_tokens")
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized")


def names_tokenizer_json(name: str) -> bool:
    """Whether `--tokenizer` names a file or a folder, as opposed to a tiktoken encoding."""
    if name.endswith(".json") or "://" in name:
        return True
    # A file or folder that happens to have the name of an encoding is given as ./NAME.
    return Path(name).exists() and name not in list_encoding_names()


def read_tokenizer(path: str, eot_token: str | None) -> TokenizerJson | Vocabulary:
    """Reads a tokenizer from a file, or from the tokenizer.json or tekken.json in a folder.

    Its name is the file name without folders. Logs what files beside it say otherwise.

    Raises UsageError for a file that cannot be read or that its library rejects, for a tokenizer
    with random output, and for an EOT that it does not have.
    """
    flag = f"--tokenizer {path}"
    folder, _, name = path.rpartition("/")
    if Path(path).is_dir() or ("://" in path and not path.endswith(".json")):
        folder, name = path.rstrip("/"), ""
    folder = folder or ("/" if path.startswith("/") else ".")
    storage = open_storage(folder)
    if not name:
        name = next((file for file in _READ if storage.size(file) is not None), "")
    if not name or name in _OTHERS or name.endswith(_ENDS):
        raise UsageError(f"{flag}: {_not_read(storage, folder, name)}")
    try:
        data = storage.read(name) if "://" in path else Path(folder, name).read_bytes()
    except OSError as error:
        raise UsageError(f"{flag}: cannot be read ({error.strerror or error}).") from error
    tokenizer, expected = TokenizerJson(name, data, ""), name if name in _READ else _READ[0]
    try:
        content = json.loads(data)
        if name == _READ[1] or "pattern" in content.get("config", ()):
            expected = _READ[1]
            return _tekken(name, content, eot_token)
        model = tokenizer.content.get("model")
    except _DAMAGED as error:
        raise UsageError(f"{flag}: not a {expected} ({error}).") from error
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
    vocabulary = tokenizer.library.get_vocab(with_added_tokens=False)
    added = {}
    for token in content.get("added_tokens") or ():
        text = token["content"]
        id_ = specials.get(text, tokenizer.library.token_to_id(text))
        if id_ != token["id"]:
            raise UsageError(
                f"{flag}: declares id {token['id']} for the added token {text!r}, but "
                f"{_why_moved(id_, text in vocabulary)}"
            )
        added[id_] = text
    for other, id_ in vocabulary.items():
        if (text := added.get(id_, other)) != other:
            raise UsageError(
                f"{flag}: the added token {text!r} has id {id_}, which {other!r} in the vocabulary "
                "also has, so text could become this token. Give each token an id of its own."
            )
    try:
        warnings = list(_not_obeyed(tokenizer, storage))
    except (*_DAMAGED, FineshardsError) as error:
        warnings = [f"files beside it cannot be understood ({error}), so they are not obeyed"]
    for warning in warnings:
        _log.warning("%s: %s", flag, warning)
    return replace(tokenizer, eot_text=eot_among(specials, eot_token, path))


def _why_moved(id_: int | None, is_in_vocabulary: bool) -> str:
    """Why the library gives an added token another id than the file declares, and what to do."""
    if id_ is None:
        return "the tokenizers library ignores this token. Remove it from added_tokens."
    if is_in_vocabulary:
        return f"the vocabulary has this token with id {id_}. Declare that id."
    return (
        f"the tokenizers library gives it id {id_}, because it numbers added tokens in their "
        "order, after the vocabulary. A model would be trained on other ids than the file "
        "declares. Put the tokens in the order of their ids, without gaps."
    )


def _not_read(storage: Storage, folder: str, name: str) -> str:
    """Why a file, or all files of a folder, cannot be read, and what makes a tokenizer.json."""
    names = [name] if name else [x for x in _OTHERS if storage.size(x) is not None]
    if not names:
        return f"the folder has no {_READ[0]}."
    if names[0].endswith(".tiktoken"):
        return (
            f"{names[0]} lists tokens alone; the model's code has the special tokens, and how text "
            "is split. Give the name of a tiktoken encoding, or a tokenizer.json that "
            "transformers.convert_slow_tokenizer.TikTokenConverter makes of it."
        )
    reason = f"{' and '.join(names)} cannot be read. Save a tokenizer.json beside the model's other"
    command = f"files: {_SAVE.format(folder)}"
    if names[0].endswith(".model"):
        command += " (with sentencepiece and protobuf; a few texts get other tokens than there)"
    return f"{reason} {command}"


class _TekkenConfig(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int
    version: str = ""


class _TekkenToken(msgspec.Struct):
    rank: int
    token_bytes: bytes


class _TekkenSpecial(msgspec.Struct):
    rank: int
    token_str: str


class _Tekken(msgspec.Struct):
    config: _TekkenConfig
    vocab: list[_TekkenToken]
    special_tokens: list[_TekkenSpecial] | None = None


def _tekken(name: str, content: object, eot_token: str | None) -> Vocabulary:
    """The vocabulary of a tekken.json, in which special tokens have the first ids.

    Raises one of `_DAMAGED` for what mistral-common rejects too.
    """
    read = msgspec.convert(content, _Tekken)
    config, first = read.config, read.config.default_num_special_tokens
    listed = [(token.token_str, token.rank) for token in read.special_tokens or ()]
    if read.special_tokens is None:
        if config.version not in _TEKKEN_UNLISTED:
            raise ValueError(f"it has no special_tokens, and its version is {config.version!r}")
        listed = [(text, id_) for id_, text in enumerate(_TEKKEN_SPECIALS)]
    others = sorted({*range(first)} - {id_ for _, id_ in listed})
    listed += [(f"<SPECIAL_{id_}>", id_) for id_ in others]
    specials = dict(listed)
    if not len(specials) == len(listed) == first:
        raise ValueError(f"its special tokens are not {first} different ones with ranks below that")
    size = config.default_vocab_size - first
    tokens = read.vocab[: max(size, 0)]
    different = {token.token_bytes for token in tokens}
    if [token.rank for token in tokens] != [*range(size)] or len(different) != size:
        raise ValueError(f"its vocab does not begin with {size:,} different tokens in rank order")
    if [token.token_bytes for token in tokens[:256]] != [bytes([byte]) for byte in range(256)]:
        raise ValueError("its vocab does not begin with the 256 bytes")
    lines = (b"%s %d\n" % (b64encode(token.token_bytes), first + token.rank) for token in tokens)
    vocabulary = Vocabulary(
        name=name,
        ranks=b"".join(lines),
        pattern=config.pattern,
        special_tokens=tuple(sorted(listed)),
        eot_text=eot_among(specials, eot_token, name),
    )
    regex.compile(config.pattern)
    vocabulary.encoding()  # its library compiles the pattern too
    return vocabulary


def _not_obeyed(tokenizer: TokenizerJson, storage: Storage) -> Iterator[str]:
    """What is known to be wrong in a tokenizer.json, or is said otherwise beside it."""
    pattern, specials = tokenizer.pattern, dict(tokenizer.special_tokens)
    is_split = '"type":"Split"' in pattern and json.dumps(_TEKKEN_SPLIT) not in pattern
    if is_split and {"[INST]", "[AVAILABLE_TOOLS]"} <= specials.keys():
        yield (
            "splits text by a rule that is known to be wrong for Mistral's vocabularies, so the "
            "model was trained on other tokens. Give its tekken.json, or a tokenizer.json that "
            "AutoTokenizer has saved with fix_mistral_regex=True"
        )
    config, strings, added = (
        json.loads(storage.read_if_there(file) or b"{}")
        for file in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
    )
    declared = (config.get("added_tokens_decoder") or {}).values()
    named = [value for key, value in (config | strings).items() if key.endswith(_SPECIAL_KEYS)]
    here = {token["content"]: token for token in tokenizer.content.get("added_tokens") or ()}
    known = here.keys() | tokenizer.library.get_vocab().keys()
    more = [f"the token {x!r}" for x in sorted({*added, *_texts([*declared, *named])} - known)]
    more += [
        f"other flags of {token['content']!r}"
        for token in declared
        if token["content"] in here.keys() - specials.keys()
        and any(bool(token.get(x)) != bool(here[token["content"]].get(x)) for x in _FLAGS)
    ]
    for key, steps in (("add_prefix_space", _PREFIXES), ("do_lower_case", _LOWERS)):
        value = config.get(key)
        if isinstance(value, bool) and value != any(step in pattern for step in steps):
            more.append(f"{key} {str(value).lower()}")
    if more:
        yield (
            f"files beside it say {', '.join(more[:8])}, which is not obeyed. If the model was "
            "trained so, give a tokenizer.json that AutoTokenizer has saved"
        )


def _texts(value: Any) -> Iterator[str]:
    """The special tokens that a value names: a string, an object with its content, or several."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts(value["content"] if "content" in value else [*value.values()])
    elif isinstance(value, list):
        yield from (text for item in value for text in _texts(item))
