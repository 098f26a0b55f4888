"""The composition of `compose.py` for numba: the same maps, found in another order, and faster by two ideas.

From most states, most tokens lead to the same few places. So a map is a *grouping* of states and one outcome
for each group: composing it with a byte is composing the outcomes, of which there are a handful, and joining
groups whose outcomes have become equal, which is remembered. And where all outcomes lie inside of strings,
whole subtrees of the trie are passed over (`descent.py`).

Never imported on the way to a first table: `accelerate.py` loads it in the background.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numba
import numpy as np
from numba import types

from sortition.grammars import compose as definition
from sortition.grammars.compose import (
    DEAD,
    IDENTITY,
    NO_GUARD,
    NO_PUSH,
    NOWHERE,
    SELF,
    SPECIAL,
    UNKNOWN,
    Composition,
    Ints,
)
from sortition.grammars.descent import CLOSED, OUTSIDE, Descent, bodies
from sortition.grammars.jit import FACTOR, FIRST, SHIFT, borrowed, inlined, mixed, mixed_pair
from sortition.grammars.machine import ENDLESS

if TYPE_CHECKING:
    from sortition.grammars.machine import Machine
    from sortition.grammars.trie import Trie

NO_ROOM: Final = -5
"""A composition that has to be made again once there is more room."""

WAITS: Final = -6
"""A composition that needs others first."""

ABSENT: Final = -1
"""No outcome of a map lies in a string of this kind."""

SCATTERED: Final = -3
"""Outcomes of a map lie at several places, or in no string."""

_LETTER: Final = ord("a")

# What a tally counts: maps, groupings, joins, marks, identities, places in rows, what a row holds, and the
# compositions that one waits for.
_MAPS: Final = 0
_GROUPINGS: Final = 1
_JOINS: Final = 2
_MARK: Final = 3
_IDENTITIES: Final = 4
_ROWS: Final = 5
_OUTCOMES: Final = 6
_NEEDED: Final = 7

EMPTY: Final = -1
"""A slot without a number."""


@inlined
def _string_slot(strings: Any, below: int, site: int, counted: int) -> Any:
    """The slot of the string `below` with this site and count on top, or the empty one where it would be."""
    parent, sites, counts, slots, _ = strings
    last = len(slots) - 1
    code = (FIRST ^ np.uint64(np.int64(below))) * FACTOR
    code = (code ^ (code >> SHIFT) ^ np.uint64(np.int64(site))) * FACTOR
    code = (code ^ (code >> SHIFT) ^ np.uint64(counted)) * FACTOR
    slot = np.int64((code ^ (code >> SHIFT)) & np.uint64(last))
    while slots[slot] >= 0 and (
        parent[slots[slot]] != below or sites[slots[slot]] != site or counts[slots[slot]] != counted
    ):
        slot = (slot + 1) & last
    return slot


@inlined
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


@inlined
def _guard_slot(guards: Any, low: int, high: int, added: int) -> Any:
    """The slot of a guard, or the empty one where it would be."""
    rows, slots, _ = guards
    last = len(slots) - 1
    code = (FIRST ^ np.uint64(low)) * FACTOR
    code = (code ^ (code >> SHIFT) ^ np.uint64(high)) * FACTOR
    code = (code ^ (code >> SHIFT) ^ np.uint64(added)) * FACTOR
    slot = np.int64((code ^ (code >> SHIFT)) & np.uint64(last))
    while slots[slot] >= 0 and (
        rows[0, slots[slot]] != low or rows[1, slots[slot]] != high or rows[2, slots[slot]] != added
    ):
        slot = (slot + 1) & last
    return slot


@inlined
def _guard(guards: Any, low: int, high: int, added: int) -> Any:
    """The number of a guard."""
    rows, slots, count = guards
    slot = _guard_slot(guards, low, high, added)
    if slots[slot] < 0:
        rows[0, count[0]], rows[1, count[0]], rows[2, count[0]] = low, high, added
        slots[slot] = count[0]
        count[0] += 1
    return np.int64(slots[slot])


@inlined
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


@inlined
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


@inlined
def _left(machine: Any, strings: Any, guards: Any, state: Any, string: Any) -> Any:
    """The target and the effect of leaving the frame in which the token began."""
    ending, returns, identity_of_ending = machine[2], machine[4], machine[5]
    rows, bounds = guards[0], np.int64(strings[2][string])
    if rows[2, bounds] != 0:
        bounds = _guard(guards, rows[0, bounds], rows[1, bounds], 0)
    its = ending[state]
    rest = identity_of_ending[its]
    return np.int64(NOWHERE if rest == DEAD else rest), ~np.int64(bounds * len(returns) + its)


@inlined
def _counted(machine: Any, strings: Any, guards: Any, state: int, outcome: int, string: Any) -> Any:
    """The string after one outcome of a state's test, -1 if that is impossible."""
    step, cuts = machine[10], machine[11]
    test = machine[9][state]
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


