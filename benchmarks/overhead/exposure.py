"""What a part costs the step: steps with it and steps without it, in turns, over the same tokens.

A part's own time says at most that much: where an engine does something else meanwhile, the step does not
wait for it. Only leaving it out shows what it costs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias

from sortition.benchmarks.overhead import parts
from sortition.benchmarks.overhead.breakdown import Clock, reader
from sortition.benchmarks.overhead.device_clock import DeviceClock
from sortition.benchmarks.overhead.engine import Engine, Script
from sortition.benchmarks.overhead.intervals import LEAST, Interval, signed_rank
from sortition.benchmarks.overhead.load import Load
from sortition.benchmarks.overhead.stopwatch import Step, Stopwatch
from sortition.integrations.errors import InputError

Verdict: TypeAlias = Literal["exposed", "saves", "not exposed", "below the detection limit"]

ROUNDS: Final = 8
"""Pairs of runs: two more than the fewest that give an interval, so that wild ones are left outside."""


@dataclass(frozen=True, slots=True)
class Exposure:
    """What leaving something out saves of a decode step; milliseconds.

    Attributes:
        part: what was left out; several parts are joined by `parts.JOINT`.
        own: what it takes by its own clock: no more than that can be exposed. None where that is not known.
        saved: of the step, with its interval.
        step: the whole step, with everything in it.
        pairs: of runs.
    """

    part: str
    own: float | None
    saved: Interval
    step: float
    pairs: int

    @property
    def limit(self) -> float:
        """The least that these runs could have told from nothing."""
        return self.saved.half_width

    @property
    def verdict(self) -> Verdict:
        """Whether steps wait for the part, or even are longer without it."""
        if self.saved.low > 0:
            return "exposed"
        # A mask leaves few tokens to sort, say, so that filters are faster by more than it takes.
        if self.saved.high < 0:
            return "saves"
        # Its own time is well above what would have been seen, and it was not seen.
        if self.own is not None and self.own > 2 * self.limit and self.saved.high < self.own:
            return "not exposed"
        return "below the detection limit"

    def as_json(self) -> dict[str, Any]:
        """As plain JSON values, rounded to 0.1 microseconds."""
        return {
            "part": self.part,
            "verdict": self.verdict,
            "exposed ms": round(self.saved.estimate, 4),
            "interval ms": [round(self.saved.low, 4), round(self.saved.high, 4)],
            "share of step": round(self.saved.estimate / self.step, 4),
            "own ms": None if self.own is None else round(self.own, 4),
            "detection limit ms": round(self.limit, 4),
            "step ms": round(self.step, 4),
            "pairs": self.pairs,
        }


def exposures(
    engine: Engine,
    load: Load,
    questions: Sequence[Sequence[str]],
    *,
    clock: Clock,
    rounds: int = ROUNDS,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Exposure]:
    """What each set of parts costs a decode step.

    Raises:
        ValueError: fewer rounds than give an interval.
    """
    if rounds < LEAST:
        raise ValueError(f"{LEAST} rounds or more are needed for an interval, not {rounds}")
    script = engine.run(load, Stopwatch())
    timed = Stopwatch()
    engine.run(load, timed, script)
    found = []
    for left_out in questions:
        name = parts.JOINT.join(left_out)
        progress(name)
        saved, whole = difference(engine, load, script, left_out, clock=clock, rounds=rounds)
        found.append(Exposure(name, _own(timed.steps, left_out, clock), saved, whole, rounds))
    return found


def instrument(
    engine: Engine, load: Load, *, clock: Clock, rounds: int = ROUNDS, device: DeviceClock | None = None
) -> Exposure:
    """What timing the parts costs a step, on the device as well if it is timed there."""
    script = engine.run(load, Stopwatch())
    saved, whole = difference(
        engine, load, script, [parts.INSTRUMENT], clock=clock, rounds=rounds, detailed=True, device=device
    )
    return Exposure(parts.INSTRUMENT, None, saved, whole, rounds)


def difference(
    engine: Engine,
    load: Load,
    script: Script,
    left_out: Sequence[str],
    *,
    clock: Clock,
    rounds: int,
    detailed: bool = False,
    device: DeviceClock | None = None,
) -> tuple[Interval, float]:
    """Milliseconds that a decode step takes longer with everything in it, and what it takes then.

    In a run, every other step is done without the parts, and is held against the step before it: whatever
    else slows the machine down slows both. A second run has the other steps without them, so that what
    grows from step to step, as attention does, adds to as many comparisons as it takes from. The two runs
    together are one
    difference: the steps of a run disturb each other too much to count as many.

    Raises:
        InputError: there are no two such steps of all rows.
    """
    read = reader(clock)
    differences, wholes = [], []
    for turn in range(rounds):
        # Which of the two runs comes first changes as well.
        for parity in (turn % 2, 1 - turn % 2):
            stopwatch = Stopwatch(left_out, parity=parity, detailed=detailed, device=device)
            engine.run(load, stopwatch, script)
            steps = [step for step in stopwatch.steps if step.kind == "decode" and step.rows == load.batch]
            if len(steps) < 2:
                raise InputError(f"no two decode steps have all rows of {load}: give more --tokens")
            differences.append(
                statistics.median(
                    read(one.total) - read(other.total) if one.whole else read(other.total) - read(one.total)
                    for one, other in pairwise(steps)
                )
            )
            wholes += [read(step.total) for step in steps if step.whole]
    means = [500 * (one + other) for one, other in zip(differences[::2], differences[1::2], strict=True)]
    return signed_rank(means), 1000 * statistics.median(wholes)


def _own(steps: Sequence[Step], names: Sequence[str], clock: Clock) -> float:
    read = reader(clock)
    decode = [step for step in steps if step.kind == "decode"]
    return 1000 * statistics.median(
        sum(read(step.parts[name]) for name in names if name in step.parts) for step in decode
    )
