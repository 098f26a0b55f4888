"""JSON Schema: cases as data, and agreement with validators on the official suite, maskbench and draws."""

from __future__ import annotations

import decimal
import gzip
import itertools
import json
import random
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, RootModel

from sortition.grammars import errors, json_containers, json_lowering
from sortition.grammars.cache import Cache
from sortition.grammars.errors import GrammarError, Invalid, TooLarge, Unsatisfiable
from sortition.grammars.grammar import Grammar
from sortition.grammars.json_schema import json_schema
from sortition.grammars.oracle import Walk
from sortition.grammars.schema_keywords import IGNORABLE

CASES = json.loads((Path(__file__).parent / "cases" / "json_schema.json").read_text())
SHARED = Path(__file__).parents[2] / "shared" / "cases"
SUITE, MASKBENCH, REPORTS = (
    SHARED / name for name in ("json-schema-suite.jsonl", "maskbench.jsonl.gz", "reports.jsonl")
)

SAMPLE = 150
"""Schemas of maskbench in the default run; all of them take 20 minutes."""

LEFT_OUT = {
    "same object with different property order is valid",
    "a float with zero fractional part is an integer",
    "valid if optional overflow handling is implemented",
}
"""Valid instances of the suite that are left out on purpose: other key orders and spellings of integers.

So are leap seconds, and encoded labels of host names.
"""


def needs(path: Path) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not path.exists(), reason=f"needs {path.name} beside the repository")


def accepts(grammar: Grammar, text: str) -> bool:
    try:
        return grammar.accepts(text.encode())
    except UnicodeEncodeError:
        return False


def spellings(value: Any) -> Iterator[str]:
    """What `json.dumps` makes of a value, the ways that the default whitespace allows."""
    yield json.dumps(value, separators=(",", ":"))
    yield json.dumps(value, ensure_ascii=False)
    yield json.dumps(value, indent=2)


@pytest.mark.parametrize("case", CASES["languages"], ids=lambda case: case["about"])
def test_case(case: dict[str, Any]) -> None:
    grammar = json_schema(case["schema"])
    assert [text for text in case["accept"] if not accepts(grammar, text)] == []
    assert [text for text in case["reject"] if accepts(grammar, text)] == []


@pytest.mark.parametrize("case", CASES["policies"], ids=lambda case: case["whitespace"])
def test_whitespace(case: dict[str, Any]) -> None:
    grammar = json_schema(True, whitespace=case["whitespace"])
    assert [text for text in case["accept"] if not accepts(grammar, text)] == []
    assert [text for text in case["reject"] if accepts(grammar, text)] == []


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: f"{case['error']}: {case['schema']}"[:80])
def test_refused(case: dict[str, Any]) -> None:
    with pytest.raises(GrammarError) as caught:
        json_schema(case["schema"]).machine  # noqa: B018
    found = caught.value
    assert (type(found).__name__, found.pointer, found.keyword) == tuple(
        case[key] for key in ("error", "pointer", "keyword")
    )
    assert case.get("reason", "") in found.reason
    assert case.get("hint", "") in (found.hint or "")


@pytest.mark.parametrize("case", CASES["ignored"], ids=lambda case: case["about"])
def test_keywords_can_be_ignored(case: dict[str, Any]) -> None:
    grammar = json_schema(case["schema"], ignore=case["ignore"])
    assert [text for text in case["accept"] if not accepts(grammar, text)] == []
    assert [text for text in case["reject"] if accepts(grammar, text)] == []
    assert all(part in each for part, each in zip(case["warnings"], grammar.warnings, strict=True))


@pytest.mark.parametrize(
    "case",
    [case for case in CASES["refused"] if "ignore=" in case.get("hint", "")],
    ids=lambda case: case["keyword"],
)
def test_hints_to_ignore_a_keyword_are_true(case: dict[str, Any]) -> None:
    assert len(json_schema(case["schema"], ignore={case["keyword"]}).machine) > 0


