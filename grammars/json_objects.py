"""Objects: the order of members, commas and braces, as graphs of a size linear in the schema."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from operator import or_
from typing import Final, NamedTuple, Self, TypeAlias

from sortition.grammars.expr import EMPTY, NOTHING, Expr, Graph, alternative, concat, counted, literal
from sortition.grammars.json_containers import EDGE_STEPS, UNROLLED, Edges, counting_comma
from sortition.grammars.json_lengths import COUNTED
from sortition.grammars.json_whitespace import Whitespace
from sortition.grammars.schema_ways import Marks
from sortition.grammars.work import expect

PAIR_STEPS: Final = 2
"""Steps for each pair of an ending, which every key has, and a call site, which every place has."""

LONGEST_RUN: Final = 100
"""Optional keys in a row up to which each has its place; more are in sections, inside which they have none.

Of n keys with places n * (n - 1) / 2 pairs may follow each other: the machine of 200 has 6,900 states and
takes 0.8 s without compiled loops, in sections 3,500 and 0.15 s."""

SECTION: Final = 50
"""Keys of a section; with 25 or 100 machines are a tenth larger or smaller."""

Value: TypeAlias = Sequence[tuple[Expr, Marks]]
"""The ways to write the value of a member."""
Undeclared: TypeAlias = Sequence[tuple[Expr, Value]]
"""Keys that are not declared, and the ways to write their values."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A declared key of an object.

    Attributes:
        key: how it is written.
        value: how its value is.
        required: whether it must be there.
        left_out: which wishes are fulfilled where it is not.
    """

    key: Expr
    value: Value
    required: bool
    left_out: Marks


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """A set of objects, as they are written.

    Attributes:
        members: the declared members, in the order in which they are written.
        anywhere: the members that are not declared and stand anywhere.
        after: those that come after all that are declared, group by group.
        low, high: how many members there are, None for no upper bound.
        wishes: how many wishes the members must have fulfilled at the end.
    """

    members: Sequence[Member]
    anywhere: Undeclared
    after: Sequence[Undeclared]
    low: int
    high: int | None
    wishes: int


def object_of(shapes: Sequence[Shape], whitespace: Whitespace) -> Graph:
    """An object of one of these shapes, with its declared members in order.

    Places with the same future are one, in whichever shape: where all that a branch of a choice declares is
    past, it need not be told any more which branch that was.
    """
    edges = _SharedEdges()
    for number, shape in enumerate(shapes):
        _Ordered(shape, number, whitespace, edges).add()
    return edges.graph("start", "end")


class _SharedEdges(Edges):
    """A graph that the objects of several shapes share.

    Attributes:
        futures: the numbers of all that may follow a place.
        finished: the nodes before which everything is added that may stand there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.futures: dict[Hashable, int] = {}
        self.finished: set[Hashable] = set()


class _Place(NamedTuple):
    """A place in an object: before a declared member, or among those that come after all of them.

    Attributes:
        member: what may stand there, by what it fulfils; nothing after all that are declared.
        required: whether it must be there.
        left_out: which wishes are fulfilled where it is not.
        undeclared: what else may stand there, by what it fulfils.
        needed: how many members must be there, from this one on.
        at_end: which wishes are fulfilled if nothing follows.
        pending: the wishes, as bits, that may be fulfilled from here on.
        future: the number of all that may follow.
    """

    member: dict[Marks, Expr]
    required: bool
    left_out: Marks
    undeclared: dict[Marks, Expr]
    needed: int
    at_end: Marks
    pending: int
    future: int


_States: TypeAlias = dict[tuple[int, Marks], None]
"""How many members are written, and what they fulfil; 0 where counts decide nothing or the frame counts."""


