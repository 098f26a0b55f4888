"""Sets of objects that lie within others: what the choices of a schema multiply out to often does.

Dropping them leaves the same texts, and a machine that has less to follow at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from sortition.grammars.schema_facts import Facts, Members, Numbers, Objects, Strings, Terms, joined
from sortition.grammars.schema_keys import declared, in_order, terms_of
from sortition.grammars.work import charge

Cases: TypeAlias = Callable[[Terms], tuple[Facts, ...]]

COMPARED: Final = 128
"""Sets of objects that are compared with each other, at most: that many take 0.1 s."""

COMPARISON_STEPS: Final = 10
"""Steps that comparing two sets takes, both ways."""

NAMES_PER_STEP: Final = 2
"""Keys of two sets that are compared in one step."""


def covers(sets: Iterable[Objects], any_order: bool, cases: Cases) -> dict[Objects, Objects]:
    """For each set one that it lies within, as far as that is easily seen, and that lies within no other.

    Unless keys come in any order, a set lies within another only if its texts do, too.
    """
    found = {objects: objects for objects in sets}
    if len(found) > COMPARED:
        return found
    covering = _Covering(cases, any_order)
    kept: list[Objects] = []
    for objects in found:
        charge(COMPARISON_STEPS * len(kept))
        wider = next((other for other in kept if covering.holds(objects, other)), objects)
        found[objects] = wider
        if wider is objects:
            narrower = [other for other in kept if covering.holds(other, objects)]
            found |= dict.fromkeys(narrower, objects)
            kept = [*(other for other in kept if other not in narrower), objects]
    for objects, wider in found.items():
        while found[wider] is not wider:
            wider = found[wider]
        found[objects] = wider
    return found


class _Covering:
    def __init__(self, cases: Cases, any_order: bool) -> None:
        self._cases = cases
        self._any_order = any_order
        self._known: dict[tuple[Terms, Terms], bool] = {}
        self._declared: dict[Objects, tuple[str, ...]] = {}

    def holds(self, inner: Objects, outer: Objects) -> bool:
        """Whether every object of one set is seen to be in the other."""
        if not (
            set(outer.required) <= set(inner.required)
            and outer.low <= max(inner.low, len(inner.required))
            and (outer.high is None or (inner.high is not None and inner.high <= outer.high))
            and set(outer.names) <= set(inner.names)
            and set(outer.wishes) <= set(inner.wishes)
        ):
            return False
        names, more = self._names(outer), self._names(inner)
        charge((len(names) + len(more)) // NAMES_PER_STEP)
        return (
            # Of undeclared keys, one that has to be there comes last: both must declare the same.
            (not outer.wishes or set(names) == set(more))
            and (self._any_order or in_order(names, more))
            and all(self._others_hold(inner, members) for members in outer.members)
            and all(
                self._follows(terms_of(inner, key), terms_of(outer, key))
                for key in (names if names == more else dict.fromkeys([*names, *more]))
            )
        )

    def _names(self, objects: Objects) -> tuple[str, ...]:
        """The keys that objects declare, which each comparison asks for."""
        names = self._declared.get(objects)
        if names is None:
            names = self._declared[objects] = declared(objects)
        return names

    def _others_hold(self, inner: Objects, members: Members) -> bool:
        """Whether undeclared keys have what these members ask of them."""
        if members in inner.members:
            return True
        additional: Terms = ()
        for each in inner.members:
            if not each.patterns:
                additional = joined(additional, each.additional)
        return not members.patterns and self._follows(additional, members.additional)

    def _follows(self, inner: Terms, outer: Terms) -> bool:
        """Whether every value that fulfils some terms is seen to fulfil others."""
        if set(outer) <= set(inner):
            return True
        known = self._known.get((inner, outer))
        if known is None:
            wider = self._cases(outer)
            known = all(any(_lies_within(one, other) for other in wider) for one in self._cases(inner))
            self._known[inner, outer] = known
        return known


def _lies_within(inner: Facts, outer: Facts) -> bool:
    return (
        inner.null <= outer.null
        and inner.true <= outer.true
        and inner.false <= outer.false
        and (inner.number is None or _has_numbers(outer.number, inner.number))
        and (inner.string is None or _has_strings(outer.string, inner.string))
        and (inner.array is None or (outer.array is not None and inner.array & outer.array == inner.array))
        and (
            inner.object is None or (outer.object is not None and inner.object & outer.object == inner.object)
        )
    )


def _has_numbers(outer: Numbers | None, inner: Numbers) -> bool:
    if outer is None or inner.values is None:
        return outer is not None and inner & outer == inner
    charge(len(inner.values))
    if not all(map(outer.holds, inner.values)):
        return False
    if outer.values is None:
        return True
    charge(len(outer.values))
    return set(inner.values) <= set(outer.values)


def _has_strings(outer: Strings | None, inner: Strings) -> bool:
    if outer is None or inner.values is None or outer.patterns or outer.formats:
        return outer is not None and inner & outer == inner
    charge(len(inner.values))
    common = inner & outer
    return common is not None and common.values == inner.values
