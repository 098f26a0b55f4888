"""Where the time of a step goes: nested parts, each with the time that none inside it has taken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, TypeVar

from sortition.benchmarks.overhead import parts
from sortition.benchmarks.overhead.device_clock import DeviceClock, Event

Kind: TypeAlias = Literal["prefill", "decode", "mixed", "empty"]
Result = TypeVar("Result")

WHOLE: Final = "step"
"""The name under which a device keeps the time of a whole step."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: by the clock on the wall, and of the processor in this thread."""

    wall: float = 0.0
    cpu: float = 0.0

    def __add__(self, other: Times) -> Times:
        return Times(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: Times) -> Times:
        return Times(self.wall - other.wall, self.cpu - other.cpu)


def now() -> Times:
    """Both clocks."""
    return Times(time.perf_counter(), time.thread_time())


@dataclass(slots=True)
class Step:
    """One step of an engine.

    Attributes:
        kind: whether rows read their prompts, write, or some of each; empty where the engine ran no model.
        rows: how many texts took part.
        total: of the whole step.
        parts: of each part, without the parts inside it.
        device: seconds on the device, by part; filled in late, and empty without a GPU.
        whole: whether nothing was left out.
    """

    kind: Kind = "decode"
    rows: int = 0
    total: Times = field(default_factory=Times)
    parts: dict[str, Times] = field(default_factory=dict)
    device: dict[str, float] = field(default_factory=dict)
    whole: bool = True


@dataclass(slots=True)
class _Open:
    """A part that has begun and not ended, and what the parts inside it have taken."""

    name: str
    begun: Times
    inside: Times = field(default_factory=Times)


class Stopwatch:
    """Times the steps of one run.

    Args:
        left_out: parts that are not to be done: `call` and `timed` give a stand-in's result instead.
            `parts.INSTRUMENT` is the timing of parts.
        parity: leave them out in every other step only: 0 for the first, the third, and so on, 1 for the
            others.
        detailed: False for the time of whole steps alone.
        device: times the parts on a GPU as well.
    """

    def __init__(
        self,
        left_out: Collection[str] = (),
        *,
        parity: int | None = None,
        detailed: bool = True,
        device: DeviceClock | None = None,
    ) -> None:
        self.steps: list[Step] = []
        self._to_leave_out = frozenset(left_out)
        self._left_out: frozenset[str] = frozenset()
        self._parities = (0, 1) if parity is None else (parity,)
        self._detailed = detailed
        self._device = device
        self._step: Step | None = None
        self._open: list[_Open] = []
        self._thread = threading.get_ident()

    @contextmanager
    def step(self, kind: Kind = "decode", rows: int = 0) -> Iterator[Step]:
        """Time a step; its kind and rows may be set until it ends."""
        step = self._step = Step(kind, rows)
        step.whole = not self._to_leave_out or len(self.steps) % 2 not in self._parities
        self._left_out = frozenset() if step.whole else self._to_leave_out
        mark = self._mark()
        begun = now()
        try:
            yield step
        finally:
            step.total = now() - begun
            if self._device is not None and mark is not None:
                self._device.between(mark, self._device.mark(), step.device, WHOLE)
                self._device.collect()
            self._step = None
            self.steps.append(step)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a part of the step; outside of steps, and in other threads, do nothing."""
        step = self._step
        if step is None or not self._times_parts() or threading.get_ident() != self._thread:
            yield
            return
        mark = self._mark()
        part = _Open(name, now())
        self._open.append(part)
        try:
            yield
        finally:
            spent = now() - part.begun
            self._open.pop()
            step.parts[name] = step.parts.get(name, Times()) + spent - part.inside
            outer = self._open[-1] if self._open else None
            if outer is not None:
                outer.inside += spent
            if self._device is not None and mark is not None:
                around = None if outer is None else outer.name
                self._device.between(mark, self._device.mark(), step.device, name, around)

    def call(
        self, name: str, work: Callable[..., Result], *arguments: object, instead: Callable[..., Result]
    ) -> Result:
        """The work's result, timed as a part; or the stand-in's, where the part is left out."""
        if name in self._left_out:
            return instead(*arguments)
        with self.part(name):
            return work(*arguments)

    def timed(
        self, name: str, work: Callable[..., Result], instead: Callable[..., Result] | None = None
    ) -> Callable[..., Result]:
        """The work as a function that is timed whenever it is called."""

        def call(*arguments: object, **named: object) -> Result:
            if name in self._left_out and instead is not None:
                return instead(*arguments, **named)
            with self.part(name):
                return work(*arguments, **named)

        return call

    def _mark(self) -> Event | None:
        return self._device.mark() if self._device is not None and self._times_parts() else None

    def _times_parts(self) -> bool:
        return self._detailed and parts.INSTRUMENT not in self._left_out
