"""Grammars as values: the algebra, and what a union of nesting and plain languages allows."""

from __future__ import annotations

import pytest
import torch

from sortition.grammars.choice import choice
from sortition.grammars.errors import GrammarError, Invalid, Unsatisfiable, Unsupported
from sortition.grammars.json_schema import json_schema
from sortition.grammars.matcher import Matcher
from sortition.grammars.oracle import Walk, allowed_tokens, read
from sortition.grammars.regex import regex
from sortition.grammars.vocabulary import Vocabulary
from sortition.sampling.constraint import Constraint

LETTERS = [bytes([byte]) for byte in range(256)]
LONGER = [b"null", b'":', b"[?", b"]]", b"e}"]
VOCABULARY = Vocabulary.of([*LETTERS, *LONGER, b""], end_tokens=[len(LETTERS) + len(LONGER)])


def test_union_of_schema_and_regex() -> None:
    grammar = json_schema({"type": "object"}) | regex("null|none")
    assert all(grammar.accepts(text) for text in ["{}", '{"a": [1]}', "null", "none"])
    assert not any(grammar.accepts(text) for text in ["", "nul", "nullnone", "[]"])


def test_union_of_schemas_keeps_their_rules_apart() -> None:
    short, long = {"type": "string", "maxLength": 1}, {"type": "string", "minLength": 3}
    grammar = json_schema(short) | json_schema(long)
    assert [len(text) for text in ['""', '"a"', '"ab"', '"abc"'] if grammar.accepts(text)] == [2, 3, 5]


def test_concatenation() -> None:
    grammar = regex("<tool>") + json_schema({"enum": [1, 2]}) + regex("</tool>")
    assert grammar.accepts("<tool>1</tool>") and not grammar.accepts("<tool>3</tool>")


def test_intersection_and_complement() -> None:
    words = regex("[a-z]+") & ~regex("bad|worse")
    assert words.accepts("good") and words.accepts("badly")
    assert not words.accepts("bad") and not words.accepts("worse") and not words.accepts("G")
    assert (~regex("a")).accepts("é") and not (~regex("a")).accepts(b"\xff")


@pytest.mark.parametrize("sign", ["&", "~"])
def test_nesting_languages_are_not_complemented(sign: str) -> None:
    schema = json_schema({"type": "array"})
    with pytest.raises(Unsupported, match=sign):
        schema & regex("a") if sign == "&" else ~schema


def test_an_empty_intersection_is_an_error() -> None:
    with pytest.raises(Unsatisfiable):
        regex("a+") & regex("b+")


def test_where_a_number_stops_must_be_told() -> None:
    with pytest.raises(GrammarError, match="stops"):
        (json_schema({"type": "integer"}) + regex("[0-9]x")).machine  # noqa: B018


def test_plain_text_inside_a_nested_part() -> None:
    """The plain alternative may end while the other one is still inside a bracket."""
    grammar = json_schema(True, whitespace="compact") | regex(r"\[\?|\[nullable\[|nul")
    table = grammar.compile(VOCABULARY)
    for text in ["[?", "[nullable[", "nul", "null", "[null]", '[{"a":[]}]']:
        assert grammar.accepts(text), text
        walk: Walk | None = Walk(grammar.machine)
        matcher = Matcher(table)
        constraint = Constraint([table], end_tokens=table.end_tokens.tolist())
        position = constraint.start(torch.zeros(1, dtype=torch.int64))
        for byte in text.encode():
            assert walk is not None
            token = LETTERS.index(bytes([byte]))
            expected = allowed_tokens(walk, VOCABULARY)
            for mask in (_set(matcher), torch.nonzero(constraint.allowed(position)[0]).flatten().tolist()):
                assert [t for t in mask if t not in table.end_tokens] == expected
                assert (table.end_tokens[0] in mask) == walk.can_end
            assert matcher.advance(token)
            position = constraint.step(position, torch.tensor([token]))
            walk = read(walk, bytes([byte]))
        assert walk is not None and walk.can_end and matcher.can_end and bool(constraint.can_end(position))


def _set(matcher: Matcher) -> list[int]:
    words = matcher.allowed()
    return [token for token in range(len(VOCABULARY)) if words[token >> 5] >> (token & 31) & 1]


def test_what_is_not_a_vocabulary_is_refused() -> None:
    with pytest.raises(TypeError, match="a grammar is compiled for a Vocabulary, not for a list"):
        regex("a").compile([b"a"])  # type: ignore[arg-type]


OPTIONS = ["", "a", "ab", "a b", ".*", "[x]", r"\d", "\n", r"\n", "é", "e\u0301", "😀", '"', "True"]


def test_a_choice_is_its_options_and_nothing_else() -> None:
    grammar = choice(OPTIONS)
    near = [each + more for each in OPTIONS for more in ("", "a", " ")] + [each[:-1] for each in OPTIONS]
    assert [text for text in near if grammar.accepts(text) != (text in OPTIONS)] == []


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ([], Unsatisfiable, "there are no options"),
        (["a", None], TypeError, "an option is a str, not NoneType"),
        ([b"a"], TypeError, "an option is a str, not bytes"),
        ("abc", TypeError, "the options are a list of texts, not one text"),
        (None, TypeError, "the options are a list of texts, not NoneType"),
        (["\ud800"], Invalid, "lone surrogate"),
    ],
    ids=str,
)
def test_what_is_no_choice(options: object, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        choice(options)  # type: ignore[arg-type]


def test_lone_surrogates_are_not_text() -> None:
    assert not regex("(?s).*").accepts("\ud800")
    assert regex("(?s).*").accepts("\U0001f600")
