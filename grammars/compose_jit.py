"""The walk of `compose.py` for numba: the same maps, found one after the other instead of level by level.

Never imported on the way to a first table: `accelerate.py` loads it in the background.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from sortition.grammars.compose import (
    DEAD,
    IDENTITY,
    NO_PUSH,
    NOWHERE,
    SELF,
    SPECIAL,
    UNKNOWN,
    Composer,
    Ints,
    Wide,
)

if TYPE_CHECKING:
    from sortition.grammars.machine import Machine
    from sortition.grammars.trie import Trie

NO_ROOM: Final = -5
"""A composition that has to be made again once there is more room."""

WAITS: Final = -6
"""A composition that needs another one first."""

_FIRST: Final = np.uint64(0x9E3779B97F4A7C15)
_FACTOR: Final = np.uint64(0x9FB21C651E98DF25)
_SHIFT: Final = np.uint64(28)
_HALF: Final = np.uint64(32)


@intrinsic
def _borrowed(_: Any, array: Any) -> Any:
    """The same array, of which numba counts no references: in loops this small, that takes most of the time.

    Whoever calls compiled code with the array holds it.
    """

    def without_owner(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        view.meminfo = cgutils.get_null_value(view.meminfo.type)
        return view._getvalue()

    return array(array), without_owner


@numba.njit(nogil=True)
def _push_slot(strings: Any, below: int, site: int) -> Any:
    """The slot of the string `below` with this site on top, or the empty one where it would be."""
    parent, sites, slots, _ = strings
    last = len(slots) - 1
    code = (_FIRST ^ np.uint64(below)) * _FACTOR
    code = (code ^ (code >> _SHIFT) ^ np.uint64(site)) * _FACTOR
    slot = np.int64((code ^ (code >> _SHIFT)) & np.uint64(last))
    while slots[slot] >= 0 and (parent[slots[slot]] != below or sites[slots[slot]] != site):
        slot = (slot + 1) & last
    return slot


@numba.njit(nogil=True)
def _push(strings: Any, below: int, site: int) -> Any:
    """The number of the string `below` with this site on top."""
    parent, sites, slots, count = strings
    slot = _push_slot(strings, below, site)
    if slots[slot] < 0:
        parent[count[0]] = below
        sites[count[0]] = site
        slots[slot] = count[0]
        count[0] += 1
    return np.int64(slots[slot])


@numba.njit(nogil=True)
def _read(machine: Any, strings: Any, state: Any, string: Any, unit: int) -> Any:
    """What becomes of a state and a string after one more byte: target, effect, and whether the byte is left.

    The target is `NOWHERE` where it cannot be read, and the identity of the ending where the frame is left.
    """
    move, call, ending, leaf, returns, identity_of_ending = machine[:6]
    lapsed = False
    while move[state, unit] < 0:
        # The frame lapses: its caller reads the byte.
        its = ending[state]
        if its < 0:
            return np.int64(NOWHERE), np.int64(string), False
        if string == NO_PUSH:
            lapsed = True
            break
        state = returns[its, strings[1][string]]
        string = strings[0][string]
        if state < 0:
            return np.int64(NOWHERE), np.int64(string), False
    if not lapsed:
        if call[state, unit] >= 0:
            string = _push(strings, string, call[state, unit])
        state = move[state, unit]
        while leaf[state] and string != NO_PUSH:
            state = returns[ending[state], strings[1][string]]
            string = strings[0][string]
            if state < 0:
                return np.int64(NOWHERE), np.int64(string), False
        if not leaf[state]:
            return np.int64(state), np.int64(string), False
    its = ending[state]
    rest = identity_of_ending[its]
    return np.int64(NOWHERE if rest == DEAD else rest), np.int64(~its), lapsed


@numba.njit(nogil=True)
def _compose(key: int, machine: Any, maps: Any, strings: Any, needed: Any) -> Any:
    """`Composer._compose` of one map and one byte class.

    `WAITS` if another composition, then among the needed, has to be made first; `NO_ROOM` for want of room.
    """
    plain, identities = machine[6], machine[7]
    start, elements, memo, _, _, counts, seen = maps
    columns = machine[0].shape[1]
    number, unit = key // columns, key % columns
    began = number < identities
    first, last = start[number], start[number + 1]
    used = start[counts[0]]
    if (
        used + last - first > elements.shape[1]
        or counts[0] + 2 > len(start)
        or strings[3][0] + last - first > len(strings[0])
    ):
        return NO_ROOM
    end = used
    itself = 0
    for place in range(first, last):
        target, effect = elements[1, place], elements[2, place]
        left = effect < 0 and target != SELF
        if effect >= 0:
            moved = plain[target, unit]
            if moved == SPECIAL:
                moved, effect, left = _read(machine, strings, target, effect, unit)
            target = moved
            if target == NOWHERE:
                continue
            if left and began:
                left, target = False, SELF
        if left:
            rest = memo[target * columns + unit]
            if rest == UNKNOWN:
                needed[0] = target * columns + unit
                return WAITS
            if rest == DEAD:
                continue
            target = rest
        if effect < 0 and target == SELF:
            itself += 1
        elements[0, end], elements[1, end], elements[2, end] = elements[0, place], target, effect
        end += 1
    if itself:
        end = _without_unreturnable(machine, elements, used, end, seen, counts)
    memo[key] = _numbered(maps, used, end)
    return memo[key]


@numba.njit(nogil=True)
def _without_unreturnable(machine: Any, elements: Any, used: int, end: int, seen: Any, counts: Any) -> Any:
    """`Composer._drop_unreturnable`: the end of those that are left."""
    return_start, return_state = machine[8], machine[9]
    counts[1] += 1
    mark = counts[1]
    for place in range(used, end):
        if elements[2, place] >= 0 or elements[1, place] != SELF:
            seen[elements[0, place]] = mark
    grows = True
    while grows:
        grows = False
        for place in range(used, end):
            source, target, effect = elements[0, place], elements[1, place], elements[2, place]
            if effect < 0 and target == SELF and seen[source] != mark:
                for at in range(return_start[~effect], return_start[~effect + 1]):
                    if seen[return_state[at]] == mark:
                        seen[source] = mark
                        grows = True
                        break
    kept = used
    for place in range(used, end):
        if seen[elements[0, place]] == mark:
            for row in range(3):
                elements[row, kept] = elements[row, place]
            kept += 1
    return kept


@numba.njit(nogil=True)
def _hash(elements: Any, first: int, last: int) -> Any:
    code = _FIRST
    for place in range(first, last):
        # Only one multiplication has to wait for the element before.
        item = np.uint64(np.uint32(elements[0, place])) * _FIRST
        item ^= (np.uint64(np.uint32(elements[1, place])) << _HALF) | np.uint64(np.uint32(elements[2, place]))
        code = (code ^ item) * _FACTOR
        code ^= code >> _SHIFT
    return code


@numba.njit(nogil=True)
def _numbered(maps: Any, used: int, end: int) -> Any:
    """The number of the map that stands after all others, which is entered if it is new."""
    start, elements, _, slots, hashes, counts, _ = maps
    if end == used:
        return np.int64(DEAD)
    last = len(slots) - 1
    code = _hash(elements, used, end)
    slot = np.int64(code & np.uint64(last))
    while slots[slot] >= 0:
        number = slots[slot]
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
            return np.int64(number)
        slot = (slot + 1) & last
    fresh = counts[0]
    slots[slot] = fresh
    hashes[fresh] = code
    start[fresh + 1] = end
    counts[0] = fresh + 1
    return np.int64(fresh)


@numba.njit(nogil=True)
def _composed(key: int, machine: Any, maps: Any, strings: Any, waiting: Any) -> Any:
    """A composition, and first of all those that it needs; or `NO_ROOM`."""
    memo = maps[2]
    waiting[0] = key
    size = 1
    while size:
        found = _compose(waiting[size - 1], machine, maps, strings, waiting[size:])
        if found == NO_ROOM or (found == WAITS and size + 1 == len(waiting)):
            return NO_ROOM
        size += 1 if found == WAITS else -1
    return np.int64(memo[key])


@numba.njit(cache=True, nogil=True)
def _walk(
    map_of_node: Any, parent: Any, unit: Any, level_start: Any, level: Any,
    move: Any, call: Any, ending: Any, leaf: Any, returns: Any, identity_of_ending: Any, plain: Any,
    identities: int, return_start: Any, return_state: Any,
    start: Any, elements: Any, memo: Any, slots: Any, hashes: Any, counts: Any, seen: Any,
    push_parent: Any, push_site: Any, push_slots: Any, push_count: Any, waiting: Any,
) -> Any:  # fmt: skip
    """Find the maps of the nodes from one level on; the level for which there was no more room."""
    machine = (
        _borrowed(move), _borrowed(call), _borrowed(ending), _borrowed(leaf), _borrowed(returns),
        _borrowed(identity_of_ending), _borrowed(plain), identities, _borrowed(return_start),
        _borrowed(return_state),
    )  # fmt: skip
    maps = (
        _borrowed(start), _borrowed(elements), _borrowed(memo), _borrowed(slots), _borrowed(hashes),
        _borrowed(counts), _borrowed(seen),
    )  # fmt: skip
    strings = _borrowed(push_parent), _borrowed(push_site), _borrowed(push_slots), _borrowed(push_count)
    waiting = _borrowed(waiting)
    columns = move.shape[1]
    for number in range(counts[2], counts[0]):
        # The identities, or those that stood in fewer slots.
        hashes[number] = _hash(elements, start[number], start[number + 1])
        slot = np.int64(hashes[number] & np.uint64(len(slots) - 1))
        while slots[slot] >= 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = number
    for string in range(push_count[1], push_count[0]):
        push_slots[_push_slot(strings, push_parent[string], push_site[string])] = string
    while level < len(level_start) - 1:
        live = False
        for node in range(level_start[level], level_start[level + 1]):
            before = map_of_node[parent[node]]
            found = np.int64(DEAD)
            if before >= 0:
                live = True
                key = np.int64(before) * columns + unit[node]
                found = np.int64(memo[key])
                if found == UNKNOWN:
                    found = _composed(key, machine, maps, strings, waiting)
                    if found == NO_ROOM:
                        return level
            map_of_node[node] = found
        if not live:
            break
        level += 1
    return len(level_start) - 1


def _fixed(array: NDArray[Any]) -> NDArray[Any]:
    """The array, read-only as those of a trie are."""
    array.setflags(write=False)
    return array


class FastComposer(Composer):
    """A `Composer` whose walk is compiled; it numbers the maps in another order."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._machine = (
            np.ascontiguousarray(machine.move),
            np.ascontiguousarray(machine.call),
            machine.ending,
            self._leaf,
            np.ascontiguousarray(self._returns),
            self._identity_of_ending,
            self._plain.reshape(machine.move.shape),
            self._identities,
            self._return_start,
            self._return_state,
        )
        # How many maps there are, a mark, and how many maps are in slots; as for strings.
        self._counts = np.array([self._count, 0, 0])
        self._push_count = np.array([1, 0])
        self._slots = self._push_slots = self._waiting = np.empty(0, np.int32)
        self._hashes = np.empty(0, np.uint64)
        self._seen = np.zeros(self._states, np.int64)
        self._grow()

    def walk(self, trie: Trie) -> Ints:
        map_of_node = np.full(len(trie.parent) + 1, DEAD, np.int32)
        map_of_node[-1] = IDENTITY
        self._find(map_of_node, trie.parent, self.byte_class[trie.byte], trie.level_start)
        return map_of_node

    def step(self, maps: NDArray[np.integer], units: Wide) -> Ints:
        count = len(maps)
        found = np.append(maps, np.full(count, DEAD)).astype(np.int32)
        above = np.arange(count, dtype=np.int32)
        self._find(
            found,
            _fixed(np.append(above, above)),
            np.append(units, units),
            _fixed(np.array([count, 2 * count])),
        )
        return found[count:]

    def _find(self, map_of_node: Ints, parent: Ints, unit: Wide, level_start: Wide) -> None:
        """Fill in the maps of all nodes."""
        level = 0
        while True:
            level = _walk(
                map_of_node, parent, unit, level_start, level, *self._machine, self._start, self._elements,
                self._memo, self._slots, self._hashes, self._counts, self._seen, self._push_parent,
                self._push_site, self._push_slots, self._push_count, self._waiting,
            )  # fmt: skip
            self._count = self._counts[2] = int(self._counts[0])
            self._push_count[1] = self._push_count[0]
            if level == len(level_start) - 1:
                break
            self._grow()

    def _grow(self) -> None:
        """Make room for twice as many maps and strings as there are."""
        self._reserve(max(1024, self._count), max(int(self._start[self._count]), 1024) + self._states)
        size = 1 << (2 * len(self._start)).bit_length()
        self._slots = np.full(size, -1, np.int32)
        self._hashes = np.empty(len(self._start), np.uint64)
        strings = 2 * int(self._push_count[0]) + 2 * self._states
        self._push_parent = np.resize(self._push_parent, strings)
        self._push_site = np.resize(self._push_site, strings)
        self._push_slots = np.full(1 << (2 * strings).bit_length(), -1, np.int32)
        self._waiting = np.empty(2 * len(self._waiting) + 64, np.int64)
        self._counts[2], self._push_count[1] = 0, 1


REPLACES: Final = {Composer: FastComposer}

_NARROW = types.int32[::1]
_WIDE = types.int64[::1]
_TABLE = types.int32[:, ::1]
_FIXED = types.Array(types.int32, 1, "C", readonly=True)
_FIXED_WIDE = types.Array(types.int64, 1, "C", readonly=True)
LOOPS: Final[dict[Any, tuple[Any, ...]]] = {
    _walk: (
        _NARROW, _FIXED, _WIDE, _FIXED_WIDE, types.int64,
        _TABLE, _TABLE, _NARROW, types.boolean[::1], _TABLE, _NARROW, _TABLE, types.int64, _WIDE, _WIDE,
        _WIDE, _TABLE, _NARROW, _NARROW, types.uint64[::1], _WIDE, _WIDE,
        _NARROW, _NARROW, _NARROW, _WIDE, _WIDE,
    ),
}  # fmt: skip
