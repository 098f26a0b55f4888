"""The loops of `reader.py` for numba: the same masks.

Never imported on the way to a first mask: `accelerate.py` loads it in the background.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from sortition.grammars import reader

if TYPE_CHECKING:
    from sortition.grammars.reader import Mask, Reader, Stack


@numba.njit(cache=True, nogil=True)
def _grouped(token_class: Any, classes: int) -> Any:
    """`reader.grouped`: a counting sort."""
    starts = np.zeros(classes + 1, np.int32)
    for token in range(len(token_class)):
        starts[token_class[token] + 1] += 1
    for number in range(classes):
        starts[number + 1] += starts[number]
    by_class = np.empty(len(token_class), np.int32)
    place = starts.copy()
    for token in range(len(token_class)):
        by_class[place[token_class[token]]] = token
        place[token_class[token]] += 1
    return by_class, starts


def grouped(
    token_class: NDArray[np.uint16] | NDArray[np.int32], classes: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """`reader.grouped`."""
    found: tuple[NDArray[np.int32], NDArray[np.int32]] = _grouped(
        token_class.astype(np.int32, copy=False), classes
    )
    return found


@numba.njit(cache=True, nogil=True)
def _survivors(
    units: Any,
    row_of_state: Any,
    survives: Any,
    rank: Any,
    first_entry: Any,
    action: Any,
    rules: Any,
    returns: Any,
    depth_limit: int,
    state: Any,
    count: Any,
    sites: Any,
    counts: Any,
    bits: Any,
) -> int:
    """Apply every unit, as `Reader.apply` does, without going anywhere. Sites and counts begin at the top."""
    most = 0
    for first in units:
        unit, at, counted, seen = np.int64(first), state, count, 0
        survived = False
        while True:
            row, word = row_of_state[at], unit >> 5
            bit = np.uint32(1) << np.uint32(unit & 31)
            below = survives[row, word] & (bit - np.uint32(1))
            if survives[row, word] & bit == 0:
                break
            before = np.int64(rank[row, word])
            while below:
                below &= below - np.uint32(1)
                before += 1
            rule = np.int64(action[first_entry[at] + before])
            while rule >= 0 and not (rules[rule, 3] <= counted <= rules[rule, 4]):
                rule = rules[rule, 6]
            if rule < 0:
                break
            if rules[rule, 1] >= 0:
                survived = len(sites) - seen + rules[rule, 2] <= depth_limit
                break
            seen += 1
            if seen > len(sites):
                break
            at = np.int64(returns[~rules[rule, 1], sites[seen - 1]])
            if at < 0:
                break
            counted = counts[seen - 1]
            unit = rules[rule, 0]
        most = max(most, seen)
        if survived:
            bits[first >> 5] |= np.uint32(1) << np.uint32(first & 31)
    return most


def survivors(read: Reader, state: int, count: int, stack: Stack, bits: Mask) -> int:
    """`reader.survivors`."""
    first, last = read.conditional_start[state : state + 2].tolist()
    if first == last:
        return 0
    sites, counts = [], []
    while stack is not None:
        site, stack, _, counted = stack
        sites.append(site)
        counts.append(counted)
    seen: int = _survivors(
        read.conditional[first:last],
        read.row_of_state,
        read.survives,
        read.rank,
        read.first_entry,
        read.action,
        read.rules,
        read.returns,
        read.depth_limit,
        state,
        count,
        np.array(sites, np.int64),
        np.array(counts, np.int64),
        bits,
    )
    return seen


@numba.njit(cache=True, nogil=True)
def _tokens_of(bits: Any, classes: int, class_start: Any, by_class: Any, eligible: Any) -> Any:
    """`reader.tokens_of`."""
    wanted = 0
    for number in range(1, classes):
        if bits[number >> 5] >> np.uint32(number & 31) & np.uint32(1):
            wanted += class_start[number + 1] - class_start[number]
    # Most masks hold few tokens or nearly all that there are: begin at the nearer end.
    most = 2 * wanted > class_start[classes] - class_start[1]
    mask = eligible.copy() if most else np.zeros_like(eligible)
    for number in range(1, classes):
        if (bits[number >> 5] >> np.uint32(number & 31) & np.uint32(1) != 0) != most:
            for place in range(class_start[number], class_start[number + 1]):
                token = by_class[place]
                mask[token >> 5] ^= np.uint32(1) << np.uint32(token & 31)
    return mask


def tokens_of(read: Reader, bits: Mask) -> Mask:
    """`reader.tokens_of`."""
    mask: Mask = _tokens_of(bits, read.token_classes, read.class_start, read.by_class, read.eligible)
    return mask


REPLACES: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    reader.grouped: grouped,
    reader.survivors: survivors,
    reader.tokens_of: tokens_of,
}


def _read_only(kind: Any, dimensions: int) -> Any:
    """Arrays of tables cannot be written to; numba takes others there, too."""
    return types.Array(kind, dimensions, "C", readonly=True)


_NARROW = _read_only(types.int32, 1)
_TABLE = _read_only(types.int32, 2)
_STACK = types.int64[::1]
_MASK = types.uint32[::1]
LOOPS: Final[dict[Any, tuple[Any, ...]]] = {
    _grouped: (_NARROW, types.int64),
    _survivors: (
        _NARROW,
        _NARROW,
        _read_only(types.uint32, 2),
        _TABLE,
        _NARROW,
        _NARROW,
        _read_only(types.int64, 2),
        _TABLE,
        types.int64,
        types.int64,
        types.int64,
        _STACK,
        _STACK,
        _MASK,
    ),
    _tokens_of: (_MASK, types.int64, _NARROW, _NARROW, _MASK),
}
