"""Verification of drafts: which of a row's stand, and the token after them.

    walk    one program a row   down the tree of drafts, by every method but "block"
    block   one program a row   along the chain of drafts, by "block"

Both come after the draw of every place, which has left what laws are; see `ranks.py`. So the mass of a token
is looked up, and only where chances refuse a draft are all logits of a place read again, for what the target
has more than the drafter.

A law is a tuple of what belongs to one place:

    logits, stride, width       see `rows.py`
    divisor                     likewise
    plain, touched, places      int32 words, as `edit` leaves them
    values, masked              what it leaves, too
    top                         the greatest logit
    temperature                 before the filters
    turns, last                 see `ranks.py`

A draft is a tuple of the law that it was drawn from, its token, the mass of that law, and its older siblings
that this law does not have: their ids and parents, the parent, and from where to where they are.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from sortition.sampling import noise, verification, verify_rules
from sortition.sampling.kernels.finish import NO_TOKEN, ROUNDER
from sortition.sampling.kernels.layout import EDIT_TEMPERATURE, REAL, TEMPERATURE
from sortition.sampling.kernels.numerics import (
    MASS_ONE,
    OUT,
    counted,
    exp,
    gumbel,
    log,
    log_total,
    mass,
    shifted,
    tempered,
    words_from,
    words_of,
)
from sortition.sampling.kernels.ranks import TURNS_SIZE, rank_of, turned
from sortition.sampling.kernels.rows import LEAST_KEY, NO_SUCH_TOKEN, best_of, better_of, divided

LIKELIEST = tl.constexpr(verification.GREEDY)
TOKEN = tl.constexpr(verification.TOKEN)
DISTINCT = tl.constexpr(verification.DISTINCT)
BY_BLOCK = tl.constexpr(verification.BLOCK)
TYPICAL = tl.constexpr(verification.TYPICAL)
TYPICAL_SHARE = tl.constexpr(verification.TYPICAL_SHARE)
TYPICAL_SPREAD = tl.constexpr(verification.TYPICAL_SPREAD)
ROOT = tl.constexpr(verify_rules.ROOT)
SUM_ONE = tl.constexpr(2.0**verify_rules.SUM_BITS)
COIN = tl.constexpr(noise.COIN)
"""Stream of coins."""
COIN_UNIT = tl.constexpr(2.0**-52)


@triton.jit(do_not_specialize=["nodes", "capacity", "drafts_capacity", "stream"])
def walk(
    logits, row_stride, stride, width, real, slots,
    plain, words, masked, touched, places, values, capacity, tops, turns, lasts, masses,
    drafts_logits, drafts_row_stride, drafts_stride, drafts_width, drafts_real, drafts_slots,
    drafts_plain, drafts_words, drafts_masked, drafts_touched, drafts_places, drafts_values, drafts_capacity,
    drafts_tops, drafts_turns, drafts_lasts, drafts_masses,
    firsts, tokens, parents, nodes, methods, coins, seeds, positions, stream,
    drawn, drawn_logprobs, drawn_entropies, flags, left,
    accepted, found, found_logprobs, path, found_flags,
    CERTAIN: tl.constexpr, NODES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows). A row has nodes + 1 places of the target, and nodes of the drafter.

    Args:
        logits, row_stride, stride, width: of the target, a row for each place; see `rows.py`.
        real, slots: see `layout.py` and `edit`.
        plain to capacity: what `edit` has left.
        tops, turns, lasts, masses: what `finish` has left of laws.
        drafts_logits to drafts_masses: the same of the drafter; of anything with `CERTAIN`.
        firsts: what else `finish` has left of the target's laws.
        tokens: int64 [rows, nodes], drafts; a negative one is none.
        parents: int64 [rows, nodes]; what does not come before a node is no parent.
        methods: int8 [rows].
        coins: int64 [rows], seeds.
        seeds: int64 [slots of the target].
        positions: int64 [places of the target].
        drawn, drawn_logprobs, drawn_entropies, flags: int64, float32, float32, uint8 [places], draws of the
            target; entropies only if a method is `TYPICAL`, else None.
        left: float64 [rows, width], of any content; of anything if no method is `TOKEN` or `DISTINCT`.
        accepted, found, found_logprobs, path, found_flags: results, as in `Verified`, where nothing is said
            yet: -1, and -inf.
        CERTAIN: whether drafts have no law.
        NODES: a power of two, at least nodes.
    """
    at = tl.program_id(0).to(tl.int64)
    method = tl.load(methods + at)
    if method == BY_BLOCK:
        return
    target = (
        logits, row_stride, stride, width, real, slots,
        plain, words, masked, touched, places, values, capacity, tops, turns, lasts,
    )  # fmt: skip
    drafter = (
        drafts_logits, drafts_row_stride, drafts_stride, drafts_width, drafts_real, drafts_slots,
        drafts_plain, drafts_words, drafts_masked, drafts_touched, drafts_places, drafts_values,
        drafts_capacity, drafts_tops, drafts_turns, drafts_lasts,
    )  # fmt: skip
    first_place, first_node = at * (nodes + 1), at * nodes
    row_left = left + at * width
    some = tl.arange(0, NODES)
    drafts = tl.load(tokens + first_node + some, mask=some < nodes, other=NO_TOKEN)
    hangs_on = tl.load(parents + first_node + some, mask=some < nodes, other=NO_TOKEN).to(tl.int32)
    node = tl.full([], ROOT, tl.int32)
    count = tl.zeros([], tl.int32)
    going = tl.full([], 1, tl.int32)
    while going != 0:
        place = first_place + node + 1
        flag = tl.load(flags + place)
        token, logprob = tl.load(drawn + place), tl.load(drawn_logprobs + place)
        child = tl.full([], NODES, tl.int32)
        if flag == 0:
            law = law_of(target, place)
            total = tl.load(masses + place)
            below = (hangs_on == node) & (some > node) & (drafts >= 0)
            if (method == TOKEN) | (method == DISTINCT):
                position = tl.load(positions + place).to(tl.uint32)
                law_total = total.to(tl.float64)
                changed = tl.zeros([], tl.int32)
                number = tl.zeros([], tl.int32)
                first = tl.min(tl.where(below, some, NODES), axis=0)
                candidate = first
                while candidate < NODES:
                    draft_token = tl.load(tokens + first_node + candidate)
                    its_law = law_of(drafter, first_node + candidate)
                    draft_total = tl.full([], 1.0, tl.float64)
                    if CERTAIN == 0:
                        draft_total = tl.load(drafts_masses + first_node + candidate).to(tl.float64)
                    q = drafted(its_law, draft_token, draft_token, candidate >= 0, CERTAIN)
                    begin = candidate
                    if method == DISTINCT:
                        begin = first
                        older = below & (some < candidate)
                        again = (drafts[:, None] == drafts[None, :]) & older[None, :]
                        again &= some[None, :] < some[:, None]
                        counts = older & (tl.sum(again.to(tl.int32), axis=1) == 0)
                        draft_total -= tl.sum(drafted(its_law, draft_token, drafts, counts, CERTAIN), axis=0)
                        tried = tl.max((older & (drafts == draft_token)).to(tl.int32), axis=0)
                        q = tl.where(tried != 0, 0.0, q)
                    siblings = (tokens + first_node, parents + first_node, node, begin, candidate)
                    draft = (its_law, draft_token, draft_total, siblings)
                    p = mass_of(law, draft_token, candidate >= 0)
                    if changed != 0:
                        p = tl.load(row_left + draft_token, mask=draft_token < width, other=0.0)
                    q = q * law_total
                    coin = coin_of(tl.load(coins + at), position, number)
                    if (q > 0.0) & (coin * q < p * draft_total):
                        child = candidate
                        candidate = tl.full([], NODES, tl.int32)
                    else:
                        one = tl.full([], 1.0, tl.float64)
                        law_total, changed = residual(
                            law, row_left, law_total, changed, one, draft, CERTAIN, BLOCK
                        )
                        candidate = tl.min(tl.where(below & (some > candidate), some, NODES), axis=0)
                        number += 1
                if (child == NODES) & (changed != 0):
                    slot = tl.load(slots + place)
                    token = drawn_from(row_left, width, tl.load(seeds + slot), position, stream, BLOCK)
                    logprob = logprob_of(law, token, total)
            else:
                if method == LIKELIEST:
                    token = likeliest_of(law, tl.load(firsts + place), BLOCK)
                    logprob = logprob_of(law, token, total)
                stands = below & (drafts == token)
                if drawn_entropies is not None:  # noqa: SIM102
                    if method == TYPICAL:
                        least = least_typical(tl.load(drawn_entropies + place), total)
                        stands = below & (mass_of(law, drafts, below) > least)
                child = tl.min(tl.where(stands, some, NODES), axis=0)
            if child < NODES:
                token = tl.load(tokens + first_node + child)
                logprob = logprob_of(law, token, total)
                tl.store(path + first_node + count, child.to(tl.int64))
        tl.store(found + first_place + count, token)
        tl.store(found_logprobs + first_place + count, logprob)
        tl.store(found_flags + at, flag)
        going = (child < NODES).to(tl.int32)
        node = tl.where(child < NODES, child, node)
        count += going
    tl.store(accepted + at, count.to(tl.int64))