@pytest.mark.parametrize("keyword", IGNORABLE)
def test_what_is_ignored_is_not_read(keyword: str) -> None:
    """Of these keywords, only `const` may have the value null, and then refuses the number."""
    schema = {"type": "integer", "items": [{}], keyword: None}
    grammar = json_schema(schema, ignore=[keyword])
    assert grammar.accepts("7")
    assert [warning.partition(" ")[0] for warning in grammar.warnings] == [f"'{keyword}'"]


@pytest.mark.parametrize(
    ("ignore", "says"),
    [
        ("uniqueItems", r"ignore lists keywords, such as .*; it is not 'uniqueItems'"),
        (None, "ignore lists keywords, .*; it is not None"),
        ({"uniqueItems": True}, "ignore lists keywords, .*; it is not an object"),
        (["uniqeItems"], r"'uniqeItems' is not a keyword that is enforced \(did you mean 'uniqueItems'\?\)"),
        (["title"], r"'title' is not a keyword that is enforced \(there are enum, const, .*maxProperties\)"),
        ([["pattern"]], "ignore: a list is not a keyword"),
        (["pattern", "properties"], "for keywords that narrow a value, not for 'properties' .there are enum"),
        (("$ref",), "for keywords that narrow a value, not for '[$]ref'"),
    ],
    ids=str,
)
def test_what_cannot_be_ignored(ignore: Any, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        json_schema(True, ignore=ignore)


@pytest.mark.parametrize("number", ["1e400", "-2.5e999", "1e-400", "0.03E-9999999999999999999"])
def test_numbers_of_a_schemas_text_that_floats_lose(number: str) -> None:
    with pytest.raises(errors.Unsupported, match=re.escape(number)):
        json_schema(f'{{"type": "number", "maximum": {number}}}')
    assert accepts(json_schema('{"const": 0.0e-400}'), "0")


def test_floats_of_numpy() -> None:
    bounds = {"minimum": np.float64(0.5), "exclusiveMaximum": np.float64(2), "multipleOf": np.float64(0.25)}
    grammar = json_schema({"type": "number", **bounds})
    assert accepts(grammar, "0.75") and not any(accepts(grammar, text) for text in ("0.25", "2", "0.6"))


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("invoice.json", r"not JSON.*the schema itself, not a file's name"),
        (Path("invoice.json"), r"a \w*Path is not a JSON Schema \(give a dict"),
        (list[int], r"is not a JSON Schema .*TypeAdapter"),
        (b"{}", r"a bytes is not a JSON Schema"),
        (RootModel[int](1), r"a RootModel\[int\] is not a JSON Schema .* a pydantic class"),
    ],
    ids=str,
)
def test_what_is_no_schema(schema: Any, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        json_schema(schema)


def test_what_openapi_says_of_branches_is_no_news() -> None:
    tagged = {"anyOf": [{"const": 1}, {"const": 2}], "discriminator": {"propertyName": "kind"}}
    assert json_schema(tagged).warnings == ()


@pytest.mark.parametrize("case", CASES["warnings"], ids=lambda case: case["say"][0])
def test_warning(case: dict[str, Any]) -> None:
    (warning,) = json_schema(case["schema"]).warnings
    assert all(part in warning for part in case["say"])


def test_known_keywords_bring_no_warning() -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "", "$comment": "", "default": 1}
    assert json_schema({**schema, "$defs": {"a": True}, "type": "string", "format": "date"}).warnings == ()


def test_long_strings_below_the_deepest_indentation() -> None:
    schema: Any = {"type": "string", "maxLength": 300}
    for _ in range(33):
        schema = {"type": "array", "items": schema}
    assert json_schema(schema).accepts("[" * 33 + '"a"' + "]" * 33)


def test_indentation_stops_at_64_spaces() -> None:
    grammar = json_schema(True)
    value: Any = 1
    for depth in range(1, 36):
        value = [value]
        assert accepts(grammar, json.dumps(value, indent=2)) == (depth <= 32)
        assert accepts(grammar, json.dumps(value, indent=4)) == (depth <= 16)
        assert accepts(grammar, json.dumps(value))


