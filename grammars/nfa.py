"""Expression -> nondeterministic automaton, node by node from right to left.

Building from the right lets equal nodes be shared: the node for "byte b, then X" exists once per (b, X), so
equal suffixes are one chain, and bounded repeats need no copies of the text that created them. The
construction is Thompson's (CACM 11(6), 1968) with hash-consing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from sortition.grammars.errors import Invalid, TooLarge
from sortition.grammars.expr import (
    EMPTY,
    NOTHING,
    Alternative,
    Call,
    Class,
    Concat,
    Expr,
    Graph,
    Literal,
    Ranges,
    Repeat,
)
from sortition.grammars.partition import UnitClasses

NODE_BUDGET: Final = 400_000
"""Nodes of one automaton; building this many takes 0.5 s on one 2.4 GHz core."""

WORK_BUDGET: Final = 1_000_000
"""Sizes of all sets of nodes that become states. States alone do not bound the time: `.*a{4000}` has few,
each a set of thousands of nodes. Most states are sets of one to three; this many take about 1 s."""

CLOSURE_BUDGET: Final = 3_000_000
"""Nodes in all closures together: 300 MiB. An object of n optional keys has n * n / 2 of them."""

ROOT: Final = ""
"""The name under which the root expression is stored beside the rules."""


class Nfa:
    """Nodes of all rules of one grammar, the root among them.

    A node is one of
      - an arc ``(ranges, next)``: read one unit of the set;
      - a call ``(rule, next)``: read one word of a rule in a frame of its own;
      - a fork: go on in any of the targets without reading;
      - the end of a rule.

    Attributes:
        start: the first node of every rule.
        arcs: ``node -> (ranges, next)``.
        calls: ``node -> (rule, next)``.
        ends: ``node -> rule``.
    """

    def __init__(self, rules: Mapping[str, Expr], root: Expr) -> None:
        self.arcs: dict[int, tuple[Ranges, int]] = {}
        self.calls: dict[int, tuple[str, int]] = {}
        self.ends: dict[int, str] = {}
        self._forks: dict[int, tuple[int, ...]] = {}
        self._size = 0
        self._interned: dict[object, int] = {}
        self._built: dict[tuple[int, int], int] = {}
        self._closures: dict[int, frozenset[int]] = {}
        self._closed = 0
        self.start: dict[str, int] = {}
        self._rules = {**rules, ROOT: root}
        self._called = [ROOT]
        self._nodes_of: dict[str, int] = {}
        while self._called:
            rule = self._called.pop()
            if rule in self.start:
                continue
            if rule not in self._rules:
                raise Invalid(f"the rule {rule!r} is called but not defined")
            self._rule = rule
            end = self._node()
            self.ends[end] = rule
            self.start[rule] = self._build(self._rules[rule], end)
        self.productive = self._find_productive()

    def closure(self, node: int) -> frozenset[int]:
        """The productive nodes other than forks that are reached from `node` without reading."""
        known = self._closures.get(node)
        if known is None and node not in self._forks:
            known = self._closures[node] = frozenset({node} & self.productive)
        elif known is None:
            reached: set[int] = set()
            seen = {node}
            waiting = [node]
            while waiting:
                current = waiting.pop()
                if current in self._forks:
                    fresh = [target for target in self._forks[current] if target not in seen]
                    seen.update(fresh)
                    waiting.extend(fresh)
                elif current in self.productive:
                    reached.add(current)
            known = self._closures[node] = frozenset(reached)
            self._closed += len(known)
            if self._closed > CLOSURE_BUDGET:
                raise self.too_large("the grammar has too many parts that may all come next")
        return known

    def too_large(self, reason: str) -> TooLarge:
        """An error that names the rules with the most nodes first."""
        error = TooLarge(reason)
        error.rules = tuple(sorted(self._nodes_of, key=self._nodes_of.__getitem__, reverse=True))
        return error

    def followers(
        self, nodes: Iterable[int], classes: UnitClasses
    ) -> Iterator[tuple[tuple[int, ...], list[int]]]:
        """Classes of units, and the nodes to which reading one of them leads; every class comes once."""
        by_set: dict[Ranges, list[int]] = {}
        for node in nodes:
            if node in self.arcs:
                ranges, following = self.arcs[node]
                by_set.setdefault(ranges, []).append(following)
        sets = [classes.of[ranges] for ranges in by_set]
        if len(sets) < 2 or sum(map(len, sets)) == len(set().union(*sets)):
            yield from zip(sets, by_set.values(), strict=True)
            return
        by_class: dict[int, list[int]] = {}
        for unit_classes, targets in zip(sets, by_set.values(), strict=True):
            for unit_class in unit_classes:
                by_class.setdefault(unit_class, []).extend(targets)
        for unit_class, targets in by_class.items():
            yield (unit_class,), targets

    def _node(self) -> int:
        self._size += 1
        self._nodes_of[self._rule] = self._nodes_of.get(self._rule, 0) + 1
        if self._size > NODE_BUDGET:
            raise self.too_large(f"the grammar needs more than {NODE_BUDGET:,} automaton nodes")
        return self._size - 1

    def _arc(self, ranges: Ranges, following: int) -> int:
        node = self._interned.get((ranges, following))
        if node is None:
            node = self._interned[ranges, following] = self._node()
            self.arcs[node] = (ranges, following)
        return node

    def _call(self, rule: str, following: int) -> int:
        node = self._interned.get((rule, following))
        if node is None:
            node = self._interned[rule, following] = self._node()
            self.calls[node] = (rule, following)
            self._called.append(rule)
        return node

    def _fork(self, targets: tuple[int, ...]) -> int:
        targets = tuple(dict.fromkeys(targets))
        if len(targets) == 1:
            return targets[0]
        node = self._interned.get(targets)
        if node is None:
            node = self._interned[targets] = self._node()
            self._forks[node] = targets
        return node

    def _build(self, expr: Expr, following: int) -> int:
        key = (id(expr), following)
        node = self._built.get(key)
        if node is None:
            node = self._built[key] = self._build_new(expr, following)
        return node

    def _build_new(self, expr: Expr, following: int) -> int:
        if expr is EMPTY:
            return following
        if expr is NOTHING:
            return self._dead()
        if isinstance(expr, Literal):
            for unit in reversed(expr.units):
                following = self._arc(((unit, unit),), following)
            return following
        if isinstance(expr, Class):
            return self._arc(expr.ranges, following)
        if isinstance(expr, Concat):
            for part in reversed(expr.parts):
                following = self._build(part, following)
            return following
        if isinstance(expr, Alternative):
            return self._fork(tuple(self._build(part, following) for part in expr.parts))
        if isinstance(expr, Call):
            return self._call(expr.rule, following)
        if isinstance(expr, Repeat):
            return self._build_repeat(expr, following)
        if isinstance(expr, Graph):
            return self._build_graph(expr, following)
        raise TypeError(f"not an expression: {expr!r}")

    def _dead(self) -> int:
        node = self._interned.get(NOTHING)
        if node is None:
            node = self._interned[NOTHING] = self._node()
            self._forks[node] = ()
        return node

    def _build_repeat(self, expr: Repeat, following: int) -> int:
        if expr.high is None:
            node = self._node()
            self._forks[node] = ()
            self._forks[node] = (self._build(expr.body, node), following)
        else:
            node = following
            for _ in range(expr.high - expr.low):
                node = self._fork((self._build(expr.body, node), following))
        for _ in range(expr.low):
            node = self._build(expr.body, node)
        return node

    def _build_graph(self, graph: Graph, following: int) -> int:
        place: dict[int, int] = {}
        targets: dict[int, list[int]] = {}

        def at(state: int) -> int:
            if state not in place:
                place[state] = self._node()
                targets[state] = [following] if state in graph.finals else []
            return place[state]

        for source, expr, target in graph.edges:
            at(source)
            targets[source].append(self._build(expr, at(target)))
        start = at(graph.start)
        for state, node in place.items():
            self._forks[node] = tuple(targets[state])
        return start

    def _find_productive(self) -> set[int]:
        """Nodes from which the end of their rule can be reached."""
        before: dict[int, list[int]] = {}
        calls_of: dict[str, list[int]] = {}
        for node, (_, following) in self.arcs.items():
            before.setdefault(following, []).append(node)
        for node, targets in self._forks.items():
            for target in targets:
                before.setdefault(target, []).append(node)
        for node, (rule, following) in self.calls.items():
            before.setdefault(following, []).append(node)
            calls_of.setdefault(rule, []).append(node)
        rule_of_start: dict[int, list[str]] = {}
        for rule, node in self.start.items():
            rule_of_start.setdefault(node, []).append(rule)
        productive: set[int] = set()
        productive_rules: set[str] = set()
        waiting = list(self.ends)
        while waiting:
            node = waiting.pop()
            if node in productive:
                continue
            call = self.calls.get(node)
            # A call counts once its rule can be read to the end and what follows can, too.
            if call is not None and not (call[0] in productive_rules and call[1] in productive):
                continue
            productive.add(node)
            waiting.extend(before.get(node, ()))
            for rule in rule_of_start.get(node, ()):
                productive_rules.add(rule)
                waiting.extend(calls_of.get(rule, ()))
        return productive
