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
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sortition.grammars import table_file

Ints = NDArray[np.int32]
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


def _size(count: int) -> str:
    """Bytes for people."""
    return f"{count / 1024:,.0f} KiB" if count < 1 << 20 else f"{count / (1 << 20):,.1f} MiB"