@inlined
def _is_settled(place: Any, node: int, settled: Any, number: int) -> Any:
    """Whether all states of a map lie where the prefix of a node gets to inside strings.

    Then what a word below that node does in strings is all that matters.
    """
    for kind in range(len(place)):
        its = settled[kind, number]
        if its != ABSENT and its != place[kind, node]:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def _prepared(move: Any, call: Any, ending: Any, returns: Any, test: Any) -> Any:
    """`Composer`'s leaves, plain moves, and the states that matter to what follows each ending."""
    states, columns = move.shape
    leaf = np.empty(states, np.bool_)
    for state in range(states):
        leaf[state] = ending[state] >= 0
        for column in range(columns):
            if move[state, column] >= 0:
                leaf[state] = False
                break
    # By byte class: a composition looks at many states and one class.
    plain = np.empty((columns, states), np.int32)
    for state in range(states):
        for column in range(columns):
            target = move[state, column]
            if target < 0:
                plain[column, state] = NOWHERE if ending[state] < 0 else SPECIAL
            elif call[state, column] >= 0 or leaf[target] or test[target] >= 0:
                plain[column, state] = SPECIAL
            else:
                plain[column, state] = target
    endings, sites = returns.shape
    start = np.zeros(endings + 1, np.int64)
    return_state = np.empty(max(1, endings) * states, np.int32)
    seen, over = np.full(states, -1, np.int64), np.full(endings, -1, np.int64)
    waiting = np.empty(endings + 1, np.int64)
    for its in range(endings):
        used = start[its]
        waiting[0] = its
        over[its] = its
        size = 1
        while size:
            size -= 1
            current = waiting[size]
            for site in range(sites):
                state = returns[current, site]
                if state >= 0 and seen[state] != its:
                    seen[state] = its
                    return_state[used] = state
                    used += 1
                    # A frame that is over returns at once.
                    again = ending[state]
                    if again >= 0 and over[again] != its:
                        over[again] = its
                        waiting[size] = again
                        size += 1
        return_state[start[its] : used].sort()
        start[its + 1] = used
    return leaf, plain, start, return_state[: start[-1]].copy()


@inlined
def _grouping(groupings: Any, tally: Any, end: int) -> Any:
    """The number of the grouping that stands after all others, up to `end`; it is entered if it is new."""
    start, items, slots, hashes = groupings
    fresh = tally[_GROUPINGS]
    used = start[fresh]
    code = FIRST
    for place in range(used, end):
        code = (code ^ np.uint64(np.int64(items[0, place]) << 32 | items[1, place])) * FACTOR
        code ^= code >> SHIFT
    last = len(slots) - 1
    slot = np.int64(code & np.uint64(last))
    while slots[slot] >= 0:
        number = slots[slot]
        first = start[number]
        same = hashes[number] == code and start[number + 1] - first == end - used
        if same:
            for offset in range(end - used):
                if (
                    items[0, first + offset] != items[0, used + offset]
                    or items[1, first + offset] != items[1, used + offset]
                ):
                    same = False
                    break
        if same:
            return np.int64(number)
        slot = (slot + 1) & last
    slots[slot] = fresh
    hashes[fresh] = code
    start[fresh + 1] = end
    tally[_GROUPINGS] += 1
    return np.int64(fresh)


@inlined
def _joined(
    grouping: int, groupings: Any, joins: Any, scratch: Any, tally: Any, pairs: int, groups: int
) -> Any:  # fmt: skip
    """The grouping in which each group is replaced by those with which it is paired, if any."""
    old, new, first_pair = scratch[0], scratch[1], scratch[2]
    if pairs == groups:
        same = True
        for pair in range(pairs):
            same = same and old[pair] == pair and new[pair] == pair
        if same:
            return np.int64(grouping)
    start, data, result, slots, hashes = joins
    fresh = tally[_JOINS]
    used = start[fresh]
    code = mixed(FIRST, grouping)
    data[used] = grouping
    for pair in range(pairs):
        code = mixed_pair(code, old[pair], new[pair])
        data[used + 1 + 2 * pair], data[used + 2 + 2 * pair] = old[pair], new[pair]
    size = 1 + 2 * pairs
    last = len(slots) - 1
    slot = np.int64(code & np.uint64(last))
    while slots[slot] >= 0:
        number = slots[slot]
        first = start[number]
        same = hashes[number] == code and start[number + 1] - first == size
        if same:
            for offset in range(size):
                if data[first + offset] != data[used + offset]:
                    same = False
                    break
        if same:
            return np.int64(result[number])
        slot = (slot + 1) & last
    group_start, items = groupings[0], groupings[1]
    _point(old, first_pair, pairs, groups)
    end = group_start[tally[_GROUPINGS]]
    for place in range(group_start[grouping], group_start[grouping + 1]):
        state, group = items[0, place], items[1, place]
        pair, last_pair = first_pair[group], first_pair[group + 1]
        # Mostly there is one pair or none: to write and to go on only if there is takes no branch.
        items[0, end], items[1, end] = state, new[pair]
        end += pair < last_pair
        for more in range(pair + 1, last_pair):
            items[0, end], items[1, end] = state, new[more]
            end += 1
    slots[slot] = fresh
    hashes[fresh] = code
    start[fresh + 1] = used + size
    result[fresh] = _grouping(groupings, tally, end)
    tally[_JOINS] += 1
    return np.int64(result[fresh])


