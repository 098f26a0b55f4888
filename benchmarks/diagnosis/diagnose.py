"""A running server, a load, a verdict."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any, Final
from urllib.parse import urlsplit

from sortition.benchmarks.diagnosis.causes import judged, parts
from sortition.benchmarks.diagnosis.evidence import Evidence
from sortition.benchmarks.diagnosis.latencies import between_tokens, first_tokens
from sortition.benchmarks.diagnosis.load import Load
from sortition.benchmarks.diagnosis.metrics import fetch
from sortition.benchmarks.diagnosis.pairs import Feature, Spread, costs
from sortition.benchmarks.diagnosis.watch import Watch
from sortition.benchmarks.overhead.intervals import LEAST
from sortition.integrations.errors import InputError
from sortition.integrations.openai_server import Refused, Server, Unanswered, first_model

RUNNING: Final = "vllm:num_requests_running"

FORMAT: Final = "sortition-diagnosis/1"
"""Of the report."""


def diagnose(
    base_url: str,
    prompts: Sequence[str],
    *,
    model: str | None = None,
    concurrency: int = 8,
    max_tokens: int = 32,
    features: Sequence[Feature] = (),
    rounds: int = LEAST,
    progress: Callable[[str], None] = lambda note: None,
) -> dict[str, Any]:
    """A report that says what holds this load back on a server with vLLM's figures.

    Args:
        base_url: of the server, with ``/v1`` or without.
        prompts: one request each.
        model: its name there; by default the first that the server names.
        concurrency: requests that are open at once.
        max_tokens: of every answer.
        features: what requests may ask for, such as structured output. What each costs is measured: rounds
            with and without it take turns. What holds the load back is then said of the one that costs most.
        rounds: of these, at least `LEAST`.
        progress: told what is done.

    Raises:
        InputError: the server does not answer, has no figures, or refuses the load.
    """
    if not prompts:
        raise InputError("there are no prompts")
    root = _root(base_url)
    if RUNNING not in fetch(root).totals:
        raise InputError(f"{root}/metrics has none of vLLM's figures, such as {RUNNING}")
    load = Load(model or _first_model(root), prompts, concurrency, max_tokens)
    progress("warming up")
    # Grammars are compiled here, and not in the first round alone.
    for fields in ({}, *(feature.fields for feature in features)):
        replace(load, prompts=[f"{prompts[0]} "], fields=fields).run(root)
    paired = costs(root, load, features, rounds, progress) if features else []
    heaviest = max(paired, key=lambda cost: cost.between.longer.low, default=None)
    if heaviest is not None:
        load = replace(load, fields=heaviest.feature.fields)
    progress(f"{len(prompts)} requests, {concurrency} at once")
    before = fetch(root)
    with Watch(root) as watch:
        requests = load.run(root)
    evidence = Evidence(requests, fetch(root).since(before), watch.seen, concurrency, max_tokens, heaviest)
    return {**_report(root, load, evidence), "features": [cost.as_json() for cost in paired]}


def _report(root: str, load: Load, evidence: Evidence) -> dict[str, Any]:
    figures = evidence.figures
    shared = shared_beginnings(load.prompts)
    return {
        "format": FORMAT,
        "server": root,
        "model": load.model,
        "load": {
            "feature": None if evidence.feature is None else evidence.feature.feature.name,
            "requests": len(load.prompts),
            "concurrency": load.concurrency,
            "max_tokens": load.max_tokens,
            "prompt tokens": statistics.fmean(each.prompt for each in evidence.requests),
            "generated tokens": statistics.fmean(each.generated for each in evidence.requests),
            "cut off": sum(each.cut for each in evidence.requests),
            "shared beginnings": shared,
        },
        "verdict": asdict(judged(evidence, shared)),
        "seconds of a request": {"whole": evidence.whole, **parts(evidence)},
        "client seconds": {
            name: asdict(Spread.of(seconds))
            for name, seconds in (
                ("to the first token", [each.first for each in evidence.requests]),
                ("between tokens", [gap for each in evidence.requests for gap in each.gaps]),
                ("whole", [each.whole for each in evidence.requests]),
            )
        },
        "first token by cause": first_tokens(evidence),
        "between tokens by cause": between_tokens(evidence),
        "server seconds": {
            part: {
                "mean": figures.mean(f"vllm:request_{part}_time_seconds"),
                "p50": figures.quantile(f"vllm:request_{part}_time_seconds", 0.5),
                "p99": figures.quantile(f"vllm:request_{part}_time_seconds", 0.99),
            }
            for part in ("queue", "prefill", "decode")
        },
        "gauges": asdict(evidence.seen),
        "preemptions per request": evidence.preemptions,
        "prefix cache hit rate": evidence.hit_rate,
        "requests of others": evidence.strangers,
    }


def shared_beginnings(prompts: Sequence[str]) -> float:
    """Which share of the prompts, 0 to 1, is a beginning that another one has, too."""
    ordered = sorted(prompts)
    shared = sum(_shared(*pair) for pair in pairwise(ordered))
    return shared / max(1, sum(map(len, prompts)))


def _shared(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    differ = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differ, min(len(one), len(other)))


def _root(base_url: str) -> str:
    url = urlsplit(base_url if "://" in base_url else f"http://{base_url}")
    if url.scheme not in ("http", "https") or not url.netloc:
        raise InputError(f"a server's URL begins with http:// or https://, and {base_url!r} does not")
    return f"{url.scheme}://{url.netloc}{url.path.rstrip('/').removesuffix('/v1')}"


def _first_model(root: str) -> str:
    try:
        return first_model(Server(f"{root}/v1"))
    except (Unanswered, Refused) as error:
        raise InputError(str(error)) from None
