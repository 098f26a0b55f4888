"""Arrays: the order of items, commas and brackets, as graphs of a size linear in the schema."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, inf, prod
from operator import add, ge, le
from typing import Final, TypeAlias

from sortition.grammars.errors import TooLarge
from sortition.grammars.expr import EMPTY, NOTHING, Expr, Graph, concat, counted, literal
from sortition.grammars.json_containers import EDGE_STEPS, UNROLLED, Edges, counting_comma
from sortition.grammars.json_lengths import COUNTED
from sortition.grammars.json_whitespace import Whitespace
from sortition.grammars.schema_ways import Counted
from sortition.grammars.work import expect, meter

Item: TypeAlias = Sequence[tuple[Expr, Counted]]
"""The ways to write an item of an array."""

KINDS_PER_STEP: Final = 2
"""Kinds of items that are counted in one step, for each way to write an item at each place."""


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
    leasts, limits = [least for least, _ in wanted], [inf if most is None else most for _, most in wanted]
    comma = concat(whitespace.before_comma, literal(b","), whitespace.after_comma)
    close = concat(whitespace.before_close, literal(b"]"))
    edges = Edges()
    ways = max(1, *map(len, first), len(others))
    expect(EDGE_STEPS * _most_counts(tops, high, ways) * longest * ways, "to count items")
    spend = meter().charge
    start = (0, (0,) * len(tops))
    places, met = [start], {start}
    for index, counts in places:
        if index < longest + endless:
            if index:
                edges.add(("after", index, counts), comma, ("item", index, counts))
            item = first[index] if index < len(first) else others
            spend(len(item) * (1 + len(wanted) // KINDS_PER_STEP))
            for expr, kinds in item:
                sums = tuple(map(add, counts, kinds))
                if all(map(le, sums, limits)):
                    place = (min(index + 1, longest), tuple(map(min, sums, tops)))
                    edges.add(("item", index, counts), expr, ("after", *place))
                    if place not in met:
                        met.add(place)
                        places.append(place)
        if index >= max(low, 1) and all(map(ge, counts, leasts)):
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
    edges = Edges()
    for index, item in enumerate([*first, others, others]):
        for expr, _ in item:
            edges.add(("item", index), expr, ("after", min(index + 1, last)))
    for index in range(1, last + 1):
        most = None if high is None or index < last else high - 1
        edges.add(("after", index), counting_comma(most, whitespace), ("item", index))
        if index == last or index >= low:
            least = low - 1 if index == last else 0
            edges.add(("after", index), _close(b"]", least, whitespace), "end")
    edges.add("start", concat(literal(b"["), whitespace.after_open), ("item", 0))
    if low == 0:
        edges.add("start", concat(literal(b"["), whitespace.inside_empty, literal(b"]")), "end")
    return edges.graph("start", "end")


def _close(bracket: bytes, least: int, whitespace: Whitespace) -> Expr:
    """The end of a container that has at least so many commas."""
    close = literal(bracket)
    if least <= 0:
        return concat(whitespace.before_close, close)
    if whitespace.before_comma is EMPTY:
        return counted(concat(whitespace.before_close, close), 0, least, None)
    # The same whitespace leads to a comma.
    return concat(whitespace.before_close, counted(close, 0, least, None))
