"""The probe: every condition against its reference, then what differs and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from sortition.benchmarks.probe import agreement, measures, rates
from sortition.benchmarks.probe.attribution import attribute
from sortition.benchmarks.probe.case import Case
from sortition.benchmarks.probe.conditions import counts
from sortition.benchmarks.probe.findings import SCHEMA, Attribution, Comparison, Findings, Tested
from sortition.benchmarks.probe.fixes import fixes
from sortition.benchmarks.probe.ledger import Ledger
from sortition.benchmarks.probe.phases import refined
from sortition.benchmarks.probe.target import Condition, NotPossible, Outcome, Prompt, Target
from sortition.benchmarks.probe.verdict import Requirement, verdict

BLOCK: Final = 8
"""Prompts between two looks of the sequential test; a fresh process loads its model for each."""

Progress = Callable[[str, int, int], None]
"""Called with what begins, how much is done, and how much there is."""


@dataclass(frozen=True)
class Options:
    """How a probe is run.

    Attributes:
        steps: tokens after each prompt.
        require: what must be the same.
        max_divergence: the share of prompts that may differ; see `verdict`.
        confidence: of intervals.
        attribute: whether to look for causes.
        asked: users named the conditions themselves.
        block: prompts that run before the sequential test looks again.
    """

    steps: int = 12
    require: Requirement = "tokens"
    max_divergence: float = 0.0
    confidence: float = 0.95
    attribute: bool = True
    asked: bool = False
    block: int = BLOCK


def study(
    target: Target,
    prompts: Sequence[Prompt],
    conditions: Sequence[Condition],
    options: Options = Options(),
    *,
    kept: Path | None = None,
    progress: Progress = lambda title, done, whole: None,
    parser: agreement.Parser | None = None,
    answers: Sequence[Hashable] | None = None,
) -> Findings:
    """Probe a target.

    Args:
        target: what goes on from prompts.
        prompts: the units of all rates.
        conditions: what is tried.
        options: how.
        kept: file for conditions that are done, until all are: the same call goes on from there.
        progress: told what is being done.
        parser: finds the answer in a completion; needed to require "answers".
        answers: the right ones, one a prompt, for the deviation of accuracy.

    Raises:
        ValueError: no prompts or no conditions, or answers are required without a parser.
    """
    if not prompts or not conditions:
        raise ValueError("a probe needs a prompt and a condition")
    if options.require == "answers" and parser is None:
        raise ValueError("to require answers, say how to find them: give a parser")
    return _Study(target, prompts, options, Ledger(kept), progress).findings(conditions, parser, answers)


class _Study:
    """One call of `study`."""

    def __init__(
        self, target: Target, prompts: Sequence[Prompt], options: Options, ledger: Ledger, progress: Progress
    ) -> None:
        self._target = target
        self._prompts = prompts
        self._options = options
        self._ledger = ledger
        self._progress = progress
        self._references: dict[Condition, Outcome] = {}

    def findings(
        self,
        conditions: Sequence[Condition],
        parser: agreement.Parser | None,
        answers: Sequence[Hashable] | None,
    ) -> Findings:
        begun = time.monotonic()
        whole = len(conditions) + 2
        self._progress("reference", 0, whole)
        environment = self._target.describe()
        base = self._reference(Condition())
        references = tuple(
            measures.reference(prompt.text, self._target.text(run.tokens), run)
            for prompt, run in zip(self._prompts, base.runs, strict=True)
        )
        self._ledger.open(
            [self._target.name, environment, asdict(self._options), [asdict(each) for each in references]]
        )
        tested = []
        for done, condition in enumerate(conditions, start=1):
            self._progress(condition.name, done, whole)
            tested.append(self._kept(condition))
        self._progress("causes", whole - 1, whole)
        groups = agreement.classes(references, tested)
        attributions = self._attributions(conditions, tested, groups) if self._options.attribute else ()
        measured = agreement.agreement(references, tested, self._options.confidence, parser, answers)
        self._ledger.close()
        self._progress("done", whole, whole)
        return Findings(
            schema=SCHEMA,
            target=self._target.name,
            environment=environment,
            options=asdict(self._options),
            references=references,
            tested=tuple(tested),
            classes=groups,
            completions=agreement.completions(references, tested),
            agreement=measured,
            attributions=attributions,
            fixes=fixes(attributions, tested),
            verdict=verdict(
                tested,
                attributions,
                None if measured is None else measured.tar_answers,
                require=self._options.require,
                most=self._options.max_divergence,
                asked=self._options.asked,
            ),
            seconds=time.monotonic() - begun,
        )

    def _reference(self, condition: Condition) -> Outcome:
        """The run that conditions with the same `given` are held against."""
        if condition not in self._references:
            self._references[condition] = self._target.run(self._prompts, condition, self._options.steps)
        return self._references[condition]

    def _kept(self, condition: Condition) -> Tested:
        """A condition from an earlier run, or from this one."""
        known = self._ledger.get(condition.name)
        if known is not None:
            return known
        tested = Tested(
            name=condition.name,
            kind=condition.kind,
            varies=dict(condition.varies),
            given=dict(condition.given),
            counts=counts(condition),
            status="not exercised",
            evidence="",
        )
        try:
            tested = self._test(condition, tested)
        except NotPossible as reason:
            tested = replace(tested, evidence=str(reason), possible=False)
        except (RuntimeError, OSError) as problem:
            tested = replace(tested, status="error", evidence=str(problem))
        self._ledger.put(tested)
        return tested

    def _test(self, condition: Condition, tested: Tested) -> Tested:
        """Prompts in blocks, until the sequential test has decided or there are no more."""
        base = self._reference(condition.reference)
        if not base.evidence.took_effect and condition.given:
            return replace(tested, evidence=base.evidence.seen)
        comparisons: list[Comparison] = []
        noise: list[float] = []
        seconds = 0.0
        evidence = ""
        decision: rates.Decision = "undecided"
        while decision == "undecided" and len(comparisons) < len(self._prompts):
            block = range(len(comparisons), min(len(comparisons) + self._options.block, len(self._prompts)))
            outcome = self._run(block, condition, base)
            if not outcome.evidence.took_effect:
                return replace(tested, evidence=outcome.evidence.seen)
            evidence = evidence or outcome.evidence.seen
            seconds += outcome.seconds
            compared = [
                measures.compare(prompt, base.runs[prompt], run)
                for prompt, run in zip(block, outcome.runs, strict=True)
            ]
            for prompt, run in zip(block, outcome.runs, strict=True):
                noise += measures.margin_noise(base.runs[prompt], run)
            comparisons += self._said(condition, compared, outcome)
            decision = rates.sequential([self._differs(each) for each in comparisons])
        return replace(
            tested,
            status="exercised",
            evidence=evidence,
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

    def _said(self, condition: Condition, compared: list[Comparison], outcome: Outcome) -> list[Comparison]:
        """With what the target says freely, where that may be another text than the reference's."""
        if not self._target.forces:
            return [
                replace(each, completion=self._target.text(run.tokens))
                for each, run in zip(compared, outcome.runs, strict=True)
            ]
        flipped = [each.prompt for each in compared if each.flips]
        if not flipped or not counts(condition):
            return compared
        free = self._target.run([self._prompts[at] for at in flipped], condition, self._options.steps)
        said = {at: self._target.text(run.tokens) for at, run in zip(flipped, free.runs, strict=True)}
        return [replace(each, completion=said.get(each.prompt)) for each in compared]

    def _differs(self, comparison: Comparison) -> bool:
        """Whether a prompt is what is not wanted."""
        if self._options.require == "bitwise":
            return comparison.first_difference is not None
        return comparison.first_flip is not None

    def _rates(self, comparisons: Sequence[Comparison], base: Outcome, noise: float) -> dict[str, Any]:
        confidence = self._options.confidence
        margins = [
            margin
            for each in comparisons
            for margin in measures.margins(base.runs[each.prompt])[: each.steps]
        ]
        return {
            "bitwise": rates.rate(
                sum(each.first_difference is not None for each in comparisons), len(comparisons), confidence
            ),
            "divergence": rates.rate(
                sum(each.first_flip is not None for each in comparisons), len(comparisons), confidence
            ),
            "flips": rates.rate(
                sum(len(each.flips) for each in comparisons),
                sum(each.steps for each in comparisons),
                confidence,
            ),
            "predicted_flips": rates.predicted_flips(margins, noise),
            "noise": noise or None,
            "survival": rates.survival(
                [each.first_flip for each in comparisons], [each.steps for each in comparisons], confidence
            ),
        }

    def _attributions(
        self, conditions: Sequence[Condition], tested: Sequence[Tested], groups: Sequence[tuple[str, ...]]
    ) -> tuple[Attribution, ...]:
        """The cause of each class of conditions that differ, by its first member."""
        shared = {name: group for group in groups for name in group}
        found: list[Attribution] = []
        done: set[str] = set()
        for condition, each in zip(conditions, tested, strict=True):
            sampled = any(axis in each.given for axis in ("seed", "draw"))
            if each.name in done or each.status != "exercised" or not (each.counts or sampled):
                continue
            if all(one.first_difference is None and not one.flips for one in each.comparisons):
                continue
            base = self._reference(condition.reference)
            case = Case(self._target, self._prompts, condition, base.runs, each.comparisons)
            others = tuple(
                other.name
                for other in tested
                if other.counts and other.name in shared.get(each.name, ()) and other.name != each.name
            )
            found.append(replace(attribute(case), shared_by=others))
            done.update(others)
        return refined(found, tested, groups)
