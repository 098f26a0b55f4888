"""Inputs made to cost a server much: each is compiled or refused, and what that took is printed.

    python tests/hostile.py [NAME...]

Prints one JSON object: for each input its CPU seconds, those of a fixed piece of work just before and after
it, which tell how busy the machine is, and what came of it; and the peak memory in MiB.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from functools import reduce
from operator import and_
from pathlib import Path
from statistics import median
from typing import Any, Final

import sortition as so


def nested(depth: int, key: str) -> dict[str, Any]:
    """`anyOf` of three of the same, and so on; objects inside."""
    if not depth:
        return {"properties": {key: {"type": "string"}}, "required": [key]}
    return {"anyOf": [nested(depth - 1, f"{key}{branch}") for branch in range(3)]}


def conjoined(depth: int) -> dict[str, Any]:
    """`allOf` inside `allOf`, each with a property more."""
    schema: dict[str, Any] = {"type": "object"}
    for level in range(depth):
        schema = {"allOf": [schema, {"properties": {f"p{level}": {"type": "integer"}}}]}
    return schema


def containing(depth: int) -> dict[str, Any]:
    """Arrays of 40 of the same, and so on."""
    inner = containing(depth - 1) if depth else {"const": 1}
    return {"type": "array", "contains": inner, "minContains": 40}


def words(count: int) -> list[str]:
    """Texts without much in common."""
    return [f"option {number * 7919 % 1_000_003}" for number in range(count)]


def strings(count: int) -> dict[str, Any]:
    """Properties that are strings."""
    return {word: {"type": "string"} for word in words(count)}


def schema(make: Callable[[], Any]) -> Callable[[], so.Grammar]:
    """A schema that is made only when it is its turn."""
    return lambda: so.json_schema(make())


def deep(value: Any, depth: int) -> Any:
    """A value in so many arrays."""
    for _ in range(depth):
        value = [value]
    return value


def boxed(value: Any, depth: int) -> Any:
    """A value in so many objects."""
    for _ in range(depth):
        value = {"a": value}
    return value


def shared(depth: int) -> dict[str, Any]:
    """Three properties of one and the same schema, and so on: as text it would be 3^depth long."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"properties": dict.fromkeys("abc", schema)}
    return schema


