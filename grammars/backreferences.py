"""Backreferences to groups of few texts: what follows a group is written once for each of its texts.

No automaton remembers what a group has matched. But where a group is a part of the same sequence as all that
refers to it, it has matched exactly once when that is reached, and each of its texts gives a pattern without
backreferences. What refers to groups inside other groups, choices or repeats is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from sortition.grammars.assertions import numbers
from sortition.grammars.errors import Unsupported
from sortition.grammars.expr import (
    EMPTY,
    Alternative,
    Class,
    Concat,
    Expr,
    Graph,
    Literal,
    Repeat,
    alternative,
    concat,
    literal,
    repeat,
)
from sortition.grammars.lookaround import Look
from sortition.grammars.work import charge

FEW_TEXTS: Final = 100
"""Texts of a group up to which it may be referred to: letters, quotes, names of tags."""

TEXT_STEPS: Final = 10
"""Steps that each text of a part of a group takes, and each part of a pattern that is written."""

_Text: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Group(Expr):
    """A group that may be referred to."""

    body: Expr
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Backreference(Expr):
    """What a group has matched, with how and where it is written."""

    group: int
    sign: str
    position: int

    def unsupported(self, why: str) -> Unsupported:
        """The error for one that cannot be enforced."""
        return Unsupported(
            f"backreferences to {why} are not supported, at position {self.position}", keyword=self.sign
        )


def without_backreferences(expr: Expr) -> Expr:
    """The same language as an expression without groups and backreferences.

    Raises:
        Unsupported: a group has many texts, or need not have matched exactly once.
        TooLarge: what is written takes too much work.
    """
    return _written(expr, {})


def _written(expr: Expr, matched: Mapping[int, _Text]) -> Expr:
    """An expression where groups have matched these texts."""
    charge(TEXT_STEPS)
    match expr:
        case Group():
            return _written(expr.body, matched)
        case Backreference():
            if expr.group not in matched:
                raise expr.unsupported("groups inside other groups, choices or repeats")
            return literal(matched[expr.group])
        case Concat():
            return concat(*_sequence(expr.parts, matched))
        case Alternative():
            return alternative(*(_written(part, matched) for part in expr.parts))
        case Repeat():
            return repeat(_written(expr.body, matched), expr.low, expr.high)
        case Look():
            return Look(f"lookaround {next(numbers)}", _written(expr.body, matched), expr.ahead, expr.negated)
    return expr


def _sequence(parts: Sequence[Expr], matched: Mapping[int, _Text]) -> list[Expr]:
    """Parts one after the other, where groups have matched these texts before."""
    written: list[Expr] = []
    index = 0
    while index < len(parts):
        part, reference, end = parts[index], *_referring(parts, index)
        index += 1
        if not isinstance(part, Group) or reference is None:
            written.append(_written(part, matched))
            continue
        texts = _texts(_written(part.body, matched))
        if texts is None:
            raise reference.unsupported(f"groups of more than {FEW_TEXTS} texts")
        if len(texts) == 1:
            written.append(literal(texts[0]))
            matched = {**matched, part.number: texts[0]}
            continue
        span = parts[index:end]
        ways = (concat(literal(text), *_sequence(span, {**matched, part.number: text})) for text in texts)
        written.append(alternative(*ways))
        index = end
    return written


def _referring(parts: Sequence[Expr], index: int) -> tuple[Backreference | None, int]:
    """A backreference to the group at an index, if any; and where it and those on the way are past."""
    first: Backreference | None = None
    end, here = index + 1, index
    while here < end:
        part = parts[here]
        here += 1
        if isinstance(part, Group):
            for later in reversed(range(end, len(parts))):
                if reference := _reference(parts[later], part.number):
                    first, end = first or reference, later + 1
                    break
    return first, end


def _reference(expr: Expr, group: int) -> Backreference | None:
    """A backreference to a group in an expression, the first if there are several."""
    charge(1)
    match expr:
        case Backreference():
            return expr if expr.group == group else None
        case Concat() | Alternative():
            return next(filter(None, (_reference(part, group) for part in expr.parts)), None)
        case Repeat() | Look() | Group():
            return _reference(expr.body, group)
    return None


def _texts(expr: Expr) -> list[_Text] | None:
    """All texts of an expression; None where they are not few, or depend on what is around them."""
    match expr:
        case Literal():
            return [tuple(expr.units)]
        case Class():
            few = sum(high - low + 1 for low, high in expr.ranges) <= FEW_TEXTS
            return [(unit,) for low, high in expr.ranges for unit in range(low, high + 1)] if few else None
        case Alternative():
            return _of_any(map(_texts, expr.parts))
        case Concat():
            return _of_all(expr.parts)
        case Repeat():
            few = expr.high is not None and expr.high <= FEW_TEXTS
            counts = range(expr.low, (expr.high or 0) + 1)
            return _of_any(_of_all((expr.body,) * count) for count in counts) if few else None
        case Graph():
            # The only graphs here are prefix trees of words.
            return _below(expr, expr.start)
    return [()] if expr is EMPTY else None


def _below(tree: Graph, node: int) -> list[_Text] | None:
    """The texts that a prefix tree has from a node on."""
    here: list[list[_Text] | None] = [[()]] if node in tree.finals else []
    for source, word, target in tree.edges:
        if source == node:
            here.append(_joined(_texts(word), _below(tree, target)))
    return _of_any(here)


def _of_all(parts: Iterable[Expr]) -> list[_Text] | None:
    """The texts of parts one after the other."""
    found: list[_Text] | None = [()]
    for part in parts:
        found = _joined(found, _texts(part))
    return found


def _joined(before: list[_Text] | None, after: list[_Text] | None) -> list[_Text] | None:
    if before is None or after is None:
        return None
    return _of_any([[one + other for other in after] for one in before])


def _of_any(several: Iterable[list[_Text] | None]) -> list[_Text] | None:
    """The texts of any one of several lists, each once."""
    found: dict[_Text, None] = {}
    for texts in several:
        if texts is None or len(found) > FEW_TEXTS:
            return None
        charge(TEXT_STEPS * len(texts))
        found.update(dict.fromkeys(texts))
    return None if len(found) > FEW_TEXTS else list(found)