@triton.jit(do_not_specialize=["nodes", "capacity", "drafts_capacity", "stream"])
def block(
    logits, row_stride, stride, width, real, slots,
    plain, words, masked, touched, places, values, capacity, tops, turns, lasts, masses,
    drafts_logits, drafts_row_stride, drafts_stride, drafts_width, drafts_real, drafts_slots,
    drafts_plain, drafts_words, drafts_masked, drafts_touched, drafts_places, drafts_values, drafts_capacity,
    drafts_tops, drafts_turns, drafts_lasts, drafts_masses,
    tokens, parents, nodes, methods, coins, seeds, positions, stream,
    drawn, drawn_logprobs, flags, left,
    accepted, found, found_logprobs, path, found_flags,
    CERTAIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows). `verify_rules.block`; the arguments are those of `walk`.

    A draft whose parent is not the one before it is none.
    """
    at = tl.program_id(0).to(tl.int64)
    if tl.load(methods + at) != BY_BLOCK:
        return
    target = (
        logits, row_stride, stride, width, real, slots,
        plain, words, masked, touched, places, values, capacity, tops, turns, lasts,
    )  # fmt: skip
    drafter = (
        drafts_logits, drafts_row_stride, drafts_stride, drafts_width, drafts_real, drafts_slots,
        drafts_plain, drafts_words, drafts_masked, drafts_touched, drafts_places, drafts_values,
        drafts_capacity, drafts_tops, drafts_turns, drafts_lasts,
    )  # fmt: skip
    first_place, first_node = at * (nodes + 1), at * nodes
    row_left = left + at * width
    coins_seed = tl.load(coins + at)
    one = tl.full([], 1.0, tl.float64)
    unchanged = tl.zeros([], tl.int32)
    share, accepted_share = one, one
    length, count = tl.zeros([], tl.int32), tl.zeros([], tl.int32)
    going = tl.full([], 1, tl.int32)
    while going != 0:
        place, its = first_place + length, first_node + length
        there = length < nodes
        draft_token = tl.load(tokens + its, mask=there, other=NO_TOKEN)
        hangs_on = tl.load(parents + its, mask=there, other=NO_TOKEN)
        total = tl.load(masses + place).to(tl.float64)
        drafts_total = one
        if CERTAIN == 0:
            drafts_total = tl.load(drafts_masses + its, mask=there, other=0).to(tl.float64)
        goes_on = (draft_token >= 0) & (hangs_on == length - 1) & (tl.load(flags + place) == 0)
        goes_on &= drafts_total > 0.0
        law = law_of(target, place)
        # Behind the last draft there is none to read of.
        its_law = law_of(drafter, tl.where(there, its, 0))
        draft = (its_law, draft_token, drafts_total, (tokens, parents, length, length, length))
        if length > 0:
            coin = coin_of(coins_seed, tl.load(positions + place - 1).to(tl.uint32), unchanged)
            stands = coin < share
            if goes_on:
                whole = total * drafts_total
                more = tl.zeros([], tl.int64)
                for first in range(0, width, BLOCK):
                    ids = first + tl.arange(0, BLOCK)
                    some = more_of(law, row_left, total, unchanged, share, draft, ids, CERTAIN)
                    units = (some / whole) * SUM_ONE + ROUNDER - ROUNDER
                    more += tl.sum(units.to(tl.int64), axis=0)
                held = more.to(tl.float64) / SUM_ONE
                bound = held + (1.0 - share)
                stands = (share >= 1.0) | ((bound > 0.0) & (coin * bound < held))
            count = tl.where(stands, length, count)
            accepted_share = tl.where(stands, share, accepted_share)
        if goes_on:
            p = mass_of(law, draft_token, there) * drafts_total
            q = drafted(its_law, draft_token, draft_token, there, CERTAIN) * total
            share = tl.where(q > 0.0, tl.minimum(share * p / tl.where(q > 0.0, q, 1.0), 1.0), 0.0)
            tl.store(path + its, length.to(tl.int64))
            tl.store(found + place, draft_token)
            tl.store(found_logprobs + place, logprob_of(law, draft_token, tl.load(masses + place)))
        going = goes_on.to(tl.int32)
        length += going
    for node in range(count, length):
        tl.store(path + first_node + node, tl.full([], NO_TOKEN, tl.int64))
        tl.store(found + first_place + node + 1, tl.full([], NO_TOKEN, tl.int64))
        tl.store(found_logprobs + first_place + node + 1, tl.full([], OUT, tl.float32))
    place = first_place + count
    token, logprob = tl.load(drawn + place), tl.load(drawn_logprobs + place)
    if count < length:
        its = first_node + count
        law, total = law_of(target, place), tl.load(masses + place)
        drafts_total = one
        if CERTAIN == 0:
            drafts_total = tl.load(drafts_masses + its).to(tl.float64)
        siblings = (tokens, parents, count, count, count)
        draft = (law_of(drafter, its), tl.load(tokens + its), drafts_total, siblings)
        _, changed = residual(
            law, row_left, total.to(tl.float64), unchanged, accepted_share, draft, CERTAIN, BLOCK
        )
        if changed != 0:
            seed = tl.load(seeds + tl.load(slots + place))
            position = tl.load(positions + place).to(tl.uint32)
            token = drawn_from(row_left, width, seed, position, stream, BLOCK)
            logprob = logprob_of(law, token, total)
    tl.store(accepted + at, count.to(tl.int64))
    tl.store(found + place, token)
    tl.store(found_logprobs + place, logprob)
    tl.store(found_flags + at, tl.load(flags + place))


@triton.jit
def law_of(side, place):
    """The law of a place of one model."""
    (
        logits, row_stride, stride, width, real, slots,
        plain, words, masked, touched, places, values, capacity, tops, turns, lasts,
    ) = side  # fmt: skip
    reals = real + tl.load(slots + place) * REAL
    return (
        logits + place * row_stride, stride, width, tl.load(reals + EDIT_TEMPERATURE).to(tl.float32),
        plain + place * words, touched + place * words, places + place * words, values + place * capacity,
        tl.load(masked + place), tl.load(tops + place),
        tl.load(reals + TEMPERATURE).to(tl.float32), turns + place * TURNS_SIZE, tl.load(lasts + place),
    )  # fmt: skip


@triton.jit
def d_of(law, tokens, asked):
    """The d of the tokens that are asked for, and which of them the law has."""
    (
        logits, stride, width, divisor, plain, touched, places, values, masked, top, temperature, turns, last,
    ) = law  # fmt: skip
    there = asked & (tokens >= 0) & (tokens < width)
    token = tl.where(there, tokens, 0).to(tl.int32)
    value = tl.load(logits + token.to(tl.int64) * stride, mask=there, other=OUT).to(tl.float32)
    value = divided(value, divisor)
    if masked != 0:
        word, bit = token >> 5, token & 31
        is_plain = ((tl.load(plain + word, mask=there, other=0) >> bit) & 1) != 0
        marks = tl.load(touched + word, mask=there, other=0)
        is_edited = there & (((marks >> bit) & 1) != 0)
        less = marks & ((1 << bit) - 1)
        at = tl.load(places + word, mask=is_edited, other=0) + counted(less.to(tl.uint32, bitcast=True))
        value = tl.where(is_plain, value, tl.load(values + at, mask=is_edited, other=OUT))
    value = value + 0.0
    there &= value != OUT
    d = tempered(shifted(tl.where(there, value, top), top), temperature)
    d, there = turned(d, token, there, turns, tl.load(turns).to(tl.int32))
    return d, there & (rank_of(d, token) <= last)


@triton.jit
def mass_of(law, tokens, asked):
    """The mass of the tokens that are asked for, float64; 0 for all others."""
    d, there = d_of(law, tokens, asked)
    return tl.where(there, mass(d), 0).to(tl.float64)


@triton.jit
def logprob_of(law, token, total):
    """ln of a token's probability, -inf for one that the law does not have."""
    d, there = d_of(law, token, token >= 0)
    return tl.where(there, (d.to(tl.float64) - log_total(total)).to(tl.float32), OUT)


