"""The ways to write one item or member, where an array or object asks for some of a kind.

`contains` counts items; what breaks `additionalProperties` and its like is one member that must be there.
Each way is a set of terms for the value together with what it does for these wishes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import reduce
from itertools import combinations
from math import ceil, floor
from operator import or_
from typing import Final, NamedTuple, TypeAlias

from sortition.grammars.schema_assertions import DIFFERENT, opposite
from sortition.grammars.schema_facts import Containing, Facts, Numbers, Strings, Terms, joined
from sortition.grammars.schema_keys import Met
from sortition.grammars.work import charge

WAY_STEPS: Final = 25
"""Steps that each way takes to write an item or a member."""

Counted: TypeAlias = tuple[int, ...]
"""For each `contains`, 1 if an item counts for it."""
Possible: TypeAlias = Callable[[Terms], bool]


class Marks(NamedTuple):
    """Which wishes of an object a member fulfils, as bits.

    Attributes:
        kept: those that are fulfilled whatever follows.
        last: those that are fulfilled unless a later member may have the same key.
        lost: those of which this may be that later member.
    """

    kept: int = 0
    last: int = 0
    lost: int = 0

    @property
    def fulfilled(self) -> int:
        """The wishes that are fulfilled if no member follows."""
        return self.kept | self.last

    def then(self, later: Marks) -> Marks:
        """What two members do, one after the other; `lost` has no meaning before the first."""
        if later == NO_MARKS:
            return self
        kept = self.kept | later.kept
        return Marks(kept, (self.last & ~later.lost | later.last) & ~kept)


NO_MARKS: Final = Marks()
"""A member that fulfils nothing, and undoes nothing."""


def item_ways(
    item: Terms, values: Sequence[Facts], contains: Sequence[Containing], index: int
) -> list[tuple[Terms, Counted]]:
    """The ways to write an item at an index: it counts as one of the values, if any, and for `contains`."""
    ways: list[tuple[Terms, Counted]] = [
        (joined(item, (value,)), tuple(int(each is value) for each in values)) for value in values
    ]
    if not values:
        ways = [(item, ())]
    for each in contains:
        longer = []
        charge(WAY_STEPS * len(ways))
        for terms, counted in ways:
            if index < each.start:
                longer.append((terms, (*counted, 0)))
                continue
            # Without an upper bound it does no harm not to count an item that could be counted.
            plain = terms if each.high is None else joined(terms, opposite(each.terms))
            if each.terms:
                longer.append((plain, (*counted, 0)))
            longer.append((joined(terms, each.terms), (*counted, 1)))
        ways = longer
    return ways


def values_of(terms: Terms, cases: Callable[[Terms], tuple[Facts, ...]]) -> list[Facts] | None:
    """Every value that fulfils terms and maybe some more, one by one; None where they cannot be listed."""
    values: list[Facts] = []
    for facts in cases(terms):
        numbers = _few_numbers(facts.number) if facts.number else ()
        strings = facts.string.values if facts.string else ()
        if facts.array or facts.object or numbers is None or strings is None:
            return None
        words = (Facts(null=facts.null), Facts(true=facts.true), Facts(false=facts.false))
        values.extend(word for word in words if word)
        values.extend(Facts(number=Numbers(values=(value,))) for value in numbers)
        values.extend(Facts(string=Strings(values=(value,))) for value in strings)
    return list(dict.fromkeys(values))


def _few_numbers(numbers: Numbers) -> Sequence[Fraction] | None:
    """Every number of a set, None where they cannot be listed, or only by bounds far apart."""
    if numbers.values is not None:
        return numbers.values
    steps = ((Fraction(1),) if numbers.integral else ()) + numbers.divisors
    if not steps or numbers.low is None or numbers.high is None:
        return None
    first, last = ceil(numbers.low / steps[0]), floor(numbers.high / steps[0])
    if last - first > DIFFERENT:
        return None
    return [value for value in (each * steps[0] for each in range(first, last + 1)) if numbers.holds(value)]


def member_ways(
    value: Terms, met: Sequence[Met], repeats: bool, exclusive: bool, possible: Possible
) -> Iterator[tuple[Terms, Marks]]:
    """The ways to write the value of a member.

    Args:
        value: the terms that it fulfils in any case.
        met: the wishes that a member with its key may fulfil, and by which values.
        repeats: whether a later member may have the same key, so that readers see its value instead.
        exclusive: whether no value may be written in two ways.
        possible: whether a value for terms exists.
    """
    wishes: dict[Terms, int] = {}
    for number, wish in met:
        wishes[wish] = wishes.get(wish, 0) | 1 << number
    certain = 0
    for wish, bits in wishes.items():
        if not possible(joined(value, opposite(wish))):
            value, certain = joined(value, wish), certain | bits
    uncertain = [(wish, bits & ~certain) for wish, bits in wishes.items() if bits & ~certain]
    everything = reduce(or_, (bits for _, bits in uncertain), 0)
    for size in range(len(uncertain) + 1):
        for chosen in combinations(uncertain, size):
            charge(WAY_STEPS * (1 + size))
            terms, marked = value, 0
            for each in uncertain:
                wish, bits = each
                if each in chosen:
                    terms, marked = joined(terms, wish), marked | bits
                elif exclusive:
                    terms = joined(terms, opposite(wish))
            if repeats:
                yield terms, Marks(certain, marked, everything & ~marked)
            else:
                yield terms, Marks(certain | marked)
