"""Until when a probe begins something new, and why it stops."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

OUT_OF_TIME: Final = "out of time"
INTERRUPTED: Final = "interrupted"


class Deadline:
    """Says when to stop; whatever is under way by then is finished.

    Args:
        seconds: from now on; None for no end.

    Attributes:
        reason: why something was not begun, "" if everything was.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._begun = time.monotonic()
        self._seconds = seconds
        self.reason = ""

    def passed(self, share: float = 1.0) -> bool:
        """Whether so much of the time is gone, or somebody pressed Ctrl-C."""
        late = self._seconds is not None and time.monotonic() - self._begun >= share * self._seconds
        if late and not self.reason:
            self.reason = OUT_OF_TIME
        return late or self.reason == INTERRUPTED

    @contextmanager
    def minding(self) -> Iterator[None]:
        """While entered, Ctrl-C ends only what is under way, and nothing else is begun."""
        try:
            yield
        except KeyboardInterrupt:
            self.reason = INTERRUPTED
