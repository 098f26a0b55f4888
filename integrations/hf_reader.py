"""transformers: a model that reads several texts, each at its own pace, and takes back what it has read."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

COLUMNS: Final = ("attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids")
"""What a model takes beside ids, with a column for each token that it has read."""


class Reader:
    """A model of transformers, its cache, and the texts that are in it.

    All texts end in the last column of the cache, and columns before a shorter one are masked. A text of
    which more is taken back than of others moves to the right, over what was taken back: so what has been
    read keeps its bits, and nothing is read twice. The cache of a single text only ever loses its end.

    Args:
        model: of transformers.
        cache: a `DynamicCache`.
        given: what the model is given beside ids, one column for each that is in the cache.
        texts: that are in the cache, padding included.
    """

    def __init__(
        self,
        model: Any,
        cache: Any,
        given: dict[str, Any] | None = None,
        texts: Sequence[Sequence[int]] | None = None,
    ) -> None:
        cache.activate_past_recording()
        self._model = model
        self._cache = cache
        self._given = {} if given is None else given
        self._texts = [] if texts is None else list(map(list, texts))
        self._beyond = [0] * len(self._texts)

    def read(self, texts: Sequence[Sequence[int]]) -> list[Tensor]:
        """Read what is new in texts that go on from those read before, or from a beginning of them.

        Args:
            texts: ids of each row, at least one.

        Returns:
            For each row logits [n, vocabulary], after each of its last n tokens: those that are new to the
            model, and its last token in any case.
        """
        known = self._texts or [[] for _ in texts]
        same = [_shared(before, text[:-1]) for before, text in zip(known, texts, strict=True)]
        if self._texts:
            self._take_back(same)
        news = [list(text[begin:]) for text, begin in zip(texts, same, strict=True)]
        width = max(map(len, news))
        # Rows have to be of one length; nothing looks at what follows them.
        block = torch.tensor([[*new, *[new[-1]] * (width - len(new))] for new in news])
        outputs = self._model(**self._inputs(block.to(self._model.device)), return_dict=True)
        self._texts = list(map(list, texts))
        self._beyond = [width - len(new) for new in news]
        logits = outputs.logits[:, -width:]
        return [row[: len(new)] for row, new in zip(logits, news, strict=True)]

    def keep(self, texts: Sequence[Sequence[int]]) -> Any:
        """The cache with nothing in it but these beginnings of the texts that were read."""
        self._take_back([len(text) for text in texts])
        return self._cache

    def _inputs(self, block: Tensor) -> dict[str, Any]:
        """What the model is called with, to read these ids [rows, width]."""
        rows, width = block.shape
        if not self._texts:
            positions = torch.arange(width, device=block.device).expand(rows, -1)
            self._given["attention_mask"] = torch.ones_like(block)
            if "position_ids" in inspect.signature(self._model.forward).parameters:
                self._given["position_ids"] = positions
        else:
            self._given = self._model._update_model_kwargs_for_generation(
                {}, self._given, num_new_tokens=width
            )
        given = {**self._given, "past_key_values": self._cache, "use_cache": True}
        inputs = self._model.prepare_inputs_for_generation(block, next_sequence_length=width, **given)
        if "logits_to_keep" in inputs:
            inputs["logits_to_keep"] = width
        return dict(inputs)

    def _take_back(self, lengths: Sequence[int]) -> None:
        """Take back all but so many tokens of each text."""
        counts = [
            len(text) + beyond - length
            for text, beyond, length in zip(self._texts, self._beyond, lengths, strict=True)
        ]
        least = min(counts)
        # To take back nothing is not nothing: layers with a window would let go of what is behind it, and
        # whoever takes back more than was read since then would miss it.
        if least:
            self._cache.crop(-least)
        for name in COLUMNS:
            if self._given.get(name) is not None:
                columns = self._given[name].shape[-1] - least
                self._given[name] = self._given[name][..., :columns]
        if max(counts) > least:
            self._move_right([count - least for count in counts])

    def _move_right(self, by: Sequence[int]) -> None:
        """Move each row's columns to the right, over the last ones."""
        mask: Tensor = self._given["attention_mask"]
        source = (
            torch.arange(mask.shape[1], device=mask.device) - torch.tensor(by, device=mask.device)[:, None]
        )
        mask = mask.gather(1, source.clamp(min=0)).masked_fill(source < 0, 0)
        # Columns that hide in every row go, so that the cache is as long as the longest text.
        first = int(mask.argmax(1).min())
        source = source[:, first:].clamp(min=0)
        for name in COLUMNS:
            if self._given.get(name) is not None:
                self._given[name] = self._given[name].gather(1, source)
        self._given["attention_mask"] = mask[:, first:]
        for layer in self._cache.layers:
            layer.keys, layer.values = (_columns(part, source) for part in (layer.keys, layer.values))


def _columns(states: Tensor, source: Tensor) -> Tensor:
    """States [rows, heads, columns, size] with the columns that are named for each row."""
    rows, heads, _, size = states.shape
    index = source.to(states.device)[:, None, :, None]
    return states.gather(2, index.expand(rows, heads, -1, size))


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two texts begin with alike."""
    pairs = zip(one, other, strict=False)
    shortest = min(len(one), len(other))
    return next((at for at, (mine, yours) in enumerate(pairs) if mine != yours), shortest)
