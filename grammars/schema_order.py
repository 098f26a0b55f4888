"""Where keys stand that only other branches of a choice declare.

Each branch of `anyOf` or `oneOf` has its own `properties`, and to most of them the keys of the others are as
good as undeclared. Could those come anywhere, it would have to be told apart which branches are out of their
order already, and for a dozen branches that are thousands of sets. So they come after what a branch declares
itself, in groups: then all branches of which nothing is left to come are one. Of many branches that no tag
tells apart they are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from sortition.grammars.schema_facts import Facts, Objects, Terms
from sortition.grammars.schema_keys import Cases, declared, is_closed, terms_of
from sortition.grammars.schema_overlap import constants_of
from sortition.grammars.work import charge

NAME_STEPS: Final = 1
"""Steps that a key takes in each set of objects that may have it."""

SET_STEPS: Final = 20
"""Steps that each set of objects takes beside those for its keys."""

MOST_PAIRS: Final = 2_000
"""Pairs of keys of which one may follow the other, up to which branches have the keys of others, too.

Four classes of eight fields and a tag that need not be there make 3,400 of them, and a machine of 6,300
states; six make 10,000 and a machine that is too large, but one of 1,900 without the keys of others."""

MOST_LATER: Final = 8_000
"""The same of branches that a tag tells apart: the keys of others that all of them have together.

Forty classes of ten fields have 16,000 and a machine that is too large, thirty 9,000 and 9,900 states."""


def placed_in_order(
    covering: Sequence[dict[Objects, Objects]], cases: Cases, possible: Callable[[Terms], bool]
) -> dict[Objects, Objects]:
    """The objects that lie within no others, with the keys of others in their places.

    Args:
        covering: for each way to write a value, its sets of objects by those that they lie within. Sets that
            would lose the order of their own keys there come to lie within themselves alone.
    """
    while True:
        wide = dict.fromkeys(wider for among in covering for wider in among.values())
        kept = [objects for objects in wide if objects != Objects()]
        if len(kept) < 2:
            return {}
        placed = dict(zip(kept, _with_others_later(kept, cases, possible), strict=True))
        strays = [
            (among, objects)
            for among in covering
            for objects, wider in among.items()
            if wider is not objects and not _keeps_order(objects, placed[wider])
        ]
        if not strays:
            return placed
        for among, objects in strays:
            among[objects] = objects


def _keeps_order(objects: Objects, placed: Objects) -> bool:
    """Whether objects within others, which are placed, may have the keys that they declare in order there."""
    names = declared(placed)
    places = {name: place for place, name in enumerate(names)}
    for number, group in enumerate(placed.later, len(names)):
        places |= dict.fromkeys(group, number)
    charge(NAME_STEPS * len(places))
    own = [name for name in declared(objects) if name not in objects.absent]
    order = [places[name] for name in own if name in places]
    return order == sorted(order) and placed.absent.isdisjoint(own)


def _with_others_later(
    sets: Sequence[Objects], cases: Cases, possible: Callable[[Terms], bool]
) -> list[Objects]:
    """The same objects, each with the keys that only others declare after its own, group by group.

    A group has the keys of one set. Sets of which a member tells that it is no other are never followed
    together, and share one.
    """
    named = [frozenset(declared(each)) for each in sets]
    charge(SET_STEPS * len(sets) + NAME_STEPS * sum(map(len, named)))
    common, everything = named[0].intersection(*named), named[0].union(*named)
    told_apart = _told_apart(sets, named, cases)
    grouped = set(common)
    grouped.update(*(names for names, told in zip(named, told_apart, strict=True) if told))
    groups = [frozenset(grouped - common)]
    for names in named:
        if more := names - grouped:
            groups.append(more)
            grouped |= more
    # What only wishes speak of is as good as of others.
    open_ended = [not is_closed(each, possible) for each in sets]
    charge(NAME_STEPS * sum(open_ended) * (len(everything) + len(groups)))
    foreign = [
        everything.difference(_own(each)) if is_open else frozenset()
        for each, is_open in zip(sets, open_ended, strict=True)
    ]
    pairs = sum(map(len, groups[1:])) ** 2
    pairs += sum(len(names & others) * len(names) for names, others in zip(named, foreign, strict=True))
    many = pairs > MOST_PAIRS or len(groups[0]) * sum(map(bool, foreign)) > MOST_LATER
    placed = []
    for each, names, others in zip(sets, named, foreign, strict=True):
        undeclared = others - names
        after = tuple(filter(None, (group & undeclared for group in groups))) if undeclared else ()
        placed.append(_without(each, others, possible) if many else replace(each, later=after))
    return placed


def _own(objects: Objects) -> Iterator[str]:
    """The keys that a set of objects declares, but for those that only wishes speak of."""
    yield from (name for members in objects.members for name, _ in members.properties)
    yield from objects.required


def _without(objects: Objects, names: frozenset[str], possible: Callable[[Terms], bool]) -> Objects:
    """The objects without some keys, if there are any."""
    without = objects & Objects(absent=names) if names else None
    return without if without and possible((Facts(object=without),)) else objects


def _told_apart(sets: Sequence[Objects], own: Sequence[frozenset[str]], cases: Cases) -> list[bool]:
    """For each set, whether a key that must be there, or every value of it, is one that no other declares."""
    declaring = Counter(name for names in own for name in names)
    tags = dict.fromkeys(name for each in sets for name in each.required if declaring[name] > 1)
    values = [
        {tag: constants_of(terms_of(each, tag), cases) for tag in tags if tag in names}
        for each, names in zip(sets, own, strict=True)
    ]
    known = [(tag, one) for found in values for tag, of_tag in found.items() for one in of_tag or ()]
    sharing = Counter(known)
    return [
        any(
            declaring[name] == 1 or {sharing[name, one] for one in found[name] or ()} == {1}
            for name in each.required
        )
        for each, found in zip(sets, values, strict=True)
    ]
