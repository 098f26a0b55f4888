"""Sets of numbers -> the JSON spellings of their members, exact to the last decimal.

Spellings are plain decimals (``-0.50``) and, unless only integers are wanted, powers of ten with one digit
before the point (``1.5e-07``, what `json.dumps` and most printers write for very small and very large
numbers). Every member has a spelling. Without any condition the whole syntax of RFC 8259 is allowed.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import count
from math import ceil, floor, gcd
from typing import Final, TypeAlias

from sortition.grammars.automaton import BYTES, Automaton
from sortition.grammars.expr import (
    EMPTY,
    NOTHING,
    Expr,
    Graph,
    alternative,
    concat,
    literal,
    one_of,
    optional,
    repeat,
    star,
)
from sortition.grammars.schema_facts import Numbers
from sortition.grammars.work import charge, expect, kept

Bound: TypeAlias = tuple[Fraction, bool]
"""A bound, and whether it is exclusive."""
UpperBound: TypeAlias = tuple[Fraction | None, bool]
"""The same; None for no bound."""

CACHED_SETS: Final = 1024
"""Number sets whose expression is kept; one takes 2 KiB in the mean."""

VALUE_STEPS: Final = 40
"""Steps that each number of an `enum` takes."""

PLACE_STEPS: Final = 3
"""Steps that each decimal place of a number takes."""

DIGIT_STEPS: Final = 4
"""Steps that each digit takes after which a number may be another one."""

REMAINDER_STEPS: Final = 260
"""Steps that each remainder of a whole number takes at least until its machine is made."""


def _digits(low: int, high: int) -> Expr:
    return one_of([(0x30 + low, 0x30 + high)])


_DIGIT: Final = _digits(0, 9)
_SINGLE_DIGITS: Final = tuple([_digits(digit, digit) for digit in range(10)])
_POSITIVE_DIGIT: Final = _digits(1, 9)
_ZERO: Final = Fraction(0)
_MINUS: Final = literal(b"-")
_POINT: Final = literal(b".")
_ANY_DIGITS: Final = star(_DIGIT)
_SOME_DIGITS: Final = repeat(_DIGIT, 1, None)
_EXPONENT_SIGN: Final = one_of([(0x45, 0x45), (0x65, 0x65)])
_ZERO_FRACTION: Final = concat(_POINT, repeat(literal(b"0"), 1, None))
_FRACTION: Final = concat(_POINT, _SOME_DIGITS)
_WHOLE: Final = alternative(literal(b"0"), concat(_POSITIVE_DIGIT, _ANY_DIGITS))
_ANY_EXPONENT: Final = concat(_EXPONENT_SIGN, optional(one_of([(0x2B, 0x2B), (0x2D, 0x2D)])), _SOME_DIGITS)
INTEGER: Final = concat(optional(_MINUS), _WHOLE)
"""Every integer, written without fraction and exponent."""
NUMBER: Final = concat(INTEGER, optional(_FRACTION), optional(_ANY_EXPONENT))
"""Every number of RFC 8259."""


@kept(CACHED_SETS)
def number(numbers: Numbers) -> Expr:
    """The spellings of the numbers of a set.

    Raises:
        TooLarge: it takes too much work.
    """
    if numbers == Numbers():
        return NUMBER
    if numbers == Numbers(integral=True):
        return INTEGER
    if numbers.values is not None:
        return alternative(
            *(_one(value, numbers.integral) for value in numbers.values if numbers.holds(value))
        )
    spellings = _between(numbers)
    unwanted = [_between(Numbers(value, False, value, False)) for value in numbers.excluded]
    if numbers.integral is False:
        # Powers of ten from 10 on may be integers; all numbers that they spell have plain decimals, too.
        powers = concat(_EXPONENT_SIGN, optional(literal(b"+")), _SOME_DIGITS)
        unwanted += [concat(INTEGER, optional(_ZERO_FRACTION)), concat(INTEGER, optional(_FRACTION), powers)]
    unwanted += [_multiples(divisor) for divisor in numbers.not_divisors]
    wanted = [_multiples(divisor) for divisor in numbers.divisors]
    if numbers.not_divisors:
        wanted.append(concat(INTEGER, optional(_FRACTION)))
    if not (wanted or unwanted):
        return spellings
    automaton = Automaton.of(spellings, BYTES).difference(Automaton.of(alternative(*unwanted), BYTES))
    for each in wanted:
        automaton = automaton.intersect(Automaton.of(each, BYTES))
    return automaton.expr()


def _one(value: Fraction, integral: bool | None) -> Expr:
    """The usual spellings of one number."""
    charge(VALUE_STEPS)
    sign = "-" if value < 0 else ""
    whole, fraction = _decimal(abs(value))
    if fraction:
        spellings = [f"{sign}{whole}.{fraction}"]
    else:
        spellings = [f"{sign}{whole}"] if integral else [f"{sign}{whole}", f"{sign}{whole}.0"]
    scientific = repr(float(value)) if not integral and abs(value) < Fraction(10) ** 308 else ""
    if "e" in scientific and Fraction(scientific) == value:
        spellings.append(scientific)
    return alternative(*(literal(each.encode()) for each in spellings))


def _between(numbers: Numbers) -> Expr:
    """The spellings of the numbers between two bounds, `integral` or any."""
    low, above_low, high, below_high = numbers.low, numbers.above_low, numbers.high, numbers.below_high
    if numbers.integral:
        if low is not None:
            low, above_low = Fraction(floor(low) + 1 if above_low else ceil(low)), False
        if high is not None:
            high, below_high = Fraction(ceil(high) - 1 if below_high else floor(high)), False
    sides = []
    if high is None or high >= 0:
        least = (low, above_low) if low is not None and low >= 0 else (_ZERO, False)
        sides.append(_magnitudes(least, (high, below_high), numbers.integral))
    if low is None or low < 0:
        # Zero is written without a sign.
        least = (-high, below_high) if high is not None and high < 0 else (_ZERO, True)
        most = (None if low is None else -low, above_low)
        sides.append(concat(_MINUS, _magnitudes(least, most, numbers.integral)))
    return alternative(*sides)


def _magnitudes(low: Bound, high: UpperBound, integral: bool | None) -> Expr:
    """The unsigned spellings of ``low <= x <= high``; the flags make a bound exclusive."""
    if integral and low[1]:
        low = (low[0] + 1, False)
    if high[0] is not None and (low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1]))):
        return NOTHING
    plain = _plain(low, high, bool(integral))
    return plain if integral else alternative(plain, _scientific(low, high))


def _plain(low: Bound, high: UpperBound, integral: bool) -> Expr:
    """Plain decimals: for each number of digits before the point, a comparison with the bounds."""
    shortest = len(_decimal(low[0])[0])
    if high[0] is None:
        lengths, longest = [shortest], None
    else:
        longest = len(_decimal(high[0])[0])
        lengths = sorted({shortest, longest})
    parts = [
        _compared(
            length,
            low if length == shortest else None,
            (high[0], high[1]) if high[0] is not None and length == longest else None,
            integral,
        )
        for length in lengths
    ]
    if longest is None or longest > shortest + 1:
        more = repeat(_DIGIT, shortest, None if longest is None else longest - 2)
        parts.append(concat(_POSITIVE_DIGIT, more, EMPTY if integral else optional(_FRACTION)))
    return alternative(*parts)


def _scientific(low: Bound, high: UpperBound) -> Expr:
    """Powers of ten: a mantissa from 1 to below 10 and an exponent."""
    if high[0] == 0:
        return NOTHING
    first = _magnitude(low[0]) if low[0] > 0 else None
    last = None if high[0] is None else _magnitude(high[0])
    parts = []
    for exponent in sorted({each for each in (first, last) if each is not None}):
        scale = Fraction(10) ** exponent
        least = (low[0] / scale, low[1]) if exponent == first else (Fraction(1), False)
        most = (high[0] / scale, high[1]) if exponent == last and high[0] is not None else None
        parts.append(concat(_compared(1, least, most, False), _EXPONENT_SIGN, _exponents(exponent, exponent)))
    if first is None or last is None or last - first > 1:
        between = _exponents(None if first is None else first + 1, None if last is None else last - 1)
        parts.append(concat(_POSITIVE_DIGIT, optional(_FRACTION), _EXPONENT_SIGN, between))
    return alternative(*parts)


def _exponents(low: int | None, high: int | None) -> Expr:
    """The exponents between two bounds, with up to one leading zero as printers write them."""
    zero = optional(literal(b"0"))
    sides = []
    if high is None or high >= 0:
        least = Fraction(max(low or 0, 0))
        most = None if high is None else Fraction(high)
        sides.append(concat(optional(literal(b"+")), zero, _magnitudes((least, False), (most, False), True)))
    if low is None or low < 0:
        least = Fraction(max(1, -high) if high is not None else 1)
        most = None if low is None else Fraction(-low)
        sides.append(concat(_MINUS, zero, _magnitudes((least, False), (most, False), True)))
    return alternative(*sides)


def _compared(length: int, low: Bound | None, high: Bound | None, integral: bool) -> Expr:
    """Decimals with `length` digits before the point that are within the bounds.

    A state is (digits read, whether the point was read, still equal to low, still equal to high). Beyond its
    last digit a bound goes on with zeros, and so does a decimal beyond its own.
    """
    low_digits = "".join(_decimal(low[0])) if low else ""
    high_digits = "".join(_decimal(high[0])) if high else ""
    last = max(len(low_digits), len(high_digits), length)
    numbers: dict[tuple[int, bool, bool, bool], int] = {}
    waiting: list[tuple[int, bool, bool, bool]] = []
    ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
    finals: set[int] = set()

    def state(place: int, pointed: bool, is_low: bool, is_high: bool) -> int:
        # Past every digit of the bounds the place does not matter any more.
        key = (min(place, last + 1), pointed, is_low, is_high)
        if key not in numbers:
            numbers[key] = len(numbers)
            waiting.append(key)
        return numbers[key]

    state(0, False, low is not None, high is not None)
    while waiting:
        key = waiting.pop()
        place, pointed, is_low, is_high = key
        source = numbers[key]
        charge(DIGIT_STEPS * 10)
        if place >= length and (place > length or not pointed):
            low_left, high_left = low_digits[place:].strip("0"), high_digits[place:].strip("0")
            above = not is_low or (not low_left and low is not None and not low[1])
            below = not is_high or bool(high_left) or (high is not None and not high[1])
            if above and below:
                finals.add(source)
        if place == length and not pointed:
            if not integral:
                ranges[source, state(place, True, is_low, is_high)] = [(0x2E, 0x2E)]
            continue
        least = int(low_digits[place : place + 1] or 0) if is_low else 0
        most = int(high_digits[place : place + 1] or 0) if is_high else 9
        for digit in range(max(least, 1) if place == 0 and length > 1 else least, most + 1):
            target = state(place + 1, pointed, is_low and digit == least, is_high and digit == most)
            ranges.setdefault((source, target), []).append((0x30 + digit, 0x30 + digit))
    edges = tuple((source, one_of(units), target) for (source, target), units in ranges.items())
    return Graph(edges, 0, frozenset(finals))


def _multiples(divisor: Fraction) -> Expr:
    """Plain decimals that are whole multiples, zero included.

    A state is (decimal places read, remainder). With `places` decimals in the divisor, a multiple has as many
    and then only zeros, and its digits up to there are a multiple of the divisor's digits.
    """
    places = len(_decimal(divisor)[1])
    modulus = int(divisor * 10**places)
    if not places:
        return concat(optional(_MINUS), _whole_multiples(modulus), optional(_ZERO_FRACTION))
    steps = DIGIT_STEPS * modulus * (places + 3) * 10
    expect(steps, "telling multiples from other numbers")
    charge(steps)
    edges: list[tuple[int, Expr, int]] = []
    finals = set()
    leading_zero, start = 0, 1

    def state(place: int, remainder: int) -> int:
        # Place 0 is before the point, place 1 just after it.
        return 2 + place * modulus + remainder

    edges.append((start, literal(b"0"), leading_zero))
    edges.append((leading_zero, _POINT, state(1, 0)))
    finals.add(leading_zero)
    for remainder in range(modulus):
        for place in range(places + 3):
            source = state(place, remainder)
            digits_left = max(places - max(place - 1, 0), 0)
            if place != 1 and remainder * 10**digits_left % modulus == 0:
                finals.add(source)
            if place == 0:
                edges.append((source, _POINT, state(1, remainder)))
            reads_digits = place == 0 or digits_left > 0
            for digit in range(10 if reads_digits else 1):
                following = (10 * remainder + digit) % modulus if reads_digits else remainder
                target = state(min(place + 1, places + 2) if place else 0, following)
                edges.append((source, _SINGLE_DIGITS[digit], target))
    for digit in range(1, 10):
        edges.append((start, _SINGLE_DIGITS[digit], state(0, digit % modulus)))
    return concat(optional(_MINUS), Graph(tuple(edges), start, frozenset(finals)))


def _whole_multiples(modulus: int) -> Expr:
    """Whole decimals that are multiples, zero included.

    Remainders that the same digits make multiples are one state: a power of ten has one for each of its
    zeros, and 86,400 has fewer than 150.
    """
    tail, prime_to_ten = 0, modulus
    while (common := gcd(prime_to_ten, 10)) > 1:
        prime_to_ten //= common
        tail += 1
    expect(REMAINDER_STEPS * prime_to_ten, "telling multiples from other numbers")

    @cache
    def following(remainder: int) -> tuple[int, ...]:
        """What decides which digits make a multiple: how fewer than `tail` must end; of more, a remainder."""
        charge(DIGIT_STEPS + tail)
        wanted = [remainder % prime_to_ten]
        missing = -remainder % modulus
        for length in range(tail):
            wanted.append(missing if missing < 10**length else -1)
            missing = missing * 10 % modulus
        return tuple(wanted)

    states = {following(0): 2}
    edges: list[tuple[int, Expr, int]] = [(0, literal(b"0"), 1)]
    waiting = [0]

    def state(remainder: int) -> int:
        wanted = following(remainder)
        if wanted not in states:
            states[wanted] = len(states) + 2
            waiting.append(remainder)
        return states[wanted]

    for digit in range(1, 10):
        edges.append((0, _SINGLE_DIGITS[digit], state(digit % modulus)))
    while waiting:
        remainder = waiting.pop()
        source = state(remainder)
        charge(DIGIT_STEPS * 10)
        for digit in range(10):
            edges.append((source, _SINGLE_DIGITS[digit], state((10 * remainder + digit) % modulus)))
    return Graph(tuple(edges), 0, frozenset({1, 2}))


def _decimal(value: Fraction) -> tuple[str, str]:
    """The digits before and after the point of a finite decimal that is not negative."""
    places = next(places for places in count() if 10**places % value.denominator == 0)
    charge(PLACE_STEPS * (1 + places))
    digits = str(int(value * 10**places)).rjust(places + 1, "0")
    return digits[: len(digits) - places], digits[len(digits) - places :]


def _magnitude(value: Fraction) -> int:
    """The exponent of the highest digit of a positive decimal."""
    whole, fraction = _decimal(value)
    if whole != "0":
        return len(whole) - 1
    return -1 - (len(fraction) - len(fraction.lstrip("0")))
