"""Kernels that verify drafts, interpreted, against their definition; see `test_verify_kernels.py`.

For a process of its own, where TRITON_INTERPRET is set before Triton is imported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_verify import batch, same_bits
from torch import Tensor

from sortition.sampling import reference, verify_device, verify_reference
from sortition.sampling.rules import AllowedTokens, LogitBias, PresencePenalty, Temperature, TopK, TopP
from sortition.sampling.sampler import Sampler
from sortition.sampling.verification import METHODS, Method, Verified
from sortition.sampling.verify import VERIFIERS, verify

KERNELS = partial(verify_device.verify_rows, tile=128, step=128)


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """The interpreter calculates what is masked, too, in numpy, which warns of overflows."""
    with np.errstate(all="ignore"):
        yield


def both(*asked: Any, **more: Any) -> tuple[Verified, Verified]:
    """What the definition finds, and what kernels do."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for verifier in (verify_reference.verify_rows, KERNELS):
            patch.setitem(VERIFIERS, reference.draw_rows, verifier)
            found.append(verify(*asked, **more))
    return found[0], found[1]


def judged(
    methods: list[Method], tokens: Tensor, laws: Tensor | None, target: Tensor, **more: Any
) -> Verified:
    """The same from both, which take some drafts and refuse others."""
    sampler = Sampler(Temperature(0.9), TopK(20), TopP(0.95), PresencePenalty(0.3), backend="reference")
    state = sampler.start(len(tokens), seed=11)
    one, other = both(tokens, laws, target, sampler, state, method=methods, **more)
    assert same_bits(one, other)
    return one


@pytest.mark.parametrize("method", METHODS)
def test_every_method(method: Method) -> None:
    """Drafts with laws and certain ones; what kernels do not know is the CPU's."""
    tokens, laws, target = batch(4, 2, 3, size=20)
    assert 0 < judged([method] * 4, tokens, laws, target).accepted.sum() < 8
    judged([method] * 4, tokens, None, target)


def test_rows_have_methods_and_lengths_of_their_own() -> None:
    tokens, laws, target = batch(8, 2, 4, size=20)
    lengths = torch.arange(8) % 3
    tokens = tokens.masked_fill(torch.arange(2) >= lengths[:, None], -1)
    found = judged([METHODS[row % len(METHODS)] for row in range(8)], tokens, laws, target)
    assert (found.accepted <= lengths).all() and 0 < found.accepted.sum() < lengths.sum()


def test_trees_are_left_to_the_cpu() -> None:
    tokens, laws, target = batch(2, 3, 5, size=20)
    judged(["token", "coupled"], tokens, laws, target, parents=torch.tensor([[-1, -1, 1], [-1, 0, 1]]))


@pytest.mark.parametrize("order", ["vllm", "llama.cpp"])
def test_a_law_ends_where_its_filters_end(order: str) -> None:
    """Also where the filters' last token was the last that they looked at."""
    tokens, laws, target = batch(4, 2, 5, size=20)
    sampler = Sampler(Temperature(0.8), TopP(0.9), order=order, backend="reference")
    state = sampler.start(4, seed=5)
    assert same_bits(*both(tokens, laws, target, sampler, state, method="token"))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_place_that_cannot_be_drawn_from_ends_a_row(value: float) -> None:
    tokens, laws, target = batch(4, 2, 6, size=20)
    target[:, 1] = value
    laws[1, 0], laws[2, 0] = value, -math.inf
    judged(["token", "token", "coupled", "greedy"], tokens, laws, target)


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_whatever_is_asked(seed: int) -> None:
    source = np.random.default_rng(seed)
    rows, nodes = int(source.integers(1, 3)), int(source.integers(0, 3))
    size, drafted_size = (int(source.choice([1, 2, 20, 150])) for _ in range(2))
    tokens = torch.from_numpy(source.integers(-1 if source.random() < 0.3 else 0, size, (rows, nodes)))
    kind = (torch.float32, torch.bfloat16)[source.integers(2)]
    target = torch.from_numpy(source.normal(size=(rows, nodes + 1, size)) * source.choice([0.0, 1.0, 8.0]))
    drafts = torch.from_numpy(source.normal(size=(rows, nodes, drafted_size)) * 2)
    parts = [
        Temperature([float(source.choice([0.0, 0.3, 1.0, 1.7])) for _ in range(rows)]),
        TopK([int(source.choice([0, 1, 5, 40])) for _ in range(rows)]),
        TopP([float(source.choice([0.3, 0.9, 1.0])) for _ in range(rows)]),
    ]
    edits = [LogitBias({0: 2.0}), AllowedTokens([0, 1, 2, 5, 8, 13][: max(size // 2, 1)])]
    order = str(source.choice(["vllm", "llama.cpp"]))
    sampler = Sampler(*parts, *(edits if source.random() < 0.5 else []), order=order, backend="reference")
    found = both(
        tokens,
        None if seed % 3 == 0 else drafts.to(kind),
        target.to(kind),
        sampler,
        sampler.start(rows, seed=seed),
        method=[METHODS[code] for code in source.integers(0, 4, rows)],
        draft_sampler=Sampler(*parts[:2], backend="reference"),
    )
    assert same_bits(*found)
