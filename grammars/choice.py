"""Choice: one of several given texts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sortition.grammars.cache import content_digest
from sortition.grammars.errors import Invalid, Unsatisfiable
from sortition.grammars.expr import alternative, literal
from sortition.grammars.grammar import Grammar

_SHOWN: Final = 60
"""Characters of the options that `repr` shows."""


def choice(options: Iterable[str]) -> Grammar:
    """Exactly one of these texts, in UTF-8. An option may be empty, and may be given twice.

    Raises:
        TypeError: an option is not a str, or the options are themselves a str or nothing that lists them.
        Invalid: an option has lone surrogates, so that it is not a text.
        Unsatisfiable: there are no options.
    """
    if isinstance(options, str):
        raise TypeError("the options are a list of texts, not one text")
    if not isinstance(options, Iterable):
        raise TypeError(f"the options are a list of texts, not {type(options).__name__}")
    texts = list(options)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"an option is a str, not {type(text).__name__}")
    if not texts:
        raise Unsatisfiable("there are no options to choose from")
    try:
        words = dict.fromkeys(text.encode() for text in texts)
    except UnicodeEncodeError as error:
        raise Invalid(f"the option {error.object!r} has a lone surrogate, which no text has") from None
    shown = ", ".join(map(repr, texts))
    source = f"choice({shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '…'})"
    content = content_digest("choice", *words)
    return Grammar(alternative(*map(literal, words)), source=source, content=content)
