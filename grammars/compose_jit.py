"""The inner loops of `compose.py` for numba: the same maps by the same numbers.

Never imported on the way to a first table: `accelerate.py` loads it in the background.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numba
import numpy as np
from numba import types

from sortition.grammars.compose import DEAD, NOWHERE, SPECIAL, UNKNOWN, Composer, Ints, Wide

if TYPE_CHECKING:
    from sortition.grammars.machine import Machine

PENDING: Final = -4
"""A composition that is about to be made."""

_FIRST: Final = np.uint64(0x9E3779B97F4A7C15)
_FACTOR: Final = np.uint64(0x9FB21C651E98DF25)
_SHIFT: Final = np.uint64(28)


@numba.njit(cache=True, nogil=True)
def _look_up(
    map_of_node: Any, parent: Any, unit: Any, first: int, memo: Any, columns: int, missing: Any
) -> tuple[int, int]:
    """Enter the maps that the memo knows; the keys of the others go to `missing`, once each.

    Returns the number of those, and of nodes that may be live.
    """
    count, live = 0, 0
    for index in range(len(parent)):
        before = map_of_node[parent[index]]
        number = DEAD
        if before >= 0:
            live += 1
            key = before * columns + unit[index]
            number = memo[key]
            if number == UNKNOWN:
                memo[key] = PENDING
                missing[count] = key
                count += 1
        map_of_node[first + index] = number
    return count, live


@numba.njit(cache=True, nogil=True)
def _moved(
    begin: Any, sizes: Any, units: Any, elements: Any, plain: Any, columns: int,
    at: Any, to: Any, effect: Any, special: Any,
) -> int:  # fmt: skip
    """`Composer._moved`, into the last four arguments; returns the number of special elements."""
    index = 0
    count = 0
    for pair in range(len(begin)):
        unit = units[pair]
        for place in range(begin[pair], begin[pair] + sizes[pair]):
            pushed = elements[2, place]
            target = SPECIAL if pushed < 0 else plain[np.int64(elements[1, place]) * columns + unit]
            at[index] = place
            to[index] = target
            effect[index] = pushed
            if target == SPECIAL:
                special[count] = index
                count += 1
            index += 1
    return count


@numba.njit(cache=True, nogil=True)
def _numbered(
    at: Any, to: Any, effect: Any, sizes: Any, elements: Any, start: Any, count: int,
    slots: Any, hashes: Any, numbers: Any,
) -> int:  # fmt: skip
    """`Composer._numbered`, into `numbers`; returns the number of maps."""
    last = len(slots) - 1
    index = 0
    for pair in range(len(sizes)):
        used = start[count]
        end = used
        code = _FIRST
        for index in range(index, index + sizes[pair]):  # noqa: B020
            target = to[index]
            if target != NOWHERE:
                source = elements[0, at[index]]
                elements[0, end] = source
                elements[1, end] = target
                elements[2, end] = effect[index]
                code = (code ^ np.uint64(np.uint32(source))) * _FACTOR
                code = (code ^ np.uint64(np.uint32(target))) * _FACTOR
                code = (code ^ np.uint64(np.uint32(effect[index]))) * _FACTOR
                code ^= code >> _SHIFT
                end += 1
        index += 1
        if end == used:
            numbers[pair] = DEAD
            continue
        slot = np.int64(code & np.uint64(last))
        while True:
            number = slots[slot]
            if number < 0:
                slots[slot] = count
                hashes[count] = code
                start[count + 1] = end
                numbers[pair] = count
                count += 1
                break
            first = start[number]
            same = hashes[number] == code and start[number + 1] - first == end - used
            if same:
                for offset in range(end - used):
                    if (
                        elements[0, first + offset] != elements[0, used + offset]
                        or elements[1, first + offset] != elements[1, used + offset]
                        or elements[2, first + offset] != elements[2, used + offset]
                    ):
                        same = False
                        break
            if same:
                numbers[pair] = number
                break
            slot = (slot + 1) & last
    return count


@numba.njit(cache=True, nogil=True)
def _fill(slots: Any, hashes: Any, count: int) -> None:
    """Put the first maps into empty slots."""
    last = len(slots) - 1
    for number in range(count):
        slot = np.int64(hashes[number] & np.uint64(last))
        while slots[slot] >= 0:
            slot = (slot + 1) & last
        slots[slot] = number


def _arrays(size: int) -> tuple[Wide, Ints]:
    """Room for what `_moved` finds."""
    return np.empty((2, size), np.int64), np.empty((2, size), np.int32)


class FastComposer(Composer):
    """A `Composer` whose loops are compiled."""

    def __init__(self, machine: Machine) -> None:
        self._slots = np.full(1 << 12, -1, np.int32)
        self._hashes = np.zeros(1 << 11, np.uint64)
        self._spare: list[tuple[Wide, Ints]] = []
        self._lent: list[tuple[Wide, Ints]] = []
        super().__init__(machine)

    def descend(self, map_of_node: Ints, parent: Ints, unit: Wide, first: int) -> bool:
        missing = np.empty(len(parent), np.int64)
        place = map_of_node, parent, unit, first
        count, live = _look_up(*place, self._memo, self._columns, missing)
        if count:
            missing = np.sort(missing[:count])
            self._memo[missing] = UNKNOWN
            self._compose_missing(missing)
            _look_up(*place, self._memo, self._columns, missing)
        return live > 0

    def _moved(self, begin: Wide, sizes: Wide, units: Wide) -> tuple[Wide, Ints, Ints, Wide]:
        total = int(sizes.sum())
        # Fresh pages cost more than these loops, so arrays are used again. Composing remainders of special
        # elements comes here before the first arrays are given back.
        wide, narrow = self._spare.pop() if self._spare else _arrays(0)
        if total > wide.shape[1]:
            wide, narrow = _arrays(2 * total)
        at, special, to, effect = wide[0, :total], wide[1, :total], narrow[0, :total], narrow[1, :total]
        count = _moved(
            begin, sizes, units, self._elements, self._plain, self._columns, at, to, effect, special
        )
        self._lent.append((wide, narrow))
        return at, to, effect, special[:count]

    def _numbered(self, at: Wide, to: Ints, effect: Ints, sizes: Wide) -> Ints:
        if self._lent:
            self._spare.append(self._lent.pop())
        most = self._count + len(sizes)
        if 2 * most > len(self._slots):
            self._grow(most)
        numbers = np.empty(len(sizes), np.int32)
        self._count = _numbered(
            at,
            to,
            effect,
            sizes,
            self._elements,
            self._start,
            self._count,
            self._slots,
            self._hashes,
            numbers,
        )
        return numbers

    def _grow(self, most: int) -> None:
        """Have slots for so many maps, half of them empty."""
        size = 1 << (4 * most).bit_length()
        hashes = np.zeros(size // 2, np.uint64)
        hashes[: self._count] = self._hashes[: self._count]
        self._hashes = hashes
        self._slots = np.full(size, -1, np.int32)
        _fill(self._slots, hashes, self._count)


_NARROW = types.int32[::1]
_WIDE = types.int64[::1]
_CODES = types.uint64[::1]
_FIXED = types.Array(types.int32, 1, "C", readonly=True)
_ELEMENTS = types.int32[:, ::1]
_INDEX = types.int64
_SIGNATURES: Final[dict[Any, tuple[Any, ...]]] = {
    _look_up: (_NARROW, _FIXED, _WIDE, _INDEX, _NARROW, _INDEX, _WIDE),
    _moved: (_WIDE, _WIDE, _WIDE, _ELEMENTS, _NARROW, _INDEX, _WIDE, _NARROW, _NARROW, _WIDE),
    _numbered: (_WIDE, _NARROW, _NARROW, _WIDE, _ELEMENTS, _WIDE, _INDEX, _NARROW, _CODES, _NARROW),
    _fill: (_NARROW, _CODES, _INDEX),
}


def load() -> None:
    """Have all loops compiled, from numba's cache where they are there; after that nothing ever compiles."""
    for loop, signature in _SIGNATURES.items():
        loop.compile(signature)
        loop.disable_compile()


def cached() -> bool:
    """Whether numba's cache on disk has the loops as they are in this file."""
    written = Path(__file__).stat().st_mtime
    for loop in _SIGNATURES:
        name = f"{Path(__file__).stem}.{loop.py_func.__name__}-*.nbi"
        if all(index.stat().st_mtime < written for index in Path(loop.stats.cache_path).glob(name)):
            return False
    return True


if __name__ == "__main__":
    # Whoever waits for this has better things to do.
    if hasattr(os, "nice"):
        os.nice(10)
    # As a module of its own name, because numba files what it compiles under that.
    importlib.import_module("sortition.grammars.compose_jit").load()
