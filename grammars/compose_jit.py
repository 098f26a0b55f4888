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
    NOWHERE,
    SELF,
    SPECIAL,
    UNKNOWN,
    Composer,
    Ints,
    Wide,
)
from sortition.grammars.machine import ENDLESS

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
def _string_slot(strings: Any, below: int, site: int, counted: int) -> Any:
    """The slot of the string `below` with this site and count on top, or the empty one where it would be."""
    parent, sites, counts, slots, _ = strings
    last = len(slots) - 1
    code = (_FIRST ^ np.uint64(np.int64(below))) * _FACTOR
    code = (code ^ (code >> _SHIFT) ^ np.uint64(np.int64(site))) * _FACTOR
    code = (code ^ (code >> _SHIFT) ^ np.uint64(counted)) * _FACTOR
    slot = np.int64((code ^ (code >> _SHIFT)) & np.uint64(last))
    while slots[slot] >= 0 and (
        parent[slots[slot]] != below or sites[slots[slot]] != site or counts[slots[slot]] != counted
    ):
        slot = (slot + 1) & last
    return slot


@numba.njit(nogil=True)
def _push(strings: Any, below: int, site: int, counted: int) -> Any:
    """The number of the string `below` with this site and count on top."""
    parent, sites, counts, slots, count = strings
    slot = _string_slot(strings, below, site, counted)
    if slots[slot] < 0:
        parent[count[0]] = below
        sites[count[0]] = site
        counts[count[0]] = counted
        slots[slot] = count[0]
        count[0] += 1
    return np.int64(slots[slot])


@numba.njit(nogil=True)
def _guard_slot(guards: Any, low: int, high: int, added: int) -> Any:
    """The slot of a guard, or the empty one where it would be."""
    rows, slots, _ = guards
    last = len(slots) - 1
    code = (_FIRST ^ np.uint64(low)) * _FACTOR
    code = (code ^ (code >> _SHIFT) ^ np.uint64(high)) * _FACTOR
    code = (code ^ (code >> _SHIFT) ^ np.uint64(added)) * _FACTOR
    slot = np.int64((code ^ (code >> _SHIFT)) & np.uint64(last))
    while slots[slot] >= 0 and (
        rows[0, slots[slot]] != low or rows[1, slots[slot]] != high or rows[2, slots[slot]] != added
    ):
        slot = (slot + 1) & last
    return slot


@numba.njit(nogil=True)
def _guard(guards: Any, low: int, high: int, added: int) -> Any:
    """The number of a guard."""
    rows, slots, count = guards
    slot = _guard_slot(guards, low, high, added)
    if slots[slot] < 0:
        rows[0, count[0]], rows[1, count[0]], rows[2, count[0]] = low, high, added
        slots[slot] = count[0]
        count[0] += 1
    return np.int64(slots[slot])


@numba.njit(nogil=True)
def _reader(machine: Any, strings: Any, state: Any, string: Any, unit: int) -> Any:
    """The state that reads a byte, and its string: frames that are over lapse.

    The state is `NOWHERE` where none does, and one that cannot read where that is left to a caller.
    """
    move, _, ending, _, returns = machine[:5]
    parent, sites = strings[:2]
    while move[state, unit] < 0:
        its = ending[state]
        if its < 0:
            return np.int64(NOWHERE), np.int64(string)
        if parent[string] < 0:
            break
        state = returns[its, sites[string]]
        string = parent[string]
        if state < 0:
            return np.int64(NOWHERE), np.int64(string)
    return np.int64(state), np.int64(string)


@numba.njit(nogil=True)
def _settled(machine: Any, strings: Any, guards: Any, state: Any, string: Any) -> Any:
    """What becomes of a state that has been reached, and its string: target and effect.

    The target is `NOWHERE` where that is impossible, and the identity of the ending where the frame is left.
    """
    _, _, ending, leaf, returns = machine[:5]
    parent, sites = strings[:2]
    while leaf[state] and parent[string] >= 0:
        state = returns[ending[state], sites[string]]
        string = parent[string]
        if state < 0:
            return np.int64(NOWHERE), np.int64(string)
    if not leaf[state]:
        return np.int64(state), np.int64(string)
    return _left(machine, strings, guards, state, string)


@numba.njit(nogil=True)
def _left(machine: Any, strings: Any, guards: Any, state: Any, string: Any) -> Any:
    """The target and the effect of leaving the frame in which the token began."""
    ending, returns, identity_of_ending = machine[2], machine[4], machine[5]
    rows, bounds = guards[0], np.int64(strings[2][string])
    if rows[2, bounds] != 0:
        bounds = _guard(guards, rows[0, bounds], rows[1, bounds], 0)
    its = ending[state]
    rest = identity_of_ending[its]
    return np.int64(NOWHERE if rest == DEAD else rest), ~np.int64(bounds * len(returns) + its)


