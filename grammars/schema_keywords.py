"""The keywords of JSON Schema: in which drafts each exists, and what its value must look like."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum, IntEnum, auto
from typing import Any, Final

from sortition.grammars.errors import Invalid, TooLarge, Unsupported

DIGIT_BUDGET: Final = 400
"""Decimal digits of a number in a schema, written out: every finite double fits."""


class Draft(IntEnum):
    """The editions of the specification, oldest first."""

    D4 = 4
    D6 = 6
    D7 = 7
    D2019 = 2019
    D2020 = 2020


DIALECTS: Final = {
    "json-schema.org/draft-04/schema": Draft.D4,
    "json-schema.org/draft-06/schema": Draft.D6,
    "json-schema.org/draft-07/schema": Draft.D7,
    "json-schema.org/draft/2019-09/schema": Draft.D2019,
    "json-schema.org/draft/2020-12/schema": Draft.D2020,
    # OpenAPI 3.1 adds annotations.
    "spec.openapis.org/oas/3.1/dialect/base": Draft.D2020,
}
"""The values of `$schema` that are understood, without their scheme and an empty fragment."""

LATEST: Final = "json-schema.org/schema"
"""The value of `$schema` for the latest draft, whichever that was when the schema was written."""


class Shape(Enum):
    """What the value of a keyword must be."""

    SCHEMA = auto()
    SCHEMAS = auto()
    SCHEMAS_IF_ANY = auto()
    SCHEMA_MAP = auto()
    ITEMS = auto()
    DEPENDENCIES = auto()
    COUNT = auto()
    NUMBER = auto()
    POSITIVE = auto()
    EXCLUSIVE = auto()
    FLAG = auto()
    FLAG_OR_SCHEMA = auto()
    TEXT = auto()
    NAMES = auto()
    NAME_LISTS = auto()
    TYPE = auto()
    VALUES = auto()
    VALUE = auto()


@dataclass(frozen=True, slots=True)
class Keyword:
    """One keyword: its shape, and the first and last draft that has it."""

    shape: Shape
    first: Draft = Draft.D4
    last: Draft = Draft.D2020


KEYWORDS: Final = {
    "$id": Keyword(Shape.TEXT, Draft.D6),
    "id": Keyword(Shape.TEXT, Draft.D4, Draft.D4),
    "$anchor": Keyword(Shape.TEXT, Draft.D2019),
    "$dynamicAnchor": Keyword(Shape.TEXT, Draft.D2020),
    "$recursiveAnchor": Keyword(Shape.FLAG, Draft.D2019, Draft.D2019),
    "$ref": Keyword(Shape.TEXT),
    "$dynamicRef": Keyword(Shape.TEXT, Draft.D2020),
    "$recursiveRef": Keyword(Shape.TEXT, Draft.D2019, Draft.D2019),
    "$defs": Keyword(Shape.SCHEMA_MAP, Draft.D2019),
    "definitions": Keyword(Shape.SCHEMA_MAP),
    "type": Keyword(Shape.TYPE),
    "enum": Keyword(Shape.VALUES),
    "const": Keyword(Shape.VALUE, Draft.D6),
    "allOf": Keyword(Shape.SCHEMAS_IF_ANY),
    "anyOf": Keyword(Shape.SCHEMAS),
    "oneOf": Keyword(Shape.SCHEMAS),
    "not": Keyword(Shape.SCHEMA),
    "if": Keyword(Shape.SCHEMA, Draft.D7),
    "then": Keyword(Shape.SCHEMA, Draft.D7),
    "else": Keyword(Shape.SCHEMA, Draft.D7),
    "minimum": Keyword(Shape.NUMBER),
    "maximum": Keyword(Shape.NUMBER),
    "exclusiveMinimum": Keyword(Shape.EXCLUSIVE),
    "exclusiveMaximum": Keyword(Shape.EXCLUSIVE),
    "multipleOf": Keyword(Shape.POSITIVE),
    "minLength": Keyword(Shape.COUNT),
    "maxLength": Keyword(Shape.COUNT),
    "pattern": Keyword(Shape.TEXT),
    "format": Keyword(Shape.TEXT),
    "items": Keyword(Shape.ITEMS),
    "prefixItems": Keyword(Shape.SCHEMAS_IF_ANY, Draft.D2020),
    "additionalItems": Keyword(Shape.FLAG_OR_SCHEMA, Draft.D4, Draft.D2019),
    "contains": Keyword(Shape.SCHEMA, Draft.D6),
    "minContains": Keyword(Shape.COUNT, Draft.D2019),
    "maxContains": Keyword(Shape.COUNT, Draft.D2019),
    "minItems": Keyword(Shape.COUNT),
    "maxItems": Keyword(Shape.COUNT),
    "uniqueItems": Keyword(Shape.FLAG),
    "unevaluatedItems": Keyword(Shape.SCHEMA, Draft.D2019),
    "properties": Keyword(Shape.SCHEMA_MAP),
    "patternProperties": Keyword(Shape.SCHEMA_MAP),
    "additionalProperties": Keyword(Shape.FLAG_OR_SCHEMA),
    "unevaluatedProperties": Keyword(Shape.SCHEMA, Draft.D2019),
    "propertyNames": Keyword(Shape.SCHEMA, Draft.D6),
    "required": Keyword(Shape.NAMES),
    "dependentRequired": Keyword(Shape.NAME_LISTS, Draft.D2019),
    "dependentSchemas": Keyword(Shape.SCHEMA_MAP, Draft.D2019),
    # Later drafts split it in two, but still describe its old meaning for compatibility.
    "dependencies": Keyword(Shape.DEPENDENCIES),
    "minProperties": Keyword(Shape.COUNT),
    "maxProperties": Keyword(Shape.COUNT),
}
"""Every keyword that decides what is valid or where a reference leads."""

_STRUCTURE: Final = frozenset(
    [
        *("$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"),
        *("$ref", "$dynamicRef", "$recursiveRef", "$defs", "definitions"),
        *("type", "allOf", "anyOf", "oneOf", "items", "prefixItems", "properties", "patternProperties"),
    ]
)
"""Keywords without which a schema is another one.

