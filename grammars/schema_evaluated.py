"""`unevaluatedProperties` and `unevaluatedItems`: what the keywords beside them evaluate, way by way.

Which members count as evaluated depends on which of the schemas for the same object hold. So the ways to
fulfil them are told apart, each with the terms that hold in it and with what it evaluates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import Final, TypeAlias

from sortition.grammars.schema_assertions import opposite, terms
from sortition.grammars.schema_choices import Choice, conditional, dependent, listed
from sortition.grammars.schema_document import Schema
from sortition.grammars.schema_facts import (
    ANYTHING,
    Arrays,
    Containing,
    Facts,
    Members,
    Negation,
    Objects,
    Sign,
    Source,
    Strings,
    Terms,
    Wish,
    joined,
)
from sortition.grammars.schema_keywords import Draft
from sortition.grammars.work import charge

WAY_STEPS: Final = 30
"""Steps that each way takes in which the schemas beside one keyword may hold together."""

UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")

Branches: TypeAlias = Callable[[Schema], Iterable[Terms]]
"""For each branch of `oneOf`: the terms under which it alone holds."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to fulfil a schema.

    Attributes:
        terms: hold in this way.
        names, patterns: of the keys that are evaluated.
        all_members, all_items: whether all are evaluated.
        first: so many items from the first on are evaluated.
        contains: an item that fulfils one of these is evaluated, too.
    """

    terms: Terms = ()
    names: tuple[str, ...] = ()
    patterns: tuple[Source, ...] = ()
    all_members: bool = False
    first: int = 0
    all_items: bool = False
    contains: tuple[Schema, ...] = ()

    def __and__(self, other: Way) -> Way:
        charge(WAY_STEPS + len(self.terms) + len(self.names))
        return Way(
            joined(self.terms, other.terms),
            joined(self.names, other.names),
            joined(self.patterns, other.patterns),
            self.all_members or other.all_members,
            max(self.first, other.first),
            self.all_items or other.all_items,
            joined(self.contains, other.contains),
        )


def asks_for_the_rest(schema: Schema) -> bool:
    """Whether a schema says something about what is not evaluated."""
    return any(keyword in schema.keywords and terms(schema.child(keyword)) for keyword in UNEVALUATED)


class Evaluation:
    """Finds the ways to fulfil schemas.

    Args:
        target: the schema that a reference leads to.
        branches: the terms for each branch of `oneOf`.
        exact: whether a way also says which branches of `anyOf` do not hold. If not, a value is in every way
            of which it fulfils the terms, and the way that evaluates most decides.
    """

    def __init__(self, target: Callable[[Schema, str], Schema], branches: Branches, exact: bool) -> None:
        self._target = target
        self._branches = branches
        self._exact = exact
        self._open: list[Schema] = []

    def fulfilled(self, schema: Schema) -> Choice:
        """The ways to fulfil the unevaluated keywords of a schema together with those that make choices."""
        return tuple(joined(way.terms, tuple(_rest(schema, way))) for way in self._around(schema))

    def broken(self, schema: Schema) -> Choice:
        """The ways to break the unevaluated keywords of a schema; each way must be `exact`."""
        return tuple((*way.terms, fact) for way in self._around(schema) for fact in _broken(schema, way))

    def _around(self, schema: Schema) -> list[Way]:
        """The ways to fulfil everything in a schema but its unevaluated keywords."""
        ways = [_own(schema)]
        for keyword in schema.keywords:
            for alternatives in self._alternatives(schema, keyword):
                ways = [way & more for way in ways for more in alternatives]
        return ways

    def _inside(self, schema: Schema) -> list[Way]:
        # What comes back to itself with nothing in between has no ways of its own.
        if schema in self._open:
            return []
        self._open.append(schema)
        ways = self._around(schema)
        self._open.pop()
        every = Way(all_members="unevaluatedProperties" in schema.keywords)
        every &= Way(all_items="unevaluatedItems" in schema.keywords)
        return list(dict.fromkeys(way & every for way in ways))

    def _alternatives(self, schema: Schema, keyword: str) -> Iterator[list[Way]]:
        """The ways to fulfil one keyword, or several lists of which each must hold."""
        match keyword:
            case "$ref" | "$dynamicRef" | "$recursiveRef":
                yield self._inside(self._target(schema, keyword))
            case "allOf":
                yield from map(self._inside, listed(schema, keyword))
            case "anyOf":
                children = listed(schema, keyword)
                sizes = range(1, len(children) + 1)
                chosen = chain.from_iterable(combinations(children, size) for size in sizes)
                yield [way for some in chosen for way in self._of_any(some, children)]
            case "oneOf":
                both = zip(listed(schema, keyword), self._branches(schema), strict=True)
                yield [way & Way(held) for child, held in both for way in self._inside(child)]
            case "if":
                held, failed = conditional(schema, False)
                then = self._inside(schema.child("then")) if "then" in schema.keywords else [Way()]
                otherwise = self._inside(schema.child("else")) if "else" in schema.keywords else [Way()]
                yield [
                    *(Way(held) & way & more for way in self._inside(schema.child("if")) for more in then),
                    *(Way(failed) & way for way in otherwise),
                ]
            case "dependentRequired" | "dependentSchemas" | "dependencies":
                for absent, present, child in dependent(schema, keyword):
                    inner = [Way()] if child is None else self._inside(child)
                    yield [Way(absent), *(Way(present) & way for way in inner)]
            case _:
                pass

    def _of_any(self, some: tuple[Schema, ...], children: list[Schema]) -> list[Way]:
        """The ways in which some of the branches hold."""
        ways = [Way()]
        for child in children:
            if child in some:
                ways = [way & Way(terms(child)) & more for way in ways for more in self._inside(child)]
            elif self._exact:
                ways = [way & Way((Negation(child),)) for way in ways]
        return ways


def _own(schema: Schema) -> Way:
    """What the keywords of a schema evaluate that make no choice."""
    keywords = schema.keywords
    listed_items = isinstance(keywords.get("items"), list)
    items = keywords["items"] if listed_items else keywords.get("prefixItems", ())
    counts = "contains" in keywords and schema.scope.draft >= Draft.D2020
    return Way(
        (),
        tuple(keywords.get("properties", ())),
        tuple(Source(text, True, schema) for text in keywords.get("patternProperties", ())),
        "additionalProperties" in keywords,
        len(items),
        "additionalItems" in keywords if listed_items else "items" in keywords,
        (schema.child("contains"),) if counts else (),
    )


def _rest(schema: Schema, way: Way) -> Iterator[Facts]:
    """What the unevaluated keywords of a schema ask for in one way."""
    if "unevaluatedProperties" in schema.keywords and not way.all_members:
        names = tuple((name, ()) for name in way.names)
        patterns = tuple((source, ()) for source in way.patterns)
        members = Members(names, patterns, terms(schema.child("unevaluatedProperties")))
        yield replace(ANYTHING, object=Objects((members,)))
    if "unevaluatedItems" in schema.keywords and not way.all_items:
        child = schema.child("unevaluatedItems")
        others = terms(_any_of(schema, (*way.contains, child)) if way.contains else child)
        yield replace(ANYTHING, array=Arrays(((),) * way.first, others))


def _broken(schema: Schema, way: Way) -> Iterator[Facts]:
    """What breaks the unevaluated keywords of a schema in one way."""
    if "unevaluatedProperties" in schema.keywords and not way.all_members:
        patterns = tuple(Source(source.text, False, source.schema) for source in way.patterns)
        keys = Facts(string=Strings(patterns=patterns, excluded=frozenset(way.names)))
        value = opposite(terms(schema.child("unevaluatedProperties")))
        yield Facts(object=Objects.of_wish(Wish((Sign((keys,), value),))))
    if "unevaluatedItems" in schema.keywords and not way.all_items:
        child = schema.child("unevaluatedItems")
        item = opposite(terms(_any_of(schema, (*way.contains, child)) if way.contains else child))
        wish = Containing(item, 1, None, schema, way.first)
        yield Facts(array=Arrays(low=way.first + 1, contains=(wish,)))


def _any_of(schema: Schema, schemas: tuple[Schema, ...]) -> Schema:
    """A schema for what fulfils any of the schemas."""
    keywords = {"anyOf": [child.keywords for child in schemas]}
    children: dict[tuple[str | int, ...], Schema] = {("anyOf", i): child for i, child in enumerate(schemas)}
    return Schema(keywords, schema.pointer, schema.scope, children)
