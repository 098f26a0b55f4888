"""The answers that every report gives, in the same words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sortition.benchmarks.probe.findings import Answer, Attribution, Findings, Fix, Rate, Tested

VERDICTS: Final[dict[Answer, str]] = {
    "within": "WITHIN THE LIMIT",
    "exceeded": "THE BATCH CHANGES THE OUTPUT",
    "inconclusive": "INCONCLUSIVE",
    "error": "THE PROBE FAILED",
}

CORRUPTION: Final = "SUSPECTED CORRUPTION"

SEEDS: Final = "draws under one seed depend on the batch, with the same scores"

NOISE: Final = frozenset({"operation", "model", "ties"})
"""Causes that are arithmetic in another order, and what follows from it."""


def badge(findings: Findings) -> str:
    """The verdict in capitals."""
    if any(each.conclusion == "suspected corruption" for each in findings.attributions):
        return CORRUPTION
    return VERDICTS[findings.verdict.answer]


def answers(findings: Findings) -> list[tuple[str, str]]:
    """Questions and answers, in the order in which people ask."""
    said = [("is it a bug?", nature(findings)), ("how often?", frequency(findings))]
    if findings.boundaries:
        said.append(("what sizes?", sizes(findings)))
    leading = main_attribution(findings)
    if leading is not None:
        if leading.operation or leading.phase:
            said.append(("where?", place(leading)))
        said.append(("why?", f"{leading.sentence} [{leading.conclusion}]"))
    said += [("what helps?", remedy(fix)) for fix in findings.fixes[:1]]
    return said


def main_attribution(findings: Findings) -> Attribution | None:
    """The worst: corruption before all else, then what is confirmed, then the condition that differs most.

    Conditions that count come before draws, which nobody asked about who has no seed.
    """
    flips = {tested.name: tested.divergence.count if tested.divergence else 0 for tested in findings.tested}
    ranks = {"suspected corruption": 0, "confirmed": 1, "suspected": 2, "not found": 3}
    return min(
        _counted(findings) or findings.attributions,
        key=lambda each: (ranks[each.conclusion], -flips.get(each.condition, 0)),
        default=None,
    )


def _counted(findings: Findings) -> list[Attribution]:
    """Causes of differences under conditions that count."""
    names = {tested.name for tested in findings.tested if tested.counts}
    return [each for each in findings.attributions if each.condition in names]


def nature(findings: Findings) -> str:
    """Whether what was found is a bug or the arithmetic of floats."""
    counted = _counted(findings)
    said = _nature(findings, counted or findings.attributions)
    if counted and "seed" in {each.cause for each in findings.attributions}:
        said += f"; but {SEEDS}"
    return said


def _nature(findings: Findings, attributions: Sequence[Attribution]) -> str:
    conclusions = {each.conclusion for each in attributions}
    causes = {each.cause for each in attributions}
    if "suspected corruption" in conclusions or "corruption" in causes:
        return "suspected: the differences are larger than rounding can make them"
    if "sampler" in causes:
        return "yes: the sampler's choice depends on the batch, with the same scores"
    if "seed" in causes:
        return f"yes: {SEEDS}"
    if not differing(findings):
        return "nothing to explain: every condition that took effect gave the same bits"
    if causes & NOISE and causes <= NOISE | {"unknown"}:
        sure = "no" if conclusions == {"confirmed"} else "most likely not, but not all is proved"
        return f"{sure}: floating-point sums in another order"
    if any(tested.divergence and tested.divergence.count for tested in differing(findings)):
        return "not known: no cause was found for the differences"
    return "no flip was seen; the scores differ in their last bits"


def frequency(findings: Findings) -> str:
    """How many prompts get more than one text, and from when on."""
    agreement = findings.agreement
    if agreement is None:
        return "not known: no condition took effect"
    said = f"{share(_others(agreement.tar_raw))} get more than one text over {agreement.runs} runs"
    if agreement.tar_answers is not None:
        said += f", {share(_others(agreement.tar_answers))} more than one answer"
    if agreement.divergence_index is not None:
        said += f"; the first other token is, in the median, number {agreement.divergence_index + 1:g}"
    return said


def _others(same: Rate) -> Rate:
    """The rate of those that are not the same."""
    return Rate(same.trials - same.count, same.trials, 1 - same.high, 1 - same.low, same.confidence)


def place(attribution: Attribution) -> str:
    """The phase and the operation where bits first differ."""
    said = f"in {attribution.phase}" if attribution.phase else ""
    if attribution.operation:
        said += f"{', ' if said else ''}{attribution.operation}, from inputs that are the same bits"
    return said


def sizes(findings: Findings) -> str:
    """Batch sizes that give the same bits: "1 | 2 to 8 | 9 to 16 rows"."""
    tried = [int(each.varies["batch_size"]) for each in findings.tested if each.kind == "batch_size"]
    first = [1, *(each.above for each in findings.boundaries)]
    last = [*(each.below for each in findings.boundaries), max([first[-1], *tried])]
    classes = (str(one) if one == two else f"{one} to {two}" for one, two in zip(first, last, strict=True))
    return f"{' | '.join(classes)} rows: within bars the bits are the same"


def not_run(findings: Findings) -> dict[str, list[str]]:
    """Names of conditions that were not run, by the reason."""
    found: dict[str, list[str]] = {}
    for tested in findings.tested:
        if tested.status == "not run":
            found.setdefault(tested.evidence, []).append(tested.name)
    return found


def units(tested: Tested) -> int:
    """The greatest difference of scores under a condition, in units in the last place."""
    return max((each.max_ulp for each in tested.comparisons), default=0)


def first_difference(tested: Tested) -> str:
    """The first token of any prompt whose scores have other bits, counted from 1; "-" if none has."""
    steps = [each.first_difference for each in tested.comparisons if each.first_difference is not None]
    return str(min(steps) + 1) if steps else "-"


def remedy(fix: Fix) -> str:
    """A fix, and what it did where it was tried."""
    if not fix.tried or fix.restored is None:
        return f"{fix.suggestion} [not tried here]"
    outcome = f"{fix.restored} of {fix.prompts} prompts have the same bits with it"
    if fix.same_tokens is not None:
        outcome += f", {fix.same_tokens} the same tokens"
    if fix.cost is not None:
        outcome += f", in {fix.cost:.2f} times the time"
    return f"{fix.suggestion} [tried here: {outcome}]"


def differing(findings: Findings) -> list[Tested]:
    """Conditions under which some score has other bits."""
    return [tested for tested in findings.tested if tested.bitwise is not None and tested.bitwise.count]


def share(rate: Rate, what: str = "prompts") -> str:
    """A rate with its interval."""
    return f"{rate.count} of {rate.trials} {what} ({interval(rate)})"


def interval(rate: Rate) -> str:
    """The bounds of a rate, in per cent, and how sure they are."""
    return f"{100 * rate.confidence:g} % sure of {percent(rate.low)} to {percent(rate.high)} %"


def percent(value: float) -> str:
    """A share in per cent, rounded to where it can still be told from 0 and 100."""
    value = 100 * value
    if value < 1:
        return f"{value:.2g}"
    return f"{value:.1f}" if 99 < value < 100 else f"{value:.0f}"


def same(rate: Rate | None) -> str:
    """How many did not: "11/16", "-" where nothing was counted."""
    return "-" if rate is None else f"{rate.trials - rate.count}/{rate.trials}"


def greatest(tested: Tested) -> float:
    """The greatest difference of scores under a condition."""
    return max((each.max_abs for each in tested.comparisons), default=0.0)
