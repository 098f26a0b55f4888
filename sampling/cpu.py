"""The CPU's backend: what `reference.py` draws, to the bit, in compiled loops.

It never holds more than a few rows as float32, keeps its scratch from call to call, and draws rows in as many
threads as torch would use.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections import namedtuple
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortition.sampling import reference
from sortition.sampling.columns import Columns
from sortition.sampling.draw import NO_TOKEN, Draw, Report, Request

SWITCH: Final = "SORTITION_NUMBA"
"""Environment variable; with ``0`` the reference draws, hundreds of times slower."""

AT_A_TIME: Final = 1 << 18
"""Logits that are converted to float32 before they are drawn from: 1 MB, which stays in a core's cache."""

Settings: Final = namedtuple("Settings", [each.name for each in fields(Columns) if each.name != "parameters"])  # type: ignore[misc]
"""The arrays of `Columns`."""


class Batch(NamedTuple):
    """The arrays of `Request`; a grammar of no rows stands for none."""

    seeds: NDArray[np.int64]
    positions: NDArray[np.int64]
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    end_tokens: NDArray[np.int64]
    grammar: NDArray[np.bool_]
    stream: int


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
        parts: list[NDArray[Any] | None] = [self.logprobs, self.entropy if request.entropy else None, None, None]
        if request.top:
            # Different d may have the same logarithm of their probability in float32.
            order = np.argsort(-self.top_d, axis=1, kind="stable")
            parts[2:] = (np.take_along_axis(part, order, axis=1) for part in (self.top_tokens, self.top_logprobs))
        return Report(*(part if part is None else torch.from_numpy(part) for part in parts))  # type: ignore[arg-type]


def draw_rows(logits: Tensor, request: Request) -> Draw:
    """Draw a token for each row; see `Backend`."""
    if os.environ.get(SWITCH) == "0":
        return reference.draw_rows(logits, request)
    rows, width = logits.shape
    settings = Settings(*(getattr(request.columns, name) for name in Settings._fields))
    batch = Batch(
        *map(np.ascontiguousarray, (request.seeds, request.positions, request.prompt, request.output)),
        end_tokens=np.ascontiguousarray(request.end_tokens),
        grammar=np.zeros((0, 0), np.bool_) if request.grammar is None else np.ascontiguousarray(request.grammar),
        stream=request.stream,
    )
    drawn = Drawn(np.full(rows, NO_TOKEN), np.zeros(rows, np.int64), np.zeros(rows, np.uint8))
    processed, raw = Reported.of(rows, request), Reported.of(rows if request.raw else 0, request)
    draw = _loops().draw

    def work(part: tuple[int, int]) -> None:
        law = _scratch(width)
        for first, count, values, stride in _pieces(logits, *part):
            draw(values, stride, width, first, count, settings, batch, law, drawn, processed, raw)

    threads = min(torch.get_num_threads(), rows)
    if threads > 1:
        list(_pool(threads).map(work, _parts(rows, threads)))
    else:
        work((0, rows))
    return Draw(
        *map(torch.from_numpy, drawn),
        processed=processed.report(request),
        raw=raw.report(request) if request.raw else None,
    )


def _pieces(logits: Tensor, begin: int, end: int) -> Iterator[tuple[int, int, NDArray[np.float32], int]]:
    """Rows from `begin` to `end` as float32 in memory: the first of them, how many, and their stride."""
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


def _parts(rows: int, parts: int) -> list[tuple[int, int]]:
    """Where each of so many parts of rows begins and ends."""
    ends = [rows * part // parts for part in range(parts + 1)]
    return list(zip(ends, ends[1:], strict=False))


def _loops() -> Any:
    # Importing numba takes as long as everything else together, and not everybody draws.
    return importlib.import_module("sortition.sampling.cpu_rows")


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "sortition-draw")


_of_thread: Final = threading.local()


def _scratch(width: int) -> Law:
    """This thread's."""
    law: Law | None = getattr(_of_thread, "law", None)
    if law is None or len(law.values) != width:
        law = _of_thread.law = _new_scratch(width)
    return law


def _new_scratch(width: int) -> Law:
    loops = _loops()
    chunk = min(loops.CHUNK, width)
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
        bins=np.empty(loops.BINS, np.int64),
        peaks=np.empty(-(-width // loops.BLOCK), np.float32),
        chances=np.empty(chunk, np.float32),
        words=np.empty(chunk, np.uint32),
        quads=np.empty(4 * chunk, np.uint32),
    )
