"""What would mend a cause, and what it costs where it was tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sortition.benchmarks.probe.findings import Attribution, Fix, Tested
from sortition.benchmarks.probe.target import Condition

BATCH_INVARIANT: Final = (
    "run with batch-invariant kernels, which are for GPUs: VLLM_BATCH_INVARIANT=1 in vLLM, "
    "--enable-deterministic-inference in SGLang"
)

SUGGESTIONS: Final[dict[str, tuple[str, ...]]] = {
    "model": (BATCH_INVARIANT, "float32 throughout: bits still differ, tokens hardly ever"),
    "linear": (
        BATCH_INVARIANT,
        "keep to numbers of rows of one class, such as one dummy row beside a lone request",
    ),
    "attention": (
        'attn_implementation="eager" in transformers; fixed splits in other engines',
        "batch prompts of equal length, so that nothing is padded",
    ),
    "chunk": ("a fixed number of tokens a pass, or no chunked prefill",),
    "prefix_cache": (
        "--no-enable-prefix-caching in vLLM, --disable-radix-cache in SGLang, or a cache that is always warm",
    ),
    "ties": (
        "scores in float32 from the last layer (lm_head), which leaves hardly any ties",
        "a sampler with one total order, value and then lowest id: so.hf(seed=...) or so.Sampler",
    ),
    "seed": ("a sampler whose noise belongs to seed and position: so.hf(seed=...) or so.request(draw=True)",),
    "sampler": ("a sampler that looks at its own row only: so.hf(seed=...) or so.request(draw=True)",),
    "corruption": ("report it to whoever maintains the named operation: no option makes wrong values right",),
    "padding": ("report it; until then batch prompts of equal length, without padding",),
}
"""By what is wrong; the first is what is most likely to be possible."""

REMEDIES: Final = {
    "attention": ("attention",),
    "linear": ("dtype", "lm_head"),
    "ties": ("lm_head",),
    "seed": ("draw",),
}
"""Axes on which there may be a way out that can be tried here."""


def fixes(attributions: Sequence[Attribution], tested: Sequence[Tested]) -> tuple[Fix, ...]:
    """Suggestions for all causes that were found, those that were tried first."""
    found: list[Fix] = []
    for attribution in attributions:
        if attribution.conclusion == "confirmed" and attribution.interventions:
            found.append(_intervention(attribution))
    for cause, conditions in _causes(attributions).items():
        found += [
            _tried(cause, plain, remedied)
            for plain in tested
            if plain.name in conditions
            for remedied in tested
            if _is_remedy(cause, plain, remedied)
        ]
        found += [Fix(cause, suggestion, conditions) for suggestion in SUGGESTIONS.get(cause, ())]
    return tuple(sorted(found, key=lambda fix: not fix.tried))


def is_remedied(condition: Condition) -> bool:
    """Whether it is there to try a way out. Draws are not: they have faults of their own."""
    ways = {axis for axes in REMEDIES.values() for axis in axes} - {"draw"}
    return any(axis in ways for axis, _ in condition.given)


def kind_of(attribution: Attribution) -> str:
    """What suggestions go by."""
    if attribution.cause != "operation":
        return attribution.cause
    return "attention" if (attribution.operation or "").endswith(".attention") else "linear"


def _causes(attributions: Sequence[Attribution]) -> dict[str, tuple[str, ...]]:
    """The conditions of every cause; what is read in parts or kept also has remedies of its own."""
    causes: dict[str, tuple[str, ...]] = {}
    for attribution in attributions:
        if attribution.cause == "none":
            continue
        names = (attribution.condition, *attribution.shared_by)
        own = {axis: tuple(name for name in names if axis in name) for axis in ("chunk", "prefix_cache")}
        for cause, conditions in {kind_of(attribution): names, **own}.items():
            if conditions:
                causes[cause] = (*causes.get(cause, ()), *conditions)
    return causes


def _intervention(attribution: Attribution) -> Fix:
    last = attribution.interventions[-1]
    return Fix(
        cause=kind_of(attribution),
        suggestion=f"{last.mended}: {last.how}",
        conditions=(attribution.condition, *attribution.shared_by),
        tried=True,
        restored=last.equal_after,
        prompts=last.prompts,
        cost=last.cost,
        same_tokens=last.same_tokens_after,
    )


def _is_remedy(cause: str, plain: Tested, remedied: Tested) -> bool:
    """Whether that is the same condition under something that may help."""
    same = remedied.varies == plain.varies and remedied.given != plain.given
    axes = REMEDIES.get(cause, ())
    return same and remedied.status == "exercised" and any(axis in axes for axis in remedied.given)


def _tried(cause: str, plain: Tested, remedied: Tested) -> Fix:
    comparisons = remedied.comparisons
    return Fix(
        cause=cause,
        suggestion=" and ".join(f"{axis} {value}" for axis, value in remedied.given.items()),
        conditions=(plain.name,),
        tried=True,
        restored=sum(each.first_difference is None for each in comparisons),
        prompts=len(comparisons),
        cost=remedied.reference_seconds / plain.reference_seconds if plain.reference_seconds else None,
        same_tokens=sum(each.first_flip is None for each in comparisons),
    )
