"""vLLM in this process, step by step, with its first model runner."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

# An engine in a process of its own could not be looked into; and the second runner has other parts.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
import vllm
from vllm import LLM, SamplingParams, envs
from vllm.platforms import current_platform
from vllm.sampling_params import StructuredOutputsParams

from sortition.benchmarks.overhead.engine import Script
from sortition.benchmarks.overhead.load import STRUCTURES, Load, prompts
from sortition.benchmarks.overhead.patches import Patches
from sortition.benchmarks.overhead.stopwatch import Kind, Step, Stopwatch
from sortition.benchmarks.overhead.vllm_parts import Parts
from sortition.integrations.errors import InputError, reason_of
from sortition.integrations.request import request

PROCESSOR: Final = "sortition.integrations.vllm:Processor"
RUNNERS: Final = ("vllm.v1.worker.cpu_model_runner", "vllm.v1.worker.gpu_model_runner")
BACKENDS: Final = {"xgrammar": "xgrammar", "guidance": "llguidance", "outlines": "outlines_core"}
"""vLLM's backends of structured output, and the package that each needs."""

CPU_CACHE: Final = 1 << 30
"""Bytes for keys and values on a CPU, unless VLLM_CPU_KVCACHE_SPACE says otherwise."""

LATE_STEPS: Final = 3
"""Steps before requests come that come late: those before have read their prompts and written two tokens."""

LONGEST_COMPILE: Final = 10.0
"""Seconds for which grammars are waited for; vLLM gives a request up after five."""

SECOND: Final = "vLLM's second model runner is not measured: unset VLLM_USE_V2_MODEL_RUNNER for its first"


