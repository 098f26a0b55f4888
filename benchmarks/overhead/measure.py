"""Measure an engine under some loads: the parts of its steps, and which of them the steps wait for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from sortition.benchmarks.overhead import parts
from sortition.benchmarks.overhead.breakdown import Breakdown, Clock, breakdowns
from sortition.benchmarks.overhead.device_clock import DeviceClock
from sortition.benchmarks.overhead.engine import Engine
from sortition.benchmarks.overhead.exposure import ROUNDS, Exposure, exposures, instrument
from sortition.benchmarks.overhead.load import Load
from sortition.benchmarks.overhead.stopwatch import Stopwatch
from sortition.benchmarks.timing import machine
from sortition.integrations.errors import InputError

FORMAT: Final = "sortition-overhead/2"
REPORT_SCHEMA: Final = Path(__file__).with_name("report_schema.json")
"""What reports of this format are valid under, as a JSON Schema."""

WARM_TOKENS: Final = 3
"""Of a first run that does not count: one step of each kind allocates what later ones use again."""

LEAST_SHARE: Final = 0.01
"""Of the step: parts that take less by their own clock are not left out one by one."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found under one load, and an error where it could not be done, or its steps not compared."""

    load: Load
    steps: list[Breakdown]
    exposed: list[Exposure]
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        load = self.load
        return {
            "batch": load.batch,
            "context": load.context,
            "tokens": load.tokens,
            "sampling": load.sampling.name,
            "structure": load.structure,
            "steps": [each.as_json() for each in self.steps],
            "exposed": [each.as_json() for each in self.exposed],
            **({} if self.error is None else {"error": self.error}),
        }


def measure(
    engine: Engine,
    loads: Sequence[Load],
    *,
    clock: Clock,
    rounds: int = ROUNDS,
    device: DeviceClock | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """The report, as plain JSON values. No rounds: the steps alone; `device`: times on a GPU as well.

    Interrupted, it is about the loads that have been measured, if there are any.
    """
    measured: list[Measured] = []
    interrupted = False
    try:
        for load in loads:
            progress(str(load))
            measured.append(
                measure_load(engine, load, clock=clock, rounds=rounds, device=device, progress=progress)
            )
    except KeyboardInterrupt:
        if not measured:
            raise
        interrupted = True
    report = {
        "format": FORMAT,
        "machine": machine(),
        "engine": engine.describe(),
        "clock": clock,
        "interrupted": interrupted,
        "loads": [each.as_json() for each in measured],
    }
    if rounds and not interrupted and any(each.error is None for each in measured):
        progress("the instrument's own cost")
        possible = next(each.load for each in measured if each.error is None)
        report["instrument"] = instrument(
            engine, possible, clock=clock, rounds=rounds, device=device
        ).as_json()
    return report


def measure_load(
    engine: Engine,
    load: Load,
    *,
    clock: Clock,
    rounds: int,
    device: DeviceClock | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Measured:
    """What a step does under one load, and what of it is exposed."""
    try:
        engine.run(replace(load, tokens=min(WARM_TOKENS, load.tokens)), Stopwatch())
    except InputError as problem:
        return Measured(load, [], [], str(problem))
    stopwatch = Stopwatch(device=device)
    engine.run(load, stopwatch)
    if device is not None:
        device.finish()
    steps = breakdowns(stopwatch.steps, clock)
    decode = next((each for each in steps if each.kind == "decode"), None)
    if decode is None or not rounds:
        return Measured(load, steps, [])
    try:
        exposed = exposures(engine, load, _questions(decode), clock=clock, rounds=rounds, progress=progress)
    except InputError as problem:
        return Measured(load, steps, [], str(problem))
    return Measured(load, steps, exposed)


def _questions(decode: Breakdown) -> list[list[str]]:
    """All that decides on a token, what of it is for structure, the rest, and each part that is not tiny."""
    decision = [name for name in decode.parts if parts.is_decision(name)]
    structure = [name for name in decision if parts.is_structure(name)]
    drawing = [name for name in decision if not parts.is_structure(name)]
    alone = [[name] for name in decision if decode.parts[name] >= LEAST_SHARE * decode.total]
    asked = [decision, structure, drawing, *alone]
    return [names for at, names in enumerate(asked) if names and names not in asked[:at]]
