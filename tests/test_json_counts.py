"""Items and members that the frame counts, against validators, and with no dead ends."""

from __future__ import annotations

import json
import random
from typing import Any

import machines
import pytest
from jsonschema import Draft202012Validator
from test_table import check_against_the_walk

from sortition.grammars.expand import expanded
from sortition.grammars.json_schema import json_schema
from sortition.grammars.machine import Machine
from sortition.grammars.oracle import Walk

NULLS = {"additionalProperties": {"type": "null"}}
KEYS = [f"k{number}" for number in range(16)]
FIRST: list[Any] = [{"type": "string"}, {"type": "null"}]

ARRAYS: list[dict[str, Any]] = [
    {"minItems": 20},
    {"items": {"type": ["integer", "string"]}, "maxItems": 12},
    {"prefixItems": FIRST, "items": {"type": "integer"}, "minItems": 14, "maxItems": 18},
    {"prefixItems": FIRST, "minItems": 2, "maxItems": 20},
    {"prefixItems": FIRST, "minItems": 3, "maxItems": 20},
    {
        "anyOf": [
            {"items": {"type": "integer"}, "maxItems": 14},
            {"items": {"type": "number"}, "minItems": 16, "maxItems": 20},
            {"items": {"const": 1}, "maxItems": 3},
            {"prefixItems": FIRST, "minItems": 1, "maxItems": 19},
        ]
    },
]
OBJECTS: list[dict[str, Any]] = [
    {"maxProperties": 12, "minProperties": 1},
    {"properties": {key: {"type": "integer"} for key in "abcd"}, "required": ["a", "c"], "maxProperties": 11},
    {"properties": {"a": {}, "b": {}}, "required": ["b"], "minProperties": 2, "maxProperties": 10},
    {
        "properties": {key: {"type": "integer"} for key in KEYS},
        "required": ["k2", "k15"],
        "additionalProperties": False,
        "maxProperties": 11,
    },
    {
        "anyOf": [
            {"maxProperties": 15, **NULLS},
            {"maxProperties": 11},
            {"properties": {"a": {"const": 2}}, "required": ["a"], "maxProperties": 13},
        ]
    },
]


def arrays(draw: random.Random) -> list[Any]:
    return [
        first + [item] * count
        for first in ([], ["a"], ["a", None])
        for item in (1, 1.5, "b", draw.choice([None, []]))
        for count in range(22)
    ]


def objects(draw: random.Random, any_order: bool) -> list[Any]:
    """Objects of many sizes, half of them with keys that are required, their keys in order or in any."""
    keys, found = ["a", "b", "c", "d", *KEYS, *"uvwxyz"], []
    for size in [*range(18)] * 5:
        kept = set(draw.sample(keys, size)) | set(draw.choice([(), ("a", "c"), ("b",), ("k2", "k15")]))
        value = draw.choice([1, 1, 2, None])
        names = [key for key in keys if key in kept]
        if any_order:
            draw.shuffle(names)
        found.append(dict.fromkeys(names, value))
    return found


def written(machine: Machine, draw: random.Random) -> str:
    """A text that the machine writes; it may always go on."""
    walk, text = Walk(machine), b""
    while not walk.can_end:
        byte = next((each for each in draw.sample(b'{}[]",:1nula\n ', 14) if walk.advance(each)), None)
        if byte is None:
            byte = next(each for each in range(0x20, 0x7F) if walk.advance(each))
        text += bytes([byte])
    return text.decode()


@pytest.mark.parametrize("whitespace", ["default", "any", " ?"])
@pytest.mark.parametrize("schema", ARRAYS, ids=json.dumps)
def test_arrays(schema: dict[str, Any], whitespace: str) -> None:
    check({"type": "array", **schema}, whitespace, False, arrays(random.Random(0)))


@pytest.mark.parametrize("any_order", [False, True])
@pytest.mark.parametrize("whitespace", ["default", "any"])
@pytest.mark.parametrize("schema", OBJECTS, ids=json.dumps)
def test_objects(schema: dict[str, Any], whitespace: str, any_order: bool) -> None:
    check({"type": "object", **schema}, whitespace, any_order, objects(random.Random(0), any_order))


def check(schema: dict[str, Any], whitespace: str, any_order: bool, values: list[Any]) -> None:
    grammar = json_schema(schema, whitespace=whitespace, any_order=any_order)
    assert len(grammar.machine.step)
    validator = Draft202012Validator(schema)
    verdicts = [validator.is_valid(value) for value in values]
    assert len(set(verdicts)) == 2
    for value, verdict in zip(values, verdicts, strict=True):
        assert grammar.accepts(json.dumps(value)) == verdict, value
        if whitespace == "default":
            assert grammar.accepts(json.dumps(value, indent=2)) == verdict, value
    draw = random.Random(1)
    for _ in range(15):
        text = written(grammar.machine, draw)
        assert validator.is_valid(json.loads(text)), text


@pytest.mark.parametrize("schema", [ARRAYS[2], ARRAYS[5], OBJECTS[1], OBJECTS[4]], ids=json.dumps)
def test_tables(schema: dict[str, Any]) -> None:
    """Every token at every prefix, by the byte walk and by the machine whose states count."""
    draw = random.Random(2)
    machine = json_schema(schema, whitespace="compact", any_order=True).machine
    vocabulary = machines.random_vocabulary(machine, draw)
    for each in (machine, expanded(machine)):
        check_against_the_walk(each, vocabulary, draw, walks=4)


@pytest.mark.parametrize("count", [100, 100_000, 10**9, 10**12])
def test_counts_cost_nothing(count: int) -> None:
    for bounds in ({"maxItems": count}, {"minItems": min(count, 10**9)}, {"minItems": 50, "maxItems": count}):
        assert len(json_schema({"type": "array", "items": {"type": "null"}, **bounds}).machine) < 150
    for any_order in (False, True):
        grammar = json_schema({"type": "object", "maxProperties": count, **NULLS}, any_order=any_order)
        assert len(grammar.machine) < 150


def test_items_that_do_not_exist_are_not_begun() -> None:
    """An array that would need items without values is none, however many tests it would pass."""
    never = {"type": "array", "items": {"$ref": "#/$defs/never"}, "minItems": 1}
    schema = {
        "$defs": {"never": never},
        "anyOf": [{"const": 1}, {"type": "array", "prefixItems": [{}], "items": never, "minItems": 50}],
    }
    walk = Walk(json_schema(schema).machine)
    assert not walk.advance(ord("[")) and walk.advance(ord("1")) and walk.can_end
