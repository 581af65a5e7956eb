"""Finds a chat template: the tokenizer's own, a file, or one that comes with fineshards."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from fineshards.encoders.tokenizer_files import BESIDE, folder_and_file, names_tokenizer_json
from fineshards.errors import UsageError, did_you_mean
from fineshards.storage.open import open_storage

# The value of `--chat_template` for the one that comes with the tokenizer.
OF_TOKENIZER = "tokenizer"
CONFIG_FILE, TEMPLATE_FILE = FILES = ("tokenizer_config.json", "chat_template.jinja")
OTHER_FILES = BESIDE  # of which a warning tells
_BUILT_IN = files("fineshards.chat") / "templates"
_SPECIAL = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))


@dataclass(frozen=True)
class ChatTemplate:
    """A template of Jinja.

    special_strings: the tokenizer's strings that it may use, such as bos_token, as sorted pairs.
    """

    text: str
    special_strings: tuple[tuple[str, str], ...] = ()

    @property
    def sha256(self) -> str:
        """SHA-256 of the text, as hex."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def find_chat_template(value: str, tokenizer: str) -> ChatTemplate:
    """The template that `--chat_template` names.

    value: `tokenizer`, a .jinja file, a tokenizer_config.json, or a name. tokenizer: the place of
    the tokenizer, whose special strings the template may use.

    Raises UsageError if there is none.
    """
    beside = folder_and_file(tokenizer)[0] if names_tokenizer_json(tokenizer) else None
    path = f"{beside}/{CONFIG_FILE}"
    text = _read(path) if beside else None
    config = {} if text is None else _parsed(text, path)
    if value == OF_TOKENIZER:
        text = _read(f"{beside}/{TEMPLATE_FILE}") if beside else None
        if text is None:
            text = _of_config(config)
        if text is None:
            raise UsageError(
                f"--chat_template tokenizer: {tokenizer} has no chat template, in "
                f"{TEMPLATE_FILE} or {CONFIG_FILE}. Give a file, or a name: "
                f"{', '.join(_names())}."
            )
    elif value in _names():
        text = (_BUILT_IN / f"{value}.jinja").read_text()
    else:
        text = _read(value)
        if text is None:
            raise UsageError(
                f"--chat_template {value}: no such file, and not one of tokenizer, "
                f"{', '.join(_names())}.{did_you_mean(value, [OF_TOKENIZER, *_names()])}"
            )
        if value.endswith(".json"):
            config = _parsed(text, value)
            text = _of_config(config)
            if text is None:
                raise UsageError(f"--chat_template {value}: the file has no chat_template.")
    strings = {name: _string(config.get(name)) for name in _SPECIAL}
    return ChatTemplate(text, tuple(sorted((k, v) for k, v in strings.items() if v is not None)))


def _names() -> list[str]:
    return sorted(file.name.removesuffix(".jinja") for file in _BUILT_IN.iterdir())


def _read(path: str) -> str | None:
    """The text of a file; None if there is none."""
    folder, separator, name = path.rpartition("/")
    data = open_storage(folder or separator or ".").read_if_there(name)
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"--chat_template: {path} is not UTF-8 ({error}).") from error


def _parsed(text: str, path: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--chat_template: {path} is not JSON ({error}).") from error
    if not isinstance(content, dict):
        raise UsageError(f"--chat_template: {path} is not a JSON object.")
    return content


def _of_config(config: Mapping[str, Any]) -> str | None:
    """The template of a tokenizer_config.json; of several, that for tools and the default."""
    template = config.get("chat_template")
    if not isinstance(template, list):
        return template if isinstance(template, str) else None
    texts = {str(named.get("name")): str(named.get("template")) for named in template}
    default, tools = texts.get("default"), texts.get("tool_use")
    if default is None or tools is None:
        return default
    # Jinja removes a newline at the end, and whitespace around blocks, but not around values.
    then, other = ("{{ '' }}" + text.removesuffix("\n") + "{{ '' }}" for text in (tools, default))
    return f"{{% if tools %}}{then}{{% else %}}{other}{{% endif %}}"


def _string(value: Any) -> str | None:
    """A special token's string: as it is, or in an object that describes the token."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