def test_no_run_of_whitespace_is_longer_than_64_spaces() -> None:
    assert not accepts(json_schema(True), "[1," + " " * 400 + "2]")
    assert not accepts(json_schema(True), "[\n" + " " * 66 + "1]")


def test_whitespace_must_be_whitespace() -> None:
    with pytest.raises(Invalid, match="more than whitespace"):
        json_schema(True, whitespace="x?")
    with pytest.raises(Invalid):
        json_schema(True, whitespace="(")


def test_keys_are_blamed_where_their_names_stand() -> None:
    lengths = [{"minLength": 900 * number, "maxLength": 1000 * number} for number in range(1, 9)]
    with pytest.raises(TooLarge) as caught:
        _ = json_schema({"properties": {"x": {}}, "propertyNames": {"oneOf": lengths}}).machine
    assert (caught.value.pointer, caught.value.keyword) == ("/propertyNames", "oneOf")


def strings(names: str, count: int) -> dict[str, Any]:
    return {f"{names}{number}": {"type": "string"} for number in range(count)}


def choices(
    keyword: str, count: int, fields: int, required: Sequence[str] = (), **more: Any
) -> dict[str, Any]:
    """Pydantic's union of models of so many fields, of which it tells them apart by the first."""
    models = {}
    for number in range(count):
        properties = {"kind": {"const": f"model {number}"}} | strings(f"field {number} ", fields)
        model = {"type": "object", "properties": properties, **more}
        models[f"m{number}"] = model | {"required": required} if required else model
    pet = {keyword: [{"$ref": f"#/$defs/{name}"} for name in models]}
    return {"type": "object", "properties": {"pet": pet}, "required": ["pet"], "$defs": models}


CLOSED = choices("anyOf", 40, 16, additionalProperties=False)
FIFTEEN = {"type": "object", "properties": strings("k", 15), "required": list(strings("k", 15))}
FEW_OF_60 = {"properties": strings("k", 60), "minProperties": 50, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "any_order", "hint", "smaller"),
    [
        (choices("anyOf", 40, 16), False, "additionalProperties: false", CLOSED),
        (choices("oneOf", 40, 12), False, "a required tag", choices("oneOf", 40, 12, ["kind"])),
        (FIFTEEN, True, "without any_order", FIFTEEN),
        (FEW_OF_60, True, "without any_order", FEW_OF_60),
    ],
    ids=["closed choices", "choices by tag", "required keys", "least number of keys"],
)
def test_hints_for_what_is_too_large_are_true(schema: Any, any_order: bool, hint: str, smaller: Any) -> None:
    with pytest.raises(TooLarge) as caught:
        _ = json_schema(schema, any_order=any_order).machine
    assert caught.value.hint is not None and hint in caught.value.hint
    assert len(json_schema(smaller).machine) > 0


def test_many_optional_keys_are_in_sections() -> None:
    grammar = json_schema({"properties": strings("k", 250), "required": ["k249"]})
    assert len(grammar.machine) < 5_000
    every = {f"k{number}": "" for number in range(250)}
    for text in (
        json.dumps(every),
        '{"k249":""}',
        '{"k3":"","x":1,"k120":"","k249":""}',
        '{"k3":"","k1":"","k249":""}',
    ):
        assert grammar.accepts(text), text
    # Sections have an order, as have keys that must be there.
    for text in ("{}", '{"k3":1,"k249":""}', '{"k60":"","k1":"","k249":""}', '{"k249":"","k1":""}'):
        assert not grammar.accepts(text), text


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 9973},
        {"properties": strings("k", 4_000)},
        {"anyOf": [{"properties": strings(f"p{i}", 1)} for i in range(30)], "unevaluatedProperties": False},
        {"anyOf": [{"properties": {f"a{i}": {}, "b": {}}} for i in range(500)]},
    ],
    ids=["multiples", "keys", "unevaluated", "branches"],
)
def test_where_nothing_is_known_to_help_nothing_is_said(schema: dict[str, Any]) -> None:
    with pytest.raises(TooLarge) as caught:
        _ = json_schema(schema).machine
    assert caught.value.hint is None


