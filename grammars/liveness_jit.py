"""The loops of `liveness.py` for numba: the same answers, found fact by fact.

Never imported on the way to a first table: `accelerate.py` loads it in the background.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numba
import numpy as np
from numba import types

from sortition.grammars import liveness
from sortition.grammars.jit import sort
from sortition.grammars.liveness import NEVER, Flags, Frames, Ints, Wide, sites_below


@numba.njit(nogil=True)
def _by(keys: Any, bound: int) -> Any:
    """Indices of the keys, those of one key together and in order: where each key's begin, and they."""
    start = np.zeros(bound + 2, np.int64)
    for key in keys:
        start[key + 2] += 1
    for key in range(bound):
        start[key + 2] += start[key + 1]
    indices = np.empty(len(keys), np.int64)
    for index in range(len(keys)):
        indices[start[keys[index] + 1]] = index
        start[keys[index] + 1] += 1
    return start, indices


@numba.njit(cache=True, nogil=True)
def _steps(move: Any, call: Any) -> Any:
    """`liveness.steps_of`."""
    states, columns = move.shape
    plain, calls = np.empty((2, move.size), np.int64), np.empty((3, move.size), np.int64)
    stay = enter = 0
    keys = np.empty(columns, np.int64)
    for source in range(states):
        count, before = 0, np.int64(-1)
        for column in range(columns):
            if move[source, column] >= 0:
                key = np.int64(call[source, column] + 1) * states + move[source, column]
                if key != before:
                    keys[count] = before = key
                    count += 1
        sort(keys, count)
        before = np.int64(-1)
        for key in keys[:count]:
            site, target = key // states - 1, key % states
            if key != before and site < 0:
                plain[0, stay], plain[1, stay] = source, target
                stay += 1
            elif key != before:
                calls[0, enter], calls[1, enter], calls[2, enter] = source, site, target
                enter += 1
            before = key
    return plain[:, :stay].copy(), calls[:, :enter].copy()


def steps_of(move: Ints, call: Ints) -> tuple[Wide, Wide]:
    """`liveness.steps_of`."""
    found: tuple[Wide, Wide] = _steps(np.ascontiguousarray(move), np.ascontiguousarray(call))
    return found


@numba.njit(cache=True, nogil=True)
def _spread(source: Any, target: Any, states: Any, labels: Any, seen: Any) -> None:
    """Mark each label where it is put, and wherever edges lead from there."""
    start, edges = _by(source, len(seen))
    waiting = np.empty((max(len(states), 1024), 2), np.int64)
    for index in range(len(states)):
        if seen[states[index], labels[index]]:
            continue
        seen[states[index], labels[index]] = True
        waiting[0, 0], waiting[0, 1] = states[index], labels[index]
        size = 1
        while size:
            size -= 1
            state, label = waiting[size]
            for place in range(start[state], start[state + 1]):
                following = target[edges[place]]
                if not seen[following, label]:
                    seen[following, label] = True
                    if size == len(waiting):
                        grown = np.empty((2 * size, 2), np.int64)
                        grown[:size] = waiting
                        waiting = grown
                    waiting[size, 0], waiting[size, 1] = following, label
                    size += 1


@numba.njit(nogil=True)
def _links(calls: Any, calls_start: Any, returns: Any, good: Any, endings: Any, count: int) -> Any:
    """`liveness._returns_of_calls`, grouped by the state to which a call returns.

    The calls are those into each state, `calls_start` says where they begin.
    """
    links = np.empty((1024, 3), np.int64)
    size = 0
    for index in range(count):
        state, ending = endings[index]
        if not good[state]:
            continue
        for place in range(calls_start[state], calls_start[state + 1]):
            onward = returns[ending, calls[1, place]]
            if onward >= 0:
                if size == len(links):
                    grown = np.empty((2 * size, 3), np.int64)
                    grown[:size] = links
                    links = grown
                links[size, 0], links[size, 1], links[size, 2] = calls[0, place], calls[1, place], onward
                size += 1
    start, order = _by(links[:size, 2], len(good))
    return start, links[order]


@numba.njit(nogil=True)
def _sites_that_return(returned: Any, good: Any, safe: Any, all_of_them: bool, found: Any) -> None:
    """Mark the sites where all endings, or some of them, return to good states, if they return to safe ones.

    There is a row for each site.
    """
    for site in range(len(returned)):
        well = all_of_them
        for onward in returned[site]:
            # Where an ending never returns to the site, that is as good as returning to what always ends.
            if onward >= 0 and all_of_them and safe[onward] and not good[onward]:
                well = False
                break
            if onward >= 0 and not all_of_them and good[onward]:
                well = True
                break
        found[site] = well


