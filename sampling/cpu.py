"""The CPU's backend: what `reference.py` draws, to the bit, in compiled loops.

It never holds more than a few rows as float32, keeps its scratch from call to call, and draws rows in as many
threads as torch would use.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortition.grammars.background import Background
from sortition.sampling import reference
from sortition.sampling.columns import Columns
from sortition.sampling.draw import NO_TOKEN, Draw, Report, Request
from sortition.sampling.parameters import Parameters

CHUNK: Final = 1024
"""Tokens that are gone through at a time where passes follow each other: their arrays fit the first cache."""

BLOCK: Final = 64
"""Tokens to a peak. The k-th greatest peak is at most the k-th greatest value, and close to it."""

BINS: Final = 2048
"""Of keys, where one is sought among many."""

AT_A_TIME: Final = 1 << 18
"""Logits that are converted to float32 before they are drawn from: 1 MB, which stays in a core's cache."""

_COLUMNS: Final = [each.name for each in fields(Columns) if each.name != "parameters"]

Settings: Any = namedtuple("Settings", _COLUMNS)  # type: ignore[misc]
"""The arrays of `Columns`."""


def settings_of(columns: Columns) -> Any:
    """The settings that are in columns."""
    return Settings(*(getattr(columns, name) for name in _COLUMNS))


class Batch(NamedTuple):
    """The arrays of `Request`; a grammar of no rows stands for none."""

    seeds: NDArray[np.int64]
    positions: NDArray[np.int64]
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    end_tokens: NDArray[np.int64]
    grammar: NDArray[np.bool_]
    stream: int

    @classmethod
    def of(cls, request: Request) -> Batch:
        """Those of a request."""
        grammar = np.zeros((0, 0), np.bool_) if request.grammar is None else request.grammar
        return cls(
            seeds=np.ascontiguousarray(request.seeds),
            positions=np.ascontiguousarray(request.positions),
            prompt=np.ascontiguousarray(request.prompt),
            output=np.ascontiguousarray(request.output),
            end_tokens=np.ascontiguousarray(request.end_tokens),
            grammar=np.ascontiguousarray(grammar),
            stream=request.stream,
        )


class Law(NamedTuple):
    """Scratch of one thread, for rows of one width; see `cpu_law.py` and `cpu_rows.py`."""

    values: NDArray[np.float32]
    counts: NDArray[np.int32]
    tokens: NDArray[np.int32]
    d: NDArray[np.float32]
    keys: NDArray[np.float32]
    mass: NDArray[np.int64]
    keep: NDArray[np.bool_]
    some_keys: NDArray[np.float32]
    some_mass: NDArray[np.int64]
    bins: NDArray[np.int64]
    peaks: NDArray[np.float32]
    chances: NDArray[np.float32]
    words: NDArray[np.uint32]
    quads: NDArray[np.uint32]


class Drawn(NamedTuple):
    """Of `Draw`."""

    tokens: NDArray[np.int64]
    kept: NDArray[np.int64]
    flags: NDArray[np.uint8]


class Reported(NamedTuple):
    """Of `Report`; what is not asked for has no rows or columns."""

    logprobs: NDArray[np.float32]
    entropy: NDArray[np.float32]
    top_tokens: NDArray[np.int64]
    top_d: NDArray[np.float32]
    top_logprobs: NDArray[np.float32]

    @classmethod
    def of(cls, rows: int, request: Request) -> Reported:
        """What is said of rows that are flagged."""
        return cls(
            np.full(rows, -np.inf, np.float32),
            np.full(rows if request.entropy else 0, np.nan, np.float32),
            np.full((rows, request.top), NO_TOKEN, np.int64),
            np.full((rows, request.top), -np.inf, np.float32),
            np.full((rows, request.top), -np.inf, np.float32),
        )

    def report(self, request: Request) -> Report:
        """The same as tensors."""
        parts: list[NDArray[Any] | None] = [
            self.logprobs,
            self.entropy if request.entropy else None,
            None,
            None,
        ]
        if request.top:
            # Different d may have the same logarithm of their probability in float32.
            order = np.argsort(-self.top_d, axis=1, kind="stable")
            parts[2:] = (
                np.take_along_axis(part, order, axis=1) for part in (self.top_tokens, self.top_logprobs)
            )
        return Report(*(part if part is None else torch.from_numpy(part) for part in parts))  # type: ignore[arg-type]


def draw_rows(logits: Tensor, request: Request) -> Draw:
    """Draw a token for each row; see `Backend`. Until the loops are there, the reference draws the same."""
    if not LOOPS.ready:
        LOOPS.start()
        return reference.draw_rows(logits, request)
    return _draw_rows(logits, request)


