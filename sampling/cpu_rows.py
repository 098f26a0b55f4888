"""Draws of rows for numba: `reference.draw` and its report, row by row."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any, Final

import numpy as np

from sortition.sampling.columns import CODES
from sortition.sampling.cpu import CHUNK
from sortition.sampling.cpu_edits import edit, edited
from sortition.sampling.cpu_filters import best, entropy, filtered, log_total
from sortition.sampling.cpu_law import (
    FURTHEST,
    OUT,
    TOP_P,
    blocks_of,
    bound_of_filters,
    crossing_of_mass,
    cut,
    occurrences,
    peak,
    scan,
    shift_peaks,
    shifted,
    take_above,
    take_all,
    take_from,
)
from sortition.sampling.cpu_numerics import ONE, compiled, entry, exponentials, gumbel, inlined, words_of

TEMPERATURE: Final = CODES["temperature"]

SLACK: Final = 1.001
"""How much more than the greatest winning word is looked at; all rounding together is below a thousandth."""


@inlined
def draw_row(row: int, logits: Any, settings: Any, batch: Any, law: Any, drawn: Any, processed: Any) -> None:
    """Draw one row's token, and report its law; of a row that is flagged nothing is said."""
    values = logits
    if edited(row, settings, batch):
        values = law.values
        for token in range(len(values)):
            values[token] = logits[token]
        edit(values, row, settings, batch, law.counts, law.keys)
    top, flags, some_out = scan(values, law.peaks)
    drawn.flags[row] = flags
    if flags:
        return
    n = law_of(values, top, some_out, row, settings, law)
    key = np.uint64(batch.seeds[row]), np.uint64(batch.positions[row]), np.uint64(batch.stream)
    winner, total = race(law.d, law.tokens, n, *key, law.chances, law.words, law.quads)
    drawn.tokens[row] = law.tokens[winner]
    drawn.kept[row] = n
    report(row, n, law.d[winner], total, processed, law)
    report_top(row, n, total, processed, law)


@inlined
def law_of(values: Any, top: Any, some_out: bool, row: int, settings: Any, law: Any) -> int:
    """The law that a token is drawn from, of values edited and scanned; returns how many tokens are left."""
    at = settings.first[row]
    temperature = ONE
    if settings.stages[row, at] == TEMPERATURE:
        temperature = settings.temperature[row]
        at += 1
    shift_peaks(values, top, temperature, law.peaks)
    bound = bound_of_filters(row, at, settings, blocks_of(values), law)
    begins_with_top_p = settings.stages[row, at] == TOP_P and settings.min_keep[row] == 1
    total = 0
    if begins_with_top_p or (settings.joint[row] and settings.top_p[row] < 1.0):
        part, more = settings.top_p[row], settings.top_p_more[row]
        last, rank, total = crossing_of_mass(values, top, temperature, part, more, law)
    if begins_with_top_p:
        # Where all of the mass is not enough, all tokens stay.
        n = take_from(law.keys, max(last, FURTHEST), law.tokens, law.d)
        if not settings.keep_ties[row] and occurrences(last, law.d, n) > rank:
            n = cut(law.d, n, last, rank, False, law.tokens, law.d)
        at += 1
    elif bound > OUT:
        n = take_above(values, top, bound, temperature, law.peaks, law.keys, law.tokens, law.d)
    else:
        n = take_all(values, top, some_out, temperature, law.tokens, law.d)
    return filtered(n, row, at, total, settings, law)


@compiled
def race(
    d: Any, tokens: Any, n: int, seed: Any, position: Any, stream: Any, chances: Any, words: Any, quads: Any
) -> tuple[int, int]:
    """Which token has the greatest d plus noise, the first of equals; and the mass of all.

    Noise is less than -ln u, so a token is ahead of a score only if its u is below exp(d - score). Logarithms
    are taken of such alone.
    """
    winner, best_score, reach = 0, OUT, np.float32(np.inf)
    total = 0
    for begin in range(0, n, CHUNK):
        count = min(CHUNK, n - begin)
        total += exponentials(d[begin : begin + count], count, chances)
        words_of(tokens[begin : begin + count], count, position, stream, seed, quads, words)
        if not any_within(words, chances, count, reach):
            continue
        for i in range(count):
            if np.float32(words[i]) <= chances[i] * reach:
                score = d[begin + i] + gumbel(words[i])
                if score > best_score:
                    winner, best_score = begin + i, score
                    reach = np.float32(2.0**32 * SLACK * math.exp(-np.float64(score)))
    return winner, total


