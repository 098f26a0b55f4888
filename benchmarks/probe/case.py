"""A condition that differs from its reference, and what is needed to look into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sortition.benchmarks.probe.findings import Comparison
from sortition.benchmarks.probe.measures import digests
from sortition.benchmarks.probe.target import Condition, Outcome, Prompt, Target


@dataclass(frozen=True, eq=False)
class Case:
    """What ran, and how it differs.

    Attributes:
        target, prompts, condition: what ran.
        base: the reference's outcome.
        comparisons: the condition's, one a prompt that ran.
    """

    target: Target
    prompts: Sequence[Prompt]
    condition: Condition
    base: Outcome
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
            if each.digests[step] == digests(self.base.runs[each.prompt])[step]
        ]

    def run(self, chosen: Sequence[int], condition: Condition) -> Outcome:
        """Some prompts once more, under the reference's tokens."""
        prompts = [self.prompts[index] for index in chosen]
        forced = [self.base.runs[index].tokens for index in chosen]
        return self.target.run(prompts, condition, len(forced[0]), forced)
