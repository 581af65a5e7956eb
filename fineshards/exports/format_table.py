"""The formats by name. A format's module is imported when it is used."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module

from fineshards.errors import UsageError, did_you_mean
from fineshards.exports.export_options import REDACTED, ExportOptions
from fineshards.exports.format import ExportSettings, Format
from fineshards.shards.job.settings import Settings

_CLASSES = {
    "megatron": ("megatron", "Megatron"),
    "datatrove": ("datatrove", "Datatrove"),
    "nanoset": ("datatrove", "Nanoset"),
    "olmo": ("olmo", "Olmo"),
    "llmc": ("token_bins", "Llmc"),
    "nemo": ("token_bins", "Nemo"),
    "modded-nanogpt": ("token_bins", "ModdedNanogpt"),
    "raw": ("token_bins", "Raw"),
    "torchtitan": ("token_bins", "Torchtitan"),
    "mds": ("mds", "Mds"),
    "litdata": ("litdata", "Litdata"),
    "parquet": ("input_ids", "Parquet"),
    "hf-arrow": ("hf_arrow", "HfArrow"),
    "array_record": ("array_record", "ArrayRecord"),
    "text": ("text", "TextParquet"),
    "text-jsonl": ("text", "TextJsonLines"),
}
NAMES = tuple(_CLASSES)


def format_of(name: str) -> Format:
    """The format of a name; raises UsageError if there is none."""
    if name not in _CLASSES:
        raise UsageError(
            f"--to {name}: there is no such format.{did_you_mean(name, NAMES)} There are "
            f"{', '.join(NAMES)}."
        )
    module, kind = _CLASSES[name]
    found: Format = getattr(import_module(f"fineshards.exports.{module}"), kind)()
    return found


def settle(options: ExportOptions, dataset: Settings, redacted: bool = False) -> ExportSettings:
    """The options in effect; raises UsageError for those that the format cannot have.

    redacted: whether the dataset has redacted documents.
    """
    kind, tokenizer = format_of(options.to), dataset.tokenizer
    wanted = options.dtype or (dataset.dtype if dataset.dtype in kind.dtypes else kind.dtypes[0])
    _check_flags(options, kind)
    if wanted not in kind.dtypes:
        raise UsageError(f"--dtype {wanted}: --to {options.to} holds {kind.dtypes[0]} only.")
    if dataset.fim is not None and kind.fixed_dtype == "no tokens":
        raise UsageError(
            f"--to {options.to}: documents were rearranged by --fim, so their tokens are not those "
            "of a text. Build without --fim, and export that."
        )
    most = min(kind.most_ids, 1 << 16 if wanted == "uint16" else 1 << 32)
    if tokenizer.size > most:
        other = " Use --dtype uint32." if options.dtype and "uint32" in kind.dtypes else ""
        raise UsageError(
            f"--to {options.to} holds ids up to {most - 1:,} ({wanted}), and those of "
            f"{tokenizer.name} go up to {tokenizer.size - 1:,}.{other}"
        )
    if options.link and wanted != dataset.dtype:
        raise UsageError(
            f"--link: the shards hold {dataset.dtype}, and --to {options.to} needs {wanted}. "
            "Leave --link out, so that the tokens are copied."
        )
    per_file = options.tokens_per_file or (
        dataset.shard_tokens if kind.tokens_per_file == "shard" else kind.tokens_per_file
    )
    in_effect = {
        "eot": options.eot or kind.sides[0],
        "dtype": wanted,
        "tokens_per_file": per_file,
        "skip": _skip(options, kind) if redacted else None,
        "columns": _columns(options, kind, dataset),
        "copies": _copies(options, kind, dataset),
        "eot_id": tokenizer.eot,
        "vocabulary": tokenizer.size,
        "tokenizer": tokenizer.name,
        "masks": _masks(options, kind, dataset),
    }
    given = {each.name: getattr(options, each.name) for each in fields(options)}
    return ExportSettings(**given | in_effect)


def _skip(options: ExportOptions, kind: Format) -> str | None:
    """What is left out of a dataset with redacted documents."""
    # Rows of so many tokens say nothing of documents either.
    by_default = (kind.by_eot or options.sequence_length is not None) and not options.link
    wanted = options.skip or (REDACTED if by_default else None)
    return wanted if wanted == REDACTED else None


def _columns(options: ExportOptions, kind: Format, dataset: Settings) -> tuple[str, ...]:
    """The columns that are asked for in addition to the format's own."""
    taken = [*kind.own_columns, *(dataset.recipe.scores if dataset.recipe else ())]
    names = options.names_of_columns
    if names and not kind.own_columns:
        raise UsageError(f"--columns: --to {options.to} has tokens only. Use --to text.")
    for name in names:
        if kind.offered_columns and name not in kind.offered_columns:
            raise UsageError(
                f"--columns {name}: --to {options.to} has {' and '.join(kind.offered_columns)}. "
                "Use --to text for columns of the sources."
            )
        if name in taken or names.count(name) > 1:
            raise UsageError(f"--columns: there is a column {name!r} already. Leave it out.")
    if dataset.chat and not options.no_masks and "labels" in {*kind.offered_columns} - {*names}:
        return (*names, "labels")
    return names


def _masks(options: ExportOptions, kind: Format, dataset: Settings) -> bool:
    """Whether it is written which tokens are learned."""
    if dataset.chat is None and options.no_masks:
        raise UsageError("--no_masks: only datasets of conversations have masks. Leave it out.")
    if dataset.chat is None or options.no_masks:
        return False
    if not kind.masks:
        able = [name for name in NAMES if format_of(name).masks]
        raise UsageError(
            f"--to {options.to} cannot say which tokens of a conversation are learned, so trainers "
            f"would learn prompts too. Use {', '.join(able)}, or say --no_masks."
        )
    return True


def _copies(options: ExportOptions, kind: Format, dataset: Settings) -> bool:
    """Whether duplicates are counted."""
    if options.copies and (not kind.own_columns or kind.offered_columns):
        raise UsageError(f"--copies: --to {options.to} has tokens only. Use --to text.")
    if options.copies and not (dataset.recipe and dataset.recipe.keyed):
        raise UsageError("--copies: the recipe of the dataset drops no duplicates. Leave it out.")
    return options.copies


def _check_flags(options: ExportOptions, kind: Format) -> None:
    """Raises UsageError for flags that have no meaning for a format."""
    to = f"--to {options.to}"
    if options.eot is not None and options.eot not in kind.sides:
        raise UsageError(f"--eot {options.eot}: {to} has the EOT at the {kind.sides[0]} only.")
    if options.link and not kind.links:
        raise UsageError(f"--link: {to} cannot point into other files. Leave --link out.")
    if options.link and options.skip == REDACTED:
        raise UsageError("--skip redacted: links lead to whole shards. Leave --link out.")
    if options.dtype and kind.fixed_dtype:
        raise UsageError(f"--dtype: {to} has {kind.fixed_dtype}. Leave it out.")
    if kind.whole_documents and options.skip not in (None, REDACTED):
        raise UsageError(f"--skip {options.skip}: a redacted document has no text. Leave it out.")
    if options.link and options.tokens_per_file:
        raise UsageError("--link has one file per shard; leave --tokens_per_file out.")
    for name in ("token_column", "compression"):
        if getattr(options, name) is not None and name not in kind.flags:
            raise UsageError(f"--{name} has no meaning for {to}. Leave it out.")
    if not kind.rows and options.sequence_length is not None:
        raise UsageError(f"--sequence_length: {to} has no rows. Leave it out.")
