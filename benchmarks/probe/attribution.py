"""Why a condition differs from its reference: replayed, located, and proved by mending only the suspect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch

from sortition.benchmarks.probe.bisect import ATTENTION, Located, locate
from sortition.benchmarks.probe.findings import Attribution, Cause, Comparison, Intervention
from sortition.benchmarks.probe.measures import digests
from sortition.benchmarks.probe.microprobe import row_classes
from sortition.benchmarks.probe.target import (
    Chooses,
    Condition,
    Inspects,
    NotPossible,
    Outcome,
    Prompt,
    Run,
    Target,
)

TRIED: Final = 3
"""Prompts of an intervention: each needs all bits back, of all its steps."""

MOST_KINDS: Final = 10
"""Kinds of operations that are mended before giving up: a layer of a transformer has about eight."""

CORRUPT_UNITS: Final = 8
CORRUPT_LEAST: Final = 1e-4
"""An operation whose outputs differ by more than so many units of its dtype, or this share of the greatest,
does not round otherwise: it reads something else."""

CORRUPT_SCORES: Final = 0.25
"""The same where operations are not seen: greatest difference over the deviation of the scores."""


@dataclass(frozen=True, eq=False)
class Case:
    """A condition that differs, and what is needed to look into it.

    Attributes:
        target, prompts, condition: what ran.
        base: the reference's runs.
        other: the condition's runs of the prompts in `comparisons`.
        comparisons: one a prompt.
    """

    target: Target
    prompts: Sequence[Prompt]
    condition: Condition
    base: Sequence[Run]
    comparisons: Sequence[Comparison]

    @property
    def differing(self) -> list[Comparison]:
        """Those with other bits, the one that differs first in front."""
        found = [each for each in self.comparisons if each.first_difference is not None]
        return sorted(found, key=lambda each: (each.first_difference, each.prompt))

    @property
    def chosen_otherwise(self) -> list[tuple[int, int]]:
        """Prompts and steps at which equal scores led to another choice."""
        return [
            (each.prompt, step)
            for each in self.comparisons
            for step in each.flips
            if each.digests[step] == digests(self.base[each.prompt])[step]
        ]


def attribute(case: Case) -> Attribution:
    """The cause of a condition's differences, as far as it can be told."""
    if case.chosen_otherwise:
        return _sampler(case)
    if not case.differing:
        return Attribution(case.condition.name, "none", "not found", "nothing differs")
    if isinstance(case.target, Inspects):
        try:
            return _model(case, case.target)
        except NotPossible as reason:
            return _unseen(case, f"; {reason}")
    return _unseen(case, "")


def _sampler(case: Case) -> Attribution:
    """Equal scores, another choice: replay the scores to see whether the choice goes by the batch."""
    found = case.chosen_otherwise
    tied = all(case.base[prompt].scores[step].double().topk(2).values.diff() == 0 for prompt, step in found)
    drawn = {"seed", "draw"} & case.condition.settings.keys()
    cause: Cause = "seed" if drawn else "ties" if tied else "sampler"
    what = {
        "seed": "draws from equal scores depend on the batch: random numbers belong to rows, not to requests",
        "ties": "tokens of exactly equal scores are told apart by the batch",
        "sampler": "equal scores lead to different tokens",
    }[cause]
    replayed = isinstance(case.target, Chooses) and all(_choice_varies(case, *each) for each in found)
    proof = f"; replaying the same scores shows it at {len(found)} of {len(found)} steps" if replayed else ""
    return Attribution(
        condition=case.condition.name,
        cause=cause,
        conclusion="confirmed" if replayed else "suspected",
        sentence=f"sampler, not model: {what}{proof}",
    )


def _choice_varies(case: Case, prompt: int, step: int) -> bool:
    """Whether one row of scores is chosen from otherwise in a batch of its copies than alone."""
    assert isinstance(case.target, Chooses)
    row = case.base[prompt].scores[step]
    rows = int(case.condition.settings.get("batch_size", 1))
    alone = case.target.choose(row[None], case.condition.reference, step)
    together = case.target.choose(row.expand(rows, -1).clone(), case.condition, step)
    return set(together) != set(alone)


