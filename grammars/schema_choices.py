"""The choices that keywords make between schemas for the same value: each a tuple of alternatives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

from sortition.grammars.schema_assertions import terms, without
from sortition.grammars.schema_document import Schema
from sortition.grammars.schema_facts import ANYTHING, Facts, Negation, Objects, Sign, Terms, Wish

Choice: TypeAlias = tuple[Terms, ...]


def listed(schema: Schema, keyword: str) -> list[Schema]:
    """The schemas in the list that is the value of a keyword."""
    return [schema.child(keyword, index) for index in range(len(schema.keywords[keyword]))]


def any_of(schema: Schema) -> Choice:
    """The alternatives of `anyOf`; those that only ask for a member with one key are one wish.

    Which of the keys are there need not be told apart then: for a dozen, these are thousands of sets.
    """
    children = listed(schema, "anyOf")
    signs = [_sign(child) for child in children]
    wish = Wish(tuple(sign for sign in signs if sign is not None))
    if len(wish.signs) < 2:
        return tuple(terms(child) for child in children)
    others = tuple(terms(child) for child, sign in zip(children, signs, strict=True) if sign is None)
    return (*others, (replace(ANYTHING, object=Objects.of_wish(wish)),))


def _sign(schema: Schema) -> Sign | None:
    """The sign that objects fulfil a schema, if it asks for nothing else and allows all other values."""
    keywords = schema.keywords
    required = keywords.get("required", ())
    properties = keywords.get("properties", ())
    if keywords.keys() - {"properties", "required"} or len(required) != 1 or {*properties} - {*required}:
        return None
    (name,) = required
    return Sign(name, terms(schema.child("properties", name)) if properties else ())


def conditional(schema: Schema, negated: bool) -> Iterator[Terms]:
    """The two ways to fulfil `if` with `then` and `else`, or to break them."""
    condition = schema.child("if")
    for keyword, held in (("then", True), ("else", False)):
        before: Terms = terms(condition) if held else (Negation(condition),)
        if keyword in schema.keywords:
            branch = schema.child(keyword)
            yield (*before, Negation(branch)) if negated else (*before, *terms(branch))
        elif not negated:
            yield before


def dependent(schema: Schema, keyword: str) -> Iterator[tuple[Terms, Terms, Schema | None]]:
    """For each name: the key is absent; or it is there and what it asks for holds; the schema for that."""
    for name, needed in schema.keywords[keyword].items():
        absent = (Facts(True, True, True, ANYTHING.number, ANYTHING.string, ANYTHING.array, without(name)),)
        if isinstance(needed, list):
            names = (name, *(each for each in needed if each != name))
            yield absent, (only(Objects(required=names)),), None
        else:
            child = schema.child(keyword, name)
            yield absent, (with_key(name), *terms(child)), child


def with_key(name: str) -> Facts:
    """The objects that have this key."""
    return only(Objects(required=(name,)))


def only(objects: Objects) -> Facts:
    """These objects, and no other value."""
    return Facts(object=objects)
