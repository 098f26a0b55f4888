"""Verification of rows for numba: `verify_rules` and `verify_reference` on the laws of `cpu_rows.py`.

`Side` is one model of the two, with a law of its own that `law_at` makes: its first tokens are those left, of
which `mass` (float64) is what `weigh` makes. What else there is, see `verify_cpu.py`; `Room` is scratch:

    excess          float64, of the target's tokens
    left, d         int32, float32: what is left of the target's law, and ln of its parts
    shares          float64, of a chain's beginnings
    below           int64, the children of a node
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sortition.sampling.cpu_edits import edit, edited
from sortition.sampling.cpu_filters import entropy, log_total
from sortition.sampling.cpu_law import scan
from sortition.sampling.cpu_numerics import (
    MASS_ONE,
    ROUNDER,
    ROUNDER_BITS,
    ZERO,
    compiled,
    entry,
    exp,
    inlined,
    log,
    philox,
    rounded,
)
from sortition.sampling.cpu_rows import digest, law_of, race
from sortition.sampling.draw import NO_TOKEN
from sortition.sampling.noise import COIN
from sortition.sampling.verification import (
    BLOCK,
    COUPLED,
    DISTINCT,
    GREEDY,
    TYPICAL,
    TYPICAL_SHARE,
    TYPICAL_SPREAD,
)
from sortition.sampling.verify_rules import ROOT, SUM_BITS

LOW: Final = np.uint64(0xFFFFFFFF)
HIGH: Final = np.uint64(32)
SUM_ONE: Final = 2.0**SUM_BITS
NONE: Final = -1
"""Number of no candidate."""


@compiled
def law_at(place: int, logits: Any, side: Any) -> tuple[int, int]:
    """The law of a place: how many tokens it leaves, and its flags."""
    settings, batch, law = side.settings, side.batch, side.law
    values = logits
    if edited(place, settings, batch):
        values = law.values
        values[:] = logits
        edit(values, place, settings, batch, law.counts, law.keys)
    top, flags, some_out = scan(values, law.peaks)
    if flags:
        return 0, flags
    return law_of(values, top, some_out, place, settings, law), 0


@compiled
def draft_at(row: int, node: int, logits: Any, drafts: Any, side: Any) -> tuple[int, float]:
    """The law of a node's draft: how many tokens it leaves, and the sum of their masses."""
    if drafts.certain:
        side.tokens[0] = drafts.tokens[row, node]
        side.mass[0] = 1.0
        return 1, 1.0
    n, _ = law_at(place_of(row, drafts.parents[row, node], drafts.tokens), logits[node], side)
    return n, weigh(n, side)


@inlined
def place_of(row: int, node: int, tokens: Any) -> int:
    """After a node."""
    return row * (tokens.shape[1] + 1) + node + 1


@compiled
def weigh(n: int, side: Any) -> float:
    """The masses of the tokens; returns their sum."""
    return weigh_each(n, side.d, side.chances, side.mass)


@compiled
def weigh_each(n: int, d: Any, chances: Any, mass: Any) -> float:
    for i in range(n):
        chances[i] = exp(d[i])
    return round_each(n, chances, MASS_ONE, mass)


@compiled
def round_each(n: int, parts: Any, one: float, mass: Any) -> float:
    """Parts, of which this is one, as the nearest integers; returns their sum."""
    total: Any = 0
    for i in range(n):
        # As `rounded`, which has the integer in its bits.
        shifted = np.float64(parts[i]) * one + ROUNDER
        mass[i] = shifted - ROUNDER
        total += np.float64(shifted).view(np.int64) - ROUNDER_BITS
    return np.float64(total)


