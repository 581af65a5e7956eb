"""The options of an export in effect: those that were given, of the format, or of the dataset."""

from dataclasses import fields

from fineshards.errors import UsageError
from fineshards.exports.export_options import REDACTED, ExportOptions
from fineshards.exports.format import EXPORTS, ExportFormat, ExportSettings
from fineshards.shards.job.settings import Settings


def settle(options: ExportOptions, dataset: Settings, redacted: bool = False) -> ExportSettings:
    """The options in effect; raises UsageError for those that the format cannot have.

    redacted: whether the dataset has redacted documents.
    """
    kind, tokenizer = EXPORTS[options.to], dataset.tokenizer
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
    per_file = options.tokens_per_file or (
        dataset.shard_tokens if kind.tokens_per_file == "shard" else kind.tokens_per_file
    )
    in_effect = {
        "eot": options.eot or kind.sides[0],
        "dtype": wanted,
        "tokens_per_file": per_file,
        "token_column": options.token_column or kind.token_column,
        "skip": _skip(options, kind) if redacted else None,
        "columns": _columns(options, kind, dataset),
        "copies": _copies(options, kind, dataset),
        "eot_id": tokenizer.eot,
        "vocabulary": tokenizer.size,
        "tokenizer": tokenizer.name,
        "masks": _masks(options, kind, dataset),
        "package": EXPORTS.package(options.to),
    }
    given = {each.name: getattr(options, each.name) for each in fields(options)}
    return ExportSettings(**given | in_effect)


def _skip(options: ExportOptions, kind: ExportFormat) -> str | None:
    """What is left out of a dataset with redacted documents."""
    # Rows of so many tokens say nothing of documents either.
    by_default = kind.by_eot or options.sequence_length is not None
    wanted = options.skip or (REDACTED if by_default else None)
    return wanted if wanted == REDACTED else None


def _columns(options: ExportOptions, kind: ExportFormat, dataset: Settings) -> tuple[str, ...]:
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


def _masks(options: ExportOptions, kind: ExportFormat, dataset: Settings) -> bool:
    """Whether it is written which tokens are learned."""
    if dataset.chat is None and options.no_masks:
        raise UsageError("--no_masks: only datasets of conversations have masks. Leave it out.")
    if dataset.chat is None or options.no_masks:
        return False
    if not kind.masks:
        able = [name for name, each in EXPORTS.items() if each.masks]
        raise UsageError(
            f"--to {options.to} cannot say which tokens of a conversation are learned, so trainers "
            f"would learn prompts too. Use {', '.join(able)}, or say --no_masks."
        )
    return True


def _copies(options: ExportOptions, kind: ExportFormat, dataset: Settings) -> bool:
    """Whether duplicates are counted."""
    if options.copies and (not kind.own_columns or kind.offered_columns):
        raise UsageError(f"--copies: --to {options.to} has tokens only. Use --to text.")
    if options.copies and not (dataset.recipe and dataset.recipe.keyed):
        raise UsageError("--copies: the recipe of the dataset drops no duplicates. Leave it out.")
    return options.copies


def _check_flags(options: ExportOptions, kind: ExportFormat) -> None:
    """Raises UsageError for flags that have no meaning for a format."""
    to = f"--to {options.to}"
    if options.eot is not None and options.eot not in kind.sides:
        raise UsageError(f"--eot {options.eot}: {to} has the EOT at the {kind.sides[0]} only.")
    if options.dtype and kind.fixed_dtype:
        raise UsageError(f"--dtype: {to} has {kind.fixed_dtype}. Leave it out.")
    if kind.whole_documents and options.skip not in (None, REDACTED):
        raise UsageError(f"--skip {options.skip}: a redacted document has no text. Leave it out.")
    if options.token_column is not None and not kind.token_column:
        raise UsageError(f"--token_column has no meaning for {to}. Leave it out.")
    if not kind.rows and options.sequence_length is not None:
        raise UsageError(f"--sequence_length: {to} has no rows. Leave it out.")
