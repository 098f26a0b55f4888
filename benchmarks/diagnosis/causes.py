"""Which cause holds a workload back, by the part of a request's time that is the longest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from sortition.benchmarks.diagnosis.evidence import Evidence

Cause = Literal[
    "queueing", "kv cache", "prefill", "prefix cache", "batching", "decode", "sampling", "outside the engine"
]

FULL: Final = 0.9
"""Share of the KV cache in use from which one more request may not find room: a block is some percent of a
small cache."""

OFTEN: Final = 0.1
"""Preemptions per request from which the cache is too small: each one computes a whole request again."""

NOTICED: Final = 0.2
"""Share of the time between tokens from which what may be turned off is named before what may not."""

SHARED: Final = 0.5
"""Share of a prompt that several have in common, from which a prefix cache is worth having."""

ALONE: Final = 1.5
"""Requests running on average, up to which there is no batch to speak of."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What holds the workload back.

    Attributes:
        cause: in a word.
        why: with the numbers that show it.
        setting: what to try first.
    """

    cause: Cause
    why: str
    setting: str


def parts(evidence: Evidence) -> dict[str, float]:
    """Mean seconds of a request by where they went; they add up to the whole request."""
    inside = {"queue": evidence.queued, "prefill": evidence.prefilling, "decode": evidence.decoding}
    return {**inside, "elsewhere": max(0.0, evidence.whole - sum(inside.values()))}


def judged(evidence: Evidence, shared: float) -> Verdict:
    """The verdict.

    Args:
        evidence: of a load.
        shared: which share of the prompts, 0 to 1, is a beginning that an earlier prompt had, too.
    """
    seconds = parts(evidence)
    longest = max(seconds, key=seconds.__getitem__)
    if evidence.preemptions >= OFTEN or (longest == "queue" and evidence.seen.cache_usage >= FULL):
        return _kv_cache(evidence)
    if longest == "queue":
        return _queueing(evidence)
    if evidence.feature_share >= NOTICED:
        return _sampling(evidence)
    if longest == "prefill":
        return _prefill(evidence, shared)
    if longest == "decode":
        return _decode(evidence)
    return Verdict(
        "outside the engine",
        f"{_share(seconds['elsewhere'], evidence)} is spent outside the engine: network, tokenizer, HTTP",
        "--api-server-count, or clients nearer to the server",
    )


def _share(seconds: float, evidence: Evidence) -> str:
    return f"{seconds / evidence.whole:.0%} of a request's {evidence.whole:.2f} s"


def _kv_cache(evidence: Evidence) -> Verdict:
    why = (
        f"the KV cache was up to {evidence.seen.cache_usage:.0%} full, requests were thrown out of it "
        f"{evidence.preemptions:.1f} times each, and {_share(evidence.queued, evidence)} is waiting"
    )
    generated = sum(each.generated for each in evidence.requests) / len(evidence.requests)
    if evidence.max_tokens > 4 * generated:
        why += f"; max_tokens is {evidence.max_tokens}, and answers have {generated:.0f} tokens"
    return Verdict(
        "kv cache", why, "--gpu-memory-utilization (on a CPU VLLM_CPU_KVCACHE_SPACE), or --kv-cache-dtype fp8"
    )


def _queueing(evidence: Evidence) -> Verdict:
    seen = evidence.seen
    why = (
        f"{_share(evidence.queued, evidence)} is waiting to run; at most {seen.most_running:.0f} ran at "
        f"once, {seen.waiting:.1f} waited on average, and the KV cache was at most {seen.cache_usage:.0%} "
        "full"
    )
    if seen.most_running < evidence.concurrency:
        return Verdict("queueing", why, f"--max-num-seqs above {seen.most_running:.0f}")
    return Verdict("queueing", why, "--max-num-batched-tokens, or one more replica")


def _sampling(evidence: Evidence) -> Verdict:
    if evidence.feature is None:
        raise ValueError("without a feature nothing is known about what it costs")
    name, longer = evidence.feature.feature.name, evidence.feature.between.longer
    why = (
        f"a token takes {longer.estimate * 1000:.1f} ms longer ({longer.low * 1000:.1f} to "
        f"{longer.high * 1000:.1f}) with {name} than without, of {evidence.gap * 1000:.1f} ms"
    )
    return Verdict("sampling", why, f"do without {name}; `sortition overhead` splits it into parts")


def _prefill(evidence: Evidence, shared: float) -> Verdict:
    prompt = sum(each.prompt for each in evidence.requests) / len(evidence.requests)
    why = f"{_share(evidence.prefilling, evidence)} is reading prompts of {prompt:.0f} tokens"
    hit_rate = evidence.hit_rate
    if shared >= SHARED and (hit_rate is None or hit_rate < shared / 2):
        found = "is off" if hit_rate is None else f"had {hit_rate:.0%} of their tokens"
        why += f"; {shared:.0%} of the prompts is shared beginnings, and the prefix cache {found}"
        return Verdict("prefix cache", why, "--enable-prefix-caching, and what varies at the end of prompts")
    return Verdict("prefill", why, "shorter prompts, or --max-num-batched-tokens for more of them at a time")


def _decode(evidence: Evidence) -> Verdict:
    running = evidence.seen.running
    why = (
        f"{_share(evidence.decoding, evidence)} is writing, {evidence.gap * 1000:.1f} ms a token, "
        f"with {running:.1f} requests running on average"
    )
    if running <= ALONE:
        return Verdict("batching", why, "more requests at once: a step costs little more with several rows")
    return Verdict("decode", why, "--quantization, speculative decoding, or a smaller model")
