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
import vllm_acceptance

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
    ("A free text", {"top_k": 20, "frequency_penalty": 0.5}, {"temperature": 0, "seed": 6, "max_tokens": 12}),
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


def answers(llm: Any, requests: dict[str, tuple[Any, dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """What requests give to one prompt, all of them in one batch, by their names."""
    outputs = llm.generate(
        ["Say:"] * len(requests),
        [parameters(fields, **options) for fields, options in requests.values()],
        use_tqdm=False,
    )
    return {
        name: [result(fields, one) for one in output.outputs]
        for (name, (fields, _)), output in zip(requests.items(), outputs, strict=True)
    }


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


def features(llm: Any) -> dict[str, list[dict[str, Any]]]:
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
    return answers(llm, requests)


def draws(llm: Any) -> dict[str, list[dict[str, Any]]]:
    """Every field of the sampler in two requests of the same seed, and what else there is to a draw."""
    from vllm.sampling_params import StructuredOutputsParams

    person = {"json_schema": PERSON}
    words, other = llm.get_tokenizer().encode("one two three four"), llm.get_tokenizer().encode("a b c")
    fields: dict[str, dict[str, Any]] = {
        "draw": {"draw": 1},
        "temperature": {"temperature": 0.5},
        "top_k": {"top_k": 5},
        "top_p": {"top_p": 0.5},
        "min_p": {"min_p": 0.2},
        "typical": {"typical": 0.5},
        "epsilon": {"epsilon": 0.001},
        "eta": {"eta": 0.01},
        "top_n_sigma": {"top_n_sigma": 1.0},
        "repetition_penalty": {"repetition_penalty": 1.5, "allowed_tokens": words},
        "presence_penalty": {"presence_penalty": 1.0, "penalty_window": 3, "allowed_tokens": words},
        "frequency_penalty": {"frequency_penalty": 1.0, "allowed_tokens": words},
        "logit_bias": {"logit_bias": {str(token): 20.0 for token in words}},
        "allowed_tokens": {"allowed_tokens": words},
        "bad_words": {"allowed_tokens": [*words, *other], "bad_words": [[token] for token in other]},
        "min_tokens": {"min_tokens": 4, "logit_bias": {str(words[0]): 100.0}},
        "order": {"order": "llama.cpp", "temperature": 2.0, "min_p": 0.1},
        "stages": {"order": ["top_k", "temperature"], "top_k": 9, "ties": "keep", "min_keep": 2},
        "grammar": {**person, "temperature": 0.7, "top_k": 50},
        "grammar and bias": {"choice": WORDS, "logit_bias": {"5": 3.0}},
        "nothing left": {"choice": WORDS, "allowed_tokens": [5]},
    }
    seeded = {"temperature": 1.0, "seed": 11, "max_tokens": 12}
    requests: dict[str, tuple[Any, dict[str, Any]]] = {
        name: (given, {**seeded, **({"max_tokens": 60} if name.startswith("grammar") else {})})
        for name, given in fields.items()
    }
    requests["min_tokens"][1]["stop_token_ids"] = [words[0]]
    requests |= {f"{name} again": request for name, request in requests.items()}
    requests |= {
        "n": ({"draw": 1}, {**seeded, "n": 2}),
        "no seed": ({"draw": 1}, {**seeded, "seed": None}),
        "no seed again": ({"draw": 1}, {**seeded, "seed": None}),
        "greedy": (None, {"temperature": 0, "max_tokens": 12}),
        "theirs greedy": ({"draw": 1}, {"temperature": 0, "max_tokens": 12}),
        "ours greedy": ({"temperature": 0}, seeded),
        "ours not greedy": ({"temperature": 1.0}, {**seeded, "temperature": 0}),
        "one token": ({"top_k": 1}, seeded),
        "logprobs": ({"top_k": 5}, {**seeded, "logprobs": 2}),
        "structured outputs": (
            {"draw": 1},
            {**seeded, "structured_outputs": StructuredOutputsParams(choice=WORDS)},
        ),
    }
    results = answers(llm, requests)
    alone = answers(llm, {"alone": requests["min_p"]})
    return {**results, **alone}


def edits(llm: Any) -> dict[str, list[list[int]]]:
    """What changes logits, in greedy texts: by vLLM alone, by vLLM before our draw, and by our draw alone."""
    from vllm import SamplingParams

    tokenizer = llm.get_tokenizer()
    # Few tokens, so that a text repeats them; some are those of the prompt.
    few = sorted(set(tokenizer.encode("Say: one two three four")))
    plain = {"temperature": 0, "max_tokens": 8}
    (found,) = answers(llm, {"plain": (None, {**plain, "allowed_token_ids": few})})["plain"]
    first, second, third, *_ = dict.fromkeys(found["tokens"])
    words = SamplingParams(bad_words=[tokenizer.decode([second])])
    words.update_from_tokenizer(tokenizer)
    theirs: dict[str, dict[str, Any]] = {
        "logit_bias": {"logit_bias": {first: -2.0, third: 1.0}},
        "repetition": {"repetition_penalty": 1.5},
        "presence": {"presence_penalty": 2.0},
        "frequency": {"frequency_penalty": 1.5},
        "bad words": {"bad_words": words.bad_words},
        "min tokens": {"min_tokens": 5, "stop_token_ids": [third]},
    }
    theirs["together"] = {name: value for each in theirs.values() for name, value in each.items()}
    requests: dict[str, tuple[Any, dict[str, Any]]] = {}
    for name, options in theirs.items():
        fields = {"allowed_tokens": few, **options}
        stops = {"stop_token_ids": fields.pop("stop_token_ids", [])}
        if "bad_words" in fields:
            fields["bad_words"] = words.bad_words_token_ids
        both = {**plain, **options, "allowed_token_ids": few}
        requests[f"{name}: vLLM"] = None, both
        requests[f"{name}: both"] = {"draw": True}, both
        requests[f"{name}: ours"] = fields, {**plain, **stops}
    results = {name: result["tokens"] for name, (result,) in answers(llm, requests).items()}
    ways = ("vLLM", "both", "ours")
    return {
        "plain": [found["tokens"]],
        **{name: [results[f"{name}: {way}"] for way in ways] for name in theirs},
    }


def refusals(llm: Any) -> dict[str, str]:
    """The messages for requests that are not admitted."""
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import StructuredOutputsParams

    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        "no grammar": ({}, {}),
        "two grammars": ({"regex": "a", "choice": ["a"]}, {}),
        "misspelt": ({"json_shema": PERSON}, {}),
        "not built": ({"regex": "a", "xtc": 0.1}, {}),
        "seed": ({"draw": 1, "seed": 1}, {}),
        "bounds": ({"regex": "a", "top_p": 1.5}, {}),
        "said twice": ({"presence_penalty": 0.5}, {"presence_penalty": 1.0}),
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


COUNTED = {"regex": "(one|two|three){60}"}
# Without seeds: on a CPU, the first model runner fails on a seeded row of a prompt in pieces.
CROWD: list[tuple[str, Any, dict[str, Any]]] = [
    ("w " * 45, COUNTED, {"temperature": 0, "max_tokens": 32}),
    ("b c d " * 8, COUNTED, {"temperature": 0, "max_tokens": 32}),
    ("x y " * 20, {"json_schema": PERSON}, {"temperature": 1.0, "max_tokens": 40}),
    ("w x " * 20, None, {"temperature": 0}),
]
"""Two requests that do not both fit where it is cramped, and prompts longer than a step takes there."""


def cramped(engines: Engines) -> None:
    """The crowd in an engine that is too small for it."""
    options = {
        "max_model_len": 128,
        "block_size": 32,
        "num_gpu_blocks_override": 5,
        "max_num_batched_tokens": 32,
        "enable_prefix_caching": False,
    }
    with engines.start("cramped", **options) as llm:
        engines.report["cramped"] = generate(llm, CROWD)
        engines.report["preemptions"] = metric(llm, "vllm:num_preemptions")


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
        drawn = drawn_with_drafts(llm.get_tokenizer())
        with vllm_acceptance.watched() as judged:
            engines.report["drawn with drafts"] = generate(llm, drawn)
        engines.report["judged drafts"] = judged
        engines.report["accepted draws"] = (
            metric(llm, "vllm:spec_decode_num_accepted_tokens") - engines.report["accepted"]
        )
        engines.report["drawn alone"] = generate(llm, drawn[:1])
    with engines.start("no drafts") as llm:
        engines.report["no drafts"] = generate(llm, requests)
        engines.report["drawn without drafts"] = generate(llm, drawn)


def drawn_with_drafts(tokenizer: Any) -> list[tuple[str, Any, dict[str, Any]]]:
    """Draws of texts that repeat themselves, so that drafts are accepted now and then."""
    one, two = tokenizer.encode("one two")[:2]
    few = {"logit_bias": {str(one): 30.0, str(two): 30.0}}
    options = {"temperature": 1.0, "max_tokens": 14}
    return [
        (REPEATED, {**few, "min_p": 0.05}, {**options, "seed": 1}),
        (REPEATED, {"regex": "( one two three four){2,6}", "top_p": 0.9}, {**options, "seed": 2}),
        (
            REPEATED,
            {**few, "frequency_penalty": 0.3, "bad_words": [[one, one, one], [two, two, two]]},
            {**options, "seed": 3},
        ),
        (REPEATED, {**few, "temperature": 2.0}, {**options, "seed": None}),
    ]


def run(engines: Engines, real: str | None) -> None:
    from sortition.integrations.vllm import stats

    report = engines.report
    with engines.start("with the processor") as llm:
        report["runner"] = type(llm.llm_engine.model_executor.driver_worker.worker.model_runner).__module__
        report["mixed"] = generate(llm, MIXED)
        report["features"] = features(llm)
        report["edits"] = edits(llm)
        if engines.runner == "v1":
            report["draws"] = draws(llm)
        report["refusals"] = refusals(llm)
        report["aborted"] = aborted(llm)
        report["asynchronous"] = llm.llm_engine.vllm_config.scheduler_config.async_scheduling
        report["stats"] = llm.collective_rpc(stats)[0]
        report["not cramped"] = generate(llm, CROWD)
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
