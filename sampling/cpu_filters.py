"""Filters of one row for numba: `reference.FILTER` on the arrays of `cpu_law.py`."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from sortition.sampling.columns import CODES, END, GREEDY
from sortition.sampling.cpu_law import MIN_P, TOP_K, TOP_P, crossing, cut, goal_of, kept, nth, temper, weigh
from sortition.sampling.cpu_numerics import (
    MASS_ONE,
    ZERO,
    compiled,
    exp,
    inlined,
    log_of,
    mass_times,
    rounded,
)
from sortition.sampling.reference import SPREAD_BITS

TEMPERATURE: Final = CODES["temperature"]
TOP_N_SIGMA: Final = CODES["top_n_sigma"]
TYPICAL: Final = CODES["typical"]
EPSILON: Final = CODES["epsilon"]
ETA: Final = CODES["eta"]


@compiled
def filtered(n: int, row: int, at: int, total: int, settings: Any, law: Any) -> int:
    """Apply a row's filters from one of its stages on; returns how many tokens are left.

    Args:
        total: the mass that top-p takes its share of, 0 for that of what is left.
    """
    while n > 1:
        stage = settings.stages[row, at]
        at += 1
        if stage == END:
            break
        if stage == GREEDY:
            n = likeliest(n, law)
        elif stage == TEMPERATURE:
            temper(law.d, n, settings.temperature[row])
        elif stage == TOP_K:
            n = best(n, settings.top_k[row], settings.keep_ties[row], law)
        elif stage == TOP_P:
            whole = weigh(law.d, n, law.keys, law.mass)
            part = settings.top_p[row] * np.float64(total if total else whole)
            n = share(n, law.d, part, settings.top_p_more[row], row, settings, law)
        elif stage == TYPICAL:
            n = typical(n, row, settings, law)
        else:
            mark(n, stage, row, settings, law)
            mark_best(n, row, settings, law)
            n = kept(n, law.keep, law.tokens, law.d)
    return n


@inlined
def likeliest(n: int, law: Any) -> int:
    """Leave the first token whose d is 0."""
    at = 0
    while law.d[at] < ZERO:
        at += 1
    law.tokens[0], law.d[0] = law.tokens[at], law.d[at]
    return 1


@inlined
def best(n: int, count: int, keep_ties: bool, law: Any) -> int:
    """`reference.best`."""
    if count < n:
        last, rank = nth(law.d, n, count, law)
        n = cut(law.d, n, last, rank, keep_ties, law.tokens, law.d)
    return n


@inlined
def share(n: int, keys: Any, part: float, more: bool, row: int, settings: Any, law: Any) -> int:
    """`reference.share`, of `mass`."""
    goal = goal_of(part, more)
    last, rank = crossing(keys, law.mass, n, goal, law.some_keys, law.some_mass, law.bins, law.words)
    least = min(settings.min_keep[row], n)
    if least > 1:
        last_of_least, rank_of_least = nth(keys, n, least, law)
        if last_of_least < last or (last_of_least == last and rank_of_least > rank):
            last, rank = last_of_least, rank_of_least
    return cut(keys, n, last, rank, settings.keep_ties[row], law.tokens, law.d)


@compiled
def typical(n: int, row: int, settings: Any, law: Any) -> int:
    """`reference._typical`; the greatest that is left has a d of 0 again."""
    total = np.float64(weigh(law.d, n, law.keys, law.mass))
    mean = np.float32(np.float64(total_mass_times(law.d, n)) / total)
    for i in range(n):
        law.keys[i] = -abs(law.d[i] - mean)
    n = share(n, law.keys, settings.typical[row] * total, settings.typical_more[row], row, settings, law)
    top = law.d[0]
    for i in range(n):
        top = max(top, law.d[i])
    for i in range(n):
        law.d[i] = law.d[i] - top
    return n


@compiled
def mark(n: int, stage: int, row: int, settings: Any, law: Any) -> None:
    """Mark what a filter keeps that asks each token by itself."""
    if stage == MIN_P:
        mark_near(law.d, n, np.float64(settings.min_p[row]), law.keep)
    elif stage == TOP_N_SIGMA:
        mark_near(law.d, n, -settings.top_n_sigma[row] * deviation(law.d, n), law.keep)
    else:
        total = weigh(law.d, n, law.keys, law.mass)
        least = settings.epsilon[row]
        if stage == ETA:
            spread = np.float64(exp(min(-entropy(n, total, law), ZERO)))
            least = min(settings.eta[row], math.sqrt(settings.eta[row]) * spread)
        least = least * np.float64(total)
        for i in range(n):
            law.keep[i] = np.float64(law.mass[i]) >= least


@compiled
def mark_near(d: Any, n: int, bound: float, keep: Any) -> None:
    for i in range(n):
        keep[i] = np.float64(d[i]) >= bound


@inlined
def mark_best(n: int, row: int, settings: Any, law: Any) -> None:
    """`reference._or_best`."""
    least = min(settings.min_keep[row], n)
    last, rank = ZERO, n
    if least > 1:
        last, rank = nth(law.d, n, least, law)
    mark_first(law.d, n, last, rank, settings.keep_ties[row], law.keep)


@compiled
def mark_first(d: Any, n: int, last: Any, rank: int, keep_ties: bool, keep: Any) -> None:
    equals = 0
    for i in range(n):
        equal = d[i] == last
        keep[i] |= (d[i] > last) | (equal & (keep_ties | (equals < rank))) | (d[i] == ZERO)
        equals += equal


@compiled
def deviation(d: Any, n: int) -> float:
    """The standard deviation of d as `reference._top_n_sigma` takes it."""
    least = ZERO
    for i in range(n):
        least = min(least, d[i])
    _, exponent = math.frexp(np.float64(least))
    scale = math.ldexp(1.0, SPREAD_BITS - exponent)
    total, squares = 0, 0
    for i in range(n):
        unit = rounded(np.float64(d[i]) * scale)
        total += unit
        squares += unit * unit
    mean = np.float64(total) / np.float64(n)
    square = np.float64(squares) / np.float64(n)
    return math.sqrt(max(square - mean * mean, 0.0)) / scale


@compiled
def total_mass_times(d: Any, n: int) -> int:
    """The sum of `numerics.mass_times`."""
    total = 0
    for i in range(n):
        total += mass_times(d[i])
    return total


@inlined
def log_total(total: int) -> float:
    """`reference.Law._log_total` of a mass."""
    return log_of(np.float64(total)) - log_of(MASS_ONE)


@inlined
def entropy(n: int, total: int, law: Any) -> Any:
    """`reference.Law.entropy` of a law of this mass."""
    return np.float32(log_total(total) - np.float64(total_mass_times(law.d, n)) / np.float64(total))
