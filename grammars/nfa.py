"""Expression -> nondeterministic automaton, node by node from right to left.

Building from the right lets equal nodes be shared: the node for "byte b, then X" exists once per (b, X), so
equal suffixes are one chain, and bounded repeats need no copies of the text that created them. The
construction is Thompson's (CACM 11(6), 1968) with hash-consing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

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

NODE_BUDGET: Final = 400_000
"""Nodes of one automaton; building this many takes 0.5 s on one 2.4 GHz core."""

CLOSURE_BUDGET: Final = 3_000_000
"""Nodes in all closures together: 300 MiB. An object of n optional keys has n * n / 2 of them."""

TOO_MANY_CLOSURES: Final = "the grammar has too many parts that may all come next"

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


class Test(NamedTuple):
    """What reading a node adds to the count of its frame, and how far that may then have counted."""

    step: int
    low: int
    high: int | None


NO_TEST: Final = 0
"""The number of the test that adds nothing and always holds."""


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
    """

    def __init__(self, rules: Mapping[str, Expr], root: Expr) -> None:
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
        self._closures: dict[int, tuple[int, ...]] = {}
        self._closed = 0
        # Rules are built one after the other: the first node of each also bounds those of the one before.
        self._first_node: list[int] = []
        expressions = {**rules, ROOT: root}
        # Building a rule appends the rules that it calls.
        for number, rule in enumerate(self.rules):
            if rule not in expressions:
                raise Invalid(f"the rule {rule!r} is called but not defined")
            self._first_node.append(len(self.kind))
            end = self._node(END, number, -1)
            self.start.append(self._build(expressions[rule], end))
        self.productive = self._find_productive()

    def closure(self, node: int) -> tuple[int, ...]:
        """The productive nodes other than forks that are reached from `node` without reading, ascending."""
        known = self._closures.get(node)
        if known is None:
            if self.kind[node] != FORK:
                known = (node,) if self.productive[node] else ()
            else:
                known = tuple(sorted(self._reached(node, self.productive.__getitem__)))
                self._closed += len(known)
                if self._closed > CLOSURE_BUDGET:
                    raise self.too_large(TOO_MANY_CLOSURES)
            self._closures[node] = known
        return known

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

    def too_large(self, reason: str) -> TooLarge:
        """An error that names the rules with the most nodes first."""
        error = TooLarge(reason)
        bounds = pairwise([*self._first_node, len(self.kind)])
        sizes = {rule: after - first for rule, (first, after) in zip(self.rules, bounds, strict=False)}
        error.rules = tuple(sorted(sizes, key=sizes.__getitem__, reverse=True))
        return error

    def _reached(self, fork: int, wanted: Callable[[int], int]) -> set[int]:
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
        return reached

    def _node(self, kind: int, label: int, following: int) -> int:
        number = len(self.kind)
        if number >= NODE_BUDGET:
            raise self.too_large(f"the grammar needs more than {NODE_BUDGET:,} automaton nodes")
        self.kind.append(kind)
        self.label.append(label)
        self.following.append(following)
        self.test.append(NO_TEST)
        return number

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

    def _unit(self, unit: int) -> int:
        number = self._unit_set.get(unit)
        if number is None:
            number = self._unit_set[unit] = self._set(((unit, unit),))
        return number

    def _call(self, rule: str, following: int) -> int:
        number = self._rule_number.setdefault(rule, len(self.rules))
        if number == len(self.rules):
            self.rules.append(rule)
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
        # These two are found again as nodes.
        if isinstance(expr, Class):
            return self._arc(self._set(expr.ranges), following)
        if isinstance(expr, Call):
            return self._call(expr.rule, following)
        key = (id(expr), following)
        node = self._built.get(key)
        if node is None:
            node = self._built[key] = self._build_new(expr, following)
        return node

    def _build_new(self, expr: Expr, following: int) -> int:
        if isinstance(expr, Literal):
            for unit in reversed(expr.units):
                following = self._arc(self._unit(unit), following)
            return following
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
        if expr is EMPTY:
            return following
        if expr is NOTHING:
            return self._fork(())
        raise TypeError(f"not an expression: {expr!r}")

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
        test = Test(expr.step, expr.low, expr.high)
        number = self._test_number.setdefault(test, len(self.tests))
        if number == len(self.tests):
            self.tests.append(test)
        first = self._build(expr.body, following)
        nodes = self._reached(first, lambda _: True) if self.kind[first] == FORK else {first}
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
        place: dict[int, int] = {}
        targets: dict[int, list[int]] = {}

        def at(state: int) -> int:
            if state not in place:
                place[state] = self._open_fork()
                targets[state] = [following] if state in graph.finals else []
            return place[state]

        for source, expr, target in graph.edges:
            at(source)
            targets[source].append(self._build(expr, at(target)))
        start = at(graph.start)
        for state, node in place.items():
            self.forks[self.following[node]] = tuple(targets[state])
        return start

    def _find_productive(self) -> bytearray:
        """Which nodes can reach the end of their rule; most lead to nodes that were built before them."""
        kind, start, label = self.kind, self.start, self.label
        productive = bytearray(len(kind))
        before: dict[int, list[int]] = {}
        for node, following in enumerate(self.following):
            if kind[node] == END or (kind[node] == ARC and productive[following]):
                productive[node] = True
                continue
            for target in self.forks[following] if kind[node] == FORK else (following,):
                before.setdefault(target, []).append(node)
            if kind[node] == CALL:
                before.setdefault(start[label[node]], []).append(node)
        ready = [node for node in before if productive[node]]
        while ready:
            for node in before[ready.pop()]:
                # A call counts once its rule can be read to the end and what follows can, too.
                if productive[node] or (
                    kind[node] == CALL
                    and not (productive[start[label[node]]] and productive[self.following[node]])
                ):
                    continue
                productive[node] = True
                if node in before:
                    ready.append(node)
        return productive
