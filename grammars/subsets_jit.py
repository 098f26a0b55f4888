"""The loops of `nfa.py` and `subsets.py` for numba: the same arrays, number by number.

Never imported on the way to a first machine: `accelerate.py` loads it in the background. Numba has no
classes that it can keep on disk, so what grows together is passed around in tuples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from sortition.grammars import nfa as nodes_definition
from sortition.grammars import subsets as definition
from sortition.grammars.jit import FACTOR, FIRST, SHIFT, borrowed, inlined, sort
from sortition.grammars.nfa import ARC, CALL, END, FORK, NO_TEST, PASSED_STEPS, ROOT_RULE, Nfa, ragged
from sortition.grammars.partition import UnitClasses
from sortition.grammars.subsets import (
    CELLS_PER_STEP,
    MOVES_PER_STEP,
    NESTED_STEPS,
    NODES_PER_STEP,
    RETURN_STEPS,
    STATE_STEPS,
    TEST_STEPS,
    UNION_STEPS,
    Edge,
    Split,
    Subsets,
    ambiguous_begin,
    counted_end,
    different_counts,
    no_first_unit,
    with_outcomes,
)
from sortition.grammars.work import meter

# What a tally counts.
_STATUS: Final = 0
_DETAIL: Final = 1
_STEPS: Final = 2
_LEFT: Final = 3
_USED: Final = 4
_MARK: Final = 5
_ENTERED: Final = 6

# What its status says.
_FINE: Final = 0
_TOO_LARGE: Final = 1
_BEGIN: Final = 2
_NO_FIRST: Final = 3
_ROOM: Final = 4
_COUNTED_END: Final = 5
_DIFFERENT: Final = 6

_NEVER: Final = 1 << 62
"""The count at which a test without an upper bound ceases to hold."""

_UNKNOWN: Final = -2
"""A state not looked for yet."""

# What a function calls is optimised once more with each function on the way down to it: one that has a single
# caller becomes a part of it, which takes a third less time to compile.
_merged: Final = numba.njit(nogil=True, inline="always")


@numba.njit(cache=True, nogil=True)
def _productive(kind: Any, label: Any, following: Any, fork_start: Any, fork_target: Any, start: Any) -> Any:
    """`nfa.productive_nodes`."""
    nodes = len(kind)
    source, target = np.empty((2, 2 * nodes + len(fork_target)), np.int32)
    edges = 0
    for node in range(nodes):
        if kind[node] == FORK:
            for place in range(fork_start[following[node]], fork_start[following[node] + 1]):
                source[edges], target[edges] = node, fork_target[place]
                edges += 1
        elif kind[node] != END:
            source[edges], target[edges] = node, following[node]
            edges += 1
            if kind[node] == CALL:
                source[edges], target[edges] = node, start[label[node]]
                edges += 1
    first = np.zeros(nodes + 2, np.int64)
    for edge in range(edges):
        first[target[edge] + 2] += 1
    for node in range(nodes):
        first[node + 2] += first[node + 1]
    before = np.empty(edges, np.int32)
    for edge in range(edges):
        before[first[target[edge] + 1]] = source[edge]
        first[target[edge] + 1] += 1
    productive = np.zeros(nodes, np.bool_)
    waiting = np.empty(nodes, np.int32)
    size = 0
    for node in range(nodes):
        if kind[node] == END:
            productive[node] = True
            waiting[size] = node
            size += 1
    while size:
        size -= 1
        reached = waiting[size]
        for place in range(first[reached], first[reached + 1]):
            node = before[place]
            # A call counts once its rule can be read to the end and what follows can, too.
            if productive[node] or (
                kind[node] == CALL and not (productive[start[label[node]]] and productive[following[node]])
            ):
                continue
            productive[node] = True
            waiting[size] = node
            size += 1
    return productive


def productive_nodes(nfa: Nfa) -> bytearray:
    """`nfa.productive_nodes`."""
    return bytearray(_productive(*nfa.arrays))


@inlined
def _fail(tally: Any, status: int, detail: int) -> None:
    if tally[_STATUS] == _FINE:
        tally[_STATUS] = status
        tally[_DETAIL] = detail


@inlined
def _spend(tally: Any, steps: int) -> None:
    tally[_STEPS] += steps
    if tally[_STEPS] > tally[_LEFT]:
        _fail(tally, _TOO_LARGE, 0)


@numba.njit(nogil=True)
def _lists(count: int, items: int) -> Any:
    """Room for a table of lists of numbers: their items, where each begins, hashes, slots, and how many."""
    slots = 16
    while slots < 2 * count:
        slots *= 2
    return (
        np.empty(items, np.int32),
        np.zeros(count + 1, np.int64),
        np.empty(count, np.uint64),
        np.full(slots, -1, np.int32),
        np.zeros(1, np.int64),
    )


@inlined
def _numbered(lists: Any, items: Any, size: int, tally: Any) -> Any:
    """The number of a list, which is entered if it is new."""
    data, start, hashes, slots, count = lists
    code = FIRST
    for index in range(size):
        code = (code ^ np.uint64(np.uint32(items[index]))) * FACTOR
        code ^= code >> SHIFT
    last = len(slots) - 1
    slot = np.int64(code & np.uint64(last))
    while slots[slot] >= 0:
        number = slots[slot]
        first = start[number]
        same = hashes[number] == code and start[number + 1] - first == size
        if same:
            for index in range(size):
                if data[first + index] != items[index]:
                    same = False
                    break
        if same:
            return np.int64(number)
        slot = (slot + 1) & last
    fresh = count[0]
    used = start[fresh]
    if fresh == len(hashes) or used + size > len(data):
        _fail(tally, _ROOM, 0)
        return np.int64(0)
    for index in range(size):
        data[used + index] = items[index]
    start[fresh + 1] = used + size
    hashes[fresh] = code
    slots[slot] = fresh
    count[0] = fresh + 1
    return np.int64(fresh)


@numba.njit(nogil=True)
def _close(graph: Any, closures: Any, node: int, found: Any) -> None:
    """`Nfa.closure`, entered among the closures; `found` is room to work."""
    kind, _, following, fork_start, fork_target, productive = graph
    data, first, last, seen, waiting, tally = closures
    count = 0
    if kind[node] != FORK:
        if productive[node]:
            found[0] = node
            count = 1
    else:
        tally[_MARK] += 1
        mark = tally[_MARK]
        seen[node] = mark
        waiting[0] = node
        size = forks = 1
        while size:
            size -= 1
            fork = following[waiting[size]]
            for index in range(fork_start[fork], fork_start[fork + 1]):
                target = fork_target[index]
                if seen[target] != mark:
                    seen[target] = mark
                    if kind[target] == FORK:
                        waiting[size] = target
                        size += 1
                        forks += 1
                    elif productive[target]:
                        found[count] = target
                        count += 1
        sort(found, count)
        _spend(tally, PASSED_STEPS * (count + forks))
    used = tally[_USED]
    if used + count > len(data):
        _fail(tally, _ROOM, 0)
        count = 0
    for index in range(count):
        data[used + index] = found[index]
    first[node] = used
    last[node] = used + count
    tally[_USED] = used + count


@inlined
def _joined(graph: Any, closures: Any, nodes: Any, size: int, found: Any, carried: int) -> Any:
    """`_Construction._closure` of some nodes, into `found`, which begins with some more; its size."""
    data, first, last, seen, _, tally = closures
    for index in range(size):
        if first[nodes[index]] < 0:
            _close(graph, closures, nodes[index], found[carried:])
    tally[_MARK] += 1
    mark = tally[_MARK]
    count = carried
    for index in range(carried):
        seen[found[index]] = mark
    for index in range(size):
        for place in range(first[nodes[index]], last[nodes[index]]):
            node = data[place]
            if seen[node] != mark:
                seen[node] = mark
                found[count] = node
                count += 1
    if carried or size > 1:
        _spend(tally, count // NODES_PER_STEP)
        sort(found, count)
    return count


@inlined
def _state(states: Any, found: Any, count: int, tally: Any) -> Any:
    """The number of the state of some nodes, -1 for none."""
    if count == 0:
        return np.int64(-1)
    return _numbered(states, found, count, tally)


@inlined
def _union(
    graph: Any, closures: Any, states: Any, unions: Any, nodes: Any, size: int, found: Any
) -> Any:  # fmt: skip
    """The state of the closures of some nodes, looked up by the nodes first."""
    lists, state_of_list, state_of_node = unions
    tally = closures[5]
    if size == 1:
        known = state_of_node[nodes[0]]
        if known == _UNKNOWN:
            _spend(tally, UNION_STEPS + 1)
            count = _joined(graph, closures, nodes, 1, found, 0)
            known = np.int32(_state(states, found, count, tally))
            state_of_node[nodes[0]] = known
        return np.int64(known)
    before = lists[4][0]
    key = _numbered(lists, nodes, size, tally)
    if lists[4][0] > before:
        _spend(tally, UNION_STEPS + size)
        count = _joined(graph, closures, nodes, size, found, 0)
        state_of_list[key] = _state(states, found, count, tally)
    return np.int64(state_of_list[key])


@inlined
def _by_class(graph: Any, sets: Any, arcs: Any, count: int, start: Any, targets: Any, tally: Any) -> None:
    """Sort where arcs lead by the class of the unit that they read: `start` of each class in the targets."""
    label, following = graph[1], graph[2]
    set_start, set_class = sets
    start[:] = 0
    for index in range(count):
        number = label[arcs[index]]
        for place in range(set_start[number], set_start[number + 1]):
            start[set_class[place] + 1] += 1
    for unit_class in range(len(start) - 1):
        start[unit_class + 1] += start[unit_class]
    if start[-1] > len(targets):
        _fail(tally, _ROOM, 0)
        start[:] = 0
        return
    for index in range(count):
        number = label[arcs[index]]
        for place in range(set_start[number], set_start[number + 1]):
            unit_class = set_class[place]
            targets[start[unit_class]] = following[arcs[index]]
            start[unit_class] += 1
    for unit_class in range(len(start) - 1, 0, -1):
        start[unit_class] = start[unit_class - 1]
    start[0] = 0


@numba.njit(nogil=True)
def _find_root(graph: Any, rule_start: Any, closures: Any, found: Any, of_root: Any) -> None:
    """`_Construction._of_root`: which nodes are of the root expression itself; found when first asked."""
    if of_root[-1]:
        return
    # The place after all nodes says that this is done.
    of_root[-1] = True
    kind, following = graph[0], graph[2]
    data, first, last = closures[0], closures[1], closures[2]
    waiting = np.empty(len(kind) + 1, np.int32)
    waiting[0] = rule_start[ROOT_RULE]
    size = 1
    while size:
        size -= 1
        node = waiting[size]
        if first[node] < 0:
            _close(graph, closures, node, found)
        for place in range(first[node], last[node]):
            other = data[place]
            if not of_root[other]:
                of_root[other] = True
                if kind[other] == ARC or kind[other] == CALL:
                    waiting[size] = following[other]
                    size += 1


@numba.njit(nogil=True)
def _enter(
    graph: Any, rule_start: Any, sets: Any, closures: Any, states: Any, unions: Any, entered: Any, rules: Any,
    count: int, found: Any,
) -> Any:  # fmt: skip
    """`_Construction._entered`: the number of some rules among the entered.

    Those hold, for each number, where the nodes of each class begin, and these nodes, and the states.
    """
    lists, starts, nodes, state_of, arcs = entered
    tally = closures[5]
    before = lists[4][0]
    number = _numbered(lists, rules, count, tally)
    if lists[4][0] == before:
        return number
    if number >= len(starts):
        _fail(tally, _ROOM, 0)
        return np.int64(0)
    kind = graph[0]
    size = 0
    for index in range(count):
        first_node = rule_start[rules[index]]
        if closures[1][first_node] < 0:
            _close(graph, closures, first_node, found)
        for place in range(closures[1][first_node], closures[2][first_node]):
            node = closures[0][place]
            if kind[node] != ARC:
                _fail(tally, _NO_FIRST, rules[index])
                return np.int64(0)
            if size == len(arcs):
                _fail(tally, _ROOM, 0)
                return np.int64(0)
            arcs[size] = node
            size += 1
    _spend(tally, count)
    start = starts[number]
    used = tally[_ENTERED]
    _by_class(graph, sets, arcs, size, start, nodes[used:], tally)
    start += np.int32(used)
    tally[_ENTERED] = start[-1]
    for unit_class in range(len(start) - 1):
        first, last = start[unit_class], start[unit_class + 1]
        state_of[number, unit_class] = -1
        if last > first and tally[_STATUS] == _FINE:
            state_of[number, unit_class] = _union(
                graph, closures, states, unions, nodes[first:last], last - first, found
            )
    return number


@numba.njit(nogil=True)
def _listed(chains: Any, rule: int, number: int, tally: Any) -> None:
    """Put one more number at the head of this rule's chain."""
    head, after, numbers, count = chains
    if count[0] == len(after):
        _fail(tally, _ROOM, 0)
        return
    after[count[0]] = head[rule]
    numbers[count[0]] = number
    head[rule] = count[0]
    count[0] += 1


