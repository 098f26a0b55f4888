"""The steps of a run, summed up: how long each kind takes, and which part takes how much of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from sortition.benchmarks.overhead import parts
from sortition.benchmarks.overhead.stopwatch import WHOLE, Kind, Step, Times

Clock: TypeAlias = Literal["cpu", "wall"]
"""Which of the two `Times` counts. Processor time is what a step takes where nothing disturbs it, but it does
not see what a thread waits for: it is right where one thread does all the work, and there alone."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """All steps of one kind; milliseconds, medians over the steps.

    Attributes:
        steps: how many there were.
        total: of a step.
        parts: of each part, without the parts inside it.
        unexplained: what is in no part.
        device: on a GPU, by part, and of the whole step; empty without one.
    """

    kind: Kind
    steps: int
    total: float
    parts: dict[str, float]
    unexplained: float
    device: dict[str, float]

    @classmethod
    def of(cls, kind: Kind, steps: Sequence[Step], clock: Clock) -> Breakdown:
        """Sum up steps of one kind, of which there is at least one."""
        read = reader(clock)
        names = sorted({name for step in steps for name in step.parts}, key=parts.place)
        on_device = [step.device for step in steps if WHOLE in step.device]
        return cls(
            kind=kind,
            steps=len(steps),
            total=_median(read(step.total) for step in steps),
            parts={name: _median(read(step.parts.get(name, Times())) for step in steps) for name in names},
            unexplained=_median(
                read(step.total) - sum(read(each) for each in step.parts.values()) for step in steps
            ),
            device={
                name: _median(each.get(name, 0.0) for each in on_device)
                for name in {name for each in on_device for name in each}
            },
        )

    @property
    def share_unexplained(self) -> float:
        """Of the step's time, what is in no part."""
        return self.unexplained / self.total

    def as_json(self) -> dict[str, Any]:
        """As plain JSON values, rounded to 0.1 microseconds."""
        return {
            "kind": self.kind,
            "steps": self.steps,
            "ms": round(self.total, 4),
            "parts": [
                {
                    "part": name,
                    "ms": round(value, 4),
                    "share": round(value / self.total, 4),
                    **({"device ms": round(self.device[name], 4)} if name in self.device else {}),
                }
                for name, value in self.parts.items()
            ],
            "unexplained": {
                "ms": round(self.unexplained, 4),
                "share": round(self.share_unexplained, 4),
            },
            **({"device ms": round(self.device[WHOLE], 4)} if WHOLE in self.device else {}),
        }


def breakdowns(steps: Iterable[Step], clock: Clock) -> list[Breakdown]:
    """The steps of a run, each kind for itself."""
    by_kind: dict[Kind, list[Step]] = {kind: [] for kind in get_args(Kind)}
    for step in steps:
        by_kind[step.kind].append(step)
    return [Breakdown.of(kind, found, clock) for kind, found in by_kind.items() if found]


def reader(clock: Clock) -> Callable[[Times], float]:
    """Seconds by that clock."""
    return (lambda times: times.cpu) if clock == "cpu" else (lambda times: times.wall)


def _median(seconds: Iterable[float]) -> float:
    return 1000 * statistics.median(seconds)