INPUTS: Final[dict[str, Callable[[], so.Grammar]]] = {
    "anyOf 3^8": schema(lambda: nested(8, "k")),
    "150 wishes and 12 choices": schema(
        lambda: {
            "type": "object",
            "allOf": [
                *({"not": {"required": [f"a{i}", f"b{i}"]}} for i in range(150)),
                *({"anyOf": [{"required": [f"p{i}"]}, {"properties": {f"q{i}": {}}}]} for i in range(12)),
            ],
        }
    ),
    "127 objects that share a wish": schema(
        lambda: {
            "type": "object",
            "$defs": {"n": {"not": {"required": [f"k{i}" for i in range(1_000)]}}},
            "anyOf": [{"$ref": "#/$defs/n", "properties": {"z": {"const": number}}} for number in range(127)],
        }
    ),
    "anyOf product": schema(
        lambda: {"allOf": [{"anyOf": [{"required": [f"{i} {j}"]} for j in range(4)]} for i in range(12)]}
    ),
    "values 100 deep": schema(lambda: {"enum": [deep(number, 100) for number in range(300)]}),
    "objects 60 deep": schema(lambda: {"enum": [boxed(number, 60) for number in range(100)]}),
    "allOf 100 deep": schema(lambda: conjoined(100)),
    "allOf 190 deep": schema(lambda: conjoined(190)),
    "10,000 open properties": schema(lambda: {"properties": strings(10_000)}),
    "10,000 required properties": schema(
        lambda: {
            "properties": strings(10_000),
            "required": words(10_000),
            "additionalProperties": False,
        }
    ),
    "400 optional properties": schema(lambda: {"properties": strings(400)}),
    "10,000 properties in any order": lambda: so.json_schema({"properties": strings(10_000)}, any_order=True),
    "200 objects of keys in any order": lambda: so.json_schema(
        {
            "properties": {
                f"q{j}": {"required": [f"p{j} {i}" for i in range(8)], "additionalProperties": False}
                | {"properties": {f"p{j} {i}": {} for i in range(8)}}
                for j in range(200)
            }
        },
        any_order=True,
    ),
    "3,000 objects": schema(
        lambda: {
            "$ref": "#/$defs/0",
            "$defs": {
                f"{i}": {"properties": {f"a{i}": {"$ref": f"#/$defs/{(i + 1) % 3_000}"}}}
                for i in range(3_000)
            },
        }
    ),
    "300 definitions that refer to each other": schema(
        lambda: {
            "$ref": "#/$defs/0",
            "$defs": {
                f"{i}": {"properties": {f"p{j}": {"$ref": f"#/$defs/{j}"} for j in range(300)}}
                for i in range(300)
            },
        }
    ),
    "300 choices that refer to each other": schema(
        lambda: {
            "$ref": "#/$defs/0",
            "$defs": {
                f"{i}": {
                    "anyOf": [
                        {"type": "object", "properties": {"a": {"$ref": f"#/$defs/{(i + 1) % 300}"}}},
                        {"type": "array", "items": {"$ref": f"#/$defs/{(i * 7 + 3) % 300}"}},
                    ]
                }
                for i in range(300)
            },
        }
    ),
    "enum of 100,000 strings": schema(lambda: {"enum": words(100_000)}),
    "enum of 100,000 numbers": schema(lambda: {"enum": list(range(100_000))}),
    "not enum of 5,000 strings": schema(lambda: {"not": {"enum": words(5_000)}}),
    "oneOf of 100 objects": schema(
        lambda: {"oneOf": [{"properties": {f"k{i}": {"const": i}}} for i in range(100)]}
    ),
    "oneOf of 200 objects": schema(
        lambda: {"oneOf": [{"properties": {f"k{i}": {"const": i}}} for i in range(200)]}
    ),
    "anyOf of 500 objects": schema(
        lambda: {"anyOf": [{"type": "object", "properties": {f"a{i}": {}, "b": {}}} for i in range(500)]}
    ),
    "unevaluatedProperties beside anyOf of 30": schema(
        lambda: {"anyOf": [{"properties": {f"p{i}": {}}} for i in range(30)], "unevaluatedProperties": False}
    ),
    "enum of 20,000 objects": schema(lambda: {"enum": [{"a": i} for i in range(20_000)]}),
    "allOf of 10 contains": schema(
        lambda: {"allOf": [{"contains": {"const": i}, "minContains": 10} for i in range(10)]}
    ),
    "lengths of many conditions": schema(
        lambda: {
            "allOf": [{"anyOf": [{"pattern": f"{i}{j}"} for j in range(3)]} for i in range(5)],
            "minLength": 10,
            "maxLength": 200,
        }
    ),
    "patterns of a hundred strings": schema(
        lambda: {
            "properties": {f"p{i}": {"pattern": f"a{i}.*b", "maxLength": 100 + i} for i in range(100)},
            "additionalProperties": False,
        }
    ),
    "opposites of far patterns": schema(
        lambda: {"not": {"anyOf": [{"pattern": f"{c}.{{8}}{c}"} for c in "abcdef"]}}
    ),
    "if, then, else 15 times": schema(
        lambda: {
            "allOf": [
                {
                    "if": {"required": [f"k{i}"]},
                    "then": {"required": [f"x{i}"]},
                    "else": {"required": [f"y{i}"]},
                }
                for i in range(15)
            ]
        }
    ),
    "patterns that overlap": schema(
        lambda: {"patternProperties": {f"a{i}.*b": {"const": i} for i in range(100)}}
    ),
    "multiples of large primes": schema(
        lambda: {"allOf": [{"type": "integer", "multipleOf": prime} for prime in (97, 89, 83, 79)]}
    ),
    "oneOf of 2,000 objects": schema(
        lambda: {"oneOf": [{"properties": {"k": {"const": i}}} for i in range(2_000)]}
    ),
    "anyOf of 1,000 objects with patterns": schema(
        lambda: {
            "anyOf": [
                {"properties": {f"k{i + j}": {} for j in range(3)}, "patternProperties": {f"^x{i}": {}}}
                for i in range(1_000)
            ]
        }
    ),
    "oneOf of multiples of primes": schema(
        lambda: {"oneOf": [{"type": "integer", "multipleOf": prime} for prime in (97, 89, 83, 79, 73)]}
    ),
    "oneOf of 9 patterns": schema(
        lambda: {"oneOf": [{"type": "string", "pattern": f"a.{{{i}}}z"} for i in range(9)]}
    ),
    "allOf of patterns of lengths": schema(
        lambda: {"allOf": [{"pattern": f"^(.{{{k}}})*$"} for k in (2, 3, 5, 7, 11, 13)]}
    ),
    "six contains, nothing else": schema(
        lambda: {
            "allOf": [{"contains": {"multipleOf": prime}} for prime in (2, 3, 5, 7, 11, 13)],
            "unevaluatedItems": False,
        }
    ),
    "60 counted keys in any order": lambda: so.json_schema(
        {
            "properties": {f"k{i}": {} for i in range(60)},
            "minProperties": 50,
            "additionalProperties": False,
        },
        any_order=True,
    ),
    "an object shared 3^25 times": schema(lambda: shared(25)),
    "20,000 tiny numbers": schema(lambda: {"enum": [i * 1.1e-300 for i in range(20_000)]}),
    "a number of 100,000 digits": schema(lambda: {"default": 10**100_000}),
    "chain of 5,000 references": schema(
        lambda: {"$ref": "#/$defs/0", "$defs": {f"{i}": {"$ref": f"#/$defs/{i + 1}"} for i in range(5_000)}}
    ),
    "100,000 open brackets": schema(lambda: "[" * 100_000),
    "pattern of repeated repeats": schema(lambda: {"pattern": "^(a{1,1000}){1,1000}$"}),
    "(a{1,1000}){1,1000}": lambda: so.regex("(a{1,1000}){1,1000}"),
    ".*a.{20}": lambda: so.regex(".*a.{20}"),
    "(x?){5000}x{5000}": lambda: so.regex("(x?){5000}x{5000}"),
    "5,000 groups inside one another": lambda: so.regex("(" * 5_000 + "a" + ")" * 5_000),
    "stars of stars": lambda: so.regex("((((((a*)*)*)*)*)*)*" * 50),
    "100,000 alternatives": lambda: so.regex("|".join(words(100_000))),
    "7,000 alternatives": lambda: so.regex("|".join(words(7_000))),
    "16,000 groups": lambda: so.regex("(ab|c)" * 16_000),
    "\\w 40,000 times": lambda: so.regex("\\w" * 40_000),
    "[\\w 40,000 times]": lambda: so.regex("[" + "\\w" * 40_000 + "]"),
    "100,000 letters in any case": lambda: so.regex("(?i)" + "ab" * 49_000),
    "30 conditions": lambda: so.regex("".join(f"(?=.*a{i})" for i in range(30)) + ".*"),
    "16 looks behind": lambda: so.regex(".*".join(f"(?<=a.{{{i}}}b)x" for i in range(16))),
    "100 borders of words": lambda: so.regex(".*".join([r"\bfoo\b"] * 100)),
    "choice of 100,000 texts": lambda: so.choice(words(100_000)),
    "choice of 20,000 texts": lambda: so.choice(words(20_000)),
    "choice of long texts": lambda: so.choice([letter * 100_000 for letter in "abc"]),
    "numbers of two alternatives": schema(
        lambda: {
            "anyOf": [
                {"type": "object", "properties": {"a": {"enum": list(range(20_000 - i))}}} for i in range(2)
            ]
        }
    ),
    "different items of 8 values": schema(
        lambda: {"uniqueItems": True, "items": {"enum": list(range(8))}, "maxItems": 1_000}
    ),
    "anyOf of 60 counted objects": schema(
        lambda: {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {f"a{i}": {}},
                    "required": [f"a{i}"],
                    "maxProperties": 20 + i,
                }
                for i in range(60)
            ]
        }
    ),
    "numbers beside 1,000 bounds": schema(
        lambda: {"enum": list(range(5_000)), "allOf": [{"minimum": -i} for i in range(1_000)]}
    ),
    "strings beside 1,000 lengths": schema(
        lambda: {"enum": words(5_000), "allOf": [{"maxLength": 99 + i} for i in range(1_000)]}
    ),
    "strings beside patterns": schema(
        lambda: {"enum": words(3_000), "allOf": [{"pattern": f"[0-9]{{{i}}}"} for i in range(10)]}
    ),
    "dynamic references to each other": schema(
        lambda: {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$dynamicAnchor": "node",
            "properties": {f"p{i}": {"$dynamicRef": "#node"} for i in range(200)},
            "unevaluatedProperties": False,
        }
    ),
    "unevaluatedProperties beside patterns": schema(
        lambda: {
            "allOf": [{"patternProperties": {f"^a{i}.*b{i}$": {}}} for i in range(40)],
            "unevaluatedProperties": False,
        }
    ),
    "names of many patterns": schema(
        lambda: {
            "allOf": [{"propertyNames": {"pattern": f"a{i}.*b"}} for i in range(12)],
            "properties": strings(50),
        }
    ),
    "anyOf of keys that need others": schema(
        lambda: {
            "dependentSchemas": {
                f"k{i}": {"properties": {f"k{(i * 7 + 3) % 60}": {"type": "integer"}}} for i in range(60)
            }
        }
    ),
    "chain of 700 objects": schema(
        lambda: {
            "$ref": "#/$defs/0",
            "$defs": {f"{i}": {"properties": {"a": {"$ref": f"#/$defs/{i + 1}"}}} for i in range(700)}
            | {"700": {"type": "null"}},
        }
    ),
    "pattern of many lengths": schema(lambda: {"pattern": "^(x?){2000}x{2000}$"}),
    "multiples of 9,973": schema(lambda: {"type": "integer", "multipleOf": 9973}),
    "enum of 3,600 arrays": schema(lambda: {"enum": [[i, j] for i in range(60) for j in range(60)]}),
    "contains inside contains": schema(lambda: containing(4)),
    "objects of 13 keys in any order": lambda: so.json_schema(
        {
            "properties": {
                f"o{j}": {
                    "properties": {f"k{j} {i}": {} for i in range(13)},
                    "required": [f"k{j} {i}" for i in range(13)],
                }
                for j in range(5)
            }
        },
        any_order=True,
    ),
    "1,500 sets of characters": lambda: so.regex(
        "".join(f"[\\w{chr(0x100 + i)}-{chr(0x110 + i)}]" for i in range(1_500))
    ),
    "product of five regexes": lambda: reduce(
        and_, (so.regex(f"(.{{{length}}})*") for length in (3, 5, 7, 11, 13))
    ),
    "opposite of a far regex": lambda: ~so.regex(".*a.{14}"),
    "oneOf of 1,600 objects with a tag": schema(
        lambda: {
            "oneOf": [
                {"type": "object", "properties": {"k": {"const": i}, f"a{i}": {}}, "required": ["k"]}
                for i in range(1_600)
            ]
        }
    ),
    "oneOf of two kinds of tags": schema(
        lambda: {
            "oneOf": [
                {"type": "object", "properties": {"ab"[i % 2]: {"const": i}}, "required": ["ab"[i % 2]]}
                for i in range(800)
            ]
        }
    ),
    "oneOf of tags of 500 values": schema(
        lambda: {
            "oneOf": [
                {"type": "object", "properties": {"k": {"enum": list(range(i, i + 500))}}, "required": ["k"]}
                for i in range(200)
            ]
        }
    ),
    "oneOf of 1,500 arrays": schema(
        lambda: {"oneOf": [{"type": "array", "minItems": i} for i in range(1_500)]}
    ),
    "200 arrays of different items": schema(
        lambda: {
            "properties": {
                f"a{i}": {"uniqueItems": True, "items": {"enum": [f"v{i} {j}" for j in range(9)]}}
                for i in range(200)
            }
        }
    ),
    "enum of objects of 100 keys": schema(
        lambda: {"enum": [{f"k{j}": i for j in range(100)} for i in range(120)]}
    ),
    "two enums of objects": schema(
        lambda: {"allOf": [{"enum": [{"a": i} for i in range(start, start + 700)]} for start in (0, 350)]}
    ),
    "an object of 150 to 200 of 300 keys": schema(
        lambda: {
            "properties": {f"k{i}": {} for i in range(300)},
            "minProperties": 150,
            "maxProperties": 200,
            "additionalProperties": False,
        }
    ),
    "contains of ranges": schema(
        lambda: {
            "allOf": [
                {"contains": {"minimum": i * 10, "maximum": i * 10 + 15}, "minContains": 1, "maxContains": 3}
                for i in range(7)
            ]
        }
    ),
    "120 resources that refer to each other": schema(
        lambda: {
            "$id": "http://x/root",
            "$ref": "http://x/0",
            "$defs": {
                f"d{i}": {
                    "$id": f"http://x/{i}",
                    "$anchor": f"a{i}",
                    "properties": {
                        f"p{j}": {"$ref": f"http://x/{(i + j) % 120}#a{(i + j) % 120}"} for j in range(12)
                    },
                }
                for i in range(120)
            },
        }
    ),
    "25 resources with a dynamic anchor": schema(
        lambda: {
            "$id": "http://x/root",
            "$dynamicAnchor": "n",
            "$ref": "http://x/0",
            "$defs": {
                f"d{i}": {
                    "$id": f"http://x/{i}",
                    "$dynamicAnchor": "n",
                    "properties": {f"p{j}": {"$ref": f"http://x/{(i + j + 1) % 25}"} for j in range(4)},
                    "items": {"$dynamicRef": "#n"},
                }
                for i in range(25)
            },
        }
    ),
    "40 objects of 20 to 30 of 40 keys": schema(
        lambda: {
            "properties": {
                f"o{i}": {
                    "properties": {f"k{i} {j}": {} for j in range(40)},
                    "minProperties": 20,
                    "maxProperties": 30,
                    "additionalProperties": False,
                }
                for i in range(40)
            }
        }
    ),
    "anyOf of multiples between bounds": schema(
        lambda: {
            "anyOf": [
                {"type": "integer", "multipleOf": prime, "minimum": prime * 100, "maximum": 10**9 + prime}
                for prime in (7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)
            ]
        }
    ),
    "oneOf of 300 objects with 60 tags": schema(
        lambda: {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {f"t{j}": {"const": i * j} for j in range(60)},
                    "required": [f"t{j}" for j in range(60)],
                }
                for i in range(300)
            ]
        }
    ),
    "borders of words in a repeat": lambda: so.regex(r"(\b\w+\b\W*){1,200}"),
    "13 counted keys in any order": lambda: so.json_schema(
        {
            "properties": {f"k{i}": {"type": "string"} for i in range(13)},
            "minProperties": 13,
            "additionalProperties": False,
        },
        any_order=True,
    ),
    "not an enum of 600 objects": schema(lambda: {"not": {"enum": [{"a": i} for i in range(600)]}}),
    "chain of 200 keys that need others": schema(
        lambda: {
            "dependentSchemas": {
                f"k{i}": {"required": [f"k{i + 1}"], "properties": {f"k{i + 1}": {"type": "integer"}}}
                for i in range(200)
            }
        }
    ),
    "300 objects with tags in any order": lambda: so.json_schema(
        {
            "anyOf": [
                {
                    "properties": {f"a{i}": {}, f"b{i}": {}, "c": {"const": i}},
                    "required": [f"a{i}", "c"],
                }
                for i in range(300)
            ]
        },
        any_order=True,
    ),
    "alternatives of gaps": lambda: so.regex(
        "|".join(f".*{chr(97 + i)}.{{{i}}}{chr(98 + i)}.*" for i in range(14))
    ),
}