def test_formats_can_be_annotations() -> None:
    schema = {"type": "string", "format": "date"}
    assert not accepts(json_schema(schema), '"x"')
    assert accepts(json_schema(schema, formats="annotate"), '"x"')


def test_json_text_and_pydantic_classes() -> None:
    class Person(BaseModel):
        name: str
        age: int | None = None

    assert json_schema('{"type": "null"}').accepts("null")
    grammar = json_schema(Person)
    assert grammar.accepts('{"name":"Ada","age":36}') and grammar.accepts('{"name":"Ada"}')
    assert not grammar.accepts('{"age":36}')
    assert "Person" in repr(grammar)
    with pytest.raises(Invalid):
        json_schema("{")


def test_grammars_of_schemas_combine() -> None:
    either = json_schema({"type": "integer"}) | json_schema({"type": "string"})
    assert either.accepts("1") and either.accepts('"x"') and not either.accepts("null")


def test_long_strings_stay_small() -> None:
    grammar = json_schema({"type": "string", "maxLength": 2000})
    assert accepts(grammar, json.dumps("é\n" * 1000)) and not accepts(grammar, json.dumps("é\n" * 1000 + "x"))
    assert len(grammar.machine) < 2_100


def nested(levels: int, leaf: Any) -> Any:
    for level in range(levels):
        leaf = {"anyOf": [leaf, {"type": "object", "properties": {f"k{level}": leaf}}, {"items": leaf}]}
    return leaf


def deep(levels: int, wrap: str) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {wrap: [schema]} if wrap == "anyOf" else {wrap: {"a": schema}}
    return schema


