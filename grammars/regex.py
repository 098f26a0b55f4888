"""Regular expressions: pattern text -> the language of whole texts, over code points or in UTF-8."""

from __future__ import annotations

from typing import Final, Literal

from sortition.grammars.assertions import BEGIN, END, END_OR_LAST_NEWLINE, resolve
from sortition.grammars.cache import content_digest
from sortition.grammars.characters import ANY_CHARACTER, in_utf8
from sortition.grammars.errors import Unsatisfiable
from sortition.grammars.expr import (
    EMPTY,
    NOTHING,
    Alternative,
    Concat,
    Expr,
    Repeat,
    alternative,
    concat,
    one_of,
    repeat,
    star,
)
from sortition.grammars.grammar import Grammar
from sortition.grammars.regex_ecma import EcmaParser
from sortition.grammars.regex_python import PythonParser
from sortition.grammars.work import charge, metered

Dialect = Literal["python", "ecma"]

_ANY_TEXT: Final = star(one_of(ANY_CHARACTER))
CHARACTER_STEPS: Final = 12
"""Steps that a character of a pattern takes to be read."""

_SHOWN: Final = 60
"""Characters of a pattern that `repr` shows."""


def regex(pattern: str) -> Grammar:
    """The texts that a pattern in the syntax of Python's `re` matches from beginning to end.

    Raises:
        Invalid: not a pattern.
        Unsupported: backreferences to groups of many texts, conditions, lookaround in two directions at once.
        Unsatisfiable: no text matches.
        TooLarge: it takes too much work.
    """
    if not isinstance(pattern, str):
        raise TypeError(f"a pattern is a str, not {type(pattern).__name__}")
    with metered() as meter:
        expr = in_utf8(parse(pattern, "python"))
    shown = pattern if len(pattern) <= _SHOWN else pattern[:_SHOWN] + "…"
    if expr is NOTHING:
        raise Unsatisfiable(f"no text matches the pattern {shown!r}")
    return Grammar(expr, source=repr(shown), content=content_digest("regex", pattern), steps=meter.steps)


def parse(pattern: str, dialect: Dialect) -> Expr:
    """The texts of a pattern, as an expression over code points.

    "python" is a whole match of `re`; "ecma" a text in which a search by ECMA-262 finds something.

    Raises:
        Invalid: not a pattern of this dialect.
        Unsupported: conditions and other constructs that are not enforced.
        TooLarge: nested too deeply, or it takes too much work.
    """
    charge(CHARACTER_STEPS * len(pattern))
    if dialect == "python":
        return resolve(_texts(PythonParser(pattern).parse(), EMPTY, EMPTY))
    return resolve(_texts(EcmaParser(pattern).parse(), _ANY_TEXT, _ANY_TEXT))


def _texts(expr: Expr, before: Expr, after: Expr) -> Expr:
    """The pattern with what may surround it; an anchor at either end of a branch is spent here.

    This spares `resolve` the frequent cases. Branches with the same surroundings stay together.
    """
    branches: dict[tuple[Expr, Expr], list[Expr]] = {}
    for branch in expr.parts if isinstance(expr, Alternative) else (expr,):
        parts = list(branch.parts if isinstance(branch, Concat) else (branch,))
        left, right = before, after
        while parts and parts[0] is BEGIN:
            left, parts = EMPTY, parts[1:]
        while parts and (parts[-1] is END or (parts[-1] is END_OR_LAST_NEWLINE and after is EMPTY)):
            right, parts = EMPTY, parts[:-1]
        if left is _ANY_TEXT:
            _spend_repeats(parts, 0)
        if right is _ANY_TEXT:
            _spend_repeats(parts, -1)
        branches.setdefault((left, right), []).append(concat(*parts))
    return alternative(
        *(concat(left, alternative(*bodies), right) for (left, right), bodies in branches.items())
    )


def _spend_repeats(parts: list[Expr], edge: int) -> None:
    """Beside any text, a repeat need not go on beyond its lower bound: the text takes the rest."""
    while parts and isinstance(outer := parts[edge], Repeat):
        parts[edge] = repeat(outer.body, outer.low, outer.low)
        if parts[edge] is not EMPTY:
            return
        del parts[edge]