PIECE: Final = 300_000
"""Additions in the fixed piece of work: some 40 ms, beside other programs."""


def main(names: list[str]) -> None:
    """Compile all inputs, or some, one after the other."""
    outcomes: dict[str, tuple[float, float, str]] = {}
    so.json_schema(True)
    before = piece()
    for name in names or INPUTS:
        start = time.process_time()
        try:
            outcome = f"{len(INPUTS[name]().machine)} states"
        except so.GrammarError as error:
            outcome = f"{type(error).__name__}: {error}"
        seconds, after = time.process_time() - start, piece()
        outcomes[name] = seconds, (before + after) / 2, outcome
        before = after
    print(json.dumps({"outcomes": outcomes, "peak": peak()}))


def piece() -> float:
    """CPU seconds of the fixed piece of work, in the middle of three."""
    found = []
    for _ in range(3):
        start = time.process_time()
        counts: dict[int, int] = {}
        for number in range(PIECE):
            counts[number & 1023] = counts.get(number & 1023, 0) + number
        found.append(time.process_time() - start)
    return median(found)


def peak() -> int:
    """The most memory that this process has had, in MiB."""
    status = Path("/proc/self/status")
    if status.exists():
        # What getrusage says there begins with what the parent process had when it started this one.
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) // 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main(sys.argv[1:])
