"""The filters of a row, exactly, and the race of the tokens that they leave.

Where a filter ends is found by bisection over ranks (see `ranks.py`), each step of which is a sum over the
candidates. These are a list, of the tokens in the bins that the first filters can reach; or, where that would
be too long, the whole row.

A *source* is where candidates come from: the row, its greatest logit, its temperature before the filters, the
list and how many are in it, -1 for the whole row. What filters have left of it is a *law*: the row's turns,
how many of them there have been, and the last rank after them.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from sortition.sampling.kernels.layout import (
    BINS,
    BINS_TO_ONE,
    EPSILON,
    ETA,
    GREEDY,
    JOINT,
    KEEP_TIES,
    LATE_TEMPERATURE,
    MIN_KEEP,
    MIN_P,
    PEAK,
    REAL,
    ROOT_OF_ETA,
    SKIPPED,
    STAGE_END,
    STAGE_EPSILON,
    STAGE_ETA,
    STAGE_GREEDY,
    STAGE_MIN_P,
    STAGE_TEMPERATURE,
    STAGE_TOP_K,
    STAGE_TOP_N_SIGMA,
    STAGE_TOP_P,
    STAGE_TYPICAL,
    TEMPERATURE,
    TOP_K,
    TOP_N_SIGMA,
    TOP_P,
    TOP_P_MORE,
    TYPICAL,
    TYPICAL_MORE,
    UNFILTERED,
    WHOLE,
)
from sortition.sampling.kernels.numerics import (
    FURTHEST,
    OUT,
    exp,
    gumbel,
    log_total,
    mass,
    mass_times,
    shifted,
    tempered,
    unordered,
    words_of,
)
from sortition.sampling.kernels.ranks import (
    LAST,
    TOKENS,
    TURNS_SIZE,
    add_turn,
    d_at,
    distance_rank_of,
    rank_of,
    turned,
)
from sortition.sampling.kernels.rows import (
    LEAST_KEY,
    NO_SUCH_TOKEN,
    best_of,
    better_of,
    chunks_of,
    divided,
    row_of,
    tile_of,
    top_of,
    treated,
    treatment_of,
)
from sortition.sampling.kernels.select import bin_of, mode_of, temperature_of

FAN = tl.constexpr(8)
"""Parts that a step of the bisection divides what is left into."""

NO_TOKEN = tl.constexpr(-1)
SPREAD_BITS = tl.constexpr(21)
"""As in `reference.py`."""
ROUNDER = tl.constexpr(1.5 * 2.0**52)
"""Added to a float64 below 2^51, it leaves the nearest integer in the low bits."""
ROUNDER_BITS = tl.constexpr(0x4338000000000000)


@triton.jit(do_not_specialize=["capacity", "stream"])
def finish(
    logits, row_stride, stride, width, treatments,
    whole, real, filters, filters_size, slots, seeds, positions, stream,
    plain, words, masked, divisors, edited, edited_values, edited_count, capacity,
    best, best_token, flags,
    bins, peaks, peaks_size,
    totals, weighted, counts, scores, score_tokens, programs,
    blocks, candidates, room,
    tokens, kept, row_flags, logprobs, entropies, turns, lasts, sums, firsts, tops, last_treatments,
    ENTROPY: tl.constexpr, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows).

    Args:
        logits to score_tokens: as of `select`.
        filters, filters_size: int8 [slots, n], the filters of each row in its order, then `END`.
        programs: how many `scan` and `select` had for a row.
        blocks: int32 [rows, peaks_size], of any content.
        candidates, room: int64 [rows, room], of any content.
        tokens, kept: int64 [rows], results.
        row_flags: uint8 [rows], results.
        logprobs, entropies: float32 [rows], results; entropies only with `ENTROPY`.
        turns: float64 [rows, `TURNS_SIZE`], results; see `ranks.py`.
        lasts, sums: int64 [rows], results: the rank of the last token of the law, -1 for what is no law; its
            mass.
        firsts, tops: int64, float32 [rows], results: the likeliest token of the law; the greatest logit.
        last_treatments: int32 [rows], results: under which treatment that is so.
        PROGRAMS: a power of two, at least `programs`.
    """
    at = tl.program_id(0)
    wide = at.to(tl.int64)
    treatment = treatment_of(at, treatments)
    if (treatment & SKIPPED) != 0:
        return
    slot = tl.load(slots + at)
    settings, reals = whole + slot * WHOLE, real + slot * REAL
    mode = mode_of(settings, treatment)
    top_key, token, wrong = top_of(at, best, best_token, flags, programs, PROGRAMS)
    some = tl.arange(0, PROGRAMS)
    # What nobody has written, in rows that are flagged or greedy, nobody looks at.
    there = some < programs
    total = tl.sum(tl.load(totals + at * programs + some, mask=there, other=0), axis=0)
    left = tl.sum(tl.load(counts + at * programs + some, mask=there, other=0), axis=0).to(tl.int64)
    product = tl.zeros([], tl.int64)
    d = tl.zeros([], tl.float32)
    last = tl.full([], -1, tl.int64)
    row_turns = turns + wide * TURNS_SIZE
    turn_count = tl.zeros([], tl.int32)
    tl.store(firsts + at, token.to(tl.int64))
    tl.store(tops + at, unordered(top_key))
    if wrong != 0:
        token = tl.full([], NO_TOKEN, tl.int32)
        left = tl.zeros([], tl.int64)
    elif mode == GREEDY:
        total = mass(d)
        left = tl.full([], 1, tl.int64)
        last = rank_of(d, token)
    else:
        row = row_of(
            at, logits, row_stride, stride, width,
            plain, words, masked, divisors, edited, edited_values, edited_count, capacity, treatment,
        )  # fmt: skip
        top = unordered(top_key)
        temperature = temperature_of(reals + TEMPERATURE, treatment)
        last = tl.full([], LAST, tl.int64)
        product = tl.sum(tl.load(weighted + at * programs + some, mask=there, other=0), axis=0)
        if mode != UNFILTERED:
            program = filters + slot * filters_size
            row_bins = bins + wide * BINS
            reach, reached = bound(settings, reals, program, row_bins, total, product)
            listed = reached <= room
            source = (row, top, temperature, candidates + wide * room, tl.where(listed, reached, -1))
            if listed:
                row_peaks, row_blocks = peaks + wide * peaks_size, blocks + wide * peaks_size
                collect(source, reach, row_peaks, peaks_size, row_blocks, BLOCK)
            last, turn_count = filtered(source, settings, reals, program, row_turns, total, product, BLOCK)
            law = (row_turns, turn_count, last)
            noise = (tl.load(seeds + slot), tl.load(positions + at).to(tl.uint32), stream)
            token, d, left, total, product, furthest = race(source, law, noise, ENTROPY, BLOCK)
            # Ranks that filters give tell candidates from each other, but not from tokens that were never
            # listed.
            if turn_count == 0:
                last = furthest
            else:
                tl.store(row_turns + 1, furthest.to(tl.float64))
                likeliest = first_within(source, law, tl.zeros([], tl.float32), LAST, BLOCK) & TOKENS
                tl.store(firsts + at, likeliest)
        else:
            keys = tl.load(scores + at * programs + some, mask=there, other=LEAST_KEY)
            runners = tl.load(score_tokens + at * programs + some, mask=there, other=NO_SUCH_TOKEN)
            token = tl.min(tl.where(keys == tl.max(keys, axis=0), runners, NO_SUCH_TOKEN), axis=0)
            d = d_of(row, token, top, temperature, BLOCK)
    tl.store(tokens + at, token.to(tl.int64))
    tl.store(kept + at, left)
    tl.store(row_flags + at, wrong.to(tl.uint8))
    tl.store(row_turns, turn_count.to(tl.float64))
    tl.store(lasts + at, last)
    tl.store(sums + at, tl.where(wrong == 0, total, 0))
    tl.store(last_treatments + at, treatment)
    if wrong != 0:
        tl.store(logprobs + at, OUT)
        if ENTROPY:
            tl.store(entropies + at, float("nan"))
    else:
        tl.store(logprobs + at, (d.to(tl.float64) - log_total(total)).to(tl.float32))
        if ENTROPY:
            tl.store(entropies + at, entropy(total, product))


