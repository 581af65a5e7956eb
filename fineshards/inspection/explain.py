"""Explain: what a training step was made of, and which steps a document went into."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from msgspec import json

from fineshards.encoders.loading import load_reference
from fineshards.errors import InputError, UsageError, quoted
from fineshards.inspection.inspect import checked_document, numbers_of_id
from fineshards.loader.arguments import checked_integer
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.batches import DrawnSample
from fineshards.loader.packed_source import PackedSource
from fineshards.loader.packing import Packing
from fineshards.loader.state import SavedState
from fineshards.loader.token_dataset import TokenDataset
from fineshards.loader.tokens.split_documents import SampleDocument
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.layout import SPLITS
from fineshards.storage.open import open_storage
from fineshards.wording import counted

# Tokens decoded, and characters shown, of a text.
_TOKENS, _CHARACTERS = 24, 60
# Without a mask, loaders of conversations warn.
_FIELDS = ("inputs", "targets", "loss_mask")
_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class PartOfSample:
    """A document's part of a sample, and the first 60 characters of the part's text."""

    document: SampleDocument
    text: str


@dataclass(frozen=True, slots=True)
class ExplainedSample:
    """A sample of a batch and what is in it."""

    drawn: DrawnSample
    parts: list[PartOfSample]


@dataclass(frozen=True, slots=True)
class ExplainedStep:
    """A global batch, or one rank's part of it."""

    step: int
    split: str
    samples: list[ExplainedSample]


@dataclass(frozen=True, slots=True)
class ExplainedDocument:
    """A document, the samples of its split that have tokens of it, and where these are drawn.

    root: where its file is, to be put before its name.
    """

    number: int
    split: str
    root: str
    file: str
    row: int
    id: str | None
    samples: list[int]
    drawn: list[DrawnSample]


def explain(
    folder: str | os.PathLike[str],
    *,
    step: int | None = None,
    document: int | None = None,
    id: str | None = None,
    state: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    sequence_length: int | None = None,
    rank: int = 0,
    world_size: int = 1,
    epochs: int = 1,
) -> ExplainedStep | list[ExplainedDocument]:
    """The documents of a training step, or the samples with a document and the steps they are in.

    Args:
        folder: The dataset's folder.
        step: The step (global batch), from 0. Default: the last one before the state.
        document: Instead of a step, a document by its number in the dataset.
        id: Instead of a step, all documents with this id.
        state: What `BatchLoader.state_dict()` returned, or a file with its JSON: the order.
        seed: Without a state: the seed of a training that shuffles the train split, without
            packing, a mixture or a ramp.
        batch_size: Of that training. Default: that of the state.
        sequence_length: Of that training. With a document alone, the length of a sample.
        rank: Only the rows of this rank.
        world_size: The number of ranks.
        epochs: Epochs to look at.

    Returns:
        An ExplainedStep, or for documents a list of ExplainedDocument.

    Raises:
        FineshardsError: For a state of another dataset, or a document or step that is not there.

    Example:
        >>> import fineshards
        >>> explained = fineshards.explain(
        ...     dataset_folder, step=2, seed=1, batch_size=4, sequence_length=512
        ... )
        >>> [sample.drawn.sample for sample in explained.samples]
        [1085, 789, 534, 225]
    """
    path, loader, split = open_storage(folder).root, None, ""
    if [step, document, id].count(None) < 2:
        raise UsageError("give one of step, document and id.")
    if state is not None:
        if not isinstance(state, Mapping | str | os.PathLike):
            raise UsageError(f"--state is {quoted(state)}; give a dict or a file.")
        saved = state if isinstance(state, Mapping) else load_state(os.fspath(state))
        loader, split = loader_of(path, saved, batch_size, rank, world_size)
    elif step is not None or batch_size is not None or seed:
        if batch_size is None or sequence_length is None:
            raise UsageError(
                "a step needs --state, or --batch_size and --sequence_length of the training."
            )
        source, split = TokenDataset(path, "train", sequence_length=sequence_length), "train"
        loader = BatchLoader(source, batch_size, seed, rank, world_size, prefetch=0, fields=_FIELDS)
    if document is not None or id is not None:
        return explain_document(path, document, id, sequence_length, loader, epochs)
    if loader is None:
        raise UsageError("give --state, or a --document or --id with --sequence_length.")
    if state is None and step is None:
        raise UsageError("give --step: without a state, no step is the last one.")
    return explain_step(path, loader, split, step)


