"""A processor of vLLM that takes as long as a request says: a planted fault for whoever looks for one."""

from __future__ import annotations

import time

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

FIELD = "slow_milliseconds"


class Slow(AdapterLogitsProcessor):
    """Sleeps in every step for each request that asks for it."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams):  # type: ignore[no-untyped-def]
        milliseconds = (params.extra_args or {}).get(FIELD)
        if milliseconds is None:
            return None

        def sleep(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            time.sleep(float(milliseconds) / 1000)
            return logits

        return sleep