@triton.jit
def d_of(row, token, top, temperature, BLOCK: tl.constexpr):
    """The d of one eligible token."""
    plain, chunks = chunks_of(row, BLOCK)
    value = tl.full([], OUT, tl.float32)
    chunk = token // BLOCK
    tokens, values, eligible = tile_of(row, chunk, BLOCK)
    value = tl.max(tl.where(eligible & (tokens == token), values, OUT), axis=0)
    for chunk in range(plain, chunks):
        tokens, values, eligible = tile_of(row, chunk, BLOCK)
        value = tl.maximum(value, tl.max(tl.where(eligible & (tokens == token), values, OUT), axis=0))
    return tempered(shifted(value, top), temperature)


@triton.jit
def entropy(total, product):
    """`reference.Law.entropy` of sums of mass, and of mass times d."""
    return (log_total(total) - product.to(tl.float64) / total.to(tl.float64)).to(tl.float32)


@triton.jit
def goal_of(part, more):
    """The least whole mass that is at least this part of a total, or more than it; at least 1."""
    whole = part.to(tl.int64)
    short = tl.where(more != 0, whole.to(tl.float64) <= part, whole.to(tl.float64) < part)
    return tl.maximum(whole + short.to(tl.int64), 1)


@triton.jit
def bound(settings, reals, program, row_bins, total, product):
    """The last bin that the first filters can reach, and how many tokens there are up to it.

    Filters that keep the first tokens keep the same ones whether or not what is behind has been cut, but for
    those that ask for the total. So does `typical`, where it comes first.
    """
    bin = tl.arange(0, BINS)
    held = tl.load(row_bins + bin)
    up_to = tl.cumsum(held, axis=0)
    least = (up_to < tl.load(settings + MIN_KEEP)).to(tl.int32)
    reach = tl.full([], BINS - 1, tl.int32)
    joint = tl.load(settings + JOINT) != 0
    stage = 0
    code = tl.load(program)
    while (code == STAGE_TOP_K) | (code == STAGE_MIN_P) | ((code == STAGE_TOP_P) & ((stage == 0) | joint)):
        if code == STAGE_TOP_K:
            short = (up_to < tl.load(settings + TOP_K)).to(tl.int32)
        elif code == STAGE_MIN_P:
            cut = tl.minimum(tl.load(reals + MIN_P).to(tl.float32), 0.0)
            short = (bin < bin_of(cut)).to(tl.int32)
        else:
            # A token has no more mass than at the near end of its bin; the goal is reached where what is
            # behind cannot have more than is left.
            most = held.to(tl.int64) * mass(bin.to(tl.float32) * (-1.0 / BINS_TO_ONE))
            behind = tl.sum(most, axis=0) - tl.cumsum(most, axis=0)
            goal = goal_of(tl.load(reals + TOP_P) * total.to(tl.float64), tl.load(settings + TOP_P_MORE))
            short = (total - behind < goal).to(tl.int32)
        needed = tl.sum(tl.maximum(short, least), axis=0)
        reach = tl.minimum(reach, needed)
        stage += 1
        code = tl.load(program + stage)
    if (stage == 0) & (code == STAGE_TYPICAL):
        reach = typical_bound(settings, reals, held, total, mean_of(total, product))
    return reach, tl.sum(tl.where(bin <= reach, held, 0), axis=0)


