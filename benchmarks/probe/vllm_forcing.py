"""A logits processor of vLLM that goes on with the tokens it is told, for comparisons step by step.

vLLM takes log-probabilities before processors have their say, so that they stay the model's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from sortition.benchmarks.probe.vllm_target import FORCED


class Forcing(AdapterLogitsProcessor):
    """See the module. For the first model runner."""

    def is_argmax_invariant(self) -> bool:
        """No: greedy requests are led, too."""
        return False

    def new_req_logits_processor(self, params: Any) -> Callable[[list[int], Tensor], Tensor] | None:
        """What leads one request, if it is to be led."""
        forced = (params.extra_args or {}).get(FORCED)
        if forced is None:
            return None

        def lead(output: list[int], logits: Tensor) -> Tensor:
            told = logits.new_full(logits.shape, float("-inf"))
            told[forced[min(len(output), len(forced) - 1)]] = 0.0
            return told

        return lead
