"""The loops of `table.py` for numba: the same arrays, number by number.

Never imported on the way to a first table: `accelerate.py` loads it in the background.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from sortition.grammars import table
from sortition.grammars.compose import DEAD, SELF, Composition, Flags, Ints, Wide, check_elements
from sortition.grammars.jit import FACTOR, FIRST, SHIFT

if TYPE_CHECKING:
    from sortition.grammars.table import Actions, Entries


@numba.njit(cache=True, nogil=True)
def _classes(map_of_word: Any, word_of_token: Any, start: Any, outcomes: Any) -> Any:
    """`table.classes_of`."""
    classes = np.empty(len(start), np.int64)
    class_of_map = np.zeros(len(start) - 1, np.int64)
    token_class = np.zeros(len(word_of_token), np.int32)
    count = 0
    for token in range(len(word_of_token)):
        number = map_of_word[word_of_token[token]]
        if number == DEAD:
            continue
        if class_of_map[number] == 0:
            classes[count] = number
            count += 1
            class_of_map[number] = count
        token_class[token] = class_of_map[number]
    token_classes = count + 1
    at = 0
    while at < count:
        for place in range(start[classes[at]], start[classes[at] + 1]):
            remainder = outcomes[0, place]
            if outcomes[1, place] < 0 and remainder != SELF and class_of_map[remainder] == 0:
                classes[count] = remainder
                count += 1
                class_of_map[remainder] = count
        at += 1
    return classes[:count].copy(), class_of_map, token_classes, token_class


def classes_of(composition: Composition) -> tuple[Wide, Wide, int, Ints]:
    """`table.classes_of`."""
    found: tuple[Wide, Wide, int, Ints] = _classes(
        composition.map_of_word, composition.word_of_token, composition.start, composition.outcomes
    )
    return found


@numba.njit(cache=True, nogil=True)
def _sorted_entries(
    classes: Any, start: Any, grouping: Any, group_start: Any, groups: Any, action_of_outcome: Any,
    states: int,
) -> Any:  # fmt: skip
    """State, class and action of all entries, by a counting sort."""
    place = np.zeros(states + 1, np.int64)
    for index in range(len(classes)):
        number = grouping[classes[index]]
        for at in range(group_start[number], group_start[number + 1]):
            place[groups[0, at] + 1] += 1
    for source in range(states):
        place[source + 1] += place[source]
    state = np.empty(place[-1], np.int32)
    unit, action = np.empty_like(state), np.empty_like(state)
    first = 0
    for index in range(len(classes)):
        number = grouping[classes[index]]
        for at in range(group_start[number], group_start[number + 1]):
            source = groups[0, at]
            state[place[source]] = source
            unit[place[source]] = index + 1
            action[place[source]] = action_of_outcome[first + groups[1, at]]
            place[source] += 1
        first += start[classes[index] + 1] - start[classes[index]]
    return state, unit, action


def entries_of(composition: Composition, classes: Wide, action_of_outcome: Ints, states: int) -> Entries:
    """`table.entries_of`."""
    grouping = composition.grouping[classes]
    check_elements(int((composition.group_start[grouping + 1] - composition.group_start[grouping]).sum()))
    return table.Entries(
        *_sorted_entries(
            classes, composition.start, composition.grouping, composition.group_start, composition.groups,
            action_of_outcome, states,
        )
    )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def _distinct_rows(bounds: Any, unit: Any, certain: Any) -> Any:
    """The row of each state, and the first state of each row."""
    states = len(bounds) - 1
    size = 16
    while size < 2 * states:
        size *= 2
    slots = np.full(size, -1, np.int32)
    hashes = np.empty(states, np.uint64)
    row_of_state, first = np.empty(states, np.int32), np.empty(states, np.int64)
    rows = 0
    for state in range(states):
        begin, end = bounds[state], bounds[state + 1]
        code = FIRST
        for place in range(begin, end):
            code = (code ^ np.uint64(2 * unit[place] + certain[place])) * FACTOR
            code ^= code >> SHIFT
        slot = np.int64(code & np.uint64(size - 1))
        while slots[slot] >= 0:
            row = slots[slot]
            other = bounds[first[row]]
            same = hashes[row] == code and bounds[first[row] + 1] - other == end - begin
            if same:
                for offset in range(end - begin):
                    if (
                        unit[other + offset] != unit[begin + offset]
                        or certain[other + offset] != certain[begin + offset]
                    ):
                        same = False
                        break
            if same:
                break
            slot = (slot + 1) & (size - 1)
        if slots[slot] < 0:
            slots[slot] = rows
            hashes[rows] = code
            first[rows] = state
            rows += 1
        row_of_state[state] = slots[slot]
    return row_of_state, first[:rows].copy()


@numba.njit(cache=True, nogil=True)
def _bits(bounds: Any, unit: Any, certain: Any, first: Any, words: int) -> Any:
    """Of each row, the bits that survive and those that are certain."""
    survives = np.zeros((len(first), words), np.uint32)
    certain_bits = np.zeros_like(survives)
    for row in range(len(first)):
        for place in range(bounds[first[row]], bounds[first[row] + 1]):
            bit = np.uint32(1 << (unit[place] & 31))
            survives[row, unit[place] >> 5] |= bit
            if certain[place]:
                certain_bits[row, unit[place] >> 5] |= bit
    return survives, certain_bits


def rows_of(
    bounds: Wide, unit: Ints, certain: Flags, classes: int
) -> tuple[Ints, NDArray[np.uint32], NDArray[np.uint32]]:
    """`table.rows_of`."""
    row_of_state, first = _distinct_rows(bounds, unit, certain)
    words = table.words_of_rows(len(first), classes)
    survives, certain_bits = _bits(bounds, unit, certain, first, words)
    return row_of_state, survives, certain_bits


@numba.njit(cache=True, nogil=True)
def _longest(
    state: Any, unit: Any, action: Any, target: Any, effect: Any, returns: Any, depth_limit: int
) -> Any:
    """`table.longest_exit`."""
    states = state[-1] + 1 if len(state) else 0
    bounds = np.searchsorted(state, np.arange(states + 1))
    # Which action leaves one more frame after which.
    edges = np.empty((1024, 2), np.int64)
    count = 0
    onward = np.empty(returns.shape[1] + 1, np.int64)
    seen = np.full(states + 1, -1, np.int64)
    leaves = False
    for ending in range(len(returns)):
        size = 0
        for site in range(returns.shape[1]):
            after = returns[ending, site]
            if 0 <= after < states and seen[after] != ending:
                seen[after] = ending
                onward[size] = after
                size += 1
        for leaving in range(len(effect)):
            if effect[leaving] != ~ending:
                continue
            leaves = True
            for index in range(size):
                begin, end = bounds[onward[index]], bounds[onward[index] + 1]
                place = begin + np.searchsorted(unit[begin:end], target[leaving])
                while place < end and unit[place] == target[leaving]:
                    if effect[action[place]] < 0:
                        if count == len(edges):
                            grown = np.empty((2 * count, 2), np.int64)
                            grown[:count] = edges
                            edges = grown
                        edges[count, 0], edges[count, 1] = leaving, action[place]
                        count += 1
                    place += 1
    exits = np.zeros(len(effect), np.int64)
    exits[effect < 0] = 1
    longest = 1 if leaves else 0
    grows = True
    while grows and longest < depth_limit:
        grows = False
        for index in range(count):
            longer = exits[edges[index, 1]] + 1
            if longer > exits[edges[index, 0]]:
                exits[edges[index, 0]] = longer
                longest = max(longest, longer)
                grows = True
    return min(longest, depth_limit)


def longest_exit(entries: Entries, actions: Actions, returns: Ints, depth_limit: int) -> int:
    """`table.longest_exit`."""
    found = _longest(
        entries.state, entries.unit, entries.action, actions.target, actions.effect, returns, depth_limit
    )
    return int(found)


REPLACES: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    table.classes_of: classes_of,
    table.entries_of: entries_of,
    table.rows_of: rows_of,
    table.longest_exit: longest_exit,
}

_NARROW = types.int32[::1]
_WIDE = types.int64[::1]
_TABLE = types.int32[:, ::1]
_FLAGS = types.boolean[::1]
LOOPS: Final[dict[Any, tuple[Any, ...]]] = {
    _classes: (_NARROW, types.Array(types.int32, 1, "C", readonly=True), _WIDE, _TABLE),
    _sorted_entries: (_WIDE, _WIDE, _NARROW, _WIDE, _TABLE, _NARROW, types.int64),
    _distinct_rows: (_WIDE, _NARROW, _FLAGS),
    _bits: (_WIDE, _NARROW, _FLAGS, _WIDE, types.int64),
    _longest: (_NARROW, _NARROW, _NARROW, _NARROW, _NARROW, _TABLE, types.int64),
}
