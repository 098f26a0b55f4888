"""Predictions held against the model itself, at points that no prediction has seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sortition.benchmarks.overhead.hf import TransformersEngine
from sortition.benchmarks.overhead.load import Load
from sortition.benchmarks.overhead.predict.prediction import CLAIMED, Point, Prediction, Tier, rounded
from sortition.benchmarks.overhead.predict.predictor import Predictor
from sortition.benchmarks.overhead.predict.replay import forward, reading

HELD_OUT: Final = (Point(1, 32), Point(1, 128), Point(1, 512), Point(4, 32), Point(8, 32))
"""One row and several, short and long: on CPUs and GPUs alike, they run different kernels."""

PROMPTS: Final = (32, 128, 512)
"""Tokens of prompts that are held out, to check the first token."""

MODEL: Final = "model"
"""The name of the model among what is measured in turns."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A point at which the model was measured.

    Attributes:
        measured: milliseconds of a step of the model, without drawing and the host's own work.
        predicted: of the same step, by tier.
    """

    point: Point
    measured: float
    predicted: dict[Tier, Prediction]

    def error(self, tier: Tier) -> float:
        """How much longer the prediction is than the step, as a share of the step."""
        return self.predicted[tier].model_milliseconds / self.measured - 1

    def as_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "batch": self.point.batch,
            "context": self.point.context,
            "measured ms": rounded(self.measured),
            "predicted ms": {tier: rounded(each.model_milliseconds) for tier, each in self.predicted.items()},
            "predicted": [each.as_json() for each in self.predicted.values()],
            "error": {tier: round(self.error(tier), 4) for tier in self.predicted},
        }


def check(
    engine: TransformersEngine, predictor: Predictor, points: Sequence[Point], load: Load
) -> list[Checked]:
    """Measure the model at each point, in turns with what its prediction is made of.

    So both have met with the same disturbances. No figure of the model goes into the prediction.
    """
    found = []
    for point in points:
        taken = predictor.beside(point, {MODEL: forward(engine.model, point)})
        measured = taken.pop(MODEL)
        found.append(Checked(point, measured, predictor.decode(point, load, taken)))
    return found


def check_prompts(
    engine: TransformersEngine, predictor: Predictor, prompts: Sequence[int], load: Load
) -> list[Checked]:
    """The same for steps that read a prompt of so many tokens, after which the first token is there."""
    found = []
    for tokens in prompts:
        taken = predictor.beside_prompt(tokens, {MODEL: reading(engine.model, tokens)})
        measured = taken.pop(MODEL)
        found.append(Checked(Point(1, tokens), measured, predictor.prefill(tokens, load, taken)))
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
