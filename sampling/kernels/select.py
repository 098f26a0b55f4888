"""The second read of the logits, now that the greatest is known: everything that is a sum over all tokens.

Rows without filters have their race here. Rows with filters get what `finish` needs to look only at the
tokens that can pass them: how many tokens there are at which distance, and the least of every `PEAK`.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from sortition.sampling.kernels.layout import (
    AS_LIKELY,
    BINS,
    BINS_TO_ONE,
    GREEDY,
    MODE,
    PEAK,
    REAL,
    SKIPPED,
    TEMPERATURE,
    TYPICAL_FIRST,
    UNFILTERED,
    WHOLE,
)
from sortition.sampling.kernels.numerics import (
    gumbel,
    mass,
    mass_times,
    shifted,
    tempered,
    unordered,
    words_from,
    words_of,
)
from sortition.sampling.kernels.rows import (
    LEAST_KEY,
    NO_SUCH_TOKEN,
    best_of,
    better_of,
    chunks_of,
    row_of,
    tile_of,
    top_of,
    treatment_of,
)


@triton.jit(do_not_specialize=["capacity", "stream"])
def select(
    logits, row_stride, stride, width, treatments,
    whole, real, slots, seeds, positions, stream,
    plain, words, masked, divisors, edited, edited_values, edited_count, capacity,
    best, best_token, flags,
    bins, peaks, peaks_size,
    totals, weighted, counts, scores, score_tokens,
    ENTROPY: tl.constexpr, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows, tiles + 1), as of `scan`.

    Args:
        logits to capacity: as of `edit` and `scan`.
        stream: of the noise.
        best, best_token, flags: what `scan` has left.
        bins: int32 [rows, `BINS`], to which tokens are added by their d; where they have filters.
        peaks, peaks_size: int32 [rows, n], the least bin of every `PEAK` tokens; where they have filters.
        totals, weighted: int64 [rows, tiles + 1], sums of `mass`; of `mass_times`, for entropies or a mean.
        counts: int32 [rows, tiles + 1], eligible tokens.
        scores, score_tokens: int32 [rows, tiles + 1], the winner; where they have no filters.
        PROGRAMS: a power of two, at least tiles + 1.
    """
    at, program, programs = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    wide = at.to(tl.int64)
    treatment = treatment_of(at, treatments)
    if (treatment & SKIPPED) != 0:
        return
    slot = tl.load(slots + at)
    mode = mode_of(whole + slot * WHOLE, treatment)
    top_key, _, wrong = top_of(at, best, best_token, flags, programs, PROGRAMS)
    if (mode != GREEDY) & (wrong == 0):
        row = row_of(
            at, logits, row_stride, stride, width,
            plain, words, masked, divisors, edited, edited_values, edited_count, capacity, treatment,
        )  # fmt: skip
        top = unordered(top_key)
        temperature = temperature_of(real + slot * REAL + TEMPERATURE, treatment)
        seed = tl.load(seeds + slot)
        position = tl.load(positions + at).to(tl.uint32)
        chunks, all_chunks = chunks_of(row, BLOCK)
        total, sum_of_products = tl.zeros([], tl.int64), tl.zeros([], tl.int64)
        count = tl.zeros([], tl.int32)
        key = tl.full([], LEAST_KEY, tl.int32)
        token = tl.full([], NO_SUCH_TOKEN, tl.int32)
        for chunk in range(program, tl.where(program < chunks, program + 1, all_chunks)):
            tokens, values, eligible = tile_of(row, chunk, BLOCK)
            d = shifted(tl.where(eligible, values, top), top)
            if temperature != 1.0:
                d = tempered(d, temperature)
            total += tl.sum(tl.where(eligible, mass(d), 0), axis=0)
            count += tl.sum(eligible.to(tl.int32), axis=0)
            if (mode == TYPICAL_FIRST) | ((mode == UNFILTERED) & ENTROPY):
                sum_of_products += tl.sum(tl.where(eligible, mass_times(d), 0), axis=0)
            if mode == UNFILTERED:
                if chunk < chunks:
                    noise = words_from(chunk * BLOCK, seed, position, stream, BLOCK)
                else:
                    noise = words_of(tokens, seed, position, stream)
                some_key, some_token = best_of(d + gumbel(noise), tokens, eligible)
                key, token = better_of(key, token, some_key, some_token)
            else:
                bin = bin_of(d)
                held = tl.histogram(bin, BINS, mask=eligible)
                tl.atomic_add(bins + wide * BINS + tl.arange(0, BINS), held, mask=held > 0, sem="relaxed")
                if chunk < chunks:
                    nearest = tl.where(eligible, bin, BINS).reshape(BLOCK // PEAK, PEAK)
                    block = chunk * (BLOCK // PEAK) + tl.arange(0, BLOCK // PEAK)
                    tl.store(peaks + wide * peaks_size + block, tl.min(nearest, axis=1))
        to = at * programs + program
        tl.store(totals + to, total)
        tl.store(counts + to, count)
        if mode == UNFILTERED:
            tl.store(scores + to, key)
            tl.store(score_tokens + to, token)
        if (mode == TYPICAL_FIRST) | ((mode == UNFILTERED) & ENTROPY):
            tl.store(weighted + to, sum_of_products)


@triton.jit
def mode_of(settings, treatment):
    """How a row is drawn."""
    return tl.where((treatment & AS_LIKELY) != 0, UNFILTERED, tl.load(settings + MODE))


@triton.jit
def temperature_of(temperature, treatment):
    """The temperature that stands here, float32."""
    return tl.where((treatment & AS_LIKELY) != 0, 1.0, tl.load(temperature).to(tl.float32))


@triton.jit
def bin_of(d):
    """The bin of a d, the greatest in bin 0."""
    return tl.minimum(d * -BINS_TO_ONE, BINS - 1.0).to(tl.int32)
