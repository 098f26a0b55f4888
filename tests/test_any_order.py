"""Declared keys in any order: as a validator, whatever the order."""

from __future__ import annotations

import json
import random
from itertools import permutations, product
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sortition.grammars.errors import TooLarge
from sortition.grammars.json_schema import json_schema

SCHEMAS = [
    {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": True}, "required": ["c", "a"]},
    {"properties": {"a": {"const": 1}, "b": {"const": 2}}, "additionalProperties": {"type": "null"}},
    {"properties": {"a": True, "b": True, "c": True}, "minProperties": 2, "additionalProperties": False},
    {"properties": {"a": True, "b": True, "c": True}, "maxProperties": 2, "additionalProperties": False},
    {"enum": [{"a": 1, "b": "x"}, {"b": "x", "c": None, "a": 1}]},
    {"properties": {"a": True, "b": True}, "not": {"properties": {"a": {"type": "integer"}}}},
    {
        "anyOf": [
            {"properties": {"a": {"const": 1}}, "required": ["b", "a"]},
            {"properties": {"b": {"const": "x"}}, "required": ["c"]},
        ]
    },
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_as_a_validator(schema: Any) -> None:
    schema = {"type": "object", **schema}
    grammar, ordered = json_schema(schema, any_order=True), json_schema(schema)
    validator = Draft202012Validator(schema)
    values = {"a": [1, "x"], "b": ["x", 2], "c": [None, 1]}
    for count in range(len(values) + 1):
        for keys in permutations(values, count):
            for chosen in product(*(values[key] for key in keys)):
                value = dict(zip(keys, chosen, strict=True))
                for text in (json.dumps(value), json.dumps(value, indent=2)):
                    assert grammar.accepts(text) == validator.is_valid(value), text
                    assert grammar.accepts(text) or not ordered.accepts(text), text


def test_keys_in_any_order_have_a_budget() -> None:
    keys = [f"key {number}" for number in range(70)]
    schema: dict[str, Any] = {"type": "object", "properties": {key: {"type": "null"} for key in keys}}
    assert json_schema(schema, any_order=True).accepts(json.dumps(dict.fromkeys(reversed(keys))))
    with pytest.raises(TooLarge, match="70 keys in any order"):
        json_schema({**schema, "required": keys}, any_order=True)


def test_fourteen_keys_that_must_be_there() -> None:
    keys = [f"key {number}" for number in range(14)]
    value = dict.fromkeys(keys, 0)
    schema = {"type": "object", "properties": {key: {"type": "integer"} for key in keys}, "required": keys}
    grammar = json_schema(schema, any_order=True)
    draw = random.Random(0)
    for _ in range(20):
        draw.shuffle(keys)
        assert grammar.accepts(json.dumps({key: value[key] for key in keys}))
        assert not grammar.accepts(json.dumps({key: value[key] for key in keys[1:]}))
    # A key that comes again stands for itself alone.
    assert not grammar.accepts("{" + ", ".join(f'"{key}": 0' for key in [*keys[1:], keys[1]]) + "}")


def test_free_objects_beside_declared_keys() -> None:
    schema = {"anyOf": [{"type": "object", "required": ["a"]}, {"type": "object"}], "properties": {"a": {}}}
    for whitespace in ("default", "compact", "any", " ?"):
        grammar = json_schema(schema, any_order=True, whitespace=whitespace)
        assert grammar.accepts('{"b":{"c":1},"a":[{"d":2,"e":3}]}')
        assert not grammar.accepts('{"b":{"c":1,},"a":2}')
        assert grammar.accepts('{"b" : 1 , "a" : { } }') == (whitespace in ("any", " ?"))
