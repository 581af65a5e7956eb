"""What packing does to the documents of a dataset, beside the rules of other trainers.

Run as `python -m benchmarks.packing FOLDER`: prints the tables of docs/loader.md for a dataset's
train split. Only the lengths of its documents matter, so the numbers are the same on any machine.
"""

import argparse
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fineshards.loader.packing import pack
from fineshards.loader.sample_sources import Numbers
from fineshards.loader.token_dataset import TokenDataset

_READ_TOKENS = 1 << 22
# nanochat's: documents that a row can choose from, and how many are read at a time.
BUFFER, BUFFER_READ = 1000, 128


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rule does to documents, as shares.

    cut: documents of at most T tokens that are not whole in one row. cut_tokens: their tokens, as a
    share of those of all such documents. dropped: tokens that no row has. padding: of the rows.
    """

    cut: float
    cut_tokens: float
    dropped: float = 0.0
    padding: float = 0.0


def document_starts(dataset: TokenDataset) -> Numbers:
    """Where the documents of a split begin."""
    found = []
    for at in range(0, dataset.tokens, _READ_TOKENS):
        tokens = dataset.read_tokens(at, min(at + _READ_TOKENS, dataset.tokens))
        found.append(np.flatnonzero(tokens == dataset.eot) + at)
    return np.concatenate(found)


def in_order(starts: Numbers, tokens: int, length: int) -> Outcome:
    """Documents one after the other, split every `length` tokens, as trainers did for years."""
    sizes = np.diff(starts, append=tokens)
    whole = starts // length == (starts + sizes - 1) // length
    return _outcome(sizes, whole, length)


def in_windows(starts: Numbers, tokens: int, length: int, rows: int) -> Outcome:
    """fineshards' packing."""
    sizes = np.diff(starts, append=tokens)
    whole = np.zeros(len(sizes), np.bool_)
    samples = (tokens - 1) // length
    for first in range(0, samples, rows):
        here = min(rows, samples - first)
        begin, end = first * length, (first + here) * length
        low, high = np.searchsorted(starts, (begin, end)).tolist()
        inner = starts[low:high] - begin
        window = inner if len(inner) and not inner[0] else np.append(0, inner)
        begins, lengths, _ = pack(window, here, length)
        order = np.argsort(begins)
        at = order[np.searchsorted(begins[order], inner)]
        whole[low:high] = (begins[at] == inner) & (lengths[at] == sizes[low:high])
    return _outcome(sizes, whole, length)


def nanochat(sizes: Numbers, length: int) -> Outcome:
    """The longest of a buffer that fits; if none does, the shortest, and its rest is dropped."""
    whole = np.ones(len(sizes), np.bool_)
    buffer = np.empty(0, np.int64)
    read = dropped = 0
    while True:
        room = length + 1
        while room:
            while len(buffer) < BUFFER:
                more = np.arange(read, min(read + BUFFER_READ, len(sizes)))
                if not len(more):
                    return _outcome(sizes[:read], whole[:read], length, dropped)
                buffer, read = np.append(buffer, more), read + len(more)
            lengths = sizes[buffer]
            fitting = np.where(lengths <= room, lengths, 0)
            at = int(np.argmax(fitting))
            if not fitting[at]:
                at = int(np.argmin(lengths))
                whole[buffer[at]] = False
                dropped += int(lengths[at]) - room
            room -= min(room, int(lengths[at]))
            buffer = np.delete(buffer, at)


def padded(sizes: Numbers, length: int, fragment: bool) -> Outcome:
    """OLMo-core's: best fit decreasing into as many rows as it takes, which are padded.

    Of documents longer than a row the rest is dropped, or it is an item of its own.
    """
    items = np.minimum(sizes, length)
    if fragment:
        full, rest = np.divmod(sizes, length)
        items = np.append(np.full(int(full.sum()), length), rest[rest > 0])
    rooms: list[int] = []
    rows = 0
    for item in (-np.sort(-items)).tolist():
        at = bisect_left(rooms, item)
        room = length if at == len(rooms) else rooms.pop(at)
        rows += room == length
        if room > item:
            insort(rooms, room - item)
    return _outcome(
        sizes,
        np.ones(len(sizes), np.bool_),
        length,
        int(sizes.sum() - items.sum()),
        1 - int(items.sum()) / (rows * length),
    )


def _outcome(
    sizes: Numbers, whole: np.ndarray, length: int, dropped: int = 0, padding: float = 0.0
) -> Outcome:
    short = sizes <= length
    cut = short & ~whole
    return Outcome(
        float(cut.sum() / short.sum()),
        float(sizes[cut].sum() / sizes[short].sum()),
        dropped / float(sizes.sum()),
        padding,
    )


def compare(dataset: TokenDataset, rows: Sequence[int]) -> dict[str, Outcome]:
    """The outcome of each rule."""
    starts, length = document_starts(dataset), dataset.sequence_length
    sizes = np.diff(starts, append=dataset.tokens)
    found = {"concat and split": in_order(starts, dataset.tokens, length)}
    for each in rows:
        found[f"Packing(rows={each})"] = in_windows(starts, dataset.tokens, length, each)
    found["nanochat"] = nanochat(sizes, length)
    found["OLMo-core, truncate"] = padded(sizes, length, fragment=False)
    found["OLMo-core, fragment"] = padded(sizes, length, fragment=True)
    return found


def main() -> None:
    """Prints a table for each sequence length."""
    parser = argparse.ArgumentParser(description="Compares rules of packing on a dataset.")
    parser.add_argument("folder")
    parser.add_argument("--sequence_length", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 256, 1024])
    given = parser.parse_args()
    for length in given.sequence_length:
        dataset = TokenDataset(given.folder, sequence_length=length)
        print(f"\nT = {length}\n\n| rule | cut | their tokens | dropped | padding |")
        print("|---|---|---|---|---|")
        for name, found in compare(dataset, given.rows).items():
            shares = (found.cut, found.cut_tokens, found.dropped, found.padding)
            print(f"| {name} | {' | '.join(f'{100 * share:.2g} %' for share in shares)} |")


if __name__ == "__main__":
    main()
