"""The tables of many grammars in one place, as tensors, so that one batch may mix them without regrouping.

States, endings, pushed strings and entries are renumbered: each table's count from where it begins. Classes
and call sites keep their numbers, because they are only ever looked up through a state or an ending, and
those already know their table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortition.grammars.table import Table


@dataclass(frozen=True, eq=False, repr=False)
class Arena:
    """Tables of one vocabulary on one device; grammar g is the one that begins at g. There may be gaps.

    Tensors are int32 unless said otherwise: [g] has one value for each grammar, [q] for each state.

    Attributes:
        vocabulary_digest: what the tables were compiled for.
        start: [g], the state of the empty text.
        depth_limit: [g], the most call sites on a stack.
        token_class: [g, vocabulary], 0 where the token is accepted nowhere.
        row_start: [q], the word of `survives`, `certain` and `rank` that begins the state's row.
        survives, certain: int64, 32 class bits to a word.
        rank: surviving classes of the row before this word.
        first_entry: [q].
        action: [entries], the number of the action that an entry says.
        target, effect, height, guard, otherwise: [actions], as in `Table`.
        least, greatest, added: [guards], as in `Table.guards`.
        conditional_start, conditional_count: [q], the state's part of `conditional`.
        conditional: token classes whose fate depends on the stack.
        push_start, push_length: [strings], the string's part of `push_site`.
        push_site: call sites, the top last.
        push_count: the count of the frame above each of them.
        ending: [q], the number of what has ended here, -1 for nothing.
        return_start: [endings], where the ending's part of `returns` begins.
        returns: the next state by call site, -1 where this never happens.
        accepting: bool [q], whether a text may end here.
        longest_exit: the most frames that one token leaves.
        longest_end: the most frames that the end of a text leaves.
        longest_push: the most call sites that one token pushes.
        most_conditional: the most conditional classes of one state.
        token_words: the most words that classes of tokens take in a row.
        deepest: the greatest depth limit.
        most_alternatives: how often one entry may give way to another.
        counts: whether there are guards, 0 or 1.
    """

    vocabulary_digest: str
    start: Tensor
    depth_limit: Tensor
    token_class: Tensor
    row_start: Tensor
    survives: Tensor
    certain: Tensor
    rank: Tensor
    first_entry: Tensor
    action: Tensor
    target: Tensor
    effect: Tensor
    height: Tensor
    guard: Tensor
    otherwise: Tensor
    least: Tensor
    greatest: Tensor
    added: Tensor
    conditional_start: Tensor
    conditional_count: Tensor
    conditional: Tensor
    push_start: Tensor
    push_length: Tensor
    push_site: Tensor
    push_count: Tensor
    ending: Tensor
    return_start: Tensor
    returns: Tensor
    accepting: Tensor
    longest_exit: int
    longest_end: int
    longest_push: int
    most_conditional: int
    token_words: int
    deepest: int
    most_alternatives: int
    counts: int

    def __len__(self) -> int:
        """The number of grammars that there is room for."""
        return len(self.start)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, Tensor))

    @property
    def vocabulary_size(self) -> int:
        """Token ids that the tables know."""
        return self.token_class.shape[1]

    @classmethod
    def of(cls, table: Table, device: torch.device) -> Self:
        """One table, uploaded."""

        def upload(array: NDArray[np.generic], dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.from_numpy(np.array(array)).to(device=device, dtype=dtype)

        words = table.survives.shape[1]
        strings, longest = table.push_sites.shape
        endings, sites = table.returns.shape
        conditional = np.diff(table.conditional_start)
        return cls(
            vocabulary_digest=table.vocabulary_digest,
            start=upload(np.array([table.start])),
            depth_limit=upload(np.array([table.depth_limit])),
            token_class=upload(table.token_class.astype(np.int32)[None]),
            row_start=upload(table.row_of_state.astype(np.int64) * words),
            survives=upload(table.survives.astype(np.int64).reshape(-1), torch.int64),
            certain=upload(table.certain.astype(np.int64).reshape(-1), torch.int64),
            rank=upload(table.rank.reshape(-1)),
            first_entry=upload(table.first_entry),
            # Class 0 has no entry, but looking for it must find something to read.
            action=upload(np.append(table.action.astype(np.int32), 0)),
            target=upload(table.action_target),
            effect=upload(table.action_effect),
            height=upload(table.action_height),
            guard=upload(table.action_guard),
            otherwise=upload(table.action_otherwise),
            least=upload(table.guards[:, 0]),
            greatest=upload(table.guards[:, 1]),
            added=upload(table.guards[:, 2]),
            conditional_start=upload(table.conditional_start[:-1]),
            conditional_count=upload(conditional),
            conditional=upload(np.append(table.conditional, 0)),
            push_start=upload(np.arange(strings) * longest),
            push_length=upload(table.push_length),
            push_site=upload(np.append(table.push_sites.reshape(-1), -1)),
            push_count=upload(np.append(table.push_count.reshape(-1), 0)),
            ending=upload(table.ending),
            return_start=upload(np.arange(endings) * sites),
            returns=upload(np.append(table.returns.reshape(-1), -1)),
            accepting=upload(table.accepting, torch.bool),
            longest_exit=table.longest_exit,
            longest_end=_longest_end(table),
            longest_push=longest,
            most_conditional=int(conditional.max(initial=0)),
            token_words=(table.token_classes + 31) // 32,
            deepest=table.depth_limit,
            most_alternatives=_most_alternatives(table.action_otherwise),
            counts=int(len(table.guards) > 1),
        )

    def moved(self, begins: Mapping[str, int]) -> dict[str, Tensor]:
        """The tensors by name, with numbers for a place behind other tables.

        Args:
            begins: where the table's states, words, entries and so on begin; see `arena_store.SPACES`.
        """
        stays = self.effect >= 0
        strings, endings = begins["strings"], begins["endings"]
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return tensors | {
            "start": self.start + begins["states"],
            "row_start": self.row_start + begins["words"],
            "first_entry": self.first_entry + begins["entries"],
            "action": self.action + begins["actions"],
            "target": self.target + stays.int() * begins["states"],
            "effect": self.effect + torch.where(stays, strings, -endings).int(),
            "guard": self.guard + begins["guards"],
            "otherwise": _shifted(self.otherwise, begins["actions"]),
            "conditional_start": self.conditional_start + begins["conditionals"],
            "push_start": self.push_start + begins["sites"],
            "ending": _shifted(self.ending, endings),
            "return_start": self.return_start + begins["returns"],
            "returns": _shifted(self.returns, begins["states"]),
        }


def _shifted(numbers: Tensor, by: int) -> Tensor:
    """Numbers from `by` on, -1 as it is."""
    return torch.where(numbers >= 0, numbers + by, numbers)


def _most_alternatives(otherwise: NDArray[np.int32]) -> int:
    """The longest chain of actions that stand in for each other, after the first."""
    length = 0
    chain = otherwise[otherwise >= 0]
    while chain.size:
        length += 1
        chain = otherwise[chain]
        chain = chain[chain >= 0]
    return length


def _longest_end(table: Table) -> int:
    """The most frames that the end of a text leaves: the longest chain of states that each end a frame."""
    lapses = table.ending >= 0
    chain = lapses
    length = 0
    while length < table.depth_limit and chain.any():
        length += 1
        # By ending: whether some call site returns into the chain. The last place stands for -1, nowhere.
        again = np.append(np.logical_or.reduce(np.append(chain, False)[table.returns], axis=1), False)
        chain = lapses & again[table.ending]
    return length
