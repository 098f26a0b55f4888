"""Over all conditions: which texts there were, which agree to the bit, and the literature's measures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Sequence

from sortition.benchmarks.probe.findings import Agreement, Comparison, Completions, Reference, Tested
from sortition.benchmarks.probe.rates import median_survival, rate, survival

Parser = Callable[[str], Hashable]
"""A completion -> the answer in it."""


def counted(tested: Sequence[Tested]) -> list[Tested]:
    """What the measures are over: conditions that users do not choose, as far as they took effect."""
    return [each for each in tested if each.counts and each.status == "exercised"]


def classes(references: Sequence[Reference], tested: Sequence[Tested]) -> tuple[tuple[str, ...], ...]:
    """Names of conditions whose scores are the same bits for all prompts, the reference's first."""
    groups: dict[object, list[str]] = {tuple(each.digests for each in references): ["reference"]}
    for each in tested:
        if each.status == "exercised" and not each.given:
            signature = tuple(
                references[comparison.prompt].digests
                if comparison.first_difference is None
                else comparison.digests
                for comparison in each.comparisons
            )
            # A condition that the sequential test ended early is held against the reference's first prompts.
            home = next((key for key in groups if _begins(key, signature)), signature)
            groups.setdefault(home, []).append(each.name)
    return tuple(map(tuple, groups.values()))


def _begins(whole: object, part: tuple[object, ...]) -> bool:
    return isinstance(whole, tuple) and whole[: len(part)] == part


def completions(references: Sequence[Reference], tested: Sequence[Tested]) -> tuple[Completions, ...]:
    """The different texts of each prompt, and which conditions gave them."""
    found = []
    for prompt, reference in enumerate(references):
        texts: dict[str, list[str]] = {reference.completion: ["reference"]}
        for each in counted(tested):
            for comparison in each.comparisons:
                if comparison.prompt == prompt:
                    texts.setdefault(_text(comparison, reference), []).append(each.name)
        found.append(Completions(prompt, tuple(texts), tuple(map(tuple, texts.values()))))
    return tuple(found)


def _text(comparison: Comparison, reference: Reference) -> str:
    return reference.completion if comparison.completion is None else comparison.completion


def agreement(
    references: Sequence[Reference],
    tested: Sequence[Tested],
    confidence: float,
    parser: Parser | None = None,
    answers: Sequence[Hashable] | None = None,
) -> Agreement | None:
    """The measures over the prompts that every condition ran; None where nothing was exercised.

    Args:
        references: one a prompt.
        tested: all conditions.
        confidence: of intervals.
        parser: finds the answer in a completion.
        answers: the right ones, one a prompt.
    """
    over = counted(tested)
    if not over:
        return None
    prompts = range(min(len(each.comparisons) for each in over))
    runs = [[reference.completion for reference in references[: len(prompts)]]]
    runs += [[_text(each.comparisons[at], references[at]) for at in prompts] for each in over]
    parsed = None if parser is None else [[parser(text) for text in run] for run in runs]
    accuracies = None
    if parsed is not None and answers is not None:
        accuracies = [statistics.fmean(run[at] == answers[at] for at in prompts) for run in parsed]
    flips = [_earliest(over, at) for at in prompts]
    left = [flip for flip in flips if flip is not None]
    curve = survival(flips, [len(references[at].tokens) for at in prompts], confidence)
    return Agreement(
        runs=len(runs),
        tar_raw=rate(_same(runs), len(prompts), confidence),
        tar_answers=None if parsed is None else rate(_same(parsed), len(prompts), confidence),
        std_accuracy=None if accuracies is None else statistics.pstdev(accuracies),
        std_top_probability=_std_top_probability(references, over, flips),
        divergence_index=float(statistics.median(left)) if left else None,
        median_survival=median_survival(curve),
    )


def _same(runs: Sequence[Sequence[Hashable]]) -> int:
    """Prompts with one and the same in all runs."""
    return sum(len(set(column)) == 1 for column in zip(*runs, strict=True))


def _earliest(over: Sequence[Tested], prompt: int) -> int | None:
    flips = (each.comparisons[prompt].first_flip for each in over)
    return min((flip for flip in flips if flip is not None), default=None)


def _std_top_probability(
    references: Sequence[Reference], over: Sequence[Tested], flips: Sequence[int | None]
) -> float:
    """Deviation over runs of the best token's probability, averaged over steps up to the first flip."""
    deviations = []
    for prompt, flip in enumerate(flips):
        columns = [references[prompt].top_probabilities]
        columns += [each.comparisons[prompt].top_probabilities for each in over]
        deviations += [statistics.pstdev(step) for step in list(zip(*columns, strict=False))[:flip]]
    return statistics.fmean(deviations) if deviations else 0.0
