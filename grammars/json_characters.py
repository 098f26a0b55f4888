"""Characters of JSON strings: as plain bytes, or with all but plain ASCII in frames of their own.

Read in place, a character that may be anything needs 17 states, which is what tokens are fastest with. A
string that counts to 1,000 would need them 1,000 times. So where a grammar counts far, escape sequences and
characters of several bytes become calls, in all of its strings: then each count is one state, and what
happens inside a character is shared. It must be all or none, so that it is clear where such a call begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from sortition.grammars.characters import (
    ANY_CHARACTER,
    CACHED_SETS,
    RANGE_STEPS,
    complement,
    escaped,
    intersection,
    spelled,
    utf8,
)
from sortition.grammars.expr import Call, Expr, Ranges, alternative, concat, literal, one_of
from sortition.grammars.work import charge, kept

QUOTE: Final = literal(b'"')

PLAIN: Final[Ranges] = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E))
"""Characters that are one byte, and that `json.dumps` writes in no other way."""
SPECIAL: Final = complement(PLAIN)
"""All other characters."""

_DELETE: Final[Ranges] = ((0x7F, 0x7F),)
_NON_ASCII: Final = complement(((0, 0x7F),))
_READABLE: Final = 4
"""Rules of sets with more ranges than this are named by a digest of the ranges."""


@dataclass(frozen=True, slots=True, eq=False)
class Spelling:
    """How values are written: an expression, and the rules for characters that it calls."""

    expr: Expr
    rules: Mapping[str, Expr]


@dataclass(slots=True)
class Characters:
    """Writes characters, and collects the rules that it calls.

    `canonical` stands for the spellings of `json.dumps` only, `ensure_ascii` on or off; with `called`, all
    characters but plain ASCII are calls.
    """

    canonical: bool
    called: bool
    rules: dict[str, Expr] = field(default_factory=dict)

    def any_of(self, ranges: Ranges) -> Expr:
        """Any one character of a set."""
        if not self.called:
            return spelled(ranges, canonical=self.canonical)
        plain, name, rule = _with_calls(ranges, self.canonical)
        if name is None:
            return plain
        self.rules[name] = rule
        return alternative(plain, Call(name))

    def text(self, text: str) -> Expr:
        """These characters one after the other."""
        if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
            return literal(text.encode())
        return concat(*(self.any_of(((ord(each), ord(each)),)) for each in text))

    def quoted(self, body: Expr) -> Spelling:
        """The body between quotes."""
        return Spelling(concat(QUOTE, body, QUOTE), self.rules)


@kept(CACHED_SETS)
def _with_calls(ranges: Ranges, canonical: bool) -> tuple[Expr, str | None, Expr]:
    """The plain bytes of a set, and the name and the body of the rule for its other spellings."""
    charge(RANGE_STEPS * len(ranges))
    plain = one_of(intersection(ranges, PLAIN + _DELETE))
    body = alternative(utf8(intersection(ranges, _NON_ASCII)), escaped(ranges, canonical=canonical))
    if not (intersection(ranges, SPECIAL) or not canonical):
        return plain, None, body
    return plain, f"{'canonical ' if canonical else ''}character {_label(ranges)}", body


def _label(ranges: Ranges) -> str:
    if ranges == ANY_CHARACTER:
        return "any"
    if len(ranges) > _READABLE:
        return sha256(repr(ranges).encode()).hexdigest()[:16]
    return " ".join(f"{low:X}" if low == high else f"{low:X}-{high:X}" for low, high in ranges)
