"""Rules that call each other -> one deterministic machine with a stack of call sites.

A call reads one word of another rule in a stack frame of its own. The machine is the subset construction
over nested words (Alur and Madhusudan, "Visibly pushdown languages", STOC 2004): a state is the set of all
NFA nodes at which the frame could be, a byte that begins a called word enters *all* rules that the byte can
begin, and pushes the call site, which remembers what follows each of them. Rules therefore cost their own
states once, however often and however deep they are called, recursion is free, and alternatives that share
a prefix (two objects under `anyOf`) are followed together instead of being guessed between.

This is deterministic wherever the text itself shows where a called word begins and ends, as quotes,
brackets and digits do in JSON. Where it does not, `Machine.of` refuses.
"""

from __future__ import annotations

from collections.abc import KeysView, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sortition.grammars.automaton import BYTES
from sortition.grammars.errors import Unsatisfiable, Unsupported
from sortition.grammars.expr import Expr
from sortition.grammars.nfa import ROOT, WORK_BUDGET, Nfa
from sortition.grammars.partition import UnitClasses, coarsest_partition, distinct_columns

STATE_BUDGET: Final = 30_000
"""States of one machine; building that many takes about 1 s on one 2.4 GHz core."""

RETURN_BUDGET: Final = 4_000_000
"""Cells of the (ending, call site) table: 16 MiB."""


@dataclass(frozen=True, eq=False)
class Machine:
    """A deterministic automaton over bytes with a stack of call sites; state 0 is the start.

    A frame ends when a state whose `ending` is set has no move on the next byte: the top call site is popped
    and the machine goes on in ``returns[ending, site]``, which reads the byte. If such a state has no moves
    at all the frame ends as soon as the state is reached.

    Attributes:
        byte_class: uint8 [256], the class of each byte.
        move: int32 [states, classes], the next state, -1 where there is none.
        call: int32 [states, classes], the call site that this move pushes, -1 for none.
        ending: int32 [states], which set of rules has ended here, -1 for none.
        returns: int32 [endings, sites], the state after popping a site, -1 where this never happens.
        accepting: bool [states], whether the text may end here.
        depth: the most frames that can be on the stack, None if there is no limit (recursion).
    """

    byte_class: NDArray[np.uint8]
    move: NDArray[np.int32]
    call: NDArray[np.int32]
    ending: NDArray[np.int32]
    returns: NDArray[np.int32]
    accepting: NDArray[np.bool_]
    depth: int | None

    @staticmethod
    def of(rules: Mapping[str, Expr], root: Expr) -> Machine:
        """The machine of a root expression over bytes and the rules that it calls.

        Raises:
            Unsatisfiable: the language is empty.
            Unsupported: the text does not show where a called word begins or ends.
            TooLarge: more than `STATE_BUDGET` states, `RETURN_BUDGET` returns or `WORK_BUDGET` steps.
        """
        nfa = Nfa(rules, root)
        if nfa.start[ROOT] not in nfa.productive and not nfa.closure(nfa.start[ROOT]):
            raise Unsatisfiable("no text satisfies this grammar")
        return _Construction(nfa).machine()

    def __len__(self) -> int:
        """The number of states."""
        return len(self.move)

    @property
    def leaves(self) -> NDArray[np.bool_]:
        """bool [states]: whether the frame ends as soon as this state is reached."""
        ends: NDArray[np.bool_] = (self.ending >= 0) & (self.move < 0).all(axis=1)
        return ends


@dataclass(frozen=True, slots=True)
class _Entered:
    """What the first byte of a nested word leads to, by class of the byte: nodes, and the state they make."""

    nodes: dict[int, list[int]]
    states: dict[int, int]


