"""Which terms the value of an object's key must fulfil, and how the undeclared keys fall into classes."""

from __future__ import annotations

from typing import Final

from sortition.grammars.automaton import Automaton
from sortition.grammars.errors import TooLarge
from sortition.grammars.json_strings import any_string, finite, matches, pattern
from sortition.grammars.schema_facts import IMPOSSIBLE, Members, Objects, Source, Terms, joined

STATE_BUDGET: Final = 3_000
"""States of all classes of undeclared keys together; each pattern may double the number of classes."""


def declared(objects: Objects) -> tuple[str, ...]:
    """The keys that the schema names, in the order in which they are written; then those that it bans."""
    named = (name for members in objects.members for name, _ in members.properties)
    return tuple(dict.fromkeys([*named, *objects.required, *sorted(objects.absent)]))


def terms_of(objects: Objects, name: str) -> Terms:
    """The terms for the value of one key."""
    if name in objects.absent:
        return (IMPOSSIBLE,)
    terms: Terms = ()
    for members in objects.members:
        terms = joined(terms, _terms_in(members, name))
    return terms


def classes(objects: Objects, names: frozenset[str]) -> list[tuple[Automaton | None, Terms]]:
    """The keys that are not among `names`, by the terms for their values.

    Keys are None where no pattern is involved: every key that is not declared.
    """
    sources = list(dict.fromkeys(source for members in objects.members for source, _ in members.patterns))
    if not sources:
        terms: Terms = ()
        for members in objects.members:
            terms = joined(terms, members.additional)
        return [(None, terms)]
    parts: list[tuple[Automaton, frozenset[Source]]] = [(any_string().difference(finite(names)), frozenset())]
    for source in sources:
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
        if sum(len(keys) for keys, _ in parts) > STATE_BUDGET:
            raise TooLarge(
                f"the patterns divide the keys into classes of more than {STATE_BUDGET:,} states",
                pointer=source.schema.pointer,
                keyword="patternProperties",
            )
    return [(keys, _terms_where(objects, fulfilled)) for keys, fulfilled in parts]


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
