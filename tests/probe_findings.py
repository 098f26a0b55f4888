"""Findings that are made up, with everything in them that a report has to show."""

from __future__ import annotations

import random

from sortition.benchmarks.probe.findings import (
    SCHEMA,
    Agreement,
    Answer,
    Attribution,
    Boundary,
    Comparison,
    Completions,
    Findings,
    Fix,
    Intervention,
    Operation,
    Rate,
    Reference,
    SurvivalPoint,
    Tested,
    Verdict,
)

HOSTILE = "</pre><script>alert('x')</script>&amp;\x00\x1b[31m"
"""What a prompt may be, and must stay: text."""

STEPS = 24
LAYERS = 30
KINDS = ("q_proj", "k_proj", "v_proj", "attention", "o_proj", "gate_proj", "up_proj", "down_proj")
CULPRIT = "model.layers.0.mlp.down_proj"


def findings(prompts: int = 12, answer: Answer = "exceeded", target: str = "a model") -> Findings:
    """Batches change the text of every third prompt, for a reason that was found."""
    chance = random.Random(0)
    references = tuple(_reference(number, chance) for number in range(prompts))
    batches = tuple(
        _tested(f"batch_size {size}", "batch_size", {"batch_size": size}, prompts, "b")
        for size in (2, 4, 8, 32)
    )
    return Findings(
        schema=SCHEMA,
        target=target,
        environment={"torch": "2.13.0", "dtype": "bfloat16", "threads": 1},
        options={"steps": STEPS, "require": "tokens", "max_divergence": 0.01, "confidence": 0.95},
        references=references,
        tested=(
            _tested("rerun", "rerun", {"rerun": True}, prompts, "a"),
            *batches,
            _tested("padding 8", "padding", {"padding": 8}, prompts, "c"),
            Tested(
                "threads 2",
                "threads",
                {"threads": 2},
                {},
                False,
                "not exercised",
                f"one core alone {HOSTILE}",
            ),
        ),
        classes=(("reference", "rerun"), tuple(each.name for each in batches), ("padding 8",)),
        boundaries=(Boundary(1, 2, 0),),
        completions=tuple(
            Completions(
                number,
                (_text(number), _text(number)[:40] + f" and then another end {HOSTILE}"),
                (("reference", "rerun"), ("batch_size 8",)),
            )
            if number % 3 == 0
            else Completions(number, (_text(number),), (("reference", "rerun", "batch_size 8"),))
            for number in range(prompts)
        ),
        agreement=Agreement(7, Rate(8, 12, 0.35, 0.9, 0.95), None, None, 0.012, 9.0, None),
        attributions=(
            Attribution(
                "batch_size 8",
                "operation",
                "confirmed",
                f"{CULPRIT} adds in another order for one row than for two or more.",
                "decode",
                CULPRIT,
                tuple(_operations()),
                interventions=(
                    Intervention("down_proj", "two rows instead of one", 5, 0, 5, 5, 1.04),
                    Intervention("q_proj", "two rows instead of one", 5, 0, 0, 3, 1.02),
                ),
            ),
        ),
        fixes=(
            Fix("operation", "pad single rows to two", ("batch_size 8",), True, 5, 5, 1.04),
            Fix("operation", "on a GPU, VLLM_BATCH_INVARIANT=1", ("batch_size 8",)),
        ),
        verdict=Verdict(
            answer,
            "The batch changes the text of 4 of 12 prompts; it is floating-point noise of down_proj.",
            ("33 % is more than the 1 % allowed.",),
        ),
        seconds=83.0,
    )


def _text(number: int) -> str:
    return f" number {number} goes on like this, and says <b>nothing</b> of interest for a while"


def _reference(number: int, chance: random.Random) -> Reference:
    margins = tuple(round(chance.expovariate(0.8), 3) for _ in range(STEPS))
    return Reference(
        f"Prompt {number} {HOSTILE}",
        _text(number),
        tuple(range(STEPS)),
        ("a",) * STEPS,
        margins,
        (0.5,) * STEPS,
        tuple(step for step, margin in enumerate(margins) if margin == 0),
    )


def _tested(name: str, kind: str, varies: dict[str, object], prompts: int, digest: str) -> Tested:
    """Of digest "a" is what has the reference's bits; of "b", what flips every third prompt."""
    flipping = [number for number in range(prompts) if digest == "b" and number % 3 == 0]
    comparisons = tuple(
        Comparison(
            prompt=number,
            steps=STEPS,
            digests=(digest,) * STEPS,
            first_difference=None if digest == "a" else 1,
            first_flip=6 + number if number in flipping else None,
            flips=(6 + number,) if number in flipping else (),
            differing_steps=0 if digest == "a" else STEPS - 1,
            max_abs=0.0 if digest == "a" else 0.375,
            max_ulp=0 if digest == "a" else 3,
            margin_at_flip=0.125 if number in flipping else None,
            noise_at_flip=0.25 if number in flipping else None,
            top_probabilities=(0.5,) * STEPS,
            completion=_text(number)[:40] + " and then another end" if number in flipping else None,
        )
        for number in range(prompts)
    )
    survival, surviving = [], 1.0
    for number in flipping:
        surviving -= 1 / prompts
        survival.append(
            SurvivalPoint(
                6 + number, prompts, 1, surviving, max(surviving - 0.25, 0), min(surviving + 0.15, 1)
            )
        )
    differing = 0 if digest == "a" else prompts
    return Tested(
        name=name,
        kind=kind,
        varies=dict(varies),
        given={},
        counts=True,
        status="exercised",
        evidence=f"seen: {name}",
        comparisons=comparisons,
        bitwise=Rate(differing, prompts, 0.7 if differing else 0.0, 1.0 if differing else 0.22, 0.95),
        divergence=Rate(len(flipping), prompts, 0.1 if flipping else 0.0, 0.6 if flipping else 0.22, 0.95),
        flips=Rate(len(flipping), prompts * STEPS, 0.0, 0.04, 0.95),
        predicted_flips=0.016 if differing else None,
        noise=0.11 if differing else None,
        survival=tuple(survival),
        seconds=2.5,
        reference_seconds=2.0,
    )


def _operations() -> list[Operation]:
    operations = [Operation("model.embed_tokens", "embed_tokens", None, True, True, 0.0)]
    for layer in range(LAYERS):
        for kind in KINDS:
            part = "mlp" if kind in KINDS[5:] else "self_attn"
            name = f"model.layers.{layer}.{part}.{kind}"
            culprit = name == CULPRIT
            operations.append(
                Operation(
                    name, kind, layer, culprit or layer == 0, not (culprit or layer), 0.01 if layer else 6e-8
                )
            )
    return [*operations, Operation("lm_head", "lm_head", None, False, False, 0.3)]
