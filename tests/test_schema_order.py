"""Keys that only other branches declare come after a branch's own, so that choices stay small."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sortition.grammars.errors import GrammarError
from sortition.grammars.json_schema import json_schema

KINDS = ["cargo", "git", "go", "linux", "maven", "npm", "other", "pip", "pod", "ruby", "vcpkg", "zig"]


def one_of_kinds(keyword: str) -> dict[str, Any]:
    """A choice between open objects, each with a tag, a key of its own and what is in it."""
    inner = {"type": "object", "properties": {"name": {"type": "string"}, "version": {"type": "string"}}}
    return {
        "type": "object",
        keyword: [
            {
                "properties": {"type": {"enum": [kind]}, kind: {**inner, "required": ["name", "version"]}},
                "required": ["type", kind],
            }
            for kind in KINDS
        ],
    }


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_a_dozen_open_objects(keyword: str) -> None:
    grammar = json_schema(one_of_kinds(keyword))
    assert len(grammar.machine) < 3_000
    for kind in KINDS:
        assert grammar.accepts(json.dumps({"type": kind, kind: {"name": "a", "version": "1"}, "more": [1]}))
        assert not grammar.accepts(json.dumps({"type": kind, kind: {"name": "a"}}))
        assert not grammar.accepts(json.dumps({"type": kind, "oil": {"name": "a", "version": "1"}}))


def test_twenty_open_objects_with_a_tag() -> None:
    branches = [
        {
            "properties": {"kind": {"const": tag}, **{f"{tag}{i}": {"type": "string"} for i in range(20)}},
            "required": ["kind", *(f"{tag}{i}" for i in range(20))],
        }
        for tag in (f"t{number}_" for number in range(20))
    ]
    grammar = json_schema({"type": "object", "anyOf": branches})
    full = {"kind": "t7_", **{f"t7_{i}": "" for i in range(20)}}
    assert grammar.accepts(json.dumps(full))
    assert grammar.accepts(json.dumps({"other": 1, **full, "t3_1": 0}))
    assert not grammar.accepts(json.dumps({**full, "kind": "t3_"}))
    # What another branch declares comes after what this one does.
    assert grammar.accepts(json.dumps({**full, "t3_1": 0}))
    assert not grammar.accepts(json.dumps({"t3_1": 0, **full}))


def models(count: int, place: str, required: bool) -> list[dict[str, Any]]:
    """Open objects as classes of Python become: what all inherit, a tag, and eight keys of their own."""
    kinds = ["string", "integer", "array", "object"]
    found = []
    for number in range(count):
        base = {f"base{i}": {"type": kinds[i]} for i in range(4)}
        own = {f"own{number}_{i}": {"type": kinds[i % 4]} for i in range(8)}
        tag = {"kind": {"const": f"k{number}"}}
        parts = {"first": [tag, base, own], "middle": [base, tag, own], "last": [base, own, tag]}
        properties = {name: value for part in parts.get(place, [base, own]) for name, value in part.items()}
        found.append({"type": "object", "properties": properties, "required": list(properties) * required})
    return found


def example(model: dict[str, Any]) -> dict[str, Any]:
    values = {"string": "", "integer": 1, "array": [], "object": {}}
    return {
        name: value["const"] if "const" in value else values[value["type"]]
        for name, value in model["properties"].items()
    }


@pytest.mark.parametrize(
    ("keyword", "place", "required"),
    [
        *itertools.product(["anyOf", "oneOf"], ["first", "middle", "last"], [True, False]),
        ("anyOf", "none", True),
        ("anyOf", "none", False),
        ("oneOf", "none", True),
    ],
)
@pytest.mark.parametrize("count", [3, 6, 20])
def test_models(count: int, keyword: str, place: str, required: bool) -> None:
    choices = models(count, place, required)
    schema = {keyword: choices}
    grammar = json_schema(schema)
    assert len(grammar.machine) < 10_000
    validator = Draft202012Validator(schema)
    for model in choices:
        value, last = example(model), list(model["properties"])[-1]
        less = {key: value[key] for key in value if key != last}
        for each in (value, {**value, "more": [1]}, {"more": [1], **value}, less):
            assert grammar.accepts(json.dumps(each)) == validator.is_valid(each), each
        # To others, open as they are, it is a value with any keys; between many, these are left out.
        wrong = {**value, last: None}
        assert grammar.accepts(json.dumps(wrong)) <= validator.is_valid(wrong), wrong


@pytest.mark.parametrize("any_order", [False, True])
def test_one_of_many_keys_must_be_there(any_order: bool) -> None:
    names = [f"key{number}" for number in range(12)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in names},
        "anyOf": [
            *({"required": [name]} for name in names[:8]),
            *({"required": [name], "properties": {name: {"minimum": 5}}} for name in names[8:]),
        ],
    }
    grammar = json_schema(schema, any_order=any_order)
    assert len(grammar.machine) < 2_000
    validator = Draft202012Validator(schema)
    for value in ({}, {"a": 1}, {"key3": 1}, {"key10": 1}, {"key9": 1, "key10": 5}, {"key0": 1, "key10": 1}):
        assert grammar.accepts(json.dumps(value)) == validator.is_valid(value), value
    assert grammar.accepts('{"key8":5,"key1":1}') == any_order


def test_two_open_objects_that_exclude_each_other() -> None:
    lock = {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "path": {"type": "string"},
            "owner": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "email": {"type": "string"}},
                "required": ["name", "email"],
            },
            "locked_at": {"type": "string"},
            "unlocked_at": {"type": "string"},
        },
        "required": ["id", "path", "locked_at"],
    }
    schema = {
        "oneOf": [
            {"properties": {"lock": lock}, "required": ["lock"]},
            {"properties": {"error": {"type": "string"}}, "required": ["error"]},
        ],
        "type": "object",
    }
    grammar = json_schema(schema)
    assert len(grammar.machine) < 3_000
    good = {"id": "1", "path": "/", "owner": {"name": "a", "email": "b"}, "locked_at": "now"}
    bad = [
        7,
        {},
        {**good, "id": 1},
        {**good, "owner": {"name": "a"}},
        {**good, "owner": {"name": "a", "email": 0}},
        {key: value for key, value in good.items() if key != "path"},
    ]
    validator = Draft202012Validator(schema)
    both = {"lock": good, "error": "x"}
    for value in ({}, {"lock": good}, {"error": "x"}, both, {"lock": good, "error": 1}):
        assert grammar.accepts(json.dumps(value)) == validator.is_valid(value), value
    for each in bad:
        assert not grammar.accepts(json.dumps({"lock": each}))
        assert grammar.accepts(json.dumps({"error": "x", "lock": each})), each


def test_keys_of_another_branch_have_their_place() -> None:
    schema = {"anyOf": [{"properties": {"a": {}, "b": {"type": "null"}}}, {"properties": {"c": {}}}]}
    for any_order in (False, True):
        grammar = json_schema({"type": "object", **schema}, any_order=any_order)
        assert grammar.accepts('{"x":0,"c":1,"y":0,"b":2,"a":1,"z":0}')
        assert grammar.accepts('{"a":0,"b":2,"c":1}') == any_order


@pytest.mark.parametrize("others", [["c"], ["c", "d"], ["d", "c"], ["d", "a", "c"]])
@pytest.mark.parametrize("many", [False, True])
def test_what_lies_within_another_branch_keeps_its_order(others: list[str], many: bool) -> None:
    inherited, own = ["a", "b"], ["c", "a", "d", "b"]
    # So many more that keys of others are left out.
    more = [[f"more{number}_{i}" for i in range(8)] for number in range(8 if many else 0)]
    choices = [inherited, own, *([name] for name in others), *more]
    schema = {"type": "object", "anyOf": [{"properties": {name: {} for name in names}} for names in choices]}
    grammar = json_schema(schema)
    for names in [["a", "b"], *itertools.combinations(own, 3), own]:
        assert grammar.accepts(json.dumps(dict.fromkeys(names)))


def test_a_class_that_inherits_keeps_its_order() -> None:
    inherited = {"a": {"type": "integer"}}
    classes = [
        {"properties": inherited, "required": ["a"]},
        {"properties": {**inherited, "b": {}, "c": {}}, "required": ["a", "b"]},
        {"properties": {"c": {"type": "null"}}},
        {"properties": {"b": {"type": "null"}}},
    ]
    grammar = json_schema({"type": "object", "anyOf": classes})
    assert grammar.accepts('{"a":1,"b":2,"c":3}') and grammar.accepts('{"c":null,"a":"x","b":null}')
    assert not grammar.accepts('{"a":"x","b":2,"c":3}')


names = st.sampled_from(["a", "b", "c"])
value = st.sampled_from(
    [{}, {"type": "null"}, {"const": 1}, {"type": "integer"}, {"enum": [1, None]}, {"enum": ["x"]}, False]
)
branch = st.fixed_dictionaries(
    {},
    optional={
        "properties": st.dictionaries(names, value, max_size=3),
        "required": st.lists(names, max_size=2, unique=True),
        "additionalProperties": value,
        "patternProperties": st.dictionaries(st.sampled_from(["a", "^[bc]"]), value, max_size=1),
        "propertyNames": st.sampled_from([{}, {"enum": ["a", "b"]}]),
    },
)
negated = st.builds(lambda each: {"not": each}, branch)
tagged = st.builds(
    lambda tag, more: {**more, "properties": {"a": {"const": tag}, **more["properties"]}, "required": ["a"]},
    st.sampled_from([1, "x", None]),
    st.fixed_dictionaries(
        {"properties": st.dictionaries(st.sampled_from(["b", "c"]), value, max_size=2)},
        optional={
            "additionalProperties": value,
            "patternProperties": st.just({"^[bc]": {"type": "integer"}}),
        },
    ),
)
VALUES: list[dict[str, Any]] = [
    dict(zip(keys, values, strict=True))
    for count in range(4)
    for keys in itertools.combinations("abcd", count)
    for values in itertools.product([1, "x", None], repeat=count)
]


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    choices=st.lists(branch | negated, min_size=1, max_size=3) | st.lists(tagged, min_size=2, max_size=3),
    keyword=st.sampled_from(["anyOf", "oneOf", "allOf"]),
    any_order=st.booleans(),
)
def test_each_valid_object_has_an_order(choices: list[Any], keyword: str, any_order: bool) -> None:
    schema = {"type": "object", keyword: choices}
    try:
        grammar = json_schema(schema, any_order=any_order)
        grammar.machine  # noqa: B018
    except GrammarError:
        assume(False)
    validator = Draft202012Validator(schema)
    for each in VALUES:
        texts = [json.dumps(dict(pairs)) for pairs in itertools.permutations(each.items())]
        assert any(map(grammar.accepts, texts)) == validator.is_valid(each), each
