"""Many requests, random aborts, an engine too small for them: nothing invalid, nothing left behind.

    python soak_vllm.py [--runner v1|v2] [--requests N] [--seed S]

By default 500 requests on the first model runner, or 150 on the second, where all kernels are interpreted:
half a minute and three minutes of processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import triton_on_cpu
from tiny_llama import save_tiny_llama
from vllm_reports import environment, judge
from vllm_scenarios import DATE, PERSON, TREE, WORDS, Engines, metric, parameters, result

DEFAULT_REQUESTS = {"v1": 500, "v2": 150}
IN_FLIGHT = 12
DRAWS: list[dict[str, Any]] = [
    {"draw": 1},
    {"min_p": 0.1, "logit_bias": {"9": 5.0, "4000000": 1.0}},
    {"temperature": 0.5, "frequency_penalty": 1.0, "bad_words": [[9], [10, 11]]},
    {"order": "hf", "repetition_penalty": 1.3, "typical": 0.9},
    {"order": ["typical", "temperature", "min_p"], "typical": 0.5, "min_p": 0.2},
    {"min_tokens": 5, "top_k": 3},
    {"allowed_tokens": [5], "bad_words": [[5]]},
]


def a_request(chance: random.Random) -> tuple[str, Any, dict[str, Any]]:
    """Half of the grammars are asked for by one request alone."""
    number = chance.randrange(10**6)
    fields = chance.choice(
        [
            None,
            {"json_schema": PERSON},
            {"json_schema": TREE},
            {"regex": DATE},
            {"choice": WORDS},
            {"choice": [*WORDS, str(number)]},
            {"regex": f"({number}|[a-f]{{3,30}})"},
            {"json_schema": {"type": "array", "items": {"enum": [number, "x", None]}, "maxItems": 4}},
        ]
    )
    if chance.random() < 0.4:
        fields = {**(fields or {}), **chance.choice(DRAWS)}
    options = {
        "temperature": chance.choice([0, 0.7, 1.3]),
        "top_k": chance.choice([0, 20]),
        "max_tokens": chance.choice([4, 30, 60]),
        "min_tokens": chance.choice([0, 0, 3]),
        "ignore_eos": chance.random() < 0.1,
    }
    return chance.choice(["a", "one two three four ", "x y "]) * chance.randrange(1, 8), fields, options


def soak(llm: Any, count: int, chance: random.Random) -> dict[str, int]:
    engine = llm.llm_engine
    requests = [a_request(chance) for _ in range(count)]
    in_flight: set[int] = set()
    outcome = {"finished": 0, "cut": 0, "aborted": 0}
    added = 0
    while added < count or in_flight:
        while added < count and len(in_flight) < IN_FLIGHT:
            prompt, fields, options = requests[added]
            engine.add_request(str(added), prompt, parameters(fields, **options))
            in_flight.add(added)
            added += 1
        for output in engine.step():
            if output.finished:
                number = int(output.request_id)
                in_flight.discard(number)
                judge(result(requests[number][1], output.outputs[0]))
                outcome["finished" if output.outputs[0].finish_reason == "stop" else "cut"] += 1
        if in_flight and chance.random() < 0.05:
            number = chance.choice(sorted(in_flight))
            engine.abort_request([str(number)])
            in_flight.discard(number)
            outcome["aborted"] += 1
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runner", choices=list(DEFAULT_REQUESTS), default="v1")
    parser.add_argument("--requests", type=int)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    count = arguments.requests or DEFAULT_REQUESTS[arguments.runner]
    os.environ.update(environment(), VLLM_ENABLE_V1_MULTIPROCESSING="0")
    if arguments.runner == "v2":
        triton_on_cpu.prepare()
    else:
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    import vllm  # noqa: F401

    if arguments.runner == "v2":
        triton_on_cpu.finish()
    from sortition.integrations.vllm import stats

    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        engines = Engines(arguments.runner, str(save_tiny_llama(Path(folder))))
        cramped = {
            "max_model_len": 128,
            "block_size": 32,
            "num_gpu_blocks_override": 5,
            "max_num_batched_tokens": 48,
            "enable_prefix_caching": False,
        }
        with engines.start("soak", **cramped) as llm:
            begin = time.perf_counter()
            outcome: dict[str, Any] = dict(soak(llm, count, chance))
            outcome["seconds"] = round(time.perf_counter() - begin, 1)
            outcome["preemptions"] = metric(llm, "vllm:num_preemptions")
            # One step more tells the first runner who has gone.
            llm.generate(["a"], parameters(None, max_tokens=2), use_tqdm=False)
            (outcome["stats"],) = llm.collective_rpc(stats)[0]
    print(json.dumps(outcome, indent=2))
    figures = outcome["stats"]
    assert outcome["preemptions"] > 0, "the engine was not small enough to preempt anybody"
    assert figures["drawn_rows"] > 0 and (arguments.runner == "v2") == (figures["draw_seconds"] == 0), (
        "the first runner draws on the host, the second by kernels"
    )
    assert figures["closed_rows"] == figures["dead_rows"] == figures["unread_tokens"] == 0, figures
    # The second runner does not say who has gone, so what was last in its four slots is still held.
    assert figures["live_grammars"] <= (0 if arguments.runner == "v1" else 4), figures
    assert figures["kept_grammars"] <= 256 + 4, figures


if __name__ == "__main__":
    main()
