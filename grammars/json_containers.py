"""Objects and arrays: the order of members, commas and brackets, as graphs of a size linear in the schema."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import accumulate, product
from math import comb, prod
from typing import Final, NamedTuple, Self, TypeAlias

from sortition.grammars.errors import TooLarge
from sortition.grammars.expr import EMPTY, NOTHING, Expr, Graph, alternative, concat, counted, literal
from sortition.grammars.json_lengths import COUNTED
from sortition.grammars.json_whitespace import Whitespace
from sortition.grammars.schema_ways import Counted, Marks
from sortition.grammars.work import SETS_BUDGET, charge, expect, meter

PAIR_STEPS: Final = 2
"""Steps for each pair of an ending, which every key has, and a call site, which every place has."""

EDGE_STEPS: Final = 5
"""Steps that each edge of the graph of a container takes."""

UNROLLED: Final = 8
"""Items or members beyond those that are listed up to which states tell how many there are. More are counted:
each comma is one, and is refused where too many would follow."""


Value: TypeAlias = Sequence[tuple[Expr, Marks]]
"""The ways to write the value of a member."""
Called: TypeAlias = Callable[[Hashable, Expr], Expr]
"""Makes a rule of an expression and returns the call; equal contents, given first, are one rule."""
Item: TypeAlias = Sequence[tuple[Expr, Counted]]
"""The ways to write an item of an array."""


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


class _Edges:
    """A graph under construction, its nodes named by anything hashable."""

    def __init__(self) -> None:
        self._charge = meter().charge
        self.numbers: dict[object, int] = {}
        self.edges: list[tuple[int, Expr, int]] = []

    def add(self, source: object, expr: Expr, target: object) -> None:
        if expr is NOTHING:
            return
        self._charge(EDGE_STEPS)
        self.edges.append((self._number(source), expr, self._number(target)))

    def _number(self, name: object) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    def graph(self, start: object, end: object) -> Graph:
        return Graph(tuple(self.edges), self._number(start), frozenset({self._number(end)}))


def object_of(
    members: Sequence[Member],
    others: Sequence[tuple[Expr, Value]],
    earlier: Sequence[tuple[Expr, Value]],
    low: int,
    high: int | None,
    wishes: int,
    whitespace: Whitespace,
) -> Graph:
    """An object with the declared members in order and any others between them.

    Args:
        members: the declared members, in the order in which they are written.
        others: key and value of the members that are not declared.
        earlier: the same of those before the first that is declared.
        low, high: how many members there are, None for no upper bound.
        wishes: how many wishes the members must have fulfilled at the end.

    The node ("member", i, n, m) stands before a member when i declared members are past, n members are
    written and m is fulfilled; ("after", i, n, m) stands after one. n stays 0 where counts decide nothing, or
    where the frame counts commas so that there are no more than `high` members.
    """
    _expect_pairs(members)
    counting = _Counting.of(members, bool(others), low, high, bool(wishes))
    last_required = max((i + 1 for i, member in enumerate(members) if member.required), default=0)
    required_after = [*accumulate((member.required for member in members[::-1]), initial=0)][::-1]
    # What is fulfilled where no member follows.
    left_out = [*accumulate((each.left_out for each in members[::-1]), Marks.then, initial=Marks())][::-1]
    plain = concat(whitespace.before_comma, literal(b","), whitespace.after_comma)
    close = concat(whitespace.before_close, literal(b"}"))
    bodies, other = _bodies(members, others, whitespace)
    _, early = _bodies([], earlier, whitespace)
    every = (1 << wishes) - 1
    edges = _Edges()
    expect(EDGE_STEPS * counting.top, "to count members")
    steps = [*bodies, other, [member.left_out for member in members]]
    for count, done in product(range(counting.top + 1), _reached(steps)):
        full, following = counting.is_full(count), counting.after(count)
        for place, required in enumerate(required_after):
            before, after = ("member", place, count, done), ("after", place, count, done)
            if not full:
                if place < len(members):
                    for marks, body in bodies[place].items():
                        if not members[place].required:
                            body = counting.leaving(required, following, body)
                        edges.add(before, body, ("after", place + 1, following, done.then(marks)))
                    if not members[place].required:
                        then = done.then(members[place].left_out)
                        edges.add(before, EMPTY, ("member", place + 1, count, then))
                for marks, body in (other if place else early).items():
                    body = counting.leaving(required, following, body)
                    edges.add(before, body, ("after", place, following, done.then(marks)))
                if place < len(members) or other:
                    # The next that must be there may follow.
                    most = counting.last_comma(max(required - 1, 0), following)
                    edges.add(after, plain if most is None else _counting_comma(most, whitespace), before)
            if (
                place >= last_required
                and count >= counting.least
                and done.then(left_out[place]).fulfilled == every
            ):
                edges.add(after, close, "end")
    edges.add("start", concat(literal(b"{"), whitespace.after_open), ("member", 0, 0, Marks()))
    if last_required == 0 and low == 0 and left_out[0].fulfilled == every:
        edges.add("start", concat(literal(b"{"), whitespace.inside_empty, literal(b"}")), "end")
    return edges.graph("start", "end")


def unordered_object_of(
    members: Sequence[Member],
    others: Sequence[tuple[Expr, Value]],
    low: int,
    high: int | None,
    wishes: int,
    whitespace: Whitespace,
    called: Called,
) -> Graph:
    """As `object_of`, but the declared members come in any order.

    Sets tell which of them are written: of those that must be there or whose absence fulfils a wish, or of
    all where they are counted. Those that are counted come once at most, and one that is the first to fulfil
    a wish is the last of its key: its ways must exclude each other. The others may come twice: the last one
    counts, and each is valid.

    A node is a set with n and m as in `object_of` and the set of those that were first to fulfil a wish. A
    comma and the member that follows are a rule of their own, given by `called`, which all nodes share.

    Raises:
        TooLarge: it takes too much work.
    """
    _expect_pairs(members)
    counting = _Counting.of(members, bool(others), low, high, bool(wishes))
    bits = _bits(members, counting.matters)
    told_apart = max(bits, default=0).bit_length()
    if told_apart > 1:
        meter().budget = SETS_BUDGET
    groups = _groups(members, others, bits)
    ways = (len(groups) * (counting.top + 1)) << told_apart
    expect(EDGE_STEPS * ways // 2, f"an object of {told_apart} keys in any order")
    needed = sum(bit for bit, member in zip(bits, members, strict=True) if member.required)
    without = [
        (bit, each.left_out) for bit, each in zip(bits, members, strict=True) if each.left_out != Marks()
    ]
    close = concat(whitespace.before_close, literal(b"}"))
    every = (1 << wishes) - 1
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

    edges = _Edges()
    nothing: _Written = (0, 0, 0, 0)
    nodes: dict[_Written, None] = {}
    for group, then in after(*nothing):
        nodes[then] = None
        edges.add("first", bodies[group], then)
    waiting = list(nodes)
    for node in waiting:
        if is_complete(*node):
            edges.add(node, close, "end")
        for group, then in after(*node):
            if then not in nodes:
                nodes[then] = None
                waiting.append(then)
            last = counting.last_comma((needed & ~then[0]).bit_count(), then[1])
            edges.add(node, next_member(group, last), then)
    edges.add("start", concat(literal(b"{"), whitespace.after_open), "first")
    if low == 0 and is_complete(*nothing):
        edges.add("start", concat(literal(b"{"), whitespace.inside_empty, literal(b"}")), "end")
    return edges.graph("start", "end")


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
    members: Sequence[Member], others: Sequence[tuple[Expr, Value]], bits: Sequence[int]
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


def _expect_pairs(members: Sequence[Member]) -> None:
    expect(PAIR_STEPS * len(members) ** 2, f"an object of {len(members):,} keys")


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


@dataclass(frozen=True, slots=True)
class _Counting:
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


def _bodies(
    members: Sequence[Member], others: Sequence[tuple[Expr, Value]], whitespace: Whitespace
) -> tuple[list[dict[Marks, Expr]], dict[Marks, Expr]]:
    """Keys with their values, of each declared member and of all others, by what they fulfil."""
    colon = concat(whitespace.before_colon, literal(b":"), whitespace.after_colon)
    bodies = [_by_marks([(concat(member.key, colon), member.value)]) for member in members]
    return bodies, _by_marks([(concat(key, colon), value) for key, value in others])


def _by_marks(members: Iterable[tuple[Expr, Value]]) -> dict[Marks, Expr]:
    """What may stand in place of a member, by what it fulfils."""
    bodies: dict[Marks, list[Expr]] = {}
    for key, value in members:
        for expr, marks in value:
            if expr is not NOTHING:
                bodies.setdefault(marks, []).append(concat(key, expr))
    return {marks: alternative(*parts) for marks, parts in bodies.items()}


def _reached(steps: Iterable[Iterable[Marks]]) -> list[Marks]:
    """Everything that may be fulfilled after some members."""
    marks = {mark for step in steps for mark in step}
    reached = [Marks()]
    for done in reached:
        charge(EDGE_STEPS * len(marks) + len(reached))
        reached.extend({done.then(each) for each in marks}.difference(reached))
    return reached


def array_of(
    first: Sequence[Item],
    others: Item,
    low: int,
    high: int | None,
    wanted: Sequence[tuple[int, int | None]],
    whitespace: Whitespace,
) -> Graph:
    """An array with these first items and then others.

    Args:
        first: the items one by one.
        others: every further item.
        low, high: how many items there are, None for no upper bound.
        wanted: how many items there are of each kind that is counted, None for no upper bound.

    The node ("item", i, c) stands before item i when the counted kinds have occurred c times; ("after", i, c)
    stands after i items. Places and counts that decide nothing more are one; those that cannot be
    are not made.
    """
    is_nothing = all(expr is NOTHING for expr, _ in others)
    if not is_nothing and is_long(len(first), low, high, wanted):
        return _long_array_of(first, others, low, high, whitespace)
    most_others = _most(others, wanted)
    if high is not None and most_others is not None and len(first) + most_others <= high:
        # So many items of other kinds cannot be: whoever counts kinds need not count items.
        high = None
    endless = high is None and not is_nothing
    longest = max(len(first), low, 1) if endless else len(first)
    if high is not None:
        longest = min(longest, high) if is_nothing else high
    tops = [least if most is None else most for least, most in wanted]
    comma = concat(whitespace.before_comma, literal(b","), whitespace.after_comma)
    close = concat(whitespace.before_close, literal(b"]"))
    edges = _Edges()
    ways = max(1, *map(len, first), len(others))
    expect(EDGE_STEPS * _most_counts(tops, high, ways) * longest * ways, "to count items")
    start = (0, (0,) * len(tops))
    places, met = [start], {start}
    for index, counts in places:
        if index < longest + endless:
            if index:
                edges.add(("after", index, counts), comma, ("item", index, counts))
            for expr, kinds in first[index] if index < len(first) else others:
                sums = [count + step for count, step in zip(counts, kinds, strict=True)]
                if all(most is None or total <= most for total, (_, most) in zip(sums, wanted, strict=True)):
                    place = (min(index + 1, longest), tuple(map(min, sums, tops)))
                    edges.add(("item", index, counts), expr, ("after", *place))
                    if place not in met:
                        met.add(place)
                        places.append(place)
        if index >= max(low, 1) and all(
            count >= least for count, (least, _) in zip(counts, wanted, strict=True)
        ):
            edges.add(("after", index, counts), close, "end")
    edges.add("start", concat(literal(b"["), whitespace.after_open), ("item", *start))
    if low == 0 and not any(least for least, _ in wanted):
        edges.add("start", concat(literal(b"["), whitespace.inside_empty, literal(b"]")), "end")
    return edges.graph("start", "end")


def _most_counts(tops: Sequence[int], high: int | None, ways: int) -> int:
    """How many counts there are at most, up to these tops, in so many items with so many ways each."""
    every = prod(top + 1 for top in tops)
    return every if high is None else min(every, comb(high + ways, ways))


def _most(item: Item, wanted: Sequence[tuple[int, int | None]]) -> int | None:
    """How many such items there are at most by the bounds of their kinds; None if some have none."""
    bounded = [most is not None for _, most in wanted]
    if not all(any(step and has for step, has in zip(kinds, bounded, strict=True)) for _, kinds in item):
        return None
    return sum(most or 0 for _, most in wanted)


def is_long(listed: int, low: int, high: int | None, wanted: Sequence[tuple[int, int | None]]) -> bool:
    """Whether the items of an array are counted by its commas; arguments as `array_of`."""
    return not wanted and max(low, high or 0) > listed + UNROLLED


def _long_array_of(
    first: Sequence[Item], others: Item, low: int, high: int | None, whitespace: Whitespace
) -> Graph:
    """As `array_of`, where all places after the first item that is not listed are one: commas are counted.

    What may end there has an item that is not listed, so that one is possible; more of them then are, too.
    """
    if low > COUNTED:
        raise TooLarge(f"an array has more than {COUNTED:,} items", keyword="minItems")
    high = None if high is not None and high > COUNTED else high
    last = len(first) + 1
    edges = _Edges()
    for index, item in enumerate([*first, others, others]):
        for expr, _ in item:
            edges.add(("item", index), expr, ("after", min(index + 1, last)))
    for index in range(1, last + 1):
        most = None if high is None or index < last else high - 1
        edges.add(("after", index), _counting_comma(most, whitespace), ("item", index))
        if index == last or index >= low:
            least = low - 1 if index == last else 0
            edges.add(("after", index), _close(b"]", least, whitespace), "end")
    edges.add("start", concat(literal(b"["), whitespace.after_open), ("item", 0))
    if low == 0:
        edges.add("start", concat(literal(b"["), whitespace.inside_empty, literal(b"]")), "end")
    return edges.graph("start", "end")


def _counting_comma(most: int | None, whitespace: Whitespace) -> Expr:
    """A comma that is counted, and is at most the one of this number."""
    return concat(whitespace.before_comma, counted(literal(b","), 1, 0, most), whitespace.after_comma)


def _close(bracket: bytes, least: int, whitespace: Whitespace) -> Expr:
    """The end of a container that has at least so many commas."""
    close = literal(bracket)
    if least <= 0:
        return concat(whitespace.before_close, close)
    if whitespace.before_comma is EMPTY:
        return counted(concat(whitespace.before_close, close), 0, least, None)
    # The same whitespace leads to a comma.
    return concat(whitespace.before_close, counted(close, 0, least, None))
