"""What is known to help where a schema is too large."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sortition.grammars.schema_document import Document, Schema
from sortition.grammars.schema_origin import Origin

OPTIONAL: Final = range(100, 1_001)
"""How many optional keys of an object are too much for an order (some 200 are), and not for any order."""

REQUIRED: Final = 14
"""Keys of an object that may have to be there in any order."""

BRANCHES: Final = range(2, 101)
"""How many open objects to choose from are too much, and closed ones are not."""

OTHERWISE_LARGE: Final = ("minProperties", "maxProperties", "unevaluatedProperties")
"""Keywords that make objects to choose from large whether they are open or closed."""

CLOSE: Final = (
    'objects to choose from cost little with additionalProperties: false (pydantic: extra="forbid"), or '
    "with a required tag as their first key"
)
FREE_ORDER: Final = "with any_order, up to a thousand keys may be optional"
FIXED_ORDER: Final = "without any_order, more keys may have to be there"


def cures(document: Document, origins: Iterable[Origin], any_order: bool) -> dict[Origin, str]:
    """What makes the schemas of these origins cheaper, where something is known to."""
    schemas = {each: document.reached(each.schema) for each in origins if each.schema is not None}
    # Looked at once each: many places may refer to one and the same schema.
    found = {schema: _cure(document, schema, any_order) for schema in set(schemas.values())}
    return {origin: hint for origin, schema in schemas.items() if (hint := found[schema]) is not None}


def _cure(document: Document, schema: Schema, any_order: bool) -> str | None:
    choices = [child for path, child in schema.children.items() if path[0] in ("anyOf", "oneOf")]
    opened = sum(_is_open_object(document.reached(choice)) for choice in choices)
    if opened in BRANCHES and schema.keywords.keys().isdisjoint(OTHERWISE_LARGE):
        return CLOSE
    properties, required = schema.keywords.get("properties", {}), schema.keywords.get("required", ())
    if any_order:
        needed = max(len(required), schema.keywords.get("minProperties", 0))
        return FIXED_ORDER if needed > REQUIRED else None
    return FREE_ORDER if len(properties.keys() - set(required)) in OPTIONAL else None


def _is_open_object(schema: Schema) -> bool:
    return "properties" in schema.keywords and schema.keywords.get("additionalProperties") is not False