class _Construction:
    """Subset construction from the start state on; everything is numbered in order of discovery."""

    def __init__(self, nfa: Nfa) -> None:
        self.nfa = nfa
        self.classes = UnitClasses((ranges for ranges, _ in nfa.arcs.values()), BYTES)
        self.root_nodes = _nodes_of_root(nfa)
        self.states: list[frozenset[int]] = []
        self.state_number: dict[frozenset[int], int] = {}
        self.rows: list[dict[int, int]] = []
        self.site_of_state: list[int] = []
        self.calling: list[KeysView[int]] = []
        # What follows each rule that a site calls.
        self.sites: list[dict[str, list[int]]] = []
        self.site_number: dict[frozenset[int], int] = {}
        self.sites_calling: dict[str, list[int]] = {}
        # An ending is the rules that ended and the nodes of the root expression that went along inside.
        self.ending_of_state: list[int] = []
        self.endings: list[tuple[frozenset[str], frozenset[int]]] = []
        self.ending_number: dict[tuple[frozenset[str], frozenset[int]], int] = {}
        self.endings_with: dict[str, list[int]] = {}
        self.returns: dict[tuple[int, int], int] = {}
        self.unions: dict[tuple[int, ...], int] = {}
        self.entered: dict[frozenset[str], _Entered] = {}
        self.work = 0

    def machine(self) -> Machine:
        self._state(self.nfa.closure(self.nfa.start[ROOT]))
        explored = 0
        while explored < len(self.states):
            self._explore(explored)
            explored += 1
        return self._minimal()

    def _state(self, nodes: frozenset[int]) -> int:
        if not nodes:
            return -1
        number = self.state_number.get(nodes)
        if number is None:
            number = self.state_number[nodes] = len(self.states)
            self.states.append(nodes)
            if number >= STATE_BUDGET:
                raise self.nfa.too_large(f"the grammar needs more than {STATE_BUDGET:,} states")
        return number

    def _spend(self, work: int) -> None:
        self.work += work
        if self.work > WORK_BUDGET:
            raise self.nfa.too_large("the grammar has too many ways to read one text at once")

    def _explore(self, state: int) -> None:
        """Fill in the moves of one state, its call site and its ending."""
        nfa, nodes = self.nfa, self.states[state]
        self._spend(len(nodes))
        calls = [node for node in nodes if node in nfa.calls]
        entered = self._entered(frozenset(nfa.calls[node][0] for node in calls))
        ended = frozenset(nfa.ends[node] for node in nodes if node in nfa.ends) - {ROOT}
        row = entered.states.copy()
        for unit_classes, targets in nfa.followers(nodes, self.classes):
            if not calls and not ended:
                row.update(dict.fromkeys(unit_classes, self._union(targets)))
                continue
            inside = any(node not in self.root_nodes for node in targets)
            both = [unit_class for unit_class in unit_classes if unit_class in entered.nodes]
            if both and inside:
                raise Unsupported(
                    "the grammar cannot tell whether a nested part begins at some byte",
                    hint="make the alternatives differ before the nested part begins",
                )
            if inside or not ended:
                row.update(dict.fromkeys(unit_classes, self._union(targets)))
            # Otherwise the frame ends first; what went along from the root reads the byte after that.
            for unit_class in both:
                row[unit_class] = self._union(targets + entered.nodes[unit_class])
        self.rows.append(row)
        self.calling.append(entered.states.keys())
        self.site_of_state.append(self._site(frozenset(calls)) if calls else -1)
        self.ending_of_state.append(self._ending(ended, nodes & self.root_nodes) if ended else -1)

    def _union(self, nodes: list[int]) -> int:
        key = tuple(nodes)
        state = self.unions.get(key)
        if state is None:
            self._spend(len(key))
            state = self.unions[key] = self._state(
                frozenset().union(*(self.nfa.closure(node) for node in nodes))
            )
        return state

    def _entered(self, rules: frozenset[str]) -> _Entered:
        """What the first byte of a word of any of these rules leads to."""
        entered = self.entered.get(rules)
        if entered is None:
            nodes: dict[int, list[int]] = {}
            for rule in rules:
                for node in self.nfa.closure(self.nfa.start[rule]):
                    if node not in self.nfa.arcs:
                        raise Unsupported(f"the rule {rule!r} may be empty or begins with another rule")
                    ranges, following = self.nfa.arcs[node]
                    for unit_class in self.classes.of[ranges]:
                        nodes.setdefault(unit_class, []).append(following)
            self._spend(len(rules))
            states = {unit_class: self._union(targets) for unit_class, targets in nodes.items()}
            entered = self.entered[rules] = _Entered(nodes, states)
        return entered

    def _site(self, calls: frozenset[int]) -> int:
        number = self.site_number.get(calls)
        if number is None:
            number = self.site_number[calls] = len(self.sites)
            following: dict[str, list[int]] = {}
            for node in calls:
                rule, after = self.nfa.calls[node]
                following.setdefault(rule, []).append(after)
            self.sites.append(following)
            for rule in following:
                self.sites_calling.setdefault(rule, []).append(number)
            for ending in {e for rule in following for e in self.endings_with.get(rule, ())}:
                self._return(ending, number)
        return number

    def _ending(self, ended: frozenset[str], carried: frozenset[int]) -> int:
        number = self.ending_number.get((ended, carried))
        if number is None:
            number = self.ending_number[ended, carried] = len(self.endings)
            self.endings.append((ended, carried))
            for rule in ended:
                self.endings_with.setdefault(rule, []).append(number)
            for site in {s for rule in ended for s in self.sites_calling.get(rule, ())}:
                self._return(number, site)
        return number

    def _return(self, ending: int, site: int) -> None:
        ended, carried = self.endings[ending]
        following = [after for rule in ended for after in self.sites[site].get(rule, ())]
        self._spend(1)
        self.returns[ending, site] = self._state(
            carried.union(*(self.nfa.closure(node) for node in following))
        )

    def _minimal(self) -> Machine:
        """Join equivalent states and call sites; states keep the order in which they were found."""
        states, sites, endings = len(self.states), len(self.sites), len(self.endings)
        if sites * endings > RETURN_BUDGET:
            raise self.nfa.too_large(f"the grammar needs {endings:,} endings at {sites:,} call sites")
        move = np.full((states, self.classes.count), -1, dtype=np.int64)
        call = move.copy()
        for state, row in enumerate(self.rows):
            classes = list(row)
            move[state, classes] = list(row.values())
            site = self.site_of_state[state]
            call[state, list(self.calling[state])] = site
        returns = np.full((endings, sites), -1, dtype=np.int64)
        for place, state in self.returns.items():
            returns[place] = state
        ending = np.array(self.ending_of_state, dtype=np.int64)
        accepting = np.array([any(self.nfa.ends.get(n) == ROOT for n in nodes) for nodes in self.states])
        labels = coarsest_partition(
            np.concatenate([2 * ending + 2 + accepting, np.full(sites, -1)]),
            [np.hstack([move, np.where(call >= 0, call + states, -1)]), returns.T],
        )
        state_label = labels[:states]
        site_label = np.unique(labels[states:], return_inverse=True)[1].reshape(-1)
        representatives = np.unique(state_label, return_index=True)[1]
        block = np.append(np.unique(state_label, return_inverse=True)[1].reshape(-1), -1)
        site_block = np.append(site_label, -1)
        site_representatives = np.unique(site_label, return_index=True)[1] if sites else site_label
        move, call = block[move[representatives]], site_block[call[representatives]]
        columns, class_of = distinct_columns(np.vstack([move, call]))
        move, call = move[:, columns], call[:, columns]
        returns = block[returns[:, site_representatives]]
        # np.unique numbers blocks by label, and labels count from the start state, which is therefore 0.
        byte_class = np.zeros(BYTES, dtype=np.uint8)
        ends = np.append(self.classes.boundaries[1:], BYTES)
        for first, last, unit_class in zip(
            self.classes.boundaries.tolist(), ends.tolist(), self.classes.unit_class.tolist(), strict=True
        ):
            byte_class[first:last] = class_of[unit_class]
        machine = Machine(
            byte_class,
            move.astype(np.int32),
            call.astype(np.int32),
            ending[representatives].astype(np.int32),
            returns.astype(np.int32),
            accepting[representatives],
            _deepest(move, call, returns),
        )
        _refuse_ambiguous_ends(machine)
        return machine


