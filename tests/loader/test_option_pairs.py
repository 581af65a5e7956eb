"""Every pair of options of a batch, compared with one oracle in plain Python, or refused."""

from itertools import combinations, islice
from pathlib import Path
from typing import Any

import pytest
from support.sentences import refused

from benchmarks.made_up_dataset import EOT, make_dataset, uneven
from fineshards import BatchLoader, ContextParallel, Mixture, Packing, TokenDataset, WholeDocuments
from fineshards.storage.open import open_storage

LENGTH, STEPS = 16, 6
FIELDS = ("inputs", "targets", "document_ids", "position_ids", "loss_mask", "cu_seqlens")
IDS = ("source_ids", "sample_ids")
OPTIONS: dict[str, dict[str, Any]] = {
    "ramp": {"sequence_length": {0: 4, 2: 8, 4: LENGTH}},
    "sizes": {"batch_size": {0: 4, 1: 6}},
    "cap": {"max_documents": 2},
    "ranks": {"rank": 1, "world_size": 2},
    "ignored": {"ignore_index": -100, "dtype": "int64"},
    "part": {"context_parallel": ContextParallel(1, 2, "contiguous")},
    "zigzag": {"context_parallel": ContextParallel(1, 2)},
    "order": {"shuffle": False},
    "shards": {"shuffle_shards": 2},
    "epoch": {"epochs": 1},
    "full": {"epochs": 1, "drop_last": True},
    "ahead": {"prefetch": 0},
    "rows": {"rows": 3},
    "windows": {"shuffle_windows": 1},
    "end": {"exhausted": "drop"},
    "schedule": {"schedule": {7: {"a": 1, "b": 3}}},
}
# What has the option's argument where it is none of BatchLoader's.
KINDS = {
    "rows": ("packed", "whole"),
    "cap": ("packed",),
    "windows": ("packed",),
    "end": ("mix",),
    "schedule": ("mix",),
}
# Of one argument or meaning, so no pair.
SAME = [{"part", "zigzag"}, {"epoch", "full"}]
CASES = [
    pytest.param(kind, pair, id=f"{kind}-{'+'.join(pair)}")
    for kind in ("dataset", "packed", "whole", "mix", "packed mix")
    for pair in combinations(OPTIONS, 2)
    if {*pair} not in SAME
    and all(any(each in kind for each in KINDS.get(name, ("",))) for name in pair)
]


def refusal(kind: str, pair: tuple[str, str]) -> str:
    """What is said of a pair, or of an option and a source, that contradict each other."""
    if "shards" in pair and "order" in pair:
        return "shuffle_shards is 2, but shuffle is False. Leave one of them out."
    if "shards" in pair and "packed" in kind:
        return "shuffle_shards is 2, but packed rows are shuffled by windows."
    if {"epoch", "full"} & {*pair} and "mix" in kind:
        return "epochs is 1, but a mixture has no epochs."
    if "shards" in pair and kind == "whole":
        return "shuffle_shards is 2, but the source has no shards; leave shuffle_shards out."
    return ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pairs")
    make_dataset(open_storage(str(made)), 1500, 350, made=uneven(1500, 5))
    return made


def documents(rows: list[Any], given: dict[str, Any], step: int) -> list[list[tuple[Any, ...]]]:
    """Values of the fields of tokens, by document. rows: of (input, target, counts, begins)."""
    ramp = given.get("sequence_length", {0: LENGTH})
    length = ramp[max(at for at in ramp if at <= step)]
    found: list[list[tuple[Any, ...]]] = []
    for row in rows:
        number = -1
        for column, (token, target, counts, begins) in enumerate(row):
            first = column % length == 0
            number = -1 if first else number
            if first or (begins and number + 1 < given.get("max_documents", LENGTH)):
                number += 1
                found.append([])
            ignored = not counts and "ignore_index" in given
            target = -100 if ignored else target
            found[-1].append((token, target, number, len(found[-1]), counts))
    return found


