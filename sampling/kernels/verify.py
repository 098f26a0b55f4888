"""Verification of drafts: which of a row's chain stand, and the token after them.

    weigh   one program a place   where its law ends, how much that is, and what it says of the draft there
    verify  one program a row     the drafts in order, and what is drawn where they end

Both come after the draw of every place, `select` of which has binned the logits. A place has the law that
`finish` draws from: all tokens up to a rank. With a refused draft, the next token is drawn from what the
target has more than the drafter, which `verify` finds by going through the one row of logits twice.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from sortition.sampling import noise, verification
from sortition.sampling.kernels.finish import (
    LAST,
    NO_TOKEN,
    ROUNDER,
    bound,
    collect,
    d_at,
    filtered,
    rank_of,
    step_of,
    steps_of,
)
from sortition.sampling.kernels.layout import (
    BINS,
    FILTERED,
    GREEDY,
    LATE_TEMPERATURE,
    MODE,
    REAL,
    TEMPERATURE,
    WHOLE,
)
from sortition.sampling.kernels.numerics import (
    MASS_ONE,
    OUT,
    gumbel,
    log,
    log_total,
    mass,
    shifted,
    tempered,
    unordered,
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
)

LIKELIEST = tl.constexpr(verification.GREEDY)
TOKEN = tl.constexpr(verification.TOKEN)
DISTINCT = tl.constexpr(verification.DISTINCT)
COIN = tl.constexpr(noise.COIN)
"""Stream of coins."""
COIN_UNIT = tl.constexpr(2.0**-52)


@triton.jit(do_not_specialize=["capacity"])
def weigh(
    logits, row_stride, stride, width,
    whole, real, filters, filters_size, slots,
    plain, words, masked, divisors, edited, edited_values, edited_count, capacity,
    best, best_token, flags,
    bins, peaks, peaks_size, totals, programs,
    blocks, candidates, room,
    asked,
    lasts, sums, weights, logprobs, likeliest,
    PROGRAMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (places).

    Args:
        logits to room: as of `finish`, but for what it does not name.
        asked: int64 [places], a token of each, or a negative number.
        lasts: int64 [places], results: the rank of the last token of the law, -1 for what is no law.
        sums: int64 [places], results: its mass.
        weights: int64 [places], results: that of the token that is asked for, 0 if it is none of the law.
        logprobs: float32 [places], results: ln of that token's probability.
        likeliest: int64 [places], results: the likeliest token.
    """
    at = tl.program_id(0)
    wide = at.to(tl.int64)
    slot = tl.load(slots + at)
    settings, reals = whole + slot * WHOLE, real + slot * REAL
    top_key, first, wrong = top_of(at, best, best_token, flags, programs, PROGRAMS)
    last = tl.full([], -1, tl.int64)
    total, weight = tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    logprob = tl.full([], OUT, tl.float32)
    if wrong == 0:
        mode = tl.load(settings + MODE)
        top = unordered(top_key)
        temperature, late_temperature = temperatures_of(reals)
        row = row_of(
            at, logits, row_stride, stride, width,
            plain, words, masked, divisors, edited, edited_values, edited_count, capacity,
            tl.zeros([], tl.int32),
        )  # fmt: skip
        if mode == GREEDY:
            last = rank_of(tl.zeros([], tl.float32), first)
            total = mass(tl.zeros([], tl.float32))
        else:
            some = tl.arange(0, PROGRAMS)
            total = tl.sum(tl.load(totals + at * programs + some, mask=some < programs, other=0), axis=0)
            last = tl.full([], LAST, tl.int64)
            if mode == FILTERED:
                program = filters + slot * filters_size
                reach, reached = bound(settings, reals, program, bins + wide * BINS, total)
                listed = reached <= room
                source = (row, top, temperature, candidates + wide * room, tl.where(listed, reached, -1))
                if listed:
                    row_peaks, row_blocks = peaks + wide * peaks_size, blocks + wide * peaks_size
                    collect(source, reach, row_peaks, peaks_size, row_blocks, BLOCK)
                last = filtered(source, settings, reals, program, total, BLOCK)
                last, total = end_of(source, last, late_temperature, BLOCK)
        rank, d = place_of(row, tl.load(asked + at), top, temperature, BLOCK)
        if rank <= last:
            d = tempered(d, late_temperature)
            weight = mass(d)
            logprob = (d.to(tl.float64) - log_total(total)).to(tl.float32)
    tl.store(lasts + at, last)
    tl.store(sums + at, total)
    tl.store(weights + at, weight)
    tl.store(logprobs + at, logprob)
    tl.store(likeliest + at, tl.where(wrong == 0, first, NO_TOKEN).to(tl.int64))


