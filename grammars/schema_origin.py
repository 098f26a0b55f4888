"""Where in a schema a rule comes from, for errors that are found long after the schema was read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from sortition.grammars.errors import GrammarError, Unsatisfiable
from sortition.grammars.schema_document import NO_VALUES, Schema
from sortition.grammars.schema_facts import Negation, Terms

Kind: TypeAlias = Literal["number", "string", "array", "object"]

CHOOSING: Final = (
    *("$ref", "anyOf", "oneOf", "allOf", "not", "if", "enum"),
    *("dependentSchemas", "dependencies"),
)
"""Keywords that make a choice between schemas."""

COSTLY: Final[dict[Kind, tuple[str, ...]]] = {
    "number": ("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum"),
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
    "number": (("minimum", "maximum"),),
    "integer": (("minimum", "maximum"),),
}
"""Lower and upper bounds of the values of a type."""

NO_VALUE: Final = "no value can be valid here"


@dataclass(frozen=True, slots=True)
class Origin:
    """A pointer into the schema, and the keyword there that is most to blame, if any."""

    pointer: str
    keyword: str | None

    @staticmethod
    def of(terms: Terms, kind: Kind | None = None) -> Origin:
        """The origin of terms: where the first schema stands that has a costly keyword of the kind."""
        found = [term.of if isinstance(term, Negation) else term for term in terms]
        schemas = [schema for schema in found if isinstance(schema, Schema)]
        costly = COSTLY[kind] if kind else ()
        for keyword in (*costly, *CHOOSING, "type"):
            for schema in schemas:
                if keyword in schema.keywords:
                    is_false = schema.keywords[keyword] is NO_VALUES
                    return Origin(schema.pointer, "false" if is_false else keyword)
        if not schemas:
            return Origin("", None)
        return Origin(schemas[0].pointer, next(iter(schemas[0].keywords), None))

    def error(self, kind: type[GrammarError], reason: str, hint: str | None = None) -> GrammarError:
        """An error there."""
        return kind(reason, pointer=self.pointer, keyword=self.keyword, hint=hint)


def crossed(terms: Terms) -> GrammarError | None:
    """The error for terms without values, if the cause is a lower bound above the upper one."""
    for schema in terms:
        if not isinstance(schema, Schema):
            continue
        for low, high in BOUNDS.get(str(schema.keywords.get("type")), ()):
            if low in schema.keywords and schema.keywords[low] > schema.keywords.get(high, math.inf):
                return schema.error(Unsatisfiable, low, f"{NO_VALUE}: it is more than {high!r}")
    return None