def part_of(found: list[list[tuple[Any, ...]]], given: dict[str, Any]) -> list[list[Any]]:
    """The same documents, as far as they are in this rank's part."""
    context = given.get("context_parallel")
    if context is None:
        return found
    if context.layout == "contiguous":
        places = [(n, value) for n, each in enumerate(found) for value in each]
        half = places[len(places) // 2 :]
        return [[v for n, v in half if n == each] for each in dict(half)]
    parts = []
    for each in found:
        size = -(-len(each) // 4)
        padding = (*each[-1][:1], -100 if "ignore_index" in given else each[-1][1], each[-1][2])
        padded = each + [(*padding, at, False) for at in range(len(each), 4 * size)]
        parts.append(padded[size : 3 * size])
    return parts


@pytest.mark.parametrize(("kind", "pair"), CASES)
def test_two_options_together_do_what_each_does(
    folder: Path, kind: str, pair: tuple[str, str]
) -> None:
    given: dict[str, Any] = {"batch_size": 4, **OPTIONS[pair[0]], **OPTIONS[pair[1]]}
    more, packed = dict(given), "packed" in kind
    of_rows = {key: more.pop(key) for key in ("rows", "shuffle_windows") if key in more}
    mixed = {key: more.pop(key) for key in ("exhausted", "schedule") if key in more}
    source: Any = TokenDataset(folder, sequence_length=LENGTH)
    if kind == "whole":
        source = WholeDocuments(source, of_rows.get("rows", 4))
    if "mix" in kind:
        source = Mixture(
            {"a": (source, 2), "b": (TokenDataset(folder, sequence_length=16), 1)}, **mixed
        )
    same = {
        key: more[key]
        for key in ("batch_size", "shuffle", "shuffle_shards", "epochs")
        if key in more
    }
    if packed:
        packing = {"rows": 8, "max_documents": more.pop("max_documents", None)} | of_rows
        more["packing"] = same["packing"] = Packing(**packing)
    if said := refusal(kind, pair):
        assert refused(lambda: BatchLoader(source, fields=FIELDS, **more)).startswith(said)
        return
    names = ("inputs", "targets", "loss_mask", "document_ids")
    with (
        BatchLoader(source, seed=3, fields=(*names, *IDS), **same) as plain,
        BatchLoader(source, seed=3, fields=(*FIELDS, *IDS), **more) as loader,
    ):
        ends = "epochs" in given or "exhausted" in given
        wholes = list(islice(plain, None if ends else STEPS))
        if "drop_last" in given and len(wholes[-1]["inputs"]) < len(wholes[-2]["inputs"]):
            wholes.pop()
        batches = list(islice(loader, None if ends else STEPS))
        for step, (whole, batch) in enumerate(zip(wholes, batches, strict=True)):
            rows = [
                [
                    # The cap of packed rows joins documents, which tokens tell apart.
                    (*values, ids[at] != ids[at - 1] or (packed and _begins(values, each, at)))
                    for at, values in enumerate(zip(*each, strict=True))
                ]
                for *each, ids in zip(*(whole[name].tolist() for name in names), strict=True)
            ]
            rank, world = given.get("rank", 0), given.get("world_size", 1)
            taken = slice(len(rows) * rank // world, len(rows) * (rank + 1) // world)
            keys = list(zip(*(whole[name].tolist() for name in IDS), strict=True))
            found = list(dict.fromkeys(zip(*(batch[name].tolist() for name in IDS), strict=True)))
            chosen = [keys.index(key) for key in found]
            assert len(chosen) == taken.stop - taken.start
            assert chosen == list(range(len(rows)))[taken]
            right = part_of(documents([rows[at] for at in chosen], given, step), given)
            for number, name in enumerate(FIELDS[:5]):
                values = [value[number] for document in right for value in document]
                assert batch[name].reshape(-1).tolist() == values, (name, step)
            lengths = [0]
            for document in right:
                lengths.append(lengths[-1] + len(document))
            cumulative = batch["cu_seqlens"].tolist()
            assert cumulative[: len(lengths)] == lengths
            assert {*cumulative[len(lengths) :]} <= {lengths[-1]}


def _begins(values: tuple[Any, ...], row: list[Any], at: int) -> bool:
    return bool(values[0] == EOT or values[0] != row[1][at - 1])
