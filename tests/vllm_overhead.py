"""What the overhead tool finds in a real vLLM engine, in a process of its own.

python vllm_overhead.py MODEL REPORT.json
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm import LLM
from vllm.v1.sample.logits_processor import LogitsProcessor

from sortition.benchmarks.overhead import parts
from sortition.benchmarks.overhead.breakdown import breakdowns
from sortition.benchmarks.overhead.exposure import exposures
from sortition.benchmarks.overhead.load import SAMPLINGS, Load
from sortition.benchmarks.overhead.stopwatch import Stopwatch
from sortition.benchmarks.overhead.vllm import PROCESSOR, VLLMEngine

LOADS = {
    "none": Load(batch=3, context=8, tokens=8, late=1, sampling=SAMPLINGS["log-probs"]),
    "ours": Load(batch=3, context=8, tokens=8, sampling=SAMPLINGS["top-k, top-p"], structure="ours"),
    "xgrammar": Load(
        batch=3, context=8, tokens=8, sampling=SAMPLINGS["min-p, penalty"], structure="xgrammar"
    ),
    "guidance": Load(batch=3, context=8, tokens=8, structure="guidance"),
}


class Busy(LogitsProcessor):
    """Keeps the processor busy for 5 ms of it."""

    def __init__(self, *_: Any) -> None:
        pass

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        pass

    def apply(self, logits: Tensor) -> Tensor:
        end = time.thread_time() + 0.005
        while time.thread_time() < end:
            pass
        return logits


def main(model: str, report: str) -> None:
    torch.set_num_threads(1)
    engine = VLLMEngine(
        LLM(
            model,
            dtype="float32",
            max_model_len=64,
            max_num_seqs=4,
            enforce_eager=True,
            enable_prefix_caching=False,
            async_scheduling=False,
            logits_processors=[PROCESSOR, Busy],
        )
    )
    found: dict[str, Any] = {"structures": engine.structures, "engine": engine.describe(), "loads": {}}
    for name, load in LOADS.items():
        # A first run waits for grammars to be compiled.
        script = engine.run(load, Stopwatch())
        watch = Stopwatch()
        engine.run(load, watch, script)
        everything = [*parts.DECISION, parts.DETOKENISE, "processor: Processor", "processor: Busy"]
        without = Stopwatch(everything)
        engine.run(load, without, script)
        no_draw = Stopwatch([parts.DRAW])
        engine.run(load, no_draw, script)
        found["loads"][name] = {
            "text": engine.tokenizer.decode(script[0]),
            "kinds": [step.kind for step in watch.steps],
            "rows": [step.rows for step in watch.steps],
            "steps": [asdict(each) for each in breakdowns(watch.steps, "cpu")],
            "left out": breakdowns(without.steps, "cpu")[-1].parts,
            "no draw": breakdowns(no_draw.steps, "cpu")[-1].parts,
        }
    other = [[*range(100 + row, 108 + row)] for row in range(3)]
    found["forced"] = engine.run(LOADS["none"], Stopwatch([parts.DRAW]), other) == other
    (busy,) = exposures(engine, LOADS["guidance"], [["processor: Busy"]], clock="cpu")
    found["busy"] = busy.as_json()
    Path(report).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
