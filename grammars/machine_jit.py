"""The loops of `machine.py` for numba: the same answers.

Never imported on the way to a first machine: `accelerate.py` loads it in the background.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from sortition.grammars import machine


@numba.njit(nogil=True)
def _roomy(array: Any, size: int) -> Any:
    """The array, or a larger one with the same content, with room for so many items."""
    if size <= len(array):
        return array
    grown = np.empty(max(size, 2 * len(array)), array.dtype)
    grown[: len(array)] = array
    return grown


@numba.njit(cache=True, nogil=True)
def _deepest(move: Any, call: Any, returns: Any) -> Any:
    """`machine.deepest`, -1 if calls recur."""
    states, classes = move.shape
    endings, sites = returns.shape
    # Frames are told apart by the state in which they are entered; inner ones are found frame by frame.
    seen = np.full(states, -1, np.int32)
    called = np.full(states, -1, np.int32)
    returned = np.full(sites, -1, np.int32)
    known = np.zeros(states, np.bool_)
    waiting = np.empty(states + 1, np.int32)
    entries = np.empty(states + 1, np.int32)
    first_inner = np.zeros(states + 1, np.int64)
    last_inner = np.zeros(states + 1, np.int64)
    inner = np.empty(256, np.int32)
    used = 0
    entries[0] = 0
    known[0] = True
    count = 1
    at = 0
    while at < count:
        entry = entries[at]
        at += 1
        first_inner[entry] = used
        seen[entry] = entry
        waiting[0] = entry
        size = 1
        while size:
            size -= 1
            state = waiting[size]
            for unit_class in range(classes):
                target = move[state, unit_class]
                if target < 0:
                    continue
                site = call[state, unit_class]
                if site < 0:
                    if seen[target] != entry:
                        seen[target] = entry
                        waiting[size] = target
                        size += 1
                    continue
                if called[target] != entry:
                    called[target] = entry
                    inner = _roomy(inner, used + 1)
                    inner[used] = target
                    used += 1
                    if not known[target]:
                        known[target] = True
                        entries[count] = target
                        count += 1
                if returned[site] != entry:
                    returned[site] = entry
                    for ending in range(endings):
                        onward = returns[ending, site]
                        if onward >= 0 and seen[onward] != entry:
                            seen[onward] = entry
                            waiting[size] = onward
                            size += 1
        last_inner[entry] = used
    # The longest path, depth first.
    height = np.full(states, -1, np.int64)
    place = first_inner.copy()
    active = np.zeros(states, np.bool_)
    waiting[0] = 0
    active[0] = True
    size = 1
    while size:
        entry = waiting[size - 1]
        if place[entry] < last_inner[entry]:
            target = inner[place[entry]]
            if active[target]:
                return -1
            place[entry] += 1
            if height[target] < 0:
                active[target] = True
                waiting[size] = target
                size += 1
            continue
        highest = 0
        for index in range(first_inner[entry], last_inner[entry]):
            highest = max(highest, height[inner[index]] + 1)
        height[entry] = highest
        active[entry] = False
        size -= 1
    return height[0]


def deepest(move: NDArray[np.int64], call: NDArray[np.int64], returns: NDArray[np.int64]) -> int | None:
    """`machine.deepest`."""
    depth = int(_deepest(*(np.ascontiguousarray(table, np.int32) for table in (move, call, returns))))
    return None if depth < 0 else depth


REPLACES: Final[dict[Callable[..., Any], Callable[..., Any]]] = {machine.deepest: deepest}

_TABLE = types.int32[:, ::1]
LOOPS: Final[dict[Any, tuple[Any, ...]]] = {_deepest: (_TABLE, _TABLE, _TABLE)}
