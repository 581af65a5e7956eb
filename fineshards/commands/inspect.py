"""Looking into a finished dataset: what it holds, and the text behind tokens."""

from __future__ import annotations

from fineshards.encoders.loading import load_reference
from fineshards.errors import UsageError
from fineshards.shards.dataset import Dataset


def describe_dataset(dataset: Dataset) -> str:
    """A dataset in a few lines."""
    manifest = dataset.manifest
    layout, totals = manifest.layout, manifest.totals()
    tokenizer = manifest.settings.tokenizer
    train = layout.windows - layout.test_windows
    ids = f"{manifest.settings.dtype}, {tokenizer.name} with {tokenizer.size:,} ids"
    lines = [
        f"{dataset.storage.root}",
        f"  shards     {layout.test_windows:,} test, {train:,} train, "
        f"{layout.shard_tokens:,} tokens each (the last {manifest.shards[-1].tokens:,})",
        f"  tokens     {totals['tokens']:,}, {ids}, {tokenizer.eot} before each document",
        f"  documents  {totals['documents']:,} ({totals['nulls']:,} rows without text, "
        f"{totals['rejected']:,} rejected)",
        f"  text       {totals['text_bytes'] / 1e6:,.1f} MB from {len(manifest.files):,} files",
    ]
    lines += [f"  {name:<10} {value}" for name, value in manifest.origin if value]
    lines.append(f"  job        {manifest.fingerprint}")
    return "\n".join(lines)


def describe_document(
    dataset: Dataset, shard_name: str, document: int | None, token: int | None
) -> str:
    """A document of a shard with its source and its text: by position, or by a token in it.

    Without either the first. Raises UsageError if there is no such shard, document or token.
    """
    position = _shard_position(dataset, shard_name)
    shard = dataset.manifest.shards[position]
    table = dataset.table(position)
    if token is not None:
        _check_range("--token", token, shard.tokens, shard.name)
        index = table.index_of_token(token)
    else:
        index = document or 0
        _check_range("--document", index, len(table), shard.name)
    piece = table.piece(index)
    whole = dataset.document(piece.document)
    encoder = load_reference(dataset.manifest.settings.tokenizer, dataset.storage)
    end = piece.offset + piece.length
    lines = [
        f"{shard.name}, document {index} of {len(table):,}, number {whole.number:,} of the stream",
        f"  source  {whole.file}, row {whole.row}",
        f"  id      {whole.id}",
        f"  tokens  {len(whole.tokens):,}; in this shard {piece.offset:,} to {end:,}",
    ]
    if piece.length != len(whole.tokens):
        lines.append(f"  begins  in {whole.shard.name} at token {whole.offset:,}")
    return "\n".join([*lines, "", encoder.decode(whole.tokens)])


def _shard_position(dataset: Dataset, name: str) -> int:
    """The shard's position in the manifest, from `train/17` or its file name."""
    for position, shard in enumerate(dataset.manifest.shards):
        if name in (f"{shard.split}/{shard.index}", shard.name):
            return position
    layout = dataset.manifest.layout
    raise UsageError(
        f"--shard {name}: there is no such shard; this dataset has test/0 to test/N with N below "
        f"{layout.test_windows} and train/0 to train/N with N below "
        f"{layout.windows - layout.test_windows}."
    )


def _check_range(flag: str, value: int, count: int, shard: str) -> None:
    if not 0 <= value < count:
        raise UsageError(f"{flag} {value}: {shard} has {count:,} of them, numbered from 0.")