class _Ordered:
    """Adds the objects of one shape to a graph, place by place.

    Each state at a place has a node before a member and one after. They belong to this shape alone while it
    has wishes, and to all shapes with the same future once these are fulfilled.
    """

    def __init__(self, shape: Shape, number: int, whitespace: Whitespace, edges: _SharedEdges) -> None:
        self._shape, self._number, self._whitespace, self._edges = shape, number, whitespace, edges
        self._every = (1 << shape.wishes) - 1
        open_ended = bool(shape.anywhere or shape.after)
        self._counting = Counting.of(shape.members, open_ended, shape.low, shape.high, bool(shape.wishes))
        expect(EDGE_STEPS * self._counting.top, "to count members")
        plain = concat(whitespace.before_comma, literal(b","), whitespace.after_comma)
        self._commas: dict[int | None, Expr] = {None: plain}
        self._close = concat(whitespace.before_close, literal(b"}"))
        self._places = self._in_order()

    def _in_order(self) -> list[_Place]:
        """The places from first to last, which are found from the last on."""
        futures, steps = self._edges.futures, list(self._steps())
        expect_pairs(len(self._shape.members), len(steps))
        colon = concat(self._whitespace.before_colon, literal(b":"), self._whitespace.after_colon)
        anywhere = _by_marks(self._shape.anywhere, colon)
        places: list[_Place] = []
        needed, pending, at_end = 0, 0, Marks()
        # Where members are counted, no other shape has the same future.
        future = -1 if self._counting.is_idle else -2 - self._number
        for member, undeclared in reversed(steps):
            key, value = (member.key, member.value) if member else (NOTHING, ())
            required, left_out = (member.required, member.left_out) if member else (False, Marks())
            bodies = _by_marks([(key, value)], colon)
            others = anywhere if undeclared is self._shape.anywhere else _by_marks(undeclared, colon)
            needed += required
            at_end = left_out.then(at_end)
            pending = reduce(or_, (marks.fulfilled for marks in (*bodies, *others, left_out)), pending)
            content = key, required, _exprs(value), tuple((each, _exprs(ways)) for each, ways in undeclared)
            future = futures.setdefault((content, future), len(futures))
            places.append(_Place(bodies, required, left_out, others, needed, at_end, pending, future))
        return places[::-1]

    def _steps(self) -> Iterator[tuple[Member | None, Undeclared]]:
        """For each place, the declared member and the others that may stand there any number of times."""
        anywhere = self._shape.anywhere
        for is_plain, run in groupby(self._shape.members, self._is_plain):
            members = list(run)
            if is_plain and len(members) > LONGEST_RUN:
                for start in range(0, len(members), SECTION):
                    section = members[start : start + SECTION]
                    yield None, [*anywhere, *((member.key, member.value) for member in section)]
            else:
                yield from ((member, anywhere) for member in members)
        for group in self._shape.after:
            yield None, [*anywhere, *group]
        if not self._shape.after:
            yield None, anywhere

    def _is_plain(self, member: Member) -> bool:
        """Whether nothing depends on whether this member is there, or how often."""
        marks = [member.left_out, *(marks for _, marks in member.value)]
        return not member.required and self._counting.is_idle and all(each == Marks() for each in marks)

    def add(self) -> None:
        """Add everything from the opening brace to the closing one."""
        first, *others = self._places
        states: _States = {}
        opening = concat(literal(b"{"), self._whitespace.after_open)
        self._lead("start", opening, "before", first, 0, Marks(), states)
        if self._shape.low == 0 and self._may_end(first, 0, Marks()):
            empty = concat(literal(b"{"), self._whitespace.inside_empty, literal(b"}"))
            self._edges.add("start", empty, "end")
        for place, following in zip(self._places, [*others, None], strict=True):
            states = self._add_place(place, following, states)

    def _add_place(self, place: _Place, following: _Place | None, states: _States) -> _States:
        """Add all that may stand at a place, reached in these states; the states in which it is left."""
        counting, edges = self._counting, self._edges
        onward: _States = {}
        waiting = list(states)
        for count, done in waiting:
            before, after = self._node("before", place, count, done), self._node("after", place, count, done)
            if before in edges.finished:
                continue
            edges.finished.add(before)
            if self._may_end(place, count, done):
                edges.add(after, self._close, "end")
            if counting.is_full(count):
                continue
            total = counting.after(count)
            again: _States = {}
            for marks, body in place.undeclared.items():
                body = counting.leaving(place.needed, total, body)
                self._lead(before, body, "after", place, total, done.then(marks), again)
            waiting.extend(state for state in again if state not in states)
            states |= again
            if following is not None:
                for marks, body in place.member.items():
                    if not place.required:
                        body = counting.leaving(place.needed, total, body)
                    self._lead(before, body, "after", following, total, done.then(marks), onward)
                if not place.required:
                    self._lead(before, EMPTY, "before", following, count, done.then(place.left_out), onward)
            if following is not None or place.undeclared:
                # The next that must be there may follow.
                edges.add(after, self._comma(counting.last_comma(max(place.needed - 1, 0), total)), before)
        return onward

    def _comma(self, most: int | None) -> Expr:
        """A comma, which is at most the one of this number."""
        found = self._commas.get(most)
        if found is None:
            found = self._commas[most] = counting_comma(most, self._whitespace)
        return found

    def _lead(
        self, source: object, expr: Expr, side: str, place: _Place, count: int, done: Marks, reached: _States
    ) -> None:
        """Add an edge to a node, unless a wish is left that nothing can fulfil any more; note its state."""
        if self._every:
            past = self._every & ~place.pending
            if past & ~done.fulfilled:
                return
            # No later member may have the same key as those that fulfilled these wishes.
            done = Marks(done.kept | done.last & past, done.last & ~past)
        reached[count, done] = None
        self._edges.add(source, expr, self._node(side, place, count, done))

    def _node(self, side: str, place: _Place, count: int, done: Marks) -> object:
        if done.kept == self._every:
            return side, place.future, count
        return side, place.future, count, done, self._number

    def _may_end(self, place: _Place, count: int, done: Marks) -> bool:
        fulfilled = done.then(place.at_end).fulfilled
        return not place.needed and count >= self._counting.least and fulfilled == self._every


