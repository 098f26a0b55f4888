"""The schema of a job: a JSON value, its text, its file or a pydantic class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sortition.grammars.schema_contents import SCHEMAS, checked_keys
from sortition.integrations.documents import read_text
from sortition.integrations.errors import InputError
from sortition.integrations.validation import parse_json


def read_schema(schema: Any) -> Any:
    """The JSON value of a schema that is given as such, as JSON text, as a `Path` or as a pydantic class.

    Raises:
        InputError: it is none of these.
        GrammarError: it holds what is no JSON value, at a place that the message names.
    """
    if isinstance(schema, type) and hasattr(schema, "model_json_schema"):
        return schema.model_json_schema()
    where, hint = "the schema", ""
    if isinstance(schema, Path):
        where, schema = str(schema), read_text(schema)
    elif isinstance(schema, str):
        hint = "; a text is the schema itself, and a file is given as a Path"
    elif schema is not None and not isinstance(schema, dict | list | bool | int | float):
        raise InputError(f"a {type(schema).__name__} is not a JSON Schema: {SCHEMAS}")
    else:
        # Writing it as JSON would turn keys that are no strings into strings.
        checked_keys(schema)
    try:
        value = parse_json(schema if isinstance(schema, str) else json.dumps(schema))
    except json.JSONDecodeError as problem:
        place = f"line {problem.lineno}, column {problem.colno}"
        raise InputError(f"{where} is not JSON: {problem.msg} ({place}){hint}") from None
    except (TypeError, ValueError) as problem:
        raise InputError(f"{where} is not JSON: {problem}{hint}") from None
    if not isinstance(value, dict | bool):
        raise InputError(f"{where} has to be an object, true or false")
    return value