@compiled
def index_of(token: int, tokens: Any, n: int) -> int:
    """Where a token is among the first, which ascend; -1 for nowhere."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if tokens[middle] < token:
            low = middle + 1
        else:
            high = middle
    return low if low < n and tokens[low] == token else -1


@compiled
def mass_of(token: int, tokens: Any, mass: Any, n: int) -> float:
    at = index_of(token, tokens, n)
    return mass[at] if at >= 0 else 0.0


@compiled
def logprob(d: Any, total: float) -> Any:
    """`reference.Law.logprob` of a token, by its d and the mass of all."""
    return np.float32(np.float64(d) - log_total(total))


@compiled
def coin_of(seed: Any, position: Any, number: int) -> float:
    """`noise.coin`."""
    key = np.uint64(seed)
    high, low, _, _ = philox(np.uint64(number), np.uint64(position), np.uint64(COIN), key & LOW, key >> HIGH)
    return (np.float64((high << np.uint64(20)) | (low >> np.uint64(12))) + 0.5) * 2.0**-52


@compiled
def accepts(coin: float, p: float, q: float) -> bool:
    """`verify_rules.accepts`."""
    return q > 0.0 and coin * q < p


@compiled
def take_excess(
    share: float, tokens: Any, mass: Any, n: int, total: float,
    drafted: Any, draft_mass: Any, m: int, draft_total: float, excess: Any,
) -> float:  # fmt: skip
    """`verify_rules.excess` of the target's tokens; returns the greatest."""
    most, at = 0.0, 0
    for i in range(n):
        while at < m and drafted[at] < tokens[i]:
            at += 1
        q = draft_mass[at] if at < m and drafted[at] == tokens[i] else 0.0
        excess[i] = max(share * (mass[i] * draft_total) - q * total, 0.0)
        most = max(most, excess[i])
    return most


@compiled
def take_residual(excess: Any, n: int, most: float, mass: Any) -> float:
    """The excess as masses; returns their sum."""
    for i in range(n):
        excess[i] = excess[i] / most
    return round_each(n, excess, MASS_ONE, mass)


@compiled
def draw(place: int, n: int, changed: bool, side: Any, room: Any) -> tuple[int, int]:
    """Draw from the law, or from the masses that it has been changed to: its token, and the mass of all."""
    law, batch = side.law, side.batch
    d, tokens, count = law.d, law.tokens, n
    if changed:
        d, tokens = room.d, room.left
        count = take_left(law.tokens, side.mass, n, tokens, d)
    key = np.uint64(batch.seeds[place]), np.uint64(batch.positions[place]), np.uint64(batch.stream)
    winner, total = race(d, tokens, count, *key, law.chances, law.words, law.quads)
    return index_of(tokens[winner], law.tokens, n), total


@compiled
def take_left(tokens: Any, mass: Any, n: int, left: Any, d: Any) -> int:
    """The tokens that have a mass, and ln of it; returns how many there are."""
    count = 0
    for i in range(n):
        left[count] = tokens[i]
        d[count] = np.float32(mass[i] / MASS_ONE)
        count += mass[i] > 0.0
    for i in range(count):
        d[i] = log(d[i])
    return count


@compiled
def likeliest(d: Any, n: int) -> int:
    best = 0
    for i in range(n):
        if d[i] > d[best]:
            best = i
    return best


@compiled
def least_typical(n: int, total: float, law: Any) -> float:
    """The mass that a typical token is above."""
    spread = np.float64(exp(min(-entropy(n, np.int64(total), law), ZERO)))
    return min(TYPICAL_SHARE, TYPICAL_SPREAD * spread) * total


@compiled
def find_children(node: int, parents: Any, tokens: Any, below: Any) -> int:
    """The children of a node of a row's tree; returns how many."""
    count = 0
    for child in range(node + 1, len(tokens)):
        if parents[child] == node and tokens[child] >= 0:
            below[count] = child
            count += 1
    return count


@compiled
def first_equal(token: int, drafts: Any, below: Any, count: int) -> int:
    """`verify_rules.first_equal`, of a row's drafts."""
    for number in range(count):
        if drafts[below[number]] == token:
            return number
    return NONE


@compiled
def first_above(least: float, drafts: Any, below: Any, count: int, tokens: Any, mass: Any, n: int) -> int:
    """The first candidate that has more than this mass."""
    for number in range(count):
        if mass_of(drafts[below[number]], tokens, mass, n) > least:
            return number
    return NONE


