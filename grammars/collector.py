"""Python's search for garbage that refers to itself, put off while a grammar is made.

All of the many things that a grammar is made of are in use until it is ready, and none of them is such
garbage: to go through them again and again took a third of the time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock


class _Pauses:
    """How many threads want no search now; the last of them allows it again, if it was before the first."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._count = 0
        self._was_enabled = False

    def begin(self) -> None:
        with self._lock:
            if not self._count:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._count += 1

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            if not self._count and self._was_enabled:
                gc.enable()


_PAUSES = _Pauses()


@contextmanager
def collector_paused() -> Iterator[None]:
    """No search begins inside, in any thread."""
    _PAUSES.begin()
    try:
        yield
    finally:
        _PAUSES.end()
