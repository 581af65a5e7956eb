"""Inspect: what a finished dataset holds, and the text behind its tokens."""

from __future__ import annotations

from fineshards.commands.wording import counted, describe_splits
from fineshards.encoders.loading import load_reference
from fineshards.errors import UsageError
from fineshards.shards.dataset import Dataset
from fineshards.shards.layout import SPLITS


def describe_dataset(dataset: Dataset) -> str:
    """A dataset in a few lines."""
    manifest = dataset.manifest
    layout, totals = manifest.layout, manifest.totals()
    tokenizer = manifest.settings.tokenizer
    ids = f"{manifest.settings.dtype}, {tokenizer.name} with {tokenizer.size:,} ids"
    lines = [
        f"{dataset.storage.root}",
        f"  shards     {layout.windows:,}, {counted(layout.shard_tokens, 'token')} each; the last "
        "of a split may have fewer",
        f"  split      {manifest.settings.split.described()}",
        *describe_splits(manifest.splits()),
        f"  tokens     {totals['tokens']:,}, {ids}, EOT {tokenizer.eot} before each document",
        f"  documents  {totals['documents']:,} ({counted(totals['nulls'], 'row')} without text, "
        f"{totals['rejected']:,} rejected)",
        f"  text       {totals['text_bytes'] / 1e6:,.1f} MB from "
        f"{counted(len(manifest.files), 'file')}",
    ]
    lines += [f"  {name:<10} {value}" for name, value in manifest.origin if value]
    lines.append(f"  job        {manifest.fingerprint}")
    return "\n".join(lines)


def describe_document(
    dataset: Dataset, shard_name: str, document: int | None, token: int | None
) -> str:
    """A document of a shard, with its source and text: by its number or by a token of it.

    Without either it is the first. Raises UsageError for a shard, document or token that does not
    exist.
    """
    position = _shard_position(dataset, shard_name)
    shard = dataset.manifest.shards[position]
    table = dataset.table(position)
    if token is not None:
        _check_range("--token", token, shard.name, counted(shard.tokens, "token"), shard.tokens)
        index = table.index_of_token(token)
    else:
        index = document or 0
        _check_range("--document", index, shard.name, counted(len(table), "document"), len(table))
    piece = table.piece(index)
    whole = dataset.document(piece.document)
    encoder = load_reference(dataset.manifest.settings.tokenizer, dataset.storage)
    end = piece.offset + piece.length
    lines = [
        f"{shard.name}, document {index} of {len(table):,}; number {whole.number:,} in the dataset",
        f"  source  {whole.file}, row {whole.row}",
        f"  id      {whole.id}",
        f"  tokens  {len(whole.tokens):,}; {piece.offset:,} to {end:,} of this shard",
    ]
    if piece.length != len(whole.tokens):
        lines.append(f"  begins  in {whole.shard.name} at token {whole.offset:,}")
    return "\n".join([*lines, "", encoder.decode(whole.tokens)])


def _shard_position(dataset: Dataset, name: str) -> int:
    """The shard's position in the manifest, from `train/17` or its file name."""
    shards = dataset.manifest.shards
    for position, shard in enumerate(shards):
        if name in (f"{shard.split}/{shard.index}", shard.name):
            return position
    last = {shard.split: shard.index for shard in shards}
    ranges = [
        f"{split}/0" + (f" to {split}/{last[split]}" if last[split] else "")
        for split in SPLITS
        if split in last
    ]
    raise UsageError(f"--shard {name}: no such shard. This dataset has {' and '.join(ranges)}.")


def _check_range(flag: str, value: int, shard: str, contents: str, count: int) -> None:
    if not 0 <= value < count:
        raise UsageError(f"{flag} {value}: {shard} has {contents}, numbered from 0.")