def load_state(path: str) -> dict[str, Any]:
    """A saved state of a BatchLoader; raises InputError if the file does not hold one."""
    try:
        return json.decode(Path(path).read_bytes(), type=dict[str, Any])
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(
            f"--state {path} cannot be read: {why}. Give what state_dict() returned, as JSON."
        ) from error


def loader_of(
    folder: str, state: Mapping[str, Any], batch_size: int | None, rank: int, world_size: int
) -> tuple[BatchLoader, str]:
    """A loader with the order of a state, and the split that it reads.

    batch_size: None for that of the state. Raises UsageError for a state of another dataset, of a
    mixture, or of another version.
    """
    saved = SavedState.of(state)
    size, packing = saved.batch_size if batch_size is None else batch_size, saved.packing
    ramp = list[tuple[int, int]]
    sizes = dict(_saved("batch size", size, ramp)) if isinstance(size, str) else size
    for split in SPLITS:
        dataset = _dataset_of(folder, split, saved.sequence_length, saved.fingerprint)
        if dataset is not None:
            loader = BatchLoader(
                dataset,
                sizes,
                saved.seed,
                rank,
                world_size,
                shuffle=saved.shuffle,
                shuffle_shards=saved.shuffle_shards,
                packing=None if packing is None else _saved("packing", packing, Packing),
                epochs=saved.epochs,
                drop_last=saved.drop_last,
                prefetch=0,
                fields=_FIELDS,
            )
            loader.load_state_dict(state)
            return loader, split
    raise UsageError(
        f"--state is not of {folder}, but of another dataset, or of a mixture: steps of mixtures "
        "are explained by BatchLoader.explain in Python."
    )


def _dataset_of(folder: str, split: str, length: int, fingerprint: str) -> TokenDataset | None:
    """A split from the generation, and after the earlier one, that a fingerprint is of."""

    def opened(generation: int | None, after: int | None) -> TokenDataset | None:
        try:
            return TokenDataset(
                folder, split, sequence_length=length, generation=generation, after_generation=after
            )
        except UsageError:
            return None  # the split is empty, or shorter than a sample

    dataset = opened(None, None)
    after, begin = None, fingerprint.partition(f"/{split}")[2]
    if dataset is not None and begin:
        # What was appended to an earlier generation, whose number the fingerprint does not have.
        for after in range(1, dataset.generation):
            dataset = opened(None, after)
            if dataset is not None and dataset.fingerprint.endswith(f"/{split}{begin}"):
                break
    generation = None if dataset is None else dataset.generation_of(fingerprint)
    return None if generation is None else opened(generation, after)


def _saved(name: str, value: str, kind: type[_Kind]) -> _Kind:
    """A value that a state has as JSON."""
    try:
        return json.decode(value, type=kind)
    except ValueError:
        raise UsageError(f"--state has the {name} {value!r}, which is not one.") from None


def explain_step(folder: str, loader: BatchLoader, split: str, step: int | None) -> ExplainedStep:
    """What a step was made of. step: None for the last one before the loader's position."""
    if step is None:
        step = loader.step - 1
        if step < 0:
            raise UsageError("the state was saved before step 1, so no step is shown; give --step.")
    storage = open_storage(folder)
    dataset = Dataset.open(storage)  # of any generation: the tokenizer is the same
    encoder = load_reference(dataset.manifest.settings.tokenizer, storage)
    samples = []
    for drawn, documents in loader.explain(step):
        tokens = loader.batches.tokens_of(drawn).astype(np.uint32)
        parts = []
        for document in documents:
            of_part = tokens[document.begin : document.end][: _TOKENS + 1]
            # The EOT that begins a document is not text.
            text = encoder.decode(of_part[document.position == 0 :])
            # What begins or ends within a character has no letter for it.
            shown = text.strip("\N{REPLACEMENT CHARACTER}")[:_CHARACTERS]
            parts.append(PartOfSample(document, shown))
        samples.append(ExplainedSample(drawn, parts))
    return ExplainedStep(step, split, samples)