@triton.jit(do_not_specialize=["capacity", "drafts_capacity", "stream"])
def verify(
    logits, row_stride, stride, width, real, slots,
    plain, words, masked, divisors, edited, edited_values, edited_count, capacity,
    best, best_token, flags, programs, lasts, sums, weights, logprobs, likeliest,
    drafts_logits, drafts_row_stride, drafts_stride, drafts_width, drafts_real, drafts_slots,
    drafts_plain, drafts_words, drafts_masked, drafts_divisors,
    drafts_edited, drafts_edited_values, drafts_edited_count, drafts_capacity,
    drafts_best, drafts_best_token, drafts_flags, drafts_programs, drafts_lasts, drafts_sums, drafts_weights,
    tokens, nodes, methods, coins, seeds, positions, stream,
    drawn, drawn_logprobs, drawn_flags, masses,
    accepted, found, found_logprobs, path, found_flags,
    CERTAIN: tl.constexpr, PROGRAMS: tl.constexpr, DRAFTS_PROGRAMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows). A row has nodes + 1 places of the target, and nodes of the drafter.

    Args:
        logits to likeliest: of the target, and what `weigh` says of its places.
        drafts_logits to drafts_weights: the same of the drafter; of anything if drafts are certain.
        tokens: int64 [rows, nodes], drafts; from a negative one on there are none.
        methods: int8 [rows].
        coins: int64 [rows], seeds.
        seeds: int64 [slots of the target].
        positions: int64 [places of the target].
        drawn, drawn_logprobs, drawn_flags: int64, float32, uint8 [places], draws of the target.
        masses: int64 [rows, drafts_width], of any content.
        accepted, found, found_logprobs, path, found_flags: results, as in `Verified`.
        CERTAIN: whether drafts have no law.
    """
    at = tl.program_id(0)
    wide = at.to(tl.int64)
    method = tl.load(methods + at)
    by_laws = (method == TOKEN) | (method == DISTINCT)
    coin_seed = tl.load(coins + at)
    places, drafts = at * (nodes + 1), at * nodes
    for node in range(nodes):
        tl.store(path + drafts + node, tl.full([], NO_TOKEN, tl.int64))
        tl.store(found + places + node + 1, tl.full([], NO_TOKEN, tl.int64))
        tl.store(found_logprobs + places + node + 1, tl.full([], OUT, tl.float32))
    tl.debug_barrier()
    node = tl.zeros([], tl.int32)
    going = tl.full([], 1, tl.int32)
    while going != 0:
        place = places + node
        draft = tl.load(tokens + drafts + node, mask=node < nodes, other=NO_TOKEN)
        right = tl.load(drawn_flags + place) == 0
        wanted = tl.where(method == LIKELIEST, tl.load(likeliest + place), tl.load(drawn + place))
        stands = draft == wanted
        if by_laws:
            p, q = tl.load(weights + place).to(tl.float64), tl.full([], 1.0, tl.float64)
            if CERTAIN == 0:
                # Behind the last draft nothing is read: there a place has no draft.
                there = node < nodes
                q_total = tl.load(drafts_sums + drafts + node, mask=there, other=0)
                q_mass = tl.load(drafts_weights + drafts + node, mask=there, other=0)
                p = p * q_total.to(tl.float64)
                q = q_mass.to(tl.float64)
            q = q * tl.load(sums + place).to(tl.float64)
            coin = coin_of(coin_seed, tl.load(positions + place).to(tl.uint32))
            stands = (q > 0.0) & (coin * q < p)
        stands = stands & right & (draft >= 0)
        if stands:
            tl.store(path + drafts + node, node.to(tl.int64))
            tl.store(found + place, draft)
            tl.store(found_logprobs + place, tl.load(logprobs + place))
        going = stands.to(tl.int32)
        node += going
    place = places + node
    flag = tl.load(drawn_flags + place)
    token, logprob = tl.load(drawn + place), tl.load(drawn_logprobs + place)
    if (method == LIKELIEST) & (flag == 0):
        token = tl.load(likeliest + place)
        zero = tl.zeros([], tl.float64)
        logprob = (zero - log_total(tl.load(sums + place))).to(tl.float32)
    draft = tl.load(tokens + drafts + node, mask=node < nodes, other=NO_TOKEN)
    if by_laws & (flag == 0) & (draft >= 0):
        key, _, _ = top_of(place, best, best_token, flags, programs, PROGRAMS)
        row = row_of(
            place, logits, row_stride, stride, width,
            plain, words, masked, divisors, edited, edited_values, edited_count, capacity,
            tl.zeros([], tl.int32),
        )  # fmt: skip
        slot = tl.load(slots + place)
        temperature, late_temperature = temperatures_of(real + slot * REAL)
        law = (row, unordered(key), temperature, late_temperature, tl.load(lasts + place))
        total = tl.load(sums + place).to(tl.float64)
        row_masses = masses + wide * drafts_width
        q_total = tl.full([], 1.0, tl.float64)
        if CERTAIN == 0:
            its = drafts + node
            q_total = tl.load(drafts_sums + its).to(tl.float64)
            its_key, _, _ = top_of(
                its, drafts_best, drafts_best_token, drafts_flags, drafts_programs, DRAFTS_PROGRAMS
            )
            its_row = row_of(
                its, drafts_logits, drafts_row_stride, drafts_stride, drafts_width,
                drafts_plain, drafts_words, drafts_masked, drafts_divisors,
                drafts_edited, drafts_edited_values, drafts_edited_count, drafts_capacity,
                tl.zeros([], tl.int32),
            )  # fmt: skip
            its_temperature, its_late = temperatures_of(drafts_real + tl.load(drafts_slots + its) * REAL)
            its_law = (its_row, unordered(its_key), its_temperature, its_late, tl.load(drafts_lasts + its))
            spread(its_law, row_masses, drafts_width, BLOCK)
        drafted = (row_masses, drafts_width, draft, q_total, total)
        keyed = (tl.load(seeds + slot), tl.load(positions + place).to(tl.uint32), stream)
        other, d = left_over(law, drafted, keyed, CERTAIN, BLOCK)
        if other != NO_SUCH_TOKEN:
            token = other.to(tl.int64)
            logprob = (d.to(tl.float64) - log_total(tl.load(sums + place))).to(tl.float32)
    tl.store(accepted + at, node.to(tl.int64))
    tl.store(found + place, token)
    tl.store(found_logprobs + place, logprob)
    tl.store(found_flags + at, flag)


@triton.jit
def temperatures_of(reals):
    """Those before and after the filters."""
    early, late = tl.load(reals + TEMPERATURE), tl.load(reals + LATE_TEMPERATURE)
    return early.to(tl.float32), late.to(tl.float32)


@triton.jit
def end_of(source, last, late_temperature, BLOCK: tl.constexpr):
    """The rank of the last candidate up to a rank, and their mass after the temperature that comes last.

    The rank that filters give tells candidates from each other, but not from tokens that were never listed.
    """
    furthest, total = tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    for step in range(steps_of(source, BLOCK)):
        rank, inside = step_of(source, step, last, BLOCK)
        furthest = tl.maximum(furthest, tl.max(tl.where(inside, rank, 0), axis=0))
        total += tl.sum(tl.where(inside, mass(tempered(d_at(rank), late_temperature)), 0), axis=0)
    return furthest, total


@triton.jit
def place_of(row, asked, top, temperature, BLOCK: tl.constexpr):
    """The rank of a token, which is beyond `LAST` where it is not eligible, and its d."""
    _, _, width, _, _, _, _, _, _, _ = row
    plain, chunks = chunks_of(row, BLOCK)
    token = tl.where((asked >= 0) & (asked < width), asked, 0).to(tl.int32)
    tokens, values, eligible = tile_of(row, token // BLOCK, BLOCK)
    value = tl.max(tl.where(eligible & (tokens == token), values, OUT), axis=0)
    for chunk in range(plain, chunks):
        tokens, values, eligible = tile_of(row, chunk, BLOCK)
        value = tl.maximum(value, tl.max(tl.where(eligible & (tokens == token), values, OUT), axis=0))
    d = tempered(shifted(tl.where(value == OUT, top, value), top), temperature)
    there = (value != OUT) & (asked >= 0) & (asked < width)
    return tl.where(there, rank_of(d, token), LAST + 1), d


@triton.jit
def of_law(law, chunk, BLOCK: tl.constexpr):
    """One tile of a law: tokens, their d, and which of them it has."""
    row, top, temperature, late_temperature, last = law
    tokens, values, eligible = tile_of(row, chunk, BLOCK)
    d = tempered(shifted(tl.where(eligible, values, top), top), temperature)
    inside = eligible & (rank_of(d, tokens) <= last)
    return tokens, tempered(d, late_temperature), inside


@triton.jit
def spread(law, masses, width, BLOCK: tl.constexpr):
    """Write the mass of every token of a law, and 0 for all others."""
    for first in range(0, width, BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(masses + at, tl.zeros([BLOCK], tl.int64), mask=at < width)
    tl.debug_barrier()
    _, chunks = chunks_of(law[0], BLOCK)
    for chunk in range(chunks):
        tokens, d, inside = of_law(law, chunk, BLOCK)
        tl.store(masses + tokens, mass(d), mask=inside)
    tl.debug_barrier()


@triton.jit
def excess_of(law, drafted, chunk, CERTAIN: tl.constexpr, BLOCK: tl.constexpr):
    """One tile of `verify_rules.excess`: tokens, their d in the target, float64 excess, 0 for no token."""
    masses, drafts_width, draft, q_total, p_total = drafted
    tokens, d, inside = of_law(law, chunk, BLOCK)
    if CERTAIN:
        q = (tokens == draft).to(tl.float64)
    else:
        q = tl.load(masses + tokens, mask=inside & (tokens < drafts_width), other=0).to(tl.float64)
    more = mass(d).to(tl.float64) * q_total - q * p_total
    return tokens, d, tl.where(inside, tl.maximum(more, 0.0), 0.0)


@triton.jit
def left_over(law, drafted, keyed, CERTAIN: tl.constexpr, BLOCK: tl.constexpr):
    """The token that wins among what the target has more than the drafter, and its d; none for nothing."""
    seed, position, stream = keyed
    _, chunks = chunks_of(law[0], BLOCK)
    most = tl.zeros([], tl.float64)
    for chunk in range(chunks):
        tokens, d, more = excess_of(law, drafted, chunk, CERTAIN, BLOCK)
        most = tl.maximum(most, tl.max(more, axis=0))
    key = tl.full([], LEAST_KEY, tl.int32)
    token = tl.full([], NO_SUCH_TOKEN, tl.int32)
    winning_d = tl.full([], OUT, tl.float32)
    if most > 0.0:
        for chunk in range(chunks):
            tokens, d, more = excess_of(law, drafted, chunk, CERTAIN, BLOCK)
            # As everywhere, in units of mass, and rounded to the nearest.
            units = (more / most) * MASS_ONE + ROUNDER - ROUNDER
            left = units > 0.0
            part = tl.where(left, units * (1.0 / MASS_ONE), 1.0).to(tl.float32)
            score = log(part) + gumbel(words_of(tokens, seed, position, stream))
            some_key, some_token = best_of(score, tokens, left)
            some_d = tl.max(tl.where(left & (tokens == some_token), d, OUT), axis=0)
            key, token = better_of(key, token, some_key, some_token)
            winning_d = tl.where(token == some_token, some_d, winning_d)
    return token, winning_d


@triton.jit
def coin_of(seed, position):
    """`noise.coin` of the first candidate, float64."""
    number = tl.arange(0, 2)
    word = words_of(number * 1, seed, position, tl.full([], COIN, tl.uint32)).to(tl.int64)
    high = tl.sum(tl.where(number == 0, word, 0), axis=0)
    low = tl.sum(tl.where(number == 1, word, 0), axis=0)
    return (((high << 20) | (low >> 12)).to(tl.float64) + 0.5) * COIN_UNIT
