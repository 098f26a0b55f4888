"""Planted faults are found and named, and models without one are never accused."""

from __future__ import annotations

from collections.abc import Callable

import planted_faults as planted
import pytest

from sortition.benchmarks.probe.conditions import parse
from sortition.benchmarks.probe.findings import Attribution, Findings
from sortition.benchmarks.probe.options import Options
from sortition.benchmarks.probe.study import study
from sortition.benchmarks.probe.target import Target

CONDITIONS = (
    "rerun",
    "batch_size 3",
    "batch_size 3 and position last",
    "batch_size 2 and neighbours longer",
    "padding 2",
    "chunk 2",
    "drafts 2",
    "prefix_cache warm",
)

SEEDS = [pytest.param(seed, marks=pytest.mark.slow if seed > 1 else ()) for seed in range(20)]
"""The first two by default: together they are a fault of every kind and in every layer."""


def probed(target: Target, seed: int) -> Findings:
    conditions = [parse(name) for name in CONDITIONS]
    return study(target, planted.prompts(seed), conditions, Options(steps=4, require="bitwise"))


def differing(findings: Findings) -> set[str]:
    return {
        each.name
        for each in findings.tested
        if any(one.first_difference is not None or one.flips for one in each.comparisons)
    }


def accused(findings: Findings) -> list[Attribution]:
    assert {each.status for each in findings.tested} == {"exercised"}
    assert findings.verdict.answer == ("exceeded" if differing(findings) else "within")
    return list(findings.attributions)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_clean_model_is_not_accused(seed: int) -> None:
    findings = probed(planted.clean(seed), seed)
    assert accused(findings) == []
    assert findings.classes == (("reference", *CONDITIONS),)
    assert findings.verdict.headline.startswith("No difference")


@pytest.mark.parametrize("seed", SEEDS)
def test_sums_split_by_the_batch(seed: int) -> None:
    target, name = planted.with_operation(seed, planted.split_by_batch)
    findings = probed(target, seed)
    assert differing(findings) == {name for name in CONDITIONS if "batch" in name}
    found = accused(findings)
    assert {each.cause for each in found} == {"operation"}
    assert {each.operation for each in found} == {name}
    assert {each.conclusion for each in found} == {"confirmed"}
    for each in found:
        assert next(operation.name for operation in each.operations if not operation.outputs_equal) == name
        assert each.interventions[0].mended == name.rpartition(".")[2]
        assert each.interventions[0].equal_after == each.interventions[0].prompts > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_noise_that_depends_on_the_row(seed: int) -> None:
    target, name = planted.with_operation(seed, planted.noise_by_row)
    findings = probed(target, seed)
    assert differing(findings) == {"batch_size 3 and position last"}
    (found,) = accused(findings)
    assert (found.cause, found.operation, found.conclusion) == ("operation", name, "confirmed")


@pytest.mark.parametrize("seed", SEEDS)
def test_memory_that_was_not_set(seed: int) -> None:
    target, name = planted.with_operation(seed, planted.unset_memory)
    findings = probed(target, seed)
    assert "rerun" in differing(findings)
    found = {each.condition: each for each in accused(findings)}["rerun"]
    assert (found.cause, found.operation) == ("corruption", name)
    assert found.conclusion == "suspected corruption"
    assert findings.verdict.headline.startswith("Suspected corruption")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("fault", "cause"),
    [(planted.keyed_by_row, "sampler"), (planted.ties_by_row, "ties")],
    ids=["row", "ties"],
)
def test_a_sampler_that_looks_at_the_row(seed: int, fault: Callable[[int], Target], cause: str) -> None:
    findings = probed(fault(seed), seed)
    last = next(each for each in findings.tested if "position" in each.name)
    assert last.bitwise is not None and last.bitwise.count == 0
    assert last.divergence is not None and last.divergence.count == 2
    (found,) = findings.attributions
    assert (found.condition, found.cause, found.conclusion) == (last.name, cause, "confirmed")
    assert found.shared_by == ()


@pytest.mark.parametrize("seed", SEEDS)
def test_padding_that_leaks(seed: int) -> None:
    findings = probed(planted.padding_leak(seed), seed)
    assert differing(findings) == {"padding 2", "batch_size 2 and neighbours longer"}
    for found in accused(findings):
        assert (found.cause, found.conclusion) == ("padding", "suspected corruption")
        assert found.operation == "model.layers.0.self_attn.attention"
