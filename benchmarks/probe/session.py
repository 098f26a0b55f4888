"""A batch of texts that a transformers model is reading, pass by pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache


class Watcher(Protocol):
    """Looks on while a model reads."""

    def begin(self, positions: Sequence[int]) -> None:
        """A pass begins, with these positions of the watched text; those below 0 are padding."""


class Session:
    """Reads texts with a cache, left padded, and says which passes that took.

    Args:
        model: of transformers.
        padding: pad tokens to the left of each row.
        pad_token: what stands there.
        row: the watched text.
        watcher: looks on.

    Attributes:
        passes: rows and columns of every pass, as the model's embedding saw them.
    """

    def __init__(
        self, model: Any, padding: Sequence[int], pad_token: int, row: int, watcher: Watcher | None = None
    ) -> None:
        self._model = model
        self._padding = torch.tensor(padding)
        self._pad_token = pad_token
        self._row = row
        self._watcher = watcher
        self._cache = DynamicCache(config=model.config)
        # So that tokens can be taken back.
        self._cache.activate_past_recording()
        self.seen = 0
        self.passes: list[tuple[int, int]] = []

    def padded(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """The texts with their padding: int64 [rows, columns]."""
        return torch.tensor(
            [[self._pad_token] * int(pad) + list(row) for pad, row in zip(self._padding, rows, strict=True)]
        )

    def read(self, tokens: Tensor, keep: int = 1) -> Tensor:
        """The next tokens [rows, columns] of all texts; scores after the last columns, [rows, keep, V]."""
        columns = tokens.shape[1]
        begin = self.seen - int(self._padding[self._row])
        if self._watcher is not None:
            self._watcher.begin(range(begin, begin + columns))
        watch = self._model.get_input_embeddings().register_forward_pre_hook(self._note)
        try:
            scores: Tensor = self._model(
                input_ids=tokens,
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=keep,
                **self._places(columns),
            ).logits
        finally:
            watch.remove()
        self.seen += columns
        return scores

    def _places(self, columns: int) -> dict[str, Tensor]:
        """Mask and positions, where there is padding; a model makes its own where there is none."""
        if not bool(self._padding.any()):
            return {}
        at = torch.arange(self.seen + columns)
        mask = (at >= self._padding[:, None]).to(torch.int64)
        positions = (at - self._padding[:, None]).clamp(min=0)[:, -columns:]
        return {"attention_mask": mask, "position_ids": positions}

    def take_back(self, columns: int) -> None:
        """Forget the last columns."""
        if columns:
            self._cache.crop(-columns)
            self.seen -= columns

    def _note(self, module: Any, inputs: tuple[Tensor, ...]) -> None:
        rows, columns = inputs[0].shape
        self.passes.append((rows, columns))
