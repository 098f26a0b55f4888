"""Kernels in Triton's interpreter against their definitions, bit for bit; `test_kernels.py` runs this file.

For a process of its own, where TRITON_INTERPRET is set before Triton is imported.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import machines
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from test_constraint import ENDS, SMALL, counting_tables, small_tables
from test_sampling_backends import (
    DTYPES,
    REALISTIC,
    assert_same,
    floats,
    request_of,
    some_requests,
)
from torch import Tensor

from sortition.grammars.json_schema import json_schema
from sortition.grammars.matcher import Matcher
from sortition.grammars.table import Table
from sortition.grammars.tabulation import build_table
from sortition.grammars.vocabulary import Vocabulary
from sortition.sampling import device, noise, numerics, reference
from sortition.sampling.constraint import Constraint, Position
from sortition.sampling.device_constraint import Batch, Walk
from sortition.sampling.device_state import DeviceState
from sortition.sampling.draw import Draw, Request
from sortition.sampling.kernels import numerics as kernels
from sortition.sampling.parameters import Parameters
from sortition.sampling.rules import (
    AllowedTokens,
    Constrain,
    FrequencyPenalty,
    LogitBias,
    Temperature,
    TopK,
    TopP,
)
from sortition.sampling.sampler import Sampler


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """The interpreter calculates what is masked, too, in numpy, which warns of overflows."""
    with np.errstate(all="ignore"):
        yield


def draw(logits: Tensor, request: Request, **sizes: int) -> Draw:
    """What the kernels alone draw."""
    parameters = device.Settings.of(request.columns, logits.shape[1], logits.device)
    inputs = device.Inputs.of(request, logits.device)
    named = device.needed(parameters, inputs, logits.shape[1])
    room = device.Workspace(*logits.shape, named, logits.device, **sizes)
    found = device.launch(logits, parameters, inputs, room, request.entropy)
    if not request.top:
        return found
    tokens, logprobs = device.Laws.of(logits, parameters, inputs, room).top(request.top)
    return replace(found, processed=replace(found.processed, top_tokens=tokens, top_logprobs=logprobs))


# Numerics.

DISTANCES = np.concatenate([-floats(0.0, np.inf, 5003), -floats(1e-3, 90.0, 997), [0.0, -0.0, -np.inf]])
DISTANCES = DISTANCES.astype(np.float32)
NUMBERS = np.concatenate([floats(1.2e-38, 3e38, 5003), floats(0.5, 2.0, 101)])
ENDS_OF_WORDS = np.concatenate([np.arange(500), 2**30 + np.arange(-250, 250), 2**32 - 1 - np.arange(500)])
WORDS = np.concatenate([ENDS_OF_WORDS, np.arange(0, 2**32, 16411)])
TOTALS = np.concatenate([np.random.default_rng(0).random(3000) * 2.0**53, 2.0 ** np.arange(34, 54)])


@triton.jit
def each(x, y, count, function: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < count, other=1)
    tl.store(y + at, function(values), mask=at < count)


@triton.jit
def gumbel(word):
    return kernels.gumbel(word.to(tl.uint32))


@pytest.mark.parametrize(
    ("function", "values", "definition"),
    [
        (kernels.exp, DISTANCES, numerics.exp),
        (kernels.log, NUMBERS, numerics.log),
        (kernels.mass, DISTANCES, lambda d: numerics.mass(d).astype(np.int64)),
        (kernels.mass_times, DISTANCES, lambda d: numerics.mass_times(d).astype(np.int64)),
        (kernels.log_of, TOTALS, lambda x: np.array([numerics.log_of(one) for one in x.tolist()])),
        (gumbel, WORDS, lambda word: noise.gumbel(word.astype(np.uint32))),
    ],
    ids=["exp", "log", "mass", "mass_times", "log_of", "gumbel"],
)
def test_functions_of_one_number(function: Any, values: Any, definition: Any) -> None:
    expected = definition(values)
    found = torch.from_numpy(np.empty_like(expected))
    size = triton.next_power_of_2(len(values))
    each[(1,)](torch.from_numpy(values), found, len(values), function=function, BLOCK=size)
    kind = np.int32 if expected.dtype.itemsize == 4 else np.int64
    np.testing.assert_array_equal(found.numpy().view(kind), expected.view(kind))


@triton.jit
def words(together, alone, tokens, first, seeds, position, stream, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    seed = tl.load(seeds)
    where, which = tl.load(position).to(tl.uint32), tl.load(stream).to(tl.uint32)
    tl.store(together + at, kernels.words_from(first, seed, where, which, COUNT).to(tl.int64))
    tl.store(alone + at, kernels.words_of(tl.load(tokens + at), seed, where, which).to(tl.int64))


@pytest.mark.parametrize("seed", [0, 42, -1, 2**63 - 1, -(2**63), 0x123456789ABCDEF0])
@pytest.mark.parametrize("position", [0, 2**32 - 3])
def test_words(seed: int, position: int) -> None:
    together, alone = torch.empty(256, dtype=torch.int64), torch.empty(256, dtype=torch.int64)
    tokens = torch.randint(0, 2**19, (256,), dtype=torch.int32)
    scalars = [torch.tensor([value]) for value in (seed, position, noise.DRAFT)]
    words[(1,)](together, alone, tokens, 2**18 - 4, *scalars, COUNT=256)
    expected = [
        noise.words(seed, position, noise.DRAFT, ids)
        for ids in (np.arange(2**18 - 4, 2**18 + 252), tokens.numpy().astype(np.int64))
    ]
    np.testing.assert_array_equal(together.numpy(), expected[0])
    np.testing.assert_array_equal(alone.numpy(), expected[1])


# Draws.


@settings(max_examples=40, deadline=None)
@given(some_requests(), st.sampled_from([(128, 128), (256, 128), (512, 256)]), st.sampled_from((1, 8, 8192)))
def test_all_that_can_be_asked(asked: tuple[Tensor, Request], sizes: tuple[int, int], room: int) -> None:
    logits, request = asked
    request = replace(request, raw=False)
    found = draw(logits, request, tile=sizes[0], step=sizes[1], room=room)
    assert_same(found, reference.draw_rows(logits, request))


@pytest.mark.parametrize(("dtype", "width"), [*zip(DTYPES, (700, 4096, 1301), strict=True)], ids=str)
def test_realistic_rows(dtype: torch.dtype, width: int) -> None:
    # Allowed tokens are of a vocabulary of 50,000.
    narrow = {"few": {"allowed_tokens": tuple(range(3, width, 99)), "top_p": 0.5}}
    request = request_of(
        [Parameters(**one) for one in {**REALISTIC, **narrow}.values()], entropy=True, top=20
    )
    random = torch.Generator().manual_seed(width)
    scale = torch.linspace(0.5, 4.0, len(REALISTIC))[:, None]
    logits = (torch.randn(len(REALISTIC), width, generator=random) * scale).to(dtype)
    assert_same(draw(logits, request, tile=2048, step=2048), reference.draw_rows(logits, request))


TURNING = [
    {"typical": 0.5},
    {"typical": 0.9, "temperature": 0.6, "top_p": 0.8, "epsilon": 0.01},
    {"typical": 0.3, "temperature": 0.0, "order": "llama.cpp"},
    {"typical": 0.95, "top_k": 40, "min_p": 0.02, "temperature": 1.7, "order": "llama.cpp"},
    {"typical": 0.6, "eta": 0.02, "top_p": 0.9, "order": "sglang", "temperature": 0.9},
    {"typical": 0.4, "order": ("typical", "temperature", "top_n_sigma", "top_p"), "top_n_sigma": 1.0},
    {
        "typical": 0.7,
        "order": ("top_p", "temperature", "typical", "min_p"),
        "temperature": 3.0,
        "top_p": 0.95,
    },
    {"typical": 0.5, "order": ("eta", "typical", "top_k", "temperature", "epsilon"), "top_k": 9, "eta": 0.01},
    {"order": ("top_k", "temperature", "top_p"), "top_k": 30, "top_p": 0.7, "temperature": 1e30},
    {"order": ("min_p", "temperature", "eta"), "min_p": 0.001, "eta": 0.05, "temperature": 0.5},
    {"top_k": 20, "top_p": 0.9},
    {},
]
"""Rows whose d changes between filters, in every order; and two whose d does not."""


@pytest.mark.parametrize(
    ("dtype", "ties", "room"),
    [*zip(DTYPES, ("exact", "keep", "exact"), (8192, 8192, 8), strict=True)],
    ids=str,
)
def test_filters_between_which_d_changes(dtype: torch.dtype, ties: Any, room: int) -> None:
    """Of logits with long tails, with many that are equal, and with few above -inf, in one batch."""
    parameters = [Parameters(**one, ties=ties, min_keep=1 + 2 * (ties == "keep")) for one in TURNING]
    rows, width = len(parameters), 401
    random = torch.Generator().manual_seed(room)
    logits = torch.randn(rows, width, generator=random) * torch.linspace(1.0, 4.0, rows)[:, None]
    kind = (torch.arange(rows) + DTYPES.index(dtype)) % 3
    equal = (logits * 4).round() / 4
    few = logits.masked_fill(torch.rand(rows, width, generator=random) > 0.04, -torch.inf)
    logits = torch.where((kind == 1)[:, None], equal, torch.where((kind == 2)[:, None], few, logits))
    request = request_of(parameters, entropy=True, top=7)
    strided = torch.empty(width, rows, dtype=dtype).t().copy_(logits)
    found = draw(strided, request, tile=512, step=256, room=room)
    assert_same(found, reference.draw_rows(strided, request))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides(dtype: torch.dtype) -> None:
    request = request_of([Parameters(top_k=40, top_p=0.9, logit_bias={7: 3.0}), Parameters()])
    logits = torch.randn(2, 700).to(dtype)
    expected = reference.draw_rows(logits, request)
    strided = torch.empty(700, 2, dtype=dtype).t().copy_(logits)
    padded = torch.full((2, 705), torch.nan, dtype=dtype)
    padded[:, 2:-3] = logits
    for layout in (strided, padded[:, 2:-3]):
        before = layout.clone()
        assert_same(draw(layout, request, tile=256, step=256), expected)
        assert torch.equal(layout, before)
    one = logits[:1].expand(2, -1)
    assert_same(draw(one, request), reference.draw_rows(one, request))


HISTORIES = [
    {"repetition_penalty": 1.7, "frequency_penalty": 0.3, "presence_penalty": -0.2},
    {
        "repetition_penalty": 0.6,
        "frequency_penalty": 0.3,
        "order": "hf",
        "bad_words": ((3,), (1, 2), (5, 3, 4)),
    },
    {"presence_penalty": 1.1, "order": "llama.cpp", "bad_words": ((3, 4), (2,))},
    {"frequency_penalty": 2.0, "penalty_window": 250, "order": "hf", "min_tokens": 2**31},
    {"frequency_penalty": 3e38, "order": "sglang", "logit_bias": {2: -np.inf, 3: 50.0}},
    {"repetition_penalty": 2.0, "frequency_penalty": 0.1, "penalty_window": 3, "min_tokens": 9},
    {
        "temperature": 0.7,
        "frequency_penalty": 0.3,
        "logit_bias": {2: 3.0, 200: 1.0},
        "order": ("frequency_penalty", "temperature", "logit_bias", "top_k", "top_p"),
        "top_k": 50,
        "top_p": 0.9,
    },
    {"temperature": 1e-3, "bad_words": ((3,),), "order": ("temperature", "bad_words", "min_p")},
    {"temperature": 0.0, "logit_bias": {2: 3.0}, "order": ("temperature", "logit_bias", "top_k")},
]


@pytest.mark.parametrize(("seed", "generated"), [(0, 280), (1, 6), (2, 1)])
def test_histories(seed: int, generated: int) -> None:
    """Long ones of few tokens, so that phrases are completed; with padding, and ids beyond the logits."""
    request = request_of([Parameters(**one) for one in HISTORIES], seed=seed, length=300, top=3)
    random = np.random.default_rng(seed)
    request = replace(
        request,
        prompt=random.integers(-3, 400, (len(HISTORIES), 300)),
        output=random.integers(-1, 6, (len(HISTORIES), generated)),
        grammar=random.random((len(HISTORIES), 320)) < 0.7,
    )
    logits = torch.randn(len(HISTORIES), 320, generator=torch.Generator().manual_seed(seed)) * 2
    found = draw(logits, request, tile=128, step=128, room=16)
    assert_same(found, reference.draw_rows(logits, request))


@pytest.mark.parametrize("parameters", [{}, {"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.1}], ids=str)
def test_zeros_have_no_sign(parameters: dict[str, Any]) -> None:
    logits = torch.tensor([[-9.0, -0.0, 0.0, -0.0], [0.0, -0.0, -9.0, -9.0], [-0.0, -9.0, -9.0, -9.0]])
    request = request_of([Parameters(**parameters)] * 3)
    assert_same(draw(logits, request, tile=128, step=128), reference.draw_rows(logits, request))


def test_a_workspace_may_be_used_again() -> None:
    requests = [
        request_of([Parameters(top_p=0.9, logit_bias={token: 9.0})], seed=token) for token in range(4)
    ]
    logits = torch.randn(1, 300)
    room = device.Workspace(1, 300, 8, logits.device)
    for request in requests:
        parameters = device.Settings.of(request.columns, 300, logits.device)
        found = device.launch(logits, parameters, device.Inputs.of(request, logits.device), room)
        assert_same(found, reference.draw_rows(logits, request))


# Samplers.


def samplers(*parts: Any, **options: Any) -> tuple[Sampler, Sampler]:
    """One that draws by kernels, and one that draws by the definition."""
    return Sampler(*parts, **options, backend="triton"), Sampler(*parts, **options, backend="reference")


@pytest.mark.parametrize("counts", [False, True])
def test_a_sampler_on_the_device_is_the_one_on_the_host(counts: bool) -> None:
    tables = [*counting_tables(0), counting_tables(0)[1]] if counts else small_tables(3, 3)
    rules = (Temperature([0.7, 1.5, 1.0, 0.0]), TopP(0.9), FrequencyPenalty(0.4), LogitBias({2: 1.0}))
    ours, theirs = samplers(
        Constrain([*tables, None]), *rules, end_tokens=ENDS, entropy=True, on_empty=ENDS[0]
    )
    prompts = [[1, 2], [], [3], [5, 5, -1, 6]]
    here = ours.start(4, seed=5, prompts=prompts, device="cpu")
    there = theirs.start(4, seed=5, prompts=prompts)
    assert isinstance(here, DeviceState)
    random = torch.Generator().manual_seed(0)
    for step in range(4):
        logits = torch.randn(4, SMALL.size + 2, generator=random)
        drawn, expected = ours(logits, here), theirs(logits, there)
        assert_same(drawn, expected)
        if step == 2:
            # A second state that goes on from the same one does not disturb the first.
            ours.advance(here, torch.tensor([4, 4, 4, 4]))
            here, there = here.rows([2, 1, 1, 3]), there.rows([2, 1, 1, 3])
            continue
        tokens = (
            expected.tokens if step % 2 else expected.tokens.clone().index_fill_(0, torch.tensor([1]), -1)
        )
        here, there = ours.advance(here, tokens), theirs.advance(there, tokens)
        assert here.positions.tolist() == there.positions.tolist()


@pytest.mark.parametrize(
    "policies",
    [
        {"on_empty": "mend", "on_nan": "mend", "on_infinite": "mend"},
        {"on_empty": 3, "on_nan": "mend", "on_infinite": "flag"},
        {
            **{"on_empty": "mend", "on_nan": "mend", "on_infinite": "mend"},
            "order": ("temperature", "logit_bias", "top_p"),
        },
    ],
    ids=str,
)
def test_flagged_rows_are_settled_on_the_device(policies: dict[str, Any]) -> None:
    nan, infinite, out = torch.nan, torch.inf, -torch.inf
    logits = torch.tensor(
        [
            [nan, 1.0, 2.0, nan, 0.0, 0.5],
            [nan, infinite, 2.0, infinite, 0.0, 1.0],
            [nan] * 6,
            [out] * 6,
            [0.0, 1.0, 2.0, out, 3.0, 0.0],
            [infinite, out, nan, out, out, infinite],
            [1.0, 2.0, 3.0, infinite, nan, 0.0],
            [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
        ]
    )
    rows = len(logits)
    allowed = AllowedTokens([[0, 1, 3, 5], [1, 3], None, [1, 2], [3], [2, 3], None, None])
    ours, theirs = samplers(
        allowed,
        TopP(0.8),
        LogitBias({1: 0.5}),
        Temperature([1.0, 0.5, 2.0, 3.0, 1.0, 0.5, 1.0, 0.0]),
        **policies,
    )
    # A state of the host is drawn from as well.
    state = theirs.start(rows, seed=1)
    assert_same(ours(logits, state), theirs(logits, state))


@pytest.mark.parametrize("policy", ["mend", "flag", 2])
@pytest.mark.parametrize("order", ["vllm", "llama.cpp"])
def test_reports_of_the_device_are_those_of_the_host(policy: Any, order: str) -> None:
    """The likeliest tokens under both laws, with ties, fewer than are asked for, and in rows that are odd."""
    nan, infinite, out = torch.nan, torch.inf, -torch.inf
    logits = torch.tensor(
        [
            [3.0, 1.0, 2.0, 2.0, 0.0, 2.0, 3.0, -60.0],
            [3.0, 2.0000002, 2.0, 1.9999999, 0.0, out, out, -1.0],
            [nan, 1.0, 2.0, nan, 0.0, 0.5, out, 1.0],
            [1.0, infinite, 2.0, infinite, 0.0, 1.0, 1.0, 1.0],
            [out] * 8,
            [0.5, out, 1.0, out, out, out, 1.0, out],
        ]
    )
    rows = len(logits)
    ours, theirs = samplers(
        AllowedTokens([None, None, None, None, [1, 2], [1, 3]]),
        FrequencyPenalty(0.5),
        LogitBias({1: 0.5, 7: 2.0}),
        Temperature([1.7, 3e6, 1.0, 0.8, 1.0, 0.0]),
        TopK([0, 4, 0, 3, 2, 0]),
        order=order,
        **{"top": 5, "raw": True, "entropy": True},
        **{"on_empty": policy, "on_nan": policy, "on_infinite": policy},
    )
    prompts = [[1, 2, 3]] * rows
    here, there = ours.start(rows, seed=3, prompts=prompts, device="cpu"), theirs.start(rows, 3, prompts)
    for _ in range(2):
        drawn, expected = ours(logits, here), theirs(logits, there)
        assert_same(drawn, expected)
        here, there = ours.advance(here, expected.tokens), theirs.advance(there, expected.tokens)
    # More than there are.
    ours, theirs = samplers(top=9, raw=True)
    assert_same(
        ours(logits, ours.start(rows, seed=3, device="cpu")), theirs(logits, theirs.start(rows, seed=3))
    )


def test_a_policy_that_raises_waits() -> None:
    ours, _ = samplers(on_nan="raise")
    state = ours.start(2, seed=1, device="cpu")
    ours(torch.zeros(2, 5), state)
    with pytest.raises(ValueError, match=r"rows \[1\]: the logit of a token that may be drawn is NaN"):
        ours(torch.tensor([[0.0] * 5, [torch.nan] * 5]), state)


# Grammars.


class Texts:
    """Slots that read random tokens and random drafts, and a constraint that says where they should be."""

    def __init__(self, tables: list[Table], seed: int, slots: int, beyond: int) -> None:
        self.random = random.Random(seed)
        self.ours, self.mirror = (Constraint(tables, slots=slots, end_tokens=ENDS) for _ in range(2))
        grammars = torch.tensor([self.random.randrange(-1, len(tables)) for _ in range(slots)])
        for constraint in (self.ours, self.mirror):
            constraint.assign(torch.arange(slots), grammars)
        self.size = self.ours.arena.vocabulary_size
        self.walk = Walk(self.ours, self.size + beyond)
        self.tokens = torch.full((slots, 100), -1, dtype=torch.int32)
        self.totals = torch.zeros(slots, dtype=torch.int32)
        self.end_tokens = torch.tensor([ENDS * 2] * slots)

    def token(self, position: Position) -> int:
        """Most are allowed, and end tokens come last, so that texts grow long and nest."""
        if self.random.random() < 0.08:
            return self.random.randrange(-1, self.size + 2)
        allowed = torch.nonzero(self.mirror.allowed(position)[0]).flatten().tolist()
        going = [token for token in allowed if token not in ENDS] or allowed or [-1]
        return self.random.choice(going)

    def read(self, slot: int, token: int) -> None:
        """Commit a token."""
        self.tokens[slot, self.totals[slot]] = token
        self.totals[slot] += 1
        self.mirror.advance(torch.tensor([slot]), torch.tensor([token]))

    def step(self, reads: int = 2) -> tuple[Batch, Position]:
        """Some of the slots: what they read, up to so many tokens, and where their rows should be."""
        slots = self.random.sample(range(len(self.totals)), self.random.randint(1, len(self.totals)))
        rows, local, drafts, positions = [], [], [], []
        for slot in slots:
            index = torch.tensor([slot])
            for _ in range(self.random.randint(0, reads)):
                self.read(slot, self.token(self.mirror.slots.rows(index)))
            position = self.mirror.slots.rows(index)
            for draft in range(self.random.randint(1, 4)):
                drafts.append(self.token(position) if draft else -1)
                position = self.mirror.step(position, torch.tensor(drafts[-1:]))
                positions.append(position)
                rows.append(slot)
                local.append(draft)
        batch = Batch(
            slots=torch.tensor(rows),
            local=torch.tensor(local, dtype=torch.int32),
            tokens=self.tokens,
            totals=self.totals,
            drafts=torch.tensor(drafts, dtype=torch.int32),
            end_tokens=self.end_tokens,
        )
        return batch, Position(*(torch.cat(parts) for parts in zip(*positions, strict=True)))


def assert_positions(found: Position, expected: Position) -> None:
    """The same, but for what lies above the stacks and their counts."""
    for name in ("grammar", "state", "depth", "finished"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    inside = torch.arange(expected.counts.shape[1]) <= expected.depth[:, None]
    assert torch.equal(found.counts[inside], expected.counts[inside])
    assert torch.equal(found.stack[inside[:, 1:]], expected.stack[inside[:, 1:]])


def unpacked(bits: Tensor, width: int) -> Tensor:
    flags = np.unpackbits(bits.numpy().view(np.uint8), axis=1, bitorder="little")
    return torch.from_numpy(flags[:, :width].astype(np.bool_))


@pytest.mark.parametrize(
    ("seed", "beyond", "counts"),
    [(0, 0, False), (1, 37, False), (2, -1, False), (0, 0, True), (3, 5, True), (4, 0, True)],
)
def test_grammars(seed: int, beyond: int, counts: bool) -> None:
    tables = counting_tables(seed) if counts else small_tables(seed, 4)
    texts = Texts(tables, seed, slots=5, beyond=beyond)
    assert bool(texts.ours.arena.counts) == counts
    width = texts.size + beyond
    for turn in range(6):
        batch, expected = texts.step()
        rows = texts.walk.advance(batch)
        assert_positions(rows.position, expected)
        assert_positions(texts.ours.slots, texts.mirror.slots)
        assert int(texts.ours.refused) == int(texts.mirror.refused)
        assert torch.equal(texts.walk.read[batch.slots], texts.totals.long()[batch.slots])
        allowed = texts.mirror.allowed(expected, width)
        assert torch.equal(unpacked(texts.walk.mask(rows), width), allowed)
        logits = torch.randn(len(allowed), width).to(DTYPES[turn % 3])
        logits[torch.rand(logits.shape) < (0.0, 0.9, 1.0)[turn % 3]] = -torch.inf
        logits[turn % 2 : turn % 2 + 1, 3] = torch.nan
        masked = texts.mirror.apply(logits, expected)
        texts.walk.apply(logits, rows)
        torch.testing.assert_close(logits, masked, rtol=0, atol=0, equal_nan=True)


def test_depth_limit() -> None:
    """A text that opens whatever it can, up to where the limit rules tokens out; many tokens to a launch."""
    table = build_table(machines.brackets_machine(), SMALL)
    texts = Texts([table], seed=0, slots=1, beyond=0)
    texts.mirror.assign(torch.tensor([0]), torch.tensor([0]))
    texts.ours.assign(torch.tensor([0]), torch.tensor([0]))
    for _ in range(3):
        for _ in range(8):
            position = texts.mirror.slots
            going = torch.nonzero(texts.mirror.allowed(position)[0])[:, 0]
            after = texts.mirror.step(position.rows(torch.zeros_like(going)), going)
            texts.read(0, int(going[after.depth.argmax()]))
        batch, expected = texts.step()
        rows = texts.walk.advance(batch)
        assert_positions(rows.position, expected)
        allowed = texts.mirror.allowed(expected)
        assert torch.equal(unpacked(texts.walk.mask(rows), texts.size), allowed)
    assert int(texts.ours.slots.depth) + 4 >= table.depth_limit


TEXT = {"type": "string", "minLength": 34, "maxLength": 37}
GAP = [{"type": "string", "maxLength": 40}, {"type": "string", "minLength": 45, "maxLength": 48}]


@pytest.mark.parametrize(
    ("schema", "parts", "bounds"),
    [
        (
            {"properties": {"a": TEXT, "b": TEXT}, "required": ["a", "b"], "additionalProperties": False},
            [
                *(b'{"a":"' + b"a" * 32, *[b"a"] * 5, b'","b":"' + b"a" * 33),
                *(b"a", b'"', b"}"),
            ],
            [*[(1, 0)] * 2, *[(1, 1)] * 3, (0, 1), (1, 0), (1, 1), (0, 0), (0, 0)],
        ),
        # From 40 to 41, and from 44 to 45, a guard fails and something else is said in its place.
        (
            {"anyOf": GAP},
            [b'"' + b"a" * 39, *[b"a"] * 9, b'"'],
            [*[(1, 1)] * 2, *[(1, 0)] * 4, *[(1, 1)] * 3, (0, 1), (0, 0)],
        ),
    ],
    ids=["two", "gap"],
)
@pytest.mark.parametrize("longest", [1, 4])
def test_lengths_of_strings(
    schema: dict[str, Any], parts: list[bytes], bounds: list[tuple[int, int]], longest: int
) -> None:
    """Strings up to their bounds, where tokens of several characters just fit or do not."""
    others = [bytes([byte]) for byte in range(256) if bytes([byte]) not in SMALL.tokens]
    longer = (b"aaaa", b'a"', b'",', b'aa"}', b"\\u00")
    vocabulary = Vocabulary.of([*SMALL.tokens, *others, *longer], end_tokens=[])
    table = json_schema(schema).compile(vocabulary)
    assert len(table.guards) > 1
    texts, matcher = Texts([table], seed=0, slots=1, beyond=0), Matcher(table, ENDS)
    for constraint in (texts.ours, texts.mirror):
        constraint.assign(torch.tensor([0]), torch.tensor([0]))
    a, quote = vocabulary.tokens.index(b"a"), vocabulary.tokens.index(b'"')
    found = []
    for part in parts:
        # The longest tokens first, or one byte after the other.
        pieces = re.findall(rb"(?s)aaaa|aa|." if longest > 1 else rb"(?s).", part)
        for piece in pieces:
            token = vocabulary.tokens.index(piece)
            assert matcher.advance(token)
            texts.read(0, token)
        # The drafts of the step go on at random.
        batch, expected = texts.step(reads=0)
        rows = texts.walk.advance(batch)
        assert_positions(rows.position, expected)
        assert_positions(texts.ours.slots, texts.mirror.slots)
        allowed = unpacked(texts.walk.mask(rows), texts.size)
        assert torch.equal(allowed, texts.mirror.allowed(expected))
        known = np.unpackbits(matcher.allowed().view(np.uint8), bitorder="little")[: texts.size]
        assert allowed[0].tolist() == known.astype(np.bool_).tolist()
        found.append((int(allowed[0, a]), int(allowed[0, quote])))
    assert found == bounds
    assert int(texts.ours.refused) == 0
