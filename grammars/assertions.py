"""Anchors, word boundaries, lookaround: conditions on what is at either side of a place, worked out exactly.

An assertion reads nothing, so it stands in an expression as the call of a rule that does not exist. To get
rid of it, the automaton of the expression is multiplied with what it may remember: the kind of the last
character, the kinds that are promised for the next one, and how far lookaround has come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Final

from sortition.grammars.automaton import CODE_POINTS, Automaton
from sortition.grammars.characters import ANY_CHARACTER, complement, difference, intersection
from sortition.grammars.expr import (
    EMPTY,
    NOTHING,
    Alternative,
    Call,
    Class,
    Concat,
    Expr,
    Graph,
    Ranges,
    Repeat,
    alternative,
    concat,
    one_of,
    repeat,
    star,
)
from sortition.grammars.lookaround import Look, Lookaround, Watch
from sortition.grammars.nfa import ARC, CALL, ROOT_RULE, Nfa
from sortition.grammars.work import charge

numbers = count()
"""For the names of rules: two conditions may be alike, but never share a rule."""
NEWLINE: Final[Ranges] = ((10, 10),)
EDGE_STEPS: Final = 20
"""Steps that each edge takes between states of a pattern and of what its conditions remember."""

CONDITION_STEPS: Final = 8
"""Steps that each condition takes at each edge."""

_ANY_TEXT: Final = star(one_of(ANY_CHARACTER))


@dataclass(frozen=True, slots=True)
class Side:
    """What may stand at one side of a place.

    Attributes:
        characters: these characters.
        edge: or the edge of the text.
        last_newline: or a newline that ends the text (only after a place).
    """

    characters: Ranges
    edge: bool = False
    last_newline: bool = False


ANYTHING: Final = Side(ANY_CHARACTER, edge=True, last_newline=True)
EDGE: Final = Side((), edge=True)


@dataclass(frozen=True, slots=True, eq=False)
class Assertion(Call):
    """The empty word, at places where one of the pairs (before, after) fits."""

    pairs: tuple[tuple[Side, Side], ...]


BEGIN: Final = Assertion("text begin", ((EDGE, ANYTHING),))
END: Final = Assertion("text end", ((ANYTHING, EDGE),))
END_OR_LAST_NEWLINE: Final = Assertion(
    "text end or last newline", ((ANYTHING, Side((), edge=True, last_newline=True)),)
)


@cache
def line_begin(line_ends: Ranges) -> Assertion:
    """The beginning of the text, or a place after a line end."""
    return _assertion("line begin", (Side(line_ends, edge=True), ANYTHING))


@cache
def line_end(line_ends: Ranges) -> Assertion:
    """The end of the text, or a place before a line end."""
    return _assertion("line end", (ANYTHING, Side(line_ends, edge=True, last_newline=True)))


@cache
def word_boundary(word: Ranges, *, negated: bool = False) -> Assertion:
    """A place between a word character and something else; negated, any other place."""
    inside, outside = Side(word), Side(complement(word), edge=True, last_newline=True)
    if negated:
        return _assertion("no word boundary", (inside, inside), (outside, outside))
    return _assertion("word boundary", (inside, outside), (outside, inside))


def _assertion(name: str, *pairs: tuple[Side, Side]) -> Assertion:
    return Assertion(f"{name} {next(numbers)}", pairs)


def resolve(expr: Expr) -> Expr:
    """The same language of whole texts of code points, without assertions.

    Raises:
        TooLarge: it takes too much work.
    """
    conditions = {condition.rule: condition for condition in conditions_in(expr)}
    if not conditions:
        return expr
    nfa = Nfa(dict.fromkeys(conditions, EMPTY), expr)
    looks = Lookaround(
        {rule: each for rule, each in conditions.items() if isinstance(each, Look)}, _looked_for
    )
    assertions = {rule: each for rule, each in conditions.items() if isinstance(each, Assertion)}
    context = _Context(assertions, looks)
    # A state: a node, the kind of the last character, the mask of what may come next, and for lookaround.
    start = (nfa.start[ROOT_RULE], context.edge, context.everything, looks.start)
    number = {start: 0}
    order = [start]
    edges: list[tuple[int, Expr, int]] = []
    finals: set[int] = set()
    for state in order:
        node, before, after, watch = state
        moves: list[tuple[Expr, tuple[int, int, int, Watch]]] = []
        for reached in nfa.closure(node):
            kind, label, following = nfa.kind[reached], nfa.label[reached], nfa.following[reached]
            if kind == ARC:
                for part, unit, promise in context.read(nfa.sets[label], after):
                    if (watched := looks.read(watch, context.members[unit])) is not None:
                        moves.append((part, (following, unit, promise, watched)))
            elif kind == CALL and nfa.rules[label] in assertions:
                promised = context.promised[nfa.rules[label], before]
                moves.append((EMPTY, (following, before, after & promised, watch)))
            elif kind == CALL:
                passed = looks.passing(nfa.rules[label], watch, before == context.edge)
                if passed is not None:
                    moves.append((EMPTY, (following, before, after, passed)))
            elif after >> context.edge & 1 and looks.may_end(watch):
                finals.add(number[state])
        for read, target in moves:
            if target[2]:
                charge(EDGE_STEPS + CONDITION_STEPS * len(conditions))
                if target not in number:
                    number[target] = len(order)
                    order.append(target)
                edges.append((number[state], read, number[target]))
    graph = Graph(tuple(edges), 0, frozenset(finals)) if finals else NOTHING
    # Minimal at once: in UTF-8, every edge that is spared saves all bytes of a set.
    return Automaton.of(graph, CODE_POINTS).expr()


class _Context:
    """The kinds of characters that some assertions tell apart, numbered, and what each promises.

    A mask is a set of things that may come next: bit n for a character of kind n, then the edge of the text,
    then a newline that ends the text. As the kind of the last character, `edge` says that there is none.
    """

    def __init__(self, assertions: Mapping[str, Assertion], looks: Lookaround) -> None:
        sides = [side for assertion in assertions.values() for pair in assertion.pairs for side in pair]
        self._kinds = _partition([NEWLINE, *(side.characters for side in sides), *looks.sets()])
        self.members = [kind[0][0] for kind in self._kinds]
        self._newline = self._kinds.index(NEWLINE)
        self.edge = len(self._kinds)
        self._last_newline = self.edge + 1
        self.everything = (1 << self.edge + 2) - 1
        self.promised = {
            (rule, before): self._promise(assertion, before)
            for rule, assertion in assertions.items()
            for before in range(self.edge + 1)
        }
        self._split: dict[Ranges, list[tuple[int, Expr]]] = {}

    def read(self, ranges: Ranges, after: int) -> Iterator[tuple[Expr, int, int]]:
        """How one character of a set is read under a promise: `(part of the set, its kind, new promise)`."""
        if ranges not in self._split:
            parts = ((kind, intersection(ranges, members)) for kind, members in enumerate(self._kinds))
            self._split[ranges] = [(kind, Class(part)) for kind, part in parts if part]
        for kind, part in self._split[ranges]:
            if after >> kind & 1:
                yield part, kind, self.everything
            elif kind == self._newline and after >> self._last_newline & 1:
                yield part, kind, 1 << self.edge

    def _promise(self, assertion: Assertion, before: int) -> int:
        mask = 0
        for left, right in assertion.pairs:
            if left.edge if before == self.edge else _within(self._kinds[before], left.characters):
                mask |= right.edge << self.edge | right.last_newline << self._last_newline
                for kind, members in enumerate(self._kinds):
                    mask |= _within(members, right.characters) << kind
        return mask


def _partition(sets: list[Ranges]) -> list[Ranges]:
    """Disjoint sets that together hold every character, of which each given set is a union."""
    parts = [ANY_CHARACTER]
    for ranges in sets:
        halves = (half for part in parts for half in (intersection(part, ranges), difference(part, ranges)))
        parts = [half for half in halves if half]
    return parts


def _within(inner: Ranges, outer: Ranges) -> bool:
    return not difference(inner, outer)


def conditions_in(expr: Expr) -> Iterator[Assertion | Look]:
    """The anchors, boundaries and lookaround of a pattern; not those inside lookaround."""
    seen: set[int] = set()
    waiting = [expr]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Assertion | Look):
            yield each
        elif isinstance(each, Concat | Alternative):
            waiting.extend(reversed(each.parts))
        elif isinstance(each, Repeat):
            waiting.append(each.body)


def _looked_for(look: Look, at_start: bool) -> Automaton:
    """The texts that may follow a look (`at_start`: of the text), or that may precede it."""
    body = look.body if at_start else _replaced(look.body, BEGIN, NOTHING)
    found = Automaton.of(resolve(concat(body, _ANY_TEXT) if look.ahead else concat(_ANY_TEXT, body)))
    return Automaton.of(_ANY_TEXT).difference(found) if look.negated else found


def _replaced(expr: Expr, old: Expr, new: Expr) -> Expr:
    if expr is old:
        return new
    if isinstance(expr, Concat):
        return concat(*(_replaced(part, old, new) for part in expr.parts))
    if isinstance(expr, Alternative):
        return alternative(*(_replaced(part, old, new) for part in expr.parts))
    if isinstance(expr, Repeat):
        return repeat(_replaced(expr.body, old, new), expr.low, expr.high)
    return expr
