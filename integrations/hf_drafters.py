"""transformers: what guesses how a text goes on, for the drafts of `generate`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from sortition.sampling.sampler import Sampler, State
from sortition.sampling.verification import Method
from sortition.sampling.verify import drafting

LONGEST: Final = 3
"""How many tokens a prompt lookup compares at most; with more, it is the same place nearly always."""

Process: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Ids [1, length] and logits [1, vocabulary] -> what a token is drawn from."""


class Drafts(NamedTuple):
    """A guess of how a text goes on, as `verify` takes it.

    Attributes:
        tokens: int64 [1, n], ids.
        logits: float32 [1, n, vocabulary], what each was drawn from; None for drafts that were not drawn.
    """

    tokens: Tensor
    logits: Tensor | None = None


class Drafter(Protocol):
    """Guesses how one text goes on."""

    def draft(self, ids: Tensor, state: State, count: int) -> Drafts:
        """Up to so many tokens, and no end token.

        Args:
            ids: int64 [1, length], the text so far, without padding.
            state: of the target there.
            count: 1 or more.
        """


class PromptLookup:
    """Says what came after the last tokens when they came before (Saxena, Prompt Lookup Decoding, 2023).

    Args:
        ends: ids that end a text.
    """

    def __init__(self, ends: Collection[int]) -> None:
        self._ends = ends

    def draft(self, ids: Tensor, state: State, count: int) -> Drafts:
        """See `Drafter`."""
        text = ids[0].tolist()
        found = looked_up(text, count)
        end = next((at for at, token in enumerate(found) if token in self._ends), len(found))
        return Drafts(ids.new_tensor([found[:end]], dtype=torch.int64))


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
        width: of the target's logits; what the drafter's have beyond is left out.
        process: what is made of the target's logits, too.
        sampler: of the target.
        method: that the noise is to fit.
        ends: ids that end a text.
    """

    def __init__(
        self,
        model: Any,
        width: int,
        process: Process,
        sampler: Sampler,
        method: Method,
        ends: Collection[int],
    ) -> None:
        self._model = model
        self._width = width
        self._process = process
        self._sampler = sampler
        self._method = method
        self._ends = ends
        self._cache = recording(DynamicCache(config=model.config))
        self._fed: list[int] = []

    def draft(self, ids: Tensor, state: State, count: int) -> Drafts:
        """See `Drafter`; a text with tokens that the drafter does not know has none."""
        state = drafting(state, self._method)
        tokens, laws = ids[:, :0], list[Tensor]()
        if int(ids.max()) >= self._model.get_input_embeddings().num_embeddings:
            return Drafts(tokens)
        self._rewind(ids)
        while len(laws) < count:
            text = torch.cat([ids, tokens], dim=1)
            scores = self._process(text, self._logits(text))
            token = self._sampler(scores, state).tokens
            if int(token) < 0 or int(token) in self._ends:
                break
            laws.append(scores)
            tokens = torch.cat([tokens, token[:, None]], dim=1)
            state = self._sampler.advance(state, token)
        return Drafts(tokens, torch.stack(laws, dim=1) if laws else None)

    def _rewind(self, ids: Tensor) -> None:
        """Take back what has been fed and is not the text, and its last token in any case."""
        text = ids[0, :-1].tolist()
        pairs = zip(self._fed, text, strict=False)
        same = next(
            (at for at, (fed, token) in enumerate(pairs) if fed != token), min(len(self._fed), len(text))
        )
        if self._fed:
            # Even if nothing is taken back: layers with a window let go of what is behind it.
            self._cache.crop(same - len(self._fed))
        self._fed = self._fed[:same]

    def _logits(self, ids: Tensor) -> Tensor:
        """Those after the text [1, width], -inf for tokens that the drafter does not have."""
        part = ids[:, len(self._fed) :].to(self._model.device)
        outputs = self._model(input_ids=part, past_key_values=self._cache, use_cache=True, return_dict=True)
        self._fed = ids[0].tolist()
        logits = outputs.logits[:, -1, : self._width].to(ids.device, torch.float32)
        return torch.nn.functional.pad(logits, (0, self._width - logits.shape[1]), value=float("-inf"))


def recording(cache: Any) -> Any:
    """The cache, ready to have tokens taken back."""
    cache.activate_past_recording()
    return cache


def drafter_of(
    drafter: Any, width: int, process: Process, sampler: Sampler, method: Method, ends: Collection[int]
) -> Drafter:
    """The drafter that is asked for: a model or "prompt_lookup"; for the rest see `ModelDrafter`.

    Raises:
        ValueError: it is neither, or a model with an encoder.
    """
    if isinstance(drafter, str) and drafter == "prompt_lookup":
        return PromptLookup(ends)
    if not isinstance(drafter, PreTrainedModel):
        raise ValueError(f"a drafter is a model of transformers or 'prompt_lookup', not {drafter!r}")
    if drafter.config.is_encoder_decoder:
        raise ValueError("so.generate does not do drafters with an encoder")
    return ModelDrafter(drafter, width, process, sampler, method, ends)
