"""That a GPU does as the CPU does: draws, masks and judges drafts alike, and that nobody waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch

from sortition.benchmarks.device_draws import bare, prepared, some_logits
from sortition.benchmarks.device_timing import DEVICE, Clock, no_waiting
from sortition.benchmarks.engine_step import vocabulary
from sortition.benchmarks.samplers import VOCABULARY
from sortition.grammars.json_schema import json_schema
from sortition.grammars.table import Table
from sortition.sampling import cpu, device
from sortition.sampling.constraint import Constraint
from sortition.sampling.device_constraint import Walk
from sortition.sampling.draw import Draw, Request
from sortition.sampling.parameters import Parameters
from sortition.sampling.rules import Constrain, FrequencyPenalty, Temperature, TopP
from sortition.sampling.sampler import Sampler
from sortition.sampling.verification import METHODS, Method
from sortition.sampling.verify import verify

SMALL: Final = 8_192
"""Tokens of the vocabulary of grammars that are also walked on the CPU."""

CHUNK: Final = 500
"""Rows of them that are drawn at once."""

KINDS: Final[tuple[Mapping[str, Any], ...]] = (
    {},
    {"temperature": 0.0},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    {"top_p": 0.95},
    {"top_p": 0.999, "temperature": 1.5},
    {"min_p": 0.05, "temperature": 1.2},
    {"top_k": 300, "ties": "keep", "order": "hf", "eta": 1e-4},
    {"top_k": 1000, "top_p": 0.9, "order": "sglang"},
    {"top_k": 40, "top_p": 0.9, "temperature": 0.7, "order": "llama.cpp"},
    {"typical": 0.9, "temperature": 0.8},
    {"typical": 0.5, "top_p": 0.9, "temperature": 1.3, "order": "llama.cpp"},
    {"top_k": 100, "min_p": 0.02, "temperature": 1.5, "order": ("top_k", "temperature", "min_p")},
    {"epsilon": 3e-4, "min_keep": 40},
    {"top_n_sigma": 1.5, "temperature": 3.0},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "logit_bias": {7: 2.0}, "top_p": 0.7},
    {"bad_words": ((3,), (1, 2)), "min_tokens": 2**31, "presence_penalty": 0.5},
)
"""What rows ask for whose draws are compared."""


def equality(rows: int, width: int, dtype: torch.dtype, clock: Clock) -> dict[str, Any]:
    """How many rows the device and the CPU draw, and how many of them differently."""
    drawn, different, examples = 0, 0, []
    for first in range(0, rows, CHUNK):
        if clock.over:
            break
        logits = some_logits(CHUNK, width, dtype, seed=first)
        request = mixed(CHUNK, width, first)
        work = device.draw_rows(logits, request)
        differs = different_rows(work.to(torch.device("cpu")), cpu.draw_rows(logits.cpu(), request))
        drawn, different = drawn + CHUNK, different + int(differs.sum())
        examples += [str(request.columns.parameters[row]) for row in np.flatnonzero(differs)[:2]]
    return {"rows": drawn, "of": rows, "width": width, "different": different, "examples": examples[:5]}


def different_rows(ours: Draw, theirs: Draw) -> np.ndarray[Any, Any]:
    """bool [rows]: whose token, count, flags or bits of the logarithm differ."""
    differs = np.zeros(len(ours.tokens), np.bool_)
    for mine, expected in zip(
        (ours.tokens, ours.kept, ours.flags, ours.logprobs),
        (theirs.tokens, theirs.kept, theirs.flags, theirs.logprobs),
        strict=True,
    ):
        kind = torch.int32 if mine.dtype == torch.float32 else mine.dtype
        differs |= (mine.view(kind) != expected.view(kind)).numpy()
    return differs


def graph_draws_the_same(rows: int = 64) -> dict[str, Any]:
    """That a captured draw is the eager one, for new logits, and that launching it waits for nothing."""
    logits = some_logits(rows, VOCABULARY, torch.bfloat16)
    request = mixed(rows, VOCABULARY, 1)
    work = prepared(logits, request.columns.parameters, request)
    with no_waiting():
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = work()
    logits.copy_(some_logits(rows, VOCABULARY, torch.bfloat16, seed=5))
    graph.replay()
    differs = different_rows(captured.to(torch.device("cpu")), work().to(torch.device("cpu")))
    return {"rows": rows, "different": int(differs.sum()), "waits": False}


def sampler_waits_for_nothing(rows: int = 32, steps: int = 20) -> dict[str, Any]:
    """That a sampler with a grammar generates what it does on the CPU, and that the host never waits."""
    parts = (Constrain(some_table()), Temperature(0.8), TopP(0.95), FrequencyPenalty(0.2))
    sampler = Sampler(*parts, backend="triton")
    logits = [some_logits(rows, SMALL, torch.bfloat16, seed=step) for step in range(steps)]
    state = sampler.start(rows, seed=1, device=DEVICE)
    # Kernels are compiled, and parameters uploaded, by the first draw.
    state = sampler.advance(state, sampler(logits[0], state).tokens)
    state = sampler.start(rows, seed=1, device=DEVICE)
    drawn = []
    with no_waiting():
        for each in logits:
            drawn.append(sampler(each, state).tokens)
            state = sampler.advance(state, drawn[-1])
    host, expected = sampler.start(rows, seed=1), []
    on_host = Sampler(*parts, backend="cpu")
    for each in logits:
        expected.append(on_host(each.cpu(), host).tokens)
        host = on_host.advance(host, expected[-1])
    differs = torch.stack(drawn).cpu() != torch.stack(expected)
    return {"rows": rows * steps, "different": int(differs.sum()), "waits": False}


def grammars_mask_the_same(rows: int = 256, steps: int = 60) -> dict[str, Any]:
    """That kernels walk grammars as tensors do on the CPU, counts included, and mask the same tokens."""
    constraint = Constraint([some_table()], device=DEVICE)
    walk, judge = Walk(constraint, SMALL), Constraint([some_table()])
    chance = np.random.default_rng(0)
    numbers = torch.zeros(rows, dtype=torch.int64)
    ours, theirs = constraint.start(numbers.to(DEVICE)), judge.start(numbers)
    different = 0
    for _ in range(steps):
        found = walk.mask(walk.step(ours)).cpu().numpy().view(np.uint8)
        allowed = judge.allowed(theirs).numpy()
        bits = np.unpackbits(found, axis=1, bitorder="little")[:, :SMALL].astype(np.bool_)
        different += int((bits != allowed).any(1).sum())
        # Any token that is allowed, with the shortest ends last, so that texts grow to their bounds.
        keys = chance.random(allowed.shape) * allowed
        keys[:, ord('"')] /= 8
        tokens = torch.from_numpy(keys.argmax(1))
        ours, theirs = walk.step(ours, tokens.to(DEVICE)).position, judge.step(theirs, tokens)
    return {"rows": rows * steps, "different": different}


def drafts_are_judged_the_same(rows: int = 96) -> dict[str, Any]:
    """That drafts stand as they do on the CPU, by every method, in chains and trees; and nobody waits."""
    parts = (Temperature(0.8), TopP(0.95), FrequencyPenalty(0.2))
    ours, theirs = Sampler(*parts, backend="triton"), Sampler(*parts, backend="cpu")
    here, there = ours.start(rows, seed=1, device=DEVICE), theirs.start(rows, seed=1)
    # Of the models' logits for four drafts and the token after them, the drafter's are nearly the target's.
    target = some_logits(5 * rows, SMALL, torch.bfloat16).view(rows, 5, SMALL)
    laws = target[:, :4] + 0.3 * some_logits(4 * rows, SMALL, torch.bfloat16, seed=1).view(rows, 4, SMALL)
    tokens = laws.argmax(2)
    methods: list[Method] = [METHODS[row % len(METHODS)] for row in range(rows)]
    different = 0
    for parents in (None, torch.tensor([-1, -1, 0, 1], device=DEVICE).repeat(rows, 1)):
        if parents is not None:
            methods = ["token" if each == "block" else each for each in methods]
        # Kernels are compiled by the first call.
        verify(tokens, laws, target, ours, here, method=methods, parents=parents)
        with no_waiting():
            found = verify(tokens, laws, target, ours, here, method=methods, parents=parents)
        tree = None if parents is None else parents.cpu()
        on_host = tokens.cpu(), laws.cpu(), target.cpu()
        expected = verify(*on_host, theirs, there, method=methods, parents=tree)
        for name in ("tokens", "path", "flags", "logprobs"):
            mine, other = getattr(found, name).cpu(), getattr(expected, name)
            different += int((mine != other).any(1).sum() if mine.dim() > 1 else (mine != other).sum())
    return {"rows": 2 * rows, "different": different, "waits": False}


def some_table() -> Table:
    """Of strings of any length and of one that is counted."""
    properties = {"a": {"type": "string", "minLength": 33, "maxLength": 40}, "b": {"type": "string"}}
    return json_schema({"type": "object", "properties": properties, "required": ["a"]}).compile(
        vocabulary(SMALL)
    )


def mixed(rows: int, width: int, seed: int) -> Request:
    """Rows of every kind, with some history and a grammar."""
    random = np.random.default_rng(seed)
    request = bare([Parameters(**KINDS[row % len(KINDS)]) for row in range(rows)])
    return replace(
        request,
        seeds=random.integers(-(2**63), 2**63, rows),
        positions=random.integers(0, 2**31, rows),
        prompt=random.integers(-1, 200, (rows, 60)),
        output=random.integers(-1, 200, (rows, 60)),
        grammar=random.random((rows, width)) < 0.9 if seed % 1000 else None,
    )
