"""transformers: which text a call of a logits processor goes on with, and where its rows stand.

`generate` shows a processor the ids so far and nothing else: not where the prompt ends, not that another text
begins, not which beam a row comes from, not that a draft was taken back. Where a row stands is therefore a
function of its ids, and what is remembered between calls only saves the way there.

A call goes on with a remembered generation if it has as many rows, the same prompts, and each row is

- a row of that generation's last call and one token more (beams may be reordered), or
- the prompt alone, or
- where there is just one row: any beginning of what the last call showed, or such a beginning and one token
  that may come next there. That is how drafts are taken back, and only single rows have drafts.

Every other call begins a new generation, whose prompts are all that it shows. So a prompt that consists of
the last prompt and what was generated from it, all or the beginning, goes on with that text: one that
`max_new_tokens` cut short can be resumed. Call `reset` first where such a prompt is to begin a new text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, Generic, TypeVar

import torch
from torch import Tensor
from transformers import LogitsProcessor

REMEMBERED: Final = 2
"""Generations under way at once: an assistant with a tokenizer of its own runs one inside the model's."""

Place = TypeVar("Place")
"""Where all rows stand; a value."""


class Generation(ABC, Generic[Place]):
    """One text per row as `generate` writes it, and the places from which it may go on.

    Attributes:
        prompt: ids of each row's prompt, padding included.
        ids: what the last call showed, prompt included.
        start: the place of the empty text.
        places: by number of generated tokens; for single rows all of them, else the start and the last.
    """

    def __init__(self, start: Place, ids: Tensor) -> None:
        self.prompt = ids.shape[1]
        self.ids = ids.clone()
        self.start = start
        self.places = {0: start}

    def follow(self, ids: Tensor) -> Place | None:
        """The place after these ids, None if they do not go on with this generation."""
        rows, length = ids.shape
        count, shown = length - self.prompt, self.ids.shape[1] - self.prompt
        if rows != len(self.ids) or not 0 <= count <= shown + 1:
            return None
        if rows > 1 and 0 < count <= shown:
            return None
        ids = ids.to(self.ids.device)
        if count == 0:
            if not self.restarts or not torch.equal(ids, self.ids[:, :length]):
                return None
            place = self.start
        else:
            before = self._before(ids, self.places[count - 1])
            if before is None:
                return None
            place = self.step(before, ids[:, -1])
            if count <= shown and not self.may_come(ids[0], before, place):
                return None
        self._remember(ids, place, count, shown)
        return place

    @property
    def restarts(self) -> bool:
        """Whether the prompt alone is this generation once more, and not a new one."""
        return True

    @abstractmethod
    def step(self, place: Place, tokens: Tensor) -> Place:
        """Where one token [rows] takes each row."""

    @abstractmethod
    def may_come(self, ids: Tensor, before: Place, after: Place) -> bool:
        """Whether the last of a single row's ids may belong to its text, where drafts were taken back."""

    @abstractmethod
    def reordered(self, place: Place, ids: Tensor, known: Tensor) -> Place | None:
        """The place of rows that are not in the order in which they were shown, None if they are others.

        Args:
            place: of the rows as they were shown.
            ids: int64 [rows, n], prompts included.
            known: int64 [rows, n], what was shown.
        """

    def _before(self, ids: Tensor, place: Place) -> Place | None:
        """The place before each row's last token, given that of the rows as they were remembered."""
        ids, known = ids[:, :-1], self.ids[:, : ids.shape[1] - 1]
        if torch.equal(ids, known):
            return place
        if not torch.equal(ids[:, : self.prompt], known[:, : self.prompt]):
            return None
        return self.reordered(place, ids, known)

    def _remember(self, ids: Tensor, place: Place, count: int, shown: int) -> None:
        self.ids = ids.clone()
        for later in range(count + 1, shown + 1):
            self.places.pop(later, None)
        if len(ids) > 1 and count > 1:
            del self.places[count - 1]
        self.places[count] = place


def parents(rows: Tensor, known: Tensor) -> Tensor | None:
    """For each row, which of the known rows [n, m] it equals; None if one equals none."""
    _, text = torch.cat([known, rows]).unique(dim=0, return_inverse=True)
    same = text[len(known) :, None] == text[: len(known)]
    return same.int().argmax(1) if bool(same.any(1).all()) else None


Kind = TypeVar("Kind", bound=Generation)  # type: ignore[type-arg]


class Remembering(LogitsProcessor, ABC, Generic[Kind, Place]):
    """A logits processor that knows which generation a call goes on with."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all generations: the next call begins a new one."""
        self._generations: list[Kind] = []

    @abstractmethod
    def begin(self, ids: Tensor) -> Kind:
        """A new generation from these prompts [rows, length]."""

    def find(self, ids: Tensor) -> tuple[Kind, Place]:
        """The generation that the ids [rows, length] go on with, or a new one, and where its rows stand.

        Raises:
            ValueError: ids come without their history.
        """
        if ids.dim() != 2:
            raise ValueError("ids without their history: continuous batching is not supported")
        for generation in self._generations:
            place = generation.follow(ids)
            if place is not None:
                break
        else:
            generation = self.begin(ids)
            place = generation.start
        others = [other for other in self._generations if other is not generation]
        self._generations = [generation, *others][:REMEMBERED]
        return generation, place


def repeats(rows: int, prompts: int, what: str) -> int:
    """How many rows each prompt has: `generate` repeats prompts for beams and several returned sequences.

    Raises:
        ValueError: rows cannot be shared out; the message says that there are `what` for so many prompts.
    """
    each, rest = divmod(rows, prompts)
    if rest:
        raise ValueError(
            f"there are {what} for {prompts} prompts, and generate has {rows} rows, no multiple of that"
        )
    return each
