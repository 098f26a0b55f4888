"""Matcher: one sequence on the host, by table."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sortition.grammars.reader import Mask, Place, depth_of, reader_of
from sortition.grammars.table import Table

FORCED_LIMIT: Final = 256
"""Longest run that `Matcher.forced` follows: a grammar may force the same token for ever."""


class Matcher:
    """One text as it grows token by token: which tokens may come next, and whether it may end.

    End tokens are eligible exactly where the text may end, whatever else they stand for; after one, only end
    tokens are.

    Args:
        table: what `Grammar.compile` made.
        end_tokens: ids that end the text, instead of the vocabulary's.

    Raises:
        TypeError: something else than a table.
        ValueError: an end token is out of range.
    """

    def __init__(self, table: Table, end_tokens: Iterable[int] | None = None) -> None:
        if not isinstance(table, Table):
            raise TypeError(f"a table is needed, not a {type(table).__name__}; see Grammar.compile")
        self.table = table
        ends = table.end_tokens.tolist() if end_tokens is None else [index(end) for end in end_tokens]
        for end in ends:
            if not 0 <= end < table.vocabulary_size:
                raise ValueError(f"end token {end} is not one of the {table.vocabulary_size} tokens")
        self.end_tokens: tuple[int, ...] = tuple(sorted(set(ends)))
        self._ends = frozenset(ends)
        self._end_mask = _packed(np.array(self.end_tokens, np.int64), table.vocabulary_size)
        # End tokens that also stand for text are set in the masks of texts.
        self._ends_are_text = bool((table.token_class[list(self.end_tokens)] != 0).any())
        self._reader = reader_of(table)
        self.reset()

    def reset(self) -> None:
        """Go back to the empty text."""
        self._place: Place = self.table.start, 0, 0, False
        # The fields of places, one after another: so there is nothing here for the garbage collector.
        self._history: list[Any] = []

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which go on by themselves, and pickles. Readers stay with their tables."""
        return {**vars(self), "_reader": None, "_history": self._history.copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reader = reader_of(self.table)

    @property
    def can_end(self) -> bool:
        """Whether the text may end here."""
        state, _, stack, ended = self._place
        return ended or self._reader.can_end(state, stack)

    @property
    def finished(self) -> bool:
        """Whether an end token has been read."""
        return self._place[-1]

    def allowed(self) -> Mask:
        """Eligible: uint32 [ceil(vocabulary / 32)], read-only; token t is bit t & 31 of word t >> 5."""
        state, count, stack, ended = self._place
        if ended:
            return self._end_mask
        mask = self._reader.mask(state, count, stack)
        may_end = self._ends and self._reader.can_end(state, stack)
        if self._ends_are_text or may_end:
            mask = mask | self._end_mask if may_end else mask & ~self._end_mask
            mask.setflags(write=False)
        return mask

    def advance(self, token: int) -> bool:
        """Read one token; False, and nothing changes, if it is not eligible.

        Raises:
            TypeError: the token is not an integer.
            ValueError: the token is out of range.
        """
        try:
            token = index(token)
        except TypeError:
            raise TypeError(f"a token is an id, a whole number, not {token!r}") from None
        after = self._after(self._place, token)
        if after is None:
            return False
        self._history += self._place
        self._place = after
        return True

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens.

        Raises:
            ValueError: fewer tokens have been read.
        """
        count = index(count)
        if not 0 <= count <= self._read:
            raise ValueError(f"cannot take back {count} tokens, {self._read} have been read")
        if count:
            first = len(self._history) - count * len(self._place)
            state, counted, stack, ended = self._history[first : first + len(self._place)]
            self._place = state, counted, stack, ended
            del self._history[first:]

    def forced(self, limit: int = FORCED_LIMIT) -> list[int]:
        """The tokens that must come next: each is the only eligible one. The matcher does not move.

        The run stops at a choice, after an end token, and after `limit` tokens.
        """
        start, run = self._place, list[int]()
        try:
            while len(run) < limit and not self.finished:
                mask = self.allowed()
                words = np.flatnonzero(mask)
                if len(words) != 1 or int(mask[words[0]]).bit_count() != 1:
                    break
                run.append(int(words[0]) * 32 + int(mask[words[0]]).bit_length() - 1)
                after = self._after(self._place, run[-1])
                if after is None:
                    raise RuntimeError("a token that the mask allows was refused")
                self._place = after
        finally:
            self._place = start
        return run

    def __repr__(self) -> str:
        state, _, stack, _ = self._place
        where = "finished" if self.finished else "may end" if self.can_end else "open"
        return f"Matcher({self._read} tokens, state {state}, {depth_of(stack)} nested, {where})"

    @property
    def _read(self) -> int:
        """How many tokens have been read."""
        return len(self._history) // len(self._place)

    def _after(self, place: Place, token: int) -> Place | None:
        if not 0 <= token < self.table.vocabulary_size:
            raise ValueError(f"token {token} is not one of the {self.table.vocabulary_size} tokens")
        state, counted, stack, ended = place
        if token in self._ends:
            may_end = ended or self._reader.can_end(state, stack)
            return (state, counted, stack, True) if may_end else None
        return None if ended else self._reader.step(place, token)


def _packed(tokens: NDArray[np.int64], size: int) -> Mask:
    flags = np.zeros((size + 31) // 32 * 32, np.bool_)
    flags[tokens] = True
    mask = np.packbits(flags, bitorder="little").view(np.uint32)
    mask.setflags(write=False)
    return mask
