"""Strings with lengths that are counted, against validators and against states that count."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sortition.grammars.automaton import Automaton
from sortition.grammars.errors import GrammarError, Invalid, Unsatisfiable
from sortition.grammars.expr import alternative, concat, literal, repeat, star
from sortition.grammars.json_lengths import Lengths
from sortition.grammars.json_schema import json_schema
from sortition.grammars.oracle import Walk


def letters(text: str) -> Any:
    return literal(tuple(map(ord, text)))


A, B = letters("a"), letters("b")

LANGUAGES = {
    "any": star(alternative(A, B)),
    "even": star(concat(A, B)),
    "ends": concat(star(A), B, B),
    "finite": repeat(A, 3, 50),
    "two": alternative(star(concat(A, A, A)), concat(B, star(A))),
}
BOUNDS = [(0, 40), (40, None), (35, 40), (39, 39), (0, 60), (45, 100), (1, 33), (51, 70)]


LEFT_TO_STATES = {("even", 39, 39), ("two", 39, 39)}
"""Where some state can be completed with some lengths, but not with others in between."""


def accepts(lengths: Lengths, word: str) -> bool:
    """The counts of `Lengths` alone, character by character."""
    state = 0
    for count, character in enumerate(word, start=1):
        state = int(lengths.automaton.move[state, lengths.automaton.class_of(ord(character))])
        greatest = lengths.greatest[state]
        if state < 0 or count < lengths.least[state] or (greatest is not None and count > greatest):
            return False
    high = lengths.high
    return (
        bool(lengths.automaton.accepting[state])
        and lengths.low <= len(word)
        and (high is None or len(word) <= high)
    )


@pytest.mark.parametrize(("low", "high"), BOUNDS)
@pytest.mark.parametrize("name", LANGUAGES)
def test_every_length(name: str, low: int, high: int | None) -> None:
    automaton = Automaton.of(LANGUAGES[name])
    lengths = Lengths.of(automaton, low, high)
    words = [text * count + end for text in ("a", "ab") for count in range(75) for end in ("", "b", "bb")]
    words += ["b" + "a" * count for count in range(75)]
    wanted = [
        word
        for word in words
        if automaton.accepts(map(ord, word)) and low <= len(word) and (high is None or len(word) <= high)
    ]
    assert (lengths is None) == ((name, low, high) in LEFT_TO_STATES)
    if lengths is None:
        return
    assert [word for word in words if not lengths.is_empty and accepts(lengths, word)] == wanted


def test_gaps_are_left_to_states() -> None:
    even = Automaton.of(LANGUAGES["even"])
    assert Lengths.of(even, 39, 39) is None and Lengths.of(even, 38, 39) is not None
    assert Lengths.of(even, 0, 39) is not None


SCHEMAS: list[dict[str, Any]] = [
    {"type": "string", "maxLength": 100},
    {"type": "string", "minLength": 50, "maxLength": 60},
    {"type": "string", "minLength": 40},
    {"type": "string", "minLength": 36, "maxLength": 100_000, "pattern": "^[a-z]+(-[0-9]{3})?$"},
    {"type": "string", "minLength": 33, "maxLength": 33, "pattern": "^(ab)*c?$"},
    {"anyOf": [{"type": "string", "maxLength": 40}, {"enum": ["b" * 50, "a" * 41]}, {"const": None}]},
    {"anyOf": [{"type": "string", "maxLength": 40}, {"type": "string", "minLength": 45, "maxLength": 48}]},
    {"oneOf": [{"type": "string", "maxLength": 40, "pattern": "a$"}, {"type": "string", "pattern": "b$"}]},
]


def texts(draw: random.Random) -> list[str]:
    """Strings around every bound, of characters that take one byte or many."""
    lengths = [*range(31, 52), 0, 1, 59, 60, 61, 99, 100, 101]
    words = [
        character * length
        for length in lengths
        for character in ("a", "b", "é", "\n", "\U0001f600", "ab", "-")
    ]
    words += ["ab" * (length // 2) + "c" for length in lengths]
    words += ["".join(draw.choices("aé\U00010000\\", k=length)) for length in lengths]
    return words + ["a" * length + "-123" for length in lengths]


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_verdicts(schema: dict[str, Any], wrapped: bool) -> None:
    values: list[Any] = texts(random.Random(0))
    if wrapped:
        schema = {
            "anyOf": [
                {"properties": {"a": schema, "b": {"const": 1}}, "required": ["b"]},
                {"properties": {"a": {"type": "string", "maxLength": 38}}, "additionalProperties": False},
            ],
            "type": "object",
        }
        values = [{"a": text, "b": number} for text in values[::3] for number in (1, 2)]
        values += [{"a": text} for text in texts(random.Random(1))[::3]]
    grammar, validator = json_schema(schema), Draft202012Validator(schema)
    for value in values:
        for ascii_only in (True, False):
            text = json.dumps(value, ensure_ascii=ascii_only)
            assert grammar.accepts(text) == validator.is_valid(value), text


@pytest.mark.parametrize("longest", [100, 1_000, 1 << 30, 1 << 40])
def test_length_costs_nothing(longest: int) -> None:
    assert len(json_schema({"type": "string", "maxLength": longest}).machine) < 40


def test_strings_that_do_not_exist_are_not_begun() -> None:
    none = {"type": "string", "minLength": 34, "maxLength": 40, "pattern": "^a?b?$"}
    walk = Walk(json_schema({"type": "array", "items": none}).machine)
    assert walk.advance(ord("["))
    assert not walk.advance(ord('"')) and walk.advance(ord("]")) and walk.can_end


@pytest.mark.parametrize(
    ("pattern", "shortest", "longest"),
    [
        ("^.{1,5000}$", 1, 5_000),
        (r"^[a-c\]\"]{33}$", 33, 33),
        (r"^\w{40,}$", 40, None),
        ("^[^]{0,65536}$", 0, 65_536),
    ],
)
def test_repeats_of_a_class_cost_nothing(pattern: str, shortest: int, longest: int | None) -> None:
    grammar = json_schema({"type": "string", "pattern": pattern})
    assert len(grammar.machine) < 50
    for length in {
        0,
        max(0, shortest - 1),
        shortest,
        shortest + 1,
        5_000,
        longest or 100,
        (longest or 100) + 1,
    }:
        fits = length >= shortest and (longest is None or length <= longest)
        assert grammar.accepts(json.dumps("a" * length)) == fits, length


def test_repeats_meet_other_bounds() -> None:
    """What a pattern counts and what `maxLength` does are one, and patterns that are none stay so."""
    narrow = json_schema({"type": "string", "pattern": "^[ab]{2,90}$", "maxLength": 3})
    texts = ["a", "ab", "aba", "abab", "ac"]
    assert [narrow.accepts(json.dumps(text)) for text in texts] == [False, True, True, False, False]
    with pytest.raises(Unsatisfiable, match="no value can be valid"):
        _ = json_schema({"type": "string", "pattern": "^[ab]{40}$", "maxLength": 3}).machine
    with pytest.raises(Invalid, match="wrong order"):
        json_schema({"pattern": "^.{99,1}$"})
    with pytest.raises(GrammarError, match="at /properties/a: 'pattern'"):
        _ = json_schema({"properties": {"a": {"pattern": r"^[\p{Foo}]{40}$"}}}).machine
    opposite = json_schema({"type": "string", "not": {"pattern": "^[ab]{2,40}$"}})
    assert [opposite.accepts(json.dumps(text)) for text in [*texts, "a" * 41]] == [
        True,
        False,
        False,
        False,
        True,
        True,
    ]
