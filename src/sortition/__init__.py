"""Sortition: decide which token a language model emits next.

    import sortition as so

    vocabulary = so.Vocabulary.of(tokenizer)
    table = so.json_schema(schema).compile(vocabulary)
    model.generate(**inputs, logits_processor=[so.hf(table)])

Every name is loaded when it is first used, so that importing this package imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sortition.grammars.choice import choice as choice
    from sortition.grammars.errors import GrammarError as GrammarError
    from sortition.grammars.errors import Invalid as Invalid
    from sortition.grammars.errors import TooLarge as TooLarge
    from sortition.grammars.errors import Unsatisfiable as Unsatisfiable
    from sortition.grammars.errors import Unsupported as Unsupported
    from sortition.grammars.grammar import Grammar as Grammar
    from sortition.grammars.json_schema import json_schema as json_schema
    from sortition.grammars.matcher import Matcher as Matcher
    from sortition.grammars.regex import regex as regex
    from sortition.grammars.table import Table as Table
    from sortition.grammars.vocabulary import Vocabulary as Vocabulary
    from sortition.integrations.errors import InputError as InputError
    from sortition.integrations.extract import Extraction as Extraction
    from sortition.integrations.extract import extract as extract
    from sortition.integrations.hf import hf as hf
    from sortition.integrations.request import request as request

__version__ = "0.1.0"

_HOME = {
    "Extraction": "integrations.extract",
    "Grammar": "grammars.grammar",
    "GrammarError": "grammars.errors",
    "InputError": "integrations.errors",
    "Invalid": "grammars.errors",
    "Matcher": "grammars.matcher",
    "Table": "grammars.table",
    "TooLarge": "grammars.errors",
    "Unsatisfiable": "grammars.errors",
    "Unsupported": "grammars.errors",
    "Vocabulary": "grammars.vocabulary",
    "choice": "grammars.choice",
    "extract": "integrations.extract",
    "hf": "integrations.hf",
    "json_schema": "grammars.json_schema",
    "regex": "grammars.regex",
    "request": "integrations.request",
}
"""Where each public name lives."""

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sortition' has no attribute {name!r}")
    value = getattr(import_module(f"sortition.{_HOME[name]}"), name)
    # Kept, so that the next use does not come here.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