@inlined
def any_within(words: Any, chances: Any, count: int, reach: Any) -> bool:
    found = 0
    for i in range(count):
        found += np.float32(words[i]) <= chances[i] * reach
    return found > 0


@inlined
def report(row: int, n: int, d: Any, total: int, into: Any, law: Any) -> None:
    """ln of the probability of a token with this d, and the entropy."""
    into.logprobs[row] = np.float32(np.float64(d) - log_total(total))
    if len(into.entropy):
        into.entropy[row] = entropy(n, total, law)


@compiled
def report_top(row: int, n: int, total: int, into: Any, law: Any) -> None:
    """The most likely tokens, the lowest id first, and nothing else is left of the law."""
    count = min(into.top_tokens.shape[1], n)
    if count == 0:
        return
    n = best(n, count, False, law)
    for rank in range(count):
        d = law.d[rank]
        into.top_tokens[row, rank] = law.tokens[rank]
        into.top_d[row, rank] = d
        into.top_logprobs[row, rank] = np.float32(np.float64(d) - log_total(total))


@compiled
def report_raw(row: int, logits: Any, token: int, raw: Any, law: Any) -> None:
    """The report of the law of the logits as they came."""
    top, flags, some_out = scan(logits, law.peaks)
    if flags:
        return
    n = take_all(logits, top, some_out, ONE, law.tokens, law.d)
    total = exponentials(law.d, n, law.keys)
    d = shifted(logits[token], top) if token >= 0 and logits[token] > OUT else OUT
    report(row, n, d, total, raw, law)
    if raw.top_tokens.shape[1]:
        shift_peaks(logits, top, ONE, law.peaks)
        bound = peak(raw.top_tokens.shape[1], blocks_of(logits), law)
        if bound > OUT:
            n = take_above(logits, top, bound, ONE, law.peaks, law.keys, law.tokens, law.d)
        report_top(row, n, total, raw, law)


def digest(*names: str) -> str:
    """Of files next to this one."""
    return hashlib.sha256(b"".join(Path(__file__).with_name(name).read_bytes() for name in names)).hexdigest()


def _compiled_with(sources: str) -> Any:
    """The loop over rows.

    It is the only one that numba keeps on disk, with the others inside. Of these numba would not notice that
    they have changed, but it does notice the value of a variable that is not the function's own.
    """

    @entry
    def draw(
        logits: Any, stride: int, width: int, first: int, rows: int,
        settings: Any, batch: Any, law: Any, drawn: Any, processed: Any, raw: Any,
    ) -> None:  # fmt: skip
        """Draw some of a batch's rows.

        Args:
            logits: float32, the first of these rows and what follows it in memory.
            stride: of rows, in numbers.
            width: of rows.
            first: of these rows in the batch.
            rows: how many.
            settings, batch, law, drawn, processed, raw: see `cpu.py`.
        """
        sources  # noqa: B018
        for at in range(rows):
            row = first + at
            values = logits[at * stride : at * stride + width]
            draw_row(row, values, settings, batch, law, drawn, processed)
            if len(raw.logprobs):
                report_raw(row, values, drawn.tokens[row], raw, law)

    return draw


draw: Final = _compiled_with(
    digest(
        *("cpu.py", "cpu_rows.py", "cpu_edits.py", "cpu_filters.py", "cpu_law.py", "cpu_numerics.py"),
        *("columns.py", "draw.py", "noise.py", "numerics.py", "parameters.py", "reference.py"),
    )
)
