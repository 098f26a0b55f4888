"""What may stand between the tokens of a JSON text, place by place.

By default that is what `json.dumps` writes: compact, with one space after commas and colons, or indented by
2 or 4 for each level. So a model may pretty-print but can never loop in whitespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from sortition.grammars.automaton import CODE_POINTS, Automaton
from sortition.grammars.characters import utf8_text
from sortition.grammars.errors import GrammarError, Invalid
from sortition.grammars.expr import (
    EMPTY,
    NOTHING,
    Call,
    Expr,
    alternative,
    concat,
    literal,
    one_of,
    optional,
    star,
)
from sortition.grammars.regex import parse
from sortition.grammars.work import kept

MOST_SPACES: Final = 64
"""Spaces of indentation, at most: 32 levels of two, 16 levels of four."""

CACHED_POLICIES: Final = 32
CACHED_DEPTHS: Final = 1024
"""Policies, and sets of depths, whose whitespace is kept; one takes up to 10 KiB."""

INDENTS: Final = (2, 4)
"""Spaces for each level, as `json.dumps(indent=...)` writes them."""

DEEPEST: Final = MOST_SPACES // min(INDENTS)
"""Levels down to which lines may be broken."""

ALL_DEPTHS: Final = (1 << (DEEPEST + 1)) - 2
"""Bit d stands for depth d: the number of containers around the members of a container."""

_SPACE: Final = literal(b" ")
_WHITESPACE: Final = one_of([(0x20, 0x20), (0x09, 0x0A), (0x0D, 0x0D)])


@dataclass(frozen=True, slots=True, eq=False)
class Whitespace:
    """What may stand at each place between the tokens of one container, and the rules that this calls."""

    after_open: Expr
    before_close: Expr
    inside_empty: Expr
    before_comma: Expr
    after_comma: Expr
    before_colon: Expr
    after_colon: Expr
    rules: Mapping[str, Expr]


@dataclass(frozen=True, slots=True)
class Policy:
    """Which whitespace is allowed: "default", "compact", "any" or a regular expression for every place."""

    name: str

    def __post_init__(self) -> None:
        self.everywhere()

    @property
    def around(self) -> Expr:
        """What may stand before and after the whole text."""
        return star(_WHITESPACE) if self.name == "any" else EMPTY

    @property
    def by_depth(self) -> bool:
        """Whether whitespace depends on how deep a container is nested."""
        return self.name == "default"

    def everywhere(self) -> Expr | None:
        """What may stand at every place; None where it depends on the place."""
        return _everywhere(self.name)

    def at(self, depths: int, called: bool) -> Whitespace:
        """The whitespace of a container whose members may be at these depths (bits).

        With `called`, line breaks with their indentation are calls: then the states that count spaces exist
        once for a depth, and not once for each place in each container.
        """
        return _at(self, depths, called)


@lru_cache(maxsize=CACHED_DEPTHS)
def _at(policy: Policy, depths: int, called: bool) -> Whitespace:
    same = policy.everywhere()
    if same is not None:
        return Whitespace(same, same, same, same, same, same, same, {})
    inner, outer = _lines(depths), _lines(depths >> 1)
    rules: dict[str, Expr] = {}
    if called:
        inner, outer = _as_call(inner, depths, rules), _as_call(outer, depths >> 1, rules)
    return Whitespace(
        after_open=optional(inner),
        before_close=optional(outer),
        inside_empty=EMPTY,
        before_comma=EMPTY,
        after_comma=optional(alternative(_SPACE, inner)),
        before_colon=EMPTY,
        after_colon=optional(_SPACE),
        rules=rules,
    )


def _as_call(lines: Expr, depths: int, rules: dict[str, Expr]) -> Expr:
    """A call to a rule for these line breaks, which is added to the rules."""
    if lines is NOTHING:
        return NOTHING
    name = f"line {depths:X}"
    rules[name] = lines
    return Call(name)


@lru_cache(maxsize=CACHED_DEPTHS)
def _lines(depths: int) -> Expr:
    """A line break and the indentation of any of the depths (bits)."""
    at = [depth for depth in range(DEEPEST + 1) if depths >> depth & 1]
    spaces = {depth * indent for depth in at for indent in INDENTS if depth * indent <= MOST_SPACES}
    if not spaces:
        return NOTHING
    # From the deepest on: each count goes on to the next one, or not.
    counts = sorted(spaces)
    more: Expr = EMPTY
    for count, deeper in zip(counts[-2::-1], counts[:0:-1], strict=True):
        more = optional(concat(literal(b" " * (deeper - count)), more))
    return concat(literal(b"\n" + b" " * counts[0]), more)


@kept(CACHED_POLICIES)
def _everywhere(name: str) -> Expr | None:
    if name == "default":
        return None
    if name == "compact":
        return EMPTY
    if name == "any":
        return star(_WHITESPACE)
    try:
        automaton = Automaton.of(parse(name, "python"), CODE_POINTS)
    except GrammarError as error:
        raise type(error)(error.reason, keyword="whitespace", hint=error.hint) from None
    if not automaton.difference(Automaton.of(star(_WHITESPACE), CODE_POINTS)).is_empty:
        raise Invalid(f"{name!r} matches more than whitespace", keyword="whitespace")
    if automaton.is_empty:
        raise Invalid(f"{name!r} matches nothing", keyword="whitespace")
    return utf8_text(automaton)