Without `properties`, for example, `additionalProperties` would be about every key.
"""

IGNORABLE: Final = tuple(keyword for keyword in KEYWORDS if keyword not in _STRUCTURE)
"""Keywords that users may leave out of a schema: they only narrow what the others describe."""

ANNOTATIONS: Final = frozenset(
    [
        *("$schema", "$comment", "$vocabulary", "title", "description", "default", "example", "examples"),
        *("deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType", "contentSchema"),
        # OpenAPI's: it names the key that tells branches apart, which say so themselves.
        "discriminator",
    ]
)
"""Keywords that never decide whether an instance is valid."""

_OF_SCHEMAS: Final = frozenset(
    [
        *(Shape.SCHEMA, Shape.FLAG_OR_SCHEMA, Shape.SCHEMAS, Shape.SCHEMAS_IF_ANY, Shape.SCHEMA_MAP),
        *(Shape.ITEMS, Shape.DEPENDENCIES),
    ]
)

TYPES: Final = frozenset(["null", "boolean", "integer", "number", "string", "array", "object"])


def pointer_to(pointer: str, *tokens: str | int) -> str:
    """A JSON pointer with more reference tokens (RFC 6901)."""
    return pointer + "".join("/" + str(token).replace("~", "~0").replace("/", "~1") for token in tokens)


def blamed(way: Sequence[str | int]) -> tuple[str, str | None]:
    """The pointer of the innermost schema on the way to a place in a schema, and the keyword there."""
    schema = 0
    while schema < len(way):
        shape = KEYWORDS[str(way[schema])].shape if way[schema] in KEYWORDS else Shape.VALUE
        inner = schema + (1 if shape in (Shape.SCHEMA, Shape.FLAG_OR_SCHEMA) else 2)
        if shape is Shape.ITEMS and inner - 1 < len(way) and isinstance(way[inner - 1], str):
            inner -= 1
        if shape not in _OF_SCHEMAS or inner >= len(way):
            return pointer_to("", *way[:schema]), str(way[schema])
        schema = inner
    return "", None


def check(keyword: str, value: object, draft: Draft, stated: bool, pointer: str) -> None:
    """Refuse a value that the keyword cannot have; `stated` says that the schema names its draft itself.

    Raises:
        Invalid: with the pointer of the schema and the keyword.
    """
    shape = KEYWORDS[keyword].shape
    problem = _problem(shape, value, draft, stated)
    if problem is None:
        return
    for token, part, inner in _parts(shape, value):
        if reason := _problem(inner, part, draft, stated):
            place = pointer_to(pointer, keyword, token)
            raise Invalid(reason + _instead(inner, part), pointer=place, keyword=keyword)
    hint = None
    if keyword == "required" and isinstance(value, bool):
        hint = "the object that has the property lists its name under required, or leaves it out"
    raise Invalid(problem + _instead(shape, value), pointer=pointer, keyword=keyword, hint=hint)


def ignored(keywords: Collection[str]) -> tuple[str, ...]:
    """The keywords that a user wants to be ignored, each once and in one order.

    Raises:
        Invalid: these are no keywords that can be ignored.
    """
    if isinstance(keywords, str | Mapping) or not isinstance(keywords, Collection):
        raise Invalid(f'ignore lists keywords, such as ["uniqueItems"]; it is not {_short(keywords)}')
    for keyword in keywords:
        if keyword not in IGNORABLE:
            raise _not_ignorable(keyword)
    return tuple(keyword for keyword in IGNORABLE if keyword in keywords)


def _not_ignorable(keyword: object) -> Invalid:
    known = f"there are {', '.join(IGNORABLE)}"
    if str(keyword) in KEYWORDS:
        return Invalid(f"ignore is for keywords that narrow a value, not for {keyword!r}", hint=known)
    near = get_close_matches(str(keyword), IGNORABLE, n=1)
    return Invalid(
        f"ignore: {_short(keyword)} is not a keyword that is enforced",
        hint=f"did you mean {near[0]!r}?" if near else known,
    )


def leave(keyword: str) -> str:
    """How to do without a keyword, as a hint."""
    return f'ignore=["{keyword}"] leaves it to you'


ELSEWHERE: Final = {"nullable": 'OpenAPI\'s; JSON Schema says "type": [..., "null"]'}
"""Keywords that schemas bring along from other languages, whose they are and what says the same here."""


def children(keyword: str, value: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """The schemas inside the value of a keyword, each with its path from the schema that has the keyword."""
    shape = KEYWORDS[keyword].shape
    if shape in (Shape.SCHEMA_MAP, Shape.DEPENDENCIES):
        for name, child in value.items():
            if not isinstance(child, list):
                yield (keyword, name), child
    elif isinstance(value, list) and shape in (Shape.SCHEMAS, Shape.SCHEMAS_IF_ANY, Shape.ITEMS):
        for index, child in enumerate(value):
            yield (keyword, index), child
    elif shape in (Shape.SCHEMA, Shape.ITEMS, Shape.FLAG_OR_SCHEMA):
        yield (keyword,), value


def nearest(word: str) -> str | None:
    """The keyword that is one edit away from an unknown word, if there is one."""
    edits = {word[:i] + word[i + 1 :] for i in range(len(word))}
    for keyword in KEYWORDS:
        if abs(len(keyword) - len(word)) <= 1 and min(len(keyword), len(word)) > 3:
            shorter = {keyword[:i] + keyword[i + 1 :] for i in range(len(keyword))}
            swapped = sorted(keyword) == sorted(word) and sum(map(str.__ne__, keyword, word)) == 2
            if keyword.lower() == word.lower() or swapped or keyword in edits or word in shorter:
                return keyword
            if len(keyword) == len(word) and sum(map(str.__ne__, keyword, word)) == 1:
                return keyword
    return None


def _problem(shape: Shape, value: object, draft: Draft, stated: bool) -> str | None:
    """What the value should be, or None if it is that."""
    match shape:
        case Shape.SCHEMA:
            return None if _is_schema(value, draft) else "must be a schema"
        case Shape.FLAG_OR_SCHEMA:
            return None if isinstance(value, bool | dict) else "must be a schema"
        case Shape.SCHEMAS:
            good = isinstance(value, list) and value and all(_is_schema(each, draft) for each in value)
            return None if good else "must be a list of one or more schemas"
        case Shape.SCHEMAS_IF_ANY:
            # Meta-schemas ask for one, but generators write none for an empty tuple, and that is clear.
            good = isinstance(value, list) and all(_is_schema(each, draft) for each in value)
            return None if good else "must be a list of schemas"
        case Shape.SCHEMA_MAP:
            good = isinstance(value, dict) and all(_is_schema(each, draft) for each in value.values())
            return None if good else "must map names to schemas"
        case Shape.ITEMS:
            if isinstance(value, list) and (draft < Draft.D2020 or not stated):
                return None if all(_is_schema(each, draft) for each in value) else "must list schemas"
            return None if _is_schema(value, draft) else "must be a schema"
        case Shape.DEPENDENCIES:
            good = isinstance(value, dict) and all(
                _is_schema(each, draft) or _is_names(each) for each in value.values()
            )
            return None if good else "must map names to schemas or to lists of names"
        case Shape.COUNT:
            good = is_number(value) and value == int(value) and value >= 0  # type: ignore[operator, call-overload]
            return None if good else "must be a non-negative integer"
        case Shape.NUMBER:
            return None if is_number(value) else "must be a number"
        case Shape.POSITIVE:
            return None if is_number(value) and value > 0 else "must be a number above 0"  # type: ignore[operator]
        case Shape.EXCLUSIVE:
            if isinstance(value, bool):
                return None if draft == Draft.D4 or not stated else "must be a number in this draft"
            return None if is_number(value) and draft > Draft.D4 else "must be true or false in this draft"
        case Shape.FLAG:
            return None if isinstance(value, bool) else "must be true or false"
        case Shape.TEXT:
            return None if isinstance(value, str) else "must be a string"
        case Shape.NAMES:
            return None if _is_names(value) else "must be a list of different strings"
        case Shape.NAME_LISTS:
            good = isinstance(value, dict) and all(_is_names(each) for each in value.values())
            return None if good else "must map names to lists of different strings"
        case Shape.TYPE:
            names = value if isinstance(value, list) else [value]
            good = bool(names) and all(map(_is_type, names))
            return None if good else f"must be one or more of {', '.join(sorted(TYPES))}"
        case Shape.VALUES:
            _check_numbers(value)
            return None if isinstance(value, list) else "must be a list"
        case Shape.VALUE:
            _check_numbers(value)
            return None


def _parts(shape: Shape, value: object) -> Iterator[tuple[str | int, object, Shape]]:
    """What must have a shape of its own in the value of a keyword, with its key or index."""
    if isinstance(value, dict) and shape in (Shape.SCHEMA_MAP, Shape.NAME_LISTS, Shape.DEPENDENCIES):
        for name, part in value.items():
            is_list = shape is Shape.NAME_LISTS or (shape is Shape.DEPENDENCIES and isinstance(part, list))
            yield name, part, Shape.NAMES if is_list else Shape.SCHEMA
    elif isinstance(value, list) and shape in (Shape.SCHEMAS, Shape.SCHEMAS_IF_ANY, Shape.ITEMS):
        yield from ((index, part, Shape.SCHEMA) for index, part in enumerate(value))


def _instead(shape: Shape, value: object) -> str:
    """What a value is that should be something else."""
    if shape is Shape.NAMES and isinstance(value, list):
        others = [each for each in value if not isinstance(each, str)]
        if others:
            return f", not one with {_short(others[0])} in it"
        twice = next(name for name, count in Counter(value).items() if count > 1)
        return f": {_short(twice)} is there twice"
    if shape is Shape.TYPE and isinstance(value, list) and value:
        return f", not {_short(next(each for each in value if not _is_type(each)))}"
    return f", not {_short(value)}"


def is_number(value: object) -> bool:
    """Whether a JSON value is a number, which true and false are not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if isinstance(value, float) and not math.isfinite(value):
        raise Unsupported(f"{value} is not a finite number")
    if isinstance(value, int) and value.bit_length() > DIGIT_BUDGET * math.log2(10):
        raise TooLarge(f"a number in the schema has more than {DIGIT_BUDGET} digits")
    return True


def _check_numbers(value: object) -> None:
    """Refuse a value with a number in it that is not finite or too long."""
    waiting = [value]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, dict):
            waiting.extend(inner.values())
        elif isinstance(inner, list):
            waiting.extend(inner)
        else:
            is_number(inner)


def _is_schema(value: object, draft: Draft) -> bool:
    return isinstance(value, dict) or (isinstance(value, bool) and draft > Draft.D4)


def _is_type(value: object) -> bool:
    return isinstance(value, str) and value in TYPES


def _is_names(value: object) -> bool:
    return (
        isinstance(value, list)
        and all(isinstance(each, str) for each in value)
        and len(set(value)) == len(value)
    )


def _short(value: object) -> str:
    if isinstance(value, list | dict):
        kind = "list" if isinstance(value, list) else "object"
        return f"an empty {kind}" if not value else "a list" if kind == "list" else "an object"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
