"""The loops of `partition.py` for numba: the same partitions, number by number.

Never imported on the way to a first machine: `accelerate.py` loads it in the background.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from sortition.grammars import partition
from sortition.grammars.jit import FACTOR, FIRST, SHIFT, borrowed


@numba.njit(nogil=True)
def _parts(labels: Any) -> Any:
    """A refinable partition of items, one part per label.

    These are the items part by part, their places, the part of each; then, of each part, its first place,
    the one past its last, and how many items at its front are marked; the parts with marks; and how many
    there are of all parts and of those.
    """
    items = len(labels)
    parts = labels.max() + 1 if items else 0
    first, past = np.zeros(items + 1, np.int64), np.zeros(items + 1, np.int64)
    for item in range(items):
        past[labels[item]] += 1
    for part in range(parts):
        first[part] = past[part - 1] if part else 0
        past[part] += first[part]
    elements, place = np.empty(items, np.int64), np.empty(items, np.int64)
    filled = first.copy()
    for item in range(items):
        place[item] = filled[labels[item]]
        elements[place[item]] = item
        filled[labels[item]] += 1
    marks, touched = np.zeros(items + 1, np.int64), np.zeros(items + 1, np.int64)
    return elements, place, labels.copy(), first, past, marks, touched, np.array([parts, 0])


@numba.njit(nogil=True)
def _mark(parts: Any, element: int) -> None:
    elements, place, part, first, _, marks, touched, counts = parts
    its = part[element]
    at = place[element]
    front = first[its] + marks[its]
    if at < front:
        return
    elements[at] = elements[front]
    place[elements[at]] = at
    elements[front] = element
    place[element] = front
    if marks[its] == 0:
        touched[counts[1]] = its
        counts[1] += 1
    marks[its] += 1


@numba.njit(nogil=True)
def _split(parts: Any) -> None:
    """Tell what is marked from what is not; the smaller piece of each part becomes a new one."""
    elements, _, part, first, past, marks, touched, counts = parts
    while counts[1]:
        counts[1] -= 1
        its = touched[counts[1]]
        middle = first[its] + marks[its]
        marks[its] = 0
        if middle == past[its]:
            continue
        new = counts[0]
        if middle - first[its] <= past[its] - middle:
            first[new], past[new] = first[its], middle
            first[its] = middle
        else:
            first[new], past[new] = middle, past[its]
            past[its] = middle
        for index in range(first[new], past[new]):
            part[elements[index]] = new
        counts[0] += 1


@numba.njit(nogil=True)
def _successors(first: Any, second: Any) -> Any:
    """Of each item, what follows it: where that begins, and columns and items."""
    items = len(first) + len(second)
    start = np.zeros(items + 1, np.int64)
    for item in range(items):
        row = first[item] if item < len(first) else second[item - len(first)]
        start[item + 1] = start[item] + (row >= 0).sum()
    column, target = np.empty((2, start[-1]), np.int32)
    at = 0
    for item in range(items):
        row = first[item] if item < len(first) else second[item - len(first)]
        for index in range(len(row)):
            if row[index] >= 0:
                column[at], target[at] = index, row[index]
                at += 1
    return start, column, target


@numba.njit(nogil=True)
def _predecessors(start: Any, target: Any) -> Any:
    """Of each item, those that it follows: where they begin, and they, some of them more than once."""
    items = len(start) - 1
    begin = np.zeros(items + 2, np.int64)
    for item in range(items):
        before = -1
        for place in range(start[item], start[item + 1]):
            # Neighbouring classes often lead to the same place.
            if target[place] != before:
                before = target[place]
                begin[before + 2] += 1
    for item in range(items):
        begin[item + 2] += begin[item + 1]
    source = np.empty(begin[-1], np.int32)
    for item in range(items):
        before = -1
        for place in range(start[item], start[item + 1]):
            if target[place] != before:
                before = target[place]
                source[begin[before + 1]] = item
                begin[before + 1] += 1
    return begin, source


@numba.njit(nogil=True)
def _alike(label: Any, successors: Any, one: int, other: int) -> Any:
    """Whether two items have equal labels and equally labelled successors."""
    start, column, target = successors
    first, second = start[one], start[other]
    size = start[one + 1] - first
    if label[one] != label[other] or start[other + 1] - second != size:
        return False
    for index in range(size):
        if column[first + index] != column[second + index]:
            return False
        if label[target[first + index]] != label[target[second + index]]:
            return False
    return True


@numba.njit(nogil=True)
def _grouped(label: Any, successors: Any, affected: Any, count: int, slots: Any, groups: Any) -> Any:
    """Tell items apart by their labels and those of their successors: the group of each; how many groups.

    Every group is known by its first item, which stands in one of the slots, whose hash is below it.
    """
    start, column, target = successors
    size = 16
    while size < 2 * count:
        size *= 2
    slots[:size] = -1
    found = 0
    for index in range(count):
        item = affected[index]
        code = FIRST ^ np.uint64(label[item])
        for place in range(start[item], start[item + 1]):
            code = (code ^ np.uint64((np.int64(column[place]) << 32) | label[target[place]])) * FACTOR
            code ^= code >> SHIFT
        slot = np.int64(code & np.uint64(size - 1))
        while slots[slot] >= 0 and not _alike(label, successors, affected[slots[slot]], item):
            slot = (slot + 1) & (size - 1)
        if slots[slot] < 0:
            slots[slot] = index
            groups[index] = found
            found += 1
        else:
            groups[index] = groups[slots[slot]]
    return found


@numba.njit(nogil=True)
def _refined(blocks: Any, successors: Any, predecessors: Any, label: Any, scratch: Any) -> None:
    """Split blocks until items of one block have successors of the same blocks."""
    blocks, successors, label = borrowed(blocks), borrowed(successors), borrowed(label)
    begin, source = borrowed(predecessors)
    affected, groups, slots, order, group_start, queued = borrowed(scratch)
    elements, first_of, past = blocks[0], blocks[3], blocks[4]
    count = len(affected)
    while count:
        found = _grouped(label, successors, affected, count, slots, groups)
        group_start[: found + 2] = 0
        for index in range(count):
            group_start[groups[index] + 2] += 1
        for group in range(found):
            group_start[group + 2] += group_start[group + 1]
        for index in range(count):
            order[group_start[groups[index] + 1]] = affected[index]
            group_start[groups[index] + 1] += 1
        known = blocks[7][0]
        for group in range(found):
            for index in range(group_start[group], group_start[group + 1]):
                _mark(blocks, order[index])
            _split(blocks)
        count = 0
        for new in range(known, blocks[7][0]):
            for index in range(first_of[new], past[new]):
                item = elements[index]
                label[item] = new
                for place in range(begin[item], begin[item + 1]):
                    if not queued[source[place]]:
                        queued[source[place]] = True
                        affected[count] = source[place]
                        count += 1
        for index in range(count):
            queued[affected[index]] = False


@numba.njit(cache=True, nogil=True)
def _refine(labels: Any, first: Any, second: Any) -> Any:
    """`partition.coarsest_partition`, of items whose labels count from 0 on."""
    items = len(labels)
    blocks = _parts(labels)
    block = blocks[2]
    label = block.astype(np.int32)
    successors = _successors(first, second)
    scratch = (
        np.arange(items),
        np.empty(items, np.int64),
        np.empty(4 * items + 32, np.int64),
        np.empty(items, np.int64),
        np.empty(items + 2, np.int64),
        np.zeros(items, np.bool_),
    )
    _refined(blocks, successors, _predecessors(successors[0], successors[2]), label, scratch)
    count = 0
    number_of = np.full(items + 1, -1, np.int64)
    final = np.empty(items, np.int64)
    for item in range(items):
        if number_of[block[item]] < 0:
            number_of[block[item]] = count
            count += 1
        final[item] = number_of[block[item]]
    return final


def coarsest_partition(labels: NDArray[np.int32], successors: list[NDArray[np.int32]]) -> NDArray[np.int64]:
    """`partition.coarsest_partition`, of one or two kinds of items."""
    tables = [np.ascontiguousarray(table, np.int32) for table in successors]
    tables += [np.empty((0, 0), np.int32)] * (2 - len(tables))
    _, kinds = np.unique(labels, return_inverse=True)
    refined: NDArray[np.int64] = _refine(kinds.astype(np.int64), *tables)
    return refined


REPLACES: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    partition.coarsest_partition: coarsest_partition
}

_TABLE = types.int32[:, ::1]
LOOPS: Final[dict[Any, tuple[Any, ...]]] = {_refine: (types.int64[::1], _TABLE, _TABLE)}
