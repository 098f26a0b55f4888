"""What `device.py` compares with on a GPU, each behind one call: logits of any type in, token ids out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

from sortition.benchmarks.sampler_peers import Call, Setting, TorchSort


def _vllm(setting: Setting, rows: int, device: torch.device) -> Call:
    from vllm.v1.sample.ops.topk_topp_sampler import random_sample
    from vllm.v1.sample.ops.topk_topp_triton import apply_top_k_top_p_triton

    k = torch.full((rows,), setting.top_k, device=device, dtype=torch.int32) if setting.top_k else None
    p = torch.full((rows,), setting.top_p, device=device) if setting.top_p < 1 else None

    def call(logits: Tensor) -> Tensor:
        # It takes float32, and changes it in place.
        logits = logits.to(torch.float32, copy=True)
        if setting.temperature == 0:
            return logits.argmax(-1)
        logits.div_(setting.temperature)
        if setting.min_p:
            probs = logits.softmax(-1)
            logits.masked_fill_(probs < setting.min_p * probs.amax(-1, keepdim=True), -float("inf"))
        if k is not None or p is not None:
            logits = apply_top_k_top_p_triton(logits, k, p)
        tokens: Tensor = random_sample(logits.softmax(-1), {})
        return tokens

    return call


def _flashinfer(setting: Setting, rows: int, device: torch.device) -> Call:
    from flashinfer import sampling  # type: ignore[import-not-found]

    def call(logits: Tensor) -> Tensor:
        logits = logits.float()
        if setting.temperature == 0:
            return logits.argmax(-1)
        logits = logits / setting.temperature
        if setting.top_k:
            top_p = setting.top_p
            tokens: Tensor = sampling.top_k_top_p_sampling_from_logits(logits, setting.top_k, top_p)
        elif setting.min_p:
            tokens = sampling.min_p_sampling_from_probs(logits.softmax(-1), setting.min_p)
        elif setting.top_p < 1:
            tokens = sampling.top_p_sampling_from_probs(logits.softmax(-1), setting.top_p)
        else:
            tokens = sampling.sampling_from_logits(logits)
        return tokens

    return call


def _torch(setting: Setting, rows: int, device: torch.device) -> Call:
    if setting.temperature == 0:
        return lambda logits: logits.argmax(-1)
    call = TorchSort().prepare(setting, rows)
    if call is None:
        raise ValueError(f"torch has no {setting.name}")
    return lambda logits: call(logits.float())


PEERS: Final[Mapping[str, Callable[[Setting, int, torch.device], Call]]] = {
    "torch": _torch,
    "vllm triton": _vllm,
    "flashinfer": _flashinfer,
}
"""By name: a call for a setting, so many rows and a device."""
