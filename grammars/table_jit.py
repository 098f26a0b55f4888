"""The loops of `tabulation.py` for numba, and of what it makes: the same arrays, number by number.

Never imported on the way to a first table: `accelerate.py` loads it in the background.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numba
import numpy as np
from numba import types

from sortition.grammars import table_actions, table_classes, table_entries, tabulation
from sortition.grammars.compose import DEAD, NO_PUSH, SELF, Composition, Ints, Wide, check_elements
from sortition.grammars.jit import FACTOR, FIRST, SHIFT

if TYPE_CHECKING:
    from sortition.grammars.table_actions import Actions
    from sortition.grammars.table_entries import Entries, Rows


@numba.njit(cache=True, nogil=True)
def _classes(map_of_word: Any, word_of_token: Any, start: Any, outcomes: Any) -> Any:
    """`table_classes.classes_of`."""
    classes = np.empty(len(start), np.int64)
    # `DEAD` finds class 0 in one more place at the end; -1 is not known yet.
    class_of_map = np.full(len(start), -1, np.int32)
    class_of_map[DEAD] = 0
    token_class = np.empty(len(word_of_token), np.int32)
    count = 0
    for token in range(len(word_of_token)):
        number = map_of_word[word_of_token[token]]
        unit = class_of_map[number]
        if unit < 0:
            classes[count] = number
            count += 1
            class_of_map[number] = unit = count
        token_class[token] = unit
    token_classes = count + 1
    at = 0
    while at < count:
        for place in range(start[classes[at]], start[classes[at] + 1]):
            remainder = outcomes[0, place]
            if outcomes[1, place] < 0 and remainder != SELF and class_of_map[remainder] < 0:
                classes[count] = remainder
                count += 1
                class_of_map[remainder] = count
        at += 1
    return classes[:count].copy(), np.maximum(class_of_map[:-1], 0), token_classes, token_class


def classes_of(composition: Composition) -> tuple[Wide, Wide, int, Ints]:
    """`table_classes.classes_of`."""
    found: tuple[Wide, Wide, int, Ints] = _classes(
        composition.map_of_word, composition.word_of_token, composition.start, composition.outcomes
    )
    return found


@numba.njit(cache=True, nogil=True)
def _outcomes(classes: Any, start: Any, outcomes: Any) -> Any:
    """`table_actions.outcomes_of`."""
    count = 0
    for number in classes:
        count += start[number + 1] - start[number]
    target, effect = np.empty(count, np.int32), np.empty(count, np.int32)
    other, unit = np.empty(count, np.int64), np.empty(count, np.int64)
    count = others = 0
    for index in range(len(classes)):
        for place in range(start[classes[index]], start[classes[index] + 1]):
            target[count] = outcomes[0, place]
            other[others], unit[others], effect[others] = count, index + 1, outcomes[1, place]
            others += outcomes[1, place] != NO_PUSH
            count += 1
    return target, other[:others].copy(), unit[:others].copy(), effect[:others].copy()


def outcomes_of(composition: Composition, classes: Wide) -> tuple[Ints, Wide, Wide, Ints]:
    """`table_actions.outcomes_of`."""
    found: tuple[Ints, Wide, Wide, Ints] = _outcomes(classes, composition.start, composition.outcomes)
    return found


@numba.njit(cache=True, nogil=True)
def _spelled(parent: Any, site: Any, counted: Any, strings: Any) -> Any:
    """`table_actions.spelled`."""
    length = np.zeros(len(strings), np.int64)
    for index in range(len(strings)):
        string = strings[index]
        while parent[string] >= 0:
            string = parent[string]
            length[index] += 1
    longest = length.max()
    sites = np.full((len(strings), longest), -1, np.int32)
    counts = np.zeros((len(strings), longest), np.int32)
    guards = np.empty(len(strings), np.int32)
    for index in range(len(strings)):
        string = strings[index]
        for place in range(length[index] - 1, -1, -1):
            sites[index, place], counts[index, place] = site[string], counted[string]
            string = parent[string]
        guards[index] = counted[string]
    return sites, counts, guards


def spelled(composition: Composition, strings: Wide) -> tuple[Ints, Ints, Ints]:
    """`table_actions.spelled`."""
    found: tuple[Ints, Ints, Ints] = _spelled(
        composition.push_parent, composition.push_site, composition.push_count, strings
    )
    return found


@numba.njit(cache=True, nogil=True)
def _sorted_entries(
    classes: Any, start: Any, grouping: Any, group_start: Any, groups: Any, action_of_outcome: Any,
    place: Any, said: Any,
) -> Any:  # fmt: skip
    """Where the entries of each state begin, and class and action of all, by a counting sort.

    Given `place` full of zeros.
    """
    states = len(place) - 1
    for index in range(len(classes)):
        number = grouping[classes[index]]
        for at in range(group_start[number], group_start[number + 1]):
            place[groups[0, at] + 1] += 1
    for source in range(states):
        place[source + 1] += place[source]
    # Where the next entry of each state goes.
    after = place.copy()
    first = 0
    for index in range(len(classes)):
        number = grouping[classes[index]]
        for at in range(group_start[number], group_start[number + 1]):
            source = groups[0, at]
            said[after[source], 0] = index + 1
            said[after[source], 1] = action_of_outcome[first + groups[1, at]]
            after[source] += 1
        first += start[classes[index] + 1] - start[classes[index]]


def entries_of(composition: Composition, classes: Wide, action_of_outcome: Ints, states: int) -> Entries:
    """`table_entries.entries_of`."""
    grouping = composition.grouping[classes]
    count = int((composition.group_start[grouping + 1] - composition.group_start[grouping]).sum())
    check_elements(count)
    # NumPy asks for huge pages and compiled loops do not: to write all over the entries takes half the time.
    entries = table_entries.Entries(np.zeros(states + 1, np.int64), np.empty((count, 2), np.int32))
    _sorted_entries(
        classes, composition.start, composition.grouping, composition.group_start, composition.groups,
        action_of_outcome, *entries,
    )  # fmt: skip
    return entries


@numba.njit(cache=True, nogil=True)
def _distinct_rows(bounds: Any, said: Any, room: Any, need: Any, token_classes: int) -> Any:
    """The row of each state, the first state of each row, and the classes of tokens that are not certain."""
    states = len(bounds) - 1
    size = 16
    while size < 2 * states:
        size *= 2
    slots = np.full(size, -1, np.int32)
    hashes = np.empty(states, np.uint64)
    row_of_state, first = np.empty(states, np.int32), np.empty(states, np.int64)
    conditional_start, conditional = np.zeros(states + 1, np.int32), np.empty(len(said), np.int32)
    rows = waiting = 0
    for source in range(states):
        begin, end = bounds[source], bounds[source + 1]
        code = FIRST
        for place in range(begin, end):
            unit, certain = said[place, 0], room[said[place, 1]] <= need[source]
            conditional[waiting] = unit
            waiting += (unit < token_classes) & (not certain)
            code = (code ^ np.uint64(2 * unit + certain)) * FACTOR
            code ^= code >> SHIFT
        conditional_start[source + 1] = waiting
        slot = np.int64(code & np.uint64(size - 1))
        while slots[slot] >= 0:
            row = slots[slot]
            other = bounds[first[row]]
            same = hashes[row] == code and bounds[first[row] + 1] - other == end - begin
            if same:
                for place in range(begin, end):
                    like = other + place - begin
                    if said[place, 0] != said[like, 0] or (room[said[place, 1]] <= need[source]) != (
                        room[said[like, 1]] <= need[first[row]]
                    ):
                        same = False
                        break
            if same:
                break
            slot = (slot + 1) & (size - 1)
        if slots[slot] < 0:
            slots[slot] = rows
            hashes[rows] = code
            first[rows] = source
            rows += 1
        row_of_state[source] = slots[slot]
    return row_of_state, first[:rows].copy(), conditional_start, conditional[:waiting].copy()


@numba.njit(cache=True, nogil=True)
def _bits(bounds: Any, said: Any, room: Any, need: Any, first: Any, words: int) -> Any:
    """Of each row, the bits that survive, those that are certain, and how many are in the words before."""
    survives = np.zeros((len(first), words), np.uint32)
    certain = np.zeros_like(survives)
    rank = np.empty((len(first), words), np.int32)
    for row in range(len(first)):
        begin, end = bounds[first[row]], bounds[first[row] + 1]
        before = 0
        for place in range(begin, end):
            word, bit = said[place, 0] >> 5, np.uint32(1) << np.uint32(said[place, 0] & 31)
            while before <= word:
                rank[row, before] = place - begin
                before += 1
            survives[row, word] |= bit
            if room[said[place, 1]] <= need[first[row]]:
                certain[row, word] |= bit
        rank[row, before:] = end - begin
    return survives, certain, rank


def rows_of(entries: Entries, room: Wide, need: Wide, token_classes: int, classes: int) -> Rows:
    """`table_entries.rows_of`."""
    row_of_state, first, conditional_start, conditional = _distinct_rows(*entries, room, need, token_classes)
    words = table_entries.words_of_rows(len(first), classes)
    survives, certain, rank = _bits(*entries, room, need, first, words)
    starts = entries.first[:-1].astype(np.int32)
    return table_entries.Rows(row_of_state, survives, certain, rank, starts, conditional_start, conditional)


@numba.njit(cache=True, nogil=True)
def _longest(bounds: Any, said: Any, target: Any, effect: Any, returns: Any, depth_limit: int) -> Any:
    """`tabulation.longest_exit`."""
    states = len(bounds) - 1
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
            if after >= 0 and seen[after] != ending:
                seen[after] = ending
                onward[size] = after
                size += 1
        for leaving in range(len(effect)):
            if effect[leaving] != ~ending:
                continue
            leaves = True
            for index in range(size):
                begin, end = bounds[onward[index]], bounds[onward[index] + 1]
                place = begin + np.searchsorted(said[begin:end, 0], target[leaving])
                while place < end and said[place, 0] == target[leaving]:
                    if effect[said[place, 1]] < 0:
                        if count == len(edges):
                            grown = np.empty((2 * count, 2), np.int64)
                            grown[:count] = edges
                            edges = grown
                        edges[count, 0], edges[count, 1] = leaving, said[place, 1]
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
    """`tabulation.longest_exit`."""
    found = _longest(*entries, actions.target, actions.effect, returns, depth_limit)
    return int(found)


REPLACES: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    table_classes.classes_of: classes_of,
    table_actions.outcomes_of: outcomes_of,
    table_actions.spelled: spelled,
    table_entries.entries_of: entries_of,
    table_entries.rows_of: rows_of,
    tabulation.longest_exit: longest_exit,
}

_NARROW = types.int32[::1]
_WIDE = types.int64[::1]
_TABLE = types.int32[:, ::1]
_PART = types.int32[:, :]
LOOPS: Final[dict[Any, tuple[Any, ...]]] = {
    _classes: (_NARROW, types.Array(types.int32, 1, "C", readonly=True), _WIDE, _PART),
    _outcomes: (_WIDE, _WIDE, _PART),
    _spelled: (_NARROW, _NARROW, _NARROW, _WIDE),
    _sorted_entries: (_WIDE, _WIDE, _NARROW, _WIDE, _PART, _NARROW, _WIDE, _TABLE),
    _distinct_rows: (_WIDE, _TABLE, _WIDE, _WIDE, types.int64),
    _bits: (_WIDE, _TABLE, _WIDE, _WIDE, _WIDE, types.int64),
    _longest: (_WIDE, _TABLE, _NARROW, _NARROW, _TABLE, types.int64),
}