@inlined
def _point(old: Any, first_pair: Any, pairs: int, groups: int) -> None:
    """Where the pairs of each old group begin."""
    pair = 0
    for group in range(groups + 1):
        while pair < pairs and old[pair] < group:
            pair += 1
        first_pair[group] = pair


@inlined
def _numbered(maps: Any, place_of_state: Any, scratch: Any, tally: Any, grouping: int, count: int) -> Any:
    """The number of the map of a grouping and so many outcomes, which is entered if it is new."""
    start, outcomes, grouping_of_map, _, slots, hashes, _ = maps
    target, effect = scratch[3], scratch[4]
    code = mixed(FIRST, grouping)
    for index in range(count):
        code = mixed_pair(code, effect[index], target[index])
    last = len(slots) - 1
    slot = np.int64(code & np.uint64(last))
    while slots[slot] >= 0:
        number = slots[slot]
        first = start[number]
        same = (
            hashes[number] == code
            and start[number + 1] - first == count
            and grouping_of_map[number] == grouping
        )
        if same:
            for index in range(count):
                if outcomes[0, first + index] != target[index] or outcomes[1, first + index] != effect[index]:
                    same = False
                    break
        if same:
            return np.int64(number)
        slot = (slot + 1) & last
    fresh = tally[_MAPS]
    first = start[fresh]
    for index in range(count):
        outcomes[0, first + index], outcomes[1, first + index] = target[index], effect[index]
    slots[slot] = fresh
    hashes[fresh] = code
    start[fresh + 1] = first + count
    grouping_of_map[fresh] = grouping
    tally[_MAPS] += 1
    _settle(maps, place_of_state, fresh)
    return np.int64(fresh)


@inlined
def _settle(maps: Any, place_of_state: Any, number: int) -> None:
    """Find out at which place of each kind of string all outcomes of a map lie that are of the kind."""
    start, outcomes, settled = maps[0], maps[1], maps[6]
    kinds = len(place_of_state)
    settled[:, number] = ABSENT
    for at in range(start[number], start[number + 1]):
        target, stays = outcomes[0, at], outcomes[1, at] >= 0
        inside = False
        if stays or target != SELF:
            for kind in range(kinds):
                # What is left to the caller is a map of its own.
                place = place_of_state[kind, target] if stays else settled[kind, target]
                if place == ABSENT:
                    continue
                inside = place != SCATTERED
                if settled[kind, number] == ABSENT:
                    settled[kind, number] = place
                elif settled[kind, number] != place:
                    inside = False
                if not inside:
                    break
        if not inside:
            settled[:, number] = SCATTERED
            return


@inlined
def _enter_identities(
    machine: Any, maps: Any, groupings: Any, scratch: Any, tally: Any, identity_of_ending: Any
) -> None:
    """`Composer._add_identities`."""
    ending, leaf, test = machine[2], machine[3], machine[9]
    return_start, return_state, place_of_state = machine[7], machine[8], machine[12]
    seen, states = scratch[6], np.empty(len(ending), np.int32)
    tally[_MARK] += 1
    seen[return_state] = tally[_MARK]
    count = 0
    for state in range(len(ending)):
        if (not leaf[state] and test[state] < 0) or seen[state] == tally[_MARK]:
            states[count] = state
            count += 1
    _identity(states[:count], ending, leaf, place_of_state, maps, groupings, scratch, tally)
    for its in range(len(return_start) - 1):
        if return_start[its] < return_start[its + 1]:
            returned = return_state[return_start[its] : return_start[its + 1]]
            identity_of_ending[its] = _identity(
                returned, ending, leaf, place_of_state, maps, groupings, scratch, tally
            )
    tally[_IDENTITIES] = tally[_MAPS]


