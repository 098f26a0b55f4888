"""Objects whose declared members come in any order, as graphs over sets of keys."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache, reduce
from math import comb
from typing import Final, NamedTuple, TypeAlias

from sortition.grammars.expr import NOTHING, Expr, Graph, alternative, concat, counted, literal
from sortition.grammars.json_containers import EDGE_STEPS, Edges
from sortition.grammars.json_objects import Counting, Member, Shape, Undeclared, expect_pairs
from sortition.grammars.json_whitespace import Whitespace
from sortition.grammars.schema_ways import Marks
from sortition.grammars.work import SETS_BUDGET, allow, charge, expect

SET_STEPS: Final = 20
"""Steps that each edge between two sets takes at least, up to the machine: 21 to 24 where there are many."""

COUNTED_SET_STEPS: Final = (50, 25)
"""The same where members are counted, without and with others than those that are told apart: 55 to 120 and
30 to 90, as what may follow is another state for each set."""

LEAST_SET_STEPS: Final = 118
"""The same without others and without an upper bound: 107 to 114, and a little more, since thirteen such keys
would still fit, whose 74,000 states took some 2.5 s without compiled loops."""

Called: TypeAlias = Callable[[Hashable, Expr], Expr]
"""Makes a rule of an expression and returns the call; equal contents, given first, are one rule."""


def unordered_object_of(shape: Shape, whitespace: Whitespace, called: Called) -> Graph:
    """As `object_of`, but the declared members come in any order.

    Sets tell which of them are written: of those that must be there or whose absence fulfils a wish, or of
    all where they are counted. Those that are counted come once at most, and one that is the first to fulfil
    a wish is the last of its key: its ways must exclude each other. The others may come twice: the last one
    counts, and each is valid.

    A node is a set with how many members are written, what they fulfil, and the set of those that were first
    to fulfil a wish. A comma and the member that follows are a rule of their own, given by `called`, which
    all nodes share.

    Raises:
        TooLarge: it takes too much work.
    """
    members = shape.members
    counting = _counting_of(shape)
    bits = _bits(members, counting.matters)
    groups = _groups(members, shape.anywhere, bits)
    needed = sum(bit for bit, member in zip(bits, members, strict=True) if member.required)
    without = [
        (bit, each.left_out) for bit, each in zip(bits, members, strict=True) if each.left_out != Marks()
    ]
    close = concat(whitespace.before_close, literal(b"}"))
    every = (1 << shape.wishes) - 1
    bodies = {group: _pairs(pairs, whitespace) for group, pairs in groups.items()}
    following = {
        group: called((whitespace, *pairs), concat(literal(b","), whitespace.after_comma, bodies[group]))
        for group, pairs in groups.items()
    }
    # Numbers stand for what is fulfilled in the names of nodes: there are many.
    reached = _reached([[group.marks for group in groups]])
    number = {done: place for place, done in enumerate(reached)}
    onward = [[(group, number[done.then(group.marks)]) for group in groups] for done in reached]

    @cache
    def next_member(group: _Group, last: int | None) -> Expr:
        """A comma, the last one that may be before such a member, and the member."""
        call = following[group]
        return concat(whitespace.before_comma, call if last is None else counted(call, 1, 0, last))

    def after(written: int, count: int, place: int, first: int) -> Iterator[tuple[_Group, _Written]]:
        """The members that may follow, and the nodes after them."""
        if not counting.is_full(count):
            total = counting.after(count)
            for group, then in onward[place]:
                if not (first & group.member or (counting.matters and written & group.bit)):
                    fulfilling = group.member if then != place else 0
                    yield group, (written | group.bit, total, then, first | fulfilling)

    def is_complete(written: int, count: int, place: int, _: int) -> bool:
        left_out = (marks for bit, marks in without if not written & bit)
        fulfilled = reduce(Marks.then, left_out, reached[place]).fulfilled
        return written & needed == needed and count >= counting.least and fulfilled == every

    edges = Edges()
    nothing: _Written = (0, 0, 0, 0)
    found: dict[_Written, None] = {}
    for group, then in after(*nothing):
        found[then] = None
        edges.add("first", bodies[group], then)
    waiting = list(found)
    counts = counting.tested is not None
    for node in waiting:
        if is_complete(*node):
            edges.add(node, close, "end")
        onward_from: list[tuple[Expr, object]] = []
        for group, then in after(*node):
            if then not in found:
                found[then] = None
                waiting.append(then)
            last = counting.last_comma((needed & ~then[0]).bit_count(), then[1]) if counts else None
            onward_from.append((next_member(group, last), then))
        edges.add_all(node, onward_from)
    edges.add("start", concat(literal(b"{"), whitespace.after_open), "first")
    if shape.low == 0 and is_complete(*nothing):
        edges.add("start", concat(literal(b"{"), whitespace.inside_empty, literal(b"}")), "end")
    return edges.graph("start", "end")


class Sets(NamedTuple):
    """What it takes to tell sets of written keys apart.

    Attributes:
        steps: how many it takes at least.
        keys: how many keys are told apart.
    """

    steps: int
    keys: int


def sets_of(shape: Shape) -> Sets:
    """The sets of keys of an object whose members come in any order.

    Raises:
        TooLarge: it has too many members.
    """
    expect_pairs(len(shape.members), len(shape.members))
    counting = _counting_of(shape)
    groups = _groups(shape.members, shape.anywhere, _bits(shape.members, counting.matters))
    keys = len({group.bit for group in groups if group.bit})
    if not counting.matters:
        # Where wishes are fulfilled, keys may not come twice.
        return Sets(SET_STEPS * (len(groups) << keys) // (2 if shape.wishes else 1), keys)
    sizes = range(keys if counting.most is None else min(keys, counting.most))
    # What is not declared may bring the count from that of the set up to the top.
    counts = [max(counting.top - size, 0) + 1 if shape.anywhere else 1 for size in sizes]
    edges = sum(comb(keys, size) * (keys - size) * counts[size] for size in sizes)
    least_only = counting.most is None and not shape.anywhere
    return Sets((LEAST_SET_STEPS if least_only else COUNTED_SET_STEPS[bool(shape.anywhere)]) * edges, keys)


def expect_sets(sets: Sets) -> None:
    """Widen the budget for the sets of all objects, or refuse them before anything is made.

    Raises:
        TooLarge: there are too many.
    """
    allow(SETS_BUDGET)
    expect(sets.steps, f"objects of up to {sets.keys} keys in any order")


def _counting_of(shape: Shape) -> Counting:
    return Counting.of(shape.members, bool(shape.anywhere), shape.low, shape.high, bool(shape.wishes))


class _Group(NamedTuple):
    """Members that are alike wherever they stand.

    Attributes:
        bit: of the key in the sets of written ones, 0 if it is not told apart.
        member: of the key in the sets of those that were first to fulfil a wish, 0 if it can fulfil none.
        marks: what such a member fulfils.
    """

    bit: int
    member: int
    marks: Marks


_Written: TypeAlias = tuple[int, int, int, int]
"""The set of keys that are written, how many there are, the number of what is fulfilled, and by whom."""


def _groups(
    members: Sequence[Member], others: Undeclared, bits: Sequence[int]
) -> dict[_Group, list[tuple[Expr, Expr]]]:
    """Keys and values of all members by their groups."""
    groups: dict[_Group, list[tuple[Expr, Expr]]] = {}
    for index, (bit, member) in enumerate(zip(bits, members, strict=True)):
        fulfils = any(marks != Marks() for _, marks in member.value)
        for expr, marks in member.value:
            if expr is not NOTHING:
                group = _Group(bit, 1 << index if fulfils else 0, marks)
                groups.setdefault(group, []).append((member.key, expr))
    for key, value in others:
        for expr, marks in value:
            if expr is not NOTHING:
                groups.setdefault(_Group(0, 0, marks), []).append((key, expr))
    return groups


def _pairs(pairs: Iterable[tuple[Expr, Expr]], whitespace: Whitespace) -> Expr:
    """Any one of these keys with its value."""
    colon = concat(whitespace.before_colon, literal(b":"), whitespace.after_colon)
    return alternative(*(concat(key, colon, value) for key, value in pairs))


def _bits(members: Sequence[Member], all_of_them: bool) -> list[int]:
    """The bit of each member in the sets of written ones, 0 for those that are not told apart."""
    bits, bit = [], 1
    for member in members:
        if all_of_them or member.required or member.left_out != Marks():
            bits.append(bit)
            bit *= 2
        else:
            bits.append(0)
    return bits


def _reached(steps: Iterable[Iterable[Marks]]) -> list[Marks]:
    """Everything that may be fulfilled after some members."""
    marks = {mark for step in steps for mark in step}
    reached = [Marks()]
    for done in reached:
        charge(EDGE_STEPS * len(marks) + len(reached))
        reached.extend({done.then(each) for each in marks}.difference(reached))
    return reached
