"""Timing that a busy machine disturbs little: contenders in turns, processor time, medians."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

LEAST_SECONDS: Final = 0.02
"""A measurement repeats a call until it has taken so long: 20 times what the clock and the call cost."""


def interleaved(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of processor time of one call, by contender.

    Every round measures all contenders, each round beginning with another one, after a first round that does
    not count. With one thread, processor time is what a call takes on an idle machine.
    """
    names = list(contenders)
    repeats = {name: _repeats(contenders[name]) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds[name].append(_measure(contenders[name], repeats[name]))
    return {name: float(np.median(values)) for name, values in seconds.items()}


def _repeats(call: Callable[[], object]) -> int:
    call()
    return max(1, int(LEAST_SECONDS / max(_measure(call, 1), 1e-6)))


def _measure(call: Callable[[], object], repeats: int) -> float:
    begin = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - begin) / repeats


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
