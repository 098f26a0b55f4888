"""Choices that are made already: dozens of them by one tag, and what is told is true."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sortition.grammars.errors import Unsatisfiable
from sortition.grammars.json_schema import json_schema

KINDS = [f"kind {number}" for number in range(30)]
OF_A_KIND: dict[str, Any] = {
    "if": {
        "type": "object",
        "properties": {"kind": {"enum": KINDS}, "size": {"type": "integer"}},
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": kind}}},
                "then": {"properties": {f"of {kind}": {"type": "string"}}, "required": [f"of {kind}"]},
            }
            for kind in KINDS
        ],
    },
    "oneOf": {
        "properties": {"kind": {"type": "string"}, "size": {"type": "integer"}},
        "required": ["kind"],
        "allOf": [
            {
                "oneOf": [
                    {
                        "properties": {"kind": {"const": kind}, "size": {"maximum": number}},
                        "required": ["size"],
                    },
                    {"properties": {"kind": {"not": {"const": kind}}}},
                ]
            }
            for number, kind in enumerate(KINDS)
        ],
    },
}
ASKED = [
    {"kind": "kind 3", "of kind 3": "x"},
    {"kind": "kind 3", "of kind 4": "x"},
    {"kind": "kind 3", "size": 3},
    {"kind": "kind 3", "size": 4},
    {"kind": "another", "size": 4},
    {"kind": "another"},
    {"size": 1},
    {"size": 1, **{f"of {kind}": "" for kind in KINDS}},
    {},
]


@pytest.mark.parametrize("keyword", OF_A_KIND)
def test_a_tag_that_dozens_of_choices_ask_for(keyword: str) -> None:
    schema = OF_A_KIND[keyword]
    grammar = json_schema(schema)
    assert len(grammar.machine) < 6_000
    for value in ASKED:
        assert grammar.accepts(json.dumps(value)) == Draft202012Validator(schema).is_valid(value), value


PLAIN = st.sampled_from(
    [
        *({"const": "x"}, {"enum": ["x", 1]}, {"enum": ["y", None, 2]}, {"type": "string"}),
        {"type": "integer"},
        *({"not": {"const": "x"}}, {"not": {"type": "string"}}, {"type": "integer", "maximum": 1}, {}),
        *({"anyOf": [{"const": "x"}, {"type": "integer"}]}, {"anyOf": [{}, {"type": "string"}]}, False),
        *({"type": "string", "maxLength": 0}, {"allOf": [{"type": ["string", "null"]}, {"enum": ["x", 1]}]}),
        *({"type": "object", "required": ["k"]}, {"type": "array", "items": {"const": 1}}),
    ]
)
KEYS = ["k", "m"]


def some(sets: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(sets, min_size=1, max_size=3)


OBJECTS = st.fixed_dictionaries(
    {"properties": st.dictionaries(st.sampled_from(KEYS), PLAIN, min_size=1)},
    optional={
        "type": st.just("object"),
        "required": st.lists(st.sampled_from(KEYS), unique=True),
        "additionalProperties": st.just(False),
    },
)
SCHEMAS = st.recursive(
    OBJECTS,
    lambda inner: st.one_of(
        st.fixed_dictionaries({"not": inner}),
        *(st.fixed_dictionaries({keyword: some(inner)}) for keyword in ("allOf", "anyOf", "oneOf")),
        st.fixed_dictionaries({"if": inner}, optional={"then": inner, "else": inner}),
        st.fixed_dictionaries({"dependentSchemas": st.dictionaries(st.sampled_from(KEYS), inner)}),
    ),
    max_leaves=5,
)
VALUES = [
    *("x", None),
    *({"k": value} for value in ["x", "y", "", 1, 2, None, {"k": 1}, {}, [2]]),
    *({"k": value, "m": more} for value in ["x", 1, 2, None] for more in ["x", "", 1, None]),
    *({}, {"m": "x"}, {"o": 1}, {"m": 1, "o": 1}, {"k": "x", "o": 1}),
]


@given(st.lists(SCHEMAS, min_size=2, max_size=4))
@settings(max_examples=100)
def test_what_several_choices_leave_is_what_is_valid(schemas: list[Any]) -> None:
    schema = {"allOf": schemas}
    validator = Draft202012Validator(schema)
    valid = [validator.is_valid(value) for value in VALUES]
    try:
        grammar = json_schema(schema)
        _ = grammar.machine
    except Unsatisfiable:
        assert not any(valid)
        return
    for value, is_valid in zip(VALUES, valid, strict=True):
        orders = permutations(value.items()) if isinstance(value, dict) else [None]
        found = [grammar.accepts(json.dumps(value if order is None else dict(order))) for order in orders]
        assert any(found) if is_valid else not any(found), (schema, value)
