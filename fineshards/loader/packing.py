"""Packing: how the documents of a window fill its rows, so that few of them are cut.

A window is `rows * T` consecutive tokens of a split. It becomes exactly `rows` rows of T tokens:

- A document is what lies between two EOTs, or between one and the window's edge. Each T tokens of a
  longer document fill a row of their own, first the lowest rows. What remains of it, or a shorter
  document, is an item.
- The items are placed best fit decreasing: the longest first, among equals the earliest, each in
  the row with the least room that is enough, among equals the lowest.
- Items that fit nowhere are laid one after the other, in the order of the stream, and cut to fill
  what is left of the rows.

Everything is computed with integers and stable sorts, so all machines find the same.
"""

import json
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from fineshards.errors import UsageError, quoted
from fineshards.loader.arguments import checked_integer
from fineshards.loader.boundaries import joined_ranges
from fineshards.loader.sample_sources import Numbers


@dataclass(frozen=True, slots=True)
class Packing:
    """How `BatchLoader` packs documents into rows of T tokens: whole where they fit.

    The tokens of `rows` consecutive samples, a window, become as many rows. No token is lost,
    repeated or padded, and the target of a token is its successor in the dataset, as without
    packing. docs/loader.md has the rules and what they cost.

    Args:
        rows: Rows per window; 256 by default. More rows cut fewer documents.
        max_documents: The most documents in a row, so that `cu_seqlens` has the same shape in every
            batch. A row that would have more counts its last ones as one. Default: no limit.
        shuffle_windows: Windows whose rows are shuffled together; 16 by default.

    Raises:
        UsageError: A number is not a positive integer.

    Example:
        >>> from fineshards import Packing
        >>> Packing(rows=64)
        Packing(rows=64, max_documents=None, shuffle_windows=16)
    """

    rows: int = 256
    max_documents: int | None = None
    shuffle_windows: int = 16

    def __post_init__(self) -> None:
        for name in ("rows", "max_documents", "shuffle_windows"):
            value = getattr(self, name)
            if value is not None or name != "max_documents":
                object.__setattr__(self, name, checked_integer(f"Packing: {name}", value, 1))

    def saved(self) -> str:
        """As JSON text, for saved states; see `Ramp.saved`.

        The version changes when any window is packed differently.
        """
        return json.dumps({"version": 1, **asdict(self)})


def check_packing(packing: object, shuffle_shards: int | None) -> None:
    """Raises UsageError unless it is a Packing, and no shards are to be shuffled."""
    if not isinstance(packing, Packing):
        raise UsageError(f"packing is {quoted(packing)}; give Packing(rows=256).")
    if shuffle_shards is not None:
        raise UsageError(
            f"shuffle_shards is {shuffle_shards}, but packed rows are shuffled by windows. Leave "
            "it out, and give Packing(shuffle_windows=…)."
        )


