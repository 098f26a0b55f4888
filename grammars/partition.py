"""Equivalence classes: of code units by the sets that mention them, and of states by what follows them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sortition.grammars import accelerate
from sortition.grammars.expr import Ranges
from sortition.grammars.work import charge, meter

ITEM_STEPS: Final = 12
"""Steps that an item takes to be told from others."""

MEMBERS_PER_STEP: Final = 4
"""Intervals of units that are found to be members of a set in one step."""

CELLS_PER_STEP: Final = 12
"""Successors of items that are looked at in one step."""

FEW_AFFECTED: Final = 100
ITEMS_PER_AFFECTED: Final = 200
"""Of affected items, so many more for so many in all are looked at one by one, and more all at once, which
goes through all items: with 50 or 200, partitions of 400 to 40,000 items take the same time to a tenth."""


class UnitClasses:
    """The coarsest partition of ``range(size)`` in which every given set is a union of classes.

    Attributes:
        boundaries: int32 [intervals], the first unit of each interval, ascending from 0.
        unit_class: int32 [intervals], the class of each interval.
        count: the number of classes.
        of: the classes of each set, ascending, sets in the order given.
    """

    def __init__(self, sets: Sequence[Ranges], size: int) -> None:
        cuts = {0}
        for ranges in sets:
            for low, high in ranges:
                cuts.add(low)
                if high + 1 < size:
                    cuts.add(high + 1)
        ordered = sorted(cuts)
        position = {cut: index for index, cut in enumerate(ordered)}
        position[size] = len(ordered)
        members: list[list[int]] = [[] for _ in ordered]
        spend = meter().charge
        for number, ranges in enumerate(sets):
            for low, high in ranges:
                inside = members[position[low] : position[high + 1]]
                spend(1 + len(inside) // MEMBERS_PER_STEP)
                for numbers in inside:
                    numbers.append(number)
        class_of: dict[tuple[int, ...], int] = {}
        unit_class = [class_of.setdefault(tuple(member), len(class_of)) for member in members]
        self.boundaries: NDArray[np.int32] = np.array(ordered, dtype=np.int32)
        self.unit_class: NDArray[np.int32] = np.array(unit_class, dtype=np.int32)
        self.count = len(class_of)
        self._size = size
        classes: list[list[int]] = [[] for _ in sets]
        for member, number in class_of.items():
            for index in member:
                classes[index].append(number)
        self.of: list[tuple[int, ...]] = [tuple(each) for each in classes]

    def spread(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """A value for each unit, given one for each class."""
        sizes = np.diff(np.append(self.boundaries, self._size))
        return np.repeat(values[self.unit_class], sizes)


def distinct_columns(table: NDArray[np.integer | np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One column of each kind, and which kind each column is, both in order of first appearance.

    Args:
        table: integer or bool [rows, columns].

    Returns:
        int64 [kinds], columns that stand for their kind, and int64 [columns], the kind of each.
    """
    kinds: dict[bytes, int] = {}
    first: list[int] = []
    kind_of = []
    for column, values in enumerate(np.ascontiguousarray(table.T)):
        kind = kinds.setdefault(values.tobytes(), len(kinds))
        if kind == len(first):
            first.append(column)
        kind_of.append(kind)
    return np.array(first, dtype=np.int64), np.array(kind_of, dtype=np.int64)


