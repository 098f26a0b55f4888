"""Timing that a busy machine disturbs little: one thread on one core, contenders in turns, processor time."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import numpy as np

LEAST_SECONDS: Final = 0.02
"""A contender's turn takes so long, or one call: then turns are long against what switching costs."""

ONE_THREAD: Final = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    **dict.fromkeys(("RAYON_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
}
"""The environment of a process that has libraries use one thread; they read it when they are loaded."""


def pin() -> int | None:
    """Keep this process on one core, the last that it may use; its number, None where systems cannot."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core


def clock_cost() -> float:
    """Seconds that reading the clock of the processor adds to what is timed by it."""
    readings = [time.process_time() for _ in range(2_001)]
    return float(np.median(np.diff(readings)))


def interleaved(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of processor time of every call, by contender.

    In every round each contender has a turn of some calls, each round beginning with another one, after a
    first round that does not count. With one thread, processor time is what a call takes on an idle machine.
    """
    names = list(contenders)
    calls = {name: _calls(contenders[name]) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds[name] += [_measure(contenders[name]) for _ in range(calls[name])]
    return seconds


def percentiles(values: Sequence[float], points: Sequence[float]) -> dict[str, float | None]:
    """Percentiles, the mean and the greatest, to four digits; None where there is nothing."""
    if not len(values):
        return {**{f"p{point:g}": None for point in points}, "mean": None, "max": None}
    data = np.asarray(values, dtype=np.float64)
    found = {f"p{point:g}": float(np.percentile(data, point)) for point in points}
    found |= {"mean": float(data.mean()), "max": float(data.max())}
    return {name: float(f"{value:.4g}") for name, value in found.items()}


def _calls(call: Callable[[], object]) -> int:
    call()
    return max(1, int(LEAST_SECONDS / max(_measure(call), 1e-6)))


def _measure(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def versions(*packages: str) -> dict[str, str]:
    """Of those that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
