"""Where the parts of a step are in vLLM: in its scheduler, its first model runner, and after them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

import torch
import vllm.v1.sample.ops.topk_topp_sampler as filters
import vllm.v1.worker.gpu_model_runner as runners
from torch import Tensor
from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer, SlowIncrementalDetokenizer
from vllm.v1.engine.logprobs import LogprobsProcessor
from vllm.v1.sample.logits_processor import MinPLogitsProcessor
from vllm.v1.structured_output.backend_guidance import GuidanceGrammar
from vllm.v1.structured_output.backend_xgrammar import XgrammarGrammar

from sortition.benchmarks.overhead import parts
from sortition.benchmarks.overhead.patches import Patches
from sortition.benchmarks.overhead.stopwatch import Stopwatch

GRAMMARS: Final = (XgrammarGrammar, GuidanceGrammar)

FILTER_AND_DRAW: Final = ("forward_cpu", "forward_native")
"""Ways of the last sampler that filter first and then draw; the others do both in one kernel."""


class Parts:
    """Times the parts of the engine's steps while it is entered.

    Args:
        engine: vLLM's engine, which runs in this process.
        core: its scheduler and executor.
        runner: of the model.
    """

    def __init__(self, engine: Any, core: Any, runner: Any, stopwatch: Stopwatch) -> None:
        self._engine = engine
        self._core = core
        self._runner = runner
        self._stopwatch = stopwatch
        self._patches = Patches()

    def __enter__(self) -> Parts:
        self._host()
        self._model()
        self._sampler()
        self._processors()
        self._output()
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def _time(self, owner: Any, name: str, part: str, instead: Callable[..., Any] | None = None) -> None:
        self._patches.patch(owner, name, lambda work: self._stopwatch.timed(part, work, instead))

    def _time_kept(self, owner: Any, name: str, part: str, key: Callable[..., Hashable]) -> None:
        """The same, where the stand-in is what the work gave last for the same key, or nothing."""
        kept: dict[Hashable, Any] = {}

        def keeping(work: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                result = kept[key(*arguments, **named)] = work(*arguments, **named)
                return result

            return call

        def instead(*arguments: Any, **named: Any) -> Any:
            return kept.get(key(*arguments, **named))

        self._patches.patch(owner, name, lambda work: self._stopwatch.timed(part, keeping(work), instead))

    def _host(self) -> None:
        scheduler, executor = self._core.scheduler, self._core.model_executor
        self._time(scheduler, "schedule", parts.SCHEDULE)
        self._time(scheduler, "update_from_output", parts.BOOKKEEPING)
        # Who leaves out filling alone has the mask of the step before applied.
        self._time_kept(scheduler, "get_grammar_bitmask", parts.MASK_FILL, _same_rows)
        for grammar in (*GRAMMARS, *_outlines()):
            self._time(grammar, "accept_tokens", parts.MASK_FILL)
        self._time(executor, "execute_model", parts.INPUTS)
        self._time(executor, "sample_tokens", parts.BOOKKEEPING)

    def _model(self) -> None:
        self._time(self._runner.model, "forward", parts.FORWARD)
        self._time(self._runner.model, "compute_logits", parts.LOGITS)
        self._time(runners, "apply_grammar_bitmask", parts.MASK_APPLY, _nothing)

    def _sampler(self) -> None:
        sampler = self._runner.sampler
        self._time(sampler, "forward", parts.DRAW)
        self._time(sampler, "greedy_sample", parts.DRAW, _zeros)
        last = sampler.topk_topp_sampler
        apart = last.forward.__name__ in FILTER_AND_DRAW
        self._time(last, "forward", parts.DRAW, _filtered if apart else _drawn)
        self._time(sampler, "apply_logits_processors", parts.PENALTIES)
        self._time(sampler, "apply_penalties", parts.PENALTIES, _unchanged)
        self._time(sampler, "apply_temperature", parts.FILTERS, _unchanged)
        self._time(filters, "apply_top_k_top_p", parts.FILTERS, _unchanged)
        self._time(sampler, "compute_logprobs", parts.LOGPROBS, _unchanged)
        self._time_kept(sampler, "gather_logprobs", parts.LOGPROBS, _same_size)

    def _processors(self) -> None:
        everyone = list(self._runner.input_batch.logitsprocs.all)
        own = [each for each in everyone if type(each).__module__.startswith("vllm.")]
        custom = [each for each in everyone if each not in own]
        named = [
            *(
                (parts.FILTERS if isinstance(each, MinPLogitsProcessor) else parts.PENALTIES, each)
                for each in own
            ),
            *zip(parts.processors(custom), custom, strict=True),
        ]
        for part, processor in named:
            self._time(processor, "apply", part, _unchanged)
            self._time(processor, "update_state", part)

    def _output(self) -> None:
        self._time(self._engine.output_processor, "process_outputs", parts.BOOKKEEPING)
        self._time(LogprobsProcessor, "update_from_output", parts.LOGPROBS)
        for detokenizer in (FastIncrementalDetokenizer, SlowIncrementalDetokenizer):
            self._time(detokenizer, "update", parts.DETOKENISE, _nothing)


def _outlines() -> list[Any]:
    try:
        from vllm.v1.structured_output.backend_outlines import OutlinesGrammar
    except ImportError:
        return []
    return [OutlinesGrammar]


def _unchanged(logits: Tensor, *_: object, **__: object) -> Tensor:
    return logits


def _zeros(logits: Tensor) -> Tensor:
    return torch.zeros(len(logits), dtype=torch.int64, device=logits.device)


def _drawn(logits: Tensor, *_: object) -> tuple[Tensor, None]:
    return _zeros(logits), None


def _filtered(logits: Tensor, _: object, k: Tensor | None, p: Tensor | None) -> tuple[Tensor, None]:
    """Filters are a part of their own, inside of the draw: that may be left out, too, or not."""
    return _drawn(filters.apply_top_k_top_p(logits, k, p))


def _nothing(*_: object, **__: object) -> None:
    return None


def _same_rows(scheduler_output: Any) -> Hashable:
    return tuple(scheduler_output.num_scheduled_tokens)


def _same_size(logprobs: Tensor, count: int, token_ids: Tensor) -> Hashable:
    return len(logprobs), count
