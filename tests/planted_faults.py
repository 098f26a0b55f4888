"""Small models that give the same bits in any batch, on any machine, until a fault is planted in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers import LlamaConfig, LlamaForCausalLM

from sortition.benchmarks.probe import mend
from sortition.benchmarks.probe.target import Condition, Prompt
from sortition.benchmarks.probe.transformers_target import TransformersTarget

VOCABULARY = 64
LAYERS = 2
KINDS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")
REST = ("attention", "act_fn", "input_layernorm", "post_attention_layernorm", "norm")
MENDINGS: list[AbstractContextManager[None]] = []
FAULTY = ("q_proj", "o_proj", "up_proj", "down_proj")


class Numbers:
    """Stands for a tokenizer where only what tokens say is asked for."""

    def decode(self, tokens: list[int], **options: Any) -> str:
        return " ".join(map(str, tokens))


def llama(seed: int) -> Any:
    """Two layers with random weights, in float32."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).eval()


def invariant(model: Any) -> Any:
    """Every operation reads every vector by itself, so that no library's kernel can tell batches apart."""
    mending = mend.mended(model, (*KINDS, *REST))
    mending.__enter__()
    # Never left: a context that is forgotten would be closed.
    MENDINGS.append(mending)
    return model


def prompts(seed: int, count: int = 2) -> list[Prompt]:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(3, VOCABULARY, (count, 5), generator=generator).tolist()
    return [Prompt(f"prompt {number}", tuple(tokens)) for number, tokens in enumerate(drawn)]


def clean(seed: int) -> TransformersTarget:
    return TransformersTarget(invariant(llama(seed)), Numbers())


def with_operation(
    seed: int, fault: Callable[[Any], Callable[[Tensor], Tensor]]
) -> tuple[TransformersTarget, str]:
    """One operation replaced by what `fault` makes of its module; the target, and the operation's name."""
    target = clean(seed)
    name = f"model.layers.{seed % LAYERS}"
    kind = FAULTY[seed % len(FAULTY)]
    found = next(
        (path, module)
        for path, module in target.model.named_modules()
        if path.startswith(name) and path.endswith(kind)
    )
    found[1].forward = fault(found[1])
    return target, found[0]


def split_by_batch(module: Any, first: int = 2) -> Callable[[Tensor], Tensor]:
    """Sums in two halves where there are so many rows or more."""

    def forward(values: Tensor) -> Tensor:
        half = module.in_features // 2
        parts = [slice(None)] if len(values) < first else [slice(half), slice(half, None)]
        vectors = values.reshape(-1, 1, values.shape[-1])
        made = torch.cat(
            [
                sum(
                    linear(vector[:, part].contiguous(), module.weight[:, part].contiguous())
                    for part in parts
                )
                for vector in vectors
            ]
        )
        return made.reshape(*values.shape[:-1], -1)

    return forward


def noise_by_row(module: Any) -> Callable[[Tensor], Tensor]:
    """Off by a millionth in the second row, by two in the third, and so on."""
    whole = module.forward

    def forward(values: Tensor) -> Tensor:
        return whole(values) * (1 + 1e-6 * torch.arange(len(values))[:, None, None])

    return forward


def unset_memory(module: Any) -> Callable[[Tensor], Tensor]:
    """Leaves four outputs of every vector as an earlier call has left them."""
    whole = module.forward
    left = torch.zeros(4)

    def forward(values: Tensor) -> Tensor:
        made = whole(values).clone()
        made[..., :4] = left
        left.copy_(made[-1, -1, -4:])
        return made

    return forward


class KeyedByRow(TransformersTarget):
    """Draws with noise that belongs to rows."""

    def choose(self, scores: Tensor, condition: Condition, step: int) -> list[int]:
        noisy = [
            score + 3 * torch.randn(len(score), generator=torch.Generator().manual_seed(1000 * row + step))
            for row, score in enumerate(scores)
        ]
        return torch.stack(noisy).argmax(-1).tolist()


class TiesByRow(TransformersTarget):
    """Takes the lowest of equal tokens in the first row, the highest in the others."""

    def choose(self, scores: Tensor, condition: Condition, step: int) -> list[int]:
        best: Sequence[Tensor] = [(score == score.max()).nonzero()[:, 0] for score in scores]
        return [int(tokens[-1 if row else 0]) for row, tokens in enumerate(best)]


def keyed_by_row(seed: int) -> TransformersTarget:
    return KeyedByRow(invariant(llama(seed)), Numbers())


def ties_by_row(seed: int) -> TransformersTarget:
    """Every token has a twin with the same score."""
    model = llama(seed)
    with torch.no_grad():
        half = VOCABULARY // 2
        model.lm_head.weight[half:] = model.lm_head.weight[:half]
    return TiesByRow(invariant(model), Numbers())


def padding_leak(seed: int) -> TransformersTarget:
    """The mask gets lost, so that padding is read like text."""
    target = clean(seed)
    whole = target.model.forward

    def forward(*, attention_mask: Tensor | None = None, **options: Any) -> Any:
        return whole(**options)

    target.model.forward = forward
    return target