@triton.jit
def mean_of(total, product):
    """The mean of d, float32, of sums of mass, and of mass times d."""
    return (product.to(tl.float64) / total.to(tl.float64)).to(tl.float32)


@triton.jit
def typical_bound(settings, reals, held, total, centre):
    """The last bin that `typical` can reach, if no filter comes before it.

    Args:
        held: int32 [BINS], how many tokens the bins have.
        total: the mass of all tokens.
        centre: from which distances are taken.
    """
    bin = tl.arange(0, BINS)
    upper = bin.to(tl.float32) * (-1.0 / BINS_TO_ONE)
    lower = tl.where(bin == BINS - 1, FURTHEST, (bin + 1).to(tl.float32) * (-1.0 / BINS_TO_ONE))
    furthest = tl.maximum(centre - lower, upper - centre)
    # A token has no more mass than at the near end of its bin.
    most = held.to(tl.int64) * mass(upper)
    goal = goal_of(tl.load(reals + TYPICAL) * total.to(tl.float64), tl.load(settings + TYPICAL_MORE))
    min_keep = tl.load(settings + MIN_KEEP)
    first, last = tl.zeros([], tl.int32), tl.full([], BINS - 1, tl.int32)
    while first < last:
        middle = (first + last) // 2
        within = furthest <= centre + (middle + 1).to(tl.float32) * (1.0 / BINS_TO_ONE)
        behind = tl.sum(tl.where(within, 0, most), axis=0)
        count = tl.sum(tl.where(within, held, 0), axis=0)
        enough = (total - behind >= goal) & (count >= min_keep)
        first = tl.where(enough, first, middle + 1)
        last = tl.where(enough, middle, last)
    # What is as far as the end of this bin may be in the next.
    return tl.minimum(last + 1, BINS - 1)