@triton.jit
def likeliest_of(law, token, BLOCK: tl.constexpr):
    """The first of the likeliest tokens of a law, given the one of the greatest logit.

    A temperature can make logits equal that were not, so that one before it is as likely; only one above 1
    makes distances less.
    """
    temperature = law[10]
    first = token
    if temperature > 1.0:
        greatest, _ = d_of(law, token, token >= 0)
        for start in range(0, token, BLOCK):
            before = start + tl.arange(0, BLOCK).to(tl.int64)
            d, there = d_of(law, before, before < token)
            first = tl.minimum(first, tl.min(tl.where(there & (d >= greatest), before, token), axis=0))
    return first


@triton.jit
def drafted(law, draft_token, tokens, asked, CERTAIN: tl.constexpr):
    """The mass of tokens in the law that a draft was drawn from, float64."""
    if CERTAIN:
        return (asked & (tokens == draft_token)).to(tl.float64)
    else:
        return mass_of(law, tokens, asked)


@triton.jit
def more_of(law, left, total, changed, share, draft, ids, CERTAIN: tl.constexpr):
    """`verify_rules.excess` of some tokens over a draft.

    Args:
        law: of the target.
        left, total, changed: what has become of its masses, if `changed`.
        share: of the target.
        draft: see above.
        ids: int32 [n].
    """
    its_law, draft_token, draft_total, siblings = draft
    tokens, parents, node, begin, end = siblings
    width = law[2]
    if changed != 0:  # noqa: SIM108
        p = tl.load(left + ids, mask=ids < width, other=0.0)
    else:
        p = mass_of(law, ids, ids < width)
    q = drafted(its_law, draft_token, ids, ids < width, CERTAIN)
    for sibling in range(begin, end):
        if tl.load(parents + sibling) == node:
            q = tl.where(ids == tl.load(tokens + sibling), 0.0, q)
    return tl.maximum(share * (p * draft_total) - q * total, 0.0)


