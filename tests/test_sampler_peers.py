"""The presets against the engines of those names: transformers' own processors, vLLM's own sampler.

Logits are random, and engines round; so a row counts only if none of its filters has a boundary nearer than
`NEAR` to a token: to a sum of masses, or to the ratio of a token's probability to the threshold. How far
boundaries are is measured in float64, from the definitions in the papers. Rows that are left out are counted.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from laws import laws
from numpy.typing import NDArray
from torch import Tensor
from vllm_reports import environment, needs_vllm

from sortition.sampling.parameters import ORDERS
from sortition.sampling.rules import (
    AllowedTokens,
    BadWords,
    Epsilon,
    Eta,
    FrequencyPenalty,
    LogitBias,
    MinP,
    MinTokens,
    PresencePenalty,
    RepetitionPenalty,
    Rule,
    Temperature,
    TopK,
    TopP,
    Typical,
)
from sortition.sampling.sampler import BACKENDS, Sampler

pytestmark = pytest.mark.usefixtures("compiled")

needs_vllm()

NEAR: Final = 1e-6
"""How near to a boundary engines may disagree."""

FEW: Final = 0.02
"""The share of rows that may be left out."""

SIZE: Final = 400
END_TOKENS: Final = [7, 9]


@dataclass
class Request:
    """What a row asks for; all rules that both engines have."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical: float = 1.0
    epsilon: float = 0.0
    eta: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    allowed_tokens: list[int] | None = None
    bad_words: list[list[int]] | None = None
    min_tokens: int = 0
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    end_tokens: list[int] = field(default_factory=lambda: list(END_TOKENS))


RULES: Final[dict[str, type[Rule]]] = {
    rule.parameter: rule
    for rule in (
        *(Temperature, TopK, TopP, MinP, Typical, Epsilon, Eta, AllowedTokens, BadWords, MinTokens),
        *(RepetitionPenalty, PresencePenalty, FrequencyPenalty, LogitBias),
    )
}


def some(draw: np.random.Generator, *values: Any) -> Any:
    """One of the values, the first of them half of the time."""
    return values[0] if draw.random() < 0.5 else values[draw.integers(1, len(values))]


def random_request(draw: np.random.Generator) -> Request:
    """Parameters as users choose them, and a history of few different tokens, so that phrases occur."""

    def tokens(count: int) -> list[int]:
        return [int(token) for token in draw.integers(0, 12, count)]

    output = tokens(int(draw.integers(2, 9)))
    return Request(
        temperature=float(some(draw, 1.0, 0.3, 0.7, 1.5)),
        top_k=int(some(draw, 0, 1, 5, 50, 300)),
        top_p=float(some(draw, 1.0, 0.3, 0.9, 0.97)),
        min_p=float(some(draw, 0.0, 0.02, 0.2)),
        repetition_penalty=float(some(draw, 1.0, 1.3, 0.8)),
        logit_bias=some(draw, {}, {int(draw.integers(SIZE)): float(draw.normal() * 3) for _ in range(4)}),
        allowed_tokens=some(draw, None, sorted({*map(int, draw.integers(0, SIZE, 200)), 3})),
        bad_words=some(draw, None, [[output[-1], 5], [output[-2], output[-1], 6], tokens(2), [8], [3, 4, 3]]),
        min_tokens=int(some(draw, 0, 2, 100)),
        prompt=tokens(int(draw.integers(1, 6))),
        output=output,
    )


def logits_for(draw: np.random.Generator, rows: int) -> Tensor:
    return torch.from_numpy(draw.normal(size=(rows, SIZE)).astype(np.float32) * 2.5)


def ours(backend: str, logits: Tensor, requests: list[Request], order: str) -> list[dict[int, float]]:
    """The laws of rows with parameters of their own."""
    rules = [rule([getattr(each, name) for each in requests]) for name, rule in RULES.items()]
    sampler = Sampler(*rules, order=order, end_tokens=END_TOKENS)
    state = sampler.start(len(requests), seed=0, prompts=[each.prompt for each in requests])
    for step in range(max(len(each.output) for each in requests)):
        state = sampler.advance(
            state, [each.output[step] if step < len(each.output) else -1 for each in requests]
        )
    return laws(backend, logits, *rules, state=state, order=order, end_tokens=END_TOKENS)


# How near a row comes to a boundary, in float64.


def nearest_boundary(edited: Tensor, request: Request, order: str) -> float:
    """The least distance of any filter's boundary to a token, and of equal ranks to each other."""
    d = edited.double().numpy()
    alive = np.flatnonzero(d > -np.inf)
    d = d[alive]
    near = np.inf
    for stage in ORDERS[order].stages:
        if stage == "temperature":
            d = d / request.temperature
        elif stage in FILTERS and getattr(request, stage) != getattr(Request(), stage):
            keep, distance = FILTERS[stage](d, getattr(request, stage))
            d, near = d[keep], min(near, distance)
    return float(near)


