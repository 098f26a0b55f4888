"""What a prediction says: a step as a sum of terms, and which of them is the greatest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

Tier: TypeAlias = Literal["specification", "calibrated", "op replay"]

COMPUTE: Final = "compute"
BANDWIDTH: Final = "bandwidth"
LAUNCH: Final = "launch"
ATTENTION: Final = "attention/KV"
SAMPLER: Final = "sampler"
HOST: Final = "host"

CLAIMED: Final = 0.2
"""The error that a prediction may claim, where held-out points have shown no greater one."""


def rounded(value: float) -> float:
    """Six digits of a number, however small it is: nothing that is there becomes 0."""
    return float(f"{value:.6g}")


@dataclass(frozen=True, slots=True)
class Point:
    """Where a prediction is made: rows that are decoded together, after so many tokens each."""

    batch: int
    context: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """A step of the model at a point, or its prefill.

    Attributes:
        terms: milliseconds, by what they are spent on.
    """

    tier: Tier
    point: Point
    terms: Mapping[str, float]

    @property
    def milliseconds(self) -> float:
        """Of the whole step."""
        return sum(self.terms.values())

    @property
    def model_milliseconds(self) -> float:
        """Of the model alone, without drawing and the host's own work."""
        return sum(value for name, value in self.terms.items() if name not in (SAMPLER, HOST))

    @property
    def tokens_per_second(self) -> float:
        """Of all rows together."""
        return 1000 * self.point.batch / self.milliseconds

    @property
    def binds(self) -> str:
        """What takes most of the step."""
        return max(self.terms, key=lambda name: self.terms[name])

    def cost_of_a_million(self, price: float) -> float:
        """What a million tokens cost on a device of that price an hour."""
        return price / 3600 / self.tokens_per_second * 1e6

    def as_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "tier": self.tier,
            "batch": self.point.batch,
            "context": self.point.context,
            "ms": rounded(self.milliseconds),
            "tokens per second": rounded(self.tokens_per_second),
            "binds": self.binds,
            "terms ms": {name: rounded(value) for name, value in self.terms.items()},
        }