class VLLMEngine:
    """See `Engine`. Requests that come late meet others that already write: their steps are mixed ones.

    Args:
        llm: started in this process, with `PROCESSOR` if texts are to be held to a grammar by us.
    """

    name = "vllm"

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self.tokenizer = llm.get_tokenizer()
        self._engine = llm.llm_engine
        self._core: Any = self._engine.engine_core.engine_core  # type: ignore[attr-defined]
        self._runner: Any = self._core.model_executor.driver_worker.worker.model_runner
        module = type(self._runner).__module__
        if module not in RUNNERS:
            raise InputError(f"{SECOND} ({module})")
        installed = [name for name, package in BACKENDS.items() if find_spec(package) is not None]
        self.structures: tuple[str, ...] = tuple(
            name for name in STRUCTURES if name in ("none", "ours", *installed)
        )

    @classmethod
    def load(cls, folder: Path, dtype: str, loads: Sequence[Load]) -> VLLMEngine:
        """Start vLLM for these loads.

        Raises:
            InputError: it cannot load the model, or is told to use its second model runner.
        """
        if envs.VLLM_USE_V2_MODEL_RUNNER:
            raise InputError(SECOND)
        options: dict[str, Any] = {}
        if any(load.structure == "ours" for load in loads):
            options["logits_processors"] = [PROCESSOR]
        if current_platform.is_cpu():
            options |= {"enforce_eager": True, "kv_cache_memory_bytes": CPU_CACHE}
        try:
            llm = LLM(
                str(folder),
                dtype=dtype,
                max_model_len=max(load.context + load.tokens for load in loads) + 1,
                max_num_seqs=max(load.batch for load in loads),
                max_num_batched_tokens=max(load.batch * (load.context + 1) for load in loads),
                # A prompt is read once and not found again by the next run.
                enable_prefix_caching=False,
                # The next step is not prepared while one is under way, so that steps end.
                async_scheduling=False,
                use_tqdm_on_load=False,
                **options,
            )
        except (OSError, ValueError, RuntimeError) as problem:
            raise InputError(f"vLLM cannot load the model in {folder}: {reason_of(problem)}") from problem
        return cls(llm)

    def describe(self) -> dict[str, Any]:
        """See `Engine.describe`."""
        return {
            "engine": self.name,
            "model": str(self._llm.model_config.model),
            "dtype": str(self._llm.model_config.dtype).removeprefix("torch."),
            "device": str(self._runner.device),
            "threads": torch.get_num_threads(),
            "runner": type(self._runner).__name__,
            "asynchronous scheduling": False,
            "torch": torch.__version__,
            "vllm": vllm.__version__,
        }

    def run(self, load: Load, stopwatch: Stopwatch, script: Script | None = None) -> Script:
        """See `Engine.run`."""
        if load.structure not in self.structures:
            raise InputError(f"vLLM here has no {load.structure}; there are {', '.join(self.structures)}")
        self._choose(load.structure)
        waiting = prompts(self.tokenizer, load)
        rows = {tuple(prompt): row for row, prompt in enumerate(waiting)}
        parameters = self._parameters(load)
        written: list[list[int]] = [[] for _ in waiting]
        with Parts(self._engine, self._core, self._runner, stopwatch), Patches() as patches:
            sorting = _Sorting(self._core.scheduler)
            patches.patch(self._core.scheduler, "schedule", sorting.watched)
            if script is not None:
                patches.patch(self._runner, "_sample", lambda work: self._forced(work, script, rows))
            begun = 0
            while begun < load.batch or self._engine.has_unfinished_requests():
                while begun < load.batch - (load.late if len(stopwatch.steps) < LATE_STEPS else 0):
                    self._engine.add_request(str(begun), {"prompt_token_ids": waiting[begun]}, parameters)
                    begun += 1
                if script is not None:
                    # Steps are compared: a row that waits for its grammar would miss the first of them.
                    self._await_grammars()
                with stopwatch.step() as step:
                    sorting.step = step
                    outputs = self._engine.step()
                for output in outputs:
                    if output.finished and output.outputs[0].finish_reason == "error":
                        self._engine.abort_request([str(row) for row in range(begun)])
                        raise InputError(f"vLLM gave up on a request: {load}")
                    if output.finished:
                        written[int(output.request_id)] = list(output.outputs[0].token_ids)
        return written

    def _await_grammars(self) -> None:
        end = time.monotonic() + LONGEST_COMPILE
        for waiting in list(self._core.scheduler.requests.values()):
            asked = waiting.structured_output_request
            while asked is not None and not asked.is_grammar_ready and time.monotonic() < end:
                time.sleep(0.001)

    def _parameters(self, load: Load) -> SamplingParams:
        sampling = load.sampling
        structured, extra = None, None
        if load.structure == "ours":
            extra = request(json_schema=load.schema)
        elif load.structure != "none":
            structured = StructuredOutputsParams(json=json.dumps(load.schema))
        return SamplingParams(
            max_tokens=load.tokens,
            # So that a batch keeps its rows.
            ignore_eos=True,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            logprobs=sampling.logprobs,
            structured_outputs=structured,
            extra_args=extra,
        )

    def _choose(self, structure: str) -> None:
        """Let requests be held to their grammars by another backend: vLLM itself keeps one for good."""
        config = self._engine.vllm_config.structured_outputs_config
        if structure not in BACKENDS or config.backend == structure:
            return
        config.backend = structure  # type: ignore[assignment]
        manager = self._core.structured_output_manager
        manager.backend, manager._grammar_bitmask = None, None

    def _forced(
        self, work: Callable[..., Any], script: Script, rows: dict[tuple[int, ...], int]
    ) -> Callable[..., Any]:
        """Sampling whose tokens are those of the script, whatever was drawn."""

        def call(*arguments: Any, **named: Any) -> Any:
            output = work(*arguments, **named)
            forced = []
            for name in self._runner.input_batch.req_ids:
                state = self._runner.requests[name]
                forced.append(script[rows[tuple(state.prompt_token_ids)]][len(state.output_token_ids)])
            output.sampled_token_ids.copy_(torch.tensor(forced)[:, None])
            return output

        return call


class _Sorting:
    """Says of each step which kind it is, from what is scheduled."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.step = Step()

    def watched(self, schedule: Callable[..., Any]) -> Callable[..., Any]:
        """The scheduler's method, watched."""

        def call(*arguments: Any) -> Any:
            found = schedule(*arguments)
            tokens = found.num_scheduled_tokens
            self.step.rows = len(tokens)
            self.step.kind = self._kind(tokens)
            return found

        return call

    def _kind(self, tokens: dict[str, int]) -> Kind:
        if not tokens:
            return "empty"
        # The scheduler has counted these tokens as computed already.
        reading = [
            self._scheduler.requests[name].num_computed_tokens - count
            < self._scheduler.requests[name].num_prompt_tokens
            for name, count in tokens.items()
        ]
        return "prefill" if all(reading) else "mixed" if any(reading) else "decode"
