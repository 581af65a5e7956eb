"""`--tokenizer` as a file or a folder: what is read, and whether a model was trained on its tokens.

A tokenizer.json is read by `tokenizers`, a tekken.json by tiktoken. No library converts other files
without knowing the model, so a sentence names the command that saves a tokenizer.json. Ids that the
library does not honour are refused. transformers also obeys files beside a tokenizer.json; what
would change tokens there is not obeyed here, and a warning says so.
"""

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import regex
from tiktoken import list_encoding_names

from fineshards.encoders.tokenizer_json import MATCH_FLAGS, TokenizerJson
from fineshards.encoders.vocabulary import TEKKEN_SPLIT, Vocabulary, eot_among, tekken_vocabulary
from fineshards.errors import FineshardsError, UsageError
from fineshards.storage.base import Storage
from fineshards.storage.open import open_storage

_log = logging.getLogger("fineshards.worker")
_READ = ("tokenizer.json", "tekken.json")
# Beside a tokenizer.json, and obeyed by AutoTokenizer.
BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
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
# Errors of JSON with other content than expected.
_MALFORMED = (ValueError, TypeError, AttributeError, LookupError, RecursionError)
# Steps that write a space before a text, and those that write it in lower case.
_PREFIXES = (
    *('"add_prefix_space":true', '"type":"Prepend"'),
    *('"prepend_scheme":"first"', '"prepend_scheme":"always"'),
)
_LOWERS = ('"lowercase":true', '"type":"Lowercase"')
# Ends of keys of special tokens, such as pad_token and extra_special_tokens.
_SPECIAL_KEYS = ("_token", "special_tokens")


def names_tokenizer_json(name: str) -> bool:
    """Whether `--tokenizer` names a file or a folder, as opposed to a tiktoken encoding."""
    if name.endswith(".json") or "://" in name:
        return True
    # A file or folder that happens to have the name of an encoding is given as ./NAME.
    return Path(name).exists() and name not in list_encoding_names()


def folder_and_file(path: str) -> tuple[str, str]:
    """The folder of a tokenizer, and the name of its file; none if the path is a folder's."""
    folder, separator, name = path.rpartition("/")
    if Path(path).is_dir() or ("://" in path and not path.endswith(".json")):
        folder, name = path.rstrip("/"), ""
    return folder or separator or ".", name


def read_tokenizer(path: str, eot_token: str | None) -> TokenizerJson | Vocabulary:
    """Reads a tokenizer from a file, or from the tokenizer.json or tekken.json in a folder.

    Its name is the file name without folders. Logs what files beside it say otherwise.

    Raises UsageError for a file that cannot be read or that its library rejects, for a tokenizer
    with random output, and for an EOT that it does not have.
    """
    flag = f"--tokenizer {path}"
    folder, name = folder_and_file(path)
    storage = open_storage(folder)
    if not name:
        name = next((file for file in _READ if storage.size(file) is not None), "")
    if not name or name in _OTHERS or name.endswith(_ENDS):
        raise UsageError(f"{flag}: {_not_read(storage, folder, name)}")
    try:
        data = storage.read(name) if "://" in path else Path(folder, name).read_bytes()
    except OSError as error:
        raise UsageError(f"{flag}: cannot be read ({error.strerror or error}).") from error
    is_tekken = name == _READ[1]
    try:
        content = json.loads(data)
        is_tekken = is_tekken or "pattern" in content.get("config", ())
        if is_tekken:
            return tekken_vocabulary(name, content, eot_token)
    except (*_MALFORMED, msgspec.ValidationError, regex.error) as error:
        raise UsageError(f"{flag}: not a {_READ[is_tekken]} ({error}).") from error
    tokenizer = TokenizerJson(name, data, "")
    try:
        _check_ids(tokenizer)
    except FineshardsError as error:
        raise UsageError(f"{flag}: {error}.") from error
    for warning in _warnings(tokenizer, storage):
        _log.warning("%s: %s", flag, warning)
    return replace(tokenizer, eot_text=eot_among(dict(tokenizer.special_tokens), eot_token, path))


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


