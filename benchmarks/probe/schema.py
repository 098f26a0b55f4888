"""The JSON Schema of what `sortition probe --output` writes: ``python -m sortition.benchmarks.probe.schema``.

It is made from `findings.py`, types and words alike; `findings.schema.json` beside it is what it was when it
was last made.
"""

from __future__ import annotations

import inspect
import json
import re
import types
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from sortition.benchmarks.probe.findings import SCHEMA, Findings

FILE: Final = Path(__file__).with_name("findings.schema.json")

PLAIN: Final[dict[Any, dict[str, Any]]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    Any: {},
}


def schema() -> dict[str, Any]:
    """Of `Findings`, in draft 2020-12."""
    definitions: dict[str, Any] = {}
    whole = _object(Findings, definitions)
    whole["properties"]["schema"] = {"const": SCHEMA, "description": "the version of this schema"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Findings of sortition probe, version {SCHEMA}",
        **whole,
        "$defs": dict(sorted(definitions.items())),
    }


def _object(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    hints, words = get_type_hints(kind), _words(kind)
    properties = {}
    for each in fields(kind):
        described = {"description": words[each.name]} if each.name in words else {}
        properties[each.name] = {**_of(hints[each.name], definitions), **described}
    return {
        "type": "object",
        "description": (inspect.getdoc(kind) or "").splitlines()[0],
        "properties": properties,
        "required": [each.name for each in fields(kind)],
        "additionalProperties": False,
    }


def _of(wanted: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if is_dataclass(wanted) and isinstance(wanted, type):
        if wanted.__name__ not in definitions:
            definitions[wanted.__name__] = {}
            definitions[wanted.__name__] = _object(wanted, definitions)
        return {"$ref": f"#/$defs/{wanted.__name__}"}
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is tuple:
        return {"type": "array", "items": _of(inner[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of(inner[1], definitions)}
    if origin in (Union, types.UnionType):
        return {
            "anyOf": [
                {"type": "null"} if each is types.NoneType else _of(each, definitions) for each in inner
            ]
        }
    return PLAIN[wanted]


def _words(kind: type) -> dict[str, str]:
    """What the docstring says of each attribute."""
    _, _, said = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    words = {}
    for entry in re.split(r"\n(?=    \w)", f"\n{said}"):
        names, colon, text = entry.strip().partition(": ")
        if colon:
            words.update({name: " ".join(text.split()) for name in names.split(", ")})
    return words


def text() -> str:
    """The file."""
    return json.dumps(schema(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
