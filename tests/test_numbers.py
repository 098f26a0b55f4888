"""Sets of numbers: every spelling is judged against exact fractions."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sortition.grammars.automaton import BYTES, Automaton
from sortition.grammars.errors import TooLarge
from sortition.grammars.json_numbers import number
from sortition.grammars.schema_facts import Numbers

JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
PLAIN = re.compile(r"(0|-?[1-9][0-9]*|-?(0|[1-9][0-9]*)\.[0-9]*[1-9])")
"""One spelling for each number, which must never be missing."""

bounds = st.decimals(-1200, 1200, places=2).map(Fraction) | st.integers(-30, 30).map(Fraction)
digits = st.text("0159", max_size=4)
spellings = st.builds(
    lambda sign, whole, fraction, exponent: sign + whole + fraction + exponent,
    st.sampled_from(["", "-"]),
    st.integers(0, 1300).map(str) | digits,
    st.just("") | digits.map(lambda text: "." + text),
    st.just("") | st.sampled_from(["e0", "e1", "e-1", "E+2", "e-02", "e-10", "e16", "e+00"]),
)


def accepts(numbers: Numbers, text: str) -> bool:
    return Automaton.of(number(numbers), BYTES).accepts(text.encode())


@settings(max_examples=400, deadline=None)
@given(
    low=st.none() | bounds,
    high=st.none() | bounds,
    strict=st.booleans(),
    integral=st.booleans(),
    texts=st.lists(spellings, max_size=30),
)
@example(
    low=Fraction(-4), high=Fraction(4), strict=False, integral=False, texts=["-0.5", "4.0", "-4.1", "-00.5"]
)
@example(
    low=Fraction(0), high=None, strict=True, integral=False, texts=["0", "0.0", "-0", "1e-7", "0.001", "0e5"]
)
def test_bounds(
    low: Fraction | None, high: Fraction | None, strict: bool, integral: bool, texts: list[str]
) -> None:
    numbers = Numbers(low, strict, high, strict, True if integral else None)
    automaton = Automaton.of(number(numbers), BYTES)
    for bound in (low, high):
        texts = (
            texts
            if bound is None
            else [*texts, f"{float(bound):.2f}", f"{float(bound):.3f}", str(int(bound))]
        )
    for text in texts:
        accepted = automaton.accepts(text.encode())
        if not JSON_NUMBER.fullmatch(text):
            assert not accepted, text
            continue
        valid = numbers.holds(Fraction(text))
        assert valid or not accepted, text
        if valid and PLAIN.fullmatch(text):
            assert accepted, text


@settings(max_examples=200, deadline=None)
@given(
    low=st.none() | bounds,
    high=st.none() | bounds,
    value=st.floats(-2000, 2000) | st.floats(-1e-3, 1e-3) | st.floats(),
)
def test_floats_as_python_prints_them(low: Fraction | None, high: Fraction | None, value: float) -> None:
    if value != value or value in (float("inf"), float("-inf")) or str(value) == "-0.0":
        return
    numbers = Numbers(low=low, high=high)
    assert accepts(numbers, repr(value)) == numbers.holds(Fraction(repr(value)))


@settings(max_examples=60, deadline=None)
@given(
    divisor=st.integers(1, 40) | st.decimals("0.01", 3, places=2).filter(bool),
    low=st.none() | bounds,
    text=spellings,
)
def test_multiples(divisor: int, low: Fraction | None, text: str) -> None:
    for numbers in (
        Numbers(low, divisors=(Fraction(divisor),)),
        Numbers(low, not_divisors=(Fraction(divisor),)),
    ):
        valid = bool(JSON_NUMBER.fullmatch(text)) and numbers.holds(Fraction(text))
        accepted = accepts(numbers, text)
        assert valid or not accepted
        if valid and PLAIN.fullmatch(text):
            assert accepted


@settings(max_examples=150, deadline=None)
@given(
    excluded=st.frozensets(bounds, max_size=3), integral=st.sampled_from([None, True, False]), text=spellings
)
def test_excluded(excluded: frozenset[Fraction], integral: bool | None, text: str) -> None:
    numbers = Numbers(integral=integral, excluded=excluded)
    valid = bool(JSON_NUMBER.fullmatch(text)) and numbers.holds(Fraction(text))
    accepted = accepts(numbers, text)
    assert valid or not accepted
    if valid and PLAIN.fullmatch(text):
        assert accepted


def test_an_empty_interval_of_integers_has_no_spelling() -> None:
    assert Automaton.of(number(Numbers(Fraction(1, 4), False, Fraction(3, 4), False, True)), BYTES).is_empty


@pytest.mark.parametrize("divisor", [*range(1, 60), 3_600, 4_096, 86_400, 390_625, 10**6, 10**30])
def test_multiples_of_whole_numbers(divisor: int) -> None:
    automaton = Automaton.of(number(Numbers(divisors=(Fraction(divisor),), integral=True)), BYTES)
    near = [divisor * factor + more for factor in (1, 2, 10, 99, 5 * 10**8) for more in (-10, -1, 0, 1, 10)]
    for value in [*range(300), *near, 10**29, 10**31, 3 * 10**30]:
        assert automaton.accepts(str(value).encode()) == (value % divisor == 0)


def test_too_many_remainders_are_refused() -> None:
    with pytest.raises(TooLarge, match="multiples from other numbers takes more than"):
        number(Numbers(divisors=(Fraction(123_457),)))
