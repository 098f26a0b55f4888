"""Plans: the containers of a schema before it is known which whitespace stands between their tokens.

Which it is depends on how deep a rule is used, which is known once all rules are. Until then, the parts of a
container are the names of their rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from sortition.grammars.expr import Graph
from sortition.grammars.json_arrays import array_of, is_long
from sortition.grammars.json_objects import Member, Shape, Undeclared, object_of
from sortition.grammars.json_rules import Names, Rules
from sortition.grammars.json_unordered_objects import Sets, expect_sets, sets_of, unordered_object_of
from sortition.grammars.json_whitespace import ALL_DEPTHS, INDENTS, MOST_SPACES, Policy, Whitespace
from sortition.grammars.schema_origin import Origin, too_large_at
from sortition.grammars.schema_ways import Counted, Marks

Ways: TypeAlias = list[tuple[Names, Marks]]
"""The ways to write the value of a member."""
Counts: TypeAlias = list[tuple[Names, Counted]]
"""The ways to write an item of an array."""


@dataclass(frozen=True, slots=True, eq=False)
class MemberPlan:
    """A `Member`, its key and its value by the names of their rules."""

    key: str
    value: Ways
    required: bool
    left_out: Marks


@dataclass(frozen=True, slots=True, eq=False)
class ShapePlan:
    """A `Shape`, its keys and values by the names of their rules."""

    members: list[MemberPlan]
    anywhere: list[tuple[str, Ways]]
    after: list[list[tuple[str, Ways]]]
    low: int
    high: int | None
    wishes: int

    def inner(self) -> Iterator[str]:
        """The rules of all values inside."""
        undeclared = [*self.anywhere, *chain(*self.after)]
        for value in [*(member.value for member in self.members), *(value for _, value in undeclared)]:
            for names, _ in value:
                yield from names

    def shape(self, rules: Rules) -> Shape:
        """The shape, its keys and values as calls to their rules."""
        members = [
            Member(rules.call((each.key,)), rules.calls(each.value), each.required, each.left_out)
            for each in self.members
        ]
        after = [_undeclared(group, rules) for group in self.after]
        return Shape(members, _undeclared(self.anywhere, rules), after, self.low, self.high, self.wishes)


@dataclass(frozen=True, slots=True, eq=False)
class ObjectsPlan:
    """A rule for an object of any of these shapes; if declared keys come in any order, there is one."""

    origin: Origin
    shapes: list[ShapePlan]
    any_order: bool

    @property
    def places(self) -> int:
        """The places where a line may be broken."""
        return sum(len(shape.members) + len(shape.after) + 2 for shape in self.shapes)

    def inner(self) -> Iterator[str]:
        """The rules of all values inside."""
        return chain.from_iterable(shape.inner() for shape in self.shapes)

    def graph(self, rules: Rules, whitespace: Whitespace) -> Graph:
        """The objects, written with this whitespace."""
        shapes = [shape.shape(rules) for shape in self.shapes]
        if self.any_order:
            return unordered_object_of(shapes[0], whitespace, rules.part)
        return object_of(shapes, whitespace)


@dataclass(frozen=True, slots=True, eq=False)
class ArrayPlan:
    """A rule for arrays; the fields are the parameters of `array_of`."""

    origin: Origin
    first: list[Counts]
    others: Counts
    low: int
    high: int | None
    wanted: list[tuple[int, int | None]]

    @property
    def places(self) -> int:
        """The places where a line may be broken."""
        if is_long(len(self.first), self.low, self.high, self.wanted):
            return len(self.first) + 3
        return max(len(self.first), self.high or self.low) + 2

    def inner(self) -> Iterator[str]:
        """The rules of all values inside."""
        for item in [*self.first, self.others]:
            for names, _ in item:
                yield from names

    def graph(self, rules: Rules, whitespace: Whitespace) -> Graph:
        """The arrays, written with this whitespace."""
        first = [rules.calls(item) for item in self.first]
        return array_of(first, rules.calls(self.others), self.low, self.high, self.wanted, whitespace)


Plans: TypeAlias = Mapping[str, ObjectsPlan | ArrayPlan]
"""By the names of their rules."""


def depths_of(plans: Plans, root: Names, policy: Policy) -> dict[str, int]:
    """The depths (bits) at which each container rule is used; what accepts anything is ready for all."""
    depths: dict[str, int] = {}
    waiting = [(name, 1 << 1) for name in root]
    while waiting:
        name, fresh = waiting.pop()
        plan = plans.get(name)
        if plan is None:
            continue
        known = depths.get(name)
        if known is not None and not fresh & ~known:
            continue
        depths[name] = (known or 0) | fresh
        deeper = depths[name] << 1 & ALL_DEPTHS if policy.by_depth else 0
        waiting.extend((inner, deeper) for inner in dict.fromkeys(plan.inner()))
    return depths


def indentation(plans: Plans, depths: Mapping[str, int], policy: Policy) -> int:
    """How many spaces of indentation would have to be told apart, were they not in calls."""
    if not policy.by_depth:
        return 0
    return sum(
        plans[name].places * min(at.bit_length() * max(INDENTS), MOST_SPACES) for name, at in depths.items()
    )


def expect_all_sets(plans: Iterable[ObjectsPlan | ArrayPlan], rules: Rules) -> None:
    """Widen the budget for the sets of keys of containers, or refuse them; those with most are to blame.

    Raises:
        TooLarge: there are too many.
    """
    steps, keys, blamed = 0, 1, None
    for plan in plans:
        if isinstance(plan, ObjectsPlan) and plan.any_order:
            with too_large_at(plan.origin):
                sets = sets_of(plan.shapes[0].shape(rules))
            steps += sets.steps
            if sets.keys > keys:
                keys, blamed = sets.keys, plan.origin
    if blamed is not None:
        with too_large_at(blamed):
            expect_sets(Sets(steps, keys))


def _undeclared(keys: Sequence[tuple[str, Ways]], rules: Rules) -> Undeclared:
    return [(rules.call((key,)), rules.calls(value)) for key, value in keys]
