"""The middle of paired differences with an interval, without assuming how they are spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

CONFIDENCE: Final = 0.95

LEAST: Final = 6
"""Differences without which no interval reaches this confidence: with five, all of one sign are seen by
chance in 2 of 32 cases."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the two ends around it."""

    estimate: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of what lies between the ends."""
        return (self.high - self.low) / 2


def signed_rank(differences: Sequence[float]) -> Interval:
    """The Hodges-Lehmann estimate, with the interval that goes with Wilcoxon's signed-rank test.

    The estimate is the median of the means of all pairs. One wild difference moves neither it nor the
    interval much. What is assumed: differences are independent, and spread alike to both sides of their
    middle, which those of two runs in random order are.

    Source: Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, section 3.

    Raises:
        ValueError: there are fewer than `LEAST` differences.
    """
    count = len(differences)
    dropped = _dropped(count)
    if dropped < 0:
        raise ValueError(f"{count} differences give no interval of {CONFIDENCE:.0%}: {LEAST} or more do")
    means = sorted((one + other) / 2 for at, one in enumerate(differences) for other in differences[: at + 1])
    return Interval(statistics.median(means), means[dropped], means[-1 - dropped])


def _dropped(count: int) -> int:
    """How many of the sorted means lie outside the interval at each end; -1 where not even 0 will do."""
    # How many of the 2 ** count sets of ranks have each sum: the law of the test's statistic.
    sums = [1]
    for rank in range(1, count + 1):
        longer = sums + [0] * rank
        for at, ways in enumerate(sums):
            longer[at + rank] += ways
        sums = longer
    tail, dropped = 0, -1
    for ways in sums:
        tail += ways
        if tail / 2**count > (1 - CONFIDENCE) / 2:
            break
        dropped += 1
    return dropped
