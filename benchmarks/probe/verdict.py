"""The answer: whether what was seen is within what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from sortition.benchmarks.probe.findings import Answer, Attribution, Rate, Tested, Verdict

Requirement: TypeAlias = Literal["bitwise", "tokens", "answers"]


def verdict(
    tested: Sequence[Tested],
    attributions: Sequence[Attribution],
    answers: Rate | None,
    *,
    require: Requirement,
    most: float,
    asked: bool,
) -> Verdict:
    """Judge the conditions that users do not choose.

    Args:
        tested: all conditions.
        attributions: of those that differ.
        answers: prompts with one parsed answer (TARa@N), for the requirement "answers".
        require: what must be the same: all bits of all scores, all tokens, or the answers.
        most: the share of prompts that may differ; 0 for none that was seen, more for a bound that holds.
        asked: users named the conditions themselves, so that one that was not exercised is a reason.
    """
    counted = [each for each in tested if each.counts]
    broken = [each for each in counted if each.status == "error"]
    idle = [each for each in counted if each.status == "not exercised" and (asked or each.possible)]
    left = [each for each in counted if each.status == "not run"]
    exercised = [each for each in counted if each.status == "exercised"]
    corrupt = [each for each in attributions if each.conclusion == "suspected corruption"]
    rates = {each.name: _rate(each, require) for each in exercised}
    if require == "answers" and answers is not None:
        rates = {"all conditions": _opposite(answers)}
    over = [name for name, rate in rates.items() if (rate.count > 0 if most == 0 else rate.low > most)]
    unsure = [name for name, rate in rates.items() if name not in over and most > 0 and rate.high > most]
    reasons = [
        *(f"suspected corruption: {each.sentence}" for each in corrupt),
        *(f"{name}: {_share(rates[name])} prompts" for name in over),
        *(f"{each.name}: {each.evidence}" for each in broken),
        *(f"{each.name} was not exercised: {each.evidence}" for each in idle),
        *([f"not run, {left[0].evidence}: {_listed(left)}"] if left else []),
        *(
            f"{name}: {_share(rates[name])} prompts bound the rate only to {rates[name].high:.1%}"
            for name in unsure
        ),
        *(f"{names}: {sentence}" for sentence, names in _sentences(attributions, corrupt).items()),
    ]
    answer: Answer
    if corrupt or over:
        answer = "exceeded"
    elif broken:
        answer = "error"
    else:
        answer = "inconclusive" if idle or left or unsure or not exercised else "within"
    return Verdict(answer, _headline(answer, exercised, bool(corrupt)), tuple(reasons))


def _rate(tested: Tested, require: Requirement) -> Rate:
    rate = tested.bitwise if require == "bitwise" else tested.divergence
    if rate is None:
        raise ValueError(f"{tested.name} was exercised and has no rates")
    return rate


def _opposite(rate: Rate) -> Rate:
    return Rate(rate.trials - rate.count, rate.trials, 1 - rate.high, 1 - rate.low, rate.confidence)


def _sentences(attributions: Sequence[Attribution], known: Sequence[Attribution]) -> dict[str, str]:
    """What was found, each once, and under which conditions."""
    names: dict[str, list[str]] = {}
    for each in attributions:
        if each not in known and each.cause != "none":
            names.setdefault(each.sentence, []).extend((each.condition, *each.shared_by))
    return {sentence: _named(each) for sentence, each in names.items()}


def _share(rate: Rate) -> str:
    return f"{rate.count} of {rate.trials}"


def _headline(answer: Answer, exercised: Sequence[Tested], corrupt: bool) -> str:
    differing = [each for each in exercised if each.bitwise is not None and each.bitwise.count]
    flipping = [each for each in exercised if each.divergence is not None and each.divergence.count]
    if corrupt:
        return "Suspected corruption: values are wrong, not only rounded otherwise."
    if answer == "error":
        return "A condition failed to run."
    if not exercised:
        return "No condition that counts was exercised."
    if flipping:
        return f"The text depends on {_listed(flipping)}."
    if differing:
        greatest = max(comparison.max_abs for each in differing for comparison in each.comparisons)
        return f"Noise without flips: scores differ by up to {greatest:.2g}, and no token does."
    conditions = "1 condition" if len(exercised) == 1 else f"{len(exercised)} conditions"
    return f"No difference: {conditions} gave the same bits."


def _listed(tested: Sequence[Tested]) -> str:
    return _named([each.name for each in tested])


def _named(names: Sequence[str]) -> str:
    """Three of them, and how many more."""
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")
