"""Why a condition differs from its reference: the sampler, an operation of the model, or wrong memory."""

from __future__ import annotations

from typing import Final, Literal

from sortition.benchmarks.probe.case import Case
from sortition.benchmarks.probe.deadline import Deadline
from sortition.benchmarks.probe.findings import Attribution
from sortition.benchmarks.probe.model_cause import model_cause
from sortition.benchmarks.probe.sampler_cause import sampler_cause
from sortition.benchmarks.probe.target import Inspects, NotPossible

CORRUPT_SCORES: Final = 1.0
"""Where operations are not seen, scores that are apart by more than their own deviation are not rounded
otherwise: on SmolLM2, in bfloat16 and under padding, rounding came to 0.27 of it."""


def attribute(case: Case, deadline: Deadline) -> Attribution:
    """The cause of a condition's differences, as far as it can be told and there is time to prove it."""
    if case.chosen_otherwise:
        return sampler_cause(case)
    if not case.differing:
        return Attribution(case.condition.name, "none", "not found", "nothing differs")
    if isinstance(case.target, Inspects):
        try:
            return model_cause(case, case.target, deadline)
        except NotPossible as reason:
            return _unseen(case, f"; {reason}")
    return _unseen(case, "")


def _unseen(case: Case, why: str) -> Attribution:
    """By scores alone, where operations are not seen."""
    first = case.differing[0]
    phase: Literal["prefill", "decode"] = "prefill" if first.first_difference == 0 else "decode"
    spread = float(
        case.base.runs[first.prompt].scores[first.first_difference or 0].double().std().nan_to_num()
    )
    corrupt = case.base.runs[first.prompt].ids is None and first.max_abs > CORRUPT_SCORES * spread > 0
    return Attribution(
        condition=case.condition.name,
        cause="corruption" if corrupt else "model",
        conclusion="suspected corruption" if corrupt else "suspected",
        sentence=f"model, not sampler: scores first differ in {phase}{why}",
        phase=phase,
    )