@inlined
def _identity(
    states: Any, ending: Any, leaf: Any, place_of_state: Any, maps: Any, groupings: Any, scratch: Any,
    tally: Any,
) -> Any:  # fmt: skip
    """The number of the map that changes nothing, of these states."""
    items = groupings[1]
    end = groupings[0][tally[_GROUPINGS]]
    tally[_MARK] += 1
    count = 0
    for state in states:
        # In a leaf the frame is over: whoever returned there leaves it at once.
        target = SELF if leaf[state] else state
        effect = ~ending[state] if leaf[state] else NO_PUSH
        group = _group(scratch, len(scratch[5]) - 1, tally[_MARK], target, effect, count)
        if group == count:
            count += 1
        items[0, end], items[1, end] = state, group
        end += 1
    return _numbered(maps, place_of_state, scratch, tally, _grouping(groupings, tally, end), count)


@inlined
def _group(scratch: Any, last: int, mark: int, to: int, how: int, count: int) -> Any:
    """The number of an outcome among the first ones, which is put after them if it is new.

    It is looked for in the slots up to the last one. Those with another mark are empty.
    """
    target, effect, slots = scratch[3], scratch[4], scratch[5]
    slot = np.int64(mixed_pair(FIRST, how, to) & np.uint64(last))
    while slots[slot] >> 32 == mark:
        group = np.int64(np.int32(slots[slot]))
        if target[group] == to and effect[group] == how:
            return group
        slot = (slot + 1) & last
    slots[slot] = mark << 32 | count
    target[count], effect[count] = to, how
    return np.int64(count)


@inlined
def _compose(key: int, machine: Any, stores: Any, scratch: Any, tally: Any, needed: Any) -> Any:
    """`Composer._compose` of one map and one byte class.

    `WAITS` if other compositions, then the needed ones, have to be made first; `NO_ROOM` for want of room.
    """
    maps, groupings, joins, strings, guards, _ = stores
    move, call, plain, tests = machine[0], machine[1], machine[6], machine[9]
    ways_of_tests = machine[11].shape[1] + 1
    start, outcomes, grouping_of_map, memo = maps[:4]
    columns = np.int64(move.shape[1])
    number, unit = key // columns, key % columns
    began = number < tally[_IDENTITIES]
    first, last = start[number], start[number + 1]
    grouping = np.int64(grouping_of_map[number])
    most = (last - first) * ways_of_tests
    group_start = groupings[0]
    items = (group_start[grouping + 1] - group_start[grouping]) * ways_of_tests
    if (
        start[tally[_MAPS]] + most > outcomes.shape[1]
        or tally[_MAPS] == len(grouping_of_map)
        or group_start[tally[_GROUPINGS]] + items + 1 > groupings[1].shape[1]
        or tally[_GROUPINGS] == len(groupings[3])
        or joins[0][tally[_JOINS]] + 2 * most + 1 > len(joins[1])
        or tally[_JOINS] == len(joins[2])
        or strings[4][0] + 2 * most > len(strings[0])
        or guards[2][0] + 2 * most > guards[0].shape[1]
        or most + 2 > len(scratch[0])
    ):
        return np.int64(NO_ROOM)
    old, new = scratch[0], scratch[1]
    tally[_MARK] += 1
    mark = tally[_MARK]
    # Few slots for few outcomes: they stay in the caches.
    slots = 16
    while slots < 2 * most:
        slots *= 2
    pairs = count = itself = missing = 0
    for place in range(first, last):
        target, effect = outcomes[0, place], outcomes[1, place]
        state, ways = np.int64(-1), 1
        reader, string, site = np.int64(NOWHERE), np.int64(0), np.int64(-1)
        moved = np.int64(SPECIAL)
        if effect >= 0:
            moved = np.int64(plain[unit, target])
            if moved == NOWHERE:
                continue
            if moved == SPECIAL:
                reader, string = _reader(machine, strings, target, effect, unit)
                if reader == NOWHERE:
                    continue
                state, site = np.int64(move[reader, unit]), np.int64(call[reader, unit])
                if state >= 0 and tests[state] >= 0:
                    ways = min(ways_of_tests, columns)
        for outcome in range(ways):
            left = effect < 0 and target != SELF
            to, how = np.int64(target), np.int64(effect)
            if moved != SPECIAL:
                to = moved
            elif effect >= 0:
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
                if rest == UNKNOWN and missing < len(needed):
                    needed[missing] = to * columns + unit
                    missing += 1
                if rest < 0:
                    continue
                to = np.int64(rest)
            group = _group(scratch, slots - 1, mark, to, how, count)
            if group == count:
                count += 1
                if how < 0 and to == SELF:
                    itself += 1
            old[pairs], new[pairs] = place - first, group
            pairs += 1
    if missing:
        tally[_NEEDED] = missing
        return np.int64(WAITS)
    if itself:
        pairs, count = _without_unreturnable(
            machine, groupings, scratch, tally, grouping, pairs, count, last - first
        )
    found = np.int64(DEAD)
    if count:
        joined = _joined(grouping, groupings, joins, scratch, tally, pairs, last - first)
        found = _numbered(maps, machine[12], scratch, tally, joined, count)
    memo[key] = found
    return found


