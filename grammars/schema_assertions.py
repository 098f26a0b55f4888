"""The keywords that speak of one type each -> facts, and the facts of values that break them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from sortition.grammars.errors import Invalid, Unsupported
from sortition.grammars.formats import FORMATS
from sortition.grammars.schema_document import NO_VALUES, Schema
from sortition.grammars.schema_facts import (
    ANYTHING,
    IMPOSSIBLE,
    Arrays,
    Containing,
    Facts,
    Members,
    Negation,
    Numbers,
    Objects,
    Refusal,
    Sign,
    Source,
    Strings,
    Terms,
    Wish,
    exact,
    of_types,
)
from sortition.grammars.schema_keywords import TYPES, Draft, leave

DIFFERENT: Final = 1_024
"""Sets of values that an array may have had if all its items must differ, each a state of the array: those of
10 values, or of 44 in arrays of up to two."""

REPEATS: Final = 32
"""Repeats of a class of characters beyond which they are counted, as lengths are."""

_REPEATED_CLASS: Final = re.compile(
    r"(\^(?:\[(?:[^\]\\]|\\.)*\]|\\[dDsSwW]|\.))\{(\d{1,9})(,(\d{1,9})?)?\}\$", re.DOTALL
)
"""A pattern that is one class of characters, so many times: what it begins with, and its bounds."""

_NEUTRAL: Final = frozenset(
    [
        "$id",
        "id",
        "$anchor",
        "$dynamicAnchor",
        "$recursiveAnchor",
        "$defs",
        "definitions",
        "minContains",
        "maxContains",
        "then",
        "else",
    ]
)
"""Keywords that say nothing by themselves."""


def terms(schema: Schema) -> Terms:
    """The schema as terms; one that allows everything is no term at all."""
    return (schema,) if schema.keywords.keys() - _NEUTRAL else ()


def opposite(fulfilled: Terms) -> Terms:
    """The terms for what does not fulfil the terms, of which there is one or none."""
    if not fulfilled:
        return (IMPOSSIBLE,)
    (term,) = fulfilled
    if isinstance(term, Negation):
        return terms(term.of)
    if isinstance(term, Schema):
        return () if term.keywords.get("enum") is NO_VALUES else (Negation(term),)
    if term == IMPOSSIBLE:
        return ()
    raise TypeError("only schemas have an opposite")


def assertions(schema: Schema, formats: bool) -> Facts:
    """What the keywords about single types say together; `formats` says whether `format` counts."""
    keywords = schema.keywords
    facts = ANYTHING
    if "type" in keywords:
        facts = of_types(_types(schema))
    return facts & Facts(
        True,
        True,
        True,
        _numbers(schema) if facts.number else None,
        _strings(schema, formats) if facts.string else None,
        _arrays(schema) if facts.array else None,
        _objects(schema) if facts.object else None,
    )


def broken(schema: Schema, formats: bool) -> Iterator[Terms]:
    """The ways to break the keywords about single types: terms that a value fulfils which breaks one."""
    for keyword, value in schema.keywords.items():
        if keyword == "type":
            yield (_other_types(_types(schema)),)
        elif keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
            yield from ((Facts(number=numbers),) for numbers in _broken_number(schema, keyword, value))
        elif keyword in ("minLength", "maxLength", "pattern", "format"):
            yield from (
                (Facts(string=strings),) for strings in _broken_string(schema, keyword, value, formats)
            )
        elif keyword in _ARRAY_KEYWORDS:
            yield from ((Facts(array=arrays),) for arrays in _broken_array(schema, keyword, value))
        elif keyword in ("minProperties", "maxProperties", "dependentRequired"):
            yield from ((Facts(object=objects),) for objects in _broken_object(keyword, value))
    if signs := tuple(_broken_members(schema)):
        yield (Facts(object=Objects.of_wish(Wish(signs))),)


_ARRAY_KEYWORDS: Final = frozenset(
    [
        "items",
        "prefixItems",
        "additionalItems",
        "contains",
        "minItems",
        "maxItems",
        "uniqueItems",
    ]
)


def _types(schema: Schema) -> list[str]:
    value = schema.keywords["type"]
    return value if isinstance(value, list) else [value]


def _other_types(names: list[str]) -> Facts:
    others = of_types([name for name in TYPES if name not in names])
    if "number" in names:
        return replace(others, number=None)
    return replace(others, number=Numbers(integral=False)) if "integer" in names else others


def _numbers(schema: Schema) -> Numbers | None:
    keywords = schema.keywords
    numbers: Numbers | None = Numbers()
    low, high = keywords.get("minimum"), keywords.get("maximum")
    above, below = keywords.get("exclusiveMinimum"), keywords.get("exclusiveMaximum")
    for found in (
        Numbers(low=exact(low), above_low=above is True) if low is not None else None,
        Numbers(high=exact(high), below_high=below is True) if high is not None else None,
        Numbers(low=exact(above), above_low=True)
        if above is not None and not isinstance(above, bool)
        else None,
        Numbers(high=exact(below), below_high=True)
        if below is not None and not isinstance(below, bool)
        else None,
        Numbers(divisors=(exact(keywords["multipleOf"]),)) if "multipleOf" in keywords else None,
    ):
        if found is not None and numbers is not None:
            numbers = numbers & found
    return numbers


def _broken_number(schema: Schema, keyword: str, value: Any) -> Iterator[Numbers]:
    keywords = schema.keywords
    if isinstance(value, bool):
        return
    match keyword:
        case "minimum":
            yield Numbers(high=exact(value), below_high=keywords.get("exclusiveMinimum") is not True)
        case "maximum":
            yield Numbers(low=exact(value), above_low=keywords.get("exclusiveMaximum") is not True)
        case "exclusiveMinimum":
            yield Numbers(high=exact(value))
        case "exclusiveMaximum":
            yield Numbers(low=exact(value))
        case _:
            yield Numbers(not_divisors=(exact(value),))


def _strings(schema: Schema, formats: bool) -> Strings | None:
    keywords = schema.keywords
    low, high = int(keywords.get("minLength", 0)), _count(keywords.get("maxLength"))
    if high is not None and low > high:
        return None
    patterns: tuple[Source, ...] = ()
    if "pattern" in keywords:
        text, least, most = _counted_pattern(keywords["pattern"])
        low, high = max(low, least), most if high is None else high if most is None else min(high, most)
        if high is not None and low > high:
            return None
        patterns = (Source(text, True, schema),)
    return Strings(low, high, patterns, _formats(schema, True) if formats else ())


def _counted_pattern(text: str) -> tuple[str, int, int | None]:
    """A pattern, and how many characters it asks for beside what it still says.

    Many repeats of one class are left to the count, which costs nothing, however many they are.
    """
    found = _REPEATED_CLASS.fullmatch(text)
    if found:
        begin, least, several, most = found.groups()
        low = int(least)
        high = low if several is None else int(most) if most else None
        if low <= (low if high is None else high) and max(low, high or 0) > REPEATS:
            return f"{begin}*$", low, high
    return text, 0, None


def _formats(schema: Schema, wanted: bool) -> tuple[Source, ...]:
    name = schema.keywords.get("format")
    return (Source(name, wanted, schema),) if name in FORMATS else ()


def _broken_string(schema: Schema, keyword: str, value: Any, formats: bool) -> Iterator[Strings]:
    match keyword:
        case "minLength":
            if value > 0:
                yield Strings(high=int(value) - 1)
        case "maxLength":
            yield Strings(low=int(value) + 1)
        case "pattern":
            yield Strings(patterns=(Source(value, False, schema),))
        case _:
            if formats and _formats(schema, False):
                yield Strings(formats=_formats(schema, False))


def _arrays(schema: Schema) -> Arrays | None:
    keywords = schema.keywords
    low, high = int(keywords.get("minItems", 0)), _count(keywords.get("maxItems"))
    if high is not None and low > high:
        return None
    least, most = _contain_counts(schema) if "contains" in keywords else (0, None)
    if most is not None and least > most:
        return None
    first, others = _items(schema)
    unique: tuple[Refusal, ...] = ()
    if keywords.get("uniqueItems") is True:
        unique = (_refusal(schema, "uniqueItems", _DIFFERENT, leave("uniqueItems")),)
    return Arrays(first, others, low, high, _containing(schema), unique)


def _items(schema: Schema) -> tuple[tuple[Terms, ...], Terms]:
    keywords = schema.keywords
    items = keywords.get("items")
    if isinstance(items, list):
        if "prefixItems" in keywords:
            raise schema.error(Invalid, "items", "must be a schema where prefixItems lists the first items")
        first = tuple(terms(schema.child("items", index)) for index in range(len(items)))
        return first, terms(schema.child("additionalItems")) if "additionalItems" in keywords else ()
    first = tuple(terms(schema.child("prefixItems", i)) for i in range(len(keywords.get("prefixItems", ()))))
    return first, terms(schema.child("items")) if "items" in keywords else ()


def _containing(schema: Schema) -> tuple[Containing, ...]:
    if "contains" not in schema.keywords:
        return ()
    low, high = _contain_counts(schema)
    return (
        (Containing(terms(schema.child("contains")), low, high, schema),) if (low, high) != (0, None) else ()
    )


def _contain_counts(schema: Schema) -> tuple[int, int | None]:
    counts = schema.keywords if schema.scope.draft >= Draft.D2019 else {}
    return int(counts.get("minContains", 1)), _count(counts.get("maxContains"))


def _broken_array(schema: Schema, keyword: str, value: Any) -> Iterator[Arrays]:
    first, others = _items(schema)
    match keyword:
        case "minItems":
            if value > 0:
                yield Arrays(high=int(value) - 1)
        case "maxItems":
            yield Arrays(low=int(value) + 1)
        case "uniqueItems":
            if value:
                yield Arrays(refused=(_refusal(schema, keyword, _NEGATED),))
        case "contains":
            low, high = _contain_counts(schema)
            if low > 0:
                yield Arrays(contains=(Containing(terms(schema.child("contains")), 0, low - 1, schema),))
            if high is not None:
                yield Arrays(contains=(Containing(terms(schema.child("contains")), high + 1, None, schema),))
        case "prefixItems" | "items" if keyword == "prefixItems" or isinstance(value, list):
            for index, child in enumerate(first):
                if child:
                    yield Arrays(((),) * index + (opposite(child),), (), index + 1)
        case _:
            if keyword == "additionalItems" and not isinstance(schema.keywords.get("items"), list):
                return
            if others:
                start = len(first)
                yield Arrays(low=start + 1, contains=(Containing(opposite(others), 1, None, schema, start),))


def _objects(schema: Schema) -> Objects | None:
    keywords = schema.keywords
    low, high = int(keywords.get("minProperties", 0)), _count(keywords.get("maxProperties"))
    if high is not None and low > high:
        return None
    members = Members(
        tuple((name, terms(schema.child("properties", name))) for name in keywords.get("properties", ())),
        tuple(
            (Source(text, True, schema), terms(schema.child("patternProperties", text)))
            for text in keywords.get("patternProperties", ())
        ),
        terms(schema.child("additionalProperties")) if "additionalProperties" in keywords else (),
    )
    return Objects(
        (members,) if members != Members() else (),
        tuple(keywords.get("required", ())),
        frozenset(),
        terms(schema.child("propertyNames")) if "propertyNames" in keywords else (),
        low,
        high,
    )


def without(name: str) -> Objects:
    """The objects that do not have this key."""
    return Objects(absent=frozenset([name]))


def _broken_object(keyword: str, value: Any) -> Iterator[Objects]:
    match keyword:
        case "minProperties":
            if value > 0:
                yield Objects(high=int(value) - 1)
        case "maxProperties":
            yield Objects(low=int(value) + 1)
        case _:
            for name, needed in value.items():
                yield from (Objects(required=(name,), absent=frozenset([other])) for other in needed)


def _broken_members(schema: Schema) -> Iterator[Sign]:
    """What breaks the keywords about members: one sign is enough, so an object need not tell them apart."""
    keywords = schema.keywords
    properties, required = keywords.get("properties", ()), frozenset(keywords.get("required", ()))
    for name in dict.fromkeys([*properties, *keywords.get("required", ())]):
        if name in properties and (child := terms(schema.child("properties", name))):
            yield Sign(name, opposite(child))
        if name in required:
            yield Sign(name, None)
    for text in keywords.get("patternProperties", ()):
        if allowed := terms(schema.child("patternProperties", text)):
            found = Facts(string=Strings(patterns=(Source(text, True, schema),)))
            yield Sign((found,), opposite(allowed))
    if "additionalProperties" in keywords and (allowed := terms(schema.child("additionalProperties"))):
        yield Sign((_undeclared(schema),), opposite(allowed))
    if "propertyNames" in keywords and (allowed := terms(schema.child("propertyNames"))):
        yield Sign(opposite(allowed), ())


def _undeclared(schema: Schema) -> Facts:
    """The keys, as strings, that are neither among `properties` nor match `patternProperties`."""
    patterns = tuple(Source(text, False, schema) for text in schema.keywords.get("patternProperties", ()))
    excluded = frozenset(schema.keywords.get("properties", ()))
    return Facts(string=Strings(patterns=patterns, excluded=excluded))


_DIFFERENT: Final = (
    "that items differ can be enforced only where each is one of up to 10 values, or arrays are short"
)
_NEGATED: Final = "its opposite, which not, oneOf or if asks for here, cannot be enforced"


def _refusal(schema: Schema, keyword: str, reason: str, hint: str | None = None) -> Refusal:
    return Refusal(schema.error(Unsupported, keyword, reason, hint), keyword)


def _count(value: Any) -> int | None:
    return None if value is None else int(value)