@triton.jit
def collect(source, reach, row_peaks, peaks_size, row_blocks, BLOCK: tl.constexpr):
    """Make a list of the tokens in the bins up to one, reading only where there are some."""
    row, top, temperature, candidates, _ = source
    logits, stride, width, plain, masked, divisor, _, _, _, treatment = row
    near = tl.zeros([], tl.int32)
    for first in range(0, peaks_size, BLOCK):
        at = first + tl.arange(0, BLOCK)
        peak = tl.load(row_peaks + at, mask=at < peaks_size, other=BINS)
        is_near = (peak <= reach).to(tl.int32)
        to = near + tl.cumsum(is_near, axis=0) - 1
        tl.store(row_blocks + to, at, mask=is_near != 0)
        near += tl.sum(is_near, axis=0)
    tl.debug_barrier()
    GROUP: tl.constexpr = BLOCK // PEAK
    count = tl.zeros([], tl.int32)
    for first in range(0, near, GROUP):
        at = first + tl.arange(0, BLOCK) // PEAK
        block = tl.load(row_blocks + at, mask=at < near, other=0)
        tokens = block * PEAK + tl.arange(0, BLOCK) % PEAK
        inside = (at < near) & (tokens < width)
        values = tl.load(logits + tokens.to(tl.int64) * stride, mask=inside, other=OUT).to(tl.float32)
        values = tl.where(inside, divided(treated(values, treatment), divisor), OUT)
        if masked != 0:
            word = tl.load(plain + (tokens >> 5), mask=inside, other=0)
            values = tl.where(((word >> (tokens & 31)) & 1) != 0, values, OUT)
        count = append(tokens, values + 0.0, top, temperature, reach, candidates, count)
    plain_chunks, chunks = chunks_of(row, BLOCK)
    for chunk in range(plain_chunks, chunks):
        tokens, values, _eligible = tile_of(row, chunk, BLOCK)
        count = append(tokens, values, top, temperature, reach, candidates, count)
    tl.debug_barrier()


@triton.jit
def append(tokens, values, top, temperature, reach, candidates, count):
    """Add those of these tokens to the list that are in the bins up to one; returns how many it has then."""
    eligible = values != OUT
    d = tempered(shifted(tl.where(eligible, values, top), top), temperature)
    taken = (eligible & (bin_of(d) <= reach)).to(tl.int32)
    to = count + tl.cumsum(taken, axis=0) - 1
    tl.store(candidates + to, rank_of(d, tokens), mask=taken != 0)
    return count + tl.sum(taken, axis=0)


