"""Everything the tests want to know from a real vLLM engine, in one process of its own.

    python vllm_scenarios.py v1|v2 MODEL REPORT.json [REAL_MODEL]

The tests read the report; an engine takes most of a minute to import and start, so there is one process for
each model runner.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import triton_on_cpu

PROCESSOR = "sortition.integrations.vllm:Processor"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"left": {"$ref": "#/$defs/tree"}, "leaf": {"type": "boolean"}},
            "required": ["leaf"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/tree",
}
DATE = r"[0-9]{4}-[01][0-9]-[0-3][0-9]"
WORDS = ["yes", "no", "perhaps not"]
SPECULATIVE = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}
REPEATED = "one two three four one two three four one two three four one two"

MIXED: list[tuple[str, dict[str, Any] | None, dict[str, Any]]] = [
    ("The capital of France is", None, {"temperature": 0}),
    ("A person as JSON:", {"json_schema": PERSON}, {"temperature": 1.0, "seed": 1}),
    ("Once upon a time", None, {"temperature": 0.8, "seed": 2}),
    ("Is it true?", {"choice": WORDS}, {"temperature": 0}),
    ("A date:", {"regex": DATE}, {"temperature": 1.0, "seed": 3}),
    ("Another person:", {"json_schema": json.dumps(PERSON), "whitespace": "compact"}, {"temperature": 0}),
    ("A tree:", {"json_schema": TREE}, {"temperature": 1.0, "seed": 4}),
    (REPEATED, None, {"temperature": 0}),
    ("A date again:", {"regex": DATE}, {"temperature": 0}),
    ("Good morning", None, {"temperature": 1.0, "seed": 5, "top_p": 0.9, "top_k": 40}),
]
"""Prompt, fields of the request (None: free), and other sampling parameters."""


class Engines:
    """Starts engines one after the other, and keeps the report."""

    def __init__(self, runner: str, model: str) -> None:
        self.runner = runner
        self.model = model
        self.report: dict[str, Any] = {}

    @contextmanager
    def start(
        self, name: str, model: str | None = None, processor: bool = True, **options: Any
    ) -> Iterator[Any]:
        from vllm import LLM

        begin = time.perf_counter()
        defaults: dict[str, Any] = {
            "max_model_len": 256,
            "max_num_seqs": 4,
            "num_gpu_blocks_override": 64,
            "dtype": "float32",
            "enforce_eager": True,
            "disable_log_stats": False,
            "distributed_executor_backend": "uni",
        }
        if processor:
            defaults["logits_processors"] = [PROCESSOR]
        llm = LLM(model or self.model, **{**defaults, **options})
        started = time.perf_counter()
        rebind_kernels_once()
        yield llm
        ended = time.perf_counter()
        self.report.setdefault("seconds", {})[name] = [started - begin, ended - started]
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def rebind_kernels_once() -> None:
    """Let a second engine start: its search for kernels in all modules would stumble over llvmlite."""
    import vllm.triton_utils.dispatcher as dispatcher

    dispatcher._rebind_kernels = lambda overrides: None


def parameters(fields: Any, **options: Any) -> Any:
    from vllm import SamplingParams

    extra = None if fields is None else {"sortition": fields}
    longest = 20 if fields is None else 60
    return SamplingParams(**{"max_tokens": longest, **options}, extra_args=extra)


def generate(llm: Any, requests: list[tuple[str, Any, dict[str, Any]]]) -> list[dict[str, Any]]:
    """What all of them give; those with several outputs as several results."""
    outputs = llm.generate(
        [prompt for prompt, _, _ in requests],
        [parameters(fields, **options) for _, fields, options in requests],
        use_tqdm=False,
    )
    return [
        result(fields, one)
        for (_, fields, _), output in zip(requests, outputs, strict=True)
        for one in output.outputs
    ]


def result(fields: Any, output: Any) -> dict[str, Any]:
    logprobs = output.logprobs and [
        {str(token): value.logprob for token, value in step.items()} for step in output.logprobs
    ]
    return {
        "fields": fields,
        "text": output.text,
        "tokens": list(output.token_ids),
        "reason": output.finish_reason,
        "stop": output.stop_reason,
        "logprobs": logprobs,
    }


def features(llm: Any) -> dict[str, Any]:
    """Every other sampling parameter beside a grammar, each in a request of its own, all in one batch."""
    tokenizer = llm.get_tokenizer()
    person = {"json_schema": PERSON}
    words = {"choice": WORDS}
    yes = tokenizer.encode("y")[0]
    requests = {
        "n": (person, {"n": 2, "seed": 1}),
        "seed": (person, {"seed": 7}),
        "same seed": (person, {"seed": 7}),
        "logprobs": (words, {"temperature": 0, "logprobs": 3}),
        "prompt logprobs": (words, {"temperature": 0, "prompt_logprobs": 2}),
        "penalties": (
            person,
            {"seed": 2, "repetition_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 1.0},
        ),
        "min_p": (person, {"seed": 3, "min_p": 0.1}),
        "bias": (words, {"temperature": 0, "logit_bias": {yes: -100.0}}),
        "bad words": (words, {"temperature": 0, "bad_words": ["y", "n", "yes", "no"]}),
        "allowed elsewhere": (words, {"temperature": 0, "allowed_token_ids": [5]}),
        "stop string": (person, {"seed": 4, "stop": ['"age"']}),
        "stop token": (words, {"temperature": 0, "stop_token_ids": [yes, 4000]}),
        "min tokens": (words, {"temperature": 0, "min_tokens": 20}),
        "min tokens, sampled": (words, {"seed": 5, "min_tokens": 20}),
        "ignore eos": (words, {"temperature": 0, "ignore_eos": True, "max_tokens": 20}),
        "max tokens": (person, {"seed": 6, "max_tokens": 5}),
        "text": (json.dumps({"choice": WORDS}), {"temperature": 0}),
        "nothing": ({"regex": ""}, {"temperature": 0}),
        "unicode": ({"choice": ["größe", "日本"]}, {"seed": 8}),
    }
    outputs = llm.generate(
        ["Say:"] * len(requests),
        [parameters(fields, **options) for fields, options in requests.values()],
        use_tqdm=False,
    )
    return {
        name: [result(fields, one) for one in output.outputs]
        for (name, (fields, _)), output in zip(requests.items(), outputs, strict=True)
    }


def refusals(llm: Any) -> dict[str, str]:
    """The messages for requests that are not admitted."""
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import StructuredOutputsParams

    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        "no grammar": ({}, {}),
        "two grammars": ({"regex": "a", "choice": ["a"]}, {}),
        "misspelt": ({"json_shema": PERSON}, {}),
        "not built": ({"regex": "a", "min_p": 0.1}, {}),
        "seed": ({"regex": "a", "seed": 1}, {}),
        "schema": ({"json_schema": {"type": "strin"}}, {}),
        "structured outputs": ({"regex": "a"}, {"structured_outputs": StructuredOutputsParams(choice=["a"])}),
        "thinking budget": ({"regex": "a"}, {"thinking_token_budget": 5}),
    }
    messages = {}
    for name, (fields, options) in cases.items():
        try:
            llm.generate(["a"], parameters(fields, **options), use_tqdm=False)
        except VLLMValidationError as error:
            messages[name] = str(error)
    return messages


def aborted(llm: Any, abort_after: int = 4) -> list[dict[str, Any]]:
    """Twelve requests in four places, every third of them given up on the way."""
    engine = llm.llm_engine
    requests = [MIXED[number % len(MIXED)] for number in range(12)]
    for number, (prompt, fields, options) in enumerate(requests):
        engine.add_request(f"request-{number}", prompt, parameters(fields, **options))
    results = []
    steps = 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                number = int(output.request_id.split("-")[1])
                results.append(result(requests[number][1], output.outputs[0]))
        steps += 1
        if steps % abort_after == 0:
            engine.abort_request([f"request-{3 * (steps // abort_after - 1)}"])
    return results


def beam_search(llm: Any) -> list[str]:
    from vllm.sampling_params import BeamSearchParams

    (output,) = llm.beam_search([{"prompt": "Say:"}], BeamSearchParams(beam_width=2, max_tokens=3))
    return [sequence.text for sequence in output.sequences]


def as_entry_point(llm: Any) -> str:
    """What a processor says that was not named, where tokens are only shown to those that were."""
    from sortition.integrations.vllm import Processor

    config = copy.deepcopy(llm.llm_engine.vllm_config)
    config.scheduler_config.async_scheduling = True
    config.model_config.logits_processors = None
    try:
        Processor(config, "cpu", False)
    except ValueError as error:
        return str(error)
    return ""


def metric(llm: Any, name: str) -> int:
    return sum(int(metric.value) for metric in llm.get_metrics() if metric.name == name)


def cramped(engines: Engines) -> None:
    """Two requests that do not both fit, and prompts longer than a step takes."""
    options = {
        "max_model_len": 128,
        "block_size": 32,
        "num_gpu_blocks_override": 5,
        "max_num_batched_tokens": 32,
        "enable_prefix_caching": False,
    }
    fields = {"regex": "(one|two|three){60}"}
    # Without seeds: on a CPU, the first model runner fails on a seeded row of a prompt in pieces.
    requests: list[tuple[str, Any, dict[str, Any]]] = [
        ("w " * 45, fields, {"temperature": 0, "max_tokens": 32}),
        ("b c d " * 8, fields, {"temperature": 0, "max_tokens": 32}),
        ("x y " * 20, {"json_schema": PERSON}, {"temperature": 1.0, "max_tokens": 40}),
        ("w x " * 20, None, {"temperature": 0}),
    ]
    with engines.start("cramped", **options) as llm:
        engines.report["cramped"] = generate(llm, requests)
        engines.report["preemptions"] = metric(llm, "vllm:num_preemptions")
    with engines.start("not cramped", max_model_len=128) as llm:
        engines.report["not cramped"] = generate(llm, requests)


def drafts_refused(engines: Engines) -> str:
    """What vLLM says to a processor beside drafts on the first runner."""
    try:
        with engines.start("refused", speculative_config=SPECULATIVE):
            return ""
    except ValueError as error:
        return str(error)


def drafts(engines: Engines) -> None:
    """The same requests with and without drafts by prompt lookup."""
    requests: list[tuple[str, Any, dict[str, Any]]] = [
        (REPEATED, {"regex": "( one two three four){6}"}, {"temperature": 0}),
        (REPEATED, {"regex": "( one two three four){2,6}"}, {"temperature": 1.0, "seed": 1}),
        ('{"name": "a", "age": 1}', {"json_schema": PERSON}, {"temperature": 1.0, "seed": 2}),
        ("yes no yes no yes no yes", {"choice": [*WORDS, "yes no yes no yes no yes"]}, {"temperature": 0}),
        (REPEATED, None, {"temperature": 0}),
    ]
    with engines.start("drafts", speculative_config=SPECULATIVE) as llm:
        engines.report["drafts"] = generate(llm, requests)
        engines.report["accepted"] = metric(llm, "vllm:spec_decode_num_accepted_tokens")
        engines.report["proposed"] = metric(llm, "vllm:spec_decode_num_draft_tokens")
    with engines.start("no drafts") as llm:
        engines.report["no drafts"] = generate(llm, requests)


def run(engines: Engines, real: str | None) -> None:
    from sortition.integrations.vllm import stats

    report = engines.report
    with engines.start("with the processor") as llm:
        report["runner"] = type(llm.llm_engine.model_executor.driver_worker.worker.model_runner).__module__
        report["mixed"] = generate(llm, MIXED)
        report["features"] = features(llm)
        report["refusals"] = refusals(llm)
        report["aborted"] = aborted(llm)
        report["asynchronous"] = llm.llm_engine.vllm_config.scheduler_config.async_scheduling
        report["stats"] = llm.collective_rpc(stats)[0]
        if engines.runner == "v1":
            report["beams"] = beam_search(llm)
            report["entry point"] = as_entry_point(llm)
    with engines.start("without the processor", processor=False) as llm:
        report["free"] = generate(llm, [(prompt, None, options) for prompt, _, options in MIXED])
    with engines.start("processed logprobs", logprobs_mode="processed_logprobs") as llm:
        report["processed"] = generate(llm, [("Say:", {"choice": WORDS}, {"temperature": 0, "logprobs": 5})])
    cramped(engines)
    if engines.runner == "v2":
        drafts(engines)
    else:
        report["drafts refused"] = drafts_refused(engines)
    if real is not None:
        requests: list[tuple[str, Any, dict[str, Any]]] = [
            ("Is water wet?", {"choice": WORDS}, {"temperature": 0}),
            ("The moon landing was on", {"regex": " " + DATE}, {"temperature": 0}),
        ]
        if engines.runner == "v1":
            requests.append(("A person as JSON:", {"json_schema": PERSON}, {"temperature": 0}))
        with engines.start("real", model=real) as llm:
            report["real"] = generate(llm, requests)


def main() -> None:
    runner, model, report, *real = sys.argv[1:]
    os.environ.update(
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_LOGGING_LEVEL="ERROR",
        # The tests share their cores; threads bound to some would wait for each other.
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        HF_HUB_OFFLINE="1",
    )
    if runner == "v2":
        triton_on_cpu.prepare()
    else:
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    import vllm  # noqa: F401

    if runner == "v2":
        triton_on_cpu.finish()
    engines = Engines(runner, model)
    run(engines, real[0] if real else None)
    Path(report).write_text(json.dumps(engines.report))


if __name__ == "__main__":
    main()
