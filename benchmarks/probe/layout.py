"""The batch that a condition puts a prompt into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice
from typing import Final

from sortition.benchmarks.probe.target import NotPossible, Prompt, Value

LONGER: Final = 8
"""Tokens by which longer neighbours are longer."""


@dataclass(frozen=True)
class Layout:
    """Rows that run together.

    Attributes:
        rows: tokens of each, without padding.
        row: the prompt's place.
        padding: pad tokens to the left of each row, so that all are of one length.
        copies: all rows are the prompt.
    """

    rows: tuple[tuple[int, ...], ...]
    row: int
    padding: tuple[int, ...]
    copies: bool


def layout(prompts: Sequence[Prompt], index: int, settings: Mapping[str, Value]) -> Layout:
    """Where settings put a prompt.

    Neighbours are made of the other prompts' tokens, cut to length, so that a row is padded only where that
    is asked for.

    Raises:
        NotPossible: a place or neighbours in a batch of one.
    """
    prompt = prompts[index].tokens
    count = int(settings.get("batch_size", 1))
    neighbours = settings.get("neighbours")
    if count == 1 and (neighbours is not None or "position" in settings):
        raise NotPossible("a batch of one row has no neighbours: give a batch_size")
    length = len(prompt) + (LONGER if neighbours == "longer" else 0)
    others = [prompt] * (count - 1)
    if neighbours is not None:
        company = [each.tokens for at, each in enumerate(prompts) if at != index] or [prompt[::-1]]
        stream = cycle(chain.from_iterable(company))
        others = [tuple(islice(stream, length)) for _ in range(count - 1)]
    row = count - 1 if settings.get("position") == "last" else 0
    rows = (*others[:row], prompt, *others[row:])
    padding = int(settings.get("padding", 0))
    return Layout(
        rows=rows,
        row=row,
        padding=tuple(padding + length - len(each) for each in rows),
        copies=neighbours is None,
    )
