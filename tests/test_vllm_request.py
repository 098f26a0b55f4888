"""What a vLLM request may ask for, how it is refused, and that refusing is cheap."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sortition.grammars.choice import choice
from sortition.grammars.errors import Invalid, Unsatisfiable
from sortition.integrations.request import request
from sortition.integrations.vllm_request import (
    DEEPEST,
    GREATEST,
    LARGEST,
    MOST_TOKENS,
    Asked,
    Request,
    RequestError,
    check,
    read,
)
from sortition.sampling.parameters import Parameters

SCHEMA = {"type": "object", "properties": {"b": {}, "a": {"type": "string"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"regex": "a+"}, Request("regex", '"a+"')),
        ('{"regex": "a+"}', Request("regex", '"a+"')),
        ({"choice": ["a", "ö"]}, Request("choice", '["a", "ö"]')),
        ({"json_schema": SCHEMA}, Request("json_schema", json.dumps(SCHEMA))),
        ({"json_schema": json.dumps(SCHEMA, indent=3)}, Request("json_schema", json.dumps(SCHEMA))),
        ({"json_schema": True}, Request("json_schema", "true")),
        ({"json_schema": "true"}, Request("json_schema", "true")),
        (
            {"json_schema": SCHEMA, "whitespace": "compact"},
            Request("json_schema", json.dumps(SCHEMA), (("whitespace", "compact"),)),
        ),
        (
            {"json_schema": SCHEMA, "formats": "annotate", "whitespace": None},
            Request("json_schema", json.dumps(SCHEMA), (("formats", "annotate"),)),
        ),
        ({"json_schema": True, "any_order": 1}, Request("json_schema", "true", (("any_order", True),))),
        ({"regex": "a+", "any_order": 0}, Request("regex", '"a+"')),
        (
            '{"json_schema": true, "ignore": ["uniqueItems", "pattern", "uniqueItems"]}',
            Request("json_schema", "true", (("ignore", ("pattern", "uniqueItems")),)),
        ),
        ({"json_schema": SCHEMA, "ignore": []}, Request("json_schema", json.dumps(SCHEMA))),
        (
            {"json_schema": {"uniqueItems": True}, "ignore": ["uniqueItems"]},
            Request("json_schema", '{"uniqueItems": true}', (("ignore", ("uniqueItems",)),)),
        ),
        ({"regex": "a+", "any_order": False, "choice": None}, Request("regex", '"a+"')),
    ],
)
def test_grammars_that_are_understood(fields: Any, expected: Request) -> None:
    assert read({"sortition": fields, "something": "else"}) == Asked(expected)
    assert check({"sortition": fields}) == Asked(expected)


@pytest.mark.parametrize(
    ("fields", "draw"),
    [
        ({"draw": True}, {}),
        ({"draw": 1, "top_k": None}, {}),
        ('{"draw": 1, "temperature": 0}', {"temperature": 0}),
        ({"min_p": 0.1}, {"min_p": 0.1}),
        (
            {"order": "llama.cpp", "penalty_window": 0, "min_p": 1.5},
            {"order": "llama.cpp", "min_p": 1.5, "penalty_window": 0},
        ),
        ({"order": ["top_p", "temperature"]}, {"order": ("top_p", "temperature")}),
        ({"logit_bias": {"5": -1, "07": 2.5}}, {"logit_bias": {5: -1, 7: 2.5}}),
        ('{"logit_bias": {"5": -Infinity}}', {"logit_bias": {5: float("-inf")}}),
        ({"logit_bias": {5: 1.0}}, {"logit_bias": {5: 1.0}}),
        ({"allowed_tokens": [3, 1]}, {"allowed_tokens": (3, 1)}),
        ({"bad_words": [[1, 2], (3,)]}, {"bad_words": ((1, 2), (3,))}),
        ({"typical": 0.9, "ties": "keep", "min_keep": 2}, {"typical": 0.9, "ties": "keep", "min_keep": 2}),
    ],
)
def test_draws_that_are_understood(fields: Any, draw: dict[str, Any]) -> None:
    assert check({"sortition": fields}) == Asked(None, draw)


def test_a_grammar_and_a_draw() -> None:
    asked = check({"sortition": {"regex": "a+", "temperature": 0.7}})
    assert asked == Asked(Request("regex", '"a+"'), {"temperature": 0.7})


def test_a_request_takes_numpy_s_numbers_and_any_container() -> None:
    fields = request(
        min_keep=np.int64(2), logit_bias={np.int64(5): np.float32(1.5)}, bad_words=np.array([[1, 2]])
    )
    assert fields == {"sortition": {"min_keep": 2, "logit_bias": {5: 1.5}, "bad_words": [[1, 2]]}}


def test_every_parameter_can_be_asked_for() -> None:
    values = {**asdict(Parameters()), "penalty_window": 9, "allowed_tokens": [1]}
    asked = check({"sortition": json.dumps(values)})
    assert asked is not None and asked.draw is not None
    assert asked.draw.keys() == values.keys()
    assert Parameters(**asked.draw) == Parameters(penalty_window=9, allowed_tokens=(1,))


@pytest.mark.parametrize("extra", [None, {}, {"other": 1}])
def test_requests_that_are_not_ours(extra: Any) -> None:
    assert check(extra) is None


def nested(depth: int) -> Any:
    schema: Any = True
    for _ in range(depth):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (None, "not null"),
        (3, "not int"),
        ([], "not list"),
        ("", "the field is not JSON"),
        ("[1]", "not list"),
        ({}, "one of json_schema, regex, choice is needed, not none of them"),
        ({"draw": 0, "top_p": None}, "one of json_schema, regex, choice is needed, not none of them"),
        ({"regex": "a", "choice": ["a"]}, "not regex and choice"),
        ({"regexp": "a"}, "unknown field 'regexp'; did you mean 'regex'?"),
        ({"regex": "a", "whitspace": "any"}, "did you mean 'whitespace'?"),
        ({"regex": "a", "tempreature": 1}, "did you mean 'temperature'?"),
        (
            {"regex": "a", "qqq": 1},
            "choice, any_order, whitespace, formats, ignore, draw, temp",
        ),
        ({"regex": "a", "top_p": 1.5}, "top_p is from 0 to 1, not 1.5"),
        ({"temperature": -1}, "temperature is 0 or more"),
        ({"temperature": float("nan")}, "temperature is a number"),
        ({"temperature": "0.7"}, "temperature is a number, not '0.7'"),
        ({"temperature": True}, "temperature is a number, not True"),
        ({"top_k": 1.5}, "top_k is a whole number"),
        ({"top_k": 10**400}, f"'top_k' is a number up to {GREATEST:,}"),
        ({"ties": "some"}, "ties is 'exact' or 'keep'"),
        ({"order": "hff"}, "unknown order 'hff'; did you mean 'hf'?"),
        ({"order": ["top_q"]}, "unknown stage 'top_q'; did you mean"),
        ({"order": 1}, "'order' is the name of an order or a list of stages, not int"),
        ({"logit_bias": [1]}, "'logit_bias' is an object from token ids to numbers, not list"),
        ({"logit_bias": {"a": 1}}, "'logit_bias' names tokens by their ids, not by 'a'"),
        ({"logit_bias": {"1": "b"}}, "logit_bias of token 1 is a number"),
        ({"logit_bias": {"1": 10**400}}, "'logit_bias' has numbers up to"),
        (
            {"logit_bias": dict.fromkeys(range(MOST_TOKENS + 1), 1)},
            "'logit_bias' names more than 4,096 tokens",
        ),
        ({"allowed_tokens": []}, "allowed_tokens is empty"),
        ({"allowed_tokens": 5}, "'allowed_tokens' is a list of token ids, not int"),
        ({"allowed_tokens": [-1]}, "'allowed_tokens' names tokens by their ids, not by -1"),
        ({"allowed_tokens": [True]}, "names tokens by their ids, not by True"),
        ({"bad_words": [[]]}, "a phrase of bad_words is empty"),
        ({"bad_words": ["no"]}, "'bad_words' is a list of phrases, each a list of token ids"),
        ({"bad_words": [[2**31]]}, "'bad_words' names tokens by their ids"),
        ({"bad_words": [[1] * MOST_TOKENS, [1]]}, "'bad_words' names more than 4,096 tokens"),
        ({"allowed_token_ids": [1]}, "did you mean 'allowed_tokens'?"),
        ({"draw": 0, "top_k": 5}, "'draw' is false, and 'top_k' is a field of our draw"),
        ({"draw": "yes"}, "'draw' is true or false"),
        ({"draw": 1, "seed": 1}, "'seed' is the request's own seed"),
        ({"draw": 1, "whitespace": "any"}, "'whitespace' is a choice for 'json_schema', which is not there"),
        ({"xtc": 1}, "'xtc' is not built yet"),
        ({"mirostat": 1}, "'mirostat' is not built yet"),
        ({"grammar": "root ::= a"}, "'grammar' is not built yet"),
        ({"regex": "a", "after": "</think>"}, "'after' is not built yet"),
        ({"regex": "a+", "any_order": True}, "'any_order' is a choice for 'json_schema', not for 'regex'"),
        ({"draw": 1, "any_order": 1}, "'any_order' is a choice for 'json_schema', which is not there"),
        ({"json_schema": True, "any_order": "yes"}, "'any_order' is true or false"),
        ({"regex": "a", "seed": 1}, "'seed' is the request's own seed"),
        ({"regex": 1}, "'regex' is a text, not int"),
        ({"regex": "(a"}, "regex: "),
        ({"regex": "a", "whitespace": "any"}, "not for 'regex'"),
        ({"regex": "a", "formats": "annotate"}, "not for 'regex'"),
        ({"json_schema": True, "formats": "maybe"}, "formats must be 'assert' or 'annotate'"),
        ({"json_schema": True, "whitespace": 1}, "'whitespace' is a text"),
        ({"json_schema": {"uniqueItems": True}}, 'ignore=["uniqueItems"] leaves it to you'),
        ({"json_schema": True, "ignore": "format"}, "ignore lists keywords"),
        ({"json_schema": True, "ignore": ["formt"]}, "did you mean 'format'?"),
        ({"regex": "a", "ignore": ["format"]}, "'ignore' is a choice for 'json_schema', not for 'regex'"),
        ({"json_schema": [1]}, "'json_schema' is an object, true, false or JSON text, not list"),
        ({"json_schema": "{"}, "'json_schema' is not JSON"),
        ({"json_schema": {"type": "strin"}}, "json_schema: at the root: 'type'"),
        ({"json_schema": {"const": float("nan")}}, "not JSON"),
        ({"json_schema": {"const": {1, 2}}}, "not JSON"),
        ({"json_schema": nested(DEEPEST + 1)}, "nested more than"),
        ({"json_schema": "[" * 100_000}, "nested more than"),
        ({"json_schema": {"const": "x" * LARGEST}}, "bytes of grammar"),
        ({"json_schema": " " * (LARGEST + 1)}, "bytes of grammar"),
        ({"regex": "\ud800"}, "lone surrogates"),
        ("\ud800", "lone surrogates"),
        ({"choice": []}, "'choice' is a list of one or more texts"),
        ({"choice": "yes"}, "'choice' is a list of one or more texts"),
        ({"choice": ["yes", 1]}, "'choice' is a list of one or more texts"),
        ({1: "a"}, "unknown field '1'"),
    ],
)
def test_what_is_refused(fields: Any, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        check({"sortition": fields})
    assert str(refused.value).startswith("sortition: ")
    assert message in str(refused.value)
    assert isinstance(refused.value, ValueError)


def test_a_misspelt_key_is_refused() -> None:
    with pytest.raises(RequestError, match="did you mean 'sortition'"):
        check({"sortiton": {"regex": "a"}})


def test_the_order_of_keys_counts_and_their_spelling_does_not() -> None:
    one, same, other = (
        check({"sortition": {"json_schema": text}})
        for text in (
            '{"properties":{"a":{},"b":{}}}',
            '{ "properties": {"a":{}, "b":{}} }',
            '{"properties":{"b":{},"a":{}}}',
        )
    )
    assert one == same != other


@pytest.mark.parametrize(
    "fields",
    [
        {"json_schema": {"type": "integer", "multipleOf": 997}},
        {"json_schema": {"enum": [f"{count * 7919 % 100_003} words" for count in range(2_000)]}},
        {"regex": "[a-z]{10000}"},
    ],
    ids=["divisor", "enum", "long"],
)
def test_what_compiles_is_admitted(fields: dict[str, Any]) -> None:
    assert check({"sortition": fields}) is not None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regex": "[a-z]{100000}"}, "regex: the grammar takes more than"),
        ({"regex": ".*a.{20}"}, "regex: the grammar takes more than"),
        ({"json_schema": {"enum": list(range(100_000))}}, "'enum': the grammar takes more than"),
        (
            {"json_schema": {"properties": {"a": {"pattern": "^.*a.{20}$"}}}},
            "json_schema: at /properties/a: 'pattern': the grammar takes more than",
        ),
    ],
    ids=["long", "far", "enum", "pattern"],
)
def test_what_does_not_compile_is_refused_before_it_is_admitted(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as refused:
        check({"sortition": fields})
    assert message in str(refused.value)


def test_a_verdict_is_kept() -> None:
    # This one takes long.
    heavy = {"regex": ".*a.{21}"}
    for budget in (20.0, 0.05):
        begin = time.thread_time()
        with pytest.raises(RequestError):
            check({"sortition": heavy})
        assert time.thread_time() - begin < budget


class Model:
    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return {"type": "object"}


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ({"json_schema": SCHEMA}, {"json_schema": SCHEMA}),
        ({"json_schema": Model}, {"json_schema": {"type": "object"}}),
        ({"json_schema": "{}", "whitespace": "any"}, {"json_schema": "{}", "whitespace": "any"}),
        ({"json_schema": "{}", "formats": "annotate"}, {"json_schema": "{}", "formats": "annotate"}),
        ({"json_schema": "{}", "ignore": {"not"}}, {"json_schema": "{}", "ignore": ["not"]}),
        ({"regex": "a"}, {"regex": "a"}),
        ({"choice": ("a", "b")}, {"choice": ["a", "b"]}),
        ({"draw": True}, {"draw": True}),
        (
            {"regex": "a", "min_p": 0.1, "logit_bias": {5: 1.5}},
            {"regex": "a", "min_p": 0.1, "logit_bias": {5: 1.5}},
        ),
        ({"allowed_tokens": (1, 2), "order": ("top_k",)}, {"allowed_tokens": [1, 2], "order": ["top_k"]}),
        ({"bad_words": ((1, 2),), "ties": "keep"}, {"bad_words": [[1, 2]], "ties": "keep"}),
    ],
)
def test_request_builds_what_check_reads(arguments: dict[str, Any], fields: dict[str, Any]) -> None:
    assert request(**arguments) == {"sortition": fields}
    as_text = request(**arguments, as_text=True)
    assert json.loads(as_text["sortition"]) == json.loads(json.dumps(fields))
    assert check(as_text) == check(request(**arguments)) is not None


def test_request_refuses_what_says_nothing() -> None:
    with pytest.raises(ValueError, match="or is drawn here"):
        request()
    with pytest.raises(ValueError, match="has one of json_schema, regex, choice, not 2 of them"):
        request(regex="a", json_schema={})
    with pytest.raises(ValueError, match="top_p is from 0 to 1"):
        request(top_p=2)


def test_request_takes_every_parameter() -> None:
    names = [*inspect.signature(request).parameters]
    assert names[names.index("draw") + 1 : -1] == [*Parameters.names()]
    with pytest.raises(ValueError, match="json_schema alone"):
        request(regex="a", whitespace="any")
    with pytest.raises(TypeError):
        request(json_schema={"const": {1}})
    with pytest.raises(TypeError, match="Model is not JSON"):
        request(json_schema=Model())


def test_reading_a_request_imports_nothing_heavy() -> None:
    program = (
        "import sys, sortition.integrations.vllm_request, sortition.integrations.request\n"
        "assert not {'torch', 'vllm', 'transformers'} & sys.modules.keys(), sorted(sys.modules)"
    )
    source = str(Path(__file__).parent.parent / "src")
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": source}, check=True)


def test_choice() -> None:
    grammar = choice(["yes", "no", "", "日本", "yes"])
    for text in ("yes", "no", "", "日本"):
        assert grammar.accepts(text)
    for text in ("y", "yesno", "日", "nein"):
        assert not grammar.accepts(text)
    assert repr(grammar).startswith("Grammar(choice('yes', 'no'")
    with pytest.raises(TypeError):
        choice("yes")
    with pytest.raises(TypeError):
        choice(["yes", 1])  # type: ignore[list-item]
    with pytest.raises(Unsatisfiable):
        choice([])
    with pytest.raises(Invalid):
        choice(["\ud800"])


@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": {"9" * 5000: 1}},
        {"logit_bias": {"01": 1, "1": 2}},
        {"order": "x" * 1_000_000},
        {"bad_words": [[]] * 100_000},
    ],
    ids=["long id", "one token twice", "long name", "many phrases"],
)
def test_refusals_are_short_and_soon(fields: dict[str, Any]) -> None:
    begun = time.process_time()
    with pytest.raises(RequestError) as refused:
        check({"sortition": fields})
    assert len(str(refused.value)) < 3000
    assert time.process_time() - begun < 1
