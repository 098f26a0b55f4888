"""Requests -> tables, on a thread of its own, each content once, and the figures of an engine."""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Final

from sortition.grammars.table import Table
from sortition.grammars.vocabulary import Vocabulary
from sortition.integrations.vllm_request import Request

logger = logging.getLogger("sortition")

KEPT: Final = 256
"""Tables that are kept for requests to come."""

KEPT_BYTES: Final = 1 << 28
"""Bytes of those; the median of real schemas takes 0.2 MB with a vocabulary of 128k."""


@dataclass(slots=True)
class Figures:
    """What the grammars and draws of one engine process cost so far.

    Attributes:
        requests: admitted with a grammar.
        compiles: grammars compiled.
        cache_hits: requests whose grammar was there or on its way.
        compile_seconds: spent by the compiling thread, while the engine goes on.
        stall_seconds: for which the engine stood still because a table was not ready.
        closed_rows: requests that were only allowed to end, because their grammar could not be compiled.
        unread_tokens: how often a row was only allowed to end, because the engine did not show its tokens.
        drawn_rows: rows of logits that were drawn from here, those of drafts included.
        draw_seconds: what that took, waiting for the logits included.
        mended_rows: those of them that could not be drawn from as they were.
    """

    requests: int = 0
    compiles: int = 0
    cache_hits: int = 0
    compile_seconds: float = 0.0
    stall_seconds: float = 0.0
    closed_rows: int = 0
    unread_tokens: int = 0
    drawn_rows: int = 0
    draw_seconds: float = 0.0
    mended_rows: int = 0

    def as_dict(self) -> dict[str, float]:
        """The figures by name."""
        return asdict(self)


class Compiler:
    """Tables by content: started at admission, awaited at first use, kept within bounds.

    Nothing here depends on how long a compilation takes, except how long `table` waits.

    Args:
        vocabulary: of the engine's model.
        figures: where to count.
        kept, kept_bytes: bounds on tables that no request holds.
    """

    def __init__(
        self, vocabulary: Vocabulary, figures: Figures, kept: int = KEPT, kept_bytes: int = KEPT_BYTES
    ) -> None:
        self.vocabulary = vocabulary
        self.figures = figures
        self._bounds = kept, kept_bytes
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sortition-compile")
        self._futures: OrderedDict[Request, Future[Table]] = OrderedDict()
        self._held: Counter[Request] = Counter()

    def hold(self, request: Request) -> None:
        """Begin to compile, if nobody has, and keep the table until `release`."""
        self.figures.requests += 1
        self._held[request] += 1
        if request in self._futures:
            self.figures.cache_hits += 1
            self._futures.move_to_end(request)
        else:
            self._futures[request] = self._thread.submit(self._compile, request)
            self._evict()

    def release(self, request: Request) -> None:
        """One request fewer needs the table."""
        self._held[request] -= 1
        if not self._held[request]:
            del self._held[request]

    def table(self, request: Request) -> Table | None:
        """The table of a request that is held, waited for; None if there is none, which is logged once."""
        future = self._futures[request]
        begin = time.perf_counter()
        try:
            return future.result()
        except Exception:
            # The message has been logged by the thread: requests of the same content do not repeat it.
            return None
        finally:
            self.figures.stall_seconds += time.perf_counter() - begin

    @property
    def held(self) -> int:
        """How many different grammars requests hold."""
        return len(self._held)

    @property
    def kept(self) -> tuple[int, int]:
        """How many tables there are, and their bytes."""
        tables = [future.result() for future in self._futures.values() if _succeeded(future)]
        return len(tables), sum(table.nbytes for table in tables)

    def _compile(self, request: Request) -> Table:
        begin = time.perf_counter()
        try:
            return request.grammar().compile(self.vocabulary)
        except Exception as error:
            # Whatever goes wrong here, an exception would take the engine and all its requests with it.
            logger.error(
                "a grammar could not be compiled, its requests may only end: %s (%r)", error, request
            )
            raise
        finally:
            self.figures.compiles += 1
            self.figures.compile_seconds += time.perf_counter() - begin

    def _evict(self) -> None:
        """Forget the tables that were not asked for the longest, beyond the bounds."""
        most, most_bytes = self._bounds
        count, size = self.kept
        count = len(self._futures)
        for request in [request for request in self._futures if request not in self._held]:
            if count <= most and size <= most_bytes:
                return
            future = self._futures.pop(request)
            count -= 1
            if _succeeded(future):
                size -= future.result().nbytes
            else:
                future.cancel()


def _succeeded(future: Future[Table]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
