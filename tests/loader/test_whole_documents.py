"""Rows of whole documents: none that fits is cut, and all tokens are there once."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.odd_tokens import LENGTH, MADE, TOKENS, checked_batches, learned
from support.sentences import refused

from benchmarks.made_up_dataset import EOT, make_dataset
from fineshards import BatchLoader, Mixture, TokenDataset, WholeDocuments
from fineshards.loader.whole_documents import pack_whole
from fineshards.storage.open import open_storage

FIELDS = ("inputs", "targets", "position_ids", "cu_seqlens", "loss_mask", "sample_ids")


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    folder = tmp_path_factory.mktemp("whole")
    make_dataset(open_storage(str(folder)), TOKENS, 1003, made=MADE, learned=learned)
    return TokenDataset(folder, sequence_length=LENGTH)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40))
def test_a_window_is_packed_as_the_rule_says(sizes: list[int]) -> None:
    length, starts = 10, [0, *np.cumsum(sizes)[:-1].tolist()]
    rows: list[list[tuple[int, int]]] = []
    for begin, size in zip(starts, sizes, strict=True):
        rows += [[(begin + at, length)] for at in range(0, size - length + 1, length)]
    rests = [(begin, size) for begin, size in zip(starts, sizes, strict=True) if size % length]
    long = [
        (begin + size - size % length, size % length)
        for begin, size in rests
        if size > length or begin == 0
    ]
    for rest in sorted(long, key=lambda item: -item[1]):
        rows.append([rest])
    short = [(begin, size) for begin, size in rests if size < length and begin > 0]
    for begin, size in sorted(short, key=lambda item: -item[1]):
        rooms = [length - sum(each for _, each in row) for row in rows]
        fitting = [row for row, room in enumerate(rooms) if room >= size]
        if fitting:
            rows[min(fitting, key=lambda row: rooms[row])].append((begin, size))
        else:
            rows.append([(begin, size)])
    begins, lengths, counts = pack_whole(np.array(starts), np.array(sizes), length)
    assert list(zip(begins, lengths, strict=True)) == [each for row in rows for each in row]
    assert counts.tolist() == list(map(len, rows))


def documents() -> list[bytes]:
    """The documents of at most T tokens, without those of the stream's ends."""
    tokens = MADE(0, TOKENS)
    starts = np.append(np.flatnonzero(tokens == EOT), TOKENS)
    return [tokens[begin:end].tobytes() for begin, end in pairwise(starts) if end - begin <= LENGTH]


@pytest.mark.parametrize("rows", [1, 8, 256])
def test_every_document_that_fits_is_whole_once(chat: TokenDataset, rows: int) -> None:
    whole = WholeDocuments(chat, rows)
    found, tokens, counted = [], [], 0
    for batch in BatchLoader(whole, 8, 3, fields=FIELDS, epochs=1):
        odd = (batch["targets"] % 2 == 1) & (batch["targets"] != EOT)
        assert np.array_equal(batch["loss_mask"], odd)
        counted += int(odd.sum())
        begins = np.append(np.flatnonzero(batch["position_ids"] == 0), batch["inputs"].size)
        assert batch["cu_seqlens"].tolist() == begins.tolist()
        flat = batch["inputs"].reshape(-1)
        for begin, end in pairwise(begins.tolist()):
            part = flat[begin:end]
            padding = len(part) > 1 and (part == EOT).all()
            # A document may be an EOT alone, and so may the padding.
            if not padding:
                found.append(part.tobytes())
                tokens.append(part)
                assert (part[1:] != EOT).all()
    assert set(documents()) <= set(found)
    stream = MADE(0, TOKENS)
    kept = np.sort(np.concatenate(tokens))
    # Without the EOTs, some of which are padding of one token.
    assert np.array_equal(kept[kept != EOT], np.sort(stream[stream != EOT]))
    assert counted == learned(1, TOKENS).sum()
    assert len(whole) < 1.2 * len(chat) or rows == 1


def test_the_rest_of_a_document_that_the_split_begins_with_follows_no_other(tmp_path: Path) -> None:
    """As `--test_shards` cuts it; `after_generation` does the same."""
    make_dataset(open_storage(str(tmp_path)), TOKENS, 1003, test_shards=1, made=MADE)
    dataset = TokenDataset(tmp_path, sequence_length=LENGTH)
    stream = MADE(1003, TOKENS)
    rest = int(np.flatnonzero(stream == EOT)[0])
    assert 0 < rest < LENGTH
    pairs, begun = set(pairwise(stream.tolist())), []
    for batch in BatchLoader(WholeDocuments(dataset), 8, fields=FIELDS, epochs=1):
        inputs, targets, counted = (batch[name] for name in ("inputs", "targets", "loss_mask"))
        found = zip(inputs[counted].tolist(), targets[counted].tolist(), strict=True)
        assert pairs.issuperset(found)
        begun += [each[:rest].tolist() for each in inputs if each[0] == stream[0]]
    assert begun == [stream[:rest].tolist()]


def test_its_rows_are_samples_like_others(chat: TokenDataset, tmp_path: Path) -> None:
    make_dataset(open_storage(str(tmp_path)), TOKENS, 1000, made=MADE)
    text = TokenDataset(tmp_path, sequence_length=LENGTH)
    whole = WholeDocuments(chat, 8)
    mix = Mixture({"chat": (whole, 0.5), "text": (text, 0.5)})
    fields = ("inputs", "targets", "loss_mask", "source_ids")

    def loader(**more: Any) -> BatchLoader:
        return BatchLoader(mix, 8, 3, fields=fields, **more)

    batches, states = checked_batches(loader())
    with loader(rank=1, world_size=2) as resumed:
        resumed.load_state_dict(states[4])
        again = next(resumed)
    assert all(np.array_equal(again[name], batches[5][name][4:]) for name in fields)
    with pytest.warns(UserWarning, match="prompts are trained on too"):
        plain = BatchLoader(whole, 8, epochs=1, prefetch=0)
    rows = np.concatenate(list(plain))
    drawn = [each.sample for step in range(plain.step) for each in plain.samples(step)]
    assert np.array_equal(rows, [whole[number] for number in drawn])
    state = plain.state_dict()
    for other in (chat, WholeDocuments(chat, 9)):
        assert "fingerprint" in refused(
            lambda other=other: BatchLoader(other, 8, epochs=1).load_state_dict(state)
        )