def _check_ids(tokenizer: TokenizerJson) -> None:
    """Raises FineshardsError if ids are random, others than declared, or of two tokens each."""
    model = tokenizer.content.get("model")
    if not isinstance(model, dict):
        raise FineshardsError("not a tokenizer.json (it has no model)")
    if model.get("dropout"):
        raise FineshardsError(
            f"its model has dropout {model['dropout']}, so a text has different tokens each time, "
            "and a dataset could be neither resumed nor verified. Set dropout to null"
        )
    specials = dict(tokenizer.special_tokens)
    vocabulary = tokenizer.library.get_vocab(with_added_tokens=False)
    added = {}
    for token in tokenizer.added_tokens:
        text = token["content"]
        id_ = specials.get(text, tokenizer.library.token_to_id(text))
        if id_ != token["id"]:
            raise FineshardsError(
                f"declares id {token['id']} for the added token {text!r}, but "
                f"{_why_moved(id_, text in vocabulary)}"
            )
        added[id_] = text
    for other, id_ in vocabulary.items():
        if (text := added.get(id_, other)) != other:
            raise FineshardsError(
                f"the added token {text!r} has id {id_}, which {other!r} in the vocabulary also "
                "has, so text could become this token. Give each token an id of its own"
            )


def _why_moved(id_: int | None, is_in_vocabulary: bool) -> str:
    """Why the library gives an added token another id than the file declares, and what to do."""
    if id_ is None:
        return "the tokenizers library ignores this token. Remove it from added_tokens"
    if is_in_vocabulary:
        return f"the vocabulary has this token with id {id_}. Declare that id"
    return (
        f"the tokenizers library gives it id {id_}, because it numbers added tokens in their "
        "order, after the vocabulary. A model would be trained on other ids than the file "
        "declares. Put the tokens in the order of their ids, without gaps"
    )


def _warnings(tokenizer: TokenizerJson, storage: Storage) -> Iterator[str]:
    """What is known to be wrong in a tokenizer.json, or is said otherwise beside it.

    storage: its folder.
    """
    pattern = tokenizer.pattern
    is_split = '"type":"Split"' in pattern and json.dumps(TEKKEN_SPLIT) not in pattern
    if is_split and {"[INST]", "[AVAILABLE_TOOLS]"} <= dict(tokenizer.special_tokens).keys():
        yield (
            "splits text by a rule that is known to be wrong for Mistral's vocabularies, so the "
            "model was trained on other tokens. Give its tekken.json, or a tokenizer.json that "
            "AutoTokenizer has saved with fix_mistral_regex=True"
        )
    try:
        more = _said_beside(tokenizer, storage)
    except (*_MALFORMED, FineshardsError) as error:
        yield f"files beside it cannot be understood ({error}), so they are not obeyed"
        return
    if more:
        yield (
            f"files beside it say {', '.join(more[:8])}, which is not obeyed. If the model was "
            "trained so, give a tokenizer.json that AutoTokenizer has saved"
        )


def _said_beside(tokenizer: TokenizerJson, storage: Storage) -> list[str]:
    """What files beside a tokenizer.json say otherwise, of tokens and of steps."""
    config, strings, added = (json.loads(storage.read_if_there(file) or b"{}") for file in BESIDE)
    declared = (config.get("added_tokens_decoder") or {}).values()
    named = [value for key, value in (config | strings).items() if key.endswith(_SPECIAL_KEYS)]
    tokens = {token["content"]: token for token in tokenizer.added_tokens}
    known = tokens.keys() | tokenizer.library.get_vocab().keys()
    more = [f"the token {x!r}" for x in sorted({*added, *_texts([*declared, *named])} - known)]
    ordinary = tokens.keys() - dict(tokenizer.special_tokens).keys()
    for token in declared:
        text = token["content"]
        if text in ordinary and any(
            bool(token.get(flag)) != bool(tokens[text].get(flag)) for flag in MATCH_FLAGS
        ):
            more.append(f"other flags of {text!r}")
    for key, steps in (("add_prefix_space", _PREFIXES), ("do_lower_case", _LOWERS)):
        value = config.get(key)
        if isinstance(value, bool) and value != any(step in tokenizer.pattern for step in steps):
            more.append(f"{key} {str(value).lower()}")
    return more


def _texts(value: Any) -> Iterator[str]:
    """The special tokens that a value names: a string, an object with its content, or several."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts(value["content"] if "content" in value else [*value.values()])
    elif isinstance(value, list):
        yield from (text for item in value for text in _texts(item))
