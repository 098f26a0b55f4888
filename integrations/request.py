"""What a request to an engine says about its grammar, as plain values that cross processes and HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

FIELD: Final = "sortition"
"""The key of a request's extra arguments that is ours."""


def request(
    *,
    json_schema: Any = None,
    regex: str | None = None,
    choice: Iterable[str] | None = None,
    whitespace: str | None = None,
    as_text: bool = False,
) -> dict[str, Any]:
    """The extra arguments of a request that is to follow a grammar.

    They go into ``SamplingParams(extra_args=...)`` of vLLM, or with ``as_text=True`` into the body's
    ``vllm_xargs`` over HTTP, where only flat values pass. The server says whether it likes what they say.

    Args:
        json_schema: a dict, true or false, JSON text, or a class with `model_json_schema` (pydantic).
        regex: a pattern in the syntax of `re`, to match the whole text.
        choice: the texts to choose from.
        whitespace: of JSON, as in `json_schema`.
        as_text: give the fields as one JSON text.

    Raises:
        ValueError: not exactly one grammar, or whitespace for a grammar that is not JSON.
        TypeError: a schema that is not JSON.
    """
    if hasattr(json_schema, "model_json_schema"):
        json_schema = json_schema.model_json_schema()
    grammars = {
        "json_schema": json_schema,
        "regex": regex,
        "choice": choice if choice is None or isinstance(choice, str) else list(choice),
    }
    fields = {name: value for name, value in grammars.items() if value is not None}
    if len(fields) != 1:
        raise ValueError(f"a request has exactly one of {', '.join(grammars)}, not {len(fields)} of them")
    if whitespace is not None:
        if json_schema is None:
            raise ValueError("whitespace is a choice for json_schema alone")
        fields["whitespace"] = whitespace
    text = json.dumps(fields)
    return {FIELD: text if as_text else fields}