@inlined
def _without_unreturnable(
    machine: Any, groupings: Any, scratch: Any, tally: Any, grouping: int, pairs: int, count: int, groups: int
) -> Any:
    """`Composer._drop_unreturnable`: how many pairs and outcomes are left."""
    return_start, return_state, endings = machine[7], machine[8], len(machine[4])
    old, new, alive, target, effect, _, seen, kept = scratch
    tally[_MARK] += 1
    mark = tally[_MARK]
    for group in range(count):
        kept[group] = effect[group] >= 0 or target[group] != SELF
    alive[:groups] = False
    for pair in range(pairs):
        if kept[new[pair]]:
            alive[old[pair]] = True
    _see(groupings, grouping, alive, seen, mark)
    grows = True
    while grows:
        grows = False
        for group in range(count):
            if kept[group]:
                continue
            ending = ~effect[group] % endings
            for at in range(return_start[ending], return_start[ending + 1]):
                if seen[return_state[at]] == mark:
                    kept[group] = grows = True
                    break
            if kept[group]:
                for pair in range(pairs):
                    if new[pair] == group:
                        alive[old[pair]] = True
                _see(groupings, grouping, alive, seen, mark)
    left = 0
    for group in range(count):
        if kept[group]:
            target[left], effect[left] = target[group], effect[group]
            kept[group] = left
            left += 1
        else:
            kept[group] = -1
    remaining = 0
    for pair in range(pairs):
        if kept[new[pair]] >= 0:
            old[remaining], new[remaining] = old[pair], kept[new[pair]]
            remaining += 1
    return remaining, left


@inlined
def _see(groupings: Any, grouping: int, alive: Any, seen: Any, mark: int) -> None:
    """Mark the states of the groups that are alive."""
    start, items = groupings[0], groupings[1]
    for place in range(start[grouping], start[grouping + 1]):
        if alive[items[1, place]]:
            seen[items[0, place]] = mark


@inlined
def _composed(key: int, machine: Any, stores: Any, scratch: Any, tally: Any, waiting: Any) -> Any:
    """A composition, and first of all those that it needs; or `NO_ROOM`."""
    memo = stores[0][3]
    waiting[0] = key
    size = 1
    while size:
        found = np.int64(memo[waiting[size - 1]])
        if found == UNKNOWN:
            if size == len(waiting):
                return np.int64(NO_ROOM)
            found = _compose(waiting[size - 1], machine, stores, scratch, tally, waiting[size:])
        if found == NO_ROOM:
            return found
        size += tally[_NEEDED] if found == WAITS else -1
    return np.int64(memo[key])


@inlined
def _below(
    trie: Any, node: int, number: int, byte_class: Any, machine: Any, stores: Any, scratch: Any, tally: Any,
    waiting: Any, map_of_word: Any,
) -> Any:  # fmt: skip
    """Find the maps of all words below a node whose map is settled; `NO_ROOM` for want of room.

    Words of the same outcome have the same map, so one of them is composed. A settled map has a row of these.
    """
    parent, byte, after, first_word, node_of_word, _, outcome, run = trie
    row_of_map, map_of_outcome, path = stores[5]
    memo = stores[0][3]
    columns = np.int64(machine[0].shape[1])
    if row_of_map[number] == 0:
        end = tally[_ROWS] + tally[_OUTCOMES]
        if end > len(map_of_outcome):
            return np.int64(NO_ROOM)
        map_of_outcome[tally[_ROWS] : end] = UNKNOWN
        row_of_map[number] = 1 + tally[_ROWS]
        tally[_ROWS] = end
    row = np.int64(row_of_map[number]) - 1
    word, last = np.int64(first_word[node]), np.int64(first_word[after[node]])
    while word < last:
        found = np.int64(map_of_outcome[row + outcome[word]])
        if found == UNKNOWN:
            size = 0
            below = node_of_word[word]
            while below != node:
                path[size] = below
                size += 1
                below = parent[below]
            found = np.int64(number)
            while size and found >= 0:
                size -= 1
                key = found * columns + byte_class[byte[path[size]]]
                found = np.int64(memo[key])
                if found == UNKNOWN:
                    found = _composed(key, machine, stores, scratch, tally, waiting)
                    if found == NO_ROOM:
                        return found
            map_of_outcome[row + outcome[word]] = found
        end = min(np.int64(run[word]), last)
        map_of_word[word:end] = found
        word = end
    return np.int64(number)


@inlined
def _enter(slots: Any, code: Any, number: int) -> None:
    """Put a number into the first free slot for a hash."""
    last = len(slots) - 1
    slot = np.int64(code & np.uint64(last))
    while slots[slot] >= 0:
        slot = (slot + 1) & last
    slots[slot] = number