Floats = NDArray[np.float64]
Cut = tuple[NDArray[np.bool_], float]


def chances(d: Floats) -> Floats:
    p = np.exp(d - d.max())
    return np.asarray(p / p.sum())


def first(keys: Floats, count: int) -> Cut:
    """The greatest keys, and how far the last of them is from the next."""
    order = np.argsort(-keys)
    keep = np.zeros(len(keys), np.bool_)
    keep[order[:count]] = True
    return keep, np.inf if count >= len(keys) else float(keys[order[count - 1]] - keys[order[count]])


def top_k(d: Floats, count: int) -> Cut:
    return first(d, count)


def share(d: Floats, keys: Floats, part: float) -> Cut:
    sums = np.cumsum(chances(d)[np.argsort(-keys)])
    keep, gap = first(keys, int((sums < part).sum()) + 1)
    return keep, min(gap, float(np.abs(sums - part).min()))


def top_p(d: Floats, part: float) -> Cut:
    return share(d, d, part)


def typical(d: Floats, part: float) -> Cut:
    p = chances(d)
    entropy = -(p * np.log(p)).sum()
    return share(d, -np.abs(-np.log(p) - entropy), part)


def threshold(d: Floats, least: float) -> Cut:
    ratio = np.log(chances(d)) - np.log(least)
    return (ratio >= 0) | (d == d.max()), float(np.abs(ratio).min())


def min_p(d: Floats, part: float) -> Cut:
    return threshold(d, part * chances(d).max())


def eta(d: Floats, least: float) -> Cut:
    p = chances(d)
    entropy = -(p * np.log(p)).sum()
    return threshold(d, min(least, np.sqrt(least) * np.exp(-entropy)))


FILTERS: Final = {
    "top_k": top_k,
    "top_p": top_p,
    "min_p": min_p,
    "typical": typical,
    "epsilon": threshold,
    "eta": eta,
}


def compare(found: list[dict[int, float]], peers: Tensor, near: list[float]) -> None:
    """Laws against a peer's log-probabilities: the same tokens, as likely to a part in 10^5."""
    far = [row for row in range(len(found)) if near[row] > NEAR]
    assert len(far) >= (1 - FEW) * len(found), "more rows are near a boundary than chance would have"
    for row in far:
        expected = torch.nonzero(peers[row] > -torch.inf)[:, 0].tolist()
        assert list(found[row]) == expected, f"row {row}"
        likely = peers[row, expected].double().log_softmax(-1).exp()
        ratio = torch.tensor(list(found[row].values()), dtype=torch.float64) / likely
        assert float((ratio - 1).abs().max()) < 1e-5, f"row {row}"


# transformers


def transformers_edited(logits: Tensor, request: Request) -> tuple[Tensor, Tensor]:
    """Ids so far, and one row's logits after the processors that come before the warpers."""
    from transformers.generation.logits_process import (
        LogitsProcessorList,
        MinNewTokensLengthLogitsProcessor,
        NoBadWordsLogitsProcessor,
        PrefixConstrainedLogitsProcessor,
        RepetitionPenaltyLogitsProcessor,
        SequenceBiasLogitsProcessor,
    )

    ids = torch.tensor([[*request.prompt, *request.output]])
    processors = LogitsProcessorList()
    if request.logit_bias:
        processors.append(
            SequenceBiasLogitsProcessor({(key,): each for key, each in request.logit_bias.items()})
        )
    if request.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(request.repetition_penalty))
    if request.bad_words:
        processors.append(NoBadWordsLogitsProcessor(request.bad_words, torch.tensor(END_TOKENS)))
    if request.min_tokens:
        processors.append(
            MinNewTokensLengthLogitsProcessor(len(request.prompt), request.min_tokens, END_TOKENS)
        )
    if request.allowed_tokens is not None:
        allowed = request.allowed_tokens
        processors.append(PrefixConstrainedLogitsProcessor(lambda batch, so_far: allowed, 1))
    return ids, processors(ids, logits.clone())


def transformers_law(ids: Tensor, edited: Tensor, request: Request, least: int = 1) -> Tensor:
    """After the warpers, in the order of `_get_logits_processor`."""
    from transformers.generation import logits_process as own

    warpers = own.LogitsProcessorList()
    if request.temperature != 1.0:
        warpers.append(own.TemperatureLogitsWarper(request.temperature))
    if request.top_k:
        warpers.append(own.TopKLogitsWarper(request.top_k, min_tokens_to_keep=least))
    if request.top_p < 1.0:
        warpers.append(own.TopPLogitsWarper(request.top_p, min_tokens_to_keep=least))
    if request.min_p:
        warpers.append(own.MinPLogitsWarper(request.min_p, min_tokens_to_keep=least))
    if request.typical < 1.0:
        warpers.append(own.TypicalLogitsWarper(request.typical, min_tokens_to_keep=least))
    if request.epsilon:
        warpers.append(own.EpsilonLogitsWarper(request.epsilon, min_tokens_to_keep=least))
    if request.eta:
        warpers.append(own.EtaLogitsWarper(request.eta, min_tokens_to_keep=least))
    return warpers(ids, edited)


