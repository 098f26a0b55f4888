"""Everything that a verdict rests on, in one place."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from sortition.benchmarks.diagnosis.load import Timed
from sortition.benchmarks.diagnosis.metrics import Figures
from sortition.benchmarks.diagnosis.pairs import Cost
from sortition.benchmarks.diagnosis.watch import Seen


@dataclass(frozen=True)
class Evidence:
    """What was measured while the load ran.

    Attributes:
        requests: as the client saw them.
        figures: what the server added to its own.
        seen: its gauges.
        concurrency: how many requests were open at once.
        max_tokens: of every request.
        feature: of those that requests have, the one that costs most; None without any.
    """

    requests: Sequence[Timed]
    figures: Figures
    seen: Seen
    concurrency: int
    max_tokens: int
    feature: Cost | None

    @cached_property
    def whole(self) -> float:
        """Mean seconds of a request."""
        return statistics.fmean(each.whole for each in self.requests)

    @cached_property
    def queued(self) -> float:
        """Mean seconds that a request waited before it ran."""
        return self.figures.mean("vllm:request_queue_time_seconds")

    @cached_property
    def prefilling(self) -> float:
        """Mean seconds from a request's start to its first token."""
        return self.figures.mean("vllm:request_prefill_time_seconds")

    @cached_property
    def decoding(self) -> float:
        """Mean seconds from a request's first token to its last."""
        return self.figures.mean("vllm:request_decode_time_seconds")

    @cached_property
    def gap(self) -> float:
        """Median seconds between chunks."""
        gaps = [gap for each in self.requests for gap in each.gaps]
        return statistics.median(gaps) if gaps else 0.0

    @cached_property
    def feature_share(self) -> float:
        """How much of the time between chunks the feature costs at least, 0 to 1."""
        if self.feature is None or not self.gap:
            return 0.0
        return max(0.0, self.feature.between.longer.low) / self.gap

    @cached_property
    def preemptions(self) -> float:
        """How often a request was thrown out of the KV cache and began anew, on average."""
        return self.figures.count("vllm:num_preemptions") / max(1, len(self.requests))

    @cached_property
    def hit_rate(self) -> float | None:
        """Which share of prompt tokens were found in the prefix cache; None if nobody looked."""
        asked = self.figures.count("vllm:prefix_cache_queries")
        return self.figures.count("vllm:prefix_cache_hits") / asked if asked else None

    @cached_property
    def strangers(self) -> float:
        """How many requests of others ended meanwhile."""
        ended = self.figures.observations("vllm:request_queue_time_seconds")
        return max(0.0, ended - len(self.requests))
