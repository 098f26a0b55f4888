"""Which tokens every row of a batch may emit, and where each token takes it: grammar state on the device.

This is the definition in plain torch: a fixed number of gathers, no loop over rows, and nothing that waits
for the device. The work is done by pure functions of a `Position`; slots are only a place to keep one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from sortition.grammars.table import Table
from sortition.sampling.arena import Arena
from sortition.sampling.arena_store import Store
from sortition.sampling.named_device import named_device

FREE: Final = -1
"""The grammar of a row that may emit anything."""

DEAD: Final = -1
"""The state of a row that has read a token it was not allowed."""


class Position(NamedTuple):
    """Where each row of a batch is in its grammar. A value: rows may be picked, repeated and reordered.

    Attributes:
        grammar: int32 [rows], number of the grammar, `FREE` for none.
        state: int32 [rows], state in the arena of all grammars, `DEAD` after a token that was not allowed.
        depth: int32 [rows], call sites on the stack.
        stack: int32 [rows, limit], call sites, the top at ``depth - 1``; what lies above it means nothing.
        finished: bool [rows], whether an end token has been read.
        counts: int32 [rows, limit + 1], how far the frame at each depth has counted, the innermost
            at `depth`; what lies above it means nothing.
    """

    grammar: Tensor
    state: Tensor
    depth: Tensor
    stack: Tensor
    finished: Tensor
    counts: Tensor

    def rows(self, index: Tensor) -> Position:
        """These rows, in this order."""
        return Position(*(part[index] for part in self))

    def to(self, device: torch.device) -> Position:
        """The same on another device."""
        return Position(*(part.to(device) for part in self))

    @property
    def dead(self) -> Tensor:
        """bool [rows]: the row has read a token that it was not allowed, and may only end."""
        return (self.grammar != FREE) & (self.state == DEAD)

    @property
    def walking(self) -> Tensor:
        """bool [rows]: the row still follows its grammar: not free, not dead, not finished."""
        return (self.grammar != FREE) & (self.state != DEAD) & ~self.finished


class Constraint:
    """The grammars of a batch: what they allow at a position, and how a token moves it.

    A row without a grammar is free and is left alone. End tokens are eligible exactly where the text may end,
    whatever else they stand for, and where nothing else is left; after one of them only end tokens are. A
    token that is not allowed makes its row dead: from there on it can only end. A negative token reads
    nothing.

    Args:
        tables: the grammars, numbered from 0; all compiled for one vocabulary.
        device: where the logits are.
        slots: how many rows to remember between calls, all free at first.
        end_tokens: ids that end a text, instead of the vocabulary's.

    Attributes:
        store: the tables on the device.
        slots: the positions that are remembered, one row per slot.
        refused: int64, how many rows have died in `advance`.

    Raises:
        ValueError: no table, tables of different vocabularies, end tokens missing or out of range, or there
            is no such device.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        device: torch.device | str = "cpu",
        slots: int = 0,
        end_tokens: Iterable[int] | None = None,
    ) -> None:
        if not tables:
            raise ValueError("a constraint needs at least one table")
        self.device = named_device(device)
        self.store = Store(tables[0], self.device)
        for table in tables[1:]:
            self.store.add(table)
        ends = sorted(set(tables[0].end_tokens.tolist() if end_tokens is None else end_tokens))
        if not ends:
            raise ValueError("no end tokens: neither the vocabulary nor the caller names any")
        if not 0 <= ends[0] <= ends[-1] < self.arena.vocabulary_size:
            raise ValueError(f"end tokens {ends} are not all among the {self.arena.vocabulary_size} tokens")
        self.end_tokens = torch.tensor(ends, device=self.device)
        self._last_end = ends[-1]
        self.refused = torch.zeros((), dtype=torch.int64, device=self.device)
        self.slots = self.start(torch.full((slots,), FREE, device=self.device))

    @property
    def arena(self) -> Arena:
        """The tables as they are now."""
        return self.store.arena

    def drop(self, number: int) -> None:
        """Forget a grammar that no row is in; its number may be given again."""
        self.store.drop(number)

    def add(self, table: Table | Arena) -> int:
        """Add a grammar, or the arena of it alone; its number. Positions taken before stay valid.

        Raises:
            ValueError: it was compiled for another vocabulary.
        """
        number = self.store.add(table)
        room = self.arena.deepest - self.slots.stack.shape[1]
        if room > 0:
            stack, counts = (
                torch.nn.functional.pad(part, (0, room)) for part in (self.slots.stack, self.slots.counts)
            )
            self.slots = self.slots._replace(stack=stack, counts=counts)
        return number

    def start(self, grammar: Tensor) -> Position:
        """The empty text in each of these grammars: [rows], `FREE` for none."""
        grammar = grammar.int()
        free = grammar == FREE
        start = self.arena.start[grammar.clamp(min=0)]
        return Position(
            grammar=grammar,
            state=start.masked_fill(free, DEAD),
            depth=torch.zeros_like(start),
            # Never empty, so that there is always something to gather.
            stack=start.new_zeros(len(grammar), max(self.arena.deepest, 1)),
            finished=torch.zeros_like(free),
            counts=start.new_zeros(len(grammar), max(self.arena.deepest, 1) + 1),
        )

    def step(self, position: Position, tokens: Tensor, end_tokens: Tensor | None = None) -> Position:
        """Where one token takes each row.

        Args:
            position: where the rows are.
            tokens: int [rows]; a negative one reads nothing.
            end_tokens: int [n], or [rows, n] where each row has its own (pad with one of them).
        """
        arena = self.arena
        grammar, state, _, _, finished, _ = position
        reads = position.walking & (tokens >= 0)
        ends = (tokens[:, None] == self._ends(end_tokens)).any(1)
        known = tokens.clamp(0, arena.vocabulary_size - 1).long()
        units = arena.token_class[grammar.clamp(min=0), known].masked_fill(known != tokens, 0)
        found, action, below = (part[:, 0] for part in self._find(position, units[:, None]))

        moves = reads & ~ends & found
        stops = reads & ends & self.can_end(position)
        depth, stack, counts = self._push(position, below, action, moves)
        return Position(
            grammar=grammar,
            state=torch.where(moves, arena.target[action], state.masked_fill(reads & ~stops, DEAD)),
            depth=depth,
            stack=stack,
            finished=finished | stops,
            counts=counts,
        )

    def can_end(self, position: Position) -> Tensor:
        """bool [rows]: whether the text may end here. False for rows that are free, dead or finished."""
        arena = self.arena
        state, depth = position.state, position.depth
        alive = position.walking
        # Plain text that went along inside a nested part may end there: the stack need not be empty.
        ends = alive & arena.accepting[state.clamp(min=0)]
        for _ in range(arena.longest_end):
            ending = arena.ending[state.clamp(min=0)]
            alive = alive & (depth > 0) & (ending >= 0)
            state, depth = self._pop(position.stack, depth, ending, alive)
            alive = alive & (state >= 0)
            ends = ends | (alive & arena.accepting[state.clamp(min=0)])
        return ends

    def allowed(
        self, position: Position, width: int | None = None, end_tokens: Tensor | None = None
    ) -> Tensor:
        """bool [rows, width]: the tokens that may come next.

        Args:
            position: where the rows are.
            width: how many ids the logits have, if not as many as the vocabulary; ids beyond the vocabulary
                are never eligible in a row with a grammar.
            end_tokens: as in `step`.

        Raises:
            ValueError: an end token is beyond the width.
        """
        arena = self.arena
        width = arena.vocabulary_size if width is None else width
        if end_tokens is None:
            self._check(width)
        free = (position.grammar == FREE)[:, None]
        classes = (self._classes(position) & position.walking[:, None]) | free
        eligible = classes.gather(1, self._token_classes(position.grammar)[:, :width])
        if width > arena.vocabulary_size:
            padded = free.expand(-1, width - arena.vocabulary_size)
            eligible = torch.cat([eligible, padded], dim=1)
        ends = self._ends(end_tokens).expand(len(free), -1)
        eligible = eligible.scatter(1, ends, free.expand_as(ends))
        # A text has nothing but its end, too, if the depth limit has stranded it (see `liveness.py`), or if
        # only tokens that end it could go on.
        stranded = position.walking & ~eligible.any(1)
        may_end = self.can_end(position) | position.finished | position.dead | stranded
        return eligible.scatter(1, ends, (may_end[:, None] | free).expand_as(ends))

    def apply(self, logits: Tensor, position: Position, end_tokens: Tensor | None = None) -> Tensor:
        """New logits: -inf where a token may not come next.

        If no eligible token of a row has a logit above -inf (somebody else ruled them all out), or one of
        them is NaN, the row's eligible logits become 0, so that one of them is drawn all the same.

        Args:
            logits: float [rows, width] of any floating type and strides; not changed.
            position: where the rows are.
            end_tokens: as in `step`.
        """
        allowed = self.allowed(position, logits.shape[1], end_tokens)
        masked = torch.where(allowed, logits, float("-inf"))
        # The maximum is NaN if anything is, and NaN is not above -inf.
        hopeless = ~(masked.amax(1) > float("-inf")) & (position.grammar != FREE)
        return masked.masked_fill_(allowed & hopeless[:, None], 0.0)

    def assign(self, slots: Tensor, grammars: Tensor) -> None:
        """Begin an empty text in these slots: [n] slots, [n] grammars, `FREE` for none."""
        self.write(slots, self.start(grammars))

    def write(self, slots: Tensor, position: Position) -> None:
        """Remember a position: one row for each slot."""
        # A position from before a deeper grammar was added has a shorter stack.
        stack = self.slots.stack[:, : position.stack.shape[1]]
        counts = self.slots.counts[:, : position.counts.shape[1]]
        for kept, new in zip(self.slots._replace(stack=stack, counts=counts), position, strict=True):
            kept[slots] = new

    def advance(self, slots: Tensor, tokens: Tensor, end_tokens: Tensor | None = None) -> Position:
        """Read one token in each of these slots, remember and return where that leads."""
        before = self.slots.rows(slots)
        after = self.step(before, tokens, end_tokens)
        self.refused += (after.dead & ~before.dead).sum()
        self.write(slots, after)
        return after

    def _check(self, width: int) -> None:
        """That logits are wide enough for the end tokens."""
        if self._last_end >= width:
            raise ValueError(f"end token {self._last_end} is beyond logits of {width} tokens")

    def _ends(self, end_tokens: Tensor | None) -> Tensor:
        """End tokens, int64 [1 or rows, n]."""
        ends = self.end_tokens if end_tokens is None else end_tokens.long()
        return ends if ends.dim() == 2 else ends[None]

    def _token_classes(self, grammar: Tensor) -> Tensor:
        """The class of every token in each row's grammar, int64 [rows, vocabulary]."""
        if len(self.arena) == 1:
            # One row of indices for all, which is 5 to 10 times faster to gather by than a row for each.
            return self.arena.token_class.long().expand(len(grammar), -1)
        return self.arena.token_class[grammar.clamp(min=0)].long()

    def _classes(self, position: Position) -> Tensor:
        """Which classes of tokens the stack and its limit let through, bool [rows, classes]."""
        arena = self.arena
        state = position.state.clamp(min=0)
        # A row of another table may be shorter; what is read beyond it are bits of classes that no token has.
        words = arena.row_start[state][:, None] + self._count(arena.token_words)
        words = arena.certain[words.clamp(max=len(arena.certain) - 1)]
        certain = ((words[:, :, None] >> self._count(32)) & 1).flatten(1).bool()
        if not arena.most_conditional:
            return certain
        at = self._count(arena.most_conditional)
        exists = at < arena.conditional_count[state][:, None]
        at = (arena.conditional_start[state][:, None] + at).masked_fill(~exists, 0)
        units = arena.conditional[at].masked_fill(~exists, 0)  # class 0 has no entries
        found, _, _ = self._find(position, units)
        return certain.scatter(1, units.long(), found)

    def _find(self, position: Position, units: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Follow classes through the frames that they leave.

        Args:
            position: where the rows are.
            units: int32 [rows, k], classes.

        Returns:
            bool [rows, k], whether the class is allowed; the action by which it stays; the depth below what
            it pushes there.
        """
        arena = self.arena
        state = position.state.clamp(min=0)[:, None].expand_as(units)
        depth = position.depth[:, None].expand_as(units)
        action = torch.zeros_like(units)
        found = torch.zeros_like(units, dtype=torch.bool)
        following = (position.state != DEAD)[:, None].expand_as(units)
        for exits in range(arena.longest_exit + 1):
            word = arena.row_start[state] + (units >> 5)
            bits, bit = arena.survives[word], units & 31
            survives = following & ((bits >> bit) & 1).bool()
            rank = arena.rank[word] + _popcount(bits & ~(-1 << bit.long()))
            entry = torch.where(survives, arena.first_entry[state] + rank, 0)
            action = torch.where(survives, arena.action[entry], action)
            if arena.counts:
                survives, action = self._guarded(survives, action, position.counts.gather(1, depth.long()))
            effect = arena.effect[action]
            found = found | (survives & (effect >= 0))
            if exits == arena.longest_exit:
                break
            following = survives & (effect < 0) & (depth > 0)
            back, depth = self._pop(position.stack, depth, ~effect, following)
            state = torch.where(following, back, state).clamp(min=0)
            units = torch.where(following, arena.target[action], units)
            following = following & (back >= 0)
        limit = arena.depth_limit[position.grammar.clamp(min=0)][:, None]
        return found & (depth + arena.height[action] <= limit), action, depth

    def _pop(self, stack: Tensor, depth: Tensor, ending: Tensor, pops: Tensor) -> tuple[Tensor, Tensor]:
        """End a frame where `pops`: the state to go on in (-1 for never), and the depth afterwards."""
        arena = self.arena
        depth = depth - pops.int()
        top = depth.clamp(max=stack.shape[1] - 1).long()
        site = stack.gather(1, top if top.dim() == 2 else top[:, None]).view_as(depth)
        at = arena.return_start[ending.clamp(min=0)] + site
        return arena.returns[at.masked_fill(~pops, 0)], depth

    def _guarded(self, survives: Tensor, action: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Which actions hold at these counts of their frames; those whose guards fail give way to others."""
        arena = self.arena
        for _ in range(arena.most_alternatives + 1):
            guard = arena.guard[action]
            holds = (arena.least[guard] <= count) & (count <= arena.greatest[guard])
            otherwise = arena.otherwise[action]
            survives = survives & (holds | (otherwise >= 0))
            action = torch.where(survives & ~holds, otherwise, action)
        return survives, action

    def _push(
        self, position: Position, below: Tensor, action: Tensor, moves: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Depth, stack and counts with what actions push above depth `below`, for the rows that move."""
        arena = self.arena
        string = torch.where(moves, arena.effect[action], 0).clamp(min=0)
        length = arena.push_length[string]
        depth = torch.where(moves, below + length, position.depth)
        counts = position.counts
        index = self._count(counts.shape[1]) - below[:, None]
        if arena.counts:
            added = torch.where(moves, arena.added[arena.guard[action]], 0)
            counts = counts + torch.where(index == 0, added[:, None], 0)
        if not arena.longest_push:
            return depth, position.stack, counts
        pushed = moves[:, None] & (index >= 0) & (index < length[:, None])
        place = (arena.push_start[string][:, None] + index).masked_fill(~pushed, 0)
        stack = torch.where(pushed[:, :-1], arena.push_site[place[:, :-1]], position.stack)
        if arena.counts:
            # A frame that is entered stands one above the site.
            above = torch.where(pushed[:, :-1], arena.push_count[place[:, :-1]], counts[:, 1:])
            counts = torch.cat([counts[:, :1], above], dim=1)
        return depth, stack, counts

    def _count(self, end: int) -> Tensor:
        """0, 1, ... end - 1."""
        return torch.arange(end, dtype=torch.int32, device=self.device)


def _popcount(words: Tensor) -> Tensor:
    """How many of the low 32 bits of each int64 are set, as int32: sums of ever wider neighbours."""
    words = words - ((words >> 1) & 0x55555555)
    words = (words & 0x33333333) + ((words >> 2) & 0x33333333)
    words = (words + (words >> 4)) & 0x0F0F0F0F
    return (((words * 0x01010101) >> 24) & 0xFF).int()