def _nodes_of_root(nfa: Nfa) -> frozenset[int]:
    """All nodes of the root expression itself."""
    reached: set[int] = set()
    waiting = [nfa.start[ROOT]]
    while waiting:
        for node in nfa.closure(waiting.pop()):
            if node not in reached:
                reached.add(node)
                if node in nfa.arcs:
                    waiting.append(nfa.arcs[node][1])
                elif node in nfa.calls:
                    waiting.append(nfa.calls[node][1])
    return frozenset(reached)


def _refuse_ambiguous_ends(machine: Machine) -> None:
    """Where a frame may end or go on, the next byte must tell which."""
    for state in np.flatnonzero((machine.ending >= 0) & ~machine.leaves):
        after = machine.returns[machine.ending[state]]
        after = after[after >= 0]
        if ((machine.move[after] >= 0) & (machine.move[state] >= 0)).any():
            raise Unsupported(
                "the grammar cannot tell where a number or another open-ended part stops",
                hint="put a separator after it",
            )


def _deepest(move: NDArray[np.int64], call: NDArray[np.int64], returns: NDArray[np.int64]) -> int | None:
    """The longest chain of calls from the start state, None if calls recur."""
    states, sites = len(move), returns.shape[1]
    plain: list[set[int]] = [set() for _ in range(states)]
    calls: list[set[tuple[int, int]]] = [set() for _ in range(states)]
    source, unit_class = np.nonzero(move >= 0)
    # One number per edge: source, target, and the call site or none.
    keys = (source * states + move[source, unit_class]) * (sites + 1) + call[source, unit_class] + 1
    for key in np.unique(keys).tolist():
        edge, site = divmod(key, sites + 1)
        state, target = divmod(edge, states)
        if site == 0:
            plain[state].add(target)
        else:
            calls[state].add((target, site - 1))
    return_states = [set(column[column >= 0].tolist()) for column in returns.T]
    best: dict[int, int | None] = {}
    active: set[int] = set()

    def frames_above(entry: int) -> int | None:
        """The most frames above a frame that was entered at this state."""
        if entry in active:
            return None
        if entry in best:
            return best[entry]
        active.add(entry)
        reached = {entry}
        waiting = [entry]
        deepest: int | None = 0
        while waiting:
            state = waiting.pop()
            onward = set(plain[state])
            for target, site in calls[state]:
                onward |= return_states[site]
                inner = frames_above(target)
                deepest = None if deepest is None or inner is None else max(deepest, inner + 1)
            waiting.extend(onward - reached)
            reached |= onward
        active.discard(entry)
        best[entry] = deepest
        return deepest

    return frames_above(0)
