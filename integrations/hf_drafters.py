"""transformers: what guesses how texts go on, for the drafts of `generate`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import torch
from torch import Tensor
from transformers import DynamicCache

from sortition.integrations.hf_reader import Reader
from sortition.sampling.sampler import Sampler
from sortition.sampling.state import State
from sortition.sampling.verification import Method
from sortition.sampling.verify import drafting

LONGEST: Final = 3
"""How many tokens a prompt lookup compares at most; with more, it is the same place nearly always."""

Text: TypeAlias = Sequence[int]
"""Ids of a text so far, without padding."""

Process: TypeAlias = Callable[[int, Text, Tensor], Tensor]
"""A row's number, its text, and logits [vocabulary] -> what a token is drawn from."""


@dataclass(frozen=True, eq=False)
class Drafts:
    """A guess of how a text goes on.

    Attributes:
        tokens: ids, none of which ends a text.
        logits: float32 [vocabulary] for each token, what it was drawn from; None for tokens that were not
            drawn.
    """

    tokens: Sequence[int] = ()
    logits: Sequence[Tensor] | None = None

    def __len__(self) -> int:
        return len(self.tokens)


class Drafter(Protocol):
    """Guesses how the texts of all rows go on."""

    def draft(self, texts: Sequence[Text], state: State, rooms: Sequence[int]) -> list[Drafts]:
        """A guess for each row, at most as long as there is room for; none where there is no room.

        Args:
            texts: so far; each goes on with the one that was shown for its row before.
            state: of the target there.
            rooms: 0 or more.
        """


class InTurn:
    """Asks drafters in turn, each about the rows for which those before it had no guess."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters = drafters

    def draft(self, texts: Sequence[Text], state: State, rooms: Sequence[int]) -> list[Drafts]:
        """See `Drafter`."""
        found = [Drafts() for _ in texts]
        for drafter in self._drafters:
            left = [0 if guess else room for guess, room in zip(found, rooms, strict=True)]
            if any(left):
                more = drafter.draft(texts, state, left)
                found = [mine if mine else theirs for mine, theirs in zip(found, more, strict=True)]
        return found


class PromptLookup:
    """Says what came after the last tokens when they came before (Saxena, Prompt Lookup Decoding, 2023).

    Args:
        most: how many tokens to guess.
        ends: ids that end a text.
    """

    def __init__(self, most: int, ends: Collection[int]) -> None:
        self._most = most
        self._ends = ends

    def draft(self, texts: Sequence[Text], state: State, rooms: Sequence[int]) -> list[Drafts]:
        """See `Drafter`."""
        return [
            self._draft(list(text), min(room, self._most)) for text, room in zip(texts, rooms, strict=True)
        ]

    def _draft(self, text: list[int], room: int) -> Drafts:
        found = looked_up(text, room) if room else []
        end = next((at for at, token in enumerate(found) if token in self._ends), len(found))
        return Drafts(found[:end])


def looked_up(text: list[int], count: int) -> list[int]:
    """What has followed the longest of a text's ends that has come before, the last time that was enough."""
    for size in range(min(LONGEST, len(text) - 1), 0, -1):
        end = text[-size:]
        after = [at for at in range(size, len(text)) if text[at - size : at] == end]
        if after:
            at = next((at for at in reversed(after) if at + count <= len(text)), after[0])
            return text[at : at + count]
    return []


class ModelDrafter:
    """Draws from a smaller model of the same tokens, which keeps a cache of its own.

    Args:
        model: of transformers.
        most: how many tokens to guess.
        width: of the target's logits; what the drafter's have beyond is left out.
        process: what is made of the target's logits, too.
        sampler: of the target.
        method: that the noise is to fit.
        ends: ids that end a text.
    """

    def __init__(
        self,
        model: Any,
        most: int,
        width: int,
        process: Process,
        sampler: Sampler,
        method: Method,
        ends: Collection[int],
    ) -> None:
        self._model = model
        self._most = most
        self._width = width
        self._process = process
        self._sampler = sampler
        self._method = method
        self._ends = ends
        self._reader = Reader(model, DynamicCache(config=model.config))

    def draft(self, texts: Sequence[Text], state: State, rooms: Sequence[int]) -> list[Drafts]:
        """See `Drafter`; a text with tokens that the drafter does not know has none."""
        state = drafting(state, self._method)
        known = self._model.get_input_embeddings().num_embeddings
        readable = [max(text) < known for text in texts]
        rooms = [min(room, self._most) if knows else 0 for room, knows in zip(rooms, readable, strict=True)]
        # All rows are read together; what is read of one without drafts does not matter.
        grown = [list(text) if knows else [0] for text, knows in zip(texts, readable, strict=True)]
        tokens: list[list[int]] = [[] for _ in texts]
        laws: list[list[Tensor]] = [[] for _ in texts]
        while going := [row for row, room in enumerate(rooms) if len(tokens[row]) < room]:
            scores = self._scores(grown, going)
            # As flags have it, whatever the policy: a drafter that has nothing to say says nothing.
            drawn = self._sampler.backend(scores, self._sampler.request(state, self._width)).tokens.tolist()
            taken = [-1] * len(texts)
            for row in going:
                token = drawn[row]
                if token < 0 or token in self._ends:
                    rooms[row] = 0
                    continue
                taken[row] = token
                tokens[row].append(token)
                laws[row].append(scores[row])
                grown[row].append(token)
            state = self._sampler.advance(state, taken)
        return [Drafts(*each) for each in zip(tokens, laws, strict=True)]

    def _scores(self, texts: Sequence[Text], rows: Sequence[int]) -> Tensor:
        """What tokens are drawn from, float32 [rows, width] on the host; nothing of other rows than these.

        Tokens that the drafter does not have are at -inf.
        """
        scores = torch.zeros(len(texts), self._width)
        for row, logits in enumerate(self._reader.read(texts)):
            if row in rows:
                last = logits[-1, : self._width].to("cpu", torch.float32)
                last = torch.nn.functional.pad(last, (0, self._width - len(last)), value=float("-inf"))
                scores[row] = self._process(row, texts[row], last)
        return scores
