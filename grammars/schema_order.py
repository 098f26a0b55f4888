"""One order for the keys of all objects that a value may be.

Each branch of `anyOf` or `oneOf` has its own `properties`, and to most of them the keys of the others are as
good as undeclared. Could those come anywhere, it would have to be told apart which branches are out of their
order already, and for a dozen branches that are thousands of sets. In one order, all branches are at the same
place of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from sortition.grammars.schema_facts import Members, Objects
from sortition.grammars.schema_keys import Cases, declared, in_order, terms_of
from sortition.grammars.schema_overlap import constants_of
from sortition.grammars.work import charge, expect

NAME_STEPS: Final = 1
"""Steps that a key takes in each object."""

NAMES_PER_STEP: Final = 4
"""Keys that are passed in one step to find the place of another."""


def in_one_order(sets: Sequence[Objects], cases: Cases) -> list[Objects]:
    """The same objects, each with the keys that any of them names in one order.

    One that has its own keys in another order keeps that, and then has the others. Where the first key tells
    all of them apart, it is enough that the keys of the others come after it.
    """
    own = [dict.fromkeys(name for members in each.members for name, _ in members.properties) for each in sets]
    order: list[str] = []
    for names in [*own, *map(declared, sets)]:
        order = _merged(order, names)
    expect(NAME_STEPS * len(sets) * len(order), "to bring keys into one order")
    if _told_apart(sets, cases):
        return [replace(each, later=frozenset(order).difference(declared(each))) for each in sets]
    together = _naming(order)
    firsts = [together if in_order(names, order) else _naming([*names, *order]) for names in own]
    return [replace(each, members=(first, *each.members)) for each, first in zip(sets, firsts, strict=True)]


def _told_apart(sets: Sequence[Objects], cases: Cases) -> bool:
    """Whether all have the same first key, which must be there, and no two share a value there."""
    first = {name for each in sets for name in declared(each)[:1]}
    if len(first) != 1 or not all(declared(each) and first <= {*each.required} for each in sets):
        return False
    (tag,) = first
    found = [constants_of(terms_of(each, tag), cases) for each in sets]
    known = [values for values in found if values is not None]
    return len(known) == len(found) and len(frozenset().union(*known)) == sum(map(len, known))


def _merged(order: Sequence[str], names: Iterable[str]) -> list[str]:
    """Both orders: names that are new come before the next one that is not, or last."""
    charge(len(order) // NAMES_PER_STEP)
    known = {name: place for place, name in enumerate(order)}
    merged: list[str] = []
    new: list[str] = []
    past = 0
    for name in names:
        place = known.get(name)
        if place is None:
            new.append(name)
        elif place >= past:
            merged += [*order[past:place], *new, name]
            new, past = [], place + 1
    return [*merged, *order[past:], *new]


def _naming(names: Iterable[str]) -> Members:
    """No condition, but the keys in this order."""
    return Members(tuple((name, ()) for name in dict.fromkeys(names)))
