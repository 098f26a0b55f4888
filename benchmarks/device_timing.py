"""Time on a GPU: of captured calls, kernel by kernel, and on the host, which must not wait for the device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch

DEVICE: Final = torch.device("cuda")

READ: Final = 1 << 28
"""Numbers of four bytes that are read to measure bandwidth: far more than caches hold."""

REPEATS: Final = 20
"""Draws in one graph, which hides what launching the graph costs."""

ROUNDS: Final = 5

LAUNCHES: Final = 50
"""Calls that are timed on the host."""


class Clock:
    """How much of the budget is left."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def over(self) -> bool:
        """Whether none of it is left."""
        return time.monotonic() > self._end


def bandwidth() -> dict[str, float]:
    """GB/s of this device: to read so many numbers, and to copy them, which reads and writes."""
    numbers = torch.ones(READ, device=DEVICE)
    into = torch.empty_like(numbers)
    read, _ = timed(numbers.amax, repeats=5)
    copied, _ = timed(lambda: into.copy_(numbers), repeats=5)
    return {"read": numbers.nbytes / read / 1e9, "copy": 2 * numbers.nbytes / copied / 1e9}


def timed(work: Callable[[], object], repeats: int = REPEATS) -> tuple[float, bool]:
    """Median seconds of one call on the device, and whether it was in a graph, or else in turn."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    captured = True
    try:
        with torch.cuda.graph(graph):
            for _ in range(repeats):
                work()
        replay: Callable[[], object] = graph.replay
    except RuntimeError:
        captured = False
        torch.cuda.synchronize()

        def replay() -> None:
            for _ in range(repeats):
                work()

    replay()
    seconds = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        replay()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1000 / repeats)
    return statistics.median(seconds), captured


def kernels(work: Callable[[], object]) -> dict[str, float]:
    """Microseconds of each kernel, by name; nothing where the profiler cannot see them."""
    work()
    torch.cuda.synchronize()
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(REPEATS):
                work()
            torch.cuda.synchronize()
    except (AssertionError, RuntimeError):
        return {}
    return {
        event.key: event.self_device_time_total / REPEATS
        for event in profile.key_averages()
        if event.self_device_time_total > 0
    }


def host(work: Callable[[], object]) -> float:
    """Median seconds that a call takes the host, which does not wait for the device."""
    seconds = []
    for _ in range(LAUNCHES):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    torch.cuda.synchronize()
    return statistics.median(seconds)


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever waits for the device fails."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
