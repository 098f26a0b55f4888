"""Sets of objects within others are dropped: fewer rules, and every text stays."""

from __future__ import annotations

import itertools
import json
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sortition.grammars import json_lowering
from sortition.grammars.errors import GrammarError
from sortition.grammars.grammar import Grammar
from sortition.grammars.json_schema import LOWERED, json_schema

TAGGED: dict[str, Any] = {
    "type": "object",
    "required": ["type"],
    "oneOf": [
        {"properties": {"type": {"enum": [f"{kind}1", f"{kind}2"]}, "default": {"type": kind}}}
        for kind in ("string", "array", "boolean", "object", "null")
    ],
    "anyOf": [{"required": ["name"]}, {"required": ["name", "label"]}],
}


def objects_of(schema: Any, any_order: bool) -> int:
    """How many sets of objects are written."""
    with pytest.MonkeyPatch.context() as patch:
        shape = Mock(side_effect=json_lowering.Lowering._shape, autospec=True)
        patch.setattr(json_lowering.Lowering, "_shape", lambda *arguments: shape(*arguments))
        LOWERED.clear()
        json_schema(schema, any_order=any_order)
    return shape.call_count


@pytest.mark.parametrize("any_order", [False, True])
def test_what_choices_multiply_out_to(any_order: bool) -> None:
    assert objects_of(TAGGED, any_order) == 5


def test_another_order_of_keys_is_no_other_set() -> None:
    a, b = {"a": {"type": "null"}}, {"b": {"type": "null"}}
    schema = {"type": "object", "anyOf": [{"properties": {**a, **b}}, {"properties": {**b, **a}}]}
    assert objects_of(schema, False) == 2 and objects_of(schema, True) == 1
    for any_order in (False, True):
        grammar = json_schema(schema, any_order=any_order)
        assert grammar.accepts('{"a":null,"b":null}') and grammar.accepts('{"b":null,"a":null}')


A: dict[str, Any] = {"a": {"type": "integer"}}


@pytest.mark.parametrize(
    "more",
    [
        {"required": ["a"]},
        {"minProperties": 1},
        {"maxProperties": 3},
        {"propertyNames": {"maxLength": 1}},
        {"additionalProperties": {"type": "null"}},
        {"patternProperties": {"b": {"type": "null"}}},
        {"properties": {"a": {"const": 1}}},
        {"not": {"additionalProperties": {"type": "null"}}},
    ],
)
def test_one_way_only(more: dict[str, Any]) -> None:
    for any_order in (False, True):
        wide, narrow = {"properties": A}, {"properties": A, **more}
        for choices in ([wide, narrow], [narrow, wide]):
            grammar = json_schema({"type": "object", "anyOf": choices}, any_order=any_order)
            assert grammar.accepts('{"a":2,"bb":3,"c":4,"d":null}') and grammar.accepts("{}")


def test_what_overlaps_only_is_kept() -> None:
    few, null = {"maxProperties": 1}, {"additionalProperties": {"type": "null"}}
    for any_order in (False, True):
        assert objects_of({"type": "object", "properties": A, "anyOf": [few, null]}, any_order) == 2


names = st.sampled_from(["a", "b", "c"])
value = st.sampled_from(
    [{}, {"type": "null"}, {"type": "integer"}, {"const": 1}, {"enum": [1, None]}, {"not": {"const": 1}}]
)
branch = st.fixed_dictionaries(
    {},
    optional={
        "properties": st.dictionaries(names, value, max_size=3),
        "required": st.lists(names, max_size=2, unique=True),
        "additionalProperties": value | st.booleans(),
        "patternProperties": st.dictionaries(st.sampled_from(["a", "^[bc]"]), value, max_size=1),
        "propertyNames": st.sampled_from([{}, {"enum": ["a", "b"]}]),
        "maxProperties": st.integers(0, 3),
    },
)
VALUES: list[dict[str, Any]] = [
    dict(zip(keys, values, strict=True))
    for count in range(3)
    for keys in itertools.permutations("abc", count)
    for values in itertools.product([1, 2, None], repeat=count)
]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    choices=st.lists(branch, min_size=2, max_size=3),
    keyword=st.sampled_from(["anyOf", "oneOf"]),
    any_order=st.booleans(),
)
def test_no_text_is_lost(choices: list[Any], keyword: str, any_order: bool) -> None:
    schema = {"type": "object", keyword: choices}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_lowering, "covers", lambda sets, *_: {each: each for each in sets})
        # A title makes it another schema for the cache.
        plain = compiled({**schema, "title": "plain"}, any_order)
    grammar = compiled(schema, any_order)
    validator = Draft202012Validator(schema)
    for each in VALUES:
        text = json.dumps(each)
        assert grammar.accepts(text) >= plain.accepts(text), text
        assert validator.is_valid(each) >= grammar.accepts(text), text


def compiled(schema: Any, any_order: bool) -> Grammar:
    try:
        grammar = json_schema(schema, any_order=any_order)
        grammar.machine  # noqa: B018
    except GrammarError:
        assume(False)
    return grammar
