"""Which states can still reach an end, and how much room on the stack that takes.

A mask must never lead into a dead end. Two things can make one that the machine itself does not have: a
vocabulary that lacks some bytes as tokens of their own, and a limit on the depth of the stack. Both are
questions about *frames*: from a state, with which endings can its frame be ended? A state is safe if for
every call site that can be below its frame there is one of those endings whose return is safe.

The answers are greatest fixpoints (states are unsafe once shown to be) around least ones (an ending counts
only if some path reaches it). A text may be completed in any way that is open, so one path is enough while
inside a frame; but which ending a frame will have is not known when it is entered, so a call site needs
room for all of them. Where that is too much to ask (an object with a required key, and other keys that hold
more such objects: at the limit only the required key may be begun, which no count of frames can say), room
for one of them has to do, and a text that runs into the limit there may be stranded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from sortition.grammars import accelerate
from sortition.grammars.compose import spread
from sortition.grammars.partition import distinct_columns

if TYPE_CHECKING:
    from sortition.grammars.machine import Machine

NEVER: Final = 1 << 14
"""More room than any stack has."""

Ints = NDArray[np.int32]
Wide = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Frames:
    """What can happen inside one frame in one step, be it a byte or a token.

    States beyond the machine's are auxiliary: the last one, which is always safe, is where an accepted text
    goes, as if the root frame returned to it from a site of its own, the last one, by an ending of its own.

    Attributes:
        plain: int64 [2, edges], source and target of steps that stay in the frame.
        calls: int64 [3, edges], source, site and target of steps that enter a frame above.
        ended: int64 [2, pairs], state and ending of frames that can end there.
        entered: int64 [2, calls], state and site of frames that are entered from there.
        onward: int64 [2, edges], source and target of what goes on in a frame, over frames above it, too.
        returns: int64 [endings + 1, sites + 1], -1 where this never happens.
        states: number of states, the machine's and the others.
    """

    plain: Wide
    calls: Wide
    ended: Wide
    entered: Wide
    onward: Wide
    returns: Wide
    states: int

    @staticmethod
    def of_bytes(machine: Machine) -> Frames:
        """Frames as bytes go through them."""
        plain, calls = accelerate.best(steps_of)(machine.move, machine.call)
        return _frames(machine, plain, calls, np.empty((2, 0), np.int64), len(machine.move))

    @staticmethod
    def of_tokens(
        machine: Machine, state: Wide, target: Wide, string: Wide, ended: Wide, sites: Ints
    ) -> Frames:
        """Frames as tokens go through them.

        Args:
            machine: the machine.
            state, target, string: of every way in which a token stays, string as a row of `sites`.
            ended: int64 [2, pairs], state and ending where a token ends a frame with its last byte.
            sites: int32 [strings, longest], the sites of each string, padded with -1.
        """
        edges = distinct(np.stack([state, string, target]))
        lengths = (sites >= 0).sum(axis=1)
        plain = edges[:, lengths[edges[1]] == 0][::2]
        # Pushing several sites is calling from one auxiliary state after the other.
        count = len(machine.move)
        auxiliary: dict[tuple[int, int], int] = {}
        calls: set[tuple[int, int, int]] = set()
        for source, number, inner in edges[:, lengths[edges[1]] > 0].T.tolist():
            for site in sites[number, : lengths[number]].tolist()[:0:-1]:
                caller = auxiliary.setdefault((site, inner), count + len(auxiliary))
                calls.add((caller, site, inner))
                inner = caller
            calls.add((source, int(sites[number, 0]), inner))
        edges = np.array(sorted(calls), np.int64).reshape(-1, 3).T
        return _frames(machine, plain, edges, ended, count + len(auxiliary))


def steps_of(move: Ints, call: Ints) -> tuple[Wide, Wide]:
    """`Frames.plain` and `Frames.calls` of single bytes: each step once, in order."""
    # Neighbouring classes often lead to the same place: the first of them is enough to sort.
    differs = np.ones(move.shape, np.bool_)
    differs[:, 1:] = (move[:, 1:] != move[:, :-1]) | (call[:, 1:] != call[:, :-1])
    source, unit = places(differs & (move >= 0))
    edges = distinct(np.stack([source, call[source, unit] + 1, move[source, unit]]))
    edges[1] -= 1
    return edges[:, edges[1] < 0][::2], edges[:, edges[1] >= 0]


def _frames(machine: Machine, plain: Wide, calls: Wide, ended: Wide, states: int) -> Frames:
    endings, sites = machine.returns.shape
    returns = np.full((endings + 1, sites + 1), -1, np.int64)
    returns[:endings, :sites] = machine.returns
    # An accepted text may end whatever is below: plain text that went along inside a nested part does.
    returns[endings] = states
    over = np.flatnonzero(machine.ending >= 0)
    accepting = np.flatnonzero(machine.accepting)
    ended = np.hstack(
        [
            ended,
            np.stack([over, machine.ending[over]]),
            np.stack([accepting, np.full_like(accepting, endings)]),
            [[states], [endings]],
        ]
    )
    # Inside a frame one goes on along plain steps, and from a call to wherever it may return.
    caller, site = distinct(calls[:2])
    ending, returning = places(machine.returns >= 0)
    order = np.argsort(returning, kind="stable")
    first = np.searchsorted(returning[order], np.arange(sites + 1))
    which, at = spread(first[site], first[site + 1] - first[site])
    returning_to = machine.returns[ending[order][at], site[which]].astype(np.int64)
    onward = np.hstack([plain, np.stack([caller[which], returning_to])])
    entered = np.stack([np.append(calls[2], 0), np.append(calls[1], sites)])
    return Frames(plain, calls, ended, entered, onward, returns, states + 1)


def sites_below(frames: Frames, safe: Flags) -> Wide:
    """int64 [2, pairs]: the states, and the sites that can be below their frames.

    One site stands for all from which the same endings return to safe states: there may be thousands.
    """
    kinds, kind_of_site = distinct_columns((frames.returns >= 0) & safe[frames.returns])
    found = accelerate.best(spread_labels)(
        frames.onward[0],
        frames.onward[1],
        frames.entered[0],
        kind_of_site[frames.entered[1]],
        (frames.states, len(kinds)),
    )
    state, kind = places(found)
    return np.stack([state, kinds[kind]])


def safe_states(frames: Frames) -> Flags:
    """bool [states]: from where the text can be completed, whatever is on the stack."""
    safe = np.ones(frames.states, np.bool_)
    while True:
        # Calls become steps to where they return to, once it is known with which endings.
        ends = _endings(frames, safe, np.empty((2, 0), np.int64))
        while True:
            source, _, onward = _returns_of_calls(frames, safe, ends)
            more = _endings(frames, safe, np.stack([source, onward]))
            if (more == ends).all():
                break
            ends = more
        still = safe & ~_stuck(frames, safe, ends, sites_below(frames, safe))
        if (still == safe).all():
            return safe
        safe = still


def room_needed(frames: Frames, safe: Flags, limit: int) -> tuple[Wide, Wide]:
    """How much room the shortest way out takes: int64 [states], and int64 [sites] for wherever they return.

    Room is the number of call sites that fit above the frame. `NEVER` where `limit` is not enough.
    """
    need = np.full(frames.states, NEVER, np.int64)
    site_need = np.full(frames.returns.shape[1], NEVER, np.int64)
    returned = np.where(frames.returns >= 0, frames.returns, frames.states - 1)
    good = np.zeros(frames.states, np.bool_)
    ends = np.zeros((frames.states, len(frames.returns)), np.bool_)
    whatever_ends = True
    below = sites_below(frames, safe)
    for room in range(limit + 1):
        before, ends_before = good, ends
        source, site, onward = _returns_of_calls(frames, good, ends)
        good = safe
        while True:
            if whatever_ends:
                returns_well = (good[returned] | ~safe[returned]).all(axis=0)
            else:
                returns_well = ((frames.returns >= 0) & good[returned]).any(axis=0) | (site_need < room)
            usable = returns_well[site] & good[onward]
            ends = _endings(frames, good, np.stack([source[usable], onward[usable]]))
            still = good & ~_stuck(frames, safe, ends, below)
            if (still == good).all():
                break
            good = still
        need[good & (need == NEVER)] = room
        site_need[returns_well & (site_need == NEVER)] = room
        if (good == safe).all():
            break
        # From a level like the one before on, nothing would ever change.
        whatever_ends &= room == 0 or bool((good != before).any() or (ends != ends_before).any())
    return need, site_need


def _endings(frames: Frames, good: Flags, more: Wide) -> Flags:
    """bool [states, endings]: the endings that paths through good states can reach."""
    source, target = np.hstack([frames.plain, more])
    kept = good[target]
    state, ending = frames.ended
    spread_out = accelerate.best(spread_labels)
    return spread_out(target[kept], source[kept], state, ending, (frames.states, len(frames.returns)))


def _returns_of_calls(frames: Frames, good: Flags, ends: Flags) -> tuple[Wide, Wide, Wide]:
    """Source, site and return state of calls into good states, for all endings known."""
    source, site, target = frames.calls[:, good[frames.calls[2]]]
    state, ending = places(ends)
    first = np.searchsorted(state, np.arange(frames.states + 1))
    which, at = spread(first[target], first[target + 1] - first[target])
    onward = frames.returns[ending[at], site[which]]
    known = onward >= 0
    source, site, onward = distinct(np.stack([source[which], site[which], onward])[:, known])
    return source, site, onward


def _stuck(frames: Frames, safe: Flags, ends: Flags, below: Wide) -> Flags:
    """States with a call site below for which no ending in reach returns to a safe state."""
    state, site = below
    facts, ending = places(ends)
    first = np.searchsorted(facts, np.arange(frames.states + 1))
    which, at = spread(first[state], first[state + 1] - first[state])
    onward = frames.returns[ending[at], site[which]]
    returns = (onward >= 0) & safe[onward]
    way_out = np.bincount(which[returns], minlength=len(state)) > 0
    stuck = np.zeros(frames.states, np.bool_)
    stuck[state[~way_out]] = True
    return stuck


def places(marks: Flags) -> tuple[Wide, Wide]:
    """Row and column of each mark; `np.nonzero` takes four times as long where there are few."""
    row, column = np.divmod(np.flatnonzero(marks), max(marks.shape[1], 1))
    return row, column


def distinct(rows: Wide) -> Wide:
    """The distinct columns of some rows of non-negative numbers, sorted."""
    shape = tuple((rows.max(axis=1, initial=0) + 1).tolist())
    # As single numbers, which np.unique handles many times as fast as columns.
    return np.stack(np.unravel_index(np.unique(np.ravel_multi_index(tuple(rows), shape)), shape))


def spread_labels(source: Wide, target: Wide, states: Wide, labels: Wide, shape: tuple[int, int]) -> Flags:
    """bool [states, labels]: each label at the states where it is put, and wherever edges lead from there."""
    order = np.argsort(source, kind="stable")
    following = target[order]
    first = np.searchsorted(source[order], np.arange(shape[0] + 1))
    seen = np.zeros(shape, np.bool_)
    flat = seen.reshape(-1)
    fresh = np.unique(states * shape[1] + labels)
    while fresh.size:
        flat[fresh] = True
        state, label = np.divmod(fresh, shape[1])
        which, at = spread(first[state], first[state + 1] - first[state])
        reached = following[at] * shape[1] + label[which]
        fresh = np.unique(reached[~flat[reached]])
    return seen
