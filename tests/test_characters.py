"""Sets of characters and their encoders, checked against `str.encode` and `json`."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sortition.grammars.automaton import BYTES, Automaton
from sortition.grammars.characters import (
    ANY_CHARACTER,
    complement,
    difference,
    in_utf8,
    intersection,
    spelled,
    union,
    utf8,
    utf8_text,
)
from sortition.grammars.expr import (
    EMPTY,
    NOTHING,
    Expr,
    Ranges,
    concat,
    literal,
    merge,
    one_of,
    optional,
    star,
)
from sortition.grammars.unicode import unicode_property
from sortition.grammars.words import any_of

# The edges of every length in UTF-8, of the surrogates, of the escapes, and some letters.
EDGES = [0, 8, 9, 0x0A, 0x1F, 0x20, 0x22, 0x2F, 0x41, 0x5C, 0x7E, 0x7F, 0x80, 0xE9, 0x7FF, 0x800, 0x2028]
EDGES += [0xD7FF, 0xD800, 0xDFFF, 0xE000, 0xFFFF, 0x10000, 0x1F600, 0x103FF, 0x10400, 0xFFFFF, 0x10FFFF]

code_points = st.one_of(st.sampled_from(EDGES), st.integers(0, 0x10FFFF))
spans = st.tuples(code_points, code_points).map(lambda pair: (min(pair), max(pair)))
sets = st.lists(spans, max_size=3).map(merge)


def accepts(expr: Expr, data: bytes) -> bool:
    return Automaton.of(expr, BYTES).accepts(data)


def in_set(ranges: Ranges, code: int) -> bool:
    return any(low <= code <= high for low, high in ranges)


def spellings(character: str) -> list[str]:
    """Every way to write a character in a JSON string."""
    units = character.encode("utf-16-be")
    lower = "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
    upper = "".join(f"\\u{units[i : i + 2].hex().upper()}" for i in range(0, len(units), 2))
    short = [f"\\{letter}" for letter in '"\\/bfnrt' if json.loads(f'"\\{letter}"') == character]
    raw = [] if character < " " or character in '"\\' else [character]
    return [lower, upper, *short, *raw]


def canonical_spellings(character: str) -> list[str]:
    return [json.dumps(character, ensure_ascii=ascii)[1:-1] for ascii in (True, False)]


@given(sets, sets, code_points)
def test_sets_follow_their_members(left: Ranges, right: Ranges, code: int) -> None:
    inside, other = in_set(left, code), in_set(right, code)
    assert in_set(union(left, right), code) == (inside or other)
    assert in_set(intersection(left, right), code) == (inside and other)
    assert in_set(difference(left, right), code) == (inside and not other)
    assert in_set(complement(left), code) == (not inside and not 0xD800 <= code <= 0xDFFF)
    for result in (intersection(left, right), difference(left, right), complement(left)):
        assert result == merge(result)


def test_every_character_has_exactly_its_encodings() -> None:
    any_utf8 = Automaton.of(utf8(ANY_CHARACTER), BYTES)
    any_spelling = Automaton.of(spelled(ANY_CHARACTER), BYTES)
    any_canonical = Automaton.of(spelled(ANY_CHARACTER, canonical=True), BYTES)
    near_edges = (edge + step for edge in EDGES for step in range(-20, 20))
    codes = {*near_edges, *range(0x300), *range(0x300, 0x110000, 509)} & set(range(0x110000))
    for code in codes - set(range(0xD800, 0xE000)):
        character = chr(code)
        assert any_utf8.accepts(character.encode())
        canonical = canonical_spellings(character)
        for spelling in [*spellings(character), *canonical]:
            assert any_spelling.accepts(spelling.encode()), spelling
            assert any_canonical.accepts(spelling.encode()) == (spelling in canonical), spelling
    for surrogate in range(0xD800, 0xE000):
        assert not any_utf8.accepts(chr(surrogate).encode("utf-8", "surrogatepass"))
        assert not any_spelling.accepts(f"\\u{surrogate:04x}".encode())


def _words(automaton: Automaton) -> int:
    """How many words a finite language has."""
    ways = {0: 1}
    counted = 0
    while ways:
        counted += sum(count for state, count in ways.items() if automaton.accepting[state])
        following: dict[int, int] = {}
        for source, ranges, target in automaton.edges():
            width = sum(high - low + 1 for low, high in ranges)
            if source in ways:
                following[target] = following.get(target, 0) + ways[source] * width
        ways = following
    return counted


def test_encoders_accept_nothing_else() -> None:
    characters = 0x110000 - 0x800
    assert _words(Automaton.of(utf8(ANY_CHARACTER), BYTES)) == characters
    # Above 0x7E there is the character itself and its escape, below one of them.
    canonical = Automaton.of(spelled(ANY_CHARACTER, canonical=True), BYTES)
    assert _words(canonical) == characters + (characters - 0x7F)
    # Letters of hexadecimal digits have two cases: a digit is written in 22 ways, 8 to B in 6, C to F in 8.
    digit, high_halves, low_halves = 22, 2 * 6 * 22**2, 2 * 8 * 22**2
    escapes = digit**4 - high_halves - low_halves + high_halves * low_halves
    unescaped, short = characters - 0x20 - len('"\\'), len('"\\/bfnrt')
    assert _words(Automaton.of(spelled(ANY_CHARACTER), BYTES)) == unescaped + short + escapes


@given(sets, st.lists(code_points, min_size=1, max_size=5))
@settings(max_examples=20, deadline=None)
def test_encoded_set_holds_its_members_alone(ranges: Ranges, others: list[int]) -> None:
    in_bytes, in_json = Automaton.of(utf8(ranges), BYTES), Automaton.of(spelled(ranges), BYTES)
    near = [end + step for low, high in ranges for end in (low, high) for step in (-1, 0, 1)]
    for code in {*near, *others} & set(range(0x110000)) - set(range(0xD800, 0xE000)):
        assert in_bytes.accepts(chr(code).encode()) == in_set(ranges, code)
        for spelling in spellings(chr(code)):
            assert in_json.accepts(spelling.encode()) == in_set(ranges, code)


def test_encodings_are_small_and_shared() -> None:
    assert len(Automaton.of(utf8(ANY_CHARACTER), BYTES)) == 9
    assert len(Automaton.of(spelled(ANY_CHARACTER), BYTES)) == 21
    assert len(Automaton.of(spelled(((0x41, 0x41),)), BYTES)) == 7
    letters = unicode_property("L")
    assert utf8(letters) is utf8(tuple(letters))
    assert spelled(letters) is spelled(tuple(letters))


def test_expressions_and_automata_in_utf8() -> None:
    expr = concat(literal((0xE9, 0x1F600)), star(one_of([(0x61, 0x7FF)])), optional(literal((0xD800,))))
    for encoded in (in_utf8(expr), utf8_text(Automaton.of(expr))):
        assert accepts(encoded, "é😀".encode())
        assert accepts(encoded, "é😀aߟz".encode())
        assert not accepts(encoded, "é".encode())
        assert not accepts(encoded, "é😀A".encode())
        assert not accepts(encoded, b"\xc3\xa9\xf0\x9f\x98\x80\xed\xa0\x80")
    assert in_utf8(literal((0xD800,))) is NOTHING
    assert in_utf8(EMPTY) is EMPTY


@pytest.mark.parametrize("canonical", [False, True])
def test_json_strings_show_the_decoded_value(canonical: bool) -> None:
    value = Automaton.of(concat(literal((0x61, 0x22)), star(one_of([(0x1F600, 0x1F610)]))))
    body = value.expr(lambda ranges: spelled(ranges, canonical=canonical))
    encoded = Automaton.of(concat(literal(b'"'), body, literal(b'"')), BYTES)
    assert encoded.accepts(b'"a\\""')
    assert encoded.accepts('"a\\"😀\\ud83d\\ude05"'.encode())
    assert encoded.accepts(b'"\\u0061\\u0022\\uD83D\\uDE05"') != canonical
    assert not encoded.accepts(b'"a""')
    assert not encoded.accepts(b'"a\\"\\ud83d"')
    assert not encoded.accepts('"a\\"😑"'.encode())


@given(st.lists(st.text("abé", max_size=4), max_size=30))
def test_prefix_tree_holds_its_words_alone(words: list[str]) -> None:
    branches = [literal(tuple(map(ord, word))) for word in words]
    extra = concat(literal((0x61,)), one_of([(0x61, 0x62)]))
    automaton = Automaton.of(any_of([*branches, extra]))
    for word in {*words, "", "a", "b", "aa", "ab", "abé", "éé"}:
        assert automaton.accepts(map(ord, word)) == (word in {*words, "aa", "ab"})
