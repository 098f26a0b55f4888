"""Time on a GPU: pairs of events that are read once the device has passed them, and never waited for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Event(Protocol):
    """What `torch.cuda.Event(enable_timing=True)` can do."""

    def record(self) -> None:
        """Place the event after what the stream has been given so far."""

    def query(self) -> bool:
        """Whether the device has passed it."""

    def synchronize(self) -> None:
        """Wait until the device has passed it."""

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to that one, both passed."""


def _cuda_event() -> Any:
    return torch.cuda.Event(enable_timing=True)


class DeviceClock:
    """Time between marks in the current stream. In a CUDA graph there can be none: put them around it.

    Args:
        event: makes an event.
    """

    def __init__(self, event: Callable[[], Event] = _cuda_event) -> None:
        self._event = event
        self._waiting: deque[tuple[Event, Event, dict[str, float], str, str | None]] = deque()

    def mark(self) -> Event:
        """An event after what the stream has been given so far."""
        event = self._event()
        event.record()
        return event

    def between(
        self, begin: Event, end: Event, into: dict[str, float], name: str, around: str | None = None
    ) -> None:
        """Add the seconds between two marks to a name, and take them from the part around it, later."""
        self._waiting.append((begin, end, into, name, around))

    def collect(self) -> None:
        """Read the pairs that the device has passed."""
        while self._waiting and self._waiting[0][1].query():
            begin, end, into, name, around = self._waiting.popleft()
            seconds = begin.elapsed_time(end) / 1000
            into[name] = into.get(name, 0.0) + seconds
            if around is not None:
                into[around] = into.get(around, 0.0) - seconds

    def finish(self) -> None:
        """Read all pairs and wait for the last one: for when no step is timed any more."""
        if self._waiting:
            self._waiting[-1][1].synchronize()
        self.collect()

    @property
    def waiting(self) -> int:
        """Pairs that have not been read."""
        return len(self._waiting)