def _model(case: Case, target: Inspects) -> Attribution:
    located = _locate(case, target, case.differing[0])
    if located.first is None:
        return _unseen(case, "; a second look at its operations found no difference")
    culprit = located.operations[located.first]
    phase = _phase(case, located)
    dtype = case.base[0].scores.dtype
    limit = max(CORRUPT_UNITS * torch.finfo(dtype).eps, CORRUPT_LEAST)
    corrupt = not located.relative <= limit
    padded = {"padding", "neighbours"} & dict(case.condition.varies).keys()
    interventions = [] if corrupt else _interventions(case, target, located)
    proved = bool(interventions) and interventions[-1].equal_after == interventions[-1].prompts
    linear = target.linear(culprit.kind)
    cause: Cause = "operation"
    if corrupt:
        cause = "padding" if padded else "corruption"
        sentence = (
            f"{culprit.name} gives other values for equal inputs, by {located.relative:.2g} of its outputs: "
            "more than rounding can do, so it reads what it should not"
            + (" (padding or neighbours)" if padded else " (memory that is not its own or not set)")
        )
    else:
        sentence = f"{culprit.name} is the first operation that rounds otherwise, in {phase}; " + _proof(
            interventions
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


def _locate(case: Case, target: Inspects, compared: Comparison) -> Located:
    forced = case.base[compared.prompt].tokens
    base = target.record(case.prompts, compared.prompt, case.condition.reference, forced)
    return locate(base, target.record(case.prompts, compared.prompt, case.condition, forced))


def _phase(case: Case, located: Located) -> Literal["prefill", "decode"]:
    length = len(case.prompts[case.differing[0].prompt].tokens)
    return "prefill" if located.position is not None and located.position < length else "decode"


def _proof(interventions: Sequence[Intervention]) -> str:
    if not interventions:
        return "there is nothing to put in its place here, so that is not proved"
    last = interventions[-1]
    if last.equal_after == last.prompts:
        return f"with only {last.mended} mended, all bits are equal again"
    return f"with {last.mended} mended, {last.equal_after} of {last.prompts} prompts have equal bits"


def _interventions(case: Case, target: Inspects, located: Located) -> list[Intervention]:
    """Mend the suspect, in condition and reference alike; while bits still differ, the next suspect, too."""
    tried = case.differing[:TRIED]
    chosen = [each.prompt for each in tried]
    before = _run(case, chosen, case.condition.reference)
    done: list[Intervention] = []
    kinds: list[str] = []
    while located.first is not None and len(kinds) < MOST_KINDS:
        kind = located.operations[located.first].kind
        if kind in kinds or not target.can_mend(kind):
            break
        kinds.append(kind)
        with target.mended(kinds):
            base, other = (_run(case, chosen, each) for each in (case.condition.reference, case.condition))
            pairs = list(zip(base.runs, other.runs, strict=True))
            equal = sum(digests(one) == digests(two) for one, two in pairs)
            done.append(
                Intervention(
                    mended=", ".join(kinds),
                    how="every vector by itself" if kind != ATTENTION else "every query by itself",
                    prompts=len(chosen),
                    equal_before=0,
                    equal_after=equal,
                    same_tokens_after=sum(one.choices == two.choices for one, two in pairs),
                    cost=base.seconds / before.seconds if before.seconds else None,
                )
            )
            if equal == len(chosen):
                break
            left = next(at for at, (one, two) in enumerate(pairs) if digests(one) != digests(two))
            located = _locate(case, target, tried[left])
    return done


def _run(case: Case, chosen: Sequence[int], condition: Condition) -> Outcome:
    prompts = [case.prompts[index] for index in chosen]
    forced = [case.base[index].tokens for index in chosen]
    return case.target.run(prompts, condition, len(forced[0]), forced)


def _unseen(case: Case, why: str) -> Attribution:
    """By scores alone, where operations are not seen."""
    first = case.differing[0]
    phase: Literal["prefill", "decode"] = "prefill" if first.first_difference == 0 else "decode"
    spread = float(case.base[first.prompt].scores[first.first_difference or 0].double().std().nan_to_num())
    corrupt = case.base[first.prompt].ids is None and first.max_abs > CORRUPT_SCORES * spread > 0
    return Attribution(
        condition=case.condition.name,
        cause="corruption" if corrupt else "model",
        conclusion="suspected corruption" if corrupt else "suspected",
        sentence=f"model, not sampler: scores first differ in {phase}{why}",
        phase=phase,
    )
