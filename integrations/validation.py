"""The second opinion on a value: the `jsonschema` library, where it is installed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from typing import Any, TypeAlias

from sortition.integrations.errors import InputError

Check: TypeAlias = Callable[[Any], str | None]
"""What is wrong with a value, or None."""

LONGEST_MESSAGE = 300
"""Characters of a validator's message that are kept: it repeats the value, which may be long."""


def validator(schema: Any, formats: str = "assert") -> Check | None:
    """A check of values against the schema, or None where jsonschema is not installed.

    Args:
        schema: the JSON value of the schema.
        formats: ``"assert"``, or ``"annotate"`` to ignore `format`.

    Raises:
        InputError: the schema is not a JSON Schema, or there is no such choice of formats.
    """
    if formats not in ("assert", "annotate"):
        raise InputError(f"formats must be 'assert' or 'annotate', not {formats!r}")
    try:
        from jsonschema import SchemaError, ValidationError
        from jsonschema.exceptions import best_match
        from jsonschema.validators import Draft202012Validator, extend, validator_for
        from referencing.jsonschema import EMPTY_REGISTRY
    except ImportError:
        return None

    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as problem:
        pointer = "/".join(["", *map(str, problem.absolute_path)])
        raise InputError(f"not a JSON Schema: at {pointer or 'the root'}: {problem.message}") from None

    def multiple_of(_: Any, divisor: Any, value: Any, __: Any) -> Iterator[ValidationError]:
        if not _is_multiple(value, divisor):
            yield ValidationError(f"{value!r} is not a multiple of {divisor!r}")

    judge = extend(kind, {"multipleOf": multiple_of})
    # A registry of our own: the library's default one would fetch what a `$ref` names.
    format_checker = kind.FORMAT_CHECKER if formats == "assert" else None
    checker = judge(schema, registry=EMPTY_REGISTRY, format_checker=format_checker)

    def check(value: Any) -> str | None:
        error = best_match(checker.iter_errors(value))
        if error is None:
            return None
        place = error.json_path
        return f"{place}: {error.message}"[:LONGEST_MESSAGE]

    return check


def _is_multiple(value: Any, divisor: float) -> bool:
    """Whether a number is a multiple, both taken as the decimals that they are written as.

    The library divides floats, for which 17.79 is not a multiple of 0.01.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    return math.isfinite(value) and Fraction(repr(value)) % Fraction(repr(divisor)) == 0


def parse_json(text: str) -> Any:
    """The value of a JSON text, read strictly.

    Raises:
        ValueError: it is not JSON. ``NaN`` and ``Infinity`` are not, and neither is what no parser can hold.
    """
    return _guarded(lambda: _DECODER.decode(text))


def first_json(text: str) -> Any:
    """The value of a JSON text, or of the first object or array in it, whatever is written around that.

    Raises:
        ValueError: there is none.
    """
    with suppress(ValueError):
        return parse_json(text)
    start = next((index for index, character in enumerate(text) if character in "{["), None)
    if start is None:
        raise ValueError("no JSON object or array in the text")
    return _guarded(lambda: _DECODER.raw_decode(text, start)[0])


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _guarded(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except RecursionError:
        raise ValueError("nested too deeply to be read") from None
