"""How many of vLLM's drafts stand on its second runner, against the most that any rule could let stand.

vLLM's rejection sampler sees the one token that our draw leaves in a row. A draft that is certain, such as an
n-gram's, stands if it is that one. No rule that keeps the law lets such a draft stand more often than with
its probability under the target, which is what a maximal coupling reaches.

    python vllm_acceptance.py MODEL REPORT.json
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # It imports Triton, which has to be told before that it is to interpret.
    from torch import Tensor

Judged = list[tuple[float, bool]]
"""Drafts that came to be judged: their probability under the target, and whether they stood."""


@contextmanager
def watched() -> Iterator[Judged]:
    """Every draft that our draws judge meanwhile."""
    from sortition.integrations import vllm_device

    judged: Judged = []
    draw = vllm_device.Device.draw

    def watch(device: Any, logits: Tensor, context: Any, wishes: Any) -> None:
        before = logits.clone()
        draw(device, logits, context, wishes)
        judged.extend(judgements(device, before, logits, context, wishes))

    vllm_device.Device.draw = watch  # type: ignore[method-assign, assignment]
    try:
        yield judged
    finally:
        vllm_device.Device.draw = draw  # type: ignore[method-assign]


def judgements(device: Any, before: Tensor, after: Tensor, context: Any, wishes: Any) -> Iterator[Any]:
    """What becomes of the drafts of one step, by the definition of the law that each row was drawn from."""
    from sortition.sampling import reference

    slots, local = device._rows(context)
    ours = device._drawn(context, slots, local) & device._wished[slots]
    states, ids = device._states, context.input_ids.tolist()
    stands = False
    for row in range(len(ids)):
        slot, place = int(slots[row]), int(local[row])
        stands = bool(ours[row]) and (stands or place == 0)
        follows = row + 1 < len(ids) and int(local[row + 1]) == place + 1 and ids[row + 1] >= 0
        if not (stands and follows):
            stands = False
            continue
        draft = ids[row + 1]
        wish, admission = wishes[slot]
        begin, end = int(states.prompt_len.gpu[slot]), int(states.total_len.gpu[slot])
        text = states.all_token_ids.gpu[slot, :end].tolist()
        seen = reference.Context(
            seed=wish.seed,
            position=end - begin + place,
            prompt=text[:begin],
            output=[*text[begin:], *ids[row + 1 - place : row + 1]],
            end_tokens=list(admission.end_tokens),
            grammar=None,
            stream=0,
        )
        law = reference.law_of(before[row].float().numpy(), wish.parameters, seen)
        stands = int(after[row].argmax()) == draft
        yield math.exp(float(law.logprob(draft))), stands


PROMPTS = (
    "Red, green, blue. Red, green, blue. Red, green, blue. Red,",
    "One fish, two fish, red fish, blue fish. One fish, two fish, red",
    "Question: what is the capital of France? Answer: Paris. Question: what is the capital of Spain? Answer:",
    "for i in range(10):\n    print(i)\nfor j in range(10):\n    print(j)\nfor k in",
)


def main() -> None:
    model, report = sys.argv[1:]
    import triton_on_cpu

    triton_on_cpu.prepare()
    import vllm  # noqa: F401

    triton_on_cpu.finish()
    import vllm_scenarios as scenarios

    engines = scenarios.Engines("v2", model)
    with engines.start("acceptance", speculative_config=scenarios.SPECULATIVE) as llm, watched() as judged:
        requests = [
            (prompt, {"temperature": 0.7}, {"temperature": 1.0, "seed": seed, "max_tokens": 24})
            for seed, prompt in enumerate(PROMPTS)
        ]
        texts = [each["text"] for each in scenarios.generate(llm, requests)]
        accepted, proposed = (
            scenarios.metric(llm, f"vllm:spec_decode_num_{name}_tokens") for name in ("accepted", "draft")
        )
    figures = {
        "judged": len(judged),
        "stood": sum(stands for _, stands in judged),
        "maximal coupling": sum(chance for chance, _ in judged),
        "standard deviation": math.sqrt(sum(chance * (1 - chance) for chance, _ in judged)),
        "accepted, as vLLM counts": accepted,
        "proposed, as vLLM counts": proposed,
        "texts": texts,
    }
    Path(report).write_text(json.dumps(figures, indent=2))
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
