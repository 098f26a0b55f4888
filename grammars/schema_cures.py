"""What is known to help where a schema is too large."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sortition.grammars.schema_document import Document, Schema
from sortition.grammars.schema_origin import Origin

REQUIRED: Final = 14
"""Keys of an object that may have to be there in any order."""

BRANCHES: Final = range(2, 101)
"""How many objects to choose from are too much if they are open or nothing tells them apart, and else not."""

OTHERWISE_LARGE: Final = ("minProperties", "maxProperties", "unevaluatedProperties")
"""Keywords that make objects to choose from large whether they are open or closed."""

CLOSE: Final = 'objects to choose from cost less with additionalProperties: false (pydantic: extra="forbid")'
TAG: Final = "objects that exclude each other cost little with a required tag"
FIXED_ORDER: Final = "without any_order, more keys may have to be there"


def cures(document: Document, origins: Iterable[Origin], any_order: bool) -> dict[Origin, str]:
    """What makes the schemas of these origins cheaper, where something is known to."""
    schemas = {each: document.reached(each.schema) for each in origins if each.schema is not None}
    # Looked at once each: many places may refer to one and the same schema.
    found = {schema: _cure(document, schema, any_order) for schema in set(schemas.values())}
    return {origin: hint for origin, schema in schemas.items() if (hint := found[schema]) is not None}


def _cure(document: Document, schema: Schema, any_order: bool) -> str | None:
    for keyword in ("anyOf", "oneOf"):
        choices = [document.reached(child) for path, child in schema.children.items() if path[0] == keyword]
        objects = [choice.keywords for choice in choices if "properties" in choice.keywords]
        if len(objects) not in BRANCHES or not schema.keywords.keys().isdisjoint(OTHERWISE_LARGE):
            continue
        if keyword == "oneOf" and not all("required" in each for each in objects):
            return TAG
        if any(each.get("additionalProperties") is not False for each in objects):
            return CLOSE
    required = max(len(schema.keywords.get("required", ())), schema.keywords.get("minProperties", 0))
    return FIXED_ORDER if any_order and required > REQUIRED else None