@triton.jit
def residual(law, left, total, changed, share, draft, CERTAIN: tl.constexpr, BLOCK: tl.constexpr):
    """`verify_rules.residual`, which goes to `left`; what its total is then, and whether it has changed."""
    width = law[2]
    most = tl.zeros([], tl.float64)
    for first in range(0, width, BLOCK):
        ids = first + tl.arange(0, BLOCK)
        some = more_of(law, left, total, changed, share, draft, ids, CERTAIN)
        most = tl.maximum(most, tl.max(some, axis=0))
    if most > 0.0:
        sum_of_units = tl.zeros([], tl.int64)
        for first in range(0, width, BLOCK):
            ids = first + tl.arange(0, BLOCK)
            some = more_of(law, left, total, changed, share, draft, ids, CERTAIN)
            units = (some / most) * MASS_ONE + ROUNDER - ROUNDER
            tl.store(left + ids, units, mask=ids < width)
            sum_of_units += tl.sum(units.to(tl.int64), axis=0)
        tl.debug_barrier()
        total = sum_of_units.to(tl.float64)
        changed = tl.full([], 1, tl.int32)
    return total, changed


@triton.jit
def drawn_from(left, width, seed, position, stream, BLOCK: tl.constexpr):
    """The token that wins among masses, one of which is not 0."""
    key = tl.full([], LEAST_KEY, tl.int32)
    token = tl.full([], NO_SUCH_TOKEN, tl.int32)
    for first in range(0, width, BLOCK):
        ids = first + tl.arange(0, BLOCK)
        units = tl.load(left + ids, mask=ids < width, other=0.0)
        there = units > 0.0
        part = tl.where(there, units * (1.0 / MASS_ONE), 1.0).to(tl.float32)
        score = log(part) + gumbel(words_from(first, seed, position, stream, BLOCK))
        some_key, some_token = best_of(score, ids, there)
        key, token = better_of(key, token, some_key, some_token)
    return token.to(tl.int64)


@triton.jit
def least_typical(entropy, total):
    """The mass that a typical token is above; see `verify_reference.first_typical`."""
    spread = exp(tl.minimum(-entropy, 0.0)).to(tl.float64)
    return tl.minimum(TYPICAL_SHARE, TYPICAL_SPREAD * spread) * total.to(tl.float64)


@triton.jit
def coin_of(seed, position, number):
    """`noise.coin` of a candidate, float64."""
    which = tl.arange(0, 2)
    word = words_of(4 * number + which, seed, position, tl.full([], COIN, tl.uint32)).to(tl.int64)
    high = tl.sum(tl.where(which == 0, word, 0), axis=0)
    low = tl.sum(tl.where(which == 1, word, 0), axis=0)
    return (((high << 20) | (low >> 12)).to(tl.float64) + 0.5) * COIN_UNIT
