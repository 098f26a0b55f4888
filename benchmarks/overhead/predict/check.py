"""Predictions held against the model itself, at points that no prediction has seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sortition.benchmarks.overhead.hf import TransformersEngine
from sortition.benchmarks.overhead.load import Load
from sortition.benchmarks.overhead.predict.prediction import CLAIMED, Point, Prediction, Tier
from sortition.benchmarks.overhead.predict.predictor import Predictor, decode_of
from sortition.benchmarks.overhead.stopwatch import Stopwatch

HELD_OUT: Final = (Point(1, 64), Point(1, 512), Point(2, 256), Point(8, 64))
"""One row and several, short and long: on CPUs and GPUs alike, they run different kernels."""

TOKENS: Final = 8
"""That the model writes at each point: seven decode steps, of which the median counts."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A point at which the model was measured.

    Attributes:
        measured: milliseconds of a decode step.
        predicted: of the same step, by tier.
    """

    point: Point
    measured: float
    predicted: dict[Tier, Prediction]

    def error(self, tier: Tier) -> float:
        """How much longer the prediction is than the step, as a share of the step."""
        return self.predicted[tier].milliseconds / self.measured - 1

    def as_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "batch": self.point.batch,
            "context": self.point.context,
            "measured ms": round(self.measured, 4),
            "predicted": [each.as_json() for each in self.predicted.values()],
            "error": {tier: round(self.error(tier), 4) for tier in self.predicted},
        }


def check(
    engine: TransformersEngine, predictor: Predictor, points: Sequence[Point], load: Load
) -> list[Checked]:
    """Measure the model at each point, once before the prediction is measured and once after it."""
    found = []
    for point in points:
        # In the middle of the run, the cache holds as much as the point says.
        asked = replace(load, batch=point.batch, context=max(1, point.context - TOKENS // 2), tokens=TOKENS)
        before = _decode(engine, predictor, asked)
        predicted = predictor.decode(point, load)
        after = _decode(engine, predictor, asked)
        found.append(Checked(point, (before + after) / 2, predicted))
    return found


def claims(checked: Sequence[Checked]) -> dict[str, Any]:
    """The greatest error of each tier, and whether it may claim `CLAIMED`."""
    worst: dict[Tier, float] = {
        tier: max((each.error(tier) for each in checked), key=abs) for tier in checked[0].predicted
    }
    return {
        tier: {
            "points": len(checked),
            "greatest error": round(error, 4),
            "within 20 %": abs(error) <= CLAIMED,
        }
        for tier, error in worst.items()
    }


def _decode(engine: TransformersEngine, predictor: Predictor, load: Load) -> float:
    stopwatch = Stopwatch()
    engine.run(load, stopwatch)
    return decode_of(stopwatch, predictor.clock).total
