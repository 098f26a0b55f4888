"""The contents of a schema: what was given, as a JSON value that later stages may go through without care.

Everything here is iterative, so that no depth of nesting can exhaust the stack.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Final

from sortition.grammars.errors import GrammarError, Invalid, TooLarge, Unsupported
from sortition.grammars.schema_keywords import blamed
from sortition.grammars.work import meter

DEPTH_BUDGET: Final = 400
"""Levels of nesting in a schema; the deepest of 6,798 public schemas has 48."""

VALUE_STEPS: Final = 4
"""Steps that each value of a schema takes to be read."""

CHARACTERS_PER_STEP: Final = 16
"""Characters of a schema that are read in one step."""

BITS: Final = 14_000
"""Bits of an integer anywhere in a schema: Python writes no longer ones."""

OBJECT_STEPS: Final = 26
"""Steps that each object of a schema takes to be read, as it may be a schema: 49,206 small ones, in 70,000
objects, took some 1.1 s. Charged before any is read, so that what is too long is refused soon."""

SCHEMAS: Final = (
    "give a dict, JSON text or a pydantic class; for other types, pydantic.TypeAdapter(...).json_schema()"
)
"""What may be given as a schema, for whoever gave something else."""


def contents_of(schema: Any) -> Any:
    """The JSON value of a schema that is given as such, as JSON text or as a pydantic class.

    Raises:
        Invalid: it is none of these.
        Unsupported: it has a number that no float can hold.
    """
    if isinstance(schema, str):
        try:
            return json.loads(schema, parse_float=_read_float)
        except GrammarError:
            raise
        except ValueError as error:
            raise Invalid(
                f"not JSON: {error}", hint="a text is the schema itself, not a file's name"
            ) from None
    if isinstance(schema, type) and hasattr(schema, "model_json_schema"):
        return schema.model_json_schema()
    if schema is not None and not isinstance(schema, dict | list | bool | int | float):
        raise Invalid(f"a {type(schema).__name__} is not a JSON Schema", hint=SCHEMAS)
    return schema


def _read_float(text: str) -> float:
    """A number as Python reads it, which must not make it infinite, or 0 of what is not."""
    value = float(text)
    if math.isinf(value) or (value == 0 and re.search("[1-9]", re.split("[eE]", text)[0])):
        raise Unsupported(
            f"the number {text} in the schema is beyond what Python's floats can hold", pointer=""
        )
    return value


def checked_keys(contents: object) -> Set[str]:
    """The keys of all objects in a JSON value.

    A container that stands at several places costs as much as if it were written there: every later stage
    may go through it again.

    Raises:
        Invalid: it is not JSON, or contains itself.
        TooLarge: it is too deep or too large.
    """
    at = _Place()
    try:
        return _checked_keys(contents, at)
    except (Invalid, TooLarge) as error:
        pointer, keyword = at.origin()
        raise type(error)(error.reason, pointer=pointer, keyword=keyword, hint=error.hint) from None


@dataclass(slots=True)
class _Place:
    """Where reading has come to: the keys and indices on the way, the last one first."""

    tokens: tuple[str | int, Any] | None = None

    def origin(self) -> tuple[str, str | None]:
        """The pointer of the innermost schema there, and the keyword in it."""
        way: list[str | int] = []
        tokens = self.tokens
        while tokens is not None:
            way.insert(0, tokens[0])
            tokens = tokens[1]
        return blamed(way)


def _checked_keys(contents: object, at: _Place) -> Set[str]:
    spent = meter()
    keys: set[str] = set()
    # The steps for each container, and where those that are open began.
    finished: dict[int, int] = {}
    open_containers: set[int] = set()
    waiting: list[tuple[Any, int, int | None, Any]] = [(contents, 0, None, None)]
    while waiting:
        value, depth, before, at.tokens = waiting.pop()
        if before is not None:
            open_containers.discard(id(value))
            finished[id(value)] = spent.steps - before
        elif isinstance(value, dict | list):
            if id(value) in open_containers:
                raise Invalid("the schema contains itself", hint="use $ref")
            if id(value) in finished:
                spent.charge(finished[id(value)])
                continue
            if depth > DEPTH_BUDGET:
                raise TooLarge(f"the schema nests more than {DEPTH_BUDGET} levels deep")
            open_containers.add(id(value))
            waiting.append((value, depth, spent.steps, at.tokens))
            spent.charge(VALUE_STEPS * (1 + len(value)))
            if isinstance(value, dict):
                spent.charge(OBJECT_STEPS)
                if not all(isinstance(key, str) for key in value):
                    raise Invalid("the keys of a schema are strings")
                keys.update(value)
                spent.charge(sum(map(len, value)) // CHARACTERS_PER_STEP)
            inner = value.items() if isinstance(value, dict) else enumerate(value)
            waiting.extend([(each, depth + 1, None, (token, at.tokens)) for token, each in inner])
        elif isinstance(value, str):
            spent.charge(len(value) // CHARACTERS_PER_STEP)
        elif isinstance(value, int):
            if value.bit_length() > BITS:
                raise TooLarge(f"the schema has a number of more than {BITS:,} bits")
        elif not (value is None or isinstance(value, float)):
            raise Invalid(f"a {type(value).__name__} is not a JSON value")
    return keys