@triton.jit
def steps_of(source, BLOCK: tl.constexpr):
    """How many tiles the candidates have."""
    row, _, _, _, count = source
    _, chunks = chunks_of(row, BLOCK)
    return tl.where(count >= 0, tl.cdiv(count, BLOCK), chunks)


@triton.jit
def step_of(source, step, law, BLOCK: tl.constexpr):
    """One tile of candidates: their ranks, d, which of them the law has, and their ranks before any turn."""
    row, top, temperature, candidates, count = source
    turns, turn_count, last = law
    if count >= 0:
        at = step * BLOCK + tl.arange(0, BLOCK)
        rank = tl.load(candidates + at, mask=at < count, other=LAST + 1)
    else:
        tokens, values, eligible = tile_of(row, step, BLOCK)
        d = tempered(shifted(tl.where(eligible, values, top), top), temperature)
        rank = tl.where(eligible, rank_of(d, tokens), LAST + 1)
    first_rank, d, inside = rank, d_at(rank), rank <= LAST
    if turn_count > 0:
        d, inside = turned(d, rank & TOKENS, inside, turns, turn_count)
        rank = rank_of(d, rank & TOKENS)
    return rank, d, inside & (rank <= last), first_rank


@triton.jit
def first_of(source, law, goal, by_mass, keep_ties, centre, by_distance, BLOCK: tl.constexpr):
    """A rank up to which the first candidates weigh as much as the goal, or that of the last of all.

    Args:
        goal: of their masses, or of how many they are.
        keep_ties: whether also what equals the last of them is left.
        centre, by_distance: whether ranks are those by distance from it.
    """
    least, most = tl.zeros([], tl.int64), tl.where(by_distance, LAST, law[2])
    before = tl.zeros([], tl.int32)
    part = tl.arange(0, FAN)
    while least < most:
        size = (most - least) // FAN + 1
        ends = least + (part + 1) * size - 1
        count, weight = tl.zeros([FAN], tl.int32), tl.zeros([FAN], tl.int64)
        for step in range(steps_of(source, BLOCK)):
            rank, d, inside, _ = step_of(source, step, law, BLOCK)
            if by_distance:
                rank = distance_rank_of(d, rank & TOKENS, centre)
            up_to = (rank[:, None] <= ends[None, :]) & inside[:, None]
            count += tl.sum(up_to.to(tl.int32), axis=0)
            if by_mass:
                weight += tl.sum(tl.where(up_to, mass(d)[:, None], 0), axis=0)
        if by_mass == 0:
            weight = count.to(tl.int64)
        short = tl.sum((weight < goal).to(tl.int32), axis=0)
        least = tl.minimum(least + short * size, most)
        most = tl.minimum(least + size - 1, most)
        before = tl.maximum(before, tl.max(tl.where(part < short, count, 0), axis=0))
        after = tl.max(tl.where(part == short, count, 0), axis=0)
        # With one candidate left, any rank from there to the next tells the same tokens, if not their equals.
        if (after - before == 1) & (keep_ties == 0):
            least = most
    return tl.where(keep_ties != 0, most | TOKENS, most)


@triton.jit
def first_within(source, law, centre, reach, BLOCK: tl.constexpr):
    """The rank of the likeliest token that is within reach of a centre."""
    first = tl.full([], LAST, tl.int64)
    for step in range(steps_of(source, BLOCK)):
        rank, d, inside, _ = step_of(source, step, law, BLOCK)
        inside &= distance_rank_of(d, rank & TOKENS, centre) <= reach
        first = tl.minimum(first, tl.min(tl.where(inside, rank, LAST), axis=0))
    return first


@triton.jit
def sums(source, law, BLOCK: tl.constexpr):
    """Sums of mass, and of mass times d, of a law."""
    total, product = tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    for step in range(steps_of(source, BLOCK)):
        _, d, inside, _ = step_of(source, step, law, BLOCK)
        total += tl.sum(tl.where(inside, mass(d), 0), axis=0)
        product += tl.sum(tl.where(inside, mass_times(d), 0), axis=0)
    return total, product