@compiled
def rule_out(drafts: Any, below: Any, count: int, tokens: Any, mass: Any, n: int) -> float:
    """Take candidates out of the law that they were drawn from; returns the mass of what is left."""
    for number in range(count):
        at = index_of(drafts[below[number]], tokens, n)
        if at >= 0:
            mass[at] = 0.0
    total = 0.0
    for i in range(n):
        total += mass[i]
    return total


@inlined
def first_accepted(
    row: int,
    place: int,
    n: int,
    total: float,
    count: int,
    logits: Any,
    drafts: Any,
    target: Any,
    draft: Any,
    room: Any,
) -> tuple[int, bool]:
    """`verify_rules.first_accepted`: a candidate's number, and whether the target's masses have changed."""
    changed = False
    found = NONE
    number = 0
    while found == NONE and number < count:
        node = room.below[number]
        m, whole = draft_at(row, node, logits, drafts, draft)
        if drafts.methods[row] == DISTINCT:
            whole = rule_out(drafts.tokens[row], room.below, number, draft.tokens, draft.mass, m)
        token = drafts.tokens[row, node]
        p = mass_of(token, target.tokens, target.mass, n) * whole
        q = mass_of(token, draft.tokens, draft.mass, m) * total
        if accepts(coin_of(drafts.coins[row], drafts.positions[place], number), p, q):
            found = number
        else:
            most = take_excess(
                1.0, target.tokens, target.mass, n, total, draft.tokens, draft.mass, m, whole, room.excess
            )
            if most > 0.0:
                total = take_residual(room.excess, n, most, target.mass)
                changed = True
        number += 1
    return found, changed


@inlined
def verify_tree(
    row: int, targets: Any, logits: Any, drafts: Any, target: Any, draft: Any, room: Any, found: Any
) -> None:
    """`verify_rules.walk` by a row's method."""
    method = drafts.methods[row]
    node, accepted, number = ROOT, 0, 0
    while number != NONE:
        place = place_of(row, node, drafts.tokens)
        n, flags = law_at(place, targets[node + 1], target)
        if flags:
            found.flags[row] = flags
            break
        total = 0.0 if method == COUPLED else weigh(n, target)
        count = find_children(node, drafts.parents[row], drafts.tokens[row], room.below)
        number, winner, changed = NONE, NONE, False
        if method == GREEDY:
            winner = likeliest(target.d, n)
        elif method == TYPICAL:
            least = least_typical(n, total, target.law)
            number = first_above(least, drafts.tokens[row], room.below, count, target.tokens, target.mass, n)
        elif method != COUPLED:
            number, changed = first_accepted(row, place, n, total, count, logits, drafts, target, draft, room)
        if number != NONE:
            winner = index_of(drafts.tokens[row, room.below[number]], target.tokens, n)
        elif winner == NONE:
            winner, mass = draw(place, n, changed, target, room)
            total = np.float64(mass) if method == COUPLED else total
        if method in (COUPLED, GREEDY):
            number = first_equal(target.tokens[winner], drafts.tokens[row], room.below, count)
        found.tokens[row, accepted] = target.tokens[winner]
        found.logprobs[row, accepted] = logprob(target.d[winner], total)
        if number != NONE:
            node = room.below[number]
            found.path[row, accepted] = node
            accepted += 1
    found.accepted[row] = accepted