def entropic(draw: np.random.Generator) -> Request:
    """With the filters that vLLM has not."""
    request = random_request(draw)
    request.typical = float(some(draw, 1.0, 0.2, 0.9))
    request.epsilon = float(some(draw, 0.0, 0.003, 0.02))
    request.eta = float(some(draw, 0.0, 0.002, 0.01))
    return request


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_transformers(backend: str) -> None:
    draw = np.random.default_rng(5)
    requests = [entropic(draw) for _ in range(600)]
    logits = logits_for(draw, len(requests))
    peers, near = [], []
    for row, request in enumerate(requests):
        ids, edited = transformers_edited(logits[row : row + 1], request)
        peers.append(transformers_law(ids, edited, request)[0])
        near.append(nearest_boundary(edited[0], request, "hf"))
    compare(ours(backend, logits, requests, "hf"), torch.stack(peers), near)


TIED: Final = [
    *(Request(top_k=count) for count in (1, 3, 10, 100)),
    *(Request(min_p=part) for part in (0.03, 0.3, 1.0)),
    *(Request(typical=part) for part in (0.15, 0.55, 0.95)),
    *(Request(epsilon=least) for least in (0.003, 0.011)),
    *(Request(eta=least) for least in (0.0021, 0.013)),
]
"""Filters of transformers that keep what equals the last that they keep."""


@pytest.mark.parametrize("backend", sorted(BACKENDS))
@pytest.mark.parametrize("least", [1, 6])
def test_transformers_keep_ties(backend: str, least: int) -> None:
    logits = torch.from_numpy(np.random.default_rng(8).integers(-3, 4, (20, 60)).astype(np.float32))
    for request in TIED:
        if request.min_p and least > 1:
            # There, transformers keep exactly so many of them, whichever their sort puts first.
            continue
        rules = [rule(getattr(request, name)) for name, rule in RULES.items()]
        found = laws(backend, logits, *rules, order="hf", ties="keep", min_keep=least, end_tokens=[0])
        peers = transformers_law(torch.zeros(20, 0, dtype=torch.int64), logits, request, least)
        compare(found, peers, [np.inf] * len(found))


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_transformers_keep_at_least(backend: str) -> None:
    logits = torch.from_numpy(np.random.default_rng(9).normal(size=(20, 60)).astype(np.float32) * 4)
    for request in (
        Request(top_p=0.1),
        Request(min_p=0.9),
        Request(typical=0.1),
        Request(eta=0.5),
        *TIED[:4],
    ):
        rules = [rule(getattr(request, name)) for name, rule in RULES.items()]
        found = laws(backend, logits, *rules, order="hf", min_keep=4, end_tokens=[0])
        peers = transformers_law(torch.zeros(20, 0, dtype=torch.int64), logits, request, 4)
        compare(found, peers, [nearest_boundary(row, request, "hf") for row in logits])


# vLLM


def penalised(draw: np.random.Generator) -> Request:
    """With the penalties that transformers have not."""
    request = random_request(draw)
    request.presence_penalty = float(some(draw, 0.0, 0.7, -1.1))
    request.frequency_penalty = float(some(draw, 0.0, 0.4, 1.9))
    request.temperature = float(some(draw, request.temperature, request.temperature, 0.0))
    return request


@dataclass(frozen=True)
class Asked:
    """Rows, and what vLLM made of them."""

    logits: Tensor
    requests: list[Request]
    answers: dict[str, Tensor]


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """vLLM's answers, from a process of its own: it does not start where numba has been loaded."""
    draw = np.random.default_rng(7)
    requests = [penalised(draw) for _ in range(600)]
    logits = logits_for(draw, len(requests))
    folder = tmp_path_factory.mktemp("vllm")
    torch.save({"logits": logits, "rows": [vars(each) for each in requests]}, folder / "requests.pt")
    program = Path(__file__).parent / "vllm_sampler.py"
    command = [sys.executable, str(program), str(folder / "requests.pt"), str(folder / "answers.pt")]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return Asked(logits, requests, torch.load(folder / "answers.pt"))


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_vllm(backend: str, vllm: Asked) -> None:
    found = ours(backend, vllm.logits, vllm.requests, "vllm")
    greedy = [request.temperature == 0 for request in vllm.requests]
    assert 50 < sum(greedy) < 300
    for row in np.flatnonzero(greedy):
        assert found[row] == {int(vllm.answers["tokens"][row]): 1.0}
    drawn = [row for row in range(len(greedy)) if not greedy[row]]
    near = [nearest_boundary(vllm.answers["edited"][row], vllm.requests[row], "vllm") for row in drawn]
    compare([found[row] for row in drawn], vllm.answers["logprobs"][drawn], near)
