"""Table: everything a grammar says about a vocabulary, as plain arrays that any device can gather from.

A step is ``state, stack, token -> state, stack``. Tokens with the same effect in every state share a class.
Each (state, class) that survives has one entry:

    stays   push a string of call sites, go on in a state;
    leaves  end the frame: pop a site, go on in the state that the ending returns to there, and apply to it
            the class of what remains of the token.

Every frame has a count, 0 at first; a site keeps that of the frame below. What an entry says may have a
*guard*: bounds of the count, and what is added to it. Where it fails, something else is said in its place.

So masks are bits over classes, and both questions of a decoding step (what may come, what has come) are the
same few gathers. See `compose.py` for where the classes come from.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from sortition.grammars import accelerate, table_file
from sortition.grammars.compose import (
    NO_GUARD,
    NO_PUSH,
    SELF,
    Composition,
    check_elements,
    compose,
    spread,
)
from sortition.grammars.errors import TooLarge, Unsatisfiable
from sortition.grammars.expand import expanded
from sortition.grammars.liveness import NEVER, Frames, distinct, room_needed, safe_states
from sortition.grammars.machine import ENDLESS

if TYPE_CHECKING:
    from sortition.grammars.machine import Machine
    from sortition.grammars.vocabulary import Vocabulary

RECURSIVE_DEPTH: Final = 64
"""Open call sites that a recursive grammar may have; JSON in the wild stays far below."""

BIT_BUDGET: Final = 1 << 28
"""Bytes of the class rows of one table: beyond that, classes are not a compact way to say it."""

Ints = NDArray[np.int32]
Wide = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """What each token does in each state of a grammar's machine.

    The entry of (state, class) exists where bit ``class & 31`` of word ``class >> 5`` of
    ``survives[row_of_state[state]]`` is set, and is number ``first_entry[state] + rank[row, word] +
    popcount(survives[row, word] & ((1 << (class & 31)) - 1))``; it says ``action[entry]``.

    Attributes:
        vocabulary_size: number of token ids, padding included.
        vocabulary_digest: `Vocabulary.digest` of the vocabulary this was compiled for.
        end_tokens: int32, the vocabulary's end tokens, for want of better ones.
        token_class: uint16 or int32 [vocabulary]; class 0 is accepted nowhere.
        token_classes: classes below this are classes of tokens, the others of remainders alone.
        byte_classes: classes of bytes of the machine.
        start: the first state.
        row_of_state: int32 [states].
        survives: uint32 [rows, words], a bit per class that has an entry.
        certain: uint32 [rows, words], a bit per entry that holds whatever is on the stack.
        rank: int32 [rows, words], entries in the words before.
        first_entry: int32 [states].
        action: uint16 or int32 [entries], which of the few actions below this is.
        action_target: int32 [actions], the next state, or the remainder's class where the frame is left.
        action_effect: int32 [actions], the number of the string to push, or ``~ending`` where it is left.
        action_guard: int32 [actions], the number of the guard of the frame's count.
        action_otherwise: int32 [actions], the action that counts where the guard fails, -1 for refusal.
        action_height: int16 [actions], for one that stays: how many call sites must have room on top of the
            frame, so that everything open can still be ended. Refuse it where there is not that much room.
        conditional_start: int32 [states + 1] into `conditional`.
        conditional: int32, the token classes of each state that survive but are not certain.
        push_sites: int32 [strings, longest], the sites of each string, top last, padded with -1.
        push_count: int32 [strings, longest], the count of the frame above each of the sites, 0 for padding.
        push_length: int32 [strings]; string 0 is empty.
        guards: int32 [guards, 3], the least and the greatest count at which the guard holds, and what is
            added to the count of the frame in which the token began. Guard 0 always holds and adds nothing.
        ending: int32 [states], the ending if the text should stop here, -1 for none.
        returns: int32 [endings, sites], the state after popping a site, -1 where this never happens.
        accepting: bool [states], whether the text may end here.
        depth_limit: call sites that may be on the stack.
        recursive: whether the depth has to be watched: if not, no stack ever exceeds `depth_limit`.
        longest_exit: the most frames that one token can leave.
    """

    vocabulary_size: int
    vocabulary_digest: str
    token_classes: int
    byte_classes: int
    start: int
    depth_limit: int
    recursive: bool
    longest_exit: int
    end_tokens: Ints
    token_class: NDArray[np.uint16] | Ints
    row_of_state: Ints
    survives: NDArray[np.uint32]
    certain: NDArray[np.uint32]
    rank: Ints
    first_entry: Ints
    action: NDArray[np.uint16] | Ints
    action_target: Ints
    action_effect: Ints
    action_guard: Ints
    action_otherwise: Ints
    action_height: NDArray[np.int16]
    conditional_start: Ints
    conditional: Ints
    push_sites: Ints
    push_count: Ints
    push_length: Ints
    guards: Ints
    ending: Ints
    returns: Ints
    accepting: Flags

    def __post_init__(self) -> None:
        for array in self._arrays().values():
            array.setflags(write=False)

    def __len__(self) -> int:
        """The number of states."""
        return len(self.row_of_state)

    def __repr__(self) -> str:
        return (
            f"Table({len(self):,} states, {self.byte_classes} byte classes, "
            f"{self.token_classes:,} token classes, {_size(self.nbytes)})"
        )

    @property
    def target(self) -> Ints:
        """int32 [entries], `action_target` of each."""
        return self.action_target[self.action]

    @property
    def effect(self) -> Ints:
        """int32 [entries], `action_effect` of each."""
        return self.action_effect[self.action]

    @property
    def height(self) -> NDArray[np.int16]:
        """int16 [entries], `action_height` of each."""
        return self.action_height[self.action]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self._arrays().values())

    def describe(self) -> str:
        """What the table holds, in a few lines of text."""
        rows, words = self.survives.shape
        tokens = int((self.token_class != 0).sum())
        depth = f"up to {self.depth_limit} deep" + (", by a limit" if self.recursive else "")
        parts = [
            f"{self!r}",
            f"  vocabulary   {self.vocabulary_size:,} tokens, {tokens:,} of them eligible somewhere",
            f"  classes      {self.token_classes:,} of tokens, {words * 32:,} bits a row, {rows:,} rows",
            f"  entries      {len(self.action):,}, {len(self.conditional):,} depend on the stack or a count, "
            f"{len(self.action_target):,} different actions",
            f"  stack        {self.returns.shape[1]:,} call sites, {len(self.returns):,} endings, {depth}",
            f"  one token    pushes up to {self.push_sites.shape[1]} sites, leaves up to {self.longest_exit}",
            f"  bytes        {_size(self.token_class.nbytes)} token classes, "
            f"{_size(self.nbytes - self.token_class.nbytes)} everything else",
        ]
        return "\n".join(parts)

    def save(self, path: str | PathLike[str]) -> None:
        """Write everything to one file, which `load` checks."""
        table_file.write(Path(path), self._header(), self._arrays())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read what `save` has written.

        Raises:
            ValueError: not such a file, one of another version, or damaged.
        """
        return cls(**table_file.read(Path(path)))

    def _arrays(self) -> dict[str, NDArray[Any]]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    def _header(self) -> dict[str, int | bool | str]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if not isinstance(value, np.ndarray)}


