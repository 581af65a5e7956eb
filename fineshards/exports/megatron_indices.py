"""The indices that Megatron caches for its GPTDataset (megatron/core/datasets/gpt_dataset.py).

It has three for each file of tokens. `document_index` is an order of the documents of all epochs,
`sample_index` says where in it each sample begins, as (place, token), and `shuffle_index` is an
order of the samples. Their names begin with the MD5 of their description, which is JSON and is
stored beside them: `MD5-GPTDataset-train-description.txt`. Here the description of the indices of
one file, which Megatron wrote or would write, says how to make those of all files of its split.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError, clipped
from fineshards.exports.format import Target

FOLDER = "cache/GPTDataset_indices"
_SPLITS = ("train", "valid", "test")
# All fields of a description, in the order that decides its MD5, and the types of their values.
_FIELDS: dict[str, tuple[type, ...]] = {
    "class": (str,),
    "dataset_path": (str,),
    "num_samples": (int, type(None)),
    "index_split": (str,),
    "random_seed": (int,),
    "sequence_length": (int,),
    "split": (str, type(None)),
    "split_matrix": (list, type(None)),
    "tokenizer": (dict,),
}
# A last epoch with a smaller share of its samples than this is shuffled by itself.
_SHARE_OF_AN_EPOCH = 0.80


def read_description(path: str) -> str:
    """A description as Megatron writes it, of the first file of its split.

    path: a local file. Raises UsageError for a description that indices cannot be made of.
    """
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        _check(found)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--indices {path}: this is no description of indices of Megatron's GPTDataset: "
            f"{clipped(str(error))}. Take a …-GPTDataset-train-description.txt of its cache, or "
            "see docs/formats.md."
        ) from error
    return _text(found, 0)


def split_of(description: str) -> str:
    """The split of the dataset that a description is of."""
    return _stem(json.loads(description))[1]


def prefix(description: str, index: int) -> str:
    """What Megatron is told to call a file of a split: its path, without `.bin`."""
    folder, split = _stem(json.loads(description))
    return f"{folder}{split}_{index:04d}"


def write_indices(
    description: str, index: int, lengths: npt.NDArray[np.int32], target: Target
) -> None:
    """Writes the indices of a file of tokens. lengths: of its documents, in tokens."""
    fields = json.loads(description)
    text = _text(fields, index)
    digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    name = f"{FOLDER}/{digest}-GPTDataset-{fields['index_split']}"
    target.write(f"{name}-description.txt", text.encode())
    for kind, array in _indices(fields, lengths).items():
        with target.create(f"{name}-{kind}.npy") as file:
            np.save(file, array)


def _check(fields: Any) -> None:
    """Raises ValueError for fields that are not a description's."""
    if not isinstance(fields, dict) or set(fields) != set(_FIELDS):
        raise ValueError(f"its fields must be {', '.join(_FIELDS)}")
    for name, types in _FIELDS.items():
        if type(fields[name]) not in types:
            raise ValueError(f"{name} cannot be {json.dumps(fields[name])}")
    if fields["class"] != "GPTDataset" or fields["index_split"] not in _SPLITS:
        raise ValueError("class must be GPTDataset, and index_split train, valid or test")
    if fields["sequence_length"] < 1 or (fields["num_samples"] or 1) < 1:
        raise ValueError("sequence_length and num_samples must be 1 or more")
    if not 0 <= fields["random_seed"] < 1 << 32:
        raise ValueError("random_seed must be from 0 to 4294967295")
    _stem(fields)
    begin, end = _share(fields)
    if not 0 <= begin < end <= 1:
        raise ValueError("split_matrix must have a range in 0 to 1 for index_split")


def _stem(fields: Mapping[str, Any]) -> tuple[str, str]:
    """The folder of the files, as it begins their path, and the split that they are of."""
    found = re.fullmatch(r"((?:.*/)?)(train|test|all)_\d{4,}", fields["dataset_path"])
    if found is None:
        raise ValueError("dataset_path must be FOLDER/train_0000 or FOLDER/test_0000")
    return found[1], found[2]


def _share(fields: Mapping[str, Any]) -> tuple[float, float]:
    """Which documents of a file are meant, as a range in 0 to 1."""
    if fields["split_matrix"] is None:
        return 0.0, 1.0
    try:
        begin, end = fields["split_matrix"][_SPLITS.index(fields["index_split"])]
        return float(begin), float(end)
    except (TypeError, IndexError) as error:
        raise ValueError("split_matrix must have a range in 0 to 1 for index_split") from error


def _text(fields: Mapping[str, Any], index: int) -> str:
    """The description of a file of the split, byte for byte as Megatron hashes it."""
    folder, split = _stem(fields)
    ordered = {name: fields[name] for name in _FIELDS}
    return json.dumps({**ordered, "dataset_path": f"{folder}{split}_{index:04d}"}, indent=4)


def _indices(
    fields: Mapping[str, Any], lengths: npt.NDArray[np.int32]
) -> dict[str, npt.NDArray[Any]]:
    """The indices of a file, as Megatron computes them."""
    begin, end = (round(share * float(len(lengths))) for share in _share(fields))
    if begin == end:
        raise UsageError(
            f"--indices: {fields['split']!r} leaves no document of {len(lengths):,} for "
            f"{fields['index_split']}. Give another description, or larger --tokens_per_file."
        )
    documents = np.arange(begin, end, dtype=np.int32)
    length, wanted = fields["sequence_length"], fields["num_samples"]
    per_epoch = int(lengths[documents].sum(dtype=np.int64))
    # A sample has one more token, which is the first one of the next sample.
    epochs = 1 if wanted is None else -(-(wanted * length + 1) // per_epoch)
    before_last = ((epochs - 1) * per_epoch - 1) // length
    few = int(_SHARE_OF_AN_EPOCH * ((per_epoch - 1) // length))
    last_apart = epochs > 1 and wanted - before_last < few
    samples = (epochs * per_epoch - 1) // length

    random = np.random.RandomState(fields["random_seed"])
    orders = []
    for count in [epochs - 1, 1] if last_apart else [epochs]:
        orders.append(np.tile(documents, count))
        random.shuffle(orders[-1])
    order = np.concatenate(orders)
    ends = np.cumsum(lengths[order], dtype=np.int64)
    tokens = np.arange(samples + 1, dtype=np.int64) * length
    places = np.searchsorted(ends, tokens, side="right")
    starts = np.stack([places, tokens - (ends - lengths[order])[places]], axis=1)
    wide = max(len(order), int(lengths.max(initial=0))) > np.iinfo(np.int32).max

    dtype = np.int64 if samples >= np.iinfo(np.uint32).max - 1 else np.uint32
    cuts = [0, before_last, samples] if last_apart else [0, samples]
    shuffled = [np.arange(first, last, dtype=dtype) for first, last in pairwise(cuts)]
    for each in shuffled:
        random.shuffle(each)
    return {
        "document_index": order,
        "sample_index": starts if wide else starts.astype(np.int32),
        "shuffle_index": np.concatenate(shuffled),
    }
