"""Checks the flags of an import: tokens that exist already, in place of text."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fineshards.errors import UsageError

# Flags that go with an import only, beside the one that asks for it.
_OWN = ("eot_side", "source_dtype", "test_input", "verify_text")
# Flags that mean nothing for tokens that exist already.
NEED_TEXT = (
    *("dataset", "dataset_config", "dataset_split", "dataset_revision"),
    *("text_column", "text_template", "id_column"),
    *("chat_template", "learn", "allow_constant_mask", "fim", "fim_tokens"),
    *("extract", "recipe", "where", "dedup", "decontaminate", "keep_keys", "statistics"),
    *("tokenizer_engine", "max_bad_rows"),
)
# Layouts whose documents begin with their EOT, and those that do not say the type of their tokens.
_EOT_BEGINS = ("llmc", "nemo")
_HEADERLESS = ("olmo", "raw")
_SPLIT_KEYS = ("text", "row")


def needs_text(name: str) -> str:
    """Why a flag of NEED_TEXT is refused, as a sentence."""
    return (
        f"--{name} is for documents of text, and fineshards import takes files of tokens as they "
        "are. Leave it out."
    )


def settled_import(values: Mapping[str, Any], given: Collection[str]) -> dict[str, str]:
    """The flags that the layout of the files decides, by name; none if there is no import.

    values: of all flags. given: the names of those that have not their default. Raises UsageError
    for flags that are missing, or that mean nothing.
    """
    kind = values["import_from"]
    if kind is None:
        for name in _OWN:
            if name in given:
                raise UsageError(
                    f"--{name} is for tokens that exist already: it goes with --import_from, as "
                    "fineshards import does."
                )
        return {}
    for name in NEED_TEXT:
        if name in given:
            raise UsageError(needs_text(name))
    _check_split(values)
    return {"eot_side": _eot_side(kind, values["eot_side"])} | _dtype(kind, values["source_dtype"])


def _check_split(values: Mapping[str, Any]) -> None:
    for name in ("test_fraction", "test_shards", "split_key") if values["test_input"] else ():
        if values[name] is not None:
            raise UsageError(
                f"--{name} and --test_input exclude each other: the files of --test_input are the "
                "test split. Give one."
            )
    if values["split_key"] not in (None, *_SPLIT_KEYS):
        raise UsageError(
            f"--split_key {values['split_key']}: an import has tokens only, so it must be "
            f"{' or '.join(_SPLIT_KEYS)}, where text means the document's tokens."
        )


def _eot_side(kind: str, side: str | None) -> str:
    if kind in _EOT_BEGINS:
        if side == "end":
            raise UsageError(
                f"--eot_side end: documents of --from {kind} begin with their EOT. Leave it out, "
                "or say begin."
            )
        return "begin"
    if side is None:
        raise UsageError(
            "give --eot_side begin or end: whether each document in the files begins or ends with "
            "the end-of-text token."
        )
    return side


def _dtype(kind: str, dtype: str | None) -> dict[str, str]:
    if kind not in _HEADERLESS:
        if dtype is not None:
            raise UsageError(
                f"--source_dtype goes with --from {' and '.join(_HEADERLESS)}; files of {kind} say "
                "what type their tokens have. Leave it out."
            )
        return {}
    if kind == "olmo" and dtype is None:
        raise UsageError(
            "give --source_dtype uint16 or uint32: files of olmo do not say what type their tokens "
            "have."
        )
    return {"source_dtype": dtype or "uint16"}
