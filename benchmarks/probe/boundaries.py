"""Between which numbers of rows bits change: by bisection between batch sizes that were tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

from sortition.benchmarks.probe.conditions import condition
from sortition.benchmarks.probe.deadline import Deadline
from sortition.benchmarks.probe.findings import Boundary, Reference, Tested
from sortition.benchmarks.probe.measures import digests
from sortition.benchmarks.probe.target import NotPossible, Prompt, Target

Digests: TypeAlias = tuple[str, ...]

ALONE = 1
"""Rows of the reference."""


def boundaries(
    target: Target,
    prompts: Sequence[Prompt],
    references: Sequence[Reference],
    tested: Sequence[Tested],
    deadline: Deadline,
) -> tuple[Boundary, ...]:
    """Where bits change with the number of rows.

    Sizes between two that agree are taken to agree as well: kernels are chosen by thresholds.

    Args:
        target, prompts: of the probe.
        references: one a prompt.
        tested: all conditions; those of batch sizes alone are looked at.
        deadline: after which nothing is searched for.
    """
    if _unsteady(tested):
        return ()
    known = _known(references, tested)
    found: list[Boundary] = []
    for below, above in pairwise(sorted(known)):
        shared = known[below].keys() & known[above].keys()
        first = {at: _first(known[below][at], known[above][at]) for at in sorted(shared)}
        differing = {at: step for at, step in first.items() if step is not None}
        if differing:
            prompt = min(differing, key=differing.__getitem__)
            search = _Search(target, prompts[prompt], references[prompt], differing[prompt] + 1, deadline)
            sizes = {size: known[size][prompt] for size in (below, above)}
            found += [Boundary(*pair, prompt) for pair in search.between(below, above, sizes)]
    return tuple(found)


def _unsteady(tested: Sequence[Tested]) -> bool:
    """Whether the same batch gives other bits the second time, so that nothing can be said of its size."""
    return any(each.kind == "rerun" and each.bitwise and each.bitwise.count for each in tested)


def _known(references: Sequence[Reference], tested: Sequence[Tested]) -> dict[int, Mapping[int, Digests]]:
    """For each batch size that was tried, the digests of its prompts."""
    known: dict[int, Mapping[int, Digests]] = {ALONE: dict(enumerate(each.digests for each in references))}
    for each in tested:
        if each.kind == "batch_size" and not each.given and each.status == "exercised":
            known[int(each.varies["batch_size"])] = {one.prompt: one.digests for one in each.comparisons}
    return known


def _first(one: Digests, two: Digests) -> int | None:
    """The first step that differs, of those that both have; None if none does."""
    return next((step for step, pair in enumerate(zip(one, two, strict=False)) if len(set(pair)) > 1), None)


class _Search:
    """Bisection with one prompt, under its reference's tokens where the target can be told them."""

    def __init__(
        self, target: Target, prompt: Prompt, reference: Reference, steps: int, deadline: Deadline
    ) -> None:
        self._target = target
        self._prompt = prompt
        self._forced = [reference.tokens[:steps]] if target.forces else None
        self._steps = steps
        self._deadline = deadline

    def between(self, below: int, above: int, known: dict[int, Digests]) -> list[tuple[int, int]]:
        """All pairs of neighbouring sizes that differ, as far as there is time and batches are of their size.

        Args:
            below, above: sizes that differ.
            known: digests of both, to which those in between are added.
        """
        if above - below == 1:
            return [(below, above)]
        middle = (below + above) // 2
        tried = self._try(middle)
        if tried is None:
            return []
        known[middle] = tried
        halves = [(below, middle), (middle, above)]
        return [
            pair
            for low, high in halves
            if _first(known[low], known[high]) is not None
            for pair in self.between(low, high, known)
        ]

    def _try(self, rows: int) -> Digests | None:
        """What this number of rows gives; None where it cannot be had."""
        if self._deadline.passed():
            return None
        try:
            outcome = self._target.run(
                [self._prompt], condition(("batch_size", rows)), self._steps, self._forced
            )
        except (NotPossible, RuntimeError, OSError):
            return None
        return digests(outcome.runs[0]) if outcome.evidence.took_effect else None
