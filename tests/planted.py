"""An engine whose parts take what a test says, by a clock that a test turns."""

from __future__ import annotations

import random
from typing import Any

from sortition.benchmarks.overhead import parts, stopwatch
from sortition.benchmarks.overhead.engine import Script
from sortition.benchmarks.overhead.load import Load
from sortition.benchmarks.overhead.stopwatch import Stopwatch, Times

FORWARD = 0.020
"""Seconds of the planted model."""


class Clock:
    """Stands still but when it is told to go on."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> Times:
        return Times(self.seconds, self.seconds)

    def turn(self, monkeypatch: Any) -> Clock:
        """Let all stopwatches read this clock."""
        monkeypatch.setattr(stopwatch, "now", self.now)
        return self


class PlantedEngine:
    """Its model runs on a device of its own; on the host, filling a mask goes on meanwhile or comes after it.

    Args:
        fill: seconds that filling the mask takes.
        overlapped: whether it is done while the model runs.
        seed: of the noise: steps vary by a twentieth, runs by a tenth, and one step in twenty takes three
            times
            as long, as on a machine that others use as well.
    """

    name = "planted"
    structures = ("none",)

    def __init__(self, clock: Clock, fill: float, *, overlapped: bool = False, seed: int = 0) -> None:
        self._clock = clock
        self._fill = fill
        self._overlapped = overlapped
        self._random = random.Random(seed)

    def describe(self) -> dict[str, Any]:
        return {"engine": self.name, "model": "none", "dtype": "none", "device": "none"}

    def run(self, load: Load, stopwatch: Stopwatch, script: Script | None = None) -> Script:
        pace = 1 + 0.1 * self._random.random()
        for turn in range(load.tokens):
            with stopwatch.step("decode" if turn else "prefill", load.batch):
                done = self._clock.seconds + self._noisy(FORWARD * pace)
                if self._overlapped:
                    self._filled(stopwatch)
                with stopwatch.part(parts.FORWARD):
                    self._clock.seconds = max(self._clock.seconds, done)
                if not self._overlapped:
                    self._filled(stopwatch)
        return script or [list(range(load.tokens)) for _ in range(load.batch)]

    def _filled(self, stopwatch: Stopwatch) -> None:
        if self._fill:
            stopwatch.call(parts.MASK_FILL, self._spend, self._fill, instead=lambda _: None)

    def _spend(self, seconds: float) -> None:
        self._clock.seconds += self._noisy(seconds)

    def _noisy(self, seconds: float) -> float:
        wild = 3.0 if self._random.random() < 0.05 else 1.0
        return seconds * wild * (1 + 0.05 * self._random.gauss(0, 1))
