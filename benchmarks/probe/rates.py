"""Statistics of rare events: exact intervals, a sequential test, survival, a forecast of flips."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, Literal

import numpy as np

from sortition.benchmarks.probe.findings import Rate, SurvivalPoint

HALVINGS: Final = 50
"""Of the interval in which a bound is sought: 2 ** -50 is as near as a float has use for."""

RARE: Final = 0.001
FREQUENT: Final = 0.02
"""Rates of divergence that the sequential test tells apart: 154 prompts without one decide for the first."""
MISTAKE: Final = 0.05
"""How often it may decide wrongly, either way."""

Decision = Literal["rare", "frequent", "undecided"]


def rate(count: int, trials: int, confidence: float = 0.95) -> Rate:
    """How often, with the interval of Clopper and Pearson (1934), which is exact: never too short."""
    miss = (1 - confidence) / 2
    low = 0.0 if count == 0 else _solve(lambda p: _at_least(count, trials, p), miss)
    high = 1.0 if count == trials else _solve(lambda p: _at_least(count + 1, trials, p), 1 - miss)
    return Rate(count, trials, low, high, confidence)


def _solve(rising: Callable[[float], float], value: float) -> float:
    """Where a function that rises from 0 to 1 has a value."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < value else (low, middle)
    return (low + high) / 2


def _at_least(count: int, trials: int, p: float) -> float:
    """The probability of so many successes or more."""
    picks = np.arange(trials)
    ways = np.concatenate([[0.0], np.cumsum(np.log((trials - picks) / (picks + 1)))])
    successes = np.arange(trials + 1)
    logs = ways + successes * math.log(p) + (trials - successes) * math.log1p(-p)
    return float(np.exp(logs[count:]).sum())


def sequential(outcomes: Sequence[bool]) -> Decision:
    """Wald's sequential probability ratio test of "it happens as often as RARE" against FREQUENT.

    Args:
        outcomes: independent trials, so one a prompt, in the order in which they ran.
    """
    upper, lower = math.log((1 - MISTAKE) / MISTAKE), math.log(MISTAKE / (1 - MISTAKE))
    ratio = 0.0
    for happened in outcomes:
        ratio += math.log(FREQUENT / RARE) if happened else math.log((1 - FREQUENT) / (1 - RARE))
        if ratio >= upper:
            return "frequent"
        if ratio <= lower:
            return "rare"
    return "undecided"


def survival(
    events: Sequence[int | None], ends: Sequence[int], confidence: float
) -> tuple[SurvivalPoint, ...]:
    """The curve of Kaplan and Meier (1958), with intervals by Greenwood's variance on the log-log scale.

    Args:
        events: step at which each text left the reference; None if it had not when it ended.
        ends: steps of each text, where those without event are censored.
        confidence: of the interval at each point.

    Returns:
        a point for each step at which a text left, after one for step 0.
    """
    z = _normal_quantile((1 + confidence) / 2)
    points = [SurvivalPoint(0, len(events), 0, 1.0, 1.0, 1.0)]
    surviving, variance = 1.0, 0.0
    times = [end if event is None else event for event, end in zip(events, ends, strict=True)]
    for step in sorted({event for event in events if event is not None}):
        at_risk = sum(time >= step for time in times)
        left = sum(event == step for event in events)
        surviving *= 1 - left / at_risk
        if surviving == 0:
            points.append(SurvivalPoint(step, at_risk, left, 0.0, 0.0, 0.0))
            break
        variance += left / (at_risk * (at_risk - left))
        spread = math.exp(z * math.sqrt(variance) / -math.log(surviving))
        points.append(
            SurvivalPoint(step, at_risk, left, surviving, surviving**spread, surviving ** (1 / spread))
        )
    return tuple(points)


def _normal_quantile(p: float) -> float:
    return _solve(lambda q: 0.5 * math.erfc(-(20 * q - 10) / math.sqrt(2)), p) * 20 - 10


def median_survival(points: Sequence[SurvivalPoint]) -> float | None:
    """The first step at which half of the texts or fewer are left; None if more are."""
    return next((float(point.step) for point in points if point.surviving <= 0.5), None)


def predicted_flips(margins: Sequence[float], noise: float) -> float | None:
    """The share of steps at which normal noise of this deviation exceeds the margin between the best two.

    Margins predict flips (MarginGate, 2026); the noise is that of the difference of the two scores.
    """
    if not noise or not margins:
        return None
    return sum(0.5 * math.erfc(margin / (noise * math.sqrt(2))) for margin in margins) / len(margins)
