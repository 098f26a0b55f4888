"""What a server says about itself at /metrics, in Prometheus' text format."""

from __future__ import annotations

import math
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sortition.integrations.errors import InputError

PATIENCE: Final = 10.0
"""Seconds for an answer: figures are at hand, whatever else the server does."""

_LINE: Final = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_BOUND: Final = re.compile(r'\ble="([^"]*)"')


@dataclass(frozen=True)
class Figures:
    """The server's figures at one time, or what was added to them between two.

    Attributes:
        totals: by name, the sum over all labels, such as those of several engines.
        greatest: by name, the greatest over all labels.
        buckets: by name, how many observations were at most each bound.
    """

    totals: Mapping[str, float]
    greatest: Mapping[str, float]
    buckets: Mapping[str, Mapping[float, float]]

    @classmethod
    def read(cls, text: str) -> Figures:
        """The figures of an answer; lines that are no figures are passed over."""
        totals: dict[str, float] = {}
        greatest: dict[str, float] = {}
        buckets: dict[str, dict[float, float]] = {}
        for line in text.splitlines():
            match = _LINE.fullmatch(line.strip())
            if match is None:
                continue
            name, labels, number = match.groups()
            value = float(number)
            bound = _BOUND.search(labels or "")
            if bound and name.endswith("_bucket"):
                counts = buckets.setdefault(name.removesuffix("_bucket"), {})
                counts[float(bound[1])] = counts.get(float(bound[1]), 0.0) + value
            else:
                totals[name] = totals.get(name, 0.0) + value
                greatest[name] = max(greatest.get(name, -math.inf), value)
        return cls(totals, greatest, buckets)

    def since(self, before: Figures) -> Figures:
        """What was added to counters and histograms since then."""
        totals = {name: value - before.totals.get(name, 0.0) for name, value in self.totals.items()}
        buckets = {
            name: {
                bound: count - before.buckets.get(name, {}).get(bound, 0.0) for bound, count in each.items()
            }
            for name, each in self.buckets.items()
        }
        return Figures(totals, self.greatest, buckets)

    def count(self, name: str) -> float:
        """A counter, with the suffix that the format gives it or without; 0 if it is not there."""
        return self.totals.get(f"{name}_total", self.totals.get(name, 0.0))

    def observations(self, name: str) -> float:
        """How many observations a histogram has."""
        return self.totals.get(f"{name}_count", 0.0)

    def mean(self, name: str) -> float:
        """The mean of a histogram, 0 without observations."""
        count = self.observations(name)
        return self.totals.get(f"{name}_sum", 0.0) / count if count else 0.0

    def quantile(self, name: str, share: float) -> float | None:
        """Below which value this share of the observations lies, linear within a bucket; None without any."""
        bounds = sorted(self.buckets.get(name, {}).items())
        if not bounds or not bounds[-1][1]:
            return None
        wanted = share * bounds[-1][1]
        low, below = 0.0, 0.0
        for bound, count in bounds:
            if count >= wanted:
                # The last bucket has no upper bound: nothing is known but its lower one.
                inside = (wanted - below) / (count - below) if count > below else 0.0
                return low if math.isinf(bound) else low + (bound - low) * inside
            low, below = bound, count
        return low


def fetch(root: str) -> Figures:
    """The figures of the server at a URL without path.

    Raises:
        InputError: there are none.
    """
    try:
        with urllib.request.urlopen(f"{root}/metrics", timeout=PATIENCE) as answer:
            return Figures.read(answer.read().decode(errors="replace"))
    except (OSError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", error)
        raise InputError(f"{root}/metrics gives no figures: {reason}; vLLM's server has them") from None
