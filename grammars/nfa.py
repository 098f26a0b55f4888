"""Expression -> nondeterministic automaton, node by node from right to left.

Building from the right lets equal nodes be shared: the node for "byte b, then X" exists once per (b, X), so
equal suffixes are one chain, and bounded repeats need no copies of the text that created them. The
construction is Thompson's (CACM 11(6), 1968) with hash-consing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sortition.grammars import accelerate
from sortition.grammars.cache import Cache
from sortition.grammars.errors import Invalid, TooLarge
from sortition.grammars.expr import (
    EMPTY,
    NOTHING,
    Alternative,
    Call,
    Class,
    Concat,
    Counted,
    Expr,
    Graph,
    Literal,
    Ranges,
    Repeat,
)
from sortition.grammars.work import meter

NODE_STEPS: Final = 5
"""Steps that a node takes, with all that is found out about it."""

RULE_STEPS: Final = 60
"""Steps that each rule takes beside those for its nodes."""

TARGETS_PER_STEP: Final = 1
"""Targets of forks that are found out about in one step."""

PASSED_STEPS: Final = 1
"""Steps that each node or fork takes that is passed to find a closure."""

ROOT: Final = ""
"""The name under which the root expression is stored beside the rules."""

ROOT_RULE: Final = 0
"""The number of the root expression among the rules."""

ARC: Final = 0
"""A node that reads one unit of a set."""

CALL: Final = 1
"""A node that reads one word of a rule in a frame of its own."""

FORK: Final = 2
"""A node that goes on in any of some other nodes without reading."""

END: Final = 3
"""The end of a rule."""


Ints: TypeAlias = NDArray[np.int32]

KNOWN_RULES: Final = 2048
"""Expressions of rules that are remembered, to tell those that come again: free JSON, common keys."""

LARGEST_BLOCK: Final = 2000
"""Nodes of a rule up to which they are kept: 100 KiB."""


class Test(NamedTuple):
    """What reading a node adds to the count of its frame, and how far that may then have counted."""

    step: int
    low: int
    high: int | None


NO_TEST: Final = 0
"""The number of the test that adds nothing and always holds."""


class _Block(NamedTuple):
    """One rule by itself: `Nfa`'s lists, with numbers that count from its first node or fork.

    A label is a number among `names`, which are sets, rules that are called, and the kinds of other nodes.
    """

    kind: list[int]
    label: list[int]
    following: list[int]
    forks: list[tuple[int, ...]]
    names: tuple[object, ...]
    tests: list[Test] | None
    start: int


@dataclass(slots=True)
class _Known:
    """An expression that was built before, and its nodes from the second time on."""

    before: bool = False
    block: _Block | None = None


_KNOWN: Final = Cache[_Known](KNOWN_RULES, lambda _: 1)


class Nfa:
    """Nodes of all rules of one grammar, the root among them.

    Attributes:
        kind: of every node, `ARC`, `CALL`, `FORK` or `END`.
        label: of an arc, the number of its set; of a call or an end, that of the rule; else 0.
        following: of an arc or a call, the next node; of a fork, its number in `forks`; else -1.
        forks: where each fork may go on.
        sets: the distinct sets of units that arcs read.
        rules: the names of the rules, `ROOT` first.
        start: the first node of each rule.
        test: of every node, the number of its test.
        tests: the distinct tests, `NO_TEST` first.
        productive: whether the end of its rule can be reached from a node.
        closures: those that have been asked for.
    """

    def __init__(self, rules: Mapping[str, Expr], root: Expr) -> None:
        self._meter = meter()
        self.kind: list[int] = []
        self.label: list[int] = []
        self.following: list[int] = []
        self.forks: list[tuple[int, ...]] = []
        self.sets: list[Ranges] = []
        self.rules: list[str] = [ROOT]
        self.start: list[int] = []
        self.test: list[int] = []
        self.tests: list[Test] = [Test(0, 0, None)]
        self._arcs: dict[tuple[int, int], int] = {}
        self._calls: dict[tuple[int, int], int] = {}
        self._test_number = {self.tests[NO_TEST]: NO_TEST}
        self._tested: dict[tuple[int, int], int] = {}
        self._forks: dict[tuple[int, ...], int] = {}
        self._built: dict[tuple[int, int], int] = {}
        self._set_number: dict[Ranges, int] = {}
        self._unit_set: dict[int, int] = {}
        self._rule_number = {ROOT: ROOT_RULE}
        self.closures: dict[int, tuple[int, ...]] = {}
        # Rules are built one after the other: the first node of each also bounds those of the one before.
        self._first_node: list[int] = []
        # How many nodes are charged for, and how many there may be.
        self._charged, self._most = 0, 0
        expressions = {**rules, ROOT: root}
        with self.blaming():
            # Building a rule appends the rules that it calls.
            for number, rule in enumerate(self.rules):
                if rule not in expressions:
                    raise Invalid(f"the rule {rule!r} is called but not defined")
                self._build_rule(number, expressions[rule])
        self.productive = accelerate.best(productive_nodes)(self)

    def closure(self, node: int) -> tuple[int, ...]:
        """The productive nodes other than forks that are reached from `node` without reading, ascending."""
        known = self.closures.get(node)
        if known is None:
            if self.kind[node] != FORK:
                known = (node,) if self.productive[node] else ()
            else:
                reached, passed = self._reached(node, self.productive.__getitem__)
                self._meter.charge(PASSED_STEPS * passed)
                known = tuple(sorted(reached))
            self.closures[node] = known
        return known

    @cached_property
    def arrays(self) -> tuple[NDArray[np.int8], Ints, Ints, NDArray[np.int64], Ints, Ints]:
        """For compiled loops: kind, label, following, where targets of forks begin, and they, and start."""
        return (
            np.array(self.kind, np.int8),
            np.array(self.label, np.int32),
            np.array(self.following, np.int32),
            *ragged(self.forks),
            np.array(self.start, np.int32),
        )

    @cached_property
    def counting(self) -> bytearray:
        """Which nodes lead on to tests within their frame, so that the count matters there."""
        before: dict[int, list[int]] = {}
        for node, (kind, following) in enumerate(zip(self.kind, self.following, strict=True)):
            for target in self.forks[following] if kind == FORK else (following,):
                before.setdefault(target, []).append(node)
        counting = bytearray(len(self.kind))
        waiting = [node for node, test in enumerate(self.test) if test != NO_TEST]
        while waiting:
            node = waiting.pop()
            if not counting[node]:
                counting[node] = True
                waiting.extend(before.get(node, ()))
        return counting

    def counts(self, node: int) -> bool:
        """Whether the count of its frame matters to an arc or a call, or to what follows it."""
        return self.test[node] != NO_TEST or bool(self.counting[self.following[node]])

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """Of each rule, its first node and the one after its last."""
        return list(pairwise([*self._first_node, len(self.kind)]))

    @contextmanager
    def blaming(self) -> Iterator[None]:
        """What becomes too large inside names the rules, those with the most nodes first."""
        try:
            yield
        except TooLarge as error:
            sizes = {
                rule: after - first for rule, (first, after) in zip(self.rules, self.bounds, strict=False)
            }
            error.rules = tuple(sorted(sizes, key=sizes.__getitem__, reverse=True))
            raise

    def _build_rule(self, number: int, expr: Expr) -> None:
        first, first_fork = len(self.kind), len(self.forks)
        self._first_node.append(first)
        self._charge_to(first)
        known = _KNOWN.find(expr, _Known)
        if known.block is None:
            end = self._node(END, number, -1)
            self.start.append(self._build(expr, end))
            if known.before and len(self.kind) - first <= LARGEST_BLOCK:
                known.block = self._block(first, first_fork, self.start[-1])
            known.before = True
        else:
            self._place(known.block, number)
        self._charge_to(len(self.kind))
        self._meter.charge(RULE_STEPS + sum(map(len, self.forks[first_fork:])) // TARGETS_PER_STEP)

    def _block(self, first: int, first_fork: int, start: int) -> _Block | None:
        """The nodes of the rule that has just been built, None if it shares some with another rule."""
        kind, following = self.kind[first:], self.following[first:]
        names: dict[object, int] = {}
        label = []
        for each, number in zip(kind, self.label[first:], strict=True):
            name: object = self.sets[number] if each == ARC else self.rules[number] if each == CALL else each
            label.append(names.setdefault(name, len(names)))
        forks = [tuple([target - first for target in targets]) for targets in self.forks[first_fork:]]
        relative = [
            each - (first_fork if of == FORK else first) for of, each in zip(kind, following, strict=True)
        ]
        # All rules share the fork that leads nowhere.
        inside = start >= first and all(targets and min(targets) >= 0 for targets in forks)
        if not inside or min(relative[1:], default=0) < 0:
            return None
        tests = [self.tests[number] for number in self.test[first:]]
        return _Block(
            kind,
            label,
            relative,
            forks,
            tuple(names),
            tests if any(self.test[first:]) else None,
            start - first,
        )

    def _place(self, block: _Block, rule: int) -> None:
        """Add the nodes of a rule that is known from before."""
        first, first_fork = len(self.kind), len(self.forks)
        self._charge_to(first + len(block.kind))
        numbers = [self._named(name, rule) for name in block.names]
        self.kind.extend(block.kind)
        self.label.extend([numbers[label] for label in block.label])
        self.following.extend(
            [
                each + (first_fork if kind == FORK else first)
                for kind, each in zip(block.kind, block.following, strict=True)
            ]
        )
        self.following[first] = -1
        self.forks.extend([tuple([first + target for target in targets]) for targets in block.forks])
        if block.tests is None:
            self.test.extend([NO_TEST] * len(block.kind))
        else:
            self.test.extend([self._test(test) for test in block.tests])
        self.start.append(first + block.start)

    def _named(self, name: object, rule: int) -> int:
        """The number that stands for a name of a block: a set, a rule that is called, or a kind of node."""
        if isinstance(name, tuple):
            return self._set(name)
        if isinstance(name, str):
            return self._rule(name)
        return rule if name == END else 0

    def _reached(self, fork: int, wanted: Callable[[int], int]) -> tuple[set[int], int]:
        """The nodes after a fork and all forks that it leads to, and how much was passed on the way."""
        kind, following = self.kind, self.following
        reached: set[int] = set()
        seen = {fork}
        waiting = [fork]
        while waiting:
            for target in self.forks[following[waiting.pop()]]:
                if kind[target] != FORK:
                    if wanted(target):
                        reached.add(target)
                elif target not in seen:
                    seen.add(target)
                    waiting.append(target)
        return reached, len(reached) + len(seen)

    def _node(self, kind: int, label: int, following: int) -> int:
        number = len(self.kind)
        if number >= self._most:
            self._charge_to(number + 1)
        self.kind.append(kind)
        self.label.append(label)
        self.following.append(following)
        self.test.append(NO_TEST)
        return number

    def _charge_to(self, nodes: int) -> None:
        """Charge for nodes up to this one, and find out how many more there may be: one by one costs more."""
        self._meter.charge(NODE_STEPS * (nodes - self._charged))
        self._charged = nodes
        self._most = nodes + self._meter.left // NODE_STEPS

    def _arc(self, label: int, following: int) -> int:
        node = self._arcs.get((label, following))
        if node is None:
            node = self._arcs[label, following] = self._node(ARC, label, following)
        return node

    def _set(self, ranges: Ranges) -> int:
        number = self._set_number.setdefault(ranges, len(self.sets))
        if number == len(self.sets):
            self.sets.append(ranges)
        return number

    def _rule(self, name: str) -> int:
        number = self._rule_number.setdefault(name, len(self.rules))
        if number == len(self.rules):
            self.rules.append(name)
        return number

    def _test(self, test: Test) -> int:
        number = self._test_number.setdefault(test, len(self.tests))
        if number == len(self.tests):
            self.tests.append(test)
        return number

    def _call(self, rule: str, following: int) -> int:
        number = self._rule_number.get(rule)
        if number is None:
            number = self._rule(rule)
        node = self._calls.get((number, following))
        if node is None:
            node = self._calls[number, following] = self._node(CALL, number, following)
        return node

    def _fork(self, targets: tuple[int, ...]) -> int:
        targets = tuple(dict.fromkeys(targets))
        if len(targets) == 1:
            return targets[0]
        node = self._forks.get(targets)
        if node is None:
            node = self._forks[targets] = self._open_fork()
            self.forks[-1] = targets
        return node

    def _open_fork(self) -> int:
        """A fork whose targets are not known yet."""
        node = self._node(FORK, 0, len(self.forks))
        self.forks.append(())
        return node

    def _build(self, expr: Expr, following: int) -> int:
        # These are found again as nodes.
        if isinstance(expr, Class):
            return self._arc(self._set(expr.ranges), following)
        if isinstance(expr, Literal):
            return self._build_literal(expr.units, following)
        if isinstance(expr, Call):
            return self._call(expr.rule, following)
        if expr is EMPTY:
            return following
        key = (id(expr), following)
        node = self._built.get(key)
        if node is None:
            node = self._built[key] = self._build_new(expr, following)
        return node

    def _build_new(self, expr: Expr, following: int) -> int:
        if isinstance(expr, Concat):
            for part in reversed(expr.parts):
                following = self._build(part, following)
            return following
        if isinstance(expr, Alternative):
            return self._fork(tuple([self._build(part, following) for part in expr.parts]))
        if isinstance(expr, Repeat):
            return self._build_repeat(expr, following)
        if isinstance(expr, Graph):
            return self._build_graph(expr, following)
        if isinstance(expr, Counted):
            return self._build_counted(expr, following)
        if expr is NOTHING:
            return self._fork(())
        raise TypeError(f"not an expression: {expr!r}")

    def _build_literal(self, units: bytes | tuple[int, ...], following: int) -> int:
        """`_arc` and `_unit` for each unit: most nodes are made here, so no call is."""
        arcs, sets = self._arcs, self._unit_set
        for unit in reversed(units):
            number = sets.get(unit)
            if number is None:
                number = sets[unit] = self._set(((unit, unit),))
            node = arcs.get((number, following))
            if node is None:
                node = arcs[number, following] = self._node(ARC, number, following)
            following = node
        return following

    def _build_repeat(self, expr: Repeat, following: int) -> int:
        if expr.high is None:
            node = self._open_fork()
            self.forks[self.following[node]] = (self._build(expr.body, node), following)
        else:
            node = following
            for _ in range(expr.high - expr.low):
                node = self._fork((self._build(expr.body, node), following))
        for _ in range(expr.low):
            node = self._build(expr.body, node)
        return node

    def _build_counted(self, expr: Counted, following: int) -> int:
        """The first nodes of the body once more, with a test."""
        number = self._test(Test(expr.step, expr.low, expr.high))
        first = self._build(expr.body, following)
        if self.kind[first] != FORK:
            return self._with_test(first, number)
        nodes = self._reached(first, lambda _: True)[0]
        return self._fork(tuple([self._with_test(node, number) for node in sorted(nodes)]))

    def _with_test(self, node: int, test: int) -> int:
        if self.kind[node] not in (ARC, CALL) or self.test[node] != NO_TEST:
            raise ValueError("what is counted must not be empty, nor begin with what is counted itself")
        known = self._tested.get((node, test))
        if known is None:
            known = self._node(self.kind[node], self.label[node], self.following[node])
            self._tested[node, test] = known
            self.test[known] = test
        return known

    def _build_graph(self, graph: Graph, following: int) -> int:
        """States one after the other, the last first: most edges lead to states that are there already."""
        onward: dict[int, list[tuple[Expr, int]]] = {}
        states = {graph.start, *graph.finals}
        for source, expr, target in graph.edges:
            if source in onward:
                onward[source].append((expr, target))
            else:
                onward[source] = [(expr, target)]
            states.add(target)
        place: dict[int, int] = {}
        for state in sorted(states.union(onward), reverse=True):
            targets = [following] if state in graph.finals else []
            for expr, target in onward.get(state, ()):
                after = place.get(target)
                if after is None:
                    after = place[target] = self._open_fork()
                # An object whose keys come in any order has a hundred thousand calls.
                call = self._call(expr.rule, after) if type(expr) is Call else self._build(expr, after)
                targets.append(call)
            if state in place:
                self.forks[self.following[place[state]]] = tuple(targets)
            else:
                place[state] = self._fork(tuple(targets))
        return place[graph.start]


def ragged(rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], Ints]:
    """Rows of different lengths one after the other: where each begins, and their items."""
    start = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return start, np.fromiter(chain.from_iterable(rows), np.int32, int(start[-1]))


def productive_nodes(nfa: Nfa) -> bytearray:
    """Which nodes can reach the end of their rule."""
    kind, label, following, forks, start = nfa.kind, nfa.label, nfa.following, nfa.forks, nfa.start
    productive = bytearray(len(kind))

    def is_productive(node: int) -> int:
        """Whether it can, as far as is known."""
        if kind[node] == FORK:
            return any(map(productive.__getitem__, forks[following[node]]))
        if kind[node] == CALL:
            # Its rule can be read to the end and what follows can, too.
            return productive[following[node]] and productive[start[label[node]]]
        return kind[node] == END or productive[following[node]]

    before: dict[int, list[int]] = {}
    ready: list[int] = []
    # Most nodes lead to nodes of their rule that were built before them, and large rules call smaller ones.
    for first, last in sorted(nfa.bounds, key=lambda bounds: bounds[1] - bounds[0]):
        for node in range(first, last):
            if is_productive(node):
                productive[node] = True
                if node in before:
                    ready.append(node)
                continue
            targets = forks[following[node]] if kind[node] == FORK else (following[node],)
            for target in (*targets, start[label[node]]) if kind[node] == CALL else targets:
                before.setdefault(target, []).append(node)
        while ready:
            for node in before[ready.pop()]:
                if not productive[node] and is_productive(node):
                    productive[node] = True
                    if node in before:
                        ready.append(node)
    return productive


def rules_without_words(nfa: Nfa) -> tuple[str, ...]:
    """The rules that have no word, whatever the rules that they call may have, those called first first."""
    reading = copy(nfa)
    reading.kind = [ARC if kind == CALL else kind for kind in nfa.kind]
    productive = productive_nodes(reading)
    return tuple([rule for rule, start in zip(nfa.rules, nfa.start, strict=True) if not productive[start]])
