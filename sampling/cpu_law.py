"""The law of one row for numba: which tokens are left, as arrays that get shorter.

`Law` is the scratch of one thread, as `cpu.py` makes it. Its first n tokens are those left, the lowest id
first: `tokens` and their `d`, the logits less the greatest. All else in it has no meaning from one function
to the next, but for arguments that say so:

    peaks       the greatest value, or the greatest d, of each block of `BLOCK` tokens
    mass        a weight for each token
    keys        by what tokens are ordered
    keep        which tokens stay
    some_keys, some_mass, bins, chances, words      room for keys, weights, and what is made of them
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from sortition.sampling.columns import CODES, GREEDY
from sortition.sampling.cpu import BINS, BLOCK
from sortition.sampling.cpu_numerics import MASS_ONE, ZERO, compiled, exp, inlined, rounded
from sortition.sampling.draw import EMPTY, INFINITE, NAN

BINS_TO_ONE: Final = np.float32(-64.0)
LAST_BIN: Final = np.float32(BINS - 1)
FEW: Final = 512
"""Keys that need no bins: it costs about as much to go through these."""

OUT: Final = np.float32(-np.inf)
FURTHEST: Final = np.finfo(np.float32).min
ONE_OUT: Final = np.int32(-0x7F800001)
"""-inf as `ordered` has it; what is less is NaN."""
ALL_IN: Final = np.int32(0x7F800000)
"""+inf as `ordered` has it; what is more is NaN."""

MIN_P: Final = CODES["min_p"]
TOP_K: Final = CODES["top_k"]
TOP_P: Final = CODES["top_p"]


@inlined
def ordered(bits: Any) -> Any:
    """The bits of a float32 as an int32 that is ordered as floats are; and back."""
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@compiled
def scan(values: Any, peaks: Any) -> tuple[Any, int, bool]:
    """The greatest value, the row's flags, and whether -inf is among its values; fills `peaks`."""
    greatest, least = ONE_OUT, ALL_IN
    # Of integers, because no vector instruction takes the maximum of floats as it is defined with NaN.
    for block in range(len(values) // BLOCK):
        peak = np.int32(-0x80000000)
        for at in range(BLOCK):
            value = ordered(np.float32(values[BLOCK * block + at]).view(np.int32))
            peak = value if value > peak else peak
            least = value if value < least else least
        peaks[block] = ordered(peak).view(np.float32)
        greatest = peak if peak > greatest else greatest
    if len(values) % BLOCK:
        peak = np.int32(-0x80000000)
        for at in range(len(values) - len(values) % BLOCK, len(values)):
            value = ordered(np.float32(values[at]).view(np.int32))
            peak = value if value > peak else peak
            least = value if value < least else least
        peaks[len(values) // BLOCK] = ordered(peak).view(np.float32)
        greatest = peak if peak > greatest else greatest
    top = ordered(greatest).view(np.float32)
    if greatest > ALL_IN or least < ONE_OUT:
        flags = NAN
        for at in range(len(values)):
            flags |= INFINITE if values[at] == np.inf else 0
        return top, flags, True
    if greatest == ONE_OUT:
        return top, EMPTY, True
    return top, INFINITE if greatest == ALL_IN else 0, least == ONE_OUT


@inlined
def shifted(value: Any, top: Any) -> Any:
    """`reference.shifted` of one value that is not -inf. A zero has no sign afterwards."""
    d = value - top
    return (d if d > FURTHEST else FURTHEST) + ZERO


@inlined
def tempered(d: Any, temperature: Any) -> Any:
    """`reference.Law.tempered` of one token."""
    d = d / temperature
    return (d if d > FURTHEST else FURTHEST) + ZERO


@compiled
def temper(d: Any, n: int, temperature: Any) -> None:
    for i in range(n):
        d[i] = tempered(d[i], temperature)


@compiled
def take_all(values: Any, top: Any, some_out: bool, temperature: Any, tokens: Any, d: Any) -> int:
    """The law of all tokens whose values are above -inf; returns how many there are."""
    n = len(values)
    if some_out:
        n = 0
        for token in range(len(values)):
            tokens[n] = token
            d[n] = shifted(values[token], top)
            n += values[token] > OUT
    else:
        for token in range(n):
            tokens[token] = token
        for token in range(n):
            d[token] = shifted(values[token], top)
    if temperature != np.float32(1.0):
        temper(d, n, temperature)
    return n


@compiled
def take_above(
    values: Any, top: Any, bound: Any, temperature: Any, peaks: Any, spare: Any, tokens: Any, d: Any
) -> int:
    """The same for the tokens whose d is at least this, above -inf; peaks are d already."""
    n = 0
    for block in range(blocks_of(values)):
        if peaks[block] >= bound:
            some = values[BLOCK * block : BLOCK * (block + 1)]
            shift(some, top, temperature, spare)
            for i in range(len(some)):
                tokens[n] = BLOCK * block + i
                d[n] = spare[i]
                n += spare[i] >= bound
    return n


@compiled
def shift(values: Any, top: Any, temperature: Any, d: Any) -> None:
    """The d of values; of -inf it is that again."""
    for i in range(len(values)):
        d[i] = tempered(shifted(values[i], top), temperature) if values[i] > OUT else OUT


@compiled
def shift_peaks(values: Any, top: Any, temperature: Any, peaks: Any) -> None:
    """Make the peaks of values those of d."""
    for block in range(blocks_of(values)):
        peaks[block] = shifted(peaks[block], top)
    temper(peaks, blocks_of(values), temperature)


@inlined
def blocks_of(values: Any) -> int:
    return (len(values) + BLOCK - 1) // BLOCK


@compiled
def bound_of_filters(row: int, at: int, settings: Any, blocks: int, law: Any) -> Any:
    """What d is at least, of all tokens that the filters from here on leave; -inf where that is not known.

    Cutting there first changes nothing of what these filters do: they keep the first tokens, however many
    there are behind. `peaks` are d already.
    """
    bound = OUT
    while True:
        stage = settings.stages[row, at]
        if stage == GREEDY:
            return ZERO
        if stage == TOP_K:
            least = peak(settings.top_k[row], blocks, law)
        elif stage == MIN_P:
            least = min(settings.min_p[row], ZERO)
            if settings.min_keep[row] > 1:
                least = min(least, peak(settings.min_keep[row], blocks, law))
        else:
            return bound
        bound = max(bound, least)
        at += 1


@inlined
def goal_of(part: float, more: bool) -> int:
    """The least whole mass that is at least this part of a total, or more than it; a token has 1 at least."""
    return max(math.floor(part) + 1 if more else math.ceil(part), 1)


@inlined
def peak(rank: int, blocks: int, law: Any) -> Any:
    """The peak of this rank, 1 for the greatest; -inf if there are fewer."""
    found = OUT
    if rank <= blocks:
        found = nth(law.peaks, blocks, rank, law)[0]
    return found


@compiled
def nth(keys: Any, n: int, rank: int, law: Any) -> tuple[Any, int]:
    """`crossing` where every key has the weight 1."""
    for i in range(n):
        law.mass[i] = 1
    return crossing(keys, law.mass, n, rank, law.some_keys, law.some_mass, law.bins, law.words)


@compiled
def crossing(
    keys: Any, weights: Any, n: int, goal: int, some_keys: Any, some_weights: Any, bins: Any, spare: Any
) -> tuple[Any, int]:
    """Where the weights of the keys, the greatest first, add up to the goal, which is 1 or more.

    Keys are in [-inf, 0]. Returns the last key that is needed, and how many that equal it, from the first;
    -inf and as many as there can be where the sum is less than the goal.
    """
    if n <= FEW:
        for i in range(n):
            some_keys[i], some_weights[i] = keys[i], weights[i]
        return crossing_of_some(some_keys, some_weights, n, goal)
    for i in range(BINS):
        bins[i] = 0
    for begin in range(0, n, len(spare)):
        end = min(begin + len(spare), n)
        fill(bins, keys[begin:end], weights[begin:end], spare)
    wanted, above = bin_with(goal, bins)
    left = 0
    for i in range(n):
        some_keys[left], some_weights[left] = keys[i], weights[i]
        left += bin_of(keys[i]) == wanted
    return crossing_of_some(some_keys, some_weights, left, goal - above)


@compiled
def crossing_of_some(keys: Any, weights: Any, n: int, goal: int) -> tuple[Any, int]:
    """The same for keys that may be moved around: quickselect."""
    while n:
        pivot = middle(keys[0], keys[n // 2], keys[n - 1])
        greater, equal = 0, 0
        for i in range(n):
            greater += weights[i] if keys[i] > pivot else 0
            equal += weights[i] if keys[i] == pivot else 0
        if greater < goal <= greater + equal:
            return pivot, rank_among(keys, weights, n, pivot, goal - greater)
        side = greater >= goal
        goal -= 0 if side else greater + equal
        left = 0
        for i in range(n):
            key = keys[i]
            keys[left], weights[left] = key, weights[i]
            left += (key > pivot) if side else (key < pivot)
        n = left
    return OUT, len(keys)


@compiled
def crossing_of_mass(
    values: Any, top: Any, temperature: Any, part: float, more: bool, law: Any
) -> tuple[Any, int, int]:
    """`crossing` for the masses of all tokens and a part of their total, and the total.

    Leaves the d of all tokens in `keys`, that of -inf for -inf.
    """
    total, chunk = 0, len(law.words)
    shift(values, top, temperature, law.keys)
    for i in range(BINS):
        law.bins[i] = 0
    for begin in range(0, len(values), chunk):
        some = law.keys[begin : begin + chunk]
        total += weigh(some, len(some), law.chances, law.mass)
        fill(law.bins, some, law.mass, law.words)
    goal = goal_of(part * np.float64(total), more)
    wanted, above = bin_with(goal, law.bins)
    n = 0
    for token in range(len(values)):
        if bin_of(law.keys[token]) == wanted:
            law.some_keys[n] = law.keys[token]
            n += 1
    weigh(law.some_keys, n, law.d, law.some_mass)
    last, rank = crossing_of_some(law.some_keys, law.some_mass, n, goal - above)
    return last, rank, total


@compiled
def take_from(keys: Any, bound: Any, tokens: Any, d: Any) -> int:
    """The law of all tokens whose keys are at least this; these are their d."""
    n = 0
    for token in range(len(keys)):
        tokens[n] = token
        d[n] = keys[token]
        n += keys[token] >= bound
    return n


@compiled
def fill(bins: Any, keys: Any, weights: Any, spare: Any) -> None:
    """Add weights to the bins of as many keys."""
    for i in range(len(keys)):
        spare[i] = bin_of(keys[i])
    for i in range(len(keys)):
        bins[spare[i]] += weights[i]


@inlined
def bin_with(goal: int, bins: Any) -> tuple[int, int]:
    """The bin where the goal is reached, or the last one, and what the bins before hold."""
    wanted, above = 0, 0
    while wanted < BINS - 1 and above + bins[wanted] < goal:
        above += bins[wanted]
        wanted += 1
    return wanted, above


@inlined
def bin_of(key: Any) -> Any:
    scaled = key * BINS_TO_ONE
    return np.int32(scaled if scaled < LAST_BIN else LAST_BIN)


@inlined
def rank_among(keys: Any, weights: Any, n: int, key: Any, goal: int) -> int:
    """How many that equal a key, from the first, have this weight."""
    rank, total = 0, 0
    for i in range(n):
        if keys[i] == key:
            rank += 1
            total += weights[i]
            if total >= goal:
                break
    return rank


@inlined
def middle(a: Any, b: Any, c: Any) -> Any:
    return max(min(a, b), min(max(a, b), c))


@compiled
def cut(keys: Any, n: int, last: Any, rank: int, keep_ties: bool, tokens: Any, d: Any) -> int:
    """Keep what is above the last key, and of its equals as many as it says, or all."""
    left, equals = 0, 0
    for i in range(n):
        key = keys[i]
        equal = key == last
        stays = (key > last) | (equal & (keep_ties | (equals < rank)))
        equals += equal
        tokens[left] = tokens[i]
        d[left] = d[i]
        left += stays
    return left


@compiled
def occurrences(key: Any, keys: Any, n: int) -> int:
    found = 0
    for i in range(n):
        found += keys[i] == key
    return found


@compiled
def kept(n: int, keep: Any, tokens: Any, d: Any) -> int:
    """Leave the tokens that are marked."""
    left = 0
    for i in range(n):
        tokens[left] = tokens[i]
        d[left] = d[i]
        left += keep[i]
    return left


@compiled
def weigh(d: Any, n: int, spare: Any, mass: Any) -> int:
    """`numerics.mass` of each token, and in all."""
    for i in range(n):
        spare[i] = exp(d[i])
    total = 0
    for i in range(n):
        mass[i] = rounded(np.float64(spare[i]) * MASS_ONE)
        total += mass[i]
    return total
