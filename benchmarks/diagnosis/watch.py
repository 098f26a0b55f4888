"""What comes and goes while a load runs, looked at again and again."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final, Self

from sortition.benchmarks.diagnosis.metrics import fetch
from sortition.integrations.errors import InputError

PERIOD: Final = 0.2
"""Seconds between looks: a few for the shortest load, and no load for the server."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Means and greatest values over all looks.

    Attributes:
        running, waiting: mean numbers of requests.
        most_running, most_waiting: the greatest.
        cache_usage: the greatest share of the KV cache in use, 0 to 1.
    """

    running: float
    waiting: float
    most_running: float
    most_waiting: float
    cache_usage: float


class Watch:
    """Looks at a server's gauges until it is left; `seen` has what was there."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._over = threading.Event()
        self._looks: list[tuple[float, float, float]] = []
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def seen(self) -> Seen:
        """What there was, of the looks at which something ran or waited."""
        looks = [look for look in self._looks if look[0] or look[1]] or [(0.0, 0.0, 0.0)]
        running, waiting, usage = zip(*looks, strict=True)
        return Seen(
            running=sum(running) / len(looks),
            waiting=sum(waiting) / len(looks),
            most_running=max(running),
            most_waiting=max(waiting),
            cache_usage=max(usage),
        )

    def _look(self) -> None:
        while not self._over.wait(PERIOD):
            try:
                figures = fetch(self._root)
            except InputError:
                # A busy server may miss a look; that it is gone is for the load to say.
                continue
            self._looks.append(
                (
                    figures.totals.get("vllm:num_requests_running", 0.0),
                    figures.totals.get("vllm:num_requests_waiting", 0.0),
                    figures.greatest.get("vllm:kv_cache_usage_perc", 0.0),
                )
            )
