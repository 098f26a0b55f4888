"""Making a table: from a machine and a vocabulary, by way of classes, actions and entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from sortition.grammars import accelerate
from sortition.grammars.compose import NO_PUSH, compose, spread
from sortition.grammars.errors import TooLarge, Unsatisfiable
from sortition.grammars.expand import expanded
from sortition.grammars.liveness import NEVER, Frames, distinct, room_needed, safe_states
from sortition.grammars.machine import ENDLESS
from sortition.grammars.table import Table
from sortition.grammars.table_actions import Actions, actions_of
from sortition.grammars.table_classes import classes_of
from sortition.grammars.table_entries import Entries, alternatives, entries_of, rows_of

if TYPE_CHECKING:
    from sortition.grammars.machine import Machine
    from sortition.grammars.vocabulary import Vocabulary

RECURSIVE_DEPTH: Final = 64
"""Open call sites that a recursive grammar may have; JSON in the wild stays far below."""

Ints = NDArray[np.int32]
Wide = NDArray[np.int64]


def build_table(machine: Machine, vocabulary: Vocabulary) -> Table:
    """The table of a machine for a vocabulary.

    Raises:
        Unsatisfiable: the vocabulary cannot spell any text of the language.
        TooLarge: a budget was exceeded.
    """
    composition = accelerate.best(compose)(machine, vocabulary.trie)
    accelerate.LOOPS.start()
    classes, class_of_map, token_classes, token_class = accelerate.best(classes_of)(composition)
    action_of_outcome, actions, pushed, guards = actions_of(
        composition, classes, class_of_map, len(machine), len(machine.returns)
    )
    entries = accelerate.best(entries_of)(composition, classes, action_of_outcome, len(machine))
    push_sites, push_count = pushed
    recursive = machine.depth is None
    depth_limit = RECURSIVE_DEPTH if machine.depth is None else machine.depth
    unguarded = (guards[:, :2] == (0, ENDLESS)).all(axis=1)[actions.guard]
    if lacks_bytes(machine, vocabulary):
        identities = class_of_map[: composition.identities]
        of_bytes = class_of_map[composition.map_of_token[_single_bytes(vocabulary)]]
        counted_on = entries.only(unguarded[entries.action] | np.isin(entries.unit, of_bytes))
        frames = _frames_of_tokens(machine, counted_on, actions, push_sites, token_classes, identities)
        safe = safe_states(frames)
        if not safe[0]:
            if len(machine.step):
                # Whether tokens fit may depend on the count.
                return build_table(expanded(machine), vocabulary)
            raise Unsatisfiable(
                "this vocabulary cannot spell any text of this grammar",
                hint="it lacks bytes that the grammar needs as tokens of their own",
            )
        into_safe = (actions.effect < 0) | safe[np.where(actions.effect < 0, 0, actions.target)]
        entries = entries.only(into_safe[entries.action])
    elif recursive:
        frames = Frames.of_bytes(machine)
        safe = np.ones(frames.states, np.bool_)
    height, need = np.zeros(len(actions.target), np.int64), np.zeros(len(machine), np.int64)
    sure = (actions.effect >= 0) & unguarded
    if recursive:
        need, site_need = accelerate.best(room_needed)(frames, safe, depth_limit)
        if need[0] > depth_limit:
            raise TooLarge(f"every text of this grammar nests more than {depth_limit} deep")
        height = _heights(actions, push_sites, need, site_need)
        # Whoever reached a state made sure of what it needs itself; more has to be looked at.
        sure &= actions.effect == NO_PUSH
    room = np.where(sure, height, NEVER)
    exits = accelerate.best(longest_exit)(entries, actions, machine.returns, depth_limit)
    otherwise = np.full(len(actions.target), -1, np.int32)
    if len(guards) > 1:
        entries, base, otherwise = alternatives(entries, len(actions.target))
        actions, height, room = Actions(*(column[base] for column in actions)), height[base], room[base]
    rows = accelerate.best(rows_of)(entries, room, need, token_classes, len(classes) + 1)
    return Table(
        **rows._asdict(),
        vocabulary_size=vocabulary.size,
        vocabulary_digest=vocabulary.digest,
        token_classes=token_classes,
        byte_classes=machine.move.shape[1],
        start=0,
        depth_limit=depth_limit,
        recursive=recursive,
        longest_exit=exits,
        end_tokens=np.array(vocabulary.end_tokens, np.int32),
        token_class=_narrow(token_class, token_classes),
        action=_narrow(entries.action, len(actions.target)),
        action_target=actions.target,
        action_effect=actions.effect,
        action_guard=actions.guard,
        action_otherwise=otherwise,
        action_height=height.astype(np.int16),
        push_sites=push_sites,
        push_count=push_count,
        push_length=(push_sites >= 0).sum(axis=1, dtype=np.int32),
        guards=guards,
        ending=machine.ending.copy(),
        returns=machine.returns.copy(),
        accepting=machine.accepting.copy(),
    )


def _frames_of_tokens(
    machine: Machine,
    entries: Entries,
    actions: Actions,
    push_sites: Ints,
    token_classes: int,
    identities: Wide,
) -> Frames:
    """What tokens do inside a frame."""
    tokens = entries.only(entries.unit < token_classes)
    state = tokens.state
    target, effect = (column[tokens.action].astype(np.int64) for column in actions[:2])
    stays = effect >= 0
    # Tokens that leave a frame in their middle are not counted on: they are a bonus.
    ends = ~stays & np.isin(target, identities[identities > 0])
    ended = distinct(np.stack([state[ends], ~effect[ends]]))
    return Frames.of_tokens(machine, state[stays], target[stays], effect[stays], ended, push_sites)


def _heights(actions: Actions, push_sites: Ints, need: Wide, site_need: Wide) -> Wide:
    """How much room each action that stays has to find on top of its frame."""
    pushed = push_sites >= 0
    # A site with so many below it on the string needs room for what it returns to.
    per_site = np.where(pushed, np.arange(push_sites.shape[1]) + site_need[push_sites], 0)
    string_need = per_site.max(axis=1, initial=0)
    leaves = actions.effect < 0
    string, target = np.where(leaves, NO_PUSH, actions.effect), np.where(leaves, 0, actions.target)
    height = np.maximum(string_need[string], pushed.sum(axis=1)[string] + need[target])
    return np.where(leaves, 0, height)


def longest_exit(entries: Entries, actions: Actions, returns: Ints, depth_limit: int) -> int:
    """The most frames that one token leaves: the longest chain of actions each applied to what it left."""
    leaving = np.flatnonzero(actions.effect < 0)
    if not leaving.size:
        return 0
    states = len(entries.first) - 1
    # Which actions, if any, leave a frame once more in each state to which a frame was left.
    at = np.flatnonzero((actions.effect < 0)[entries.action])
    key = entries.unit[at].astype(np.int64) * states + entries.state[at]
    order = np.argsort(key)
    key, action = key[order], entries.action[at][order]
    ending, site = np.nonzero(returns >= 0)
    pairs = distinct(np.stack([ending, returns[ending, site]]))
    first = np.searchsorted(pairs[0], np.arange(len(returns) + 1))
    ends = ~actions.effect[leaving]
    owner, onto = spread(first[ends], first[ends + 1] - first[ends])
    onward = actions.target[leaving][owner].astype(np.int64) * states + pairs[1][onto]
    begin = np.searchsorted(key, onward)
    linked, found = spread(begin, np.searchsorted(key, onward, side="right") - begin)
    edges = distinct(np.stack([leaving[owner[linked]], action[found]]))
    exits = (actions.effect < 0).astype(np.int64)
    while exits.max() < depth_limit:
        longer = exits.copy()
        np.maximum.at(longer, edges[0], exits[edges[1]] + 1)
        if (longer == exits).all():
            break
        exits = longer
    return int(min(exits.max(), depth_limit))


def lacks_bytes(machine: Machine, vocabulary: Vocabulary) -> bool:
    """Whether some byte that the machine reads is no token of its own, so that tokens may miss an end."""
    return bool((machine.spells & ~vocabulary.trie.single).any())


def _single_bytes(vocabulary: Vocabulary) -> Wide:
    """The tokens that are one byte."""
    node_of_token = vocabulary.trie.node_of_token
    first_level = next(vocabulary.trie.levels())
    return np.flatnonzero((node_of_token >= 0) & (node_of_token < first_level.stop))


def _narrow(numbers: Ints, count: int) -> NDArray[np.uint16] | Ints:
    """Numbers below `count`, in 16 bits if they fit."""
    return numbers.astype(np.uint16) if count <= 1 << 16 else np.ascontiguousarray(numbers)
