"""The stated schema of findings: what is written keeps to it, and it says what is written."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import planted_faults as planted
import pytest
from probe_findings import findings

from sortition.benchmarks.probe import schema
from sortition.benchmarks.probe.conditions import parse
from sortition.benchmarks.probe.findings import Findings
from sortition.benchmarks.probe.options import Options
from sortition.benchmarks.probe.study import study


def validator() -> Any:
    stated = json.loads(schema.FILE.read_text())
    jsonschema.Draft202012Validator.check_schema(stated)
    return jsonschema.Draft202012Validator(stated)


def test_the_file_is_up_to_date() -> None:
    assert schema.FILE.read_text() == schema.text(), "python -m sortition.benchmarks.probe.schema makes it"


def probed() -> Findings:
    target, _ = planted.with_operation(0, planted.split_by_batch)
    names = ("rerun", "batch_size 4", "padding 2", "padding 2, given attention eager", "logprobs 3")
    return study(
        target,
        planted.prompts(0),
        [parse(name) for name in names],
        Options(steps=3),
        parser=lambda text: text[:1],
        answers=["1", "2"],
    )


@pytest.mark.parametrize("made", [findings, probed])
def test_findings_keep_to_it(made: Any) -> None:
    validator().validate(json.loads(made().to_json()))


def test_fields_are_described() -> None:
    comparison = schema.schema()["$defs"]["Comparison"]["properties"]
    assert all("description" in each for each in comparison.values())
    assert comparison["flips"]["description"] == "all such steps."


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), 1),
        (("tested", 0, "status"), "perhaps"),
        (("tested", 1, "comparisons", 0, "max_ulp"), 0.5),
        (("agreement", "tar_raw"), None),
        (("verdict", "more"), "than that"),
        (("boundaries", 0), {"below": 1}),
    ],
)
def test_other_values_do_not(path: tuple[str | int, ...], value: Any) -> None:
    whole = json.loads(findings().to_json())
    place: Any = whole
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert not validator().is_valid(whole)
