"""Judgement: what a model wrote for a document becomes a record, which is "ok" only if its value is valid."""

from __future__ import annotations

from typing import Any

from sortition.grammars.grammar import Grammar
from sortition.integrations.documents import Document
from sortition.integrations.generation import Completion
from sortition.integrations.records import Record, Status
from sortition.integrations.validation import Check, first_json, parse_json


def judged(
    document: Document, index: int, completion: Completion, grammar: Grammar | None, check: Check | None
) -> Record:
    """The record of a document.

    Args:
        document: what was read.
        index: its number among all documents.
        completion: what the model wrote.
        grammar: what it was held to, or None where it wrote what it liked.
        check: what judges values; without one the grammar does.
    """
    status, value, error = _judge(completion, grammar, check)
    return Record(
        id=document.id,
        index=index,
        value=value,
        text=None if status in ("ok", "error") else completion.text,
        status=status,
        error=error,
        prompt_tokens=completion.prompt_tokens,
        completion_tokens=completion.completion_tokens,
        seconds=completion.seconds,
    )


def _judge(
    completion: Completion, grammar: Grammar | None, check: Check | None
) -> tuple[Status, Any, str | None]:
    """The status of a completion, its value if that is valid, and what is wrong otherwise."""
    if completion.error is not None:
        return "error", None, completion.error
    cut = f"cut off after {completion.completion_tokens} tokens"
    try:
        value = parse_json(completion.text) if grammar is not None else first_json(completion.text)
    except ValueError as problem:
        if not completion.ended:
            return "truncated", None, cut
        return "invalid", None, f"not JSON: {problem}"
    # Every other value shows its own end; a number might have gone on.
    if not completion.ended and isinstance(value, int | float) and not isinstance(value, bool):
        return "truncated", None, cut
    if check is not None:
        wrong = check(value)
    else:
        # Without a validator the grammar judges, by its slow walk over the bytes.
        accepted = grammar is not None and grammar.accepts(completion.text)
        wrong = None if accepted else "not valid under the schema"
    return ("ok", value, None) if wrong is None else ("invalid", None, wrong)
