"""vLLM's own sampler over a batch, for comparison: python vllm_sampler.py requests.pt answers.pt.

Requests: {"logits": float32 [rows, vocabulary], "rows": a dict for each row}. Answers: {"edited": logits
before temperature, "logprobs": of the law that is drawn from, "tokens": what rows at temperature 0 draw}.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

Row = dict[str, Any]


def answers(logits: Tensor, rows: list[Row]) -> dict[str, Tensor]:
    """What vLLM makes of the logits: everything is its own, but for what a server's settings would say."""
    from vllm.v1.sample.sampler import Sampler

    sampler = Sampler(logprobs_mode="processed_logprobs")
    edited = sampler.apply_logits_processors(logits.clone(), metadata(logits.shape[1], rows), False)
    drawn = sampler(logits.clone(), metadata(logits.shape[1], rows))
    assert drawn.logprobs_tensors is not None
    return {
        "edited": edited,
        "logprobs": drawn.logprobs_tensors.logprobs,
        "tokens": drawn.sampled_token_ids[:, 0],
    }


def metadata(size: int, rows: list[Row]) -> Any:
    from vllm import SamplingParams
    from vllm.v1.sample.logits_processor import (
        BatchUpdate,
        LogitBiasLogitsProcessor,
        LogitsProcessors,
        MinPLogitsProcessor,
        MinTokensLogitsProcessor,
    )
    from vllm.v1.sample.metadata import SamplingMetadata

    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=len(rows)))
    kinds = MinTokensLogitsProcessor, LogitBiasLogitsProcessor, MinPLogitsProcessor
    processors = [kind(config, torch.device("cpu"), False) for kind in kinds]
    added = []
    for index, row in enumerate(rows):
        params = SamplingParams(
            min_p=row["min_p"],
            logit_bias=row["logit_bias"],
            min_tokens=row["min_tokens"],
            stop_token_ids=row["end_tokens"],
            max_tokens=1000,
        )
        added.append((index, params, row["prompt"], row["output"]))
    for processor in processors:
        processor.update_state(BatchUpdate(batch_size=len(rows), removed=[], added=added, moved=[]))

    def column(name: str) -> Tensor:
        return torch.tensor([row[name] for row in rows], dtype=torch.float32)

    longest = max(len(row["prompt"]) for row in rows)
    prompts = [[*row["prompt"], *[size] * (longest - len(row["prompt"]))] for row in rows]
    disallowed = torch.zeros(len(rows), size, dtype=torch.bool)
    for index, row in enumerate(rows):
        if row["allowed_tokens"] is not None:
            disallowed[index] = True
            disallowed[index, row["allowed_tokens"]] = False
    return SamplingMetadata(
        temperature=column("temperature"),
        all_greedy=False,
        all_random=False,
        top_p=column("top_p"),
        top_k=torch.tensor([row["top_k"] or size for row in rows], dtype=torch.int32),
        generators={},
        max_num_logprobs=-1,
        no_penalties=False,
        prompt_token_ids=torch.tensor(prompts),
        frequency_penalties=column("frequency_penalty"),
        presence_penalties=column("presence_penalty"),
        repetition_penalties=column("repetition_penalty"),
        output_token_ids=[row["output"] for row in rows],
        allowed_token_ids_mask=disallowed,
        bad_words_token_ids={index: row["bad_words"] for index, row in enumerate(rows) if row["bad_words"]},
        logitsprocs=LogitsProcessors(processors),
    )


if __name__ == "__main__":
    asked = torch.load(sys.argv[1])
    torch.save(answers(asked["logits"], asked["rows"]), sys.argv[2])