def joined_by_successors(
    labels: NDArray[np.integer], successors: Sequence[NDArray[np.integer]]
) -> NDArray[np.int64]:
    """`coarsest_partition`, as fast as it can be had.

    Raises:
        TooLarge: it takes too much work.
    """
    charge(ITEM_STEPS * len(labels) + sum(rows.size for rows in successors) // CELLS_PER_STEP)
    return accelerate.best(coarsest_partition)(labels, successors)


def coarsest_partition(
    labels: NDArray[np.integer], successors: Sequence[NDArray[np.integer]]
) -> NDArray[np.int64]:
    """Refine `labels` until items of equal label have equally labelled successors.

    The smaller half of every split gets the new label and only its predecessors are looked at again
    (Hopcroft, 1971), so a chain of n states costs n steps, not n rounds over all states.

    Args:
        labels: integer [items], the first partition.
        successors: one integer [items of this kind, width] array per kind of item, in the order of
            `labels`; entries are items, -1 stands for none.

    Returns:
        int64 [items], the final labels, numbered from 0 in order of first appearance.
    """
    _, labels = np.unique(labels, return_inverse=True)
    offsets = np.cumsum([0] + [len(rows) for rows in successors]).tolist()
    first, sources = predecessors(offsets, successors)
    # As lists, once few are affected: a chain has a round for each of its items, and what a round does
    # without need is what chains cost.
    begin: list[int] = []
    source: list[int] = []
    block_size: list[int] = []
    next_label = int(labels.max()) + 1 if len(labels) else 0
    # One more label for "no successor", reached through index -1.
    padded = np.append(labels.astype(np.int32), np.int32(-1))
    affected = list(range(len(labels)))
    few = FEW_AFFECTED + len(labels) // ITEMS_PER_AFFECTED
    while affected:
        if len(affected) > few:
            places = np.array(affected)
            keys = _keys(affected, places, offsets, successors, padded)
            changed_places, next_label = _split(places, keys, padded, next_label)
            affected = _before(changed_places, first, sources)
            block_size = []
            continue
        if not block_size:
            block_size = np.bincount(padded[:-1], minlength=next_label).tolist()
        if not begin:
            begin, source = first.tolist(), sources.tolist()
        groups: dict[tuple[int, bytes], list[int]] = {}
        for offset, rows in zip(offsets, successors, strict=False):
            begins, ends = bisect_left(affected, offset), bisect_left(affected, offset + len(rows))
            if begins == ends:
                continue
            inside = affected[begins:ends]
            places = np.array(inside)
            signatures = padded[rows[places - offset]].tobytes()
            length = len(signatures) // len(inside)
            beginnings = range(0, len(signatures), length) if length else [0] * len(inside)
            for item, label, at in zip(inside, padded[places].tolist(), beginnings, strict=True):
                groups.setdefault((label, signatures[at : at + length]), []).append(item)
        by_label: dict[int, list[list[int]]] = {}
        for (label, _), items in groups.items():
            by_label.setdefault(label, []).append(items)
        changed: list[int] = []
        for label, parts in by_label.items():
            untouched = block_size[label] - sum([len(part) for part in parts])
            if untouched == 0 and len(parts) == 1:
                continue
            largest = max(parts, key=len)
            for part in parts:
                # The largest piece keeps the old label, be it among the affected or the untouched.
                if part is largest and len(part) > untouched:
                    continue
                padded[part] = next_label
                block_size.append(len(part))
                block_size[label] -= len(part)
                next_label += 1
                changed.extend(part)
            if untouched and len(largest) > untouched:
                # Then the untouched ones are the smaller piece, and must be told apart by a new label.
                members = np.flatnonzero(padded[:-1] == label)
                rest = np.setdiff1d(members, np.array(largest))
                padded[rest] = next_label
                block_size.append(len(rest))
                block_size[label] -= len(rest)
                next_label += 1
                changed.extend(rest.tolist())
        affected = sorted(set().union(*[source[begin[item] : begin[item + 1]] for item in changed]))
    final = padded[:-1]
    _, first_seen, inverse = np.unique(final, return_index=True, return_inverse=True)
    rank = np.empty(len(first_seen), dtype=np.int64)
    rank[np.argsort(first_seen)] = np.arange(len(first_seen))
    renumbered: NDArray[np.int64] = rank[inverse]
    return renumbered


def _keys(
    affected: list[int],
    places: NDArray[np.int64],
    offsets: Sequence[int],
    successors: Sequence[NDArray[np.integer]],
    padded: NDArray[np.int32],
) -> list[bytes]:
    """The label of each of some items, ascending, and those of its successors."""
    keys: list[bytes] = []
    for offset, rows in zip(offsets, successors, strict=False):
        inside = places[bisect_left(affected, offset) : bisect_left(affected, offset + len(rows))]
        labels = np.empty((len(inside), 1 + rows.shape[1]), np.int32)
        labels[:, 0] = padded[inside]
        labels[:, 1:] = padded[rows[inside - offset]]
        whole = np.dtype((np.void, labels.shape[1] * labels.itemsize))
        row: list[Any] = labels.view(whole).reshape(-1).tolist()
        keys += row
    return keys


def _split(
    places: NDArray[np.int64], keys: Sequence[bytes], padded: NDArray[np.int32], next_label: int
) -> tuple[NDArray[np.int64], int]:
    """Tell items with different keys apart: those whose labels are new, and the next new label.

    Of what had one label, the largest piece keeps it, be it among these items or among the others.
    """
    number = {key: kind for kind, key in enumerate(dict.fromkeys(keys))}
    kind = np.fromiter(map(number.__getitem__, keys), np.int64, len(keys))
    label = np.empty(len(number), np.int64)
    label[kind] = padded[places]
    size = np.bincount(kind)
    others = np.bincount(padded[:-1], minlength=next_label)
    np.subtract.at(others, label, size)
    order = np.lexsort((size, label))
    largest = order[np.append(label[order[1:]] != label[order[:-1]], True)]
    keeping = largest[size[largest] > others[label[largest]]]
    new = np.ones(len(number), np.bool_)
    new[keeping] = False
    new_label = np.full(len(number), -1, np.int32)
    new_label[new] = np.arange(next_label, next_label + np.count_nonzero(new))
    changed = places[new[kind]]
    # Where the others are the smaller piece, they are told apart.
    smaller = label[keeping]
    smaller = smaller[others[smaller] > 0]
    rest = np.full(next_label, -1, np.int32)
    next_label += int(np.count_nonzero(new))
    rest[smaller] = np.arange(next_label, next_label + len(smaller))
    untouched = np.ones(len(padded) - 1, np.bool_)
    untouched[places] = False
    apart = np.flatnonzero(untouched)
    apart = apart[rest[padded[apart]] >= 0]
    padded[apart] = rest[padded[apart]]
    padded[changed] = new_label[kind[new[kind]]]
    return np.concatenate([changed, apart]), next_label + len(smaller)


def _before(items: NDArray[np.int64], first: NDArray[np.int64], sources: NDArray[np.int64]) -> list[int]:
    """The items that lead to any of these, ascending; `first` and `sources` as of `predecessors`."""
    count = first[items + 1] - first[items]
    places = np.repeat(first[items] - np.cumsum(count) + count, count) + np.arange(count.sum())
    found = np.zeros(len(first) - 1, np.bool_)
    found[sources[places]] = True
    affected: list[int] = np.flatnonzero(found).tolist()
    return affected


def predecessors(
    offsets: Sequence[int], successors: Sequence[NDArray[np.integer]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The items that lead to each item; arguments as `coarsest_partition`, and where each kind begins.

    Returns:
        int64 [items + 1], where those of each item begin among all, and int64 [all], they.
    """
    found = []
    for offset, rows in zip(offsets, successors, strict=False):
        # Neighbours often lead to the same place: the first of them is enough to sort.
        differs = rows >= 0
        differs[:, 1:] &= rows[:, 1:] != rows[:, :-1]
        source, column = np.divmod(np.flatnonzero(differs), max(rows.shape[1], 1))
        found.append(rows[source, column].astype(np.int64) * offsets[-1] + source + offset)
    target, sources = np.divmod(np.unique(np.concatenate(found)), max(offsets[-1], 1))
    return np.searchsorted(target, np.arange(offsets[-1] + 1)), sources