HOSTILE = {
    "shared subschemas": nested(9, {"type": "string"}),
    "many values": {"enum": [f"value {i}" for i in range(100_000)]},
    "many choices": {"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(9)]} for i in range(9)]},
    "deep properties": deep(10_000, "properties"),
    "deep anyOf": deep(10_000, "anyOf"),
    "deep text": '{"not":' * 50_000 + "true" + "}" * 50_000,
    "many items": {"minItems": 10**9},
    "large numbers": {"minimum": 10**5000},
    "small multiples": {"multipleOf": 1e-300},
    "many patterns": {"patternProperties": {f"a{i}.*b{i}": {"const": i} for i in range(30)}},
    "tags": {"oneOf": [{"properties": {"k": {"const": i}}, "required": ["k"]} for i in range(100)]},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_compiled_or_refused_soon(name: str) -> None:
    json_schema(True)
    start = time.process_time()
    with suppress(TooLarge, errors.Unsupported):
        json_schema(HOSTILE[name])
    # The budgets aim at one second on an idle core; tests share theirs.
    assert time.process_time() - start < 4


def test_a_schema_that_contains_itself_is_invalid() -> None:
    schema: dict[str, Any] = {}
    schema["items"] = schema
    with pytest.raises(Invalid, match="contains itself"):
        json_schema(schema)


def suite() -> list[dict[str, Any]]:
    return [json.loads(line) for line in SUITE.read_text().splitlines()] if SUITE.exists() else []


@needs(SUITE)
@pytest.mark.parametrize("draft", ["draft7", "draft2020-12"])
def test_official_suite(draft: str) -> None:
    """No group that compiles has a wrong verdict; key order and what is left out on purpose aside."""
    dialect = {
        "draft7": "http://json-schema.org/draft-07/schema#",
        "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    }[draft]
    wrong, compiled = [], 0
    for group in (group for group in suite() if group["draft"] == draft):
        schema = group["schema"]
        if isinstance(schema, dict):
            schema = {"$schema": dialect, **schema}
        asserted = "format" in group["file"] and group["file"] != "format.json"
        try:
            grammar = json_schema(schema, formats="assert" if asserted else "annotate")
        except Unsatisfiable:
            wrong += [case for case in group["tests"] if case["valid"]]
            continue
        except GrammarError as error:
            assert error.pointer is not None, group
            continue
        compiled += 1
        for case in group["tests"]:
            if "content" in group["file"] or case["description"] in LEFT_OUT or "leap second" in str(case):
                continue
            if case["valid"] and "xn--" in str(case["data"]):
                continue
            verdicts = {accepts(grammar, text) for text in spellings(case["data"])}
            if verdicts != {case["valid"]} and not (
                case["valid"] and in_some_order(grammar, case["data"], group["schema"])
            ):
                wrong.append((group["file"], group["description"], case))
    assert wrong == []
    assert compiled > {"draft7": 170, "draft2020-12": 220}[draft]


def in_some_order(grammar: Grammar, value: Any, schema: Any) -> bool:
    """Whether the value is accepted with its keys in some order: tried key by key, what fits first."""
    orders = list(all_properties(schema, schema))
    # Of orders that know as many of an object's keys, the first is tried, and then the last.
    return any(
        walk.can_end
        for likely in (ranked(value, orders), ranked(value, orders[::-1]))
        for walk in written(Walk(grammar.machine), likely, itertools.count())
    )


def all_properties(schema: Any, root: Any) -> Iterator[list[str]]:
    """The names of the properties of every object that a schema describes, in their order."""
    yield own_properties(schema, root)
    inner = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    for value in inner:
        yield from all_properties(value, root)


def own_properties(schema: Any, root: Any, depth: int = 0) -> list[str]:
    """The names that one schema mentions, in `allOf` and behind a reference inside the document, too."""
    if not isinstance(schema, dict) or depth > 20:
        return []
    parts = [each for each in schema.get("allOf", ()) if isinstance(schema["allOf"], list)]
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target: Any = root
        for key in reference[2:].split("/"):
            target = target.get(key) if isinstance(target, dict) else None
        parts.append(target)
    names = [name for part in parts for name in own_properties(part, root, depth + 1)]
    own = schema.get("properties")
    return list(dict.fromkeys([*names, *(own if isinstance(own, dict) else ())]))


def ranked(value: Any, orders: list[list[str]]) -> Any:
    """The value with the keys of each object in the order that knows most of them, to be tried first."""
    if isinstance(value, list):
        return [ranked(item, orders) for item in value]
    if isinstance(value, dict):
        order = max(orders, key=lambda names: len(value.keys() & set(names)), default=[])
        keys = sorted(value, key=lambda key: order.index(key) if key in order else len(order))
        return {key: ranked(value[key], orders) for key in keys}
    return value


def written(walk: Walk, value: Any, steps: Iterator[int]) -> Iterator[Walk]:
    """Where the machine may be after a value, its keys in any order; gives up after 100,000 steps."""
    if isinstance(value, list):
        yield from items_written(fed(walk, "["), value, steps)
    elif isinstance(value, dict):
        yield from members_written(fed(walk, "{"), value, list(value), steps)
    elif after := fed(walk, json.dumps(value)):
        yield after


def items_written(
    walk: Walk | None, items: list[Any], steps: Iterator[int], first: bool = True
) -> Iterator[Walk]:
    if not items:
        walk = fed(walk, "]")
        if walk:
            yield walk
        return
    walk = walk if first else fed(walk, ", ")
    for after in written(walk, items[0], steps) if walk else ():
        yield from items_written(after, items[1:], steps, False)


def members_written(
    walk: Walk | None, value: dict[str, Any], keys: list[str], steps: Iterator[int]
) -> Iterator[Walk]:
    if next(steps) > 100_000:
        return
    if not keys:
        walk = fed(walk, "}")
        if walk:
            yield walk
        return
    walk = walk if len(keys) == len(value) else fed(walk, ", ")
    for key in keys:
        inside = fed(walk, json.dumps(key) + ": ")
        for after in written(inside, value[key], steps) if inside else ():
            yield from members_written(after, value, [each for each in keys if each != key], steps)


def fed(walk: Walk | None, text: str) -> Walk | None:
    """The walk after a text, None where it does not fit."""
    after = walk.copy() if walk else None
    return after if after and all(after.advance(byte) for byte in text.encode()) else None


def judge(line: str) -> tuple[str, list[Any]]:
    """Compile one schema of maskbench: what became of it, and the instances with a wrong verdict."""
    record = json.loads(line)
    try:
        grammar = json_schema(record["schema"])
        grammar.machine  # noqa: B018
    except GrammarError as error:
        named = error.pointer is not None and error.keyword is not None
        return type(error).__name__, [error] if isinstance(error, Invalid) or not named else []
    wrong = []
    for test in record["tests"]:
        for text in spellings(test["data"]):
            if accepts(grammar, text) != test["valid"] and not (
                test["valid"] and in_some_order(grammar, test["data"], record["schema"])
            ):
                wrong.append((record["name"], test["valid"], text[:500]))
                break
    return "compiled", wrong


def maskbench() -> list[str]:
    with gzip.open(MASKBENCH, "rt") as file:
        return file.read().splitlines()


@needs(MASKBENCH)
def test_maskbench_sample() -> None:
    lines = [line for line in random.Random(7).sample(maskbench(), SAMPLE) if len(line) < 20_000]
    results = [judge(line) for line in lines]
    assert [wrong for _, wrong in results if wrong] == []
    assert sum(outcome == "compiled" for outcome, _ in results) > 0.85 * len(lines)


@needs(MASKBENCH)
@pytest.mark.slow
def test_maskbench() -> None:
    results = [judge(line) for line in maskbench()]
    assert [wrong for _, wrong in results if wrong] == []
    assert sum(outcome == "compiled" for outcome, _ in results) > 0.9 * len(results)


def reports() -> list[dict[str, Any]]:
    lines = REPORTS.read_text().splitlines() if REPORTS.exists() else []
    return [case for case in map(json.loads, lines) if case["input"]["kind"] == "json_schema"]


REFUSED_REPORTS = {"frenck/probatio#34"}
"""`uniqueItems` of any strings."""


@needs(REPORTS)
@pytest.mark.parametrize("case", reports(), ids=lambda case: case["id"])
def test_reported_case(case: dict[str, Any]) -> None:
    try:
        grammar = json_schema(case["input"]["schema"])
    except GrammarError:
        assert not case["accept"] or case["id"] in REFUSED_REPORTS
        return
    # Spaces inside the brackets are what no printer writes.
    wanted = [text for text in case["accept"] if not text.startswith("{ ")]
    assert [text for text in wanted if not accepts(grammar, text)] == []
    assert [text for text in case["reject"] + case["policy_reject"] if accepts(grammar, text)] == []


VALUES: list[Any] = [
    *(None, True, False, 0, 1, 2, 3, -1, 7, 1.5, -0.5, "", "a", "b", "aa", "ab", "abc", "é"),
    *([], [1], ["a"], [1, 2], [1, "a"], ["a", 1], [1, 1, 1], [[]], [{"a": 1}], [None, 2, "a"]),
    *(
        {},
        {"a": 1},
        {"a": "a"},
        {"b": 1},
        {"c": None},
        {"a": 1, "b": 1},
        {"a": "b", "b": []},
        {"a": {}, "c": 1},
    ),
    *({"a": {"a": 1}}, {"a": {"b": "a"}, "b": 2}, {"a": [1], "b": 3, "c": "a"}, {"ab": 1, "b": 1}),
]
"""Small values of every kind, to be judged under drawn schemas."""

_NO_NEWLINE = r"[^\n\r\u2028\u2029]"
PATTERNS = {
    **{pattern: pattern for pattern in ("a", "^a", "^(?!a)")},
    "b$": r"b\Z",
    "^(a|b)*$": r"^(a|b)*\Z",
    ".": _NO_NEWLINE,
    "(?=.b)a": f"(?={_NO_NEWLINE}b)a",
}
"""Patterns of ECMA-262, and the same for `re`, to which `.` and `$` mean something else."""


def follows(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
    """`pattern`, as ECMA-262 reads it."""
    if isinstance(instance, str) and not re.search(PATTERNS[pattern], instance):
        yield jsonschema.ValidationError(f"{instance!r} does not follow {pattern!r}")


Judge = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": follows})

names = st.sampled_from(["a", "b", "c"])
count = st.integers(0, 3)
bound = st.sampled_from([-1, 0, 1, 1.5, 2, 3])
a_type = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
simple_keywords = st.sampled_from(
    [
        ("type", a_type | st.lists(a_type, min_size=1, max_size=3, unique=True)),
        ("enum", st.lists(st.sampled_from(VALUES), min_size=1, max_size=4)),
        ("const", st.sampled_from(VALUES)),
        ("minimum", bound),
        ("exclusiveMaximum", bound),
        ("multipleOf", st.sampled_from([1, 2, 0.5])),
        ("minLength", count),
        ("maxLength", count),
        ("pattern", st.sampled_from([*PATTERNS])),
        ("uniqueItems", st.booleans()),
        ("minContains", count),
        ("maxContains", count),
        ("minItems", count),
        ("maxItems", count),
        ("required", st.lists(names, min_size=1, max_size=2, unique=True)),
        ("minProperties", st.integers(0, 1)),
        ("maxProperties", count),
        ("dependentRequired", st.dictionaries(names, st.lists(names, max_size=2, unique=True), max_size=2)),
    ]
)


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, Any]]:
    """One keyword that holds schemas, and its value."""
    some = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        *(st.tuples(st.just(name), some) for name in ("anyOf", "allOf", "oneOf", "prefixItems")),
        *(st.tuples(st.just(name), inner) for name in ("not", "items", "contains", "additionalProperties")),
        *(st.tuples(st.just(name), inner) for name in ("if", "then", "else", "propertyNames")),
        *(st.tuples(st.just(name), inner) for name in ("unevaluatedProperties", "unevaluatedItems")),
        st.tuples(st.just("properties"), st.dictionaries(names, inner, max_size=3)),
        st.tuples(
            st.just("patternProperties"), st.dictionaries(st.sampled_from(["a", "^b"]), inner, max_size=2)
        ),
        st.tuples(st.just("dependentSchemas"), st.dictionaries(names, inner, max_size=1)),
        st.tuples(st.just("$ref"), st.just("#/$defs/a")),
    )


simple_keyword = simple_keywords.flatmap(lambda pair: st.tuples(st.just(pair[0]), pair[1]))
a_schema = st.recursive(
    st.booleans() | st.lists(simple_keyword, max_size=3).map(dict),
    lambda inner: st.lists(simple_keyword | keywords(inner), max_size=4).map(dict),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=a_schema, shared=st.lists(simple_keyword, max_size=2).map(dict))
def test_drawn_schemas(schema: Any, shared: dict[str, Any]) -> None:
    """A schema that compiles gives every small value the verdict of a validator, in some order of keys.

    And a validator accepts whatever the machine writes.
    """
    if isinstance(schema, dict):
        schema = {**schema, "$defs": {"a": shared}}
    validator = Judge(schema)
    valid = [value for value in VALUES if validator.is_valid(value)]
    try:
        grammar = json_schema(schema)
        grammar.machine  # noqa: B018
    except Unsatisfiable:
        assert valid == []
        return
    except (errors.Unsupported, TooLarge):
        return
    for value in VALUES:
        accepted = any(accepts(grammar, json.dumps(order)) for order in orders(value))
        assert accepted == (value in valid and any(value is each for each in valid)), value
    exact = Judge(json.loads(json.dumps(schema), parse_float=Decimal))
    with decimal.localcontext(prec=2_000):
        for text in itertools.islice(words(grammar, random.Random(5), tries=8), 4):
            # Remainders need as many digits as the exponent says.
            if not re.search("[eE][+-]?[0-9]{4}", text):
                assert exact.is_valid(json.loads(text, parse_float=Decimal)), text


def orders(value: Any) -> Iterator[Any]:
    """The value with the keys of every object in it in every order."""
    if isinstance(value, list):
        yield from map(list, itertools.product(*(list(orders(item)) for item in value)))
    elif isinstance(value, dict):
        for keys in itertools.permutations(value):
            for inner in itertools.product(*(list(orders(value[key])) for key in keys)):
                yield dict(zip(keys, inner, strict=True))
    else:
        yield value


def words(grammar: Grammar, draw: random.Random, tries: int = 10_000) -> Iterator[str]:
    """Random texts of the language, by walking the machine so many times."""
    machine = grammar.machine
    columns = [
        [byte for byte in range(256) if machine.byte_class[byte] == c] for c in range(machine.move.shape[1])
    ]
    for _ in range(tries):
        walk, text = Walk(machine), b""
        while len(text) < 300 and not (walk.can_end and draw.random() < 0.5):
            bytes_ = [draw.choice(column) for column in columns]
            draw.shuffle(bytes_)
            # Closing what is open, a third of the time, keeps the texts short.
            if draw.random() < 0.3:
                bytes_ = [*b'"]}', *bytes_]
            byte = next((byte for byte in bytes_ if walk.advance(byte)), None)
            if byte is None:
                break
            text += bytes([byte])
        if walk.can_end:
            yield text.decode()


WALKED: list[Any] = [
    {"properties": {"a": {"type": "integer", "minimum": -3}, "b": {"maxLength": 3}}, "required": ["a"]},
    {"type": "array", "items": {"type": ["number", "null"], "minimum": 0.25}, "maxItems": 4},
    {"anyOf": [{"type": "string", "pattern": "^[ab]+$|é"}, {"exclusiveMaximum": 2}, {"enum": [[], {}, 7]}]},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "properties": {"": {"const": None}}},
    {"type": "object", "additionalProperties": {"enum": ["é", '"', 1.5, {}]}, "maxProperties": 3},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "email"},
    {"type": "object", "patternProperties": {"^x": {"type": "null"}}, "propertyNames": {"minLength": 2}},
    {"oneOf": [{"type": "number", "multipleOf": 3}, {"type": "number", "minimum": 3}]},
]


