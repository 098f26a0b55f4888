"""Cheap reasons why two schemas share no value: other types, other constants, other tags.

They settle the usual `oneOf` without multiplying anything out; where they do not, `Logic.possible` is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import comb
from typing import Final, TypeAlias

from sortition.grammars.schema_facts import Facts, Terms
from sortition.grammars.schema_keys import terms_of
from sortition.grammars.work import charge, meter

OUTLINE_STEPS: Final = 3
"""Steps that it takes to look at an outline, or to compare two."""

TAG_STEPS: Final = 10
"""Steps that it takes to find the values of a tag, beside those for each."""

CONSTANT_STEPS: Final = 1
"""Steps that each value takes to be told from others."""

VALUES_PER_STEP: Final = 8
"""Values of tags that are compared in one step."""

PAIR_STEPS: Final = 3
"""Steps that each pair of schemas that may overlap takes to be noted, however many of their outlines do."""

Constant: TypeAlias = tuple[str, str | tuple[int, int] | None]
"""A value that is no container: its type, and which one; a number by numerator and denominator, as fractions
take long to hash."""
Cases: TypeAlias = Callable[[Terms], tuple[Facts, ...]]


@dataclass(frozen=True, slots=True)
class Outline:
    """What one case allows, roughly.

    Attributes:
        constants: the values of the types of which only finitely many are allowed.
        open_types: the types of which more are allowed.
        tags: for required keys of its objects that allow only finitely many values, these values.
    """

    constants: frozenset[Constant]
    open_types: frozenset[str]
    tags: Mapping[str, frozenset[Constant]]


_Numbered: TypeAlias = tuple[int, Outline]
"""An outline with the number of its schema."""


def overlapping(outlined: Sequence[Sequence[Outline] | None]) -> list[tuple[int, int]]:
    """The pairs of schemas, by their numbers in ascending order, of which a common value cannot be ruled out.

    Schemas are grouped by their constants, types and tags, and compared only inside a group: those with a tag
    each, as most long lists have, take time in proportion to how many there are.

    Args:
        outlined: the outlines of each schema, None for one that may overlap with any.
    """
    found: set[tuple[int, int]] = set()
    spend = meter().charge
    every = [(number, each) for number, of_one in enumerate(outlined) for each in of_one or ()]
    for i, j in _meeting(every):
        spend(PAIR_STEPS)
        if i != j:
            found.add((i, j) if i < j else (j, i))
    for number, of_one in enumerate(outlined):
        if of_one is None:
            spend(PAIR_STEPS * len(outlined))
            found.update((min(number, i), max(number, i)) for i in range(len(outlined)) if i != number)
    return sorted(found)


def _meeting(every: Sequence[_Numbered]) -> Iterator[tuple[int, int]]:
    """The numbers of every pair of outlines that meet, some of them several times."""
    charge(OUTLINE_STEPS * len(every))
    by_constant: dict[Constant, list[int]] = {}
    constants_of_type: dict[str, list[int]] = {}
    open_for_type: dict[str, list[int]] = {}
    objects: list[_Numbered] = []
    for number, outline in every:
        charge(CONSTANT_STEPS * len(outline.constants))
        for constant in outline.constants:
            by_constant.setdefault(constant, []).append(number)
        for kind in {kind for kind, _ in outline.constants}:
            constants_of_type.setdefault(kind, []).append(number)
        for kind in outline.open_types:
            open_for_type.setdefault(kind, []).append(number)
        if "object" in outline.open_types:
            objects.append((number, outline))
    for sharing in by_constant.values():
        yield from combinations(sharing, 2)
    for kind, those in open_for_type.items():
        yield from product(constants_of_type.get(kind, ()), those)
        yield from combinations(those, 2) if kind != "object" else ()
    yield from _objects_meeting(objects)


def _objects_meeting(objects: Sequence[_Numbered]) -> Iterator[tuple[int, int]]:
    """The same for outlines with objects and for these alone: every tag that both have has a common value."""
    charge(CONSTANT_STEPS * sum(1 + len(values) for _, each in objects for values in each.tags.values()))
    holders: dict[str, Counter[Constant]] = {}
    tagged: Counter[str] = Counter()
    for _, outline in objects:
        for tag, values in outline.tags.items():
            tagged[tag] += 1
            holders.setdefault(tag, Counter()).update(values)
    # Those with the tag are compared with those of the same value, and those without it with all.
    pairs = {
        tag: sum(count * count for count in holders[tag].values()) + 2 * with_it * (len(objects) - with_it)
        for tag, with_it in tagged.items()
    }
    best = min(pairs, key=pairs.__getitem__, default=None)
    if best is None or pairs[best] > len(objects) ** 2 // 2:
        charge((OUTLINE_STEPS + _weight(objects)) * comb(len(objects), 2))
        yield from ((i, j) for (i, ours), (j, theirs) in combinations(objects, 2) if _agree(ours, theirs))
        return
    groups: dict[Constant, list[_Numbered]] = {}
    for each in objects:
        for value in each[1].tags.get(best, ()):
            groups.setdefault(value, []).append(each)
    for group in groups.values():
        if len(group) > 1:
            yield from _objects_meeting(group)
    others = [each for each in objects if best not in each[1].tags]
    if others:
        yield from _objects_meeting(others)
        those = [each for each in objects if best in each[1].tags]
        charge((OUTLINE_STEPS + _weight(objects)) * len(others) * len(those))
        yield from ((i, j) for (i, ours), (j, theirs) in product(others, those) if _agree(ours, theirs))


def _weight(objects: Sequence[_Numbered]) -> int:
    """The steps that it takes to compare the values of the tags of two outlines."""
    largest = max((sum(map(len, outline.tags.values())) for _, outline in objects), default=0)
    return largest // VALUES_PER_STEP


def _agree(ours: Outline, theirs: Outline) -> bool:
    """Whether all tags that both have have common values."""
    for tag, values in ours.tags.items():
        others = theirs.tags.get(tag)
        if others is not None and values.isdisjoint(others):
            return False
    return True


def outlines(terms: Terms, cases: Cases) -> list[Outline]:
    """The outlines of all cases of the terms."""
    return [_outline(facts, cases) for facts in cases(terms)]


def constants_of(terms: Terms, cases: Cases) -> frozenset[Constant] | None:
    """The values that fulfil terms, None if more than finitely many or containers do."""
    charge(TAG_STEPS)
    values: set[Constant] = set()
    for facts in cases(terms):
        constants, types = _simple(facts)
        if types or facts.array is not None or facts.object is not None:
            return None
        values |= constants
    return frozenset(values)


def _outline(facts: Facts, cases: Cases) -> Outline:
    constants, open_types = _simple(facts)
    tags: dict[str, frozenset[Constant]] = {}
    if facts.array is not None:
        open_types.add("array")
    if facts.object is not None:
        open_types.add("object")
        for name in facts.object.required:
            values = constants_of(terms_of(facts.object, name), cases)
            if values is not None:
                tags[name] = values
    return Outline(frozenset(constants), frozenset(open_types), tags)


def _simple(facts: Facts) -> tuple[set[Constant], set[str]]:
    """The constants among the values that are no containers, and the types of the others."""
    constants: set[Constant] = set()
    open_types: set[str] = set()
    for allowed, name in ((facts.null, "null"), (facts.true, "true"), (facts.false, "false")):
        if allowed:
            constants.add((name, None))
    numbers, strings = facts.number, facts.string
    if numbers is not None and numbers.values is not None:
        charge(CONSTANT_STEPS * len(numbers.values))
        constants.update(("number", (value.numerator, value.denominator)) for value in numbers.values)
    elif numbers is not None:
        open_types.add("number")
    if strings is not None and strings.values is not None:
        charge(CONSTANT_STEPS * len(strings.values))
        constants.update(("string", value) for value in strings.values)
    elif strings is not None:
        open_types.add("string")
    return constants, open_types
