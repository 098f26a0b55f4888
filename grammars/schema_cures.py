"""What is known to help where a schema is too large."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sortition.grammars.schema_document import Document, Schema
from sortition.grammars.schema_origin import Origin

IN_ORDER: Final = 100
"""Optional keys of an object from which on their order is what is large: some 200 are too much."""

IN_ANY_ORDER: Final = 14
"""Keys of an object that may have to be there in any order."""

COUNTING: Final = ("minProperties", "maxProperties")
"""Keywords whose numbers are what is large, whatever there is to choose from."""

CLOSE: Final = (
    'objects to choose from cost little with additionalProperties: false (pydantic: extra="forbid"), or '
    "with a required tag as their first key"
)
FREE_ORDER: Final = "with any_order, thousands of keys may be optional"
FIXED_ORDER: Final = "without any_order, more keys may have to be there"


def cures(document: Document, origins: Iterable[Origin], any_order: bool) -> dict[Origin, str]:
    """What makes the schemas of these origins cheaper, where something is known to."""
    wanted = {
        origin: (document.reached(origin.schema), origin.keyword in COUNTING)
        for origin in origins
        if origin.schema is not None
    }
    # Looked at once each: many places may refer to one and the same schema.
    found = {each: _cure(document, *each, any_order) for each in set(wanted.values())}
    return {origin: hint for origin, each in wanted.items() if (hint := found[each]) is not None}


def _cure(document: Document, schema: Schema, counts: bool, any_order: bool) -> str | None:
    choices = [child for path, child in schema.children.items() if path[0] in ("anyOf", "oneOf")]
    if not counts and sum(_is_open_object(document.reached(choice)) for choice in choices) > 1:
        return CLOSE
    properties, required = schema.keywords.get("properties", {}), schema.keywords.get("required", ())
    if any_order:
        needed = max(len(required), schema.keywords.get("minProperties", 0))
        return FIXED_ORDER if needed > IN_ANY_ORDER else None
    return FREE_ORDER if len(properties.keys() - set(required)) > IN_ORDER else None


def _is_open_object(schema: Schema) -> bool:
    return "properties" in schema.keywords and schema.keywords.get("additionalProperties") is not False
