"""One condition against its reference: run, compared, counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sortition.benchmarks.probe import measures, rates
from sortition.benchmarks.probe.agreement import Parser
from sortition.benchmarks.probe.conditions import counts
from sortition.benchmarks.probe.findings import Comparison, Tested
from sortition.benchmarks.probe.options import Options
from sortition.benchmarks.probe.target import Condition, NotPossible, Outcome, Prompt, Target


def untested(condition: Condition, why: str = "") -> Tested:
    """A condition of which nothing came, or nothing yet."""
    return Tested(
        name=condition.name,
        kind=condition.kind,
        varies=dict(condition.varies),
        given=dict(condition.given),
        counts=counts(condition),
        status="not run" if why else "not exercised",
        evidence=why,
    )


class Trials:
    """Tries conditions on a target.

    Args:
        target: what goes on from prompts.
        prompts: the units of all rates.
        options: of the probe.
        parser: finds the answer in a completion, where answers are required.
    """

    def __init__(
        self, target: Target, prompts: Sequence[Prompt], options: Options, parser: Parser | None = None
    ) -> None:
        self._target = target
        self._prompts = prompts
        self._options = options
        self._parser = parser
        self._references: dict[Condition, Outcome] = {}

    def reference(self, condition: Condition) -> Outcome:
        """The run that a condition is held against; run once for all that share it."""
        reference = condition.reference
        if reference not in self._references:
            self._references[reference] = self._target.run(self._prompts, reference, self._options.steps)
        return self._references[reference]

    def tested(self, condition: Condition) -> Tested:
        """What came of a condition."""
        tested = untested(condition)
        try:
            return self._try(condition, tested)
        except NotPossible as reason:
            return replace(tested, evidence=str(reason), possible=False)
        except (RuntimeError, OSError) as problem:
            return replace(tested, status="error", evidence=str(problem))

    def _try(self, condition: Condition, tested: Tested) -> Tested:
        """Prompts in blocks, until the sequential test has decided or there are no more."""
        base = self.reference(condition)
        if condition.given and not base.evidence.took_effect:
            return replace(tested, evidence=base.evidence.seen)
        comparisons: list[Comparison] = []
        noise: list[float] = []
        seconds = 0.0
        decision: rates.Decision = "undecided"
        while decision == "undecided" and len(comparisons) < len(self._prompts):
            block = range(len(comparisons), min(len(comparisons) + self._options.block, len(self._prompts)))
            outcome = self._run(block, condition, base)
            if not outcome.evidence.took_effect:
                return replace(tested, evidence=outcome.evidence.seen)
            tested = replace(tested, evidence=tested.evidence or outcome.evidence.seen)
            seconds += outcome.seconds
            pairs = [
                (prompt, base.runs[prompt], run) for prompt, run in zip(block, outcome.runs, strict=True)
            ]
            noise += [change for _, ours, theirs in pairs for change in measures.margin_noise(ours, theirs)]
            comparisons += self._said(condition, [measures.compare(*pair) for pair in pairs], outcome)
            decision = rates.sequential([self._differs(each, base) for each in comparisons])
        return replace(
            tested,
            status="exercised",
            comparisons=tuple(comparisons),
            sequential=decision,
            seconds=seconds,
            reference_seconds=base.seconds * len(comparisons) / len(self._prompts),
            **self._rates(comparisons, base, measures.deviation(noise)),
        )

    def _run(self, block: Sequence[int], condition: Condition, base: Outcome) -> Outcome:
        prompts = [self._prompts[index] for index in block]
        forced = [base.runs[index].tokens for index in block] if self._target.forces else None
        return self._target.run(prompts, condition, self._options.steps, forced)

    def _said(
        self, condition: Condition, compared: Sequence[Comparison], outcome: Outcome
    ) -> Sequence[Comparison]:
        """With what the target says freely, where that may be another text than the reference's."""
        if not self._target.forces:
            said = [self._target.text(run.tokens) for run in outcome.runs]
            return [replace(each, completion=text) for each, text in zip(compared, said, strict=True)]
        flipped = [each.prompt for each in compared if each.flips]
        if not flipped or not counts(condition):
            return compared
        free = self._target.run([self._prompts[at] for at in flipped], condition, self._options.steps)
        texts = {at: self._target.text(run.tokens) for at, run in zip(flipped, free.runs, strict=True)}
        return [replace(each, completion=texts.get(each.prompt)) for each in compared]

    def _differs(self, comparison: Comparison, base: Outcome) -> bool:
        """Whether a prompt is what is not wanted."""
        if self._options.require == "bitwise":
            return comparison.first_difference is not None
        if self._options.require == "answers" and self._parser is not None:
            said = self._target.text(base.runs[comparison.prompt].tokens)
            told = said if comparison.completion is None else comparison.completion
            return self._parser(told) != self._parser(said)
        return comparison.first_flip is not None

    def _rates(self, comparisons: Sequence[Comparison], base: Outcome, noise: float) -> dict[str, Any]:
        """The fields of `Tested` that count something."""
        confidence = self._options.confidence
        steps = [each.steps for each in comparisons]
        flips = [each.first_flip for each in comparisons]
        differences = sum(each.first_difference is not None for each in comparisons)
        margins = [
            margin
            for each in comparisons
            for margin in measures.margins(base.runs[each.prompt])[: each.steps]
        ]
        return {
            "bitwise": rates.rate(differences, len(comparisons), confidence),
            "divergence": rates.rate(len(flips) - flips.count(None), len(comparisons), confidence),
            "flips": rates.rate(sum(len(each.flips) for each in comparisons), sum(steps), confidence),
            "predicted_flips": rates.predicted_flips(margins, noise),
            "noise": noise or None,
            "survival": rates.survival(flips, steps, confidence),
        }
