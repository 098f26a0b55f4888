"""Runs of targets that show only the best log-probabilities of each step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import torch

from sortition.benchmarks.probe.target import NotPossible, Run, Value

WIDTH: Final = 5
"""Log-probabilities of a step: the most that OpenAI's interface of completions promises."""

Top: TypeAlias = list[tuple[int, float]]
"""Tokens and their log-probabilities at one step, in any order."""


def run_of(tokens: Sequence[int], steps: Sequence[Top], choices: Sequence[int] | None = None) -> Run:
    """A run with `WIDTH` scores a step, the best first, and the lower token first where they are equal.

    Args:
        tokens: that it went on with.
        steps: one a token; none where the target shows none.
        choices: what it would have gone on with; by default the tokens.
    """
    width = WIDTH if steps else 0
    rows = [_filled(ranked(step)[:WIDTH]) for step in steps]
    values = [value for row in rows for _, value in row]
    scores = torch.tensor(values, dtype=torch.float64).reshape(len(tokens), width)
    if torch.equal(scores.float().double(), scores):
        # What was computed as float32 is told exactly, and its units in the last place mean something.
        scores = scores.float()
    ids = torch.tensor([token for row in rows for token, _ in row], dtype=torch.int64)
    chosen = tuple(tokens if choices is None else choices)
    return Run(chosen, tuple(tokens), scores, ids.reshape(len(tokens), width) if width else None)


def more_scores(settings: Mapping[str, Value]) -> int:
    """How many log-probabilities a condition asks for; raises NotPossible if every run asks for as many."""
    wanted = int(settings.get("logprobs", WIDTH))
    if "logprobs" in settings and wanted <= WIDTH:
        raise NotPossible(
            f"all runs ask for {WIDTH} log-probabilities, to be compared: only more can be tried"
        )
    return wanted


def ranked(step: Top) -> Top:
    """By falling score, then by rising token, as greedy decoding ranks them."""
    return sorted(step, key=lambda each: (-each[1], each[0]))


def _filled(step: Top) -> Top:
    """`WIDTH` scores also where a server told fewer, because texts of tokens were the same."""
    return step + [(-1, -math.inf)] * (WIDTH - len(step))