@numba.njit(nogil=True)
def _counted(machine: Any, strings: Any, guards: Any, state: int, outcome: int, string: Any) -> Any:
    """The string after one outcome of a state's test, -1 if that is impossible."""
    step, cuts = machine[11], machine[12]
    test = machine[10][state]
    parent, sites, counts = strings[:3]
    width = cuts.shape[1]
    begin = np.int64(cuts[test, outcome - 1]) if outcome else np.int64(0)
    end = np.int64(cuts[test, outcome]) if outcome < width else np.int64(ENDLESS)
    if begin >= end or machine[0][state, outcome] < 0:
        return np.int64(-1)
    if parent[string] >= 0:
        count = counts[string] + step[test]
        if count < begin or count >= end:
            return np.int64(-1)
        return _push(strings, parent[string], sites[string], count)
    rows, before = guards[0], counts[string]
    added = rows[2, before] + step[test]
    low = max(np.int64(rows[0, before]), begin - added)
    high = np.int64(rows[1, before])
    if end != ENDLESS:
        high = min(high, end - 1 - added)
    if low > high:
        return np.int64(-1)
    return _push(strings, -1, -1, _guard(guards, low, high, added))


@numba.njit(nogil=True)
def _compose(key: int, machine: Any, maps: Any, strings: Any, guards: Any, needed: Any) -> Any:
    """`Composer._compose` of one map and one byte class.

    `WAITS` if another composition, then among the needed, has to be made first; `NO_ROOM` for want of room.
    """
    move, call, tests = machine[0], machine[1], machine[10]
    plain, identities = machine[6], machine[7]
    outcomes = machine[12].shape[1] + 1
    start, elements, memo, _, _, counts, seen = maps
    columns = move.shape[1]
    number, unit = key // columns, key % columns
    began = number < identities
    first, last = start[number], start[number + 1]
    used = start[counts[0]]
    most = (last - first) * outcomes
    if (
        used + most > elements.shape[1]
        or counts[0] + 2 > len(start)
        or strings[4][0] + 2 * most > len(strings[0])
        or guards[2][0] + 2 * most > guards[0].shape[1]
    ):
        return NO_ROOM
    end = used
    itself = 0
    for place in range(first, last):
        target, effect = elements[1, place], elements[2, place]
        state, ways = np.int64(-1), 1
        if effect >= 0:
            moved = plain[target, unit]
            if moved != SPECIAL:
                if moved != NOWHERE:
                    elements[0, end], elements[1, end], elements[2, end] = elements[0, place], moved, effect
                    end += 1
                continue
            reader, string = _reader(machine, strings, target, effect, unit)
            if reader == NOWHERE:
                continue
            state, site = np.int64(move[reader, unit]), np.int64(call[reader, unit])
            if state >= 0 and tests[state] >= 0:
                ways = min(outcomes, columns)
        for outcome in range(ways):
            left = effect < 0 and target != SELF
            to, how = np.int64(target), np.int64(effect)
            if effect >= 0:
                if state < 0:
                    # The frame in which the token began lapses.
                    to, how = _left(machine, strings, guards, reader, string)
                    left = True
                else:
                    after, how = state, string
                    if tests[state] >= 0:
                        how = _counted(machine, strings, guards, state, outcome, string)
                        if how < 0:
                            continue
                        after, site = np.int64(move[state, outcome]), np.int64(call[state, outcome])
                    if site >= 0:
                        how = _push(strings, how, site, 0)
                    to, how = _settled(machine, strings, guards, after, how)
                if to == NOWHERE:
                    continue
                if left and began:
                    left, to = False, np.int64(SELF)
            if left:
                rest = memo[to * columns + unit]
                if rest == UNKNOWN:
                    needed[0] = to * columns + unit
                    return WAITS
                if rest == DEAD:
                    continue
                to = np.int64(rest)
            if how < 0 and to == SELF:
                itself += 1
            elements[0, end], elements[1, end], elements[2, end] = elements[0, place], to, how
            end += 1
    if itself:
        end = _without_unreturnable(machine, elements, used, end, seen, counts)
    memo[key] = _numbered(maps, used, end)
    return memo[key]


@numba.njit(nogil=True)
def _without_unreturnable(machine: Any, elements: Any, used: int, end: int, seen: Any, counts: Any) -> Any:
    """`Composer._drop_unreturnable`: the end of those that are left."""
    return_start, return_state, endings = machine[8], machine[9], len(machine[4])
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
                ending = ~effect % endings
                for at in range(return_start[ending], return_start[ending + 1]):
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
def _composed(key: int, machine: Any, maps: Any, strings: Any, guards: Any, waiting: Any) -> Any:
    """A composition, and first of all those that it needs; or `NO_ROOM`."""
    memo = maps[2]
    waiting[0] = key
    size = 1
    while size:
        found = _compose(waiting[size - 1], machine, maps, strings, guards, waiting[size:])
        if found == NO_ROOM or (found == WAITS and size + 1 == len(waiting)):
            return NO_ROOM
        size += 1 if found == WAITS else -1
    return np.int64(memo[key])


