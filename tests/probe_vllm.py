"""A probe of a real vLLM engine, in a process of its own.

    python probe_vllm.py MODEL REPORT.json one|others

For every condition: whether it took effect, by what one can tell, and which prompts have other bits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sortition.benchmarks.probe.conditions import parse
from sortition.benchmarks.probe.measures import compare, digests
from sortition.benchmarks.probe.target import NotPossible
from sortition.benchmarks.probe.vllm_target import VllmTarget

STEPS = 6
STEPS_OF_OTHERS = 64
"""A model of random weights repeats itself rarely, and drafts are guessed from repetitions."""
CONDITIONS = [
    "rerun",
    "batch_size 2",
    "batch_size 8",
    "batch_size 8 and position last",
    "batch_size 8 and neighbours longer",
    "chunk 16",
    "prefix_cache warm",
    "prefill",
    "logprobs 9",
    "logprobs 5",
    "threads 2",
    "seed 7",
    "rerun, given seed 7",
    "draw 7",
    "rerun, given draw 7",
    "batch_size 8, given draw 7",
    "rerun, given batch_size 8",
]
OTHERS = ["rerun", "drafts 3", "process fresh", "dtype bfloat16"]
"""What needs engines of its own, half a minute each."""

REPEATED = "one two three four " * 12
LONG = " ".join(f"word{number}" for number in range(60))


def main(model: str, report: Path, which: str) -> None:
    target = VllmTarget(model, dtype="float32", max_model_len=512)
    environment = target.describe()
    prompts = target.prompts(["Say:", REPEATED, LONG])
    steps = STEPS if which == "one" else STEPS_OF_OTHERS
    references: dict[str, Any] = {}
    results: dict[str, Any] = {}
    for text in CONDITIONS if which == "one" else OTHERS:
        condition = parse(text)
        try:
            key = condition.reference.name
            if key not in references:
                references[key] = target.run(prompts, condition.reference, steps)
            base = references[key]
            outcome = target.run(prompts, condition, steps, [list(run.tokens) for run in base.runs])
        except NotPossible as reason:
            results[text] = {"not possible": str(reason)}
            continue
        compared = [
            compare(number, *pair) for number, pair in enumerate(zip(base.runs, outcome.runs, strict=True))
        ]
        results[text] = {
            "took effect": outcome.evidence.took_effect,
            "seen": outcome.evidence.seen,
            "equal": [each.first_difference is None for each in compared],
            "flips": [list(each.flips) for each in compared],
            "largest": max(each.max_abs for each in compared),
            "tokens": [list(run.tokens) for run in outcome.runs],
            "digests": [list(digests(run)) for run in outcome.runs],
        }
    results["reference"] = [list(run.tokens) for run in references["reference"].runs]
    results["environment"] = environment
    results["text"] = target.text(prompts[0].tokens)
    target.close()
    report.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
