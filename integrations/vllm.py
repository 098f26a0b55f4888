"""vLLM: a logits processor that holds requests to their grammars and draws, for either of its model runners.

It is loaded by name, offline or by the server's flag of the same name:

    LLM(model, logits_processors=["sortition.integrations.vllm:Processor"])

and a request says what it wants in its extra arguments; see `sortition.integrations.request`.
"""

from __future__ import annotations

import time
import weakref
from typing import Any, Final

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality
from vllm.v1.sample.logits_processor import LogitsProcessor as FirstContract
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as SecondContract

from sortition.grammars.expr import EMPTY
from sortition.grammars.grammar import Grammar
from sortition.grammars.vocabulary import Vocabulary
from sortition.integrations.vllm_batch import Batch
from sortition.integrations.vllm_compile import Compiler, Figures, logger
from sortition.integrations.vllm_draw import (
    Drawer,
    Penalties,
    Seeds,
    Wish,
    parameters_of,
    within,
)
from sortition.integrations.vllm_host import HostSlots
from sortition.integrations.vllm_request import Asked, RequestError, check, read
from sortition.integrations.vllm_runner import Runner
from sortition.integrations.vllm_slots import Admission, Slots
from sortition.sampling.seeds import signed

MOST_STOPS: Final = 256
"""Stop tokens of one request: every row of the batch is compared with as many."""

REPORT_SECONDS: Final = 300
"""How often the figures are logged, at most, while requests with grammars come."""

_processors: weakref.WeakSet[Processor] = weakref.WeakSet()


def stats(worker: object = None) -> list[dict[str, float]]:
    """The figures of every processor in this process; see `Processor.stats`.

    Args:
        worker: ignored, so that ``LLM.collective_rpc(stats)`` may call it in every worker.
    """
    return [processor.stats() for processor in _processors]


