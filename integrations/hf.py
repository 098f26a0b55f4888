"""transformers: a logits processor that holds `generate` to a grammar.

`generate` shows a processor the ids so far and nothing else: not where the prompt ends, not that another text
begins, not which beam a row comes from, not that a draft was taken back. Where a row stands is therefore a
function of its ids, and what is remembered between calls only saves the way there.

A call goes on with a remembered generation if it has as many rows, the same prompts, and each row is

- a row of that generation's last call and one token more (beams may be reordered), or
- the prompt alone, or
- where there is just one row: any beginning of what the last call showed, or such a beginning and one token
  that the grammar allows there. That is how drafts are taken back, and only single rows have drafts.

Every other call begins a new generation, whose prompts are all that it shows. So a prompt that consists of
the last prompt and what was generated from it, all or the beginning, goes on with that text: one that
`max_new_tokens` cut short can be resumed. Call `reset` first where such a prompt is to begin a new text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import torch
from torch import Tensor
from transformers import LogitsProcessor

from sortition.grammars.table import Table
from sortition.sampling.constraint import FREE, Constraint, Position

REMEMBERED: Final = 2
"""Generations under way at once: an assistant with a tokenizer of its own runs one inside the model's."""


def hf(
    table: Table | Sequence[Table | None], *, end_tokens: int | Iterable[int] | None = None
) -> GrammarLogitsProcessor:
    """A logits processor for ``generate(logits_processor=[...])``.

    It works with greedy search, sampling, beams, left-padded batches, several returned sequences, assistant
    models and prompt lookup, and serves one call of `generate` after the other, but not two at once.

    Args:
        table: the grammar of all rows, or one for each prompt of the batch, None for no grammar. Prompts that
            `generate` repeats, for beams or several returned sequences, keep theirs.
        end_tokens: ids that end a text, instead of the vocabulary's. They should be those at which `generate`
            stops: ``model.generation_config.eos_token_id``.

    Raises:
        ValueError: no table, tables of different vocabularies, or end tokens missing or out of range.
    """
    return GrammarLogitsProcessor([table] if isinstance(table, Table) else table, end_tokens)


class GrammarLogitsProcessor(LogitsProcessor):
    """See `hf`. Scores are never changed in place; scores of tokens that may not come next become -inf."""

    def __init__(self, tables: Sequence[Table | None], end_tokens: int | Iterable[int] | None) -> None:
        self._tables = list(dict.fromkeys(table for table in tables if table is not None))
        self._grammars = [FREE if table is None else self._tables.index(table) for table in tables]
        self._end_tokens = end_tokens if end_tokens is None else _listed(end_tokens)
        self._constraints: dict[torch.device, Constraint] = {}
        self._constraint(torch.device("cpu"))
        self.reset()

    def reset(self) -> None:
        """Forget all generations: the next call begins a new one."""
        self._generations: list[_Generation] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [rows, width] with -inf where a token may not follow the ids [rows, length].

        Raises:
            ValueError: the rows are not a multiple of the tables, or ids come without their history.
        """
        if input_ids.dim() != 2:
            raise ValueError("ids without their history: continuous batching is not supported")
        position = self._position(input_ids)
        return self._constraint(scores.device).apply(scores, position.to(scores.device))

    def _position(self, ids: Tensor) -> Position:
        for generation in self._generations:
            position = generation.follow(ids)
            if position is not None:
                break
        else:
            generation = _Generation(self._constraint(ids.device), self._grammar_of_rows(ids), ids)
            position = generation.start
        others = [other for other in self._generations if other is not generation]
        self._generations = [generation, *others][:REMEMBERED]
        return position

    def _grammar_of_rows(self, ids: Tensor) -> Tensor:
        repeats, rest = divmod(len(ids), len(self._grammars))
        if rest:
            raise ValueError(f"{len(ids)} rows cannot be shared out among {len(self._grammars)} tables")
        return torch.tensor(self._grammars, device=ids.device).repeat_interleave(repeats)

    def _constraint(self, device: torch.device) -> Constraint:
        if device not in self._constraints:
            self._constraints[device] = Constraint(self._tables, device=device, end_tokens=self._end_tokens)
        return self._constraints[device]


def _listed(tokens: int | Iterable[int]) -> list[int]:
    return [tokens] if isinstance(tokens, int) else list(tokens)


class _Generation:
    """One text per row as `generate` writes it, and the positions from which it may go on.

    Attributes:
        start: the position of the empty text.
        ids: what the last call showed, prompt included.
        positions: by number of generated tokens; for single rows all of them, else the start and the last.
    """

    def __init__(self, constraint: Constraint, grammar: Tensor, ids: Tensor) -> None:
        self.constraint = constraint
        self.prompt = ids.shape[1]
        self.ids = ids.clone()
        self.start = constraint.start(grammar)
        self.positions = {0: self.start}

    def follow(self, ids: Tensor) -> Position | None:
        """The position after these ids, None if they do not go on with this generation."""
        rows, length = ids.shape
        count, shown = length - self.prompt, self.ids.shape[1] - self.prompt
        if rows != len(self.ids) or not 0 <= count <= shown + 1:
            return None
        if rows > 1 and 0 < count <= shown:
            return None
        ids = ids.to(self.ids.device)
        if count == 0:
            if not torch.equal(ids, self.ids[:, :length]):
                return None
            position = self.start
        else:
            before = self._before(ids, self.positions[count - 1])
            if before is None:
                return None
            position = self.constraint.step(before, ids[:, -1])
            if count <= shown and bool((position.dead & ~before.dead).any()):
                return None
        self._remember(ids, position, count, shown)
        return position

    def _before(self, ids: Tensor, position: Position) -> Position | None:
        """The position before each row's last token, given that of the rows as they were remembered."""
        ids, known = ids[:, :-1], self.ids[:, : ids.shape[1] - 1]
        if torch.equal(ids, known):
            return position
        if not torch.equal(ids[:, : self.prompt], known[:, : self.prompt]):
            return None
        # Reordered beams: where a row stands depends on its grammar and on what was generated, nothing else.
        texts = torch.cat([known, ids])[:, self.prompt :]
        texts = torch.cat([position.grammar.repeat(2)[:, None], texts], dim=1)
        _, text = texts.unique(dim=0, return_inverse=True)
        same = text[len(ids) :, None] == text[: len(ids)]
        if not bool(same.any(1).all()):
            return None
        return position.rows(same.int().argmax(1))

    def _remember(self, ids: Tensor, position: Position, count: int, shown: int) -> None:
        self.ids = ids.clone()
        for later in range(count + 1, shown + 1):
            self.positions.pop(later, None)
        if len(ids) > 1 and count > 1:
            del self.positions[count - 1]
        self.positions[count] = position