@numba.njit(cache=True, nogil=True)
def _walk(
    map_of_node: Any, parent: Any, unit: Any, level_start: Any, level: Any,
    move: Any, call: Any, ending: Any, leaf: Any, returns: Any, identity_of_ending: Any, plain: Any,
    identities: int, return_start: Any, return_state: Any, test: Any, step: Any, cuts: Any,
    start: Any, elements: Any, memo: Any, slots: Any, hashes: Any, counts: Any, seen: Any,
    push_parent: Any, push_site: Any, push_count: Any, push_slots: Any, pushed: Any,
    guard: Any, guard_slots: Any, guarded: Any, waiting: Any,
) -> Any:  # fmt: skip
    """Find the maps of the nodes from one level on; the level for which there was no more room."""
    machine = (
        _borrowed(move), _borrowed(call), _borrowed(ending), _borrowed(leaf), _borrowed(returns),
        _borrowed(identity_of_ending), _borrowed(plain), identities, _borrowed(return_start),
        _borrowed(return_state), _borrowed(test), _borrowed(step), _borrowed(cuts),
    )  # fmt: skip
    maps = (
        _borrowed(start), _borrowed(elements), _borrowed(memo), _borrowed(slots), _borrowed(hashes),
        _borrowed(counts), _borrowed(seen),
    )  # fmt: skip
    strings = (
        _borrowed(push_parent), _borrowed(push_site), _borrowed(push_count), _borrowed(push_slots),
        _borrowed(pushed),
    )  # fmt: skip
    guards = _borrowed(guard), _borrowed(guard_slots), _borrowed(guarded)
    waiting = _borrowed(waiting)
    columns = move.shape[1]
    for number in range(counts[2], counts[0]):
        # The identities, or those that stood in fewer slots.
        hashes[number] = _hash(elements, start[number], start[number + 1])
        slot = np.int64(hashes[number] & np.uint64(len(slots) - 1))
        while slots[slot] >= 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = number
    for string in range(pushed[1], pushed[0]):
        slot = _string_slot(strings, push_parent[string], push_site[string], push_count[string])
        push_slots[slot] = string
    for number in range(guarded[1], guarded[0]):
        guard_slots[_guard_slot(guards, guard[0, number], guard[1, number], guard[2, number])] = number
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
                    found = _composed(key, machine, maps, strings, guards, waiting)
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
            self._test,
            self._step,
            self._cuts,
        )
        # How many maps there are, a mark, and how many maps are in slots; and so for strings and guards.
        self._counts = np.array([self._count, 0, 0])
        self._string_count, self._guard_count = np.array([1, 0]), np.array([1, 0])
        self._slots = self._push_slots = self._guard_slots = self._waiting = np.empty(0, np.int32)
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
                self._push_site, self._push_count, self._push_slots, self._string_count, self._guards,
                self._guard_slots, self._guard_count, self._waiting,
            )  # fmt: skip
            self._count = self._counts[2] = int(self._counts[0])
            self._string_count[1], self._guard_count[1] = self._string_count[0], self._guard_count[0]
            if level == len(level_start) - 1:
                break
            self._grow()

    def _grow(self) -> None:
        """Make room for twice as many maps and strings as there are."""
        outcomes = self._cuts.shape[1] + 1
        self._reserve(
            max(1024, self._count), max(int(self._start[self._count]), 1024) + outcomes * self._states
        )
        size = 1 << (2 * len(self._start)).bit_length()
        self._slots = np.full(size, -1, np.int32)
        self._hashes = np.empty(len(self._start), np.uint64)
        strings = 2 * int(self._string_count[0]) + 4 * outcomes * self._states
        self._push_parent = np.resize(self._push_parent, strings)
        self._push_site = np.resize(self._push_site, strings)
        self._push_count = np.resize(self._push_count, strings)
        guards = 2 * int(self._guard_count[0]) + 4 * outcomes * self._states
        self._guards = np.pad(self._guards, ((0, 0), (0, guards - self._guards.shape[1])))
        self._guard_slots = np.full(1 << (2 * guards).bit_length(), -1, np.int32)
        self._push_slots = np.full(1 << (2 * strings).bit_length(), -1, np.int32)
        self._waiting = np.empty(2 * len(self._waiting) + 64, np.int64)
        self._counts[2] = self._string_count[1] = self._guard_count[1] = 0


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
        _NARROW, _NARROW, _TABLE,
        _WIDE, _TABLE, _NARROW, _NARROW, types.uint64[::1], _WIDE, _WIDE,
        _NARROW, _NARROW, _NARROW, _NARROW, _WIDE,
        _TABLE, _NARROW, _WIDE, _WIDE,
    ),
}  # fmt: skip
