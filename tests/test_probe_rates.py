"""The probe's statistics, against values that others have published or that a simulation gives."""

from __future__ import annotations

import random

import pytest

from sortition.benchmarks.probe import rates


@pytest.mark.parametrize(
    ("count", "trials", "low", "high"),
    [
        # Clopper and Pearson; the bounds of nought are 1 - 0.025 ** (1 / n).
        (0, 50, 0.0, 0.0711),
        (0, 300, 0.0, 0.0122),
        (50, 50, 0.9289, 1.0),
        (1, 10, 0.0025, 0.4450),
        (5, 10, 0.1871, 0.8129),
        (12, 16, 0.4762, 0.9273),
        (81, 263, 0.2527, 0.3676),
    ],
)
def test_intervals(count: int, trials: int, low: float, high: float) -> None:
    rate = rates.rate(count, trials)
    assert (rate.low, rate.high) == (pytest.approx(low, abs=6e-5), pytest.approx(high, abs=6e-5))


@pytest.mark.parametrize("p", [0.01, 0.3, 0.9])
def test_intervals_hold_as_often_as_they_say(p: float) -> None:
    generator = random.Random(0)
    intervals = {count: rates.rate(count, 20, 0.9) for count in range(21)}
    counts = [sum(generator.random() < p for _ in range(20)) for _ in range(2000)]
    held = sum(intervals[count].low <= p <= intervals[count].high for count in counts) / len(counts)
    assert held >= 0.89


def test_the_sequential_test_stops() -> None:
    assert rates.sequential([False] * 153) == "undecided"
    assert rates.sequential([False] * 154) == "rare"
    assert rates.sequential([False] * 3 + [True]) == "undecided"
    assert rates.sequential([False] * 3 + [True, True]) == "frequent"


def test_survival_counts_texts_that_ended() -> None:
    # The example of Kaplan and Meier's method: 1 of 4 leaves at 2, one is censored at 3, 1 of 2 leaves at 5.
    points = rates.survival([2, None, 5, None], [9, 3, 9, 9], 0.95)
    assert [(point.step, point.at_risk, point.diverged) for point in points] == [
        (0, 4, 0),
        (2, 4, 1),
        (5, 2, 1),
    ]
    assert [point.surviving for point in points] == [1.0, 0.75, 0.375]
    assert all(point.low <= point.surviving <= point.high for point in points)
    assert rates.median_survival(points) == 5
    assert rates.median_survival(points[:2]) is None


def test_survival_ends_at_nought() -> None:
    points = rates.survival([1, 1], [4, 4], 0.95)
    assert (points[-1].surviving, points[-1].high) == (0.0, 0.0)


def test_flips_are_predicted_by_margins() -> None:
    generator = random.Random(0)
    margins = [generator.expovariate(1) for _ in range(5000)]
    predicted = rates.predicted_flips(margins, 0.3)
    observed = sum(generator.gauss(0, 0.3) > margin for margin in margins) / len(margins)
    assert predicted == pytest.approx(observed, abs=0.01)
    assert rates.predicted_flips(margins, 0.0) is None
