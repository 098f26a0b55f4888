"""Kernels that verify drafts, interpreted, against their definition; see `test_verify_kernels.py`.

For a process of its own, where TRITON_INTERPRET is set before Triton is imported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_verify import GRAMMAR, LETTERS, SIZE, batch, check_shape, same_bits
from torch import Tensor

from sortition.sampling import device
from sortition.sampling.device_state import DeviceState
from sortition.sampling.draw import NO_TOKEN
from sortition.sampling.rules import (
    AllowedTokens,
    BadWords,
    Constrain,
    FrequencyPenalty,
    LogitBias,
    MinP,
    MinTokens,
    PresencePenalty,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
    Typical,
)
from sortition.sampling.sampler import Sampler
from sortition.sampling.verification import METHODS, Method, Verified
from sortition.sampling.verify import drafting, verify

TREE_METHODS: list[Method] = [method for method in METHODS if method != "block"]


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """Tiles are small, so that rows have several; what is masked is calculated, too, and numpy would warn."""
    with np.errstate(all="ignore"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "Workspace", partial(device.Workspace, tile=128, step=128, room=64))
        yield


def judged(
    parts: Sequence[Any],
    tokens: Tensor,
    laws: Tensor | None,
    target: Tensor,
    *,
    drafter: Sequence[Any] | None = None,
    before: Sequence[Sequence[int]] = (),
    policies: dict[str, Any] | None = None,
    order: str | tuple[str, ...] = "vllm",
    seed: int = 11,
    **more: Any,
) -> Verified:
    """What kernels find, whose state is on the device, and so does the definition.

    Args:
        before: columns of tokens that rows have generated.
    """
    found = []
    for backend in ("triton", "reference"):
        options: dict[str, Any] = {"order": order, "backend": backend}
        sampler = Sampler(*parts, **options, **(policies or {}))
        theirs = None if drafter is None else Sampler(*drafter, **options)
        state = sampler.start(len(tokens), seed=seed, prompts=[[1, 2]] * len(tokens), device="cpu")
        assert isinstance(state, DeviceState) == (backend == "triton")
        for column in before:
            state = sampler.advance(state, column)
        found.append(verify(tokens, laws, target, sampler, state, draft_sampler=theirs, **more))
    assert same_bits(*found)
    if policies is None:
        check_shape(found[0], tokens, more.get("parents"))
    return found[0]


@pytest.mark.parametrize("certain", [False, True])
def test_rows_have_methods_and_lengths_of_their_own(certain: bool) -> None:
    tokens, laws, target = batch(7, 2, 7, size=20)
    lengths = torch.tensor([2, 2, 1, 2, 2, 2, 0])
    tokens = tokens.masked_fill(torch.arange(2) >= lengths[:, None], -1)
    parts = (Temperature(1.0),) if certain else (Temperature(0.9), TopP(0.95))
    found = judged(parts, tokens, None if certain else laws, target, method=[*METHODS, "block"])
    assert (found.accepted <= lengths).all() and 0 < found.accepted.sum() < lengths.sum()


WIDE = torch.tensor([-1, -1, 0, 1, 1, -1])
"""Three candidates for the first token, two for one of the next."""


@pytest.mark.parametrize("certain", [False, True])
def test_trees(certain: bool) -> None:
    """By every method that judges trees; siblings may be equal, even where their law has nothing else."""
    source = torch.Generator().manual_seed(4)
    tokens = torch.randint(-1, 4, (6, 6), generator=source)
    tokens[4:, [1, 5]] = tokens[4:, :1]
    target = torch.randn(6, 7, 4, generator=source)
    laws = torch.randn(6, 6, 4, generator=source) + target[:, :1]
    laws[5, [0, 1, 5]] = torch.where(torch.arange(4) == tokens[5, 0], 0.0, -math.inf)
    methods: list[Method] = [*TREE_METHODS, "distinct"]
    found = judged((), tokens, None if certain else laws, target, method=methods, parents=WIDE.expand(6, -1))
    assert found.accepted.max() > 1 and (found.accepted == 0).any()


GRAMMATICAL = (LETTERS, Constrain([GRAMMAR, GRAMMAR, None] * 2), MinTokens(2), Temperature(1.2))


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_a_grammar_rules_every_place(tree: bool) -> None:
    """After drafts that it allows and others, and after none; the drafter knows fewer tokens."""
    source = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 8, (6, 2), generator=source)
    tokens[1, 0], tokens[3, 1] = 12, NO_TOKEN
    target = torch.randn(6, 3, SIZE + 3, generator=source) * 2
    methods: list[Method] = ["token", "coupled", "distinct", "block", "typical", "greedy"]
    if tree:
        methods[3] = "token"
    found = judged(
        GRAMMATICAL,
        tokens,
        target[:, :2, : 13 if tree else SIZE] + 0.5,
        target,
        before=[[2, 3, 4, 0, 1, 2]],
        drafter=(Temperature(0.8),) if tree else GRAMMATICAL,
        method=methods,
        parents=torch.full((6, 2), -1) if tree else None,
    )
    assert not found.flags.any() and found.accepted.sum() > 1


HISTORY = (
    *(RepetitionPenalty(1.3), FrequencyPenalty(0.4), PresencePenalty([0.0, 0.5, 0.5])),
    BadWords([[3], [1, 4]]),
    LogitBias({0: 2.0, 7: -math.inf}),
    *(MinP([0.01, 0.0, 0.0]), Temperature([0.7, 1.3, 1.0])),
)


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_rules_see_the_drafts_before(tree: bool) -> None:
    """The same token again and again, which comes to be less likely; one that bad words rule out."""
    tokens = torch.tensor([[5, 5, 5], [1, 4, 4], [2, 2, 2]])
    target = torch.zeros(3, 4, 9)
    target[:, :, 5], target[:, :, 2] = 1.5, 2.0
    methods: list[Method] = ["coupled", "token", "distinct" if tree else "block"]
    parents = torch.tensor([-1, -1 if tree else 0, 1]).expand(3, -1) if tree else None
    more = {"before": [[5, 1, 2], [1, 0, 2]], "method": methods, "parents": parents}
    # A temperature may stand among the rules.
    order = ("frequency_penalty", "temperature", "logit_bias") if tree else "vllm"
    judged(HISTORY, tokens, target[:, :3] + 0.3, target, order=order, **more)


def test_logits_that_a_temperature_makes_equal() -> None:
    """The first of them is the likeliest, wherever the greatest logit is."""
    target = torch.tensor([[[0.0, 1.0, 1.0, 0.5]] * 2, [[-1.0, 0.0, 2.0**-149, -1.0]] * 2])
    tokens = torch.tensor([[1], [2]])
    found = judged([Temperature(2.0)], tokens, None, target, method="greedy")
    assert found.tokens.tolist() == [[1, 1], [1, -1]]


@pytest.mark.parametrize("policy", ["flag", 2, "mend"])
def test_a_place_that_cannot_be_drawn_from_ends_a_row(policy: Any) -> None:
    tokens = torch.tensor([[3]] * 6)
    target = torch.full((6, 2, 6), -9.0)
    target[:, 0, 3] = 9.0
    target[0, 0, 5], target[1, 1, 2], target[2, 1], target[3, 1] = math.nan, math.inf, -math.inf, math.nan
    target[4, 0], target[5, 1, 0] = -math.inf, math.nan
    target[3, 0] = 0.0
    laws = target[:, :1].clone()
    laws[5, 0] = -math.inf
    policies = {"on_nan": policy, "on_infinite": policy, "on_empty": policy}
    methods: list[Method] = ["token", "distinct", "coupled", "greedy", "block", "block"]
    found = judged((), tokens, laws, target, policies=policies, method=methods)
    assert found.flags.tolist()[:3] == [2, 4, 1] and found.flags[5] == 0


def test_a_policy_that_raises_waits_for_rows_that_get_there() -> None:
    sampler = Sampler(on_nan="raise", backend="triton")
    target = torch.zeros(2, 2, 4)
    target[1, 1] = math.nan
    target[1, 0, 2] = 50.0
    state = sampler.start(2, seed=0, device="cpu")
    verify(torch.tensor([[1], [3]]), None, target, sampler, state)
    with pytest.raises(ValueError, match=r"rows \[1\]: the logit of a token that may be drawn is NaN"):
        verify(torch.tensor([[1], [2]]), None, target, sampler, state)


@pytest.mark.parametrize(
    ("kind", "size", "drafted"),
    [(torch.float32, 401, 260), (torch.bfloat16, 1, 2), (torch.float16, 300, 301), (torch.float64, 40, 9)],
    ids=str,
)
def test_logits_of_any_type_and_strides(kind: torch.dtype, size: int, drafted: int) -> None:
    """With many that are equal, and many at -inf."""
    source = torch.Generator().manual_seed(size)
    tokens = torch.tensor([[0], [3], [5], [0]]).clamp(max=size - 1)

    def logits(places: int, width: int) -> Tensor:
        values = torch.randint(-4, 2, (4, places, width), generator=source).to(kind)
        values[torch.rand(values.shape, generator=source) < 0.3] = -math.inf
        values.scatter_(2, tokens.clamp(max=width - 1).expand(-1, places)[..., None], 2.0)
        wide = torch.full((places, 4, width + 5), math.nan, dtype=kind)
        wide[:, :, 2:-3] = values.transpose(0, 1)
        return wide[:, :, 2:-3].transpose(0, 1)

    target = logits(2, size)
    before = target.clone()
    methods: list[Method] = ["token", "block", "distinct", "coupled"]
    allowed = AllowedTokens([[0, 3, 5, 8][: max(1, size // 2)], *[None] * 3])
    parts = Temperature([0.7, 1.0, 0.0, 1.5]), TopP(0.9), allowed
    judged(parts, tokens, logits(1, drafted), target, drafter=parts[:1], method=methods)
    assert torch.equal(target, before)


@pytest.mark.parametrize("certain", [False, True])
def test_what_no_vocabulary_has_is_refused(certain: bool) -> None:
    """And a parent that does not come before is none; kernels are not told of either beforehand."""
    target = torch.zeros(8, 3, 6)
    sampler = Sampler(backend="triton")
    state = sampler.start(8, seed=1, device="cpu")
    tokens = torch.tensor([[2**40, 1], [6, 1], [6, 1], [-7, 1], [0, 1], [0, 1], [0, 1], [0, 1]])
    parents = torch.tensor([[-1, 0]] * 4 + [[0, -2], [1, 9], [-5, 1], [3, 3]])
    methods: list[Method] = ["token", "coupled", "block", "distinct", "block", "token", "coupled", "typical"]
    laws = None if certain else target[:, :2]
    found = verify(tokens, laws, target, sampler, state, method=methods, parents=parents)
    assert found.accepted.tolist() == [0] * 8
    assert ((found.tokens[:, 0] >= 0) & (found.tokens[:, 0] < 6)).all()
    assert torch.equal(found.tokens[1:2, 0], sampler(target[1:2, 0], state.rows([1])).tokens)


def test_a_text_goes_on_as_it_would_without_drafts() -> None:
    """On the device alone; what a drafter draws there has the noise that it has on the host."""
    source = torch.Generator().manual_seed(9)
    model = torch.randn(9, 9, generator=source) * 2
    ours, theirs = (Sampler(FrequencyPenalty(0.3), backend=name) for name in ("triton", "reference"))
    here, there = ours.start(2, seed=3, device="cpu"), theirs.start(2, seed=3)
    text = torch.zeros(2, 1, dtype=torch.int64)
    for _ in range(6):
        text = torch.cat([text, theirs(model[text[:, -1]], there).tokens[:, None]], 1)
        there = theirs.advance(there, text[:, -1])
    at = torch.zeros(2, dtype=torch.int64)
    for guess in (2, 0, 1):
        index = (at[:, None] + 1 + torch.arange(guess)).clamp(max=6)
        tokens = text.gather(1, index) if guess else text[:, :0]
        last = torch.cat([text.gather(1, at[:, None]), tokens], 1)
        accepted, found = verify(tokens, None, model[last], ours, here)
        assert accepted.tolist() == [guess] * 2
        assert torch.equal(found, text.gather(1, at[:, None] + 1 + torch.arange(guess + 1)))
        for column in found.T:
            here = ours.advance(here, column)
        at = at + guess + 1
    host = theirs.start(2, seed=3)
    for each in range(2):
        for method in (*METHODS, ["block", "token"]):
            mine, other = (
                drafting(ours.start(2, seed=3, device="cpu"), method, each),
                drafting(host, method, each),
            )
            assert mine.seeds.tolist() == other.seeds.tolist()


def test_a_state_of_the_host_is_uploaded() -> None:
    tokens, laws, target = batch(2, 2, 5, size=SIZE)
    found = []
    for backend in ("triton", "reference"):
        sampler = Sampler(LETTERS, Constrain(GRAMMAR), PresencePenalty(0.4), backend=backend)
        state = sampler.advance(sampler.start(2, seed=5, prompts=[[1], [2, 3]]), [0, 2])
        found.append(verify(tokens, laws, target, sampler, state, method="block"))
    assert same_bits(*found)


@pytest.mark.parametrize("order", ["llama.cpp", ("typical", "top_p", "temperature", "min_p")], ids=str)
def test_laws_without_the_likeliest(order: Any) -> None:
    """`typical` may rule them out, and a temperature come after it: on both sides, by every method."""
    tokens, laws, target = batch(7, 2, 3, size=40)
    rules = Typical([0.2, 0.5, 0.9, 0.3, 0.6, 0.4, 0.7]), Temperature([0.7, 1.4, 1.0, 0.0, 2.0, 0.5, 1e30])
    parts = *rules, TopP(0.9), MinP(0.05)
    drafter = (Typical(0.8), TopK(12), Temperature(1.3))
    found = judged(parts, tokens, laws, target, drafter=drafter, order=order, method=[*METHODS, "greedy"])
    assert found.accepted.any()


def test_a_sampler_of_the_host_does_not_judge_what_is_on_the_device() -> None:
    """Unless the state is on the host, where it verifies instead."""
    tokens, laws, target = batch(1, 1, 6, size=5)
    ours, odd = Sampler(backend="triton"), Sampler(backend="cpu")
    state = ours.start(1, seed=0, device="cpu")
    with pytest.raises(ValueError, match="one of the samplers draws on the host"):
        verify(tokens, laws, target, ours, state, method="token", draft_sampler=odd)
    verify(tokens, laws, target, ours, ours.start(1, seed=0), method="token", draft_sampler=odd)
    with pytest.raises(ValueError, match="looks at what was generated"):
        verify(
            tokens, laws, target, ours, state, method="token",
            draft_sampler=Sampler(PresencePenalty(1.0), backend="triton"),
        )  # fmt: skip


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_whatever_is_asked(seed: int) -> None:
    source = np.random.default_rng(seed)
    rows, nodes = int(source.integers(1, 4)), int(source.integers(0, 4))
    size, drafted_size = (int(source.choice([1, 2, 20, 150])) for _ in range(2))
    tokens = torch.from_numpy(source.integers(-1 if source.random() < 0.3 else 0, size, (rows, nodes)))
    tree = bool(source.integers(2))
    parents = [[int(source.integers(-1, node)) for node in range(nodes)] for _ in range(rows)]
    kind = (torch.float32, torch.bfloat16)[source.integers(2)]
    target = torch.from_numpy(source.normal(size=(rows, nodes + 1, size)) * source.choice([0.0, 1.0, 8.0]))
    drafts = torch.from_numpy(source.normal(size=(rows, nodes, drafted_size)) * 2)
    parts = [
        Temperature([float(source.choice([0.0, 0.3, 1.0, 1.7])) for _ in range(rows)]),
        TopK([int(source.choice([0, 1, 5, 40])) for _ in range(rows)]),
        TopP([float(source.choice([0.3, 0.9, 1.0])) for _ in range(rows)]),
        Typical([float(source.choice([0.4, 1.0])) for _ in range(rows)]),
    ]
    edits = [LogitBias({0: 2.0}), AllowedTokens([0, 1, 2, 5, 8, 13][: max(size // 2, 1)])]
    methods = TREE_METHODS if tree else METHODS
    judged(
        [*parts, *(edits if source.random() < 0.5 else [])],
        tokens,
        None if seed % 3 == 0 else drafts.to(kind),
        target.to(kind),
        order=str(source.choice(["vllm", "llama.cpp"])),
        seed=seed,
        method=[methods[code] for code in source.integers(0, len(methods), rows)],
        parents=torch.tensor(parents).reshape(rows, nodes) if tree else None,
        drafter=parts[:2],
    )
