"""The probe: every condition against its reference, then what differs and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from sortition.benchmarks.probe import agreement, measures
from sortition.benchmarks.probe.attribution import attribute
from sortition.benchmarks.probe.case import Case
from sortition.benchmarks.probe.findings import SCHEMA, Attribution, Findings, Tested
from sortition.benchmarks.probe.fixes import fixes
from sortition.benchmarks.probe.ledger import Ledger
from sortition.benchmarks.probe.options import DEFAULTS, Options
from sortition.benchmarks.probe.phases import refined
from sortition.benchmarks.probe.target import Condition, Prompt, Target
from sortition.benchmarks.probe.trials import Trials
from sortition.benchmarks.probe.verdict import verdict

Progress = Callable[[str, int, int], None]
"""Called with what begins, how much is done, and how much there is."""


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
    begun = time.monotonic()
    whole = len(conditions) + 2
    progress("reference", 0, whole)
    environment = target.describe()
    trials = Trials(target, prompts, options)
    references = tuple(
        measures.reference(prompt.text, target.text(run.tokens), run)
        for prompt, run in zip(prompts, trials.reference(Condition()).runs, strict=True)
    )
    ledger = Ledger(kept)
    ledger.open([target.name, environment, asdict(options), [asdict(each) for each in references]])
    tested = []
    for done, condition in enumerate(conditions, start=1):
        progress(condition.name, done, whole)
        known = ledger.get(condition.name)
        tested.append(trials.tested(condition) if known is None else known)
        if known is None:
            ledger.put(tested[-1])
    progress("causes", whole - 1, whole)
    groups = agreement.classes(references, tested)
    cases = [
        Case(target, prompts, condition, trials.reference(condition).runs, each.comparisons)
        for condition, each in zip(conditions, tested, strict=True)
        if options.attribute and _needs_a_cause(each)
    ]
    attributions = refined(_attributions(cases, groups), tested, groups)
    measured = agreement.agreement(references, tested, options.confidence, parser, answers)
    answered = None if measured is None else measured.tar_answers
    ledger.close()
    progress("done", whole, whole)
    return Findings(
        schema=SCHEMA,
        target=target.name,
        environment=environment,
        options=asdict(options),
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
            answered,
            require=options.require,
            most=options.max_divergence,
            asked=options.asked,
        ),
        seconds=time.monotonic() - begun,
    )


def _needs_a_cause(tested: Tested) -> bool:
    """Whether it differs, and nobody chose that it should: what counts, and draws under the same seed."""
    drawn = {"seed", "draw"} & tested.given.keys()
    differs = any(each.first_difference is not None or each.flips for each in tested.comparisons)
    return differs and (tested.counts or bool(drawn))


def _attributions(cases: Sequence[Case], groups: Sequence[tuple[str, ...]]) -> tuple[Attribution, ...]:
    """The cause of each case; those with the same bits share one, that of the first."""
    group_of = {name: group for group in groups for name in group}
    found: list[Attribution] = []
    done: set[str] = set()
    for case in cases:
        name = case.condition.name
        if name in done:
            continue
        group = group_of.get(name, ())
        # Where bits are those of the reference, choices differ, and each condition has a cause of its own.
        others = [] if "reference" in group else [each.condition.name for each in cases]
        shared = tuple(other for other in others if other in group and other != name)
        found.append(replace(attribute(case), shared_by=shared))
        done.update(shared)
    return tuple(found)
