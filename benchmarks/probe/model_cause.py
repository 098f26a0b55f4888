"""The model's part: the first operation that differs, and the proof by mending it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from sortition.benchmarks.probe.bisect import ATTENTION, Located, locate
from sortition.benchmarks.probe.case import Case
from sortition.benchmarks.probe.deadline import Deadline
from sortition.benchmarks.probe.findings import Attribution, Cause, Comparison, Intervention
from sortition.benchmarks.probe.measures import digests
from sortition.benchmarks.probe.microprobe import row_classes
from sortition.benchmarks.probe.target import Inspects, NotPossible

TRIED: Final = 3
"""Prompts of an intervention: each needs all bits back, at all of its steps."""

MOST_KINDS: Final = 10
"""Kinds of operations that are mended before giving up: a layer of a transformer has about eight."""

CORRUPT_UNITS: Final = 8
CORRUPT_LEAST: Final = 1e-4
"""An operation whose outputs differ by more than so many units of its dtype, or this share of the greatest,
does not round otherwise: it reads something else. On SmolLM2 under padding, rounding came to 0.15 units in
bfloat16 and to 3.5 in float32, which is 4e-7."""


def model_cause(case: Case, target: Inspects, deadline: Deadline) -> Attribution:
    """Which operation makes scores differ; no further one is mended after the deadline.

    Raises:
        NotPossible: operations cannot be seen under this condition, or do not differ when they are looked at.
    """
    located = _look(case, target)
    if located.first is None:
        raise NotPossible("a second look at its operations found no difference")
    culprit = located.operations[located.first]
    phase = _phase(case, located)
    # Written so that NaN is corrupt.
    corrupt = not located.relative <= max(CORRUPT_UNITS * located.unit, CORRUPT_LEAST)
    interventions = [] if corrupt else _interventions(case, target, located, deadline)
    proved = bool(interventions) and interventions[-1].equal_after == interventions[-1].prompts
    linear = target.linear(culprit.kind)
    cause: Cause = "operation"
    sentence = (
        f"{culprit.name} is the first operation that rounds otherwise, in {phase}; "
        f"{_proof(interventions, target.can_mend(culprit.kind))}"
    )
    if corrupt:
        padded = {"padding", "neighbours"} & dict(case.condition.varies).keys()
        cause = "padding" if padded else "corruption"
        reads = "padding" if padded else "memory that is not its own or was not set"
        sentence = (
            f"{culprit.name} makes other values of equal inputs, apart by {located.relative:.2g} of the "
            f"greatest: more than rounding can do, so it reads {reads}"
        )
    return Attribution(
        condition=case.condition.name,
        cause=cause,
        conclusion="suspected corruption" if corrupt else "confirmed" if proved else "suspected",
        sentence=sentence,
        phase=phase,
        operation=culprit.name,
        operations=located.operations,
        row_classes=() if linear is None else (row_classes(culprit.kind, *linear),),
        interventions=tuple(interventions),
    )


def _look(case: Case, target: Inspects) -> Located:
    """Where bits part for the prompt that differs first.

    What depends on what ran before, such as memory that was not set, may show only if something else ran in
    between, as it did when the difference was found.
    """
    first = case.differing[0]
    located = _locate(case, target, first)
    for other in range(len(case.prompts)):
        if located.first is not None:
            break
        if other != first.prompt:
            located = _locate(case, target, first, between=other)
    return located


def _locate(case: Case, target: Inspects, compared: Comparison, between: int | None = None) -> Located:
    forced = case.base.runs[compared.prompt].tokens
    base = target.record(case.prompts, compared.prompt, case.condition.reference, forced)
    if between is not None:
        target.record(case.prompts, between, case.condition, case.base.runs[between].tokens)
    return locate(base, target.record(case.prompts, compared.prompt, case.condition, forced))


def _phase(case: Case, located: Located) -> Literal["prefill", "decode"]:
    length = len(case.prompts[case.differing[0].prompt].tokens)
    return "prefill" if located.position is not None and located.position < length else "decode"


def _interventions(case: Case, target: Inspects, located: Located, deadline: Deadline) -> list[Intervention]:
    """Mend the suspect, in condition and reference alike; while bits differ, the next suspect as well."""
    tried = case.differing[:TRIED]
    chosen = [each.prompt for each in tried]
    plain = case.base.seconds * len(chosen) / len(case.base.runs)
    done: list[Intervention] = []
    kinds: list[str] = []
    while located.first is not None and len(kinds) < MOST_KINDS and not deadline.passed():
        kind = located.operations[located.first].kind
        if kind in kinds or not target.can_mend(kind):
            break
        kinds.append(kind)
        with target.mended(kinds):
            base, other = (case.run(chosen, each) for each in (case.condition.reference, case.condition))
            pairs = list(zip(base.runs, other.runs, strict=True))
            unequal = [at for at, (one, two) in enumerate(pairs) if digests(one) != digests(two)]
            if unequal:
                located = _locate(case, target, tried[unequal[0]])
        done.append(
            Intervention(
                mended=", ".join(kinds),
                how="every query by itself" if kinds == [ATTENTION] else "every vector by itself",
                prompts=len(chosen),
                equal_before=0,
                equal_after=len(chosen) - len(unequal),
                same_tokens_after=sum(one.choices == two.choices for one, two in pairs),
                cost=base.seconds / plain if plain else None,
            )
        )
        if not unequal:
            break
    return done


def _proof(interventions: Sequence[Intervention], mendable: bool) -> str:
    if not interventions:
        return (
            "there was no time to prove that"
            if mendable
            else ("there is nothing to put in its place here, so that is not proved")
        )
    last = interventions[-1]
    if last.equal_after == last.prompts:
        return f"with only {last.mended} mended, all bits are equal again"
    return f"with {last.mended} mended, {last.equal_after} of {last.prompts} prompts have equal bits"