@triton.jit
def filtered(source, settings, reals, program, turns, all_mass, all_products, BLOCK: tl.constexpr):
    """The rank of the last token that a row's filters leave, and how many turns there have been.

    Args:
        turns: where to write them.
        all_mass: the mass of all tokens.
        all_products: the sum of mass times d, if `typical` is the first filter.
    """
    keep_ties = tl.load(settings + KEEP_TIES)
    min_keep = tl.load(settings + MIN_KEEP)
    joint = tl.load(settings + JOINT) != 0
    last = tl.full([], LAST, tl.int64)
    turn_count = tl.zeros([], tl.int32)
    stage = 0
    code = tl.load(program)
    while code != STAGE_END:
        law = (turns, turn_count, last)
        is_typical = code == STAGE_TYPICAL
        by_mass = (code == STAGE_TOP_P) | is_typical
        asks_for_total = (
            (by_mass & (stage > 0) & (is_typical | (joint == 0)))
            | (code == STAGE_EPSILON)
            | (code == STAGE_ETA)
        )
        total, product = all_mass, all_products
        if asks_for_total:
            total, product = sums(source, law, BLOCK)
        share, more = tl.load(reals + TOP_P), tl.load(settings + TOP_P_MORE)
        centre, reach = tl.zeros([], tl.float32), tl.full([], LAST, tl.int64)
        if is_typical:
            share, more = tl.load(reals + TYPICAL), tl.load(settings + TYPICAL_MORE)
            centre = mean_of(total, product)
        goal = goal_of(share * total.to(tl.float64), more)
        # What every other filter keeps are the likeliest, and what equals them.
        end = tl.full([], TOKENS, tl.int64)
        if by_mass | (code == STAGE_TOP_K):
            end = tl.zeros([], tl.int64)
        elif code == STAGE_MIN_P:
            end = rank_of(tl.minimum(tl.load(reals + MIN_P).to(tl.float32), 0.0), TOKENS)
        elif (code == STAGE_EPSILON) | (code == STAGE_ETA) | (code == STAGE_TOP_N_SIGMA):
            end = tl.maximum(end, reach_of(source, code, law, total, product, reals, BLOCK))
        cuts = (code != STAGE_TEMPERATURE) & (code != STAGE_GREEDY)
        # By mass if the filter does, and then by how many it leaves at least.
        for by_count in range(2):
            if by_count != 0:
                goal = tl.where(code == STAGE_TOP_K, tl.load(settings + TOP_K), min_keep)
            if tl.where(by_count != 0, cuts & ((code == STAGE_TOP_K) | (min_keep > 1)), by_mass):
                found = first_of(source, law, goal, by_count == 0, keep_ties, centre, is_typical, BLOCK)
                end = tl.maximum(end, found)
        if is_typical:
            reach = end
        first = tl.zeros([], tl.int64)
        if is_typical | (code == STAGE_GREEDY):
            first = first_within(source, law, centre, reach, BLOCK)
        if is_typical | (code == STAGE_TEMPERATURE):
            divisor = tl.load(reals + LATE_TEMPERATURE).to(tl.float32)
            divisor = tl.where(is_typical, 1.0, divisor)
            add_turn(turns, turn_count, last, centre, reach, d_at(first), divisor)
            turn_count += 1
            last = tl.full([], LAST, tl.int64)
        else:
            last = tl.minimum(last, tl.where(code == STAGE_GREEDY, first, end))
        stage += 1
        code = tl.load(program + stage)
    return last, turn_count