@inlined
def verify_chain(
    row: int, targets: Any, logits: Any, drafts: Any, target: Any, draft: Any, room: Any, found: Any
) -> None:
    """`verify_rules.block` of a row's chain."""
    tokens, first = drafts.tokens[row], place_of(row, ROOT, drafts.tokens)
    length, accepted, share, whole = 0, 0, 1.0, 1.0
    n, total, flags = 0, 0.0, 0
    while whole > 0.0:
        n, flags = law_at(first + length, targets[length], target)
        total = weigh(n, target)
        m, whole = 0, 0.0
        if not flags and length < len(tokens) and tokens[length] >= 0:
            m, whole = draft_at(row, length, logits, drafts, draft)
        room.shares[length] = share
        if length > 0:
            coin = coin_of(drafts.coins[row], drafts.positions[first + length - 1], 0)
            if whole == 0.0:
                stands = accepts(coin, share, 1.0)
            else:
                take_excess(
                    share,
                    target.tokens,
                    target.mass,
                    n,
                    total,
                    draft.tokens,
                    draft.mass,
                    m,
                    whole,
                    room.excess,
                )
                stands = block_stands(coin, share, room.excess, n, total * whole)
            accepted = length if stands else accepted
        if whole > 0.0:
            token = tokens[length]
            at = index_of(token, target.tokens, n)
            q = mass_of(token, draft.tokens, draft.mass, m) * total
            share = carried(share, mass_of(token, target.tokens, target.mass, n) * whole, q)
            found.tokens[row, length] = token
            found.path[row, length] = length
            found.logprobs[row, length] = logprob(target.d[at], total) if at >= 0 else -np.inf
            length += 1
    found.accepted[row] = accepted
    found.tokens[row, accepted:] = NO_TOKEN
    found.path[row, accepted:] = NO_TOKEN
    found.logprobs[row, accepted:] = -np.inf
    changed = False
    if accepted < length:
        n, flags = law_at(first + accepted, targets[accepted], target)
        total = weigh(n, target)
        m, whole = draft_at(row, accepted, logits, drafts, draft)
        share = room.shares[accepted]
        most = take_excess(
            share, target.tokens, target.mass, n, total, draft.tokens, draft.mass, m, whole, room.excess
        )
        changed = most > 0.0
        if changed:
            take_residual(room.excess, n, most, target.mass)
    found.flags[row] = flags
    if not flags:
        winner, _ = draw(first + accepted, n, changed, target, room)
        found.tokens[row, accepted] = target.tokens[winner]
        found.logprobs[row, accepted] = logprob(target.d[winner], total)


@compiled
def carried(share: float, p: float, q: float) -> float:
    """`verify_rules.carried`."""
    return min(share * p / q, 1.0) if q > 0.0 else 0.0


@compiled
def block_stands(coin: float, share: float, excess: Any, n: int, whole: float) -> bool:
    """`verify_rules.block_stands`."""
    if share >= 1.0:
        return True
    total = 0
    for i in range(n):
        total += rounded(excess[i] / whole * SUM_ONE)
    more = np.float64(total) / SUM_ONE
    return accepts(coin, more, more + (1.0 - share))


def _compiled_with(sources: str) -> tuple[Any, Any]:
    """The loops over rows, kept on disk as that of `cpu_rows.py` is.

    Args of both:
        targets: float32 [rows, nodes + 1, vocabulary], of some of a batch's rows.
        logits: float32 [rows, nodes, vocabulary of the drafter].
        first: of these rows in the batch.
        drafts, target, draft, room, found: see `verify_cpu.py`.
    """

    @entry
    def trees(
        targets: Any, logits: Any, first: int, drafts: Any, target: Any, draft: Any, room: Any, found: Any
    ) -> None:
        """Verify rows of every method but "block"."""
        sources  # noqa: B018
        for at in range(len(targets)):
            if drafts.methods[first + at] != BLOCK:
                verify_tree(first + at, targets[at], logits[at], drafts, target, draft, room, found)

    @entry
    def chains(
        targets: Any, logits: Any, first: int, drafts: Any, target: Any, draft: Any, room: Any, found: Any
    ) -> None:
        """Verify rows whose method is "block"."""
        sources  # noqa: B018
        for at in range(len(targets)):
            if drafts.methods[first + at] == BLOCK:
                verify_chain(first + at, targets[at], logits[at], drafts, target, draft, room, found)

    return trees, chains


trees, chains = _compiled_with(
    digest(
        *("cpu.py", "cpu_rows.py", "cpu_edits.py", "cpu_filters.py", "cpu_law.py", "cpu_numerics.py"),
        *("columns.py", "draw.py", "noise.py", "numerics.py", "parameters.py", "reference.py"),
        *("verification.py", "verify_cpu_rows.py", "verify_rules.py"),
    )
)
