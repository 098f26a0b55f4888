"""What entries of a table can say: its actions, the strings of call sites they push, and their guards."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sortition.grammars import accelerate
from sortition.grammars.compose import NO_GUARD, NO_PUSH, SELF, Composition, spread

Ints = NDArray[np.int32]
Wide = NDArray[np.int64]


class Actions(NamedTuple):
    """What entries may say, int32; see `Table`. The first are to stay in state 0, 1, ... and push nothing."""

    target: Ints
    effect: Ints
    guard: Ints


def actions_of(
    composition: Composition, classes: Wide, class_of_map: Wide, states: int, endings: int
) -> tuple[Ints, Actions, tuple[Ints, Ints], Ints]:
    """What the outcomes of all classes say, what can be said, the strings that it pushes, and its guards.

    The first are the actions of the outcomes of the first class, and so on.
    """
    target, other, unit, effect = accelerate.best(outcomes_of)(composition, classes)
    leaves = effect < 0
    guard_of_exit, ending = np.divmod(~effect.astype(np.int64), max(endings, 1))
    string = np.where(leaves, NO_PUSH, effect)
    number_of_string, guard_of_string, push_sites, push_count = _strings(composition, string)
    guard, guards = _guards(composition, np.where(leaves, guard_of_exit, guard_of_string[string]))
    row = np.where(leaves, ~ending, number_of_string[string]) + endings
    left = np.where(target[other] == SELF, unit, class_of_map[np.where(leaves, target[other], 0)])
    width = max(states, len(classes) + 1)
    height = endings + len(push_sites)
    keys, number = ranked((guard * height + row) * width + np.where(leaves, left, target[other]))
    actions = Actions(
        np.append(np.arange(states), keys % width).astype(np.int32),
        np.append(np.zeros(states, np.int64), keys // width % height - endings).astype(np.int32),
        np.append(np.zeros(states, np.int64), keys // width // height).astype(np.int32),
    )
    action = target
    action[other] = states + number
    return action, actions, (push_sites, push_count), guards


def outcomes_of(composition: Composition, classes: Wide) -> tuple[Ints, Wide, Wide, Ints]:
    """The targets of the outcomes of all classes, one class after the other.

    And of those that do more than go on in a state: which they are, their classes and their effects.
    """
    begin = composition.start[classes]
    owner, at = spread(begin, composition.start[classes + 1] - begin)
    target, effect = (row.take(at) for row in composition.outcomes)
    other = np.flatnonzero(effect != NO_PUSH)
    return target, other, owner[other] + 1, effect[other]


def _guards(composition: Composition, used: Wide) -> tuple[Wide, Ints]:
    """Numbers of the used guards, and the guards [guards, 3]; the first is the one that always holds."""
    is_used = np.zeros(composition.guards.shape[1], np.bool_)
    is_used[used] = is_used[NO_GUARD] = True
    numbers = np.flatnonzero(is_used)
    low, high, added = composition.guards[:, numbers]
    order = np.lexsort((added, -high, low))
    renumbered = np.zeros(composition.guards.shape[1], np.int64)
    renumbered[numbers[order]] = np.arange(len(numbers))
    return renumbered[used], np.ascontiguousarray(composition.guards[:, numbers[order]].T)


def ranked(keys: Wide) -> tuple[Wide, Wide]:
    """The distinct keys, ascending, and which of them each key is."""
    bound = int(keys.max(initial=0)) + 1
    if bound > 8 * len(keys) + 4096:
        return np.unique(keys, return_inverse=True)
    present = np.zeros(bound, np.bool_)
    present[keys] = True
    rank = np.cumsum(present, dtype=np.int32)
    return np.flatnonzero(present), rank[keys] - np.int64(1)


def _strings(composition: Composition, used: NDArray[np.integer]) -> tuple[Wide, Wide, Ints, Ints]:
    """The number of each string that is used, but for its guard; the guard; and sites and counts of each.

    Strings are numbered by their sites, the empty one first, whatever their numbers were.
    """
    is_used = np.zeros(len(composition.push_parent), np.bool_)
    is_used[used] = is_used[NO_PUSH] = True
    strings = np.flatnonzero(is_used)
    sites, counts, guards = accelerate.best(spelled)(composition, strings)
    both = np.hstack([sites, counts])
    order = np.lexsort(both.T[::-1]) if both.size else np.arange(len(strings))
    both = both[order]
    differs = np.append(True, (both[1:] != both[:-1]).any(axis=1))
    number, guard = np.zeros((2, len(is_used)), np.int64)
    number[strings[order]] = np.cumsum(differs) - 1
    guard[strings] = guards
    sites, counts = (np.ascontiguousarray(table) for table in np.hsplit(both[differs], 2))
    return number, guard, sites, counts


def spelled(composition: Composition, strings: Wide) -> tuple[Ints, Ints, Ints]:
    """The sites and counts of each string, the top last, padded with -1 and 0; and the guards below them."""
    above = strings
    reversed_sites, reversed_counts = [], []
    while True:
        empty = composition.ends[above]
        if empty.all():
            break
        reversed_sites.append(np.where(empty, -1, composition.push_site[above]))
        reversed_counts.append(np.where(empty, 0, composition.push_count[above]))
        above = np.where(empty, above, composition.push_parent[above])
    padded, counts = (
        np.array(rows, np.int32).reshape(-1, len(strings))[::-1].T
        for rows in (reversed_sites, reversed_counts)
    )
    # The padding stands at the bottom; a stable sort moves it to the top.
    order = np.argsort(padded < 0, axis=1, kind="stable")
    sites, counts = (np.take_along_axis(table, order, axis=1) for table in (padded, counts))
    return sites, counts, composition.push_count[above]