def _draw_rows(logits: Tensor, request: Request) -> Draw:
    rows, width = logits.shape
    settings = settings_of(request.columns)
    batch = Batch.of(request)
    drawn = Drawn(np.full(rows, NO_TOKEN), np.zeros(rows, np.int64), np.zeros(rows, np.uint8))
    processed, raw = Reported.of(rows, request), Reported.of(rows if request.raw else 0, request)
    draw = _loops().draw

    def work(part: tuple[int, int]) -> None:
        law = _scratch(width)
        for first, count, values, stride in _pieces(logits, *part):
            draw(values, stride, width, first, count, settings, batch, law, drawn, processed, raw)

    share_out(work, rows)
    tokens, kept, flags = map(torch.from_numpy, drawn)
    return Draw(tokens, kept, flags, processed.report(request), raw.report(request) if request.raw else None)


def _pieces(logits: Tensor, begin: int, end: int) -> Iterator[tuple[int, int, NDArray[np.float32], int]]:
    """Rows from `begin` to `end` as float32 in memory: the first of them, how many, and their stride."""
    if begin == end:
        return
    width = logits.shape[1]
    part = logits[begin:end].detach()
    if part.dtype == torch.float32 and part.stride(1) == 1:
        stride = part.stride(0)
        flat = part.as_strided(((end - begin - 1) * stride + width,), (1,))
        yield begin, end - begin, flat.numpy(), stride
        return
    size = max(1, AT_A_TIME // width)
    room = torch.empty((min(size, end - begin), width), dtype=torch.float32)
    for first in range(begin, end, size):
        count = min(size, end - first)
        room[:count].copy_(part[first - begin : first - begin + count])
        yield first, count, room.view(-1).numpy(), width


def share_out(work: Callable[[tuple[int, int]], None], rows: int) -> None:
    """Have rows worked on in as many threads as torch would use, given where each part begins and ends."""
    threads = torch.get_num_threads()
    parts = min(threads, rows)
    if parts <= 1:
        work((0, rows))
    else:
        list(_pool(threads).map(work, pairwise(rows * part // parts for part in range(parts + 1))))


def _loops() -> Any:
    # Importing numba takes as long as everything else together, and not everybody draws.
    return importlib.import_module("sortition.sampling.cpu_rows")


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "sortition-draw")


if hasattr(os, "register_at_fork"):
    # A forked process has none of the threads.
    os.register_at_fork(after_in_child=_pool.cache_clear)

_of_thread: Final = threading.local()


def _scratch(width: int) -> Law:
    """This thread's."""
    law: Law | None = getattr(_of_thread, "law", None)
    if law is None or len(law.values) != width:
        law = _of_thread.law = new_scratch(width)
    return law


def new_scratch(width: int) -> Law:
    """Room for the law of a row of this width."""
    chunk = min(CHUNK, width)
    return Law(
        values=np.empty(width, np.float32),
        counts=np.zeros(width, np.int32),
        tokens=np.empty(width, np.int32),
        d=np.empty(width, np.float32),
        keys=np.empty(width, np.float32),
        mass=np.empty(width, np.int64),
        keep=np.empty(width, np.bool_),
        some_keys=np.empty(width, np.float32),
        some_mass=np.empty(width, np.int64),
        bins=np.empty(BINS, np.int64),
        peaks=np.empty(-(-width // BLOCK), np.float32),
        chances=np.empty(chunk, np.float32),
        words=np.empty(chunk, np.uint32),
        quads=np.empty(4 * chunk, np.uint32),
    )


def is_cached(loop: Any) -> bool:
    """Whether numba's cache has a loop as it is in the files of this folder."""
    cache, code = loop.stats.cache_path, loop.py_func.__code__
    if cache is None:  # numba has found no place where it may write
        return False
    written = max(source.stat().st_mtime for source in Path(__file__).parent.glob("*.py"))
    indices = Path(cache).glob(f"{Path(code.co_filename).stem}.*{code.co_name}-*.nbi")
    return any(index.stat().st_mtime >= written for index in indices)


def _load() -> None:
    """Draw once, from which numba learns the types of everything, and they are always the same."""
    nothing = np.zeros((1, 0), np.int64)
    request = Request(Columns.of([Parameters()]), nothing.sum(1), nothing.sum(1), nothing, nothing, nothing)
    _draw_rows(torch.zeros(1, 2), request)


LOOPS: Final = Background("sortition.sampling.cpu", lambda: is_cached(_loops().draw), _load)
"""The compiled loops."""

if __name__ == "__main__":
    # As a module of its own name, because numba files what it compiles under that.
    importlib.import_module("sortition.sampling.cpu").LOOPS.compile()
