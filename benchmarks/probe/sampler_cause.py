"""The sampler's part: equal scores that led to other tokens are replayed, in a batch and alone."""

from __future__ import annotations

from sortition.benchmarks.probe.case import Case
from sortition.benchmarks.probe.findings import Attribution, Cause
from sortition.benchmarks.probe.target import Chooses


def sampler_cause(case: Case) -> Attribution:
    """Why tokens differ where scores do not."""
    found = case.chosen_otherwise
    cause: Cause = "sampler"
    what = "equal scores lead to different tokens"
    if {"seed", "draw"} & case.condition.settings.keys():
        cause = "seed"
        what = "draws from equal scores depend on the batch: random numbers belong to rows, not to requests"
    elif all(_is_tie(case, *each) for each in found):
        cause = "ties"
        what = "tokens of exactly equal scores are told apart by the batch"
    target = case.target
    replayed = isinstance(target, Chooses) and all(_varies(case, target, *each) for each in found)
    proof = f"; replaying the same scores shows it at {len(found)} steps of {len(found)}" if replayed else ""
    return Attribution(
        condition=case.condition.name,
        cause=cause,
        conclusion="confirmed" if replayed else "suspected",
        sentence=f"sampler, not model: {what}{proof}",
    )


def _is_tie(case: Case, prompt: int, step: int) -> bool:
    row = case.base.runs[prompt].scores[step].double()
    return len(row) > 1 and float(row.topk(2).values.diff()) == 0


def _varies(case: Case, target: Chooses, prompt: int, step: int) -> bool:
    """Whether one row of scores is chosen from otherwise in a batch of its copies than alone."""
    row = case.base.runs[prompt].scores[step]
    rows = int(case.condition.settings.get("batch_size", 1))
    alone = target.choose(row[None], case.condition.reference, step)
    together = target.choose(row.expand(rows, -1).clone(), case.condition, step)
    return set(together) != set(alone)