@numba.njit(cache=True, nogil=True)
def _walk(
    node: int, map_of_node: Any, map_of_word: Any, trie: Any, byte_class: Any, machine: Any,
    maps: Any, groupings: Any, joins: Any, strings: Any, guards: Any, rows: Any, scratch: Any, tally: Any,
    waiting: Any,
) -> Any:  # fmt: skip
    """Find the maps of the words from one node on; the node for which there was no more room.

    The slots of all stores are empty: this enters what there is.
    """
    trie, machine, maps = borrowed(trie), borrowed(machine), borrowed(maps)
    groupings, joins, strings = borrowed(groupings), borrowed(joins), borrowed(strings)
    guards, rows, scratch = borrowed(guards), borrowed(rows), borrowed(scratch)
    tally, waiting = borrowed(tally), borrowed(waiting)
    stores = maps, groupings, joins, strings, guards, rows
    for number in range(tally[_MAPS]):
        _enter(maps[4], maps[5][number], number)
    for number in range(tally[_GROUPINGS]):
        _enter(groupings[2], groupings[3][number], number)
    for number in range(tally[_JOINS]):
        _enter(joins[3], joins[4][number], number)
    for string in range(strings[4][0]):
        slot = _string_slot(strings, strings[0][string], strings[1][string], strings[2][string])
        strings[3][slot] = string
    for number in range(guards[2][0]):
        rows_of_guards = guards[0]
        slot = _guard_slot(
            guards, rows_of_guards[0, number], rows_of_guards[1, number], rows_of_guards[2, number]
        )
        guards[1][slot] = number
    if tally[_MAPS] == 0:
        _enter_identities(machine, maps, groupings, scratch, tally, machine[5])
    byte, after, first_word, place = trie[1], trie[2], trie[3], trie[5]
    memo, settled = maps[3], maps[6]
    # The children of the root find its map in the place after all nodes.
    map_of_node[len(byte)] = IDENTITY
    columns = np.int64(machine[0].shape[1])
    while node < len(byte):
        key = np.int64(map_of_node[trie[0][node]]) * columns + byte_class[byte[node]]
        found = np.int64(memo[key])
        if found == UNKNOWN:
            found = _composed(key, machine, stores, scratch, tally, waiting)
            if found == NO_ROOM:
                return node
        if found == DEAD:
            # So is all that is below.
            node = after[node]
        elif _is_settled(place, node, settled, found):
            room = _below(
                trie, node, found, byte_class, machine, stores, scratch, tally, waiting, map_of_word
            )
            if room == NO_ROOM:
                return node
            node = after[node]
        else:
            map_of_node[node] = found
            if first_word[node + 1] > first_word[node]:
                map_of_word[first_word[node]] = found
            node += 1
    return len(byte)


@inlined
def _spread_places(
    body: Any, byte_class: Any, state: int, move: Any, call: Any, ending: Any, leaf: Any, test: Any,
    place_of_state: Any, state_at: Any,
) -> Any:  # fmt: skip
    """Give places to the states that are reached from one at which a string of this kind would begin.

    Returns whether there is one state at each place, `state_at`, and they lead to each other as places do.
    """
    state_at[:] = ABSENT
    state_at[0] = state
    place_of_state[state] = 0
    reached = np.zeros(len(body), np.int8)
    count, at = 1, 0
    while at < count:
        source = state_at[reached[at]]
        for byte in range(256):
            place = body[reached[at], byte]
            target = move[source, byte_class[byte]]
            if place == CLOSED:
                continue
            if place == OUTSIDE:
                if target >= 0 or ending[source] >= 0:
                    return False
            elif target < 0 or call[source, byte_class[byte]] >= 0 or test[target] >= 0 or leaf[target]:
                return False
            elif state_at[place] == ABSENT and place_of_state[target] == ABSENT:
                state_at[place] = target
                place_of_state[target] = place
                reached[count] = place
                count += 1
            elif state_at[place] != target:
                return False
        at += 1
    return True


@numba.njit(cache=True, nogil=True)
def _places(
    bodies: Any, byte_class: Any, move: Any, call: Any, ending: Any, leaf: Any, test: Any
) -> Any:  # fmt: skip
    """Of each kind of string, the place at which each state lies; `ABSENT` for states that lie in none."""
    states = len(move)
    place_of_state = np.full((len(bodies), states), ABSENT, np.int8)
    state_at = np.empty(bodies.shape[1], np.int32)
    letter = byte_class[_LETTER]
    for kind in range(len(bodies)):
        for state in range(states):
            if (
                move[state, letter] == state
                and call[state, letter] < 0
                and place_of_state[kind, state] == ABSENT
                and not _spread_places(
                    bodies[kind], byte_class, state, move, call, ending, leaf, test, place_of_state[kind],
                    state_at,
                )
            ):  # fmt: skip
                for other in state_at:
                    if other != ABSENT:
                        place_of_state[kind, other] = ABSENT
    return place_of_state


