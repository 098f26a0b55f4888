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
from sortition.grammars.characters import ANY_CHARACTER, complement, difference, intersection, union
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
    concat,
    one_of,
    star,
)
from sortition.grammars.lookaround import Look, Lookaround, Side, Variants, Watch
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


ANYTHING: Final = Side(ANY_CHARACTER, edge=True, last_newline=True)
EDGE: Final = Side((), edge=True)
LAST_NEWLINE: Final = Side((), last_newline=True)


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


def resolve(expr: Expr, before: Side = EDGE, after: Side = EDGE) -> Expr:
    """The same language of whole texts of code points, without assertions.

    Args:
        expr: what may have assertions in it.
        before: what stands before the texts, one thing: the first character stands for all.
        after: what stands after them, likewise.

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
    start = (nfa.start[ROOT_RULE], context.kind(before), context.everything, looks.start)
    ending = context.one_of(after)
    number = {start: 0}
    order = [start]
    edges: list[tuple[int, Expr, int]] = []
    finals: set[int] = set()
    for state in order:
        node, last, coming, watch = state
        moves: list[tuple[Expr, tuple[int, int, int, Watch]]] = []
        for reached in nfa.closure(node):
            kind, label, following = nfa.kind[reached], nfa.label[reached], nfa.following[reached]
            if kind == ARC:
                for part, unit, promise in context.read(nfa.sets[label], coming):
                    if (watched := looks.read(watch, context.members[unit])) is not None:
                        moves.append((part, (following, unit, promise, watched)))
            elif kind == CALL and nfa.rules[label] in looks.ahead:
                passed = looks.passing(context.ahead[nfa.rules[label], last], watch)
                if passed is not None:
                    moves.append((EMPTY, (following, last, coming, passed)))
            elif kind == CALL and nfa.rules[label] in looks.behind:
                # No two of these masks share a bit.
                allowed = context.behind[nfa.rules[label]]
                promised = sum(mask for number, mask in allowed if looks.has_passed(number, watch))
                moves.append((EMPTY, (following, last, coming & promised, watch)))
            elif kind == CALL:
                promised = context.promised[nfa.rules[label], last]
                moves.append((EMPTY, (following, last, coming & promised, watch)))
            elif coming & ending and looks.may_end(watch):
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

    Attributes:
        promised: what may come next, by the rule of an assertion and the kind of the last character.
        ahead: the number of the automaton that looks ahead, by rule and the kind of the last character.
        behind: by rule, the automata that look behind, each with the mask of what it allows to come next.
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
        self.ahead = {
            (rule, before): number
            for rule, variants in looks.ahead.items()
            for side, number in variants
            for before in range(self.edge + 1)
            if self._fits(before, side)
        }
        self.behind = {
            rule: [(number, self._mask(side)) for side, number in variants]
            for rule, variants in looks.behind.items()
        }
        self._split: dict[Ranges, list[tuple[int, Expr]]] = {}

    def kind(self, side: Side) -> int:
        """The kind of the one thing that stands before a text."""
        if side.edge:
            return self.edge
        first = ((side.characters[0][0],) * 2,)
        return next(kind for kind, members in enumerate(self._kinds) if _within(first, members))

    def one_of(self, side: Side) -> int:
        """The bits of the mask by which the one thing that stands after a text may come next."""
        if side.edge:
            return 1 << self.edge
        if side.last_newline:
            return 1 << self._last_newline | 1 << self._newline
        return 1 << self.kind(side)

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
            if self._fits(before, left):
                mask |= self._mask(right)
        return mask

    def _fits(self, before: int, side: Side) -> bool:
        return side.edge if before == self.edge else _within(self._kinds[before], side.characters)

    def _mask(self, side: Side) -> int:
        mask = side.edge << self.edge | side.last_newline << self._last_newline
        for kind, members in enumerate(self._kinds):
            mask |= _within(members, side.characters) << kind
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


def _looked_for(look: Look) -> Variants:
    """The texts that may follow a look, by what stands before it, or that may precede it, by what follows."""
    asked = list(_sides(look.body, before=look.ahead))
    # What the conditions inside tell apart, each with what they say of it.
    things = [Side(characters) for characters in _partition([side.characters for side in asked])]
    things.append(EDGE)
    if not look.ahead:
        things.append(LAST_NEWLINE)
    alike: dict[tuple[bool, ...], list[Side]] = {}
    for thing in things:
        alike.setdefault(tuple(_is_in(thing, side) for side in asked), []).append(thing)
    return [(_together(sides), _automaton(look, sides[0])) for sides in alike.values()]


def _automaton(look: Look, neighbour: Side) -> Automaton:
    """The texts that may follow or precede a look beside this one thing."""
    if look.ahead:
        found = Automaton.of(resolve(concat(look.body, _ANY_TEXT), before=neighbour))
    else:
        found = Automaton.of(resolve(concat(_ANY_TEXT, look.body), after=neighbour))
    return Automaton.of(_ANY_TEXT).difference(found) if look.negated else found


def _sides(expr: Expr, *, before: bool) -> Iterator[Side]:
    """What the conditions of a pattern ask for before or after their places, those in lookaround as well."""
    for condition in conditions_in(expr):
        if isinstance(condition, Look):
            yield from _sides(condition.body, before=before)
        else:
            yield from (left if before else right for left, right in condition.pairs)


def _is_in(thing: Side, side: Side) -> bool:
    if thing.edge:
        return side.edge
    if thing.last_newline:
        return side.last_newline or _within(NEWLINE, side.characters)
    return _within(thing.characters, side.characters)


def _together(sides: list[Side]) -> Side:
    return Side(
        union(*(side.characters for side in sides)),
        any(side.edge for side in sides),
        any(side.last_newline for side in sides),
    )