def build_table(machine: Machine, vocabulary: Vocabulary) -> Table:
    """The table of a machine for a vocabulary.

    Raises:
        Unsatisfiable: the vocabulary cannot spell any text of the language.
        TooLarge: a budget was exceeded.
    """
    composition = accelerate.best(compose)(machine, vocabulary.trie)
    accelerate.LOOPS.start()
    classes, class_of_map, token_classes, token_class = accelerate.best(classes_of)(composition)
    action_of_outcome, actions, pushed, guards = _actions(
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
        entries, base, otherwise = _alternatives(entries, len(actions.target))
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


class Entries(NamedTuple):
    """Entries sorted by state and class; of several of one state and class, one guard holds.

    Attributes:
        first: int64 [states + 1], where each state's begin.
        said: int32 [entries, 2], class and action of each.
    """

    first: Wide
    said: Ints

    @property
    def state(self) -> Wide:
        """int64 [entries], the state of each."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

    @property
    def unit(self) -> Ints:
        """int32 [entries], the class of each."""
        return self.said[:, 0]

    @property
    def action(self) -> Ints:
        """int32 [entries], the action of each."""
        return self.said[:, 1]

    def only(self, kept: Flags) -> Entries:
        """Some of the entries."""
        first = self.first - np.searchsorted(np.flatnonzero(~kept), self.first)
        # Both numbers of an entry at once: rows would be taken by their indices, which are as large again.
        said = self.said.view(np.int64).reshape(-1)[kept]
        return Entries(first, said.view(np.int32).reshape(-1, 2))


class Rows(NamedTuple):
    """The columns of `Table` about what each state lets survive."""

    row_of_state: Ints
    survives: NDArray[np.uint32]
    certain: NDArray[np.uint32]
    rank: Ints
    first_entry: Ints
    conditional_start: Ints
    conditional: Ints


class Actions(NamedTuple):
    """What entries may say, int32; see `Table`. The first are to stay in state 0, 1, ... and push nothing."""

    target: Ints
    effect: Ints
    guard: Ints


def _narrow(numbers: Ints, count: int) -> NDArray[np.uint16] | Ints:
    """Numbers below `count`, in 16 bits if they fit."""
    return numbers.astype(np.uint16) if count <= 1 << 16 else np.ascontiguousarray(numbers)


def lacks_bytes(machine: Machine, vocabulary: Vocabulary) -> bool:
    """Whether some byte that the machine reads is no token of its own, so that tokens may miss an end."""
    return bool((machine.spells & ~vocabulary.trie.single).any())


def _single_bytes(vocabulary: Vocabulary) -> Wide:
    """The tokens that are one byte."""
    node_of_token = vocabulary.trie.node_of_token
    first_level = next(vocabulary.trie.levels())
    return np.flatnonzero((node_of_token >= 0) & (node_of_token < first_level.stop))


def classes_of(composition: Composition) -> tuple[Wide, Wide, int, Ints]:
    """Maps that are classes, each map's class (0: none), how many classes are of tokens, and each token's.

    Class n + 1 is the nth of those maps. Classes are numbered in the order in which tokens, and then what
    remains of them, come upon them, so it does not matter how the maps are numbered.
    """
    maps = len(composition.start) - 1
    tokens = composition.map_of_token
    found = _in_order(tokens[tokens >= 0], maps)
    token_classes = len(found) + 1
    class_of_map = np.zeros(maps, np.int64)
    classes = [found]
    count = 1
    while found.size:
        class_of_map[found] = np.arange(count, count + len(found))
        count += len(found)
        begin = composition.start[found]
        _, at = spread(begin, composition.start[found + 1] - begin)
        target, effect = composition.outcomes[:, at]
        remainder = target[(effect < 0) & (target != SELF)]
        found = _in_order(remainder[class_of_map[remainder] == 0], maps)
        classes.append(found)
    # Tokens that are accepted nowhere, whose map is -1, find class 0 in one more place at the end.
    class_of_token_map = np.append(class_of_map, 0).astype(np.int32)
    return np.concatenate(classes), class_of_map, token_classes, class_of_token_map.take(tokens, mode="wrap")


def _in_order(numbers: Ints, bound: int) -> Wide:
    """Distinct numbers below a bound, in the order in which they come first."""
    first = np.full(bound, len(numbers))
    # Of several values for one place, the last one stays.
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]
    found = np.flatnonzero(first < len(numbers))
    return found[np.argsort(first[found])]


def _actions(
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
    keys, number = _ranked((guard * height + row) * width + np.where(leaves, left, target[other]))
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


def entries_of(composition: Composition, classes: Wide, action_of_outcome: Ints, states: int) -> Entries:
    """The entries of all classes, given what their outcomes say, class by class.

    Raises:
        TooLarge: they are more than the budget allows.
    """
    grouping = composition.grouping[classes]
    begin = composition.group_start[grouping]
    sizes = composition.group_start[grouping + 1] - begin
    check_elements(int(sizes.sum()))
    owner, at = spread(begin, sizes)
    outcomes = np.diff(composition.start)[classes]
    source, group = composition.groups[:, at]
    action = action_of_outcome[(np.cumsum(outcomes) - outcomes)[owner] + group]
    # Sorted by class already. A stable sort of 16-bit keys is a radix sort, many times as fast as any other.
    order = np.argsort(source.astype(np.uint16) if states <= 1 << 16 else source, kind="stable")
    first = np.append(0, np.cumsum(np.bincount(source, minlength=states)))
    return Entries(first, np.column_stack(((owner + 1).astype(np.int32).take(order), action.take(order))))


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


def _alternatives(entries: Entries, actions: int) -> tuple[Entries, Wide, Ints]:
    """Chain the actions of entries of one state and class: where one's guard fails, the next one counts.

    Changes the actions of the entries, and returns those that are then the only ones of their state and
    class; of each action which one it is, apart from what counts otherwise; and this, -1 for nothing.
    """
    first = np.append(True, entries.unit[1:] != entries.unit[:-1])[: len(entries.said)]
    first[entries.first[entries.first < len(first)]] = True
    last = np.append(first[1:], True)[: len(first)]
    # Entries may be most of all memory, so they are changed in place.
    action = entries.action
    base, otherwise = [np.arange(actions)], [np.full(actions, -1)]
    waiting = np.flatnonzero(last & ~first) - 1
    while waiting.size:
        keys, number = _ranked(action[waiting] * np.int64(actions) + action[waiting + 1])
        base.append(keys // actions)
        otherwise.append(keys % actions)
        action[waiting] = actions + number
        actions += len(keys)
        waiting = waiting[~first[waiting]] - 1
    return entries.only(first), np.concatenate(base), np.concatenate(otherwise).astype(np.int32)


def _ranked(keys: Wide) -> tuple[Wide, Wide]:
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


def rows_of(entries: Entries, room: Wide, need: Wide, token_classes: int, classes: int) -> Rows:
    """The entries as bits, in a row for all states that have the same ones.

    Those are certain whose action takes no more room than the state needs in any case.
    """
    certain = room.take(entries.action) <= need.take(entries.state)
    data = (2 * entries.unit + certain).astype(np.int32).tobytes()
    ends = (entries.first * 4).tolist()
    number_of: dict[bytes, int] = {}
    row_of_state = np.array(
        [number_of.setdefault(data[begin:end], len(number_of)) for begin, end in pairwise(ends)],
        np.int32,
    )
    words = words_of_rows(len(number_of), classes)
    packed = np.frombuffer(b"".join(number_of), np.int32)
    row = np.repeat(np.arange(len(number_of)), [len(key) // 4 for key in number_of])
    bits = np.zeros((2, len(number_of), words * 32), np.bool_)
    bits[0, row, packed >> 1] = True
    bits[1, row, packed >> 1] = packed & 1
    survives, certain_bits = np.packbits(bits, axis=-1, bitorder="little").view(np.uint32)
    counts = np.bitwise_count(survives).astype(np.int64)
    open_question = np.flatnonzero(~certain & (entries.unit < token_classes))
    return Rows(
        row_of_state,
        survives,
        certain_bits,
        (np.cumsum(counts, axis=1) - counts).astype(np.int32),
        entries.first[:-1].astype(np.int32),
        np.searchsorted(open_question, entries.first).astype(np.int32),
        entries.unit.take(open_question),
    )


def words_of_rows(rows: int, classes: int) -> int:
    """How many words each row needs.

    Raises:
        TooLarge: all rows together are beyond the budget.
    """
    words = (classes + 31) // 32
    if rows * words * 4 > BIT_BUDGET:
        raise TooLarge(
            f"{classes:,} token classes in {rows:,} kinds of states are more than a table can hold"
        )
    return words


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


def _size(count: int) -> str:
    """Bytes for people."""
    return f"{count / 1024:,.0f} KiB" if count < 1 << 20 else f"{count / (1 << 20):,.1f} MiB"
