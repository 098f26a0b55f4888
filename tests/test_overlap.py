"""Branches of `oneOf` that may overlap: found by groups, as by comparing each with each."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sortition.grammars.errors import TooLarge
from sortition.grammars.json_schema import json_schema
from sortition.grammars.schema_overlap import Outline, overlapping
from sortition.grammars.work import metered

CONSTANTS = st.frozensets(
    st.sampled_from([("null", None), *(("string", letter) for letter in "abc")]), max_size=3
)
OUTLINES = st.builds(
    Outline,
    constants=st.one_of(st.just(frozenset()), CONSTANTS),
    open_types=st.frozensets(st.sampled_from(["object", "object", "array", "string"]), max_size=2),
    tags=st.dictionaries(st.sampled_from(["kind", "type", "name"]), CONSTANTS),
)


def meet(ours: Outline, theirs: Outline) -> bool:
    """Whether a common value cannot be ruled out."""
    shared = ours.open_types & theirs.open_types
    return bool(
        ours.constants & theirs.constants
        or any(kind in theirs.open_types for kind, _ in ours.constants)
        or any(kind in ours.open_types for kind, _ in theirs.constants)
        or shared - {"object"}
        or (
            shared and all(ours.tags[key] & theirs.tags[key] for key in ours.tags.keys() & theirs.tags.keys())
        )
    )


@given(st.lists(st.none() | st.lists(OUTLINES, max_size=2), max_size=12))
def test_pairs_as_by_comparing_each_with_each(outlined: list[list[Outline] | None]) -> None:
    met = [
        (i, j)
        for (i, ours), (j, theirs) in combinations(enumerate(outlined), 2)
        if ours is None or theirs is None or any(meet(one, other) for one in ours for other in theirs)
    ]
    assert overlapping(outlined) == met


def event(number: int) -> dict[str, Any]:
    properties = {"kind": {"const": f"event {number}"}, f"field {number}": {"type": "integer"}}
    return {"type": "object", "properties": properties, "required": ["kind"], "additionalProperties": False}


def test_many_branches_with_a_tag_each() -> None:
    schema = {"oneOf": [event(number) for number in range(700)]}
    grammar = json_schema(schema)
    assert grammar.accepts('{"kind":"event 699","field 699":1}')
    assert not grammar.accepts('{"kind":"event 699","field 698":1}')
    # Only a few steps more than without telling that no two hold.
    assert grammar.steps < 1.1 * json_schema({"anyOf": schema["oneOf"]}).steps


def test_two_tags_tell_apart_together() -> None:
    tags = [(i // 12, [i % 12, i % 12 + 20]) for i in range(144)]
    outlined = [
        Outline(
            frozenset(),
            frozenset(["object"]),
            {"a": frozenset([_number(a)]), "b": frozenset(map(_number, b))},
        )
        for a, b in tags
    ]
    with metered() as meter:
        assert overlapping([[each] for each in outlined]) == []
        assert meter.steps < 20_000
    branches = [
        {"properties": {"a": {"const": a}, "b": {"enum": b}}, "required": ["a", "b"]} for a, b in tags
    ]
    schema = {"type": "object", "oneOf": branches}
    grammar, validator = json_schema(schema), Draft202012Validator(schema)
    for value in ({"a": 3, "b": 7}, {"a": 11, "b": 31}, {"a": 3, "b": 12}, {"b": 1, "a": 12}):
        text = str(value).replace("'", '"')
        assert grammar.accepts(text) == validator.is_valid(value)


def _number(value: int) -> Any:
    return "number", (value, 1)


def test_branches_without_tags_are_charged_for() -> None:
    with metered(), pytest.raises(TooLarge):
        overlapping([[Outline(frozenset(), frozenset(["object"]), {})] for _ in range(3_000)])
