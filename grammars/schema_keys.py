"""Which terms the value of an object's key must fulfil, and how the undeclared keys fall into classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

from sortition.grammars.automaton import Automaton
from sortition.grammars.expr import NOTHING
from sortition.grammars.json_strings import any_string, exists, finite, language, matches, pattern
from sortition.grammars.schema_facts import (
    IMPOSSIBLE,
    SIGN_STEPS,
    Facts,
    Members,
    Objects,
    Source,
    Strings,
    Terms,
    joined,
    of_value,
)
from sortition.grammars.work import charge

Cases: TypeAlias = Callable[[Terms], tuple[Facts, ...]]


def declared(objects: Objects) -> tuple[str, ...]:
    """The keys that the schema names, in the order in which they are written; then those that it bans."""
    named = (name for members in objects.members for name, _ in members.properties)
    wished = (sign.key for wish in objects.wishes for sign in wish.signs if isinstance(sign.key, str))
    return tuple(dict.fromkeys([*named, *objects.required, *wished, *sorted(objects.absent)]))


def in_order(names: Iterable[str], more: Iterable[str]) -> bool:
    """Whether all names are among more names, in the same order."""
    if names == more:
        return True
    rest = iter(more)
    return all(name in rest for name in names)


def terms_of(objects: Objects, name: str) -> Terms:
    """The terms for the value of one key."""
    if name in objects.absent:
        return (IMPOSSIBLE,)
    terms: Terms = ()
    for members in objects.members:
        terms = joined(terms, _terms_in(members, name))
    return terms


Met: TypeAlias = tuple[int, Terms]
"""The number of a wish that a member with some key may fulfil, and the one or no term for its value then."""


@dataclass(frozen=True, slots=True, eq=False)
class Signs:
    """The signs of all wishes of an object, each with the number of its wish.

    Attributes:
        present: by key, the terms for its value.
        absent: by key, the wishes that are fulfilled without it, as bits.
        others: those of keys that fulfil terms, and the terms for the value.
    """

    present: Mapping[str, Sequence[Met]]
    absent: Mapping[str, int]
    others: Sequence[tuple[int, Terms, Terms]]

    @classmethod
    def of(cls, objects: Objects) -> Self:
        """The signs of these objects."""
        present: dict[str, list[Met]] = {}
        absent: dict[str, int] = {}
        others = []
        for number, wish in enumerate(objects.wishes):
            charge(SIGN_STEPS * len(wish.signs))
            for key, value in ((sign.key, sign.value) for sign in wish.signs):
                if not isinstance(key, str):
                    others.append((number, key, value or ()))
                elif value is None:
                    absent[key] = absent.get(key, 0) | 1 << number
                else:
                    present.setdefault(key, []).append((number, value))
        return cls(present, absent, others)

    def met_by(self, name: str, cases: Cases) -> list[Met]:
        """The wishes that a member with a key may fulfil.

        Raises:
            GrammarError: that cannot be told.
        """
        met = [(number, value) for number, terms, value in self.others if is_key(name, terms, cases)]
        return [*self.present.get(name, ()), *met]


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """A class of undeclared keys (None: all), the terms for their values, and the wishes they may fulfil."""

    automaton: Automaton | None
    value: Terms
    met: tuple[Met, ...]


def is_key(name: str, terms: Terms, cases: Cases) -> bool:
    """Whether a key, as a string, fulfils terms.

    Raises:
        GrammarError: that cannot be told.
    """
    return not terms or any(exists(strings) for strings in _strings((of_value(name), *terms), cases))


def listed_keys(terms: Terms, cases: Cases) -> list[str]:
    """The keys that, as strings, may fulfil terms, where a schema lists them; else none."""
    found: list[str] = []
    for facts in cases(terms) if terms else ():
        if facts.string is not None:
            if facts.string.values is None:
                return []
            found += facts.string.values
    return found


def keys_of(terms: Terms, cases: Cases) -> Automaton:
    """The keys that, as strings, fulfil terms.

    Raises:
        GrammarError: they cannot be told.
    """
    allowed = Automaton.of(NOTHING)
    for strings in _strings(terms, cases):
        allowed = allowed.union(language(strings))
    return allowed


def _strings(terms: Terms, cases: Cases) -> Iterator[Strings]:
    for facts in cases(terms):
        if facts.string is not None:
            yield facts.string


def classes(
    objects: Objects, names: frozenset[str], signs: Signs, cases: Cases, possible: Callable[[Terms], bool]
) -> list[Keys]:
    """The keys that are not among `names`, by the terms for their values and by what they may fulfil.

    Those without a possible value are left out.
    """
    parts = [Keys(keys, terms, ()) for keys, terms in _by_pattern(objects, names) if possible(terms)]
    for number, terms, value in signs.others if parts else ():
        wanted = keys_of(terms, cases)
        divided = []
        for part in parts:
            keys = any_string().difference(finite(names)) if part.automaton is None else part.automaton
            outside, met = keys.difference(wanted), (*part.met, (number, value))
            if outside.is_empty:
                divided.append(Keys(part.automaton, part.value, met))
                continue
            inside = keys.intersect(wanted)
            divided.append(part if inside.is_empty else Keys(outside, part.value, part.met))
            if not inside.is_empty:
                divided.append(Keys(inside, part.value, met))
        parts = divided
    return parts


def is_closed(objects: Objects, possible: Callable[[Terms], bool]) -> bool:
    """Whether no keys but those that are declared can be there, unless patterns allow some."""
    terms: Terms = ()
    for members in objects.members:
        terms = joined(terms, members.additional)
    return not any(members.patterns for members in objects.members) and not possible(terms)


def _by_pattern(objects: Objects, names: frozenset[str]) -> list[tuple[Automaton | None, Terms]]:
    """The keys that are not among `names`, by the patterns that they match and so the terms for their values.

    Keys are None where no pattern is involved: every key that is not declared.
    """
    sources = list(dict.fromkeys(source for members in objects.members for source, _ in members.patterns))
    if not sources:
        terms: Terms = ()
        for members in objects.members:
            terms = joined(terms, members.additional)
        return [(None, terms)]
    first, *others = sources
    parts = [
        (pattern(first), frozenset([first])),
        (language(Strings(patterns=(replace(first, wanted=False),))), frozenset()),
    ]
    for source in others:
        found = pattern(source)
        parts = [
            (keys, fulfilled)
            for before, known in parts
            for keys, fulfilled in (
                (before.intersect(found), known | {source}),
                (before.difference(found), known),
            )
            if not keys.is_empty
        ]
    # Names come last: they are many more than what patterns tell apart.
    return [
        (keys, _terms_where(objects, fulfilled))
        for every, fulfilled in parts
        if not (keys := every.difference(finite(names))).is_empty
    ]


def _terms_in(members: Members, name: str) -> Terms:
    terms = members.by_name.get(name, ())
    covered = name in members.by_name
    for source, value in members.patterns:
        if matches(source, name):
            terms, covered = joined(terms, value), True
    return terms if covered else members.additional


def _terms_where(objects: Objects, fulfilled: frozenset[Source]) -> Terms:
    """The terms for undeclared keys that fulfil exactly these patterns."""
    terms: Terms = ()
    for members in objects.members:
        found = [value for source, value in members.patterns if source in fulfilled]
        for value in found or [members.additional]:
            terms = joined(terms, value)
    return terms