def pack(
    starts: Numbers, rows: int, length: int, max_documents: int | None = None, windows: int = 1
) -> tuple[Numbers, Numbers, Numbers]:
    """The segments of windows of `rows * length` tokens: of many in little more time than of one.

    starts: int64, increasing: where documents begin in the windows, which are laid one after the
    other; one does at the beginning of each. max_documents: a row that holds so many takes no other
    whole document. Returns where each segment begins, and its length, row by row; and the borders
    of rows: row r has segments `[borders[r], borders[r + 1])`.
    """
    sizes = np.diff(starts, append=windows * rows * length)
    filling, begins, items = divided(starts, sizes, length)
    # Rows that one document fills: the first ones of each window.
    filled = np.bincount(filling // (rows * length), minlength=windows)
    first_rows = np.arange(windows) * rows
    filled_rows = joined_ranges(first_rows, first_rows + filled)

    # All items are shorter than a row, so those of a window come before those of the next one.
    window = begins // (rows * length)
    order = stable_order(window * length - items)
    counts = np.bincount(window, minlength=windows)
    row_of = _best_fit(items[order], counts, first_rows + filled, rows, length, max_documents)
    placed, row_of = order[row_of >= 0], row_of[row_of >= 0]
    rooms = np.full(windows * rows, length)
    rooms[filled_rows] = 0
    np.subtract.at(rooms, row_of, items[placed])

    # The other items, one after the other, are cut where one ends and where a row is full.
    left = np.ones(len(items), np.bool_)
    left[placed] = False
    left_begins = begins[left]
    item_ends, room_ends = np.cumsum(items[left]), np.cumsum(rooms)
    cuts = np.sort(np.concatenate((np.zeros(1, np.int64), item_ends, room_ends)))
    sizes_cut = np.diff(cuts)
    at, sizes_cut = cuts[:-1][sizes_cut > 0], sizes_cut[sizes_cut > 0]
    item = np.searchsorted(item_ends, at, side="right")
    cut_begins = left_begins[item] + at - (item_ends - items[left])[item]
    cut_rows = np.searchsorted(room_ends, at, side="right")

    all_rows = np.concatenate((filled_rows, row_of, cut_rows))
    into = stable_order(all_rows)
    return (
        np.concatenate((filling, begins[placed], cut_begins))[into],
        np.concatenate((np.full(len(filling), length), items[placed], sizes_cut))[into],
        np.append(0, np.cumsum(np.bincount(all_rows, minlength=windows * rows))),
    )


def divided(starts: Numbers, sizes: Numbers, length: int) -> tuple[Numbers, Numbers, Numbers]:
    """Where documents fill rows of their own, where the rests begin, and how long these are."""
    whole, rests = np.divmod(sizes, length)
    filling = np.repeat(starts, whole) + length * joined_ranges(0 * whole, whole)
    return filling, (starts + whole * length)[rests > 0], rests[rests > 0]


def _best_fit(
    items: Numbers,
    counts: Numbers,
    firsts: Numbers,
    rows: int,
    length: int,
    max_documents: int | None,
) -> Numbers:
    """The row of each item; -1 for one that fits nowhere.

    items: of one window after the other, each of decreasing length. counts: how many a window has.
    firsts: its first row that no document fills.
    """
    stops = np.arange(1, len(counts) + 1) * rows
    size = len(counts) * rows
    # More than half a row: each takes an empty row, as long as there is one.
    row_of = joined_ranges(firsts, firsts + counts)
    alone = (2 * items > length) & (row_of < np.repeat(stops, counts))
    room = np.full(size, length)
    room[row_of[alone]] -= items[alone]
    left = (max_documents - (room < length)).tolist() if max_documents else None
    rooms, needs = (room * size + np.arange(size)).tolist(), (items * size).tolist()
    taken, end = list[int](), 0
    windows = zip(firsts.tolist(), stops.tolist(), counts.tolist(), strict=True)
    for first, stop, count in windows:
        begin, end = end, end + count
        placed = int(np.count_nonzero(alone[begin:end]))
        free = rooms[first + placed if max_documents == 1 else first : stop]
        taken += best_fit(free, needs[begin + placed : end], size, left)
    row_of[~alone] = np.fromiter(taken, np.int64, len(taken))
    return row_of


def best_fit(
    free: list[int], needs: Sequence[int], unit: int, left: list[int] | None = None
) -> list[int]:
    """The row of each item: that with the least room that is enough; -1 if there is none.

    free: of each row its room times `unit` plus its number, sorted: the first that is large enough
    is the best fit. Changes. needs: the lengths of items times `unit`, decreasing. left: how many
    documents each row has room for, counted down; None for no limit.
    """
    taken: list[int] = []
    # Rows with less room take no more item.
    least = needs[-1] if needs else 0
    for need in needs:
        place = bisect_left(free, need)
        if place == len(free):
            taken.append(-1)
            continue
        best = free.pop(place)
        taken.append(best % unit)
        if left is not None:
            left[best % unit] -= 1
            if not left[best % unit]:
                continue
        if best - need >= least:
            insort(free, best - need, 0, place)
    return taken


def stable_order(keys: Numbers) -> Numbers:
    """As a stable argsort, which takes six times as long as sorting numbers."""
    order: Numbers = np.sort(keys * len(keys) + np.arange(len(keys))) % len(keys)
    return order
