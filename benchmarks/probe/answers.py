"""Finding the answer in a completion, in the way that a user names."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Final

from sortition.benchmarks.probe.agreement import Parser
from sortition.integrations.errors import InputError

FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""How a function is named; a regular expression that looks like it can be put in brackets."""


def answer_parser(named: str) -> Parser:
    """A parser by name: "module:function", or a regular expression.

    A function gets the completion and gives anything that can be compared and hashed; modules are also
    looked for in the current folder. A regular expression gives its first group where it has one, else what
    it matches, of the first match; None where nothing matches.

    Raises:
        InputError: there is no such function, or it is not a regular expression.
    """
    return _function(named) if FUNCTION.fullmatch(named) else _expression(named)


def _expression(text: str) -> Parser:
    try:
        expression = re.compile(text)
    except re.error as problem:
        raise InputError(f"{text!r} is no regular expression: {problem}") from None

    def parse(completion: str) -> Hashable:
        match = expression.search(completion)
        return None if match is None else match.group(1 if expression.groups else 0)

    return parse


def _function(named: str) -> Parser:
    module_name, _, name = named.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        function: Callable[[str], Any] = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as problem:
        raise InputError(f"cannot find the function {named}: {problem}") from None
    if not callable(function):
        raise InputError(f"{named} is no function")

    def parse(completion: str) -> Hashable:
        try:
            answer: Hashable = function(completion)
            hash(answer)
        except Exception as problem:
            said = f"{type(problem).__name__}: {problem}"
            raise InputError(f"{named} fails on the completion {completion[:80]!r}: {said}") from problem
        return answer

    return parse