@numba.njit(nogil=True)
def _gathered(chains: Any, rules: Any, count: int, gathered: Any) -> Any:
    """The distinct numbers in the chains of these rules, ascending; how many they are."""
    head, after, numbers, _ = chains
    size = 0
    for index in range(count):
        place = head[rules[index]]
        while place >= 0:
            gathered[size] = numbers[place]
            size += 1
            place = after[place]
    return _distinct(gathered, size)


@numba.njit(nogil=True)
def _distinct(values: Any, count: int) -> Any:
    """Sort the first values and drop those that come twice; how many are left."""
    sort(values, count)
    kept = 0
    for index in range(count):
        if kept == 0 or values[index] != values[kept - 1]:
            values[kept] = values[index]
            kept += 1
    return kept


@numba.njit(nogil=True)
def _return(
    graph: Any, closures: Any, states: Any, unions: Any, sites: Any, endings: Any, returns: Any, ending: int,
    site: int, is_ended: Any, following: Any, found: Any,
) -> None:  # fmt: skip
    """`_Construction._return`. An ending is a list of rules, then -1, then the nodes that went along."""
    label, after = graph[1], graph[2]
    tally = closures[5]
    rules = carried = 0
    first, last = endings[1][ending], endings[1][ending + 1]
    while endings[0][first + rules] >= 0:
        is_ended[endings[0][first + rules]] = True
        rules += 1
    _spend(tally, RETURN_STEPS + rules)
    for place in range(first + rules + 1, last):
        found[carried] = endings[0][place]
        carried += 1
    size = 0
    for place in range(sites[1][site], sites[1][site + 1]):
        node = sites[0][place]
        if is_ended[label[node]]:
            following[size] = after[node]
            size += 1
    for place in range(first, first + rules):
        is_ended[endings[0][place]] = False
    size = _distinct(following, size)
    if carried:
        _spend(tally, UNION_STEPS + size + carried)
        count = _joined(graph, closures, following, size, found, carried)
        state = _state(states, found, count, tally)
    else:
        state = _union(graph, closures, states, unions, following, size, found)
    places, used = returns
    if used[0] == len(places):
        _fail(tally, _ROOM, 0)
        return
    places[used[0], 0] = ending
    places[used[0], 1] = site
    places[used[0], 2] = state
    used[0] += 1


