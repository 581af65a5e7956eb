"""Every pair of options of a batch's shape, compared with one oracle in plain Python."""

from __future__ import annotations

from itertools import combinations, islice
from pathlib import Path
from typing import Any

import pytest

from benchmarks.made_up_dataset import EOT, make_dataset, uneven
from fineshards import BatchLoader, ContextParallel, Mixture, Packing, TokenDataset, WholeDocuments
from fineshards.storage.open import open_storage

LENGTH, STEPS = 16, 5
FIELDS = ("inputs", "targets", "document_ids", "position_ids", "loss_mask", "cu_seqlens")
OPTIONS: dict[str, dict[str, Any]] = {
    "ramp": {"sequence_length": {0: 4, 2: 8, 4: LENGTH}},
    "sizes": {"batch_size": {0: 4, 1: 6}},
    "cap": {"max_documents": 2},
    "ranks": {"rank": 1, "world_size": 2},
    "ignored": {"ignore_index": -100, "dtype": "int64"},
    "part": {"context_parallel": ContextParallel(1, 2, "contiguous")},
    "order": {"shuffle": False},
    "ahead": {"prefetch": 0},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pairs")
    make_dataset(open_storage(str(made)), 3000, 700, made=uneven(3000, 5))
    return made


def expected(rows: list[Any], given: dict[str, Any], step: int) -> dict[str, list[Any]]:
    """The fields, flat, of rows of (input, target, counts, begins) of T tokens each."""
    ramp = given.get("sequence_length", {0: LENGTH})
    length = ramp[max(at for at in ramp if at <= step)]
    found: dict[str, list[Any]] = {name: [] for name in FIELDS}
    for row in rows:
        for first in range(0, LENGTH, length):
            document, position = -1, 0
            for column in range(first, first + length):
                token, target, counts, begins = row[column]
                begins = begins or column == first
                if begins and document + 1 < given.get("max_documents", LENGTH):
                    document, position = document + 1, 0
                    found["cu_seqlens"].append(len(found["inputs"]))
                ignored = not counts and "ignore_index" in given
                values = (token, -100 if ignored else target, document, position, counts)
                for name, value in zip(FIELDS, values, strict=False):
                    found[name].append(value)
                position += 1
    return found


@pytest.mark.parametrize("kind", ["dataset", "packed", "whole", "mixture", "packed mixture"])
@pytest.mark.parametrize("pair", [*combinations(OPTIONS, 2)], ids="+".join)
def test_two_options_together_do_what_each_does(
    folder: Path, kind: str, pair: tuple[str, str]
) -> None:
    given: dict[str, Any] = {"batch_size": 4, **OPTIONS[pair[0]], **OPTIONS[pair[1]]}
    source: Any = TokenDataset(folder, sequence_length=LENGTH)
    if kind == "whole":
        source = WholeDocuments(source, 4)
    if "mixture" in kind:
        source = Mixture({"a": (source, 2), "b": (TokenDataset(folder, sequence_length=16), 1)})
    more = dict(given)
    same = {key: more[key] for key in ("batch_size", "shuffle") if key in more}
    packed = "packed" in kind
    if packed:
        more["packing"] = same["packing"] = Packing(8, more.pop("max_documents", None))
    names = ("inputs", "targets", "loss_mask", "document_ids")
    with (
        BatchLoader(source, seed=3, fields=names, **same) as plain,
        BatchLoader(source, seed=3, fields=FIELDS, **more) as loader,
    ):
        for step, (whole, batch) in enumerate(islice(zip(plain, loader, strict=False), STEPS)):
            half = len(whole["inputs"]) // 2 if "world_size" in given else 0
            rows = [
                [
                    # The cap of packed rows joins documents, which tokens tell apart.
                    (
                        *values,
                        ids[at] != ids[at - 1]
                        or (
                            "packed" in kind and (values[0] == EOT or values[0] != each[1][at - 1])
                        ),
                    )
                    for at, values in enumerate(zip(*each, strict=True))
                ]
                for *each, ids in zip(*(whole[name][half:].tolist() for name in names), strict=True)
            ]
            right = expected(rows, given, step)
            size = len(right["inputs"])
            begin = size // 2 if "context_parallel" in given else 0
            for name in FIELDS[:5]:
                assert batch[name].reshape(-1).tolist() == right[name][begin:], (name, step)
            starts = sorted({begin, *(at for at in right["cu_seqlens"] if at > begin), size})
            found = batch["cu_seqlens"].tolist()
            assert sorted(set(found)) == [at - begin for at in starts], step
            assert found == sorted(found)
