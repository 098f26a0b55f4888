"""Subset construction over nested words: which sets of nodes a frame can be at, and what they lead to.

Numbers of all things are given in the order of discovery, which is fixed: states in the order in which they
were found, classes of units ascending, nodes ascending. `subsets_jit.py` holds the same construction in
compiled loops, and finds the same arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sortition.grammars.errors import GrammarError, Unsupported
from sortition.grammars.nfa import ARC, CALL, ROOT_RULE, Nfa
from sortition.grammars.partition import UnitClasses
from sortition.grammars.work import meter

STATE_STEPS: Final = 8
"""Steps that a state takes beside those for its nodes."""

NESTED_STEPS: Final = 12
"""Steps more for a state in which nested words begin or end."""

UNION_STEPS: Final = 5
"""Steps that a union of closures takes beside those for its nodes."""

NODES_PER_STEP: Final = 3
"""Nodes of a closure of several nodes that are put in order in one step."""

RETURN_STEPS: Final = 3
"""Steps that a return takes beside those for the rules that end."""

MOVES_PER_STEP: Final = 3
"""Moves of nodes by single classes of units that are looked at in one step."""

CELLS_PER_STEP: Final = 16
"""Cells of all tables that there is room for in one step: some 40 bytes each, until the machine is ready."""

TEST_STEPS: Final = 12
"""Steps that each outcome of a test takes beside those for the nodes."""

Edge: TypeAlias = tuple[int, int]
"""The next state and the call site that is pushed on the way, -1 for none."""

Ints = NDArray[np.int32]
Flags = NDArray[np.bool_]


class Split(NamedTuple):
    """A test of a count: `step` is added to it; the outcome is how many of the `cuts` are then at most it."""

    step: int
    cuts: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Subsets:
    """The states that were found, of which several may be equivalent; state 0 is the start.

    Attributes:
        move: int32 [states, classes], the next state, -1 where there is none.
        call: int32 [states, classes], the call site that this move pushes, -1 for none.
        ending: int32 [states], which set of rules has ended here, -1 for none.
        returns: int32 [endings, sites], the state after popping a site, -1 where this never happens.
        accepting: bool [states], whether the root may end here.
        test: int32 [states], the number of a test of the frame's count, -1 for none. A state with a test is
            left at once, without reading: its moves are not by class but by the outcome of the test.
        tests: the distinct tests.
    """

    move: Ints
    call: Ints
    ending: Ints
    returns: Ints
    accepting: Flags
    test: Ints
    tests: Sequence[Split]


def subsets(nfa: Nfa, classes: UnitClasses) -> Subsets:
    """All states that can be reached from the start.

    Raises:
        Unsupported: the text does not show where a called word begins.
        TooLarge: it takes too much work.
    """
    return _Construction(nfa, classes).result()


def with_outcomes(
    move: Ints,
    call: Ints,
    ending: Ints,
    returns: Ints,
    accepting: Flags,
    outcomes: Mapping[int, tuple[Split, tuple[Edge, ...]]],
) -> Subsets:
    """The states that were found, of which these test: their splits, and where the outcomes lead."""
    tests: dict[Split, int] = {}
    test = np.full(len(move), -1, np.int32)
    wider = max((len(edges) for _, edges in outcomes.values()), default=0) - move.shape[1]
    if wider > 0:
        move, call = (np.pad(each, ((0, 0), (0, wider)), constant_values=-1) for each in (move, call))
    for state, (split, edges) in outcomes.items():
        test[state] = tests.setdefault(split, len(tests))
        move[state, : len(edges)], call[state, : len(edges)] = zip(*edges, strict=True)
    return Subsets(move, call, ending, returns, accepting, test, list(tests))


def ambiguous_begin() -> GrammarError:
    """A byte after which the text may be in a nested part or not."""
    return Unsupported(
        "the grammar cannot tell whether a nested part begins at some byte",
        hint="make the alternatives differ before the nested part begins",
    )


def counted_end() -> GrammarError:
    """Something is counted in a nested part that may end before any byte."""
    return Unsupported("the grammar counts where the text does not show that a nested part ends")


def different_counts() -> GrammarError:
    """A byte that adds different numbers to what is counted."""
    return Unsupported("the grammar counts different things at once")


def no_first_unit(rule: str) -> GrammarError:
    """A rule whose first byte does not show that it begins."""
    return Unsupported(f"the rule {rule!r} may be empty or begins with another rule")


@dataclass(frozen=True, slots=True)
class _Entered:
    """What the first unit of a nested word leads to.

    Attributes:
        nodes: the nodes, by the class of the unit.
        classes: every state that such nodes make, with the classes of units that lead there.
    """

    nodes: dict[int, tuple[int, ...]]
    classes: tuple[tuple[int, tuple[int, ...]], ...]


class _Cells:
    """What stands in the cells of a table: of each row, which columns hold which value."""

    def __init__(self) -> None:
        self._first: list[int] = []
        self._columns: list[tuple[int, ...]] = []
        self._value: list[int] = []

    def add(self, first: int, columns: tuple[int, ...], value: int) -> None:
        """Put a value into columns of the row whose first cell is given, in place of what is there."""
        self._first.append(first)
        self._columns.append(columns)
        self._value.append(value)

    def table(self, shape: tuple[int, int]) -> Ints:
        """The table, -1 where nothing was put."""
        widths = np.fromiter(map(len, self._columns), np.int64, len(self._columns))
        cells = np.repeat(np.array(self._first, np.int64), widths)
        cells += np.fromiter(chain.from_iterable(self._columns), np.int64, len(cells))
        table = np.full(shape, -1, np.int32)
        table.reshape(-1)[cells] = np.repeat(np.array(self._value, np.int32), widths)
        return table


class _Construction:
    def __init__(self, nfa: Nfa, classes: UnitClasses) -> None:
        self._nfa = nfa
        self._counts = len(nfa.tests) > 1
        self._classes = classes
        self._states: list[tuple[int, ...]] = []
        self._state_number: dict[tuple[int, ...], int] = {}
        self._move, self._call = _Cells(), _Cells()
        self._accepting: list[bool] = []
        # What follows each rule that a site calls.
        self._sites: list[dict[int, list[int]]] = []
        self._site_number: dict[tuple[int, ...], int] = {}
        self._sites_calling: dict[int, list[int]] = {}
        # An ending is the rules that ended and the nodes of the root expression that went along inside.
        self._ending_of_state: list[int] = []
        self._endings: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._ending_number: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        # Whether an ending is of one rule and nothing else.
        self._ends_alone: list[bool] = []
        self._endings_with: dict[int, list[int]] = {}
        # Endings, sites and the states after them.
        self._returns: tuple[list[int], list[int], list[int]] = [], [], []
        self._unions: dict[tuple[int, ...], int] = {}
        self._entered_by: dict[tuple[int, ...], _Entered] = {}
        # Of sets of units, given by their numbers: which classes are in which of them, the lowest first.
        self._overlaps: dict[tuple[int, ...], list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}
        self._spend = meter().charge
        self._state_steps = STATE_STEPS + classes.count // CELLS_PER_STEP
        self._width = [len(of) for of in classes.of]
        # The splits of states that test, and where their outcomes lead.
        self._outcomes: dict[int, tuple[Split, tuple[Edge, ...]]] = {}
        self._outcomes_number: dict[tuple[Split, tuple[Edge, ...]], int] = {}

    def result(self) -> Subsets:
        # The start is a state even if nothing can be read there.
        self._states.append(self._nfa.closure(self._nfa.start[ROOT_RULE]))
        self._state_number[self._states[0]] = 0
        # Exploring a state appends those it leads to.
        for state, nodes in enumerate(self._states):
            if state in self._outcomes:
                self._accepting.append(False)
                self._ending_of_state.append(-1)
            else:
                self._explore(state, nodes)
        shape = len(self._states), self._classes.count
        returns = np.full((len(self._endings), len(self._sites)), -1, np.int32)
        ending_of, site_of, after = (np.array(each, np.int32) for each in self._returns)
        returns[ending_of, site_of] = after
        move, call = self._move.table(shape), self._call.table(shape)
        ending, accepting = np.array(self._ending_of_state, np.int32), np.array(self._accepting, np.bool_)
        return with_outcomes(move, call, ending, returns, accepting, self._outcomes)

    def _state(self, nodes: tuple[int, ...]) -> int:
        if not nodes:
            return -1
        number = self._state_number.get(nodes)
        if number is None:
            number = self._state_number[nodes] = self._new_state(nodes)
        return number

    def _new_state(self, nodes: tuple[int, ...]) -> int:
        self._states.append(nodes)
        return len(self._states) - 1

    def _explore(self, state: int, nodes: tuple[int, ...]) -> None:
        """Fill in the moves of one state, its call site and its ending."""
        kind, label = self._nfa.kind, self._nfa.label
        arcs: list[int] = []
        calls: list[int] = []
        ends: list[int] = []
        for node in nodes:
            (arcs if kind[node] == ARC else calls if kind[node] == CALL else ends).append(node)
        moves = sum([self._width[label[node]] for node in arcs])
        self._spend(self._state_steps + len(nodes) + moves // MOVES_PER_STEP)
        ended = tuple(sorted({label[node] for node in ends} - {ROOT_RULE}))
        first = state * self._classes.count
        if self._counts and any(map(self._nfa.test.__getitem__, nodes)):
            self._explore_counted(first, arcs, calls, ended)
        elif not calls and not ended:
            for classes, targets in self._followers(arcs):
                self._move.add(first, classes, self._union(targets))
        else:
            self._explore_nested(first, arcs, calls, ended)
        self._accepting.append(any(label[node] == ROOT_RULE for node in ends))
        self._ending_of_state.append(self._ending(ended, nodes) if ended else -1)

    def _explore_nested(self, first: int, arcs: list[int], calls: list[int], ended: tuple[int, ...]) -> None:
        """The moves and the call site of a state in which nested words begin or end."""
        self._spend(NESTED_STEPS)
        entered = self._entered(tuple(sorted({self._nfa.label[node] for node in calls})))
        ways: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        for classes, targets in self._followers(arcs):
            inside = not all(self._of_root[node] for node in targets)
            begins = entered.nodes.keys() & classes
            if begins and inside:
                raise ambiguous_begin()
            ways += [((unit_class,), targets + entered.nodes[unit_class]) for unit_class in begins]
            others = tuple([each for each in classes if each not in begins]) if begins else classes
            if others and (inside or not ended):
                ways.append((others, targets))
            # Otherwise the frame ends first; what went along from the root reads the unit after that.
        for state, classes in entered.classes:
            self._move.add(first, classes, state)
        # These stand in place of what is only entered.
        for classes, nodes in sorted(ways):
            self._move.add(first, classes, self._union(nodes))
        if calls:
            self._spend(len(entered.nodes) // MOVES_PER_STEP)
            self._call.add(first, tuple(entered.nodes), self._site(tuple(calls)))

    def _explore_counted(self, first: int, arcs: list[int], calls: list[int], ended: tuple[int, ...]) -> None:
        """The moves and the call sites of a state in which something is counted."""
        if ended:
            raise counted_end()
        by_class: dict[int, list[int]] = {}
        for node in arcs:
            for unit_class in self._classes.of[self._nfa.label[node]]:
                by_class.setdefault(unit_class, []).append(node)
        for node in calls:
            for unit_class in self._entered((self._nfa.label[node],)).nodes:
                by_class.setdefault(unit_class, []).append(node)
        self._spend(sum(map(len, by_class.values())))
        known: dict[tuple[int, ...], Edge] = {}
        for unit_class in sorted(by_class):
            nodes = tuple(by_class[unit_class])
            edge = known.get(nodes)
            if edge is None:
                edge = self._tested(nodes, unit_class)
                if calls == []:
                    known[nodes] = edge
            self._move.add(first, (unit_class,), edge[0])
            self._call.add(first, (unit_class,), edge[1])

    def _tested(self, nodes: tuple[int, ...], unit_class: int) -> Edge:
        """Where reading a unit of a class leads from these nodes, by the count: to a state that tests it."""
        nfa = self._nfa
        tested = [(node, *nfa.tests[nfa.test[node]]) for node in nodes]
        step = max([test_step for _, test_step, _, _ in tested])
        if any(test_step != step and nfa.counts(node) for node, test_step, _, _ in tested):
            raise different_counts()
        bounds = {low for _, _, low, _ in tested}
        bounds |= {high + 1 for _, _, _, high in tested if high is not None}
        cuts: list[int] = []
        edges: list[Edge] = []
        for count in [step, *sorted(bound for bound in bounds if bound > step)]:
            self._spend(TEST_STEPS + len(nodes))
            held = [node for node, _, low, high in tested if low <= count and (high is None or count <= high)]
            edge = self._edge(held, unit_class)
            if not edges or edge != edges[-1]:
                edges.append(edge)
                cuts.append(count)
        if step == 0 and len(edges) == 1:
            return edges[0]
        key = Split(step, tuple(cuts[1:])), tuple(edges)
        state = self._outcomes_number.get(key)
        if state is None:
            state = self._outcomes_number[key] = self._new_state(())
            self._outcomes[state] = key
        return state, -1

    def _edge(self, nodes: Sequence[int], unit_class: int) -> Edge:
        """Where reading a unit of a class leads from these arcs and calls together."""
        nfa = self._nfa
        targets = tuple([nfa.following[node] for node in nodes if nfa.kind[node] == ARC])
        calls = tuple([node for node in nodes if nfa.kind[node] == CALL])
        if not calls:
            return self._union(targets), -1
        if not all(self._of_root[node] for node in targets):
            raise ambiguous_begin()
        entered = self._entered(tuple(sorted({nfa.label[node] for node in calls})))
        return self._union(targets + entered.nodes[unit_class]), self._site(calls)

    def _followers(self, arcs: Sequence[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Classes of units, and where arcs lead that read them; every class comes once, the lowest first."""
        label, following, classes_of = self._nfa.label, self._nfa.following, self._classes.of
        if len(arcs) == 1:
            return [(classes_of[label[arcs[0]]], (following[arcs[0]],))]
        by_set: dict[int, list[int]] = {}
        for node in arcs:
            by_set.setdefault(label[node], []).append(following[node])
        sets = tuple(by_set)
        overlaps = self._overlaps.get(sets)
        if overlaps is None:
            overlaps = self._overlaps[sets] = self._overlaps_of(sets)
        followers = []
        for classes, numbers in overlaps:
            if len(numbers) == 1:
                targets = by_set[numbers[0]]
            elif len(numbers) == len(sets):
                targets = [following[node] for node in arcs]
            else:
                targets = [following[node] for node in arcs if label[node] in numbers]
            followers.append((classes, tuple(targets)))
        return followers

    def _overlaps_of(self, sets: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """The classes in any of these sets, by which of the sets they are in."""
        members: dict[int, list[int]] = {}
        for number in sets:
            for unit_class in self._classes.of[number]:
                members.setdefault(unit_class, []).append(number)
        classes: dict[tuple[int, ...], list[int]] = {}
        for unit_class in sorted(members):
            classes.setdefault(tuple(members[unit_class]), []).append(unit_class)
        return [(tuple(same), numbers) for numbers, same in classes.items()]

    def _union(self, nodes: tuple[int, ...]) -> int:
        state = self._unions.get(nodes)
        if state is None:
            self._spend(UNION_STEPS + len(nodes))
            state = self._unions[nodes] = self._state(self._closure(nodes))
        return state

    def _closure(self, nodes: Sequence[int], more: Sequence[int] = ()) -> tuple[int, ...]:
        """What is reached from all of these nodes, and some more nodes."""
        if len(nodes) == 1 and not more:
            return self._nfa.closure(nodes[0])
        try:
            # Most were asked for before, which a call for each takes as long as all the rest to find out.
            found = set(more).union(*map(self._nfa.closures.__getitem__, nodes))
        except KeyError:
            found = set(more).union(*map(self._nfa.closure, nodes))
        self._spend(len(found) // NODES_PER_STEP)
        return tuple(sorted(found))

    @cached_property
    def _of_root(self) -> bytearray:
        """Which nodes are of the root expression itself."""
        nfa = self._nfa
        reached = bytearray(len(nfa.kind))
        waiting = [nfa.start[ROOT_RULE]]
        while waiting:
            for node in nfa.closure(waiting.pop()):
                if not reached[node]:
                    reached[node] = True
                    if nfa.kind[node] in (ARC, CALL):
                        waiting.append(nfa.following[node])
        return reached

    def _entered(self, rules: tuple[int, ...]) -> _Entered:
        """What the first unit of a word of any of these rules leads to."""
        entered = self._entered_by.get(rules)
        if entered is None:
            found: dict[int, list[int]] = {}
            for rule in rules:
                for node in self._nfa.closure(self._nfa.start[rule]):
                    if self._nfa.kind[node] != ARC:
                        raise no_first_unit(self._nfa.rules[rule])
                    for unit_class in self._classes.of[self._nfa.label[node]]:
                        found.setdefault(unit_class, []).append(self._nfa.following[node])
            self._spend(len(rules))
            nodes = {unit_class: tuple(targets) for unit_class, targets in found.items()}
            classes: dict[int, list[int]] = {}
            for unit_class in sorted(nodes):
                classes.setdefault(self._union(nodes[unit_class]), []).append(unit_class)
            states = tuple([(state, tuple(numbers)) for state, numbers in classes.items()])
            entered = self._entered_by[rules] = _Entered(nodes, states)
        return entered

    def _site(self, calls: tuple[int, ...]) -> int:
        number = self._site_number.get(calls)
        if number is None:
            number = self._site_number[calls] = len(self._sites)
            following: dict[int, list[int]] = {}
            for node in calls:
                following.setdefault(self._nfa.label[node], []).append(self._nfa.following[node])
            self._sites.append(following)
            self._spend(len(self._endings) // CELLS_PER_STEP)
            for rule in following:
                self._sites_calling.setdefault(rule, []).append(number)
            # Sites may be thousands, with as many endings as there are rules: most of these need nothing new.
            endings: list[int] = []
            states: list[int] = []
            others: set[int] = set()
            for rule, onward in following.items():
                state = self._unions.get((onward[0],)) if len(onward) == 1 else None
                for ending in self._endings_with.get(rule, ()):
                    if state is None or not self._ends_alone[ending]:
                        others.add(ending)
                    else:
                        endings.append(ending)
                        states.append(state)
            for ending in sorted(others):
                self._return(ending, number)
            self._spend((RETURN_STEPS + 1) * len(endings))
            self._note_returns(endings, [number] * len(endings), states)
        return number

    def _ending(self, ended: tuple[int, ...], nodes: tuple[int, ...]) -> int:
        carried = tuple([node for node in nodes if self._of_root[node]])
        number = self._ending_number.get((ended, carried))
        if number is None:
            number = self._ending_number[ended, carried] = len(self._endings)
            self._endings.append((ended, carried))
            self._ends_alone.append(len(ended) == 1 and not carried)
            self._spend(len(self._sites) // CELLS_PER_STEP)
            for rule in ended:
                self._endings_with.setdefault(rule, []).append(number)
            for site in sorted({s for rule in ended for s in self._sites_calling.get(rule, ())}):
                self._return(number, site)
        return number

    def _return(self, ending: int, site: int) -> None:
        ended, carried = self._endings[ending]
        self._spend(RETURN_STEPS + len(ended))
        following = tuple(self._sites[site].get(ended[0], ()))
        if len(ended) > 1 or len(following) > 1:
            following = tuple(sorted({after for rule in ended for after in self._sites[site].get(rule, ())}))
        if carried:
            self._spend(UNION_STEPS + len(following) + len(carried))
            state = self._state(self._closure(following, carried))
        else:
            state = self._union(following)
        self._note_returns([ending], [site], [state])

    def _note_returns(self, endings: list[int], sites: list[int], states: list[int]) -> None:
        for found, more in zip(self._returns, (endings, sites, states), strict=True):
            found.extend(more)