@pytest.mark.parametrize("schema", WALKED, ids=str)
def test_whatever_the_machine_writes_is_valid(schema: Any) -> None:
    grammar = json_schema(schema)
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    for text in itertools.islice(words(grammar, random.Random(3)), 300):
        value = json.loads(text, parse_float=Decimal)
        assert validator.is_valid(value), text


@pytest.mark.parametrize("case", CASES["formats"], ids=lambda case: case["format"])
def test_format(case: dict[str, Any]) -> None:
    grammar = json_schema({"type": "string", "format": case["format"]})
    assert [text for text in case["accept"] if not accepts(grammar, json.dumps(text))] == []
    assert [text for text in case["reject"] if accepts(grammar, json.dumps(text))] == []
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    assert all(checker.conforms(text, case["format"]) for text in case["accept"])


@pytest.mark.parametrize("case", CASES["languages"], ids=lambda case: case["about"])
def test_case_with_calls_for_characters_and_lines(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grammars that count far, or that are large, are written in another way; the languages are the same."""
    # Other tests have lowered the same schemas in the usual way.
    monkeypatch.setattr("sortition.grammars.json_schema.LOWERED", Cache[Grammar](0, lambda grammar: 1))
    monkeypatch.setattr(json_lowering, "MANY_POSITIONS", -1)
    monkeypatch.setattr(json_containers, "UNROLLED", 0)
    test_case(case)
