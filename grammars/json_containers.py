"""Objects and arrays: the order of members, commas and brackets, as graphs of a size linear in the schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sortition.grammars.errors import TooLarge
from sortition.grammars.expr import EMPTY, NOTHING, Expr, Graph, alternative, concat, literal
from sortition.grammars.json_whitespace import Whitespace

MEMBER_BUDGET: Final = 20_000
"""Members that are told apart in one container (by place or by count)."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A declared key of an object: how it and its value are written, and whether it must be there."""

    key: Expr
    value: Expr
    required: bool


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """How an item of an array is written: as one that is not counted, and as one that is."""

    plain: Expr
    counted: Expr = NOTHING

    @property
    def is_nothing(self) -> bool:
        """Whether there can be no such item."""
        return self.plain is NOTHING and self.counted is NOTHING


class _Edges:
    """A graph under construction, its nodes named by anything hashable."""

    def __init__(self) -> None:
        self.numbers: dict[object, int] = {}
        self.edges: list[tuple[int, Expr, int]] = []

    def add(self, source: object, expr: Expr, target: object) -> None:
        if expr is NOTHING:
            return
        self.edges.append((self._number(source), expr, self._number(target)))

    def _number(self, name: object) -> int:
        if len(self.numbers) > 2 * MEMBER_BUDGET:
            raise TooLarge(f"a container has more than {MEMBER_BUDGET:,} members to tell apart")
        return self.numbers.setdefault(name, len(self.numbers))

    def graph(self, start: object, end: object) -> Expr:
        return Graph(tuple(self.edges), self._number(start), frozenset({self._number(end)}))


def object_of(
    members: Sequence[Member],
    others: Sequence[tuple[Expr, Expr]],
    low: int,
    high: int | None,
    whitespace: Whitespace,
) -> Expr:
    """An object with the declared members in order and any others between them.

    Args:
        members: the declared members, in the order in which they are written.
        others: key and value of the members that are not declared.
        low, high: how many members there are, None for no upper bound.

    The node ("member", i, n) stands before a member when i declared members are past and n members are
    written; ("after", i, n) stands after one. n stays 0 where the count decides nothing.
    """
    required = sum(member.required for member in members)
    counted = low > required or (high is not None and (bool(others) or high < len(members)))
    least = low if counted else 0
    most = high if counted else None
    # Above `least` the count matters only if there is an upper bound.
    top = 0 if not counted else most if most is not None else least
    last_required = max((i + 1 for i, member in enumerate(members) if member.required), default=0)
    colon = concat(whitespace.before_colon, literal(b":"), whitespace.after_colon)
    comma = concat(whitespace.before_comma, literal(b","), whitespace.after_comma)
    close = concat(whitespace.before_close, literal(b"}"))
    bodies = [concat(member.key, colon, member.value) for member in members]
    other = alternative(*(concat(key, colon, value) for key, value in others))
    edges = _Edges()
    for count in range(top + 1):
        full = most is not None and count >= most
        following = 0 if not counted else count + 1 if most is not None else min(count + 1, top)
        for place in range(len(members) + 1):
            before, after = ("member", place, count), ("after", place, count)
            if not full:
                if place < len(members):
                    edges.add(before, bodies[place], ("after", place + 1, following))
                    if not members[place].required:
                        edges.add(before, EMPTY, ("member", place + 1, count))
                if other is not NOTHING:
                    edges.add(before, other, ("after", place, following))
                if place < len(members) or other is not NOTHING:
                    edges.add(after, comma, before)
            if place >= last_required and count >= least:
                edges.add(after, close, "end")
    edges.add("start", concat(literal(b"{"), whitespace.after_open), ("member", 0, 0))
    if last_required == 0 and low == 0:
        edges.add("start", concat(literal(b"{"), whitespace.inside_empty, literal(b"}")), "end")
    return edges.graph("start", "end")


def array_of(
    first: Sequence[Item],
    others: Item,
    low: int,
    high: int | None,
    wanted: tuple[int, int | None],
    whitespace: Whitespace,
) -> Expr:
    """An array with these first items and then others.

    Args:
        first: the items one by one.
        others: every further item.
        low, high: how many items there are, None for no upper bound.
        wanted: how many items are of the counted kind, None for no upper bound.

    The node ("item", i, n) stands before item i when n of the counted kind are past; ("after", i, n) stands
    after i items. Places and counts that decide nothing more are one.
    """
    endless = high is None and not others.is_nothing
    longest = max(len(first), low, 1) if endless else len(first)
    if high is not None:
        longest = min(longest, high) if others.is_nothing else high
    least, most = wanted
    top = least if most is None else most
    comma = concat(whitespace.before_comma, literal(b","), whitespace.after_comma)
    close = concat(whitespace.before_close, literal(b"]"))
    edges = _Edges()
    for count in range(top + 1):
        for index in range(longest + endless):
            item = first[index] if index < len(first) else others
            after = ("after", min(index + 1, longest))
            edges.add(("item", index, count), item.plain, (*after, count))
            if count < top or most is None:
                edges.add(("item", index, count), item.counted, (*after, min(count + 1, top)))
            if index:
                edges.add(("after", index, count), comma, ("item", index, count))
        if count >= least:
            for index in range(max(low, 1), longest + 1):
                edges.add(("after", index, count), close, "end")
    edges.add("start", concat(literal(b"["), whitespace.after_open), ("item", 0, 0))
    if low == 0 and least == 0:
        edges.add("start", concat(literal(b"["), whitespace.inside_empty, literal(b"]")), "end")
    return edges.graph("start", "end")
