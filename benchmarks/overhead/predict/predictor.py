"""The second and the third tier: a step as the sum of what was measured on this machine, without the model.

Both take what it costs to start the operations, to draw and to keep books from a *ghost*: a model with as
many layers and next to nothing in them, decoded by the same loop. To it, the calibrated tier adds what the
matrices and the cache take by this machine's bandwidth and operations a second; the op replay adds the
model's own matrix products, attention and what comes between them, run by themselves. What the ghost's take
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
from sortition.benchmarks.overhead.predict.replay import Replay, forward, ghost, reading
from sortition.benchmarks.overhead.predict.shape import Shape
from sortition.benchmarks.overhead.stopwatch import Stopwatch

GHOST_CONTEXT: Final = 8
"""Tokens that a ghost reads before it writes."""

TOKENS: Final = 10
"""That a ghost writes: nine decode steps, of which the median counts."""

ROUNDS: Final = 5

REPLAYED: Final = ("linears", "between", "attention")
"""What is replayed of a step, and of the ghost's, to be taken off it."""


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
        self._measured_prompt = cache(self._measure_prompt)
        self._rest = cache(self._measure_rest)

    def decode(
        self, point: Point, load: Load, measured: Mapping[str, float] | None = None
    ) -> dict[Tier, Prediction]:
        """A decode step of so many rows after so many tokens, by both tiers.

        Args:
            load: how tokens are drawn, and what holds them to a grammar.
            measured: what `beside` has given for this point; by default it is measured now.
        """
        cached = self._number * self.shape.kv_numbers(point.batch * point.context)
        # A cache that grows by copying is read and written, and then read once more.
        attention = 2 * cached / self.calibration.copying + cached / self.calibration.bandwidth
        found = self._measured(point) if measured is None else measured
        return self._predictions(point, load, found, point.batch, attention)

    def prefill(
        self, tokens: int, load: Load, measured: Mapping[str, float] | None = None
    ) -> dict[Tier, Prediction]:
        """The step that reads one prompt, by both tiers.

        Args:
            load: how tokens are drawn, and what holds them to a grammar.
            measured: what `beside_prompt` has given for so many tokens; by default it is measured now.
        """
        # Half of all pairs of tokens: none looks ahead.
        operations = self.shape.attention_operations(tokens, tokens) / 2
        found = self._measured_prompt(tokens) if measured is None else measured
        attention = operations / self.calibration.operations
        return self._predictions(Point(1, tokens), load, found, tokens, attention)

    def _predictions(
        self, point: Point, load: Load, found: Mapping[str, float], tokens: int, attention: float
    ) -> dict[Tier, Prediction]:
        """A step in which so many tokens go through all layers, its attention taking so many seconds."""
        rest = self._rest(replace(load, batch=point.batch, context=GHOST_CONTEXT, tokens=TOKENS))
        launch = found["ghost"] - sum(found[f"ghost's {name}"] for name in REPLAYED)
        rest = {LAUNCH: max(launch, 0.0), **rest}
        size, limits = self.shape, self.calibration
        reading = self._number * size.multiplied / limits.bandwidth
        computing = 2 * size.multiplied * tokens / limits.operations
        matrices = BANDWIDTH if reading >= computing else COMPUTE
        calibrated = {matrices: 1000 * max(reading, computing), ATTENTION: 1000 * attention}
        replayed = {matrices: found["linears"] + found["between"], ATTENTION: found["attention"]}
        return {
            "calibrated": Prediction("calibrated", point, calibrated | rest),
            "op replay": Prediction("op replay", point, replayed | rest),
        }

    @property
    def _number(self) -> int:
        return torch.empty(0, dtype=getattr(torch, self.dtype)).element_size()

    def _measure(self, point: Point) -> dict[str, float]:
        return self.beside(point, {})

    def _measure_prompt(self, tokens: int) -> dict[str, float]:
        return self.beside_prompt(tokens, {})

    def beside(self, point: Point, others: Mapping[str, Callable[[], object]]) -> dict[str, float]:
        """Milliseconds of what a decode step is predicted from, and of other work in turns with it."""
        start = Point(point.batch, GHOST_CONTEXT)
        return self._in_turns(
            {
                "linears": self._replay.linears(point.batch, point.batch),
                "between": self._replay.between(point.batch, 1),
                "attention": self._replay.attention(point),
                "ghost": forward(self._ghost.model, start),
                "ghost's linears": self._ghost_replay.linears(point.batch, point.batch),
                "ghost's between": self._ghost_replay.between(point.batch, 1),
                "ghost's attention": self._ghost_replay.attention(start),
                **others,
            }
        )

    def beside_prompt(self, tokens: int, others: Mapping[str, Callable[[], object]]) -> dict[str, float]:
        """The same of a step that reads a prompt."""
        return self._in_turns(
            {
                "linears": self._replay.linears(tokens, 1),
                "between": self._replay.between(1, tokens),
                "attention": self._replay.prefill_attention(tokens),
                "ghost": reading(self._ghost.model, tokens),
                "ghost's linears": self._ghost_replay.linears(tokens, 1),
                "ghost's between": self._ghost_replay.between(1, tokens),
                "ghost's attention": self._ghost_replay.prefill_attention(tokens),
                **others,
            }
        )

    def _in_turns(self, work: Mapping[str, Callable[[], object]]) -> dict[str, float]:
        seconds = in_turns(work, self._device, self._rounds)
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
