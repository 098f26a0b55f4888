"""The probe on the embedded model: what it accuses, it proves."""

from __future__ import annotations

import pytest

from sortition.benchmarks.probe.conditions import parse
from sortition.benchmarks.probe.options import Options
from sortition.benchmarks.probe.study import study
from sortition.benchmarks.probe.transformers_target import TransformersTarget
from sortition.integrations.smollm2 import embedded_model

pytestmark = pytest.mark.slow

PROMPTS = (
    "Write a short story about a lighthouse keeper.",
    "In 1969, Neil Armstrong",
    "The derivative of x^2 sin(x) is",
)


def test_in_bfloat16_bisection_and_intervention_agree() -> None:
    target = TransformersTarget.load(embedded_model(), "bfloat16")
    conditions = [parse(name) for name in ("rerun", "batch_size 8", "padding 8", "drafts 4")]
    found = study(target, target.prompts(PROMPTS), conditions, Options(steps=6))
    assert {each.status for each in found.tested} == {"exercised"}
    assert found.tested[0].bitwise is not None and found.tested[0].bitwise.count == 0
    # Which conditions differ is up to the processor; whatever does is explained.
    for each in found.attributions:
        assert each.conclusion == "confirmed", each.sentence
        assert each.operation is not None
        assert each.interventions[0].mended == each.operation.rpartition(".")[2]
    if not found.attributions:
        assert found.verdict.headline.startswith("No difference")


def test_in_float32_there_is_noise_without_flips() -> None:
    target = TransformersTarget.load(embedded_model(), "float32")
    conditions = [parse(name) for name in ("rerun", "batch_size 3", "padding 8")]
    found = study(target, target.prompts(PROMPTS), conditions, Options(steps=4))
    assert found.verdict.answer == "within"
    assert found.verdict.headline.startswith(("Noise without flips", "No difference"))
    assert all(each.max_abs < 1e-3 for tested in found.tested for each in tested.comparisons)
    assert {each.conclusion for each in found.attributions} <= {"confirmed", "suspected"}