def _exprs(value: Value) -> tuple[Expr, ...]:
    return tuple(expr for expr, _ in value)


@dataclass(frozen=True, slots=True)
class Counting:
    """How members are counted, where their number decides anything.

    Attributes:
        matters: whether it does; the count stays 0 otherwise.
        least, most: how many there are at the end, None for no upper bound.
        tested: another upper bound, for which the frame counts commas.
    """

    matters: bool
    least: int
    most: int | None
    tested: int | None

    @classmethod
    def of(
        cls, members: Sequence[Member], open_ended: bool, low: int, high: int | None, wishes: bool
    ) -> Self:
        required = sum(member.required for member in members)
        bounded = high is not None and (open_ended or high < len(members))
        most = high if bounded else None
        if most is None or most <= required + UNROLLED or wishes:
            matters = bounded or low > required
            return cls(matters, low if matters else 0, most, None)
        if most > COUNTED:
            most = None
        return cls(low > required, low if low > required else 0, None, most)

    @property
    def is_idle(self) -> bool:
        """Whether nothing depends on how many members there are."""
        return not self.matters and self.tested is None

    @property
    def top(self) -> int:
        """The greatest count; above `least` it matters only if there is an upper bound."""
        return self.least if self.most is None else self.most

    def is_full(self, count: int) -> bool:
        """Whether there can be no further member."""
        return self.most is not None and count >= self.most

    def after(self, count: int) -> int:
        """The count after a further member."""
        return min(count + 1, self.top) if self.matters else 0

    def last_comma(self, required: int, count: int) -> int | None:
        """The number of the last comma after which there is room for a member, and for what is then required.

        `count` is as of after that member. None where the frame does not count.
        """
        return None if self.tested is None else self.tested - 1 - max(required, self.least - count)

    def leaving(self, required: int, count: int, member: Expr) -> Expr:
        """The member, if it leaves room for what is required; arguments as `last_comma`."""
        last = self.last_comma(required, count)
        # Where nothing more is required, the comma has seen to it.
        return member if last is None or last + 1 == self.tested else counted(member, 0, 0, last)


def _by_marks(members: Undeclared, colon: Expr) -> dict[Marks, Expr]:
    """What may stand in place of a member, by what it fulfils."""
    bodies: dict[Marks, list[Expr]] = {}
    for key, value in members:
        for expr, marks in value:
            if expr is not NOTHING:
                bodies.setdefault(marks, []).append(concat(key, colon, expr))
    return {marks: alternative(*parts) for marks, parts in bodies.items()}


def expect_pairs(keys: int, places: int) -> None:
    """Refuse an object of too many keys before anything is made of it."""
    expect(PAIR_STEPS * keys * places, f"an object of {keys:,} keys")
