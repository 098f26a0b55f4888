"""Regular expressions over code units, with calls to named rules: what every front end writes.

A code unit is an integer: a byte (0..255) in an expression that is ready for a machine, a Unicode code
point (0..0x10FFFF) in one that describes the decoded value of a string. The algebra does not care.

Build expressions with the lower-case functions: they simplify as they go, so that the empty language is
always the single object `NOTHING` and the empty word the single object `EMPTY`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Sorted, disjoint, non-adjacent inclusive ranges of code units."""


class Expr:
    """One regular expression. Compared by identity: share sub-expressions instead of rebuilding them."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class Nothing(Expr):
    """The empty language."""


@dataclass(frozen=True, slots=True, eq=False)
class Empty(Expr):
    """The language of the empty word alone."""


@dataclass(frozen=True, slots=True, eq=False)
class Literal(Expr):
    """One word, unit by unit."""

    units: bytes | tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Class(Expr):
    """Any one unit of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True, eq=False)
class Concat(Expr):
    """Parts one after the other."""

    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Alternative(Expr):
    """Any one of the parts."""

    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat(Expr):
    """The body, `low` to `high` times; `high` is None for no upper bound."""

    body: Expr
    low: int
    high: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Call(Expr):
    """One word of another rule, read in a stack frame of its own. See `machine.py` for what that asks."""

    rule: str


@dataclass(frozen=True, slots=True, eq=False)
class Graph(Expr):
    """A finite automaton whose edges carry expressions: `(source, expression, target)`."""

    edges: tuple[tuple[int, Expr, int], ...]
    start: int
    finals: frozenset[int]


@dataclass(frozen=True, slots=True, eq=False)
class Counted(Expr):
    """The body, under a test of how far the frame has counted.

    Every frame counts from 0. The first unit of the body adds `step` to the count, and can be read only if
    that makes it at least `low` and at most `high` (None: no upper bound). The body is not empty.
    """

    body: Expr
    step: int
    low: int
    high: int | None


NOTHING = Nothing()
EMPTY = Empty()


def literal(units: bytes | tuple[int, ...]) -> Expr:
    """Exactly this word."""
    return Literal(units) if units else EMPTY


def one_of(ranges: Iterable[tuple[int, int]]) -> Expr:
    """Any one unit in these inclusive ranges, which may overlap and come in any order."""
    merged = merge(ranges)
    return Class(merged) if merged else NOTHING


def concat(*parts: Expr) -> Expr:
    """The parts one after the other."""
    flat: list[Expr] = []
    for part in parts:
        if part is NOTHING:
            return NOTHING
        if isinstance(part, Concat):
            flat.extend(part.parts)
        elif part is not EMPTY:
            flat.append(part)
    if not flat:
        return EMPTY
    return flat[0] if len(flat) == 1 else Concat(tuple(flat))


def alternative(*parts: Expr) -> Expr:
    """Any one of the parts."""
    flat: dict[int, Expr] = {}
    for part in parts:
        for inner in part.parts if isinstance(part, Alternative) else (part,):
            if inner is not NOTHING:
                flat[id(inner)] = inner
    if not flat:
        return NOTHING
    return next(iter(flat.values())) if len(flat) == 1 else Alternative(tuple(flat.values()))


def repeat(body: Expr, low: int, high: int | None) -> Expr:
    """The body, `low` to `high` times (`high=None`: no upper bound)."""
    if low < 0 or (high is not None and high < low):
        raise ValueError(f"a repeat needs 0 <= low <= high, got {low} and {high}")
    if high == 0 or body is EMPTY:
        return EMPTY
    if body is NOTHING:
        return EMPTY if low == 0 else NOTHING
    return body if low == high == 1 else Repeat(body, low, high)


def optional(body: Expr) -> Expr:
    """The body, or nothing at all."""
    return repeat(body, 0, 1)


def star(body: Expr) -> Expr:
    """The body, any number of times."""
    return repeat(body, 0, None)


def counted(body: Expr, step: int, low: int, high: int | None) -> Expr:
    """The body, whose first unit adds `step` to the frame's count and needs it to be from `low` to `high`."""
    if body is NOTHING or (high is not None and high < low):
        return NOTHING
    return Counted(body, step, low, high)


def merge(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sort ranges and join those that overlap or touch."""
    merged: list[tuple[int, int]] = []
    # Before all units; letters have hundreds of ranges.
    start, end = 0, -2
    for low, high in sorted(ranges):
        if low > end + 1:
            if start <= end:
                merged.append((start, end))
            start, end = low, high
        elif high > end:
            end = high
    if start <= end:
        merged.append((start, end))
    return tuple(merged)


def rename_calls(expr: Expr, names: dict[str, str], done: dict[int, Expr] | None = None) -> Expr:
    """The same expression with its calls renamed; sub-expressions shared before stay shared."""
    done = {} if done is None else done
    known = done.get(id(expr))
    if known is not None:
        return known
    result = expr
    if isinstance(expr, Call):
        result = Call(names.get(expr.rule, expr.rule))
    elif isinstance(expr, Concat):
        result = Concat(tuple(rename_calls(part, names, done) for part in expr.parts))
    elif isinstance(expr, Alternative):
        result = Alternative(tuple(rename_calls(part, names, done) for part in expr.parts))
    elif isinstance(expr, Repeat):
        result = Repeat(rename_calls(expr.body, names, done), expr.low, expr.high)
    elif isinstance(expr, Counted):
        result = Counted(rename_calls(expr.body, names, done), expr.step, expr.low, expr.high)
    elif isinstance(expr, Graph):
        edges = tuple((s, rename_calls(edge, names, done), t) for s, edge, t in expr.edges)
        result = Graph(edges, expr.start, expr.finals)
    done[id(expr)] = result
    return result
