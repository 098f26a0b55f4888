"""Time to the first token and between tokens, at the median and at the end of the tail, split by cause."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from sortition.benchmarks.diagnosis.evidence import Evidence
from sortition.benchmarks.diagnosis.load import Timed
from sortition.benchmarks.diagnosis.pairs import Spread

SAME_STEP: Final = 0.002
"""Seconds within which the chunks of one step arrive: a client's threads read them one after the other."""

SHARES: Final = {"p50": 0.5, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class First:
    """The time to the first token of a request, in seconds.

    Attributes:
        queue, prefill: what the server says of this request, or the means of all, where it says no more.
        elsewhere: what is left: HTTP, tokenizing, the network.
    """

    whole: float
    queue: float
    prefill: float

    @property
    def elsewhere(self) -> float:
        return max(0.0, self.whole - self.queue - self.prefill)


def first_tokens(evidence: Evidence) -> dict[str, Any]:
    """What the requests at the median and at the 99th percentile waited for, as plain JSON values."""
    ordered = sorted(evidence.requests, key=lambda each: each.first)
    found: dict[str, Any] = {"of single requests": all(each.queued is not None for each in ordered)}
    for name, share in SHARES.items():
        request = ordered[min(len(ordered) - 1, int(share * len(ordered)))]
        first = First(
            request.first,
            evidence.queued if request.queued is None else request.queued,
            evidence.prefilling if request.prefilling is None else request.prefilling,
        )
        found[name] = {
            "whole s": first.whole,
            "queue s": first.queue,
            "prefill s": first.prefill,
            "elsewhere s": first.elsewhere,
        }
    return found


def between_tokens(evidence: Evidence) -> dict[str, Any]:
    """Gaps in which another request's prompt was read, and the others, as plain JSON values."""
    reading = prefills(evidence.requests, evidence.prefilling)
    beside: list[float] = []
    alone: list[float] = []
    for at, request in enumerate(evidence.requests):
        # The first chunk's arrival, and then every other one's.
        arrivals = list(accumulate(request.gaps, initial=request.begin + request.first))
        others = reading[:at] + reading[at + 1 :]
        for gap, disturbed in zip(request.gaps, _touched(arrivals, others), strict=True):
            (beside if disturbed else alone).append(gap)
    return {
        "decode alone": _json(alone),
        "beside prefills of others": _json(beside),
    }


def prefills(requests: Sequence[Timed], mean: float) -> list[tuple[float, float]]:
    """From when to when each prompt was read: up to the first token, for as long as the server says."""
    ends = [each.begin + each.first for each in requests]
    return [
        (end - (mean if each.prefilling is None else each.prefilling), end)
        for each, end in zip(requests, ends, strict=True)
    ]


def _touched(arrivals: Sequence[float], spans: Sequence[tuple[float, float]]) -> list[bool]:
    """For each gap between arrivals, whether one of the spans has a part in it."""
    touched = [False] * (len(arrivals) - 1)
    for begin, end in spans:
        first = max(0, bisect_right(arrivals, begin) - 1)
        # A span that ends as a gap begins is of the step before it.
        behind_last = min(len(touched), bisect_left(arrivals, end - SAME_STEP))
        touched[first:behind_last] = [True] * max(0, behind_last - first)
    return touched


def _json(gaps: Sequence[float]) -> dict[str, Any]:
    spread = Spread.of(gaps)
    return {"gaps": len(gaps), "p50 s": spread.p50, "p99 s": spread.p99}