@numba.njit(nogil=True)
def _site(
    graph: Any, closures: Any, unions: Any, numbered: Any, chains: Any, returns: Any, calls: Any,
    n_calls: int, rules: Any, n_rules: int, scratch: Any,
) -> Any:  # fmt: skip
    """`_Construction._site` of these nodes, which call these rules."""
    states, sites, endings = numbered
    calling, ending_with = chains
    tally = closures[5]
    is_ended, found, key, gathered = scratch[1], scratch[7], scratch[8], scratch[9]
    before = sites[4][0]
    site = _numbered(sites, calls, n_calls, tally)
    if sites[4][0] > before:
        _spend(tally, endings[4][0] // CELLS_PER_STEP)
        for index in range(n_rules):
            _listed(calling, rules[index], site, tally)
        for index in range(_gathered(ending_with, rules, n_rules, gathered)):
            _return(
                graph, closures, states, unions, sites, endings, returns, gathered[index], site, is_ended,
                key, found,
            )  # fmt: skip
    return site


@_merged
def _edge(
    graph: Any, rule_start: Any, sets: Any, closures: Any, numbered: Any, unions: Any, entered: Any,
    chains: Any, returns: Any, nodes: Any, count: int, unit_class: int, scratch: Any,
) -> Any:  # fmt: skip
    """`_Construction._edge`: the next state and the call site."""
    kind, label, following = graph[0], graph[1], graph[2]
    tally, states = closures[5], numbered[0]
    of_root, found, key = scratch[0], scratch[7], scratch[8]
    calls, rules = np.empty(count, np.int32), np.empty(count, np.int32)
    n_calls = n_rules = size = 0
    for index in range(count):
        node = nodes[index]
        if kind[node] == ARC:
            key[size] = following[node]
            size += 1
        else:
            calls[n_calls], rules[n_calls] = node, label[node]
            n_calls += 1
    if n_calls:
        if size:
            _find_root(graph, rule_start, closures, found, of_root)
        for index in range(size):
            if not of_root[key[index]]:
                _fail(tally, _BEGIN, 0)
                return np.int64(-1), np.int64(-1)
        n_rules = _distinct(rules, n_calls)
        number = _enter(graph, rule_start, sets, closures, states, unions, entered, rules, n_rules, found)
        if tally[_STATUS] != _FINE:
            return np.int64(-1), np.int64(-1)
        for place in range(entered[1][number, unit_class], entered[1][number, unit_class + 1]):
            key[size] = entered[2][place]
            size += 1
    state, site = _union(graph, closures, states, unions, key, size, found), np.int64(-1)
    if n_calls:
        site = _site(
            graph, closures, unions, numbered, chains, returns, calls, n_calls, rules, n_rules, scratch
        )
    return state, site


@_merged
def _tested(
    graph: Any, counting: Any, rule_start: Any, sets: Any, closures: Any, numbered: Any, unions: Any,
    entered: Any, chains: Any, returns: Any, nodes: Any, count: int, unit_class: int, scratch: Any,
) -> Any:  # fmt: skip
    """`_Construction._tested`. An outcome is a count, the next state and the call site."""
    test, tests, counts, outcomes, state_of_outcomes = counting
    tally, states = closures[5], numbered[0]
    step = np.int64(0)
    for index in range(count):
        step = max(step, tests[test[nodes[index]], 0])
    bounds = np.empty(2 * count + 1, np.int64)
    bounds[0] = step
    size = 1
    for index in range(count):
        number = test[nodes[index]]
        low, beyond = tests[number, 1], tests[number, 2]
        if tests[number, 0] != step and counts[nodes[index]]:
            _fail(tally, _DIFFERENT, 0)
            return np.int64(-1), np.int64(-1)
        if low > step:
            bounds[size] = low
            size += 1
        if step < beyond < _NEVER:
            bounds[size] = beyond
            size += 1
    held = np.empty(count, np.int32)
    edges = np.empty(3 * size, np.int32)
    used = 0
    for index in range(_distinct(bounds, size)):
        n_held = 0
        for place in range(count):
            number = test[nodes[place]]
            if tests[number, 1] <= bounds[index] < tests[number, 2]:
                held[n_held] = nodes[place]
                n_held += 1
        _spend(tally, TEST_STEPS + count)
        state, site = _edge(
            graph, rule_start, sets, closures, numbered, unions, entered, chains, returns, held, n_held,
            unit_class, scratch,
        )  # fmt: skip
        if tally[_STATUS] != _FINE:
            return np.int64(-1), np.int64(-1)
        if not used or edges[used - 2] != state or edges[used - 1] != site:
            edges[used], edges[used + 1], edges[used + 2] = bounds[index], state, site
            used += 3
    if step == 0 and used == 3:
        return np.int64(edges[1]), np.int64(edges[2])
    before = outcomes[4][0]
    number = _numbered(outcomes, edges, used, tally)
    if outcomes[4][0] > before:
        state = states[4][0]
        if state == len(states[2]):
            _fail(tally, _ROOM, 0)
            return np.int64(-1), np.int64(-1)
        # A state of no nodes, which is not found by them.
        states[1][state + 1] = states[1][state]
        states[4][0] = state + 1
        state_of_outcomes[number] = state
    return np.int64(state_of_outcomes[number]), np.int64(-1)


@_merged
def _explore_counted(
    graph: Any, counting: Any, rule_start: Any, sets: Any, closures: Any, numbered: Any, unions: Any,
    entered: Any, chains: Any, returns: Any, known: Any, state: int, move: Any, call: Any, arcs: Any,
    n_arcs: int, calls: Any, n_calls: int, scratch: Any,
) -> None:  # fmt: skip
    """`_Construction._explore_counted`, for a row of each table."""
    label, tally, found = graph[1], closures[5], scratch[7]
    set_start, set_class = sets
    start, nodes = scratch[10], scratch[11]
    classes = len(start) - 1
    rule = np.empty(1, np.int32)
    number_of = np.empty(n_calls, np.int64)
    for index in range(n_calls):
        rule[0] = label[calls[index]]
        number_of[index] = _enter(
            graph, rule_start, sets, closures, numbered[0], unions, entered, rule, 1, found
        )
        if tally[_STATUS] != _FINE:
            return
    # The nodes that read a unit of each class, arcs first.
    start[:] = 0
    for index in range(n_arcs):
        number = label[arcs[index]]
        for place in range(set_start[number], set_start[number + 1]):
            start[set_class[place] + 1] += 1
    for index in range(n_calls):
        for unit_class in range(classes):
            begins = entered[1][number_of[index]]
            start[unit_class + 1] += begins[unit_class + 1] > begins[unit_class]
    for unit_class in range(classes):
        start[unit_class + 1] += start[unit_class]
    if start[classes] > len(nodes):
        _fail(tally, _ROOM, 0)
        return
    place_of = start.copy()
    for index in range(n_arcs):
        number = label[arcs[index]]
        for place in range(set_start[number], set_start[number + 1]):
            nodes[place_of[set_class[place]]] = arcs[index]
            place_of[set_class[place]] += 1
    for index in range(n_calls):
        begins = entered[1][number_of[index]]
        for unit_class in range(classes):
            if begins[unit_class + 1] > begins[unit_class]:
                nodes[place_of[unit_class]] = calls[index]
                place_of[unit_class] += 1
    _spend(tally, start[classes])
    lists, edge_of = known
    asked = np.empty(n_arcs + 1, np.int32)
    asked[0] = state
    for unit_class in range(classes):
        first, last = start[unit_class], start[unit_class + 1]
        if first == last:
            continue
        before = number = np.int64(-1)
        if not n_calls:
            # What the same arcs of this state have led to.
            before = lists[4][0]
            for place in range(first, last):
                asked[1 + place - first] = nodes[place]
            number = _numbered(lists, asked, 1 + last - first, tally)
        if number == before:
            target, site = _tested(
                graph, counting, rule_start, sets, closures, numbered, unions, entered, chains, returns,
                nodes[first:last], last - first, unit_class, scratch,
            )  # fmt: skip
            if tally[_STATUS] != _FINE:
                return
            if number >= 0:
                edge_of[number, 0], edge_of[number, 1] = target, site
        else:
            target, site = np.int64(edge_of[number, 0]), np.int64(edge_of[number, 1])
        move[unit_class], call[unit_class] = target, site


@inlined
def _same(values: Any, before: int, first: int, last: int) -> Any:
    """Whether the values from `before` to `first` are those from `first` to `last`."""
    if first - before != last - first:
        return False
    for index in range(last - first):  # noqa: SIM110
        if values[before + index] != values[first + index]:
            return False
    return True


@numba.njit(nogil=True)
def _explore(
    graph: Any, counting: Any, rule_start: Any, sets: Any, closures: Any, numbered: Any, unions: Any,
    entered: Any, chains: Any, returns: Any, known: Any, rows: Any, scratch: Any,
) -> Any:  # fmt: skip
    """Find all states and fill in their rows; how many they are, if nothing failed."""
    graph, counting = borrowed(graph), borrowed(counting)
    rule_start, sets = borrowed(rule_start), borrowed(sets)
    closures, unions, entered = borrowed(closures), borrowed(unions), borrowed(entered)
    numbered, chains = borrowed(numbered), borrowed(chains)
    returns, known, scratch = borrowed(returns), borrowed(known), borrowed(scratch)
    states, sites, endings = numbered
    calling, ending_with = chains
    move, call, ending_of_state, accepting = borrowed(rows)
    kind, label, tally, test = graph[0], graph[1], closures[5], counting[0]
    classes = move.shape[1]
    of_root, is_ended, nodes, arcs, calls, rules, ended, found, key, gathered, start, targets = scratch

    nodes[0] = rule_start[ROOT_RULE]
    count = _joined(graph, closures, nodes, 1, found, 0)
    _numbered(states, found, count, tally)
    state = 0
    while state < states[4][0] and tally[_STATUS] == _FINE:
        first, last = states[1][state], states[1][state + 1]
        ending_of_state[state] = -1
        accepting[state] = False
        move[state] = -1
        call[state] = -1
        if state and first == last:
            # A test; where its outcomes lead is known.
            state += 1
            continue
        _spend(tally, STATE_STEPS + classes // CELLS_PER_STEP + last - first)
        n_arcs = n_calls = n_ended = moves = 0
        counted = False
        for place in range(first, last):
            node = states[0][place]
            counted = counted or test[node] != NO_TEST
            if kind[node] == ARC:
                arcs[n_arcs] = node
                n_arcs += 1
                moves += sets[0][label[node] + 1] - sets[0][label[node]]
            elif kind[node] == CALL:
                calls[n_calls] = node
                rules[n_calls] = label[node]
                n_calls += 1
            elif label[node] == ROOT_RULE:
                accepting[state] = True
            else:
                ended[n_ended] = label[node]
                n_ended += 1
        _spend(tally, moves // MOVES_PER_STEP)
        n_ended = _distinct(ended, n_ended)
        n_rules = _distinct(rules, n_calls)
        if counted:
            if n_ended:
                _fail(tally, _COUNTED_END, 0)
            if tally[_STATUS] == _FINE:
                _explore_counted(
                    graph, counting, rule_start, sets, closures, numbered, unions, entered, chains, returns,
                    known, state, move[state], call[state], arcs, n_arcs, calls, n_calls, scratch,
                )  # fmt: skip
            state += 1
            continue
        nested = n_calls > 0 or n_ended > 0
        number = 0
        if nested:
            _spend(tally, NESTED_STEPS)
            _find_root(graph, rule_start, closures, found, of_root)
            number = _enter(graph, rule_start, sets, closures, states, unions, entered, rules, n_rules, found)
            if tally[_STATUS] != _FINE:
                break
            move[state] = entered[3][number]
        _by_class(graph, sets, arcs, n_arcs, start, targets, tally)
        for unit_class in range(classes):
            first, last = start[unit_class], start[unit_class + 1]
            if first == last:
                continue
            if tally[_STATUS] != _FINE:
                break
            if nested:
                begin, end = entered[1][number, unit_class], entered[1][number, unit_class + 1]
                inside = False
                for place in range(first, last):
                    inside = inside or not of_root[targets[place]]
                if end > begin:
                    if inside:
                        _fail(tally, _BEGIN, 0)
                        break
                    for place in range(first, last):
                        key[place - first] = targets[place]
                    for place in range(begin, end):
                        key[last - first + place - begin] = entered[2][place]
                    count = last - first + end - begin
                    move[state, unit_class] = _union(graph, closures, states, unions, key, count, found)
                    continue
                if n_ended and not inside:
                    continue
            elif unit_class and _same(targets, start[unit_class - 1], first, last):
                move[state, unit_class] = move[state, unit_class - 1]
                continue
            move[state, unit_class] = _union(
                graph, closures, states, unions, targets[first:last], last - first, found
            )
        if tally[_STATUS] != _FINE:
            break
        if n_calls:
            site = _site(
                graph, closures, unions, numbered, chains, returns, calls, n_calls, rules, n_rules, scratch
            )
            moves = 0
            for unit_class in range(classes):
                if entered[1][number, unit_class + 1] > entered[1][number, unit_class]:
                    call[state, unit_class] = site
                    moves += 1
            _spend(tally, moves // MOVES_PER_STEP)
        if n_ended:
            count = n_ended + 1
            ended[n_ended] = -1
            key[:count] = ended[:count]
            for place in range(states[1][state], states[1][state + 1]):
                if of_root[states[0][place]]:
                    key[count] = states[0][place]
                    count += 1
            before = endings[4][0]
            ending = _numbered(endings, key, count, tally)
            ending_of_state[state] = ending
            if endings[4][0] > before:
                _spend(tally, sites[4][0] // CELLS_PER_STEP)
                for index in range(n_ended):
                    _listed(ending_with, ended[index], ending, tally)
                for index in range(_gathered(calling, ended, n_ended, gathered)):
                    _return(
                        graph, closures, states, unions, sites, endings, returns, ending, gathered[index],
                        is_ended, key, found,
                    )  # fmt: skip
        state += 1
    return state


@numba.njit(cache=True, nogil=True)
def _construct(
    kind: Any, label: Any, following: Any, fork_start: Any, fork_target: Any, rule_start: Any,
    productive: Any, set_start: Any, set_class: Any, test: Any, tests: Any, counts: Any, classes: int,
    room: int, left: int,
) -> Any:  # fmt: skip
    """`_Construction.result`: the tally, outcomes with their states, move, call, ending, returns, accepting.

    If `room` for so many things of every kind is not enough, the tally says so.
    """
    size = len(kind) + 2
    rules_in_all = len(rule_start)
    graph = (kind, label, following, fork_start, fork_target, productive)
    sets = (set_start, set_class)
    tally = np.zeros(7, np.int64)
    tally[_LEFT] = left
    closures = (
        np.empty(4 * room + size, np.int32),
        np.full(size, -1, np.int64),
        np.zeros(size, np.int64),
        np.zeros(size, np.int32),
        np.empty(size, np.int32),
        tally,
    )
    states, sites, endings = _lists(room, 8 * room), _lists(room, 8 * room), _lists(room, 8 * room)
    unions = (_lists(room, 8 * room), np.empty(room, np.int32), np.full(size, _UNKNOWN, np.int32))
    entered = (
        _lists(room, 8 * room),
        np.empty((room // 8 + 2, classes + 1), np.int32),
        np.empty(8 * room, np.int32),
        np.empty((room // 8 + 2, classes), np.int32),
        np.empty(8 * room, np.int32),
    )
    none = np.full(rules_in_all, -1, np.int32)
    calling = none, np.empty(room, np.int32), np.empty(room, np.int32), np.zeros(1, np.int64)
    ending_with = none.copy(), np.empty(room, np.int32), np.empty(room, np.int32), np.zeros(1, np.int64)
    outcomes, known = _lists(room, 8 * room), _lists(room, 8 * room)
    counting = test, tests, counts, outcomes, np.empty(room, np.int32)
    returns = (np.empty((4 * room, 3), np.int32), np.zeros(1, np.int64))
    move, call = np.empty((room, classes), np.int32), np.empty((room, classes), np.int32)
    ending_of_state, accepting = np.empty(room, np.int32), np.empty(room, np.bool_)
    scratch = (
        np.zeros(size, np.bool_),
        np.zeros(rules_in_all, np.bool_),
        np.empty(size, np.int32),
        np.empty(size, np.int32),
        np.empty(size, np.int32),
        np.empty(size, np.int32),
        np.empty(size, np.int32),
        np.empty(2 * size, np.int32),
        np.empty(2 * size, np.int32),
        np.empty(room, np.int32),
        np.zeros(classes + 1, np.int32),
        np.empty(8 * room, np.int32),
    )
    explored = _explore(
        graph, counting, rule_start, sets, closures, (states, sites, endings), unions, entered,
        (calling, ending_with), returns, (known, np.empty((room, 2), np.int32)),
        (move, call, ending_of_state, accepting), scratch,
    )  # fmt: skip
    state = explored if tally[_STATUS] == _FINE else 0
    returned = np.full((endings[4][0] * (state > 0), sites[4][0]), -1, np.int32)
    for index in range(returns[1][0] * (state > 0)):
        returned[returns[0][index, 0], returns[0][index, 1]] = returns[0][index, 2]
    many = outcomes[4][0]
    said = outcomes[0][: outcomes[1][many]], outcomes[1][: many + 1], counting[4][:many]
    return tally, said, move[:state], call[:state], ending_of_state[:state], returned, accepting[:state]


def subsets(nfa: Nfa, classes: UnitClasses) -> Subsets:
    """`subsets.subsets`."""
    arrays = *nfa.arrays, np.frombuffer(nfa.productive, np.bool_), *ragged(classes.of), *_counting(nfa)
    # There are about as many states as nodes; where there are more, beginning again costs less than arrays
    # that grow.
    room = max(256, len(nfa.kind))
    tally, *found = _construct(*arrays, classes.count, room, meter().left)
    while tally[_STATUS] == _ROOM:
        room *= 4
        tally, *found = _construct(*arrays, classes.count, room, meter().left)
    status, detail, steps = tally[:3].tolist()
    meter().charge(steps)
    if status == _BEGIN:
        raise ambiguous_begin()
    if status == _NO_FIRST:
        raise no_first_unit(nfa.rules[detail])
    if status == _COUNTED_END:
        raise counted_end()
    if status == _DIFFERENT:
        raise different_counts()
    outcomes, move, call, ending, returns, accepting = found
    return with_outcomes(move, call, ending, returns, accepting, _outcomes(*outcomes))


def _counting(nfa: Nfa) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.bool_]]:
    """Of nodes the tests; of tests the step, the least count and that beyond; of nodes whether they count."""
    tests = [(step, low, _NEVER if high is None else high + 1) for step, low, high in nfa.tests]
    test = np.array(nfa.test, np.int32)
    counts = test != NO_TEST
    if len(tests) > 1:
        kind, _, following, *_ = nfa.arrays
        reads = (kind == ARC) | (kind == CALL)
        counts[reads] |= np.frombuffer(nfa.counting, np.bool_)[following[reads]]
    return test, np.array(tests, np.int64), counts


def _outcomes(
    data: NDArray[np.int32], start: NDArray[np.int64], states: NDArray[np.int32]
) -> dict[int, tuple[Split, tuple[Edge, ...]]]:
    """The outcomes of each state that tests."""
    rows = np.split(data.reshape(-1, 3), start[1:-1] // 3) if len(states) else []
    found: dict[int, tuple[Split, tuple[Edge, ...]]] = {}
    for state, row in zip(states.tolist(), rows, strict=True):
        step, *cuts = row[:, 0].tolist()
        found[state] = Split(step, tuple(cuts)), tuple(map(tuple, row[:, 1:].tolist()))
    return found


REPLACES: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    nodes_definition.productive_nodes: productive_nodes,
    definition.subsets: subsets,
}

_NARROW = types.int32[::1]
_WIDE = types.int64[::1]
_KINDS = types.int8[::1]
LOOPS: Final[dict[Any, tuple[Any, ...]]] = {
    _productive: (_KINDS, _NARROW, _NARROW, _WIDE, _NARROW, _NARROW),
    _construct: (
        _KINDS, _NARROW, _NARROW, _WIDE, _NARROW, _NARROW, types.boolean[::1], _WIDE, _NARROW,
        _NARROW, types.int64[:, ::1], types.boolean[::1], types.int64, types.int64, types.int64,
    ),
}  # fmt: skip