@triton.jit
def reach_of(source, code, law, total, product, reals, BLOCK: tl.constexpr):
    """The last rank that epsilon, eta or top-n-sigma keeps, with all that equals it.

    A greater d never has less mass, which has been checked for all float32.
    """
    if code == STAGE_TOP_N_SIGMA:
        bound = -tl.load(reals + TOP_N_SIGMA) * deviation(source, law, BLOCK)
    else:
        bound = tl.load(reals + EPSILON)
        if code == STAGE_ETA:
            spread = exp(tl.minimum(-entropy(total, product), 0.0)).to(tl.float64)
            bound = tl.minimum(tl.load(reals + ETA), tl.load(reals + ROOT_OF_ETA) * spread)
        bound = bound * total.to(tl.float64)
    reach = tl.zeros([], tl.int64)
    for step in range(steps_of(source, BLOCK)):
        rank, d, inside, _ = step_of(source, step, law, BLOCK)
        if code == STAGE_TOP_N_SIGMA:  # noqa: SIM108
            value = d.to(tl.float64)
        else:
            value = mass(d).to(tl.float64)
        reach = tl.maximum(reach, tl.max(tl.where(inside & (value >= bound), rank, 0), axis=0))
    return reach | TOKENS


@triton.jit
def deviation(source, law, BLOCK: tl.constexpr):
    """The standard deviation of d as `reference._top_n_sigma` takes it, float64."""
    furthest = tl.zeros([], tl.int64)
    for step in range(steps_of(source, BLOCK)):
        rank, _, inside, _ = step_of(source, step, law, BLOCK)
        furthest = tl.maximum(furthest, tl.max(tl.where(inside, rank, 0), axis=0))
    least = d_at(furthest)
    exponent = ((-least).to(tl.float64).to(tl.int64, bitcast=True) >> 52) - 1022
    exponent = tl.where(least == 0.0, 0, exponent)
    scale = ((-exponent + (SPREAD_BITS + 1023)) << 52).to(tl.float64, bitcast=True)
    count, total, squares = tl.zeros([], tl.int64), tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    for step in range(steps_of(source, BLOCK)):
        _, d, inside, _ = step_of(source, step, law, BLOCK)
        units = (d.to(tl.float64) * scale + ROUNDER).to(tl.int64, bitcast=True)
        units = tl.where(inside, units - ROUNDER_BITS, 0)
        count += tl.sum(inside.to(tl.int64), axis=0)
        total += tl.sum(units, axis=0)
        squares += tl.sum(units * units, axis=0)
    mean = total.to(tl.float64) / count.to(tl.float64)
    square = squares.to(tl.float64) / count.to(tl.float64)
    return tl.sqrt(tl.maximum(square - mean * mean, 0.0)) / scale


@triton.jit
def race(source, law, noise, ENTROPY: tl.constexpr, BLOCK: tl.constexpr):
    """Which token of a law wins, its d, how many there are, their sums, and the last rank before any turn."""
    seed, position, stream = noise
    count, total, product = tl.zeros([], tl.int64), tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    key = tl.full([], LEAST_KEY, tl.int32)
    token = tl.full([], NO_SUCH_TOKEN, tl.int32)
    winning_d = tl.full([], OUT, tl.float32)
    furthest = tl.zeros([], tl.int64)
    for step in range(steps_of(source, BLOCK)):
        rank, d, inside, first_rank = step_of(source, step, law, BLOCK)
        tokens = (rank & TOKENS).to(tl.int32)
        count += tl.sum(inside.to(tl.int64), axis=0)
        total += tl.sum(tl.where(inside, mass(d), 0), axis=0)
        furthest = tl.maximum(furthest, tl.max(tl.where(inside, first_rank, 0), axis=0))
        if ENTROPY:
            product += tl.sum(tl.where(inside, mass_times(d), 0), axis=0)
        score = d + gumbel(words_of(tokens, seed, position, stream))
        some_key, some_token = best_of(score, tokens, inside)
        some_d = tl.max(tl.where(inside & (tokens == some_token), d, OUT), axis=0)
        key, token = better_of(key, token, some_key, some_token)
        winning_d = tl.where(token == some_token, some_d, winning_d)
    return token, winning_d, count, total, product, furthest