def compose(machine: Machine, trie: Trie) -> Composition:
    """`compose.compose`."""
    return _Composer(machine, Descent.of(trie)).composition()


class _Composer:
    """Arrays that grow while the maps of a machine are found."""

    def __init__(self, machine: Machine, descent: Descent) -> None:
        move, call = np.ascontiguousarray(machine.move), np.ascontiguousarray(machine.call)
        returns = np.where(machine.returns >= 0, machine.returns, np.int32(NOWHERE))
        leaf, plain, return_start, return_state = _prepared(move, call, machine.ending, returns, machine.test)
        place_of_state = _places(bodies(), machine.byte_class, move, call, machine.ending, leaf, machine.test)
        self._descent = descent
        self._byte_class = machine.byte_class
        self._machine = (
            move, call, machine.ending, leaf, returns, np.full(len(returns), DEAD, np.int32), plain,
            return_start, return_state, machine.test, machine.step, machine.cuts, place_of_state,
        )  # fmt: skip
        states, columns = move.shape
        # Every group may have as many outcomes as a test has; the identities are there at once.
        most = (machine.cuts.shape[1] + 1) * states
        maps, items = max(1024, 2 * len(returns)), max(1 << 15, 2 * (most + len(return_state)))
        self._tally = np.zeros(8, np.int64)
        self._tally[_OUTCOMES] = descent.outcomes
        self._maps = (
            np.zeros(maps + 1, np.int64),
            np.empty((2, items), np.int32),
            np.empty(maps, np.int32),
            np.full(maps * columns, UNKNOWN, np.int32),
            _slots(maps),
            np.empty(maps, np.uint64),
            np.empty((len(place_of_state), maps), np.int8),
        )
        self._groupings = (
            np.zeros(maps + 1, np.int64), np.empty((2, items), np.int32), _slots(maps),
            np.empty(maps, np.uint64),
        )  # fmt: skip
        self._joins = (
            np.zeros(maps + 1, np.int64), np.empty(2 * items, np.int32), np.empty(maps, np.int32),
            _slots(maps), np.empty(maps, np.uint64),
        )  # fmt: skip
        # The empty string, and the guard that always holds, are the first of their kind.
        self._strings = (
            *np.full((3, 4 * most), [[-1], [-1], [NO_GUARD]], np.int32),
            _slots(4 * most),
            np.ones(1, np.int64),
        )
        self._guards = (
            np.full((3, 4 * most), [[0], [ENDLESS], [0]], np.int32),
            _slots(4 * most),
            np.ones(1, np.int64),
        )
        self._rows = (
            np.zeros(maps, np.int32),
            np.empty(64 * descent.outcomes, np.int32),
            np.empty(descent.longest, np.int32),
        )
        self._scratch = (
            *np.empty((5, most + 3), np.int32),
            np.zeros(len(_slots(most + 3)), np.int64),
            np.zeros(states, np.int64),
            np.empty(most + 3, np.int32),
        )
        self._waiting = np.empty(most + 64, np.int64)

    def composition(self) -> Composition:
        """The maps of all words of a trie."""
        descent = self._descent
        map_of_node = np.empty(len(descent.byte) + 1, np.int32)
        map_of_word = np.full(len(descent.node_of_word) + 1, DEAD, np.int32)
        node = 0
        while node < len(descent.byte):
            node = _walk(
                node, map_of_node, map_of_word, descent.arrays, self._byte_class, self._machine, self._maps,
                self._groupings, self._joins, self._strings, self._guards, self._rows, self._scratch,
                self._tally, self._waiting,
            )  # fmt: skip
            if node < len(descent.byte):
                self._grow()
        return self._result(map_of_word)

    def _grow(self) -> None:
        """More room for whatever has half of it in use, or for all if nothing has, and empty slots.

        The numbers of maps, groupings and joins get more room apart from what these consist of: new memory
        takes more time than what is done in it.
        """
        maps, groupings, joins = (int(count) for count in self._tally[:3])
        stores = [
            (maps, self._maps[2]),
            (self._maps[0][maps], self._maps[1]),
            (groupings, self._groupings[3]),
            (self._groupings[0][groupings], self._groupings[1]),
            (joins, self._joins[2]),
            (self._joins[0][joins], self._joins[1]),
            (self._strings[4][0], self._strings[0]),
            (self._guards[2][0], self._guards[0]),
            (self._tally[_ROWS], self._rows[1]),
        ]
        full = [2 * used >= store.shape[-1] for used, store in stores]
        if not any(full):
            full = [True] * len(full)
            self._scratch = _more(self._scratch, range(len(self._scratch)), {5: 0, 6: 0})
            self._waiting = np.empty(2 * len(self._waiting), np.int64)
        if full[0]:
            self._maps = _more(self._maps, (0, 2, 3, 4, 5, 6), {3: UNKNOWN})
            # There is a row for each map at most.
            self._rows = _more(self._rows, (0,), {0: 0})
        if full[1]:
            self._maps = _more(self._maps, (1,))
        if full[2]:
            self._groupings = _more(self._groupings, (0, 2, 3))
        if full[3]:
            size = self._groupings[1].shape[1]
            definition.check_elements(size // 2)
            # This is by far the most of what is copied, so it is copied seldom.
            times = min(8, 4 * definition.ELEMENT_BUDGET // size)
            self._groupings = _more(self._groupings, (1,), times=times)
        if full[4]:
            self._joins = _more(self._joins, (0, 2, 3, 4))
        if full[5]:
            self._joins = _more(self._joins, (1,))
        if full[6]:
            self._strings = _more(self._strings, (0, 1, 2, 3))
        if full[7]:
            self._guards = _more(self._guards, (0, 1))
        if full[8]:
            self._rows = _more(self._rows, (1,))
        for slots in (self._maps[4], self._groupings[2], self._joins[3], self._strings[3], self._guards[1]):
            slots.fill(EMPTY)

    def _result(self, map_of_word: Ints) -> Composition:
        maps, groupings = int(self._tally[_MAPS]), int(self._tally[_GROUPINGS])
        start, group_start = self._maps[0][: maps + 1], self._groupings[0][: groupings + 1]
        strings, guards = int(self._strings[4][0]), int(self._guards[2][0])
        return Composition(
            map_of_word,
            self._descent.word_of_token,
            start,
            self._maps[1][:, : start[-1]],
            self._maps[2][:maps],
            group_start,
            self._groupings[1][:, : group_start[-1]],
            int(self._tally[_IDENTITIES]),
            self._strings[0][:strings],
            self._strings[1][:strings],
            self._strings[2][:strings],
            self._guards[0][:, :guards],
        )


def _slots(count: int) -> Ints:
    """Empty slots for so many numbers."""
    return np.full(1 << (2 * count).bit_length(), EMPTY, np.int32)


def _more(
    arrays: tuple[Any, ...],
    which: Iterable[int],
    fills: Mapping[int, int] = MappingProxyType({}),
    times: int = 2,
) -> tuple[Any, ...]:
    """The arrays, some with more room along their last axes; the new room of some is filled.

    Room that is not filled costs nothing until it is used.
    """
    grown = list(arrays)
    for index in which:
        size = arrays[index].shape[-1]
        grown[index] = np.empty((*arrays[index].shape[:-1], times * size), arrays[index].dtype)
        grown[index][..., :size] = arrays[index]
        if index in fills:
            grown[index][..., size:] = fills[index]
    return tuple(grown)


REPLACES: Final[dict[Callable[..., Any], Callable[..., Any]]] = {definition.compose: compose}

_NARROW = types.int32[::1]
_WIDE = types.int64[::1]
_TABLE = types.int32[:, ::1]
_PLACES = types.int8[:, ::1]
_HASHES = types.uint64[::1]
_FIXED = types.Array(types.int32, 1, "C", readonly=True)
_FIXED_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_FIXED_PLACES = types.Array(types.int8, 2, "C", readonly=True)
_FLAGS = types.boolean[::1]
_UNITS = types.uint8[::1]
LOOPS: Final[dict[Any, tuple[Any, ...]]] = {
    _prepared: (_TABLE, _TABLE, _NARROW, _TABLE, _NARROW),
    _places: (types.int8[:, :, ::1], _UNITS, _TABLE, _TABLE, _NARROW, _FLAGS, _NARROW),
    _walk: (
        types.int64, _NARROW, _NARROW,
        types.Tuple((_FIXED, _FIXED_BYTES, _FIXED, _FIXED, _FIXED, _FIXED_PLACES, _FIXED, _FIXED)),
        _UNITS,
        types.Tuple(
            (
                _TABLE, _TABLE, _NARROW, _FLAGS, _TABLE, _NARROW, _TABLE, _WIDE, _NARROW, _NARROW, _NARROW,
                _TABLE, _PLACES,
            )
        ),
        types.Tuple((_WIDE, _TABLE, _NARROW, _NARROW, _NARROW, _HASHES, _PLACES)),
        types.Tuple((_WIDE, _TABLE, _NARROW, _HASHES)),
        types.Tuple((_WIDE, _NARROW, _NARROW, _NARROW, _HASHES)),
        types.Tuple((_NARROW, _NARROW, _NARROW, _NARROW, _WIDE)),
        types.Tuple((_TABLE, _NARROW, _WIDE)),
        types.Tuple((_NARROW, _NARROW, _NARROW)),
        types.Tuple(
            (_NARROW, _NARROW, _NARROW, _NARROW, _NARROW, _WIDE, _WIDE, _NARROW)
        ),
        _WIDE, _WIDE,
    ),
}  # fmt: skip