@numba.njit(cache=True, nogil=True)
def _room(
    plain: Any, calls: Any, ended: Any, below: Any, returns: Any, states: int, safe: Any, limit: int
) -> Any:
    """`liveness.room_needed`."""
    endings_in_all, sites = returns.shape
    need = np.full(states, NEVER, np.int64)
    site_need = np.full(sites, NEVER, np.int64)
    returned = returns.T.copy()
    plain_start, plain_edges = _by(plain[1], states)
    calls_start, calls_order = _by(calls[2], states)
    calls = calls[:, calls_order]
    below_start, below_order = _by(below[0], states)
    below = below[:, below_order]
    good, before = np.zeros(states, np.bool_), np.zeros(states, np.bool_)
    returns_well = np.zeros(sites, np.bool_)
    # The endings that each state can reach, as facts one after the other and as marks.
    marks = np.zeros((states, endings_in_all), np.bool_)
    facts = np.empty((max(1024, ended.shape[1]), 2), np.int64)
    count = 0
    whatever_ends = True
    for room in range(limit + 1):
        before[:] = good
        facts_before, count_before = facts[:count].copy(), count
        link_start, links = _links(calls, calls_start, returns, good, facts, count)
        good[:] = safe
        while True:
            _sites_that_return(returned, good, safe, whatever_ends, returns_well)
            if not whatever_ends:
                for site in range(sites):
                    returns_well[site] |= site_need[site] < room
            for index in range(count):
                marks[facts[index, 0], facts[index, 1]] = False
            count = 0
            at = 0
            for index in range(ended.shape[1]):
                if not marks[ended[0, index], ended[1, index]]:
                    marks[ended[0, index], ended[1, index]] = True
                    facts[count, 0], facts[count, 1] = ended[0, index], ended[1, index]
                    count += 1
            while at < count:
                state, ending = facts[at]
                at += 1
                if not good[state]:
                    continue
                following = plain_start[state + 1] - plain_start[state]
                more = following + link_start[state + 1] - link_start[state]
                if count + more > len(facts):
                    grown = np.empty((2 * (count + more), 2), np.int64)
                    grown[:count] = facts[:count]
                    facts = grown
                for place in range(more):
                    if place < following:
                        source = plain[0, plain_edges[plain_start[state] + place]]
                    else:
                        link = links[link_start[state] + place - following]
                        if not returns_well[link[1]]:
                            continue
                        source = link[0]
                    if not marks[source, ending]:
                        marks[source, ending] = True
                        facts[count, 0], facts[count, 1] = source, ending
                        count += 1
            start, order = _by(facts[:count, 0], states)
            settled = True
            for state in range(states):
                if not good[state]:
                    continue
                for place in range(below_start[state], below_start[state + 1]):
                    site = below[1, place]
                    way_out = False
                    for index in range(start[state], start[state + 1]):
                        onward = returns[facts[order[index], 1], site]
                        if onward >= 0 and safe[onward]:
                            way_out = True
                            break
                    if not way_out:
                        good[state] = False
                        settled = False
                        break
            if settled:
                break
        finished = True
        changed = room == 0
        for state in range(states):
            if good[state] and need[state] == NEVER:
                need[state] = room
            finished &= good[state] == safe[state]
            changed |= good[state] != before[state]
        for site in range(sites):
            if returns_well[site] and site_need[site] == NEVER:
                site_need[site] = room
        if finished:
            break
        changed |= count != count_before
        for index in range(count_before):
            changed |= not marks[facts_before[index, 0], facts_before[index, 1]]
        whatever_ends &= changed
    return need, site_need


def room_needed(frames: Frames, safe: Flags, limit: int) -> tuple[Wide, Wide]:
    """`liveness.room_needed`."""
    tables = frames.plain, frames.calls, frames.ended, sites_below(frames, safe), frames.returns
    need, site_need = _room(*map(np.ascontiguousarray, tables), frames.states, safe, limit)
    return need, site_need


def spread_labels(source: Wide, target: Wide, states: Wide, labels: Wide, shape: tuple[int, int]) -> Flags:
    """`liveness.spread_labels`."""
    seen = np.zeros(shape, np.bool_)
    _spread(*map(np.ascontiguousarray, (source, target, states, labels)), seen)
    return seen


REPLACES: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    liveness.room_needed: room_needed,
    liveness.spread_labels: spread_labels,
    liveness.steps_of: steps_of,
}

_WIDE = types.int64[::1]
_ROWS = types.int64[:, ::1]
LOOPS: Final[dict[Any, tuple[Any, ...]]] = {
    _spread: (_WIDE, _WIDE, _WIDE, _WIDE, types.boolean[:, ::1]),
    _steps: (types.int32[:, ::1], types.int32[:, ::1]),
    _room: (_ROWS, _ROWS, _ROWS, _ROWS, _ROWS, types.int64, types.boolean[::1], types.int64),
}
