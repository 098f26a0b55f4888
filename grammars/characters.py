"""Sets of characters, and how one character of a set is written: in UTF-8, or inside a JSON string.

A set is `Ranges` of code points. A character is a Unicode scalar value: surrogates are members of no text,
so the encoders leave them out. Encoders return the same object for the same set, which lets a machine share
the work, and they share tails inside: the set of all characters needs 9 parts in UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from sortition.grammars.automaton import Automaton
from sortition.grammars.expr import (
    EMPTY,
    NOTHING,
    Alternative,
    Class,
    Concat,
    Expr,
    Graph,
    Literal,
    Ranges,
    Repeat,
    alternative,
    concat,
    literal,
    merge,
    one_of,
    repeat,
)
from sortition.grammars.work import charge, kept

LAST_CODE_POINT: Final = 0x10FFFF
SURROGATES: Final[Ranges] = ((0xD800, 0xDFFF),)
ANY_CHARACTER: Final[Ranges] = ((0, 0xD7FF), (0xE000, LAST_CODE_POINT))
"""Every Unicode scalar value."""

CACHED_SETS: Final = 4096
"""Sets whose encoding is kept. A set and its encoding take 0.5 KiB in the mean, 200 KiB for the letters."""

RANGE_STEPS: Final = 100
"""Steps that each range of a set takes to be written in bytes."""

_PAST_ALL: Final = (LAST_CODE_POINT + 1, LAST_CODE_POINT + 1)

_SHORT_ESCAPES: Final = {0x22: '"', 0x5C: "\\", 8: "b", 12: "f", 10: "n", 13: "r", 9: "t"}
_RAW_IN_JSON: Final[Ranges] = ((0x20, 0x21), (0x23, 0x5B), (0x5D, LAST_CODE_POINT))
_ESCAPED_ON_DEMAND: Final[Ranges] = ((0x7F, LAST_CODE_POINT),)


def union(*sets: Ranges) -> Ranges:
    """The characters in any of the sets."""
    return merge(each for ranges in sets for each in ranges)


def complement(ranges: Ranges) -> Ranges:
    """The characters not in the set; never surrogates."""
    return difference(ANY_CHARACTER, ranges)


def intersection(left: Ranges, right: Ranges) -> Ranges:
    """The characters in both sets."""
    common = []
    others = iter(right)
    other_low, other_high = next(others, _PAST_ALL)
    for low, high in left:
        while other_high < high:
            if other_high >= low:
                common.append((max(low, other_low), other_high))
            other_low, other_high = next(others, _PAST_ALL)
        if other_low <= high:
            common.append((low if low > other_low else other_low, high))
    return tuple(common)


def difference(left: Ranges, right: Ranges) -> Ranges:
    """The characters in the first set and not in the second."""
    gaps = []
    start = 0
    for low, high in right:
        if start < low:
            gaps.append((start, low - 1))
        start = high + 1
    gaps.append((start, max(start, LAST_CODE_POINT)))
    return intersection(left, tuple(gaps))


def contains(ranges: Ranges, code_point: int) -> bool:
    """Whether the set has this member."""
    return any(low <= code_point <= high for low, high in ranges)


@dataclass(frozen=True, eq=False)
class _Place:
    """One digit of a number in positional notation: what stands before it, and the bytes of its values."""

    prefix: bytes
    digits: tuple[Ranges, ...]


def _consecutive(first: int, count: int) -> _Place:
    return _Place(b"", tuple(((byte, byte),) for byte in range(first, first + count)))


_CONTINUATION: Final = _consecutive(0x80, 64)
_UTF8_PLACES: Final = (
    ((0, 0x7F), (_consecutive(0, 0x80),)),
    ((0x80, 0x7FF), (_consecutive(0xC0, 32), _CONTINUATION)),
    ((0x800, 0xFFFF), (_consecutive(0xE0, 16), _CONTINUATION, _CONTINUATION)),
    ((0x10000, LAST_CODE_POINT), (_consecutive(0xF0, 8), _CONTINUATION, _CONTINUATION, _CONTINUATION)),
)


def _escape_places(both_cases: bool) -> tuple[tuple[_Place, ...], tuple[_Place, ...]]:
    """The places of `\\uXXXX`, and of the surrogate pair that spells the code point 0x10000 + n."""

    def place(digits: str, prefix: bytes = b"") -> _Place:
        spellings = ({digit, digit.upper()} if both_cases else {digit} for digit in digits)
        return _Place(prefix, tuple(merge((ord(digit), ord(digit)) for digit in each) for each in spellings))

    hexadecimal = "0123456789abcdef"
    first, other = place(hexadecimal, b"\\u"), place(hexadecimal)
    high_half = (place("d", b"\\u"), place("89ab"), other, other)
    low_half = (place("d", b"\\u"), place("cdef"), other, other)
    return (first, other, other, other), high_half + low_half


_ESCAPE_PLACES: Final = {both_cases: _escape_places(both_cases) for both_cases in (False, True)}


@kept(CACHED_SETS)
def utf8(ranges: Ranges) -> Expr:
    """One character of the set in UTF-8, as an expression over bytes."""
    charge(RANGE_STEPS * len(ranges))
    characters = difference(ranges, SURROGATES)
    return alternative(
        *(_numbers(intersection(characters, (extent,)), places) for extent, places in _UTF8_PLACES)
    )


@kept(CACHED_SETS)
def spelled(ranges: Ranges, *, canonical: bool = False) -> Expr:
    """One character of the set as it may stand in a JSON string, as an expression over bytes.

    All spellings that RFC 8259 allows, but never half of a surrogate pair. With `canonical`, only those
    that `json.dumps` writes, `ensure_ascii` on or off.
    """
    charge(RANGE_STEPS * len(ranges))
    return alternative(utf8(intersection(ranges, _RAW_IN_JSON)), escaped(ranges, canonical=canonical))


@lru_cache(maxsize=CACHED_SETS)
def escaped(ranges: Ranges, *, canonical: bool = False) -> Expr:
    """One character of the set as an escape sequence of a JSON string; `canonical` as in `spelled`."""
    characters = difference(ranges, SURROGATES)
    short = _SHORT_ESCAPES if canonical else {**_SHORT_ESCAPES, 0x2F: "/"}
    by_number = characters
    if canonical:
        controls = difference(((0, 0x1F),), merge((code, code) for code in short))
        by_number = intersection(characters, union(controls, _ESCAPED_ON_DEMAND))
    four_digits, pair = _ESCAPE_PLACES[not canonical]
    letters = (ord(letter) for code, letter in short.items() if contains(characters, code))
    return alternative(
        concat(literal(b"\\"), one_of((letter, letter) for letter in letters)),
        _numbers(intersection(by_number, ((0, 0xFFFF),)), four_digits),
        _numbers(_shifted(intersection(by_number, ((0x10000, LAST_CODE_POINT),)), -0x10000), pair),
    )


def in_utf8(expr: Expr) -> Expr:
    """An expression over code points, without calls, as one over bytes: the same texts in UTF-8."""
    if isinstance(expr, Literal):
        if any(contains(SURROGATES, code) for code in expr.units):
            return NOTHING
        return literal("".join(map(chr, expr.units)).encode())
    if isinstance(expr, Class):
        return utf8(expr.ranges)
    if isinstance(expr, Concat):
        return concat(*map(in_utf8, expr.parts))
    if isinstance(expr, Alternative):
        return alternative(*map(in_utf8, expr.parts))
    if isinstance(expr, Repeat):
        return repeat(in_utf8(expr.body), expr.low, expr.high)
    if isinstance(expr, Graph):
        edges = ((source, in_utf8(each), target) for source, each, target in expr.edges)
        return Graph(tuple(edges), expr.start, expr.finals)
    return expr


def utf8_text(automaton: Automaton) -> Expr:
    """The texts of an automaton over code points, in UTF-8."""
    return automaton.expr(utf8)


def _shifted(ranges: Ranges, by: int) -> Ranges:
    return tuple((low + by, high + by) for low, high in ranges)


@lru_cache(maxsize=CACHED_SETS)
def _numbers(numbers: Ranges, places: tuple[_Place, ...]) -> Expr:
    """The numbers of a set, written with one digit at each place, most significant first."""
    if not numbers:
        return one_of(())
    if not places:
        return EMPTY
    place, rest = places[0], places[1:]
    digits_before: dict[Ranges, list[int]] = {}
    for digit, tail in _by_first_digit(numbers, rest):
        digits_before.setdefault(tail, []).append(digit)
    return concat(
        literal(place.prefix),
        alternative(
            *(
                concat(one_of(each for digit in digits for each in place.digits[digit]), _numbers(tail, rest))
                for tail, digits in digits_before.items()
            )
        ),
    )


def _by_first_digit(numbers: Ranges, rest: tuple[_Place, ...]) -> Iterator[tuple[int, Ranges]]:
    """Split a set of numbers by their first digit; what is left of each number fits in the other places."""
    weight = 1
    for place in rest:
        weight *= len(place.digits)
    tails: dict[int, list[tuple[int, int]]] = {}
    for low, high in numbers:
        for digit in range(low // weight, high // weight + 1):
            start = digit * weight
            tails.setdefault(digit, []).append((max(low - start, 0), min(high - start, weight - 1)))
    for digit, tail in tails.items():
        yield digit, tuple(tail)