class Processor(FirstContract, SecondContract):  # type: ignore[misc]
    """See the module. The two contracts differ in what they pass to the constructor, and in who calls what.

    Raises:
        ValueError: this engine gives a processor no tokenizer, or no tokens; or the tokenizer decodes in a
            way that tokens of fixed bytes cannot follow.
    """

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse what could not be done, before the request is admitted.

        Raises:
            RequestError: which is a ValueError, with a message for the user.
        """
        asked = check(sampling_params.extra_args)
        if asked is None:
            return
        if asked.grammar is not None and sampling_params.structured_outputs is not None:
            raise RequestError(
                "not together with structured outputs (response_format): one grammar a request"
            )
        if sampling_params.thinking_token_budget is not None:
            raise RequestError(
                "not together with thinking_token_budget, which forces tokens past grammars and draws"
            )
        if getattr(sampling_params, "trace_decode_token_ids", None) is not None:
            raise RequestError(
                "not together with trace_decode_token_ids, which forces tokens past grammars and draws"
            )
        if asked.draw is not None:
            parameters_of(asked.draw, sampling_params)
        if len(sampling_params.stop_token_ids or ()) > MOST_STOPS:
            raise RequestError(f"more than {MOST_STOPS} stop tokens")

    def __init__(self, vllm_config: VllmConfig, *arguments: Any) -> None:
        model = vllm_config.model_config
        # The second contract passes the states of its slots, the first a device and whether memory is pinned.
        second = self._second = len(arguments) == 1
        if not second and vllm_config.scheduler_config.async_scheduling and not model.logits_processors:
            raise ValueError(
                "with asynchronous scheduling, this model runner shows tokens only to processors that are "
                'named: pass logits_processors=["sortition.integrations.vllm:Processor"]'
            )
        tokenizer = cached_tokenizer_from_config(model)
        if tokenizer is None:
            raise ValueError("without a tokenizer there is no vocabulary: leave out skip_tokenizer_init")
        # vLLM wraps what mistral-common reads in a class of its own.
        tokenizer = getattr(tokenizer, "transformers_tokenizer", tokenizer)
        vocabulary = Vocabulary.of(tokenizer, generation_config=model.try_get_generation_config())
        self._width = model.get_vocab_size()
        self._ends = vocabulary.end_tokens
        self._figures = Figures()
        self._reported = time.monotonic()
        self._compiler = Compiler(vocabulary, self._figures)
        self._seeds = Seeds(model.seed, vllm_config.parallel_config.data_parallel_rank)
        # What the first runner does after us, the second has done before.
        self._penalties_follow = not second
        closed = Grammar(EMPTY, source="nothing").compile(vocabulary)
        drawer = Drawer(self._figures)
        if second:
            (states,) = arguments
            slots = Slots(self._compiler, closed, states.device, states.max_num_reqs)
            self._slots: Slots | HostSlots = slots
            self._runner = Runner(slots, states, vllm_config.num_speculative_tokens, drawer)
            self._runner.warm_up(self._width)
        else:
            device, rows = torch.device(arguments[0]), vllm_config.scheduler_config.max_num_seqs
            if device.type == "cpu":
                self._slots = HostSlots(self._compiler, closed)
            else:
                self._slots = Slots(self._compiler, closed, device, rows)
            self._batch = Batch(self._slots, rows, drawer, self._figures)
        _processors.add(self)
        weakref.finalize(self, _report, self._figures)

    def stats(self) -> dict[str, float]:
        """What grammars and draws cost so far, and what is there now. Waits for the device."""
        kept, kept_bytes = self._compiler.kept
        figures = self._figures.as_dict()
        if self._second:
            for name, count in zip(("drawn_rows", "mended_rows"), self._runner.counts, strict=True):
                figures[name] += count
        return {
            **figures,
            "dead_rows": self._slots.refused,
            "live_grammars": self._compiler.held,
            "kept_grammars": kept,
            "kept_bytes": kept_bytes,
            "device_bytes": self._slots.nbytes,
        }

    def is_argmax_invariant(self) -> bool:
        """First contract: a mask or a draw changes which logit is the greatest."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """First contract: rows that came, moved and went."""
        if batch_update is None:
            return
        for row in batch_update.removed:
            self._batch.remove(row)
        for row, sampling_params, prompt, output in batch_update.added:
            self._batch.add(row, self._admission(sampling_params), output, prompt)
        for source, target, direction in batch_update.moved:
            if direction == MoveDirectionality.SWAP:
                self._batch.swap(source, target)
            else:
                self._batch.move(source, target)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Second contract: a request takes a slot; whether its logits are changed."""
        return self._runner.add(req_idx, self._admission(sampling_params))

    def apply(self, logits: Tensor, ctx: LogitsContext | None = None) -> Tensor:
        """Both contracts: logits [rows, vocabulary] with what a row may not emit at -inf."""
        return self._batch.mask(logits) if ctx is None else self._runner.mask(logits, ctx)

    def _admission(self, sampling_params: SamplingParams) -> Admission | None:
        asked = read(sampling_params.extra_args)
        if asked is None:
            return None
        if time.monotonic() - self._reported > REPORT_SECONDS:
            self._reported = time.monotonic()
            _report(self._figures)
        ends = sorted(end for end in sampling_params.all_stop_token_ids if 0 <= end < self._width)
        end_tokens = tuple(ends) or self._ends
        return Admission(asked.grammar, end_tokens, self._wish(asked, sampling_params, end_tokens))

    def _wish(
        self, asked: Asked, sampling_params: SamplingParams, end_tokens: tuple[int, ...]
    ) -> Wish | None:
        if asked.draw is None:
            return None
        seed = sampling_params.seed
        return Wish(
            within(parameters_of(asked.draw, sampling_params), self._width, end_tokens),
            self._seeds.next() if seed is None else signed(seed),
            Penalties.of(sampling_params) if self._penalties_follow else None,
        )


def _report(figures: Figures) -> None:
    if figures.requests or figures.drawn_rows:
        named = (f"{name} {value:g}" for name, value in figures.as_dict().items())
        logger.info("so far: %s", ", ".join(named))
