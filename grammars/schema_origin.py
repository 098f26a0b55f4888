"""Where in a schema a rule comes from, for errors that are found long after the schema was read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor
from typing import Final, Literal, TypeAlias

from sortition.grammars.errors import GrammarError, TooLarge, Unsatisfiable
from sortition.grammars.schema_document import NO_VALUES, Schema
from sortition.grammars.schema_facts import Negation, Terms, exact
from sortition.grammars.schema_keywords import is_number

Kind: TypeAlias = Literal["number", "string", "array", "object"]

CHOOSING: Final = (
    *("$ref", "anyOf", "oneOf", "allOf", "not", "if", "enum"),
    *("dependentSchemas", "dependencies"),
)
"""Keywords that make a choice between schemas."""

COSTLY: Final[dict[Kind, tuple[str, ...]]] = {
    "number": ("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum", "const"),
    "string": ("pattern", "maxLength", "minLength", "format", "enum", "const"),
    "array": ("maxItems", "minItems", "prefixItems", "contains", "items"),
    "object": (
        *("properties", "patternProperties", "minProperties", "maxProperties", "required"),
        *("propertyNames", "additionalProperties"),
    ),
}
"""Keywords that make a rule large, the likeliest first."""

BOUNDS: Final = {
    "string": (("minLength", "maxLength"),),
    "array": (("minItems", "maxItems"), ("minContains", "maxContains")),
    "object": (("minProperties", "maxProperties"),),
}
"""Lower and upper bounds of the values of a type."""

_KINDS: Final[dict[str, Kind]] = {
    **{"number": "number", "integer": "number"},
    **{"string": "string", "array": "array", "object": "object"},
}

NO_VALUE: Final = "no value can be valid here"


@dataclass(frozen=True, slots=True)
class Origin:
    """A pointer into the schema, the keyword there that is most to blame, if any, and what stands there."""

    pointer: str
    keyword: str | None
    schema: Schema | None = field(default=None, compare=False, repr=False)

    @staticmethod
    def of(terms: Terms, kind: Kind | None = None) -> Origin:
        """The origin of terms: where the first schema stands that has a costly keyword of the kind."""
        found = [term.of if isinstance(term, Negation) else term for term in terms]
        schemas = [schema for schema in found if isinstance(schema, Schema)]
        kinds = [kind] if kind else [_KINDS[name] for name in map(_type, schemas) if name in _KINDS]
        costly = [keyword for each in kinds for keyword in COSTLY[each]]
        for keyword in (*costly, *CHOOSING, "type") if kind else (*CHOOSING, *costly, "type"):
            for schema in schemas:
                if keyword in schema.keywords:
                    is_false = schema.keywords[keyword] is NO_VALUES
                    return Origin(schema.pointer, "false" if is_false else keyword, schema)
        if not schemas:
            return Origin("", None)
        return Origin(schemas[0].pointer, next(iter(schemas[0].keywords), None), schemas[0])

    def error(self, kind: type[GrammarError], reason: str, hint: str | None = None) -> GrammarError:
        """An error there."""
        return kind(reason, pointer=self.pointer, keyword=self.keyword, hint=hint)


@contextmanager
def placed(terms: Terms, kind: Kind | None = "string") -> Iterator[None]:
    """An error without a place is given that of the terms."""
    try:
        yield
    except GrammarError as error:
        if error.pointer is not None:
            raise
        origin = Origin.of(terms, kind)
        keyword = error.keyword or origin.keyword
        raise type(error)(error.reason, pointer=origin.pointer, keyword=keyword, hint=error.hint) from None


@contextmanager
def too_large_at(origin: Origin) -> Iterator[None]:
    """An error of size without a place is given this one."""
    try:
        yield
    except TooLarge as error:
        if error.pointer is not None:
            raise
        keyword = error.keyword or origin.keyword
        raise TooLarge(error.reason, pointer=origin.pointer, keyword=keyword, hint=error.hint) from None


def crossed(terms: Terms) -> GrammarError | None:
    """The error for terms without values, if the cause is that bounds of one schema leave nothing."""
    for schema in terms:
        if not isinstance(schema, Schema):
            continue
        kind, keywords = _type(schema), schema.keywords
        for low, high in BOUNDS.get(kind, ()):
            if low in keywords and keywords[low] > keywords.get(high, math.inf):
                return schema.error(Unsatisfiable, low, f"{NO_VALUE}: it is more than {high!r}")
        if kind == "object" and len(keywords.get("required", ())) > keywords.get("maxProperties", math.inf):
            reason = f"{NO_VALUE}: more keys than that are required"
            return schema.error(Unsatisfiable, "maxProperties", reason)
        if _KINDS.get(kind) == "number" and (found := _crossed_numbers(schema, kind)):
            return found
    return None


def _crossed_numbers(schema: Schema, kind: str) -> GrammarError | None:
    keywords = schema.keywords
    lows, highs = (
        [each for each in names if is_number(keywords.get(each))]
        for names in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))
    )
    if not lows or not highs:
        return None
    # The tighter of two bounds is to blame, of equal ones the exclusive one.
    low, high = max(lows, key=lambda each: keywords[each]), min(highs, key=lambda each: keywords[each])
    least, most = exact(keywords[low]), exact(keywords[high])
    if least > most:
        return schema.error(Unsatisfiable, low, f"{NO_VALUE}: it is more than {high!r}")
    above = low == "exclusiveMinimum" or keywords.get("exclusiveMinimum") is True
    below = high == "exclusiveMaximum" or keywords.get("exclusiveMaximum") is True
    step = exact(keywords["multipleOf"]) if "multipleOf" in keywords else None
    if kind == "integer":
        # The multiples of p/q that are integers are those of p.
        step = Fraction(1 if step is None else step.numerator)
    if step is None:
        is_empty = least == most and (above or below)
    else:
        first, last = ceil(least / step), floor(most / step)
        first += above and first * step == least
        last -= below and last * step == most
        is_empty = first > last
    if not is_empty:
        return None
    blamed, what = ("multipleOf", "multiple of it") if "multipleOf" in keywords else (low, kind)
    return schema.error(Unsatisfiable, blamed, f"{NO_VALUE}: no {what} is between {low!r} and {high!r}")


def _type(schema: Schema) -> str:
    """The one type of a schema, empty if it allows several."""
    name = schema.keywords.get("type")
    return name if isinstance(name, str) else ""
