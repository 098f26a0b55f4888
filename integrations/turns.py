"""Many prompts under way at once, their completions in the order of the prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from time import perf_counter
from typing import Final

from sortition.integrations.generation import Completion

AHEAD: Final = 4
"""Prompts that are under way or done but not yet in turn, per prompt of a batch: a long value holds up the
writing of those after it, and with 4 no longer their generation, unless it takes 4 times as long as they do.
A run that is killed loses as many."""


def in_turn(
    prompts: Iterable[str],
    batch_size: int,
    submit: Callable[[int, str], None],
    collect: Callable[[int], Completion],
) -> Iterator[Completion]:
    """The completions of all prompts, in order, each as soon as its turn has come.

    Args:
        prompts: read as room comes free.
        batch_size: how many are generated from at once; `AHEAD` times as many are submitted.
        submit: takes a prompt under the number of its turn.
        collect: waits for the completion of that number. Its `seconds` are filled in here: the time that was
            spent waiting for it, so that the sum over all is the time of the whole.
    """
    waiting = enumerate(prompts)
    submitted = turn = 0
    while True:
        begun = perf_counter()
        for number, prompt in islice(waiting, turn + AHEAD * batch_size - submitted):
            submit(number, prompt)
            submitted += 1
        if turn == submitted:
            return
        completion = collect(turn)
        turn += 1
        yield replace(completion, seconds=round(perf_counter() - begun, 4))