def explain_document(
    folder: str,
    number: int | None,
    id_: str | None,
    sequence_length: int | None,
    loader: BatchLoader | None,
    epochs: int,
) -> list[ExplainedDocument]:
    """The samples with tokens of a document, and, with a loader, the steps that contain them.

    number: of the document in the dataset; or id_: all documents with this id. sequence_length:
    where there is no loader. Raises UsageError for a document that is not there.
    """
    generation = None
    if loader is not None and isinstance(loader.batches.sources[0], TokenDataset):
        generation = loader.batches.sources[0].generation
    dataset = Dataset.open(open_storage(folder), generation)
    if id_ is not None:
        numbers = numbers_of_id(dataset, id_)
    else:
        assert number is not None
        numbers = [checked_document(dataset, checked_integer("--document", number))]
    checked_integer("--epochs", epochs, 1)
    if loader is not None:
        length = loader.batches.sources[0].sequence_length
    elif sequence_length is None:
        raise UsageError("give --sequence_length, or a --state.")
    else:
        length = checked_integer("--sequence_length", sequence_length, 1)
    source, explained = None if loader is None else loader.batches.sources[0], []
    for document in map(dataset.document, numbers):
        place = dataset.root_of(document.file), document.file, document.row, document.id
        for split, begin, end in dataset.ranges(document.number):
            if source is not None and f"/{split}/" not in f"{source.fingerprint}/":
                continue
            # A loader may read what was appended to an earlier generation, from there on.
            first = 0 if source is None else source.stream.begin
            tokens = dataset.manifest.splits[split]["tokens"] - first
            samples = _samples_with(begin - first, end - first, tokens, length, loader)
            drawn: list[DrawnSample] = []
            if loader is not None:
                drawn += chain(*(loader.occurrences(sample, epochs=epochs) for sample in samples))
            drawn.sort(key=lambda draw: (draw.step, draw.rank, draw.row))
            explained.append(ExplainedDocument(document.number, split, *place, samples, drawn))
    return explained


def _samples_with(
    begin: int, end: int, tokens: int, length: int, loader: BatchLoader | None
) -> list[int]:
    """The samples with tokens `[begin, end)` of a split that has so many tokens."""
    if loader is not None and isinstance(loader.batches.readers[0], PackedSource):
        return loader.batches.readers[0].rows_of(max(0, begin), end)
    # Sample i is tokens [i * length, i * length + length + 1); the last tokens are in none.
    last = min((end - 1) // length, (tokens - 1) // length - 1)
    return list(range(max(0, (begin - 1) // length), last + 1))


def describe_step(step: ExplainedStep) -> list[str]:
    """A step in some lines: each sample with its documents."""
    lines = [f"step {step.step:,}: {counted(len(step.samples), 'sample')} of {step.split}"]
    for sample in step.samples:
        drawn = sample.drawn
        lines.append(
            f"sample {drawn.sample:,} (rank {drawn.rank}, row {drawn.row}, epoch {drawn.epoch})"
        )
        for part in sample.parts:
            document = part.document
            lines += [
                f"  {document.begin:>6} to {document.end:<6} document {document.number:,} from its "
                f"token {document.position:,}" + (f"; id {document.id}" if document.id else ""),
                f"                   {document.file}, row {document.row}",
                f"                   {part.text}",
            ]
    return lines


def describe_documents(documents: list[ExplainedDocument], with_steps: bool) -> list[str]:
    """Documents in some lines each."""
    lines = [] if documents else ["the document is not in the split that --state reads"]
    for document in documents:
        lines += [
            f"document {document.number:,} of the dataset, in {document.split}",
            f"  source   {document.root}{document.file}, row {document.row}",
            f"  id       {document.id or 'none'}",
            f"  samples  {_range(document.samples)}",
        ]
        if with_steps:
            lines += [
                f"  step     {drawn.step:,}, rank {drawn.rank}, row {drawn.row}: sample "
                f"{drawn.sample:,}, epoch {drawn.epoch}"
                for drawn in document.drawn
            ]
    return lines


def _range(samples: list[int]) -> str:
    if not samples:
        return "none: it lies where the split has no samples, as its rest or in front of them"
    if len(samples) > 2 and samples[-1] - samples[0] == len(samples) - 1:
        return f"{samples[0]:,} to {samples[-1]:,}"
    # Packed rows with parts of one document need not follow each other.
    return ", ".join(f"{sample:,}" for sample in samples)
