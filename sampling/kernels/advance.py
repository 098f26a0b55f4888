"""Where tokens take rows in their grammars, and which classes of tokens may come next: `Constraint`, by row.

A slot is read in one program: first the tokens that have been committed since it was last read, which move
it; then the drafts of this step, each of which has a row of logits of its own, and moves only that.

What functions need of the arena's tables is in tuples: `following_of` for `find`, `ending_of` for `can_end`,
and `reading` for what else `step` needs. So is what belongs to a text: its stack, and its frames' counts.

Nothing here is compiled for the sizes of grammars, which come while an engine runs: what has no fixed size is
gone through in pieces.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from sortition.sampling.kernels.numerics import counted

FREE = tl.constexpr(-1)
DEAD = tl.constexpr(-1)
IS_FREE = tl.constexpr(1)
"""Fact of a row: it has no grammar."""
MAY_END = tl.constexpr(2)
"""Fact of a row: end tokens may come next."""

# Pieces are as long as most grammars need: a warp has 32 lanes, whose loads do not wait for each other.
LEVELS = tl.constexpr(32)
"""Levels of a stack that are copied at a time."""
SITES = tl.constexpr(16)
"""Call sites that are pushed at a time."""
WORDS = tl.constexpr(64)
"""Words of classes at a time."""
UNITS = tl.constexpr(64)
"""Conditional classes at a time."""
ENDS = tl.constexpr(16)
"""End tokens at a time."""


# What grammars bring must not make another kernel; drafts may be a part of something.
@triton.jit(
    do_not_specialize=[
        *("vocabulary", "certain_size", "token_words", "longest_exit", "longest_end", "counting"),
        *("most_alternatives", "limit", "rows", "tokens_size", "end_tokens_size"),
    ],
    do_not_specialize_on_alignment=["drafts", "local"],
)
def advance(
    depth_limit, token_class, vocabulary, row_start, survives, certain, certain_size, rank, first_entry,
    action, target, effect, height, guard, otherwise, least, greatest, added,
    conditional_start, conditional_count, conditional,
    push_start, push_length, push_site, push_count, ending, return_start, returns, accepting,
    present, token_words, longest_exit, longest_end, counting, most_alternatives,
    slot_grammar, slot_state, slot_depth, slot_stack, slot_finished, slot_counts, limit, read, refused,
    row_slots, local, rows, tokens, tokens_size, totals, drafts, end_tokens, end_tokens_size,
    row_grammar, row_state, row_depth, row_stack, row_finished, row_counts, row_classes, row_facts,
):  # fmt: skip
    """Grid (rows); the program of a slot's first row does the work for all of them.

    Args:
        depth_limit to most_alternatives: of `Arena`; `certain_size` is the length of `certain`, `counting` is
            `Arena.counts`, and `present` int32 [g, token_words], a bit for each class that has a token among
            the logits.
        slot_grammar to slot_counts: of `Constraint.slots`, changed; a stack has `limit` call sites, and one
            count more.
        read: int64 [slots], how many of the slot's tokens have been read; changed.
        refused: int64, added to.
        row_slots: int64 [rows], which slot each row is of.
        local: int32 [rows], how many drafts come before a row; a slot's rows stand one after another.
        tokens, tokens_size: int32 [slots, n].
        totals: int32 [slots], how many of them are committed.
        drafts: int32 [rows], the draft before each row but a slot's first; a negative one reads nothing.
        end_tokens, end_tokens_size: int64 [slots, n].
        row_grammar to row_counts: as of slots, by row; written, but not above a row's depth.
        row_classes: int32 [rows, token_words], a bit for each class that may come next; written.
        row_facts: int32 [rows], `IS_FREE` and `MAY_END`; written.
    """
    first = tl.program_id(0)
    if tl.load(local + first) > 0:
        return
    slot = tl.load(row_slots + first)
    following_of = (
        depth_limit, row_start, survives, rank, first_entry, action, target, effect, height,
        guard, otherwise, least, greatest, return_start, returns, longest_exit, counting, most_alternatives,
    )  # fmt: skip
    ending_of = (ending, return_start, returns, accepting, longest_end)
    reading = (
        token_class, vocabulary, effect, target, push_start, push_length, push_site,
        guard, added, push_count, counting,
    )  # fmt: skip
    arena = (following_of, ending_of, reading)
    ends = (end_tokens + slot * end_tokens_size, end_tokens_size)
    grammar = tl.load(slot_grammar + slot)
    state, depth = tl.load(slot_state + slot), tl.load(slot_depth + slot)
    finished = tl.load(slot_finished + slot).to(tl.int32)
    text = (slot_stack + slot * limit, slot_counts + slot * (limit + 1))
    was_dead = state == DEAD
    begin = tl.load(read + slot).to(tl.int32)
    total = tl.maximum(tl.minimum(tl.load(totals + slot), tokens_size), begin)
    for at in range(begin, total):
        token = tl.load(tokens + slot * tokens_size + at)
        state, depth, finished = step(arena, grammar, state, depth, finished, text, token, ends)
    tl.store(slot_state + slot, state)
    tl.store(slot_depth + slot, depth)
    tl.store(slot_finished + slot, finished.to(tl.int1))
    tl.store(read + slot, total.to(tl.int64))
    died = (grammar != FREE) & (state == DEAD) & (was_dead == 0)
    tl.atomic_add(refused, died.to(tl.int64))

    row = first
    its = first >= 0
    while its:
        wide = row.to(tl.int64)
        above = (row_stack + wide * limit, row_counts + wide * (limit + 1))
        copy(text, above, depth)
        text = above
        tl.debug_barrier()
        if row > first:
            token = tl.load(drafts + row)
            state, depth, finished = step(arena, grammar, state, depth, finished, text, token, ends)
        tl.store(row_grammar + row, grammar)
        tl.store(row_state + row, state)
        tl.store(row_depth + row, depth)
        tl.store(row_finished + row, finished.to(tl.int1))

        walking = is_walking(grammar, state, finished)
        base = tl.maximum(state, 0)
        words = row_classes + wide * token_words
        for word_of in range(0, token_words, WORDS):
            word = word_of + tl.arange(0, WORDS)
            # A row of another table may be shorter; what is read beyond it are bits of classes of no token.
            at_word = tl.minimum(tl.load(row_start + base) + word, certain_size - 1)
            classes = tl.where(walking, tl.load(certain + at_word).to(tl.int32), 0)
            tl.store(words + word, classes, mask=word < token_words)
        tl.debug_barrier()
        open_questions = tl.where(walking, tl.load(conditional_count + base), 0)
        for unit_of in range(0, open_questions, UNITS):
            some = unit_of + tl.arange(0, UNITS)
            exists = some < open_questions
            unit = tl.load(conditional + tl.load(conditional_start + base) + some, mask=exists, other=0)
            nothing = tl.zeros_like(unit)
            found, _chosen, _depth = find(following_of, grammar, nothing + state, nothing + depth, text, unit)
            tl.atomic_or(words + (unit >> 5), 1 << (unit & 31), mask=found & exists)
        tl.debug_barrier()
        known = present + tl.maximum(grammar, 0).to(tl.int64) * token_words
        left = tl.zeros([], tl.int32)
        for word_of in range(0, token_words, WORDS):
            word = word_of + tl.arange(0, WORDS)
            classes = tl.load(words + word, mask=word < token_words, other=0)
            classes &= tl.load(known + word, mask=word < token_words, other=0)
            left |= tl.max((classes != 0).to(tl.int32), axis=0)
        stranded = walking & (left == 0)
        may_end = can_end(ending_of, grammar, state, depth, finished, text)
        may_end |= stranded | (finished != 0) | ((grammar != FREE) & (state == DEAD))
        facts = tl.where(grammar == FREE, IS_FREE, 0) | tl.where(may_end, MAY_END, 0)
        tl.store(row_facts + row, facts)
        row += 1
        its = tl.load(local + row, mask=row < rows, other=0) == row - first


@triton.jit
def copy(text, to, depth):
    """Write the stack and the counts of a text as those of another."""
    stack, counts = text
    stack_to, counts_to = to
    for level_of in range(0, depth + 1, LEVELS):
        level = level_of + tl.arange(0, LEVELS)
        tl.store(stack_to + level, tl.load(stack + level, mask=level < depth, other=0), mask=level < depth)
        count = tl.load(counts + level, mask=level <= depth, other=0)
        tl.store(counts_to + level, count, mask=level <= depth)


@triton.jit
def is_walking(grammar, state, finished):
    """`Position.walking`."""
    return (grammar != FREE) & (state != DEAD) & (finished == 0)


@triton.jit
def step(arena, grammar, state, depth, finished, text, token, ends):
    """`Constraint.step` of one row, whose stack and counts are changed in place."""
    following_of, ending_of, reading = arena
    (
        token_class, vocabulary, effect, target, push_start, push_length, push_site,
        guard, added, push_count, counting,
    ) = reading  # fmt: skip
    stack, counts = text
    first_end, end_count = ends
    if is_walking(grammar, state, finished) & (token >= 0):
        is_end = tl.zeros([], tl.int32)
        for end_of in range(0, end_count, ENDS):
            at = end_of + tl.arange(0, ENDS)
            end = tl.load(first_end + at, mask=at < end_count, other=-1)
            is_end |= tl.max((end == token).to(tl.int32), axis=0)
        known = tl.minimum(token, vocabulary - 1)
        unit = tl.load(token_class + grammar.to(tl.int64) * vocabulary + known)
        unit = tl.where(known == token, unit, 0)
        found, chosen, below = find(following_of, grammar, state, depth, text, unit)
        if is_end != 0:
            if can_end(ending_of, grammar, state, depth, finished, text):
                finished = finished * 0 + 1
            else:
                state = state * 0 + DEAD
        elif found:
            string = tl.load(effect + chosen)
            length = tl.load(push_length + string)
            start = tl.load(push_start + string)
            tl.debug_barrier()
            if counting != 0:
                count = tl.load(counts + below)
                tl.debug_barrier()
                tl.store(counts + below, count + tl.load(added + tl.load(guard + chosen)))
            for site_of in range(0, length, SITES):
                site = site_of + tl.arange(0, SITES)
                pushed = tl.load(push_site + start + site, mask=site < length, other=0)
                tl.store(stack + below + site, pushed, mask=site < length)
                # A frame that is entered stands one above the site.
                count = tl.load(push_count + start + site, mask=site < length, other=0)
                tl.store(counts + below + 1 + site, count, mask=site < length)
            depth = below + length
            state = tl.load(target + chosen)
        else:
            state = state * 0 + DEAD
        tl.debug_barrier()
    return state, depth, finished


@triton.jit
def can_end(ending_of, grammar, state, depth, finished, text):
    """`Constraint.can_end` of one row."""
    ending, return_start, returns, accepting, longest_end = ending_of
    stack, _counts = text
    alive = is_walking(grammar, state, finished)
    ends = alive & (tl.load(accepting + tl.maximum(state, 0)) != 0)
    level = 0
    while alive & (level < longest_end):
        ended = tl.load(ending + tl.maximum(state, 0))
        alive = (depth > 0) & (ended >= 0)
        if alive:
            depth -= 1
            state = tl.load(returns + tl.load(return_start + ended) + tl.load(stack + depth))
            alive = state >= 0
            ends |= alive & (tl.load(accepting + tl.maximum(state, 0)) != 0)
        level += 1
    return ends


@triton.jit
def find(following_of, grammar, state, depth, text, unit):
    """`Constraint._find` of one row, and of any shape: what `state`, `depth` and `unit` have."""
    (
        depth_limit, row_start, survives, rank, first_entry, action, target, effect, height,
        guard, otherwise, least, greatest, return_start, returns, longest_exit, counting, most_alternatives,
    ) = following_of  # fmt: skip
    stack, counts = text
    following = state != DEAD
    state = tl.maximum(state, 0)
    chosen = tl.zeros_like(unit)
    found = unit < 0
    for exits in range(longest_exit + 1):
        word = tl.load(row_start + state) + (unit >> 5)
        bits = tl.load(survives + word).to(tl.int32)
        bit = 1 << (unit & 31)
        stays = following & ((bits & bit) != 0)
        before = tl.load(rank + word) + counted((bits & (bit - 1)).to(tl.uint32, bitcast=True))
        entry = tl.where(stays, tl.load(first_entry + state) + before, 0)
        chosen = tl.where(stays, tl.load(action + entry), chosen)
        if counting != 0:
            # `Constraint._guarded`: those whose guards fail give way to others.
            count = tl.load(counts + depth)
            for _ in range(most_alternatives + 1):
                its_guard = tl.load(guard + chosen)
                holds = (tl.load(least + its_guard) <= count) & (count <= tl.load(greatest + its_guard))
                other = tl.load(otherwise + chosen)
                stays = stays & (holds | (other >= 0))
                chosen = tl.where(stays & (holds == 0), other, chosen)
        does = tl.load(effect + chosen)
        found |= stays & (does >= 0)
        following = stays & (does < 0) & (depth > 0)
        if exits < longest_exit:
            depth -= following.to(tl.int32)
            site = tl.load(stack + tl.where(following, depth, 0))
            start = tl.load(return_start + tl.where(following, ~does, 0))
            back = tl.load(returns + tl.where(following, start + site, 0))
            state = tl.where(following, tl.maximum(back, 0), state)
            unit = tl.where(following, tl.load(target + chosen), unit)
            following = following & (back >= 0)
    room = tl.load(depth_limit + tl.maximum(grammar, 0)) - tl.load(height + chosen)
    return found & (depth <= room), chosen, depth
