"""The second and the third tier: a step as the sum of what was measured on this machine, without the model.

Both take what it costs to start the operations, to draw and to keep books from a *ghost*: a model with as
many layers and next to nothing in them, decoded by the same loop. To it, the calibrated tier adds what the
matrices and the cache take by this machine's bandwidth and operations a second; the op replay adds the
model's own matrix products and attention, run by themselves. What the ghost's products and attention take
is taken off again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final

import torch

from sortition.benchmarks.overhead import parts
from sortition.benchmarks.overhead.breakdown import Breakdown, Clock, breakdowns
from sortition.benchmarks.overhead.hf import TransformersEngine, random_model
from sortition.benchmarks.overhead.load import Load
from sortition.benchmarks.overhead.predict.calibration import Calibration, calibrate, in_turns
from sortition.benchmarks.overhead.predict.prediction import (
    ATTENTION,
    BANDWIDTH,
    COMPUTE,
    HOST,
    LAUNCH,
    SAMPLER,
    Point,
    Prediction,
    Tier,
)
from sortition.benchmarks.overhead.predict.replay import Replay, forward, ghost
from sortition.benchmarks.overhead.predict.shape import Shape
from sortition.benchmarks.overhead.stopwatch import Stopwatch

GHOST_CONTEXT: Final = 8
"""Tokens that a ghost reads before it writes."""

TOKENS: Final = 10
"""That a ghost writes: nine decode steps, of which the median counts."""

ROUNDS: Final = 5


class Predictor:
    """Predicts steps of a model from its configuration.

    Args:
        config: of the model, as transformers has it.
        tokenizer: with the model's vocabulary; prompts and detokenising need one.
    """

    def __init__(
        self, config: Any, tokenizer: Any, dtype: torch.dtype, device: torch.device, *, rounds: int = ROUNDS
    ) -> None:
        self.shape = Shape.of(config)
        self.dtype = str(dtype).removeprefix("torch.")
        self.calibration: Calibration = calibrate(dtype, device, rounds)
        small = ghost(config)
        self._ghost = TransformersEngine(random_model(small, dtype, device), tokenizer)
        implementation = self._ghost.model.config._attn_implementation
        self._replay = Replay(self.shape, dtype, device, implementation)
        self._ghost_replay = Replay(Shape.of(small), dtype, device, implementation)
        self._device = device
        self.clock: Clock = "cpu" if device.type == "cpu" else "wall"
        self._rounds = rounds
        self._measured = cache(self._measure)
        self._rest = cache(self._measure_rest)

    def decode(
        self, point: Point, load: Load, measured: Mapping[str, float] | None = None
    ) -> dict[Tier, Prediction]:
        """A decode step of so many rows after so many tokens, by both tiers.

        Args:
            load: how tokens are drawn, and what holds them to a grammar.
            measured: what `beside` has given for this point; by default it is measured now.
        """
        rest = self._rest(replace(load, batch=point.batch, context=GHOST_CONTEXT, tokens=TOKENS))
        found = self._measured(point) if measured is None else measured
        launch = found["ghost"] - found["ghost's linears"] - found["ghost's attention"]
        rest = {LAUNCH: max(launch, 0.0), **rest}
        number = self._number
        size, limits = self.shape, self.calibration
        reading = number * size.multiplied / limits.bandwidth
        computing = 2 * size.multiplied * point.batch / limits.operations
        cached = number * size.kv_numbers(point.batch * point.context)
        matrices = BANDWIDTH if reading >= computing else COMPUTE
        # A cache that grows by copying is read and written, and then read once more.
        calibrated = {
            matrices: 1000 * max(reading, computing),
            ATTENTION: 1000 * (2 * cached / limits.copying + cached / limits.bandwidth),
        }
        replayed = {matrices: found["linears"], ATTENTION: found["attention"]}
        return {
            "calibrated": Prediction("calibrated", point, calibrated | rest),
            "op replay": Prediction("op replay", point, replayed | rest),
        }

    def prefill(self, tokens: int, load: Load) -> Prediction:
        """The step that reads one prompt, by op replay."""
        rest = self._rest(replace(load, batch=1, context=GHOST_CONTEXT, tokens=TOKENS))
        seconds = in_turns(
            {
                "linears": self._replay.linears(tokens, 1),
                "attention": self._replay.prefill_attention(tokens),
            },
            self._device,
            min(self._rounds, 3),
        )
        reading = self._number * self.shape.multiplied / self.calibration.bandwidth
        computing = 2 * self.shape.multiplied * tokens / self.calibration.operations
        matrices = BANDWIDTH if reading >= computing else COMPUTE
        ghost = self._measured(Point(1, GHOST_CONTEXT))
        launch = ghost["ghost"] - ghost["ghost's linears"] - ghost["ghost's attention"]
        terms = {matrices: 1000 * seconds["linears"], ATTENTION: 1000 * seconds["attention"]}
        return Prediction("op replay", Point(1, tokens), {**terms, LAUNCH: max(launch, 0.0), **rest})

    @property
    def _number(self) -> int:
        return torch.empty(0, dtype=getattr(torch, self.dtype)).element_size()

    def _measure(self, point: Point) -> dict[str, float]:
        return self.beside(point, {})

    def beside(self, point: Point, others: Mapping[str, Callable[[], object]]) -> dict[str, float]:
        """Milliseconds of what a step is predicted from, and of other work in turns with it."""
        start = Point(point.batch, GHOST_CONTEXT)
        seconds = in_turns(
            {
                "linears": self._replay.linears(point.batch, point.batch),
                "attention": self._replay.attention(point),
                "ghost": forward(self._ghost.model, start),
                "ghost's linears": self._ghost_replay.linears(point.batch, point.batch),
                "ghost's attention": self._ghost_replay.attention(start),
                **others,
            },
            self._device,
            self._rounds,
        )
        return {name: 1000 * value for name, value in seconds.items()}

    def _measure_rest(self, load: Load) -> dict[str, float]:
        """What the model has no part in: drawing, and the host's own work."""
        self._ghost.run(load, Stopwatch())
        stopwatch = Stopwatch()
        self._ghost.run(load, stopwatch)
        step = decode_of(stopwatch, self.clock)
        drawing = sum(value for name, value in step.parts.items() if parts.is_decision(name))
        kept = (parts.INPUTS, parts.BOOKKEEPING, parts.DETOKENISE)
        keeping = sum(step.parts.get(name, 0.0) for name in kept)
        return {SAMPLER: drawing, HOST: keeping + step.unexplained}


def decode_of(stopwatch: Stopwatch, clock: Clock) -> Breakdown:
    """The decode steps of a run."""
    return next(each for each in breakdowns(stopwatch.steps, clock) if each.kind == "decode")
