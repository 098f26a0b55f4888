"""The probe: every condition against its reference, then what differs and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from sortition.benchmarks.probe import agreement, measures
from sortition.benchmarks.probe.boundaries import boundaries
from sortition.benchmarks.probe.case import Case
from sortition.benchmarks.probe.causes import causes, differs
from sortition.benchmarks.probe.deadline import INTERRUPTED, Deadline
from sortition.benchmarks.probe.findings import SCHEMA, Attribution, Boundary, Findings, Tested
from sortition.benchmarks.probe.fixes import fixes, is_remedied
from sortition.benchmarks.probe.ledger import Ledger
from sortition.benchmarks.probe.options import DEFAULTS, Options
from sortition.benchmarks.probe.phases import refined
from sortition.benchmarks.probe.target import Condition, Prompt, Target
from sortition.benchmarks.probe.trials import Trials, untested
from sortition.benchmarks.probe.verdict import verdict

Progress = Callable[[str, int, int], None]
"""Called with what begins, how much is done, and how much there is."""

CONDITIONS: Final = 0.65
"""Share of the time after which no condition is begun, so that causes have some as well."""

FAILURES: Final = 2
"""Errors in a row after which a target is given up: a server that is gone lets everybody wait, each time."""


def study(
    target: Target,
    prompts: Sequence[Prompt],
    conditions: Sequence[Condition],
    options: Options = DEFAULTS,
    *,
    kept: Path | None = None,
    progress: Progress = lambda title, done, whole: None,
    parser: agreement.Parser | None = None,
    answers: Sequence[Hashable] | None = None,
    deadline: Deadline | None = None,
) -> Findings:
    """Probe a target. Ctrl-C after the reference ends it early, with what was found until then.

    Args:
        target: what goes on from prompts.
        prompts: the units of all rates.
        conditions: what is tried, in this order.
        options: how.
        kept: file for conditions that are done: the same call goes on from there. Whoever has written the
            findings removes it, if nothing stopped the probe.
        progress: told what is being done.
        parser: finds the answer in a completion; needed to require "answers".
        answers: the right ones, one a prompt, for the deviation of accuracy.
        deadline: after which nothing new is begun; by default there is none.

    Raises:
        ValueError: no prompts or no conditions, answers are required without a parser, or there are more or
            fewer right answers than prompts.
    """
    if not prompts or not conditions:
        raise ValueError("a probe needs a prompt and a condition")
    if options.require == "answers" and parser is None:
        raise ValueError("to require answers, say how to find them: give a parser")
    if answers is not None and len(answers) != len(prompts):
        raise ValueError(f"{len(answers)} right answers for {len(prompts)} prompts")
    deadline = deadline or Deadline()
    begun = time.monotonic()
    progress("reference", 0, len(conditions) + 1)
    environment = target.describe()
    trials = Trials(target, prompts, options, parser)
    references = tuple(
        measures.reference(prompt.text, target.text(run.tokens), run)
        for prompt, run in zip(prompts, trials.reference(Condition()).runs, strict=True)
    )
    ledger = Ledger(kept)
    ledger.open([target.name, environment, asdict(options), [asdict(each) for each in references]])
    tested = _tested(conditions, trials, ledger, options, deadline, progress)
    groups = agreement.classes(references, tested)
    found: tuple[Boundary, ...] = ()
    with deadline.minding():
        found = boundaries(target, prompts, references, tested, deadline)
    attributions: tuple[Attribution, ...] = ()
    if options.attribute:

        def case_of(condition: Condition, each: Tested) -> Case:
            return Case(target, prompts, condition, trials.reference(condition), each.comparisons)

        tried = list(zip(conditions, tested, strict=True))
        attributions = refined(causes(tried, case_of, groups, deadline, progress), tested, groups)
    measured = agreement.agreement(references, tested, options.confidence, parser, answers)
    answered = None if measured is None else measured.tar_answers
    progress("done", len(conditions) + 1, len(conditions) + 1)
    return Findings(
        schema=SCHEMA,
        target=target.name,
        environment=environment,
        options=asdict(options),
        references=references,
        tested=tuple(tested),
        classes=groups,
        boundaries=found,
        completions=agreement.completions(references, tested),
        agreement=measured,
        attributions=attributions,
        fixes=fixes(attributions, tested),
        verdict=verdict(
            tested,
            attributions,
            answered,
            require=options.require,
            most=options.max_divergence,
            asked=options.asked,
        ),
        seconds=time.monotonic() - begun,
        stopped=deadline.reason,
    )


def _tested(
    conditions: Sequence[Condition],
    trials: Trials,
    ledger: Ledger,
    options: Options,
    deadline: Deadline,
    progress: Progress,
) -> list[Tested]:
    """All conditions, those that were done before from the ledger, as long as there is time."""
    tested: list[Tested] = []
    for done, condition in enumerate(conditions, start=1):
        known = ledger.get(condition.name)
        why_not = _why_not(condition, tested, options, deadline)
        if known is not None:
            tested.append(known)
        elif why_not:
            tested.append(untested(condition, why_not))
        else:
            progress(condition.name, done, len(conditions) + 1)
            with deadline.minding():
                tested.append(trials.tested(condition))
                ledger.put(tested[-1])
            if deadline.reason == INTERRUPTED:
                tested[done - 1 :] = [untested(condition, deadline.reason)]
    return tested


def _why_not(condition: Condition, tested: Sequence[Tested], options: Options, deadline: Deadline) -> str:
    """Why a condition is not run after those that were; "" if it is."""
    if not options.asked and _nothing_to_mend(condition, tested):
        return "there is nothing to mend: it changes nothing without that"
    latest = [each.status for each in tested if each.status in ("exercised", "error")][-FAILURES:]
    if latest == ["error"] * FAILURES:
        return "the target fails"
    return deadline.reason if deadline.passed(CONDITIONS if options.attribute else 1.0) else ""


def _nothing_to_mend(condition: Condition, tested: Sequence[Tested]) -> bool:
    """Whether it tries a remedy for what turned out to be no ill."""
    plain = Condition(condition.varies).name
    return is_remedied(condition) and any(
        each.name == plain and each.status == "exercised" and not differs(each) for each in tested
    )
