"""Verification of drafts through its public face: cases of engines, laws of what comes out, on every backend.

The rules are proved in `test_verify_exact.py`. Here they meet samplers, grammars, and their real noise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laws import ALPHA, fit, softmax
from numpy.typing import NDArray
from torch import Tensor

from sortition.grammars.background import SWITCH, Background
from sortition.grammars.regex import regex
from sortition.grammars.vocabulary import Vocabulary
from sortition.sampling import noise, verify_cpu
from sortition.sampling.draw import EMPTY, INFINITE, NAN, NO_TOKEN
from sortition.sampling.rules import (
    AllowedTokens,
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
)
from sortition.sampling.sampler import BACKENDS, Sampler
from sortition.sampling.state import State
from sortition.sampling.verification import METHODS, Method, Verified
from sortition.sampling.verify import VERIFIERS, drafting, verify

Case = dict[str, Any]
FILE: Final = json.loads((Path(__file__).parent / "cases" / "sampler.json").read_text())
CASES: Final = {case["id"]: case for case in FILE["cases"]}
REGRESSIONS: Final = {each["kind"]: each["input"] for each in FILE["regressions"]}

pytestmark = pytest.mark.usefixtures("compiled")

backends = pytest.mark.parametrize("backend", sorted(BACKENDS))
SAME: Final[tuple[Method, ...]] = ("coupled", "greedy")

TRIALS: Final = {"reference": 500, "cpu": 20_000}
"""Texts per goodness of fit; the reference would take an hour for as many as the slow tests have."""


def padded(lists: Sequence[Sequence[int]], length: int) -> Tensor:
    return torch.tensor([[*row, *[NO_TOKEN] * (length - len(row))] for row in lists], dtype=torch.int64)


def peaked(tokens: Tensor, size: int, second: int | None = None) -> Tensor:
    """Logits [rows, places, size]: 100 for these tokens, 99 for the second, -100 for the rest."""
    logits = torch.full((*tokens.shape, size), -100.0)
    if second is not None:
        logits[..., second] = 99.0
    return logits.scatter(2, tokens.clamp(min=0)[..., None], 100.0)


# Cases of engines.


@backends
@pytest.mark.parametrize("method", SAME)
@pytest.mark.parametrize("name", ["vllm/multi", "vllm/empty", "vllm/multi_mismatch"])
def test_greedy(name: str, method: Method, backend: str) -> None:
    case = CASES[name]
    drafts, targets = case["input"]["draft"], case["input"]["target_argmax_plus_bonus"]
    longest = max(map(len, drafts))
    sampler = Sampler(Temperature(0), backend=backend)
    found = verify(
        padded(drafts, longest),
        None,
        peaked(padded(targets, longest + 1), 16),
        sampler,
        sampler.start(len(drafts), seed=0),
        method=method,
    )
    assert found.tokens.tolist() == [
        [*row, *[-1] * (longest + 1 - len(row))] for row in case["expected"]["tokens"]
    ]


def started(sampler: Sampler, outputs: list[list[int]]) -> State:
    state = sampler.start(len(outputs), seed=0)
    for column in padded(outputs, max(map(len, outputs))).T:
        state = sampler.advance(state, column)
    return state


@backends
@pytest.mark.parametrize("method", SAME)
def test_a_penalty_counts_the_drafts_before(method: Method, backend: str) -> None:
    case = CASES["vllm/spec_frequency_penalty"]
    sampler = Sampler(Temperature(0), FrequencyPenalty(case["params"]["frequency"]), backend=backend)
    targets = peaked(torch.tensor([[1] * 4, [7] * 4, [1] * 4]), 16, second=15)
    state = started(sampler, case["input"]["output_history"])
    found = verify(padded(case["input"]["draft"], 3), None, targets, sampler, state, method=method)
    assert found.tokens.tolist() == case["expected"]["tokens"]


@backends
@pytest.mark.parametrize("method", SAME)
def test_what_is_not_allowed_is_no_draft_and_no_bonus(method: Method, backend: str) -> None:
    """In rows 1 and 2 the peer lets token 5 pass, which is ruled out; its second row it does not rule on."""
    case = CASES["vllm/spec_allowed"]
    allowed = [[token for token in range(16) if token not in row] for row in case["params"]["disallowed"]]
    sampler = Sampler(Temperature(0), AllowedTokens(allowed), backend=backend)
    targets = peaked(torch.tensor(case["input"]["target"]), 16, second=case["input"]["runner_up"])
    state = sampler.start(3, seed=0)
    found = verify(torch.tensor(case["input"]["draft"]), None, targets, sampler, state, method=method)
    peer = case["expected"]["tokens"]
    assert found.tokens.tolist() == [peer[0], [10, 15, -1, -1], [*peer[2][:3], 15]]


@backends
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("length", CASES["fi/chain_onehot"]["params"]["K"])
def test_certain_targets_take_every_draft(length: int, method: Method, backend: str) -> None:
    tokens = torch.randint(0, 50, (4, length + 1), generator=torch.Generator().manual_seed(length))
    logits = torch.full((4, length + 1, 50), -math.inf).scatter(2, tokens[..., None], 0.0)
    drafts = torch.randn(4, length, 50)
    sampler = Sampler(backend=backend)
    accepted, found = verify(tokens[:, :-1], drafts, logits, sampler, sampler.start(4, seed=0), method=method)
    assert accepted.tolist() == [length] * 4 and torch.equal(found, tokens)


def check_shape(found: Verified, drafts: Tensor, parents: Tensor | None = None) -> None:
    """`fi/chain_padding`: after the last token there is nothing; and before it is what was drafted."""
    for row, accepted in enumerate(found.accepted.tolist()):
        emitted = accepted + (0 if found.flags[row] else 1)
        tokens, path = found.tokens[row], found.path[row]
        assert (tokens[:emitted] >= 0).all() and (tokens[emitted:] == NO_TOKEN).all()
        assert (path[:accepted] >= 0).all() and (path[accepted:] == NO_TOKEN).all()
        assert torch.equal(drafts[row, path[:accepted]], tokens[:accepted])
        assert found.logprobs[row, :emitted].isfinite().all()
        assert (found.logprobs[row, emitted:] == -math.inf).all()
        nodes = path[:accepted].tolist()
        before = [-1, *nodes[:-1]] if nodes else []
        assert before == [node - 1 if parents is None else int(parents[row, node]) for node in nodes]


# Toy models: what comes next depends on the last token alone.

SIZE: Final = 16


def toy(seed: int, spread: float = 1.5, near: Tensor | None = None, size: int = SIZE) -> Tensor:
    """Logits [size + 1, size] after each token, and after none in the last row."""
    change = torch.randn(size + 1, size, generator=torch.Generator().manual_seed(seed)) * spread
    return change if near is None else near + change


TARGET: Final = toy(1)
DRAFTER: Final = toy(2, 0.8, near=TARGET)

FORGETFUL: Final = tuple(model[:1].expand(SIZE + 1, -1) for model in (TARGET, toy(3, 1.5, near=TARGET)))
"""Models to which every text is the same."""


def drafted(sampler: Sampler, state: State, last: Tensor, model: Tensor, length: int) -> Tensor:
    """Drafts [rows, length] of a toy model."""
    tokens = []
    for _ in range(length):
        last = sampler(model[last], state).tokens
        tokens.append(last)
        state = sampler.advance(state, last)
    return torch.stack(tokens, 1)


def chain_of(sampler: Sampler, state: State, last: Tensor, model: Tensor, method: Method) -> Drafts:
    tokens = drafted(sampler, drafting(state, method), last, model, 2)
    return tokens, model[after(last, tokens)[:, :-1]], None


def fork_of(sampler: Sampler, state: State, last: Tensor, model: Tensor, method: Method) -> Drafts:
    """Two candidates and one more token for each; where "distinct", the same candidate only once."""
    one, other = (
        drafted(sampler, drafting(state, method, candidate), last, model, 2) for candidate in range(2)
    )
    if method == "distinct":
        other = other.masked_fill(one[:, :1] == other[:, :1], NO_TOKEN)
    tokens = torch.stack([one[:, 0], other[:, 0], one[:, 1], other[:, 1]], 1)
    parents = torch.tensor([-1, -1, 0, 1]).expand(len(tokens), -1)
    first = model[last][:, None].expand(-1, 2, -1)
    return tokens, torch.cat([first, model[tokens[:, :2]]], 1), parents


Drafts = tuple[Tensor, Tensor, Tensor | None]
"""Drafts, the logits they were drawn from, and their parents."""


def after(last: Tensor, tokens: Tensor) -> Tensor:
    """The last token at every place."""
    return torch.cat([last[:, None], tokens], 1)


def texts(
    backend: str,
    method: Method,
    count: int,
    propose: Callable[..., Drafts] = chain_of,
    models: tuple[Tensor, Tensor] = (TARGET, DRAFTER),
    noise_of: Method | None = None,
) -> NDArray[np.int64]:
    """The first two tokens [count, 2] that as many seeds in a row get by verifying drafts."""
    chunk = min(count, 10_000)
    sampler = Sampler(backend=backend)
    target, drafter = models
    done = []
    for first in range(0, count, chunk):
        state = sampler.start(min(chunk, count - first), seed=first)
        last = torch.full((len(state),), SIZE)
        found = []
        for _ in range(2):
            tokens, logits, parents = propose(sampler, state, last, drafter, noise_of or method)
            step = verify(
                tokens, logits, target[after(last, tokens)], sampler, state, method=method, parents=parents
            )
            for column in step.tokens.T:
                state = sampler.advance(state, column)
            last = step.tokens.gather(1, step.accepted[:, None])[:, 0]
            found.append(step)
        second = found[0].tokens[:, 1]
        second = torch.where(second < 0, found[1].tokens[:, 0], second)
        done.append(torch.stack([found[0].tokens[:, 0], second], 1))
    return np.asarray(torch.cat(done).numpy())


def fit_of(found: NDArray[np.int64], model: Tensor = TARGET) -> float:
    """How well texts of two tokens fit a model."""
    chances = softmax(model[SIZE])[:, None] * softmax(model[:SIZE])
    return fit(found @ [SIZE, 1], chances.ravel())


# The law of what comes out, with real noise.


proposals = pytest.mark.parametrize(
    ("method", "propose"),
    [
        ("coupled", chain_of),
        ("token", chain_of),
        ("block", chain_of),
        ("token", fork_of),
        ("distinct", fork_of),
    ],
)


@backends
@proposals
def test_texts_have_the_law_of_the_target(method: Method, propose: Any, backend: str) -> None:
    assert fit_of(texts(backend, method, TRIALS[backend], propose)) > ALPHA


@pytest.mark.slow
@proposals
def test_many_texts_have_the_law_of_the_target(method: Method, propose: Any) -> None:
    assert fit_of(texts("cpu", method, 200_000, propose)) > ALPHA


@pytest.mark.parametrize(
    ("method", "propose"), [("token", chain_of), ("block", chain_of), ("distinct", fork_of)]
)
def test_noise_that_drafts_share_with_the_target_is_found(method: Method, propose: Any) -> None:
    """vllm-project/vllm#54282: drafts drawn with the noise of the draw that replaces those refused."""
    assert fit_of(texts("cpu", method, 20_000, propose, noise_of="coupled")) < ALPHA


def test_noise_that_a_block_has_looked_at_is_not_used_again() -> None:
    """By position alone, a draft behind those that stand would come again, and the block knew it."""
    target, _ = FORGETFUL
    assert fit_of(texts("cpu", "block", 60_000, models=FORGETFUL), target) > ALPHA
    assert fit_of(texts("cpu", "block", 60_000, models=FORGETFUL, noise_of="token"), target) < ALPHA


# How many drafts stand.


def standing(method: Method, count: int, models: tuple[Tensor, Tensor], length: int) -> float:
    """How many drafts of a chain stand on average, by so many seeds."""
    target, drafter = models
    sampler = Sampler(backend="cpu")
    state = sampler.start(count, seed=0)
    last = torch.full((count,), SIZE)
    tokens = drafted(sampler, drafting(state, method), last, drafter, length)
    places = after(last, tokens)
    found = verify(tokens, drafter[places[:, :-1]], target[places], sampler, state, method=method)
    return float(found.accepted.double().mean())


def close(mean: float, expected: float, count: int, most: int) -> bool:
    """Within 5 standard errors of a number between 0 and `most`, which vary by half of it at most."""
    return abs(mean - expected) < 5 * most / 2 / math.sqrt(count)


def test_as_many_drafts_stand_as_theory_says() -> None:
    """For one draft 1 - TV; for two, by the chances of each rule, enumerated here once more."""
    count = 10_000
    p, q = softmax(TARGET), softmax(DRAFTER)
    least = np.minimum(p, q)
    assert close(standing("token", count, (TARGET, DRAFTER), 1), least[SIZE].sum(), count, 1)
    assert close(standing("block", count, (TARGET, DRAFTER), 1), least[SIZE].sum(), count, 1)
    by_token = (least[SIZE] * (1 + least[:SIZE].sum(1))).sum()
    assert close(standing("token", count, (TARGET, DRAFTER), 2), by_token, count, 2)
    share = np.minimum(p[SIZE] / q[SIZE], 1)
    left = np.maximum(share[:, None] * p[:SIZE] - q[:SIZE], 0).sum(1)
    first = np.where(share < 1, left / (left + 1 - share), 1)
    both = np.minimum(share[:, None] * p[:SIZE] / q[:SIZE], 1)
    stands = both * 2 + (1 - both) * first[:, None]
    by_block = (q[SIZE][:, None] * q[:SIZE] * stands).sum()
    assert close(standing("block", count, (TARGET, DRAFTER), 2), by_block, count, 2)
    assert by_block > 1.01 * by_token


@pytest.mark.parametrize("seed", range(3))
def test_coupled_drafts_stand_within_their_bounds(seed: int) -> None:
    count = 10_000
    target = toy(seed)
    drafter = toy(10 + seed, 1.0, near=target)
    distance = np.abs(softmax(target[SIZE]) - softmax(drafter[SIZE])).sum() / 2
    mean = standing("coupled", count, (target, drafter), 1)
    slack = 2.5 / math.sqrt(count)
    assert (1 - distance) / (1 + distance) - slack < mean < 1 - distance + slack


def test_typical_drafts_stand_where_they_are_likely_enough() -> None:
    """One that is likelier than min(0.09, 0.3 e^-H), with no coin: the output has another law."""
    p = softmax(TARGET[SIZE])
    bound = min(0.09, 0.3 * math.exp((p * np.log(p)).sum()))
    for backend in sorted(BACKENDS):
        sampler = Sampler(backend=backend)
        found = verify(
            torch.arange(SIZE)[:, None],
            None,
            TARGET[torch.tensor([[SIZE, 0]] * SIZE)],
            sampler,
            sampler.start(SIZE, seed=0),
            method="typical",
        )
        assert found.accepted.tolist() == [int(chance > bound) for chance in p]
    assert 0 < (p > bound).sum() < SIZE


# Coupled: the same text as without drafts.

LETTERS: Final = Vocabulary.of([*(bytes([97 + letter]) for letter in range(15)), b""], end_tokens=[15])
GRAMMAR: Final = regex("[a-e]([a-h]|[d-o][a-c])*x?").compile(LETTERS)

SAMPLERS: Final[dict[str, tuple[Any, ...]]] = {
    "plain": (),
    "filters": (Temperature(0.8), TopK(9), TopP(0.95), MinP(0.01)),
    "penalties": (
        *(RepetitionPenalty(1.3), PresencePenalty(0.4), FrequencyPenalty(0.2)),
        LogitBias({3: 1.0, 7: -math.inf}),
    ),
    "grammar": (LETTERS, Constrain(GRAMMAR), MinTokens(4), Temperature(1.2)),
    "each its own": (
        *(Temperature([0.0, 0.5, 1.0, 2.0]), TopK([0, 3, 5, 0])),
        Constrain([GRAMMAR, None, GRAMMAR, None]),
    ),
}


def plainly(sampler: Sampler, rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Texts and ln of their chances, one token after the other."""
    state, last = sampler.start(rows, seed=11), torch.full((rows,), SIZE)
    tokens, logprobs = [], []
    for _ in range(length):
        draw = sampler(TARGET[last], state)
        last = draw.tokens
        tokens.append(last)
        logprobs.append(draw.logprobs)
        state = sampler.advance(state, last)
    return torch.stack(tokens, 1), torch.stack(logprobs, 1)


@backends
@pytest.mark.parametrize("parts", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("drafts", [0, 1, 4])
def test_coupled_texts_are_those_without_drafts(parts: Sequence[Any], drafts: int, backend: str) -> None:
    """Whether drafts come from a model, from nowhere, or from the text itself; some rows have fewer."""
    rows, length = 4, 12
    sampler = Sampler(*parts, backend=backend)
    text, logprobs = plainly(sampler, rows, length + 5)
    chance = torch.Generator().manual_seed(drafts)
    for source in ("model", "nowhere", "text"):
        state, last, at = (
            sampler.start(rows, seed=11),
            torch.full((rows,), SIZE),
            torch.zeros(rows, dtype=torch.int64),
        )
        stood = 0
        while int(at.min()) < length:
            if source == "model" and drafts:
                tokens = drafted(sampler, drafting(state), last, DRAFTER, drafts)
            elif source == "nowhere":
                tokens = torch.randint(0, SIZE, (rows, drafts), generator=chance)
            else:
                tokens = text.gather(1, (at[:, None] + torch.arange(drafts)).clamp(max=length))
            ends = torch.randint(0, drafts + 2, (rows, 1), generator=chance)
            tokens = tokens.masked_fill(torch.arange(drafts) >= ends, NO_TOKEN)
            found = verify(tokens, None, TARGET[after(last, tokens)], sampler, state)
            check_shape(found, tokens)
            for row in range(rows):
                for offset in range(int(found.accepted[row]) + 1):
                    if at[row] + offset < length:
                        assert found.tokens[row, offset] == text[row, at[row] + offset]
                        assert found.logprobs[row, offset] == logprobs[row, at[row] + offset]
            for column in found.tokens.T:
                state = sampler.advance(state, column)
            stood += int(found.accepted.sum())
            at = at + found.accepted + 1
            last = found.tokens.gather(1, found.accepted[:, None])[:, 0]
        assert stood > 0 or drafts == 0 or source == "nowhere"


@backends
def test_coupled_trees_are_walked_as_the_text_goes(backend: str) -> None:
    """Of all second tokens after each of some first ones, that of the text stands."""
    rows = 20
    sampler = Sampler(*SAMPLERS["penalties"], backend=backend)
    text, _ = plainly(sampler, rows, 3)
    first, width = torch.arange(8), SIZE
    tokens = torch.cat([first, first.new_tensor(range(width)).repeat(8)]).expand(rows, -1)
    parents = torch.cat([torch.full((8,), -1), first.repeat_interleave(width)]).expand(rows, -1)
    logits = TARGET[after(torch.full((rows,), SIZE), tokens)]
    found = verify(tokens, None, logits, sampler, sampler.start(rows, seed=11), parents=parents)
    check_shape(found, tokens, parents)
    for row in range(rows):
        depth = 2 if text[row, 0] < 8 else 0
        assert found.accepted[row] == depth
        assert found.tokens[row, : depth + 1].tolist() == text[row, : depth + 1].tolist()
    assert 0 < (found.accepted == 2).sum() < rows


# Grammars, rules and flags.


@backends
@pytest.mark.parametrize("method", METHODS)
def test_grammars_rule_every_place(method: Method, backend: str) -> None:
    """vllm-project/vllm#44006: after what is no draft, too, and after a draft that is not allowed."""
    vocabulary = Vocabulary.of([b"a", b"b", b"c", b"d", b"e", b"f", b""], end_tokens=[6])
    sampler = Sampler(vocabulary, Constrain(regex("f[ab]c").compile(vocabulary)), backend=backend)
    plain = Sampler(backend=backend)
    drafts = torch.tensor(
        [REGRESSIONS["bonus row mask after padded drafts"]["drafts"]] * 40 + [[5, 3, 2]] * 40
    )
    drafts = torch.cat([drafts, torch.tensor([[-1, 5, 0], [5, 0, 2], [5, 6, 6], [0, 1, 2]])])
    logits = torch.randn(len(drafts), 4, 7, generator=torch.Generator().manual_seed(0))
    state = sampler.start(len(drafts), seed=0)
    for laws in (None, logits[:, :3] + 1.0):
        found = verify(drafts, laws, logits, sampler, state, method=method, draft_sampler=plain)
        check_shape(found, drafts)
        assert not found.flags.any()
        for tokens in found.tokens.tolist():
            text = "".join("abcdef"[token] if token < 6 else "." for token in tokens if token >= 0)
            assert text in ("f", "fa", "fb", "fac", "fbc", "fac.", "fbc.")
    if method != "greedy":
        assert set(found.tokens[:40, 1].tolist()) - {-1} <= {0, 1}


@backends
@pytest.mark.parametrize("method", METHODS)
def test_what_a_rule_excludes_is_never_emitted(method: Method, backend: str) -> None:
    """vllm-project/vllm#42744, #38202: biases and min-p were left out of the verification."""
    case = REGRESSIONS["min_p/logit_bias ignored in verify"]
    token = case["draft_token"]
    rows = 200
    drafts = torch.full((rows, 3), token)
    logits = toy(5)[after(torch.full((rows,), SIZE), drafts)]
    for rule in (LogitBias({int(key): bias for key, bias in case["logit_bias"].items()}), MinP(0.9)):
        sampler = Sampler(rule, backend=backend)
        scores = logits if isinstance(rule, LogitBias) else logits.index_fill(2, torch.tensor(token), -1.0)
        for laws in (None, scores[:, :3]):
            found = verify(
                drafts,
                laws,
                scores,
                sampler,
                sampler.start(rows, seed=0),
                method=method,
                draft_sampler=Sampler(),
            )
            assert found.accepted.tolist() == [0] * rows
            assert not (found.tokens == token).any()


@backends
@pytest.mark.parametrize("method", ["token", "distinct", "block"])
def test_laws_are_those_that_drafts_were_drawn_from(method: Method, backend: str) -> None:
    """huggingface/transformers#47932: a drafter with a top-k of its own, of which nobody is told."""
    case = REGRESSIONS["q not the sampled law"]
    count = 2_000 if backend == "reference" else 20_000
    target = torch.tensor([[case["p"]] * 2]).log().expand(count, -1, -1)
    drafter = torch.tensor([[case["q_claimed"]]]).log().expand(count, -1, -1)
    cut, sampler = Sampler(TopK(2), backend="cpu"), Sampler(backend=backend)
    state = sampler.start(count, seed=0)
    tokens = cut(drafter[:, 0], drafting(state, method)).tokens[:, None]
    right = verify(tokens, drafter, target, sampler, state, method=method, draft_sampler=cut).tokens[:, 0]
    wrong = verify(tokens, drafter, target, sampler, state, method=method, draft_sampler=Sampler()).tokens[
        :, 0
    ]
    assert fit(right.numpy(), np.array(case["p"])) > ALPHA
    counts = np.bincount(wrong.numpy(), minlength=3) / count
    assert counts.tolist() == pytest.approx([4 / 7, 3 / 7, 0], abs=0.05)


@backends
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_place_that_cannot_be_drawn_from_ends_a_row(method: Method, value: float, backend: str) -> None:
    flag = {math.nan: NAN, math.inf: INFINITE, -math.inf: EMPTY}[value]
    tokens = torch.tensor([[3, 4, 5]] * 4)
    logits = peaked(torch.tensor([[3, 4, 5, 6]] * 4), SIZE)
    # Row 0 ends at once, row 1 after two, row 2 at the end; row 3 is refused before.
    logits[0, 0] = logits[1, 2] = logits[2, 3] = logits[3, 2] = value
    logits[3, 0] = peaked(torch.tensor([[9]]), SIZE)[0, 0]
    sampler = Sampler(backend=backend)
    state = sampler.start(4, seed=0)
    found = verify(tokens, None, logits, sampler, state, method=method)
    check_shape(found, tokens)
    assert found.flags.tolist() == [flag, flag, flag, 0]
    assert found.tokens.tolist() == [[-1] * 4, [3, 4, -1, -1], [3, 4, 5, -1], [9, -1, -1, -1]]
    options = {"on_nan": 2, "on_infinite": 2, "on_empty": 2}
    numbered = verify(tokens, None, logits, Sampler(backend=backend, **options), state, method=method)
    assert numbered.tokens.tolist() == [[2, -1, -1, -1], [3, 4, 2, -1], [3, 4, 5, 2], [9, -1, -1, -1]]
    assert torch.equal(numbered.flags, found.flags)
    mending = Sampler(backend=backend, on_nan="mend", on_infinite="mend", on_empty="mend")
    mended = verify(tokens, None, logits, mending, state, method=method)
    at = State(state.seeds, state.positions + np.array([0, 2, 3, 0]), state.prompt, state.output)
    alone = mending(torch.stack([logits[0, 0], logits[1, 2], logits[2, 3], logits[3, 0]]), at)
    assert mended.tokens.gather(1, mended.accepted[:, None])[:3, 0].tolist() == alone.tokens[:3].tolist()
    raising = Sampler(backend=backend, on_nan="raise", on_infinite="raise", on_empty="raise")
    with pytest.raises(ValueError, match=r"rows \[0, 1, 2\]"):
        verify(tokens, None, logits, raising, state, method=method)
    reached = verify(tokens[3:], None, logits[3:], raising, state.rows([3]), method=method)
    assert reached.tokens.tolist() == [[9, -1, -1, -1]]


@backends
@pytest.mark.parametrize("method", ["token", "distinct", "block"])
def test_drafts_whose_law_says_nothing_are_refused(method: Method, backend: str) -> None:
    """And what follows is the target's own draw."""
    count = 50
    tokens = torch.full((count, 2), 3)
    target = TARGET[after(torch.full((count,), SIZE), tokens)]
    sampler = Sampler(backend=backend)
    state = sampler.start(count, seed=0)
    plain = sampler(target[:, 0], state).tokens
    for value in (math.nan, -math.inf):
        found = verify(tokens, torch.full((count, 2, SIZE), value), target, sampler, state, method=method)
        assert found.accepted.tolist() == [0] * count
        assert torch.equal(found.tokens[:, 0], plain)
    ruled_out = torch.zeros(count, 2, SIZE).index_fill(2, torch.tensor(3), -math.inf)
    assert verify(tokens, ruled_out, target, sampler, state, method=method).accepted.tolist() == [0] * count
    none = verify(torch.full((count, 2), NO_TOKEN), target[:, :2], target, sampler, state, method=method)
    assert torch.equal(none.tokens[:, 0], plain)


@backends
@pytest.mark.parametrize("method", ["token", "distinct", "block"])
def test_vocabularies_may_differ_in_size(method: Method, backend: str) -> None:
    """A token that a model does not have is one that it never draws."""
    count = 300
    sampler = Sampler(backend=backend)
    state = sampler.start(count, seed=0)
    tokens = torch.randint(0, 9, (count, 2), generator=torch.Generator().manual_seed(0))
    wide = toy(6)[after(torch.full((count,), SIZE), tokens)]
    narrow = wide[..., :9]
    nothing = torch.full((*narrow.shape[:2], SIZE - 9), -math.inf)
    same = torch.cat([narrow, nothing], 2)
    for target, draft, other_target, other_draft in (
        (wide, narrow[:, :2], wide, same[:, :2]),
        (narrow, wide[:, :2], same, wide[:, :2]),
    ):
        found, other = (
            verify(tokens, laws, logits, sampler, state, method=method)
            for laws, logits in ((draft, target), (other_draft, other_target))
        )
        assert torch.equal(found.tokens, other.tokens)
    beyond = verify(torch.full((count, 2), 12), wide[:, :2], narrow, sampler, state, method=method)
    assert beyond.accepted.tolist() == [0] * count and int(beyond.tokens.max()) < 9


# Rows.


def batch(rows: int, drafts: int, seed: int, size: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    """Drafts, their logits and the target's, which are often enough alike."""
    source = torch.Generator().manual_seed(seed)
    target = torch.randn(rows, drafts + 1, size, generator=source) * 2
    laws = target[:, :drafts] + torch.randn(rows, drafts, size, generator=source) * 0.7
    likely = (laws + torch.randn(laws.shape, generator=source)).argmax(2)
    return likely, laws, target


@backends
def test_rows_do_not_matter_to_each_other(backend: str) -> None:
    rows = 24
    tokens, laws, target = batch(rows, 3, 0)
    methods: list[Method] = [METHODS[row % len(METHODS)] for row in range(rows)]
    sampler = Sampler(Temperature(0.9), TopK(20), PresencePenalty(0.3), backend=backend)
    state = sampler.advance(sampler.start(rows, seed=5), list(range(rows)))
    together = verify(tokens, laws, target, sampler, state, method=methods)
    order = np.random.default_rng(0).permutation(rows)
    mixed = verify(
        tokens[order],
        laws[order],
        target[order],
        sampler,
        state.rows(order),
        method=[methods[row] for row in order],
    )
    assert same_bits(together, mixed, order)
    for row in range(rows):
        part = slice(row, row + 1)
        alone = verify(
            tokens[part], laws[part], target[part], sampler, state.rows([row]), method=methods[row]
        )
        assert same_bits(together, alone, [row])
    assert 0 < together.accepted.sum() < 3 * rows


def same_bits(one: Verified, other: Verified, rows: Any = slice(None)) -> bool:
    """Whether the rows of one are those of the other."""
    pairs = [
        (getattr(one, name)[rows], getattr(other, name)) for name in ("accepted", "tokens", "path", "flags")
    ]
    bits = one.logprobs[rows].view(torch.int32), other.logprobs.view(torch.int32)
    return all(torch.equal(mine, theirs) for mine, theirs in (*pairs, bits))


@backends
def test_shorter_drafts_are_those_of_a_shorter_batch(backend: str) -> None:
    """Where a chain ends does not matter to what stands before, but in a block."""
    tokens, laws, target = batch(60, 4, 1)
    sampler = Sampler(backend=backend)
    state = sampler.start(60, seed=0)
    for method in METHODS:
        whole = verify(
            tokens.masked_fill(torch.arange(4) >= 2, -1), laws, target, sampler, state, method=method
        )
        short = verify(tokens[:, :2], laws[:, :2], target[:, :3], sampler, state, method=method)
        assert torch.equal(whole.tokens[:, :3], short.tokens) and (whole.tokens[:, 3:] == NO_TOKEN).all()
        if method != "block":
            longer = verify(tokens, laws, target, sampler, state, method=method)
            refused = longer.accepted < 2
            assert torch.equal(longer.tokens[refused, :3], short.tokens[refused])


@backends
def test_nothing_to_verify(backend: str) -> None:
    """Without drafts it is a draw; without rows it is nothing."""
    sampler = Sampler(Temperature(0.7), backend=backend)
    state = sampler.start(5, seed=0)
    logits = torch.randn(5, 1, 30)
    plain = sampler(logits[:, 0], state)
    for method in ("coupled", "token", "distinct", "block", "typical"):
        found = verify(torch.zeros(5, 0, dtype=torch.int64), None, logits, sampler, state, method=method)
        assert torch.equal(found.tokens[:, 0], plain.tokens) and torch.equal(
            found.logprobs[:, 0], plain.logprobs
        )
    none = verify(
        torch.zeros(0, 2, dtype=torch.int64), None, torch.zeros(0, 3, 30), sampler, sampler.start(0, seed=0)
    )
    assert none.tokens.shape == (0, 3)


some = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@some
@given(st.integers(0, 2**32 - 1))
def test_backends_give_the_same_bits(seed: int) -> None:
    source = np.random.default_rng(seed)
    rows, nodes = int(source.integers(1, 5)), int(source.integers(0, 6))
    size, drafted_size = (int(source.choice([1, 2, 17, 64, 65, 1500])) for _ in range(2))
    tokens = torch.from_numpy(source.integers(-1 if source.random() < 0.3 else 0, size, (rows, nodes)))
    parents = (
        np.array([source.integers(-1, node, rows) for node in range(nodes)], np.int64).reshape(nodes, rows).T
    )
    chains = np.tile(np.arange(nodes) - 1, (rows, 1))
    methods = [METHODS[code] for code in source.integers(0, len(METHODS), rows)]
    parents[[method == "block" for method in methods]] = chains[0] if nodes else 0
    kind = (torch.float32, torch.bfloat16, torch.float64)[source.integers(3)]
    target = torch.from_numpy(
        source.normal(size=(rows, nodes + 1, size)) * source.choice([0.0, 1.0, 8.0])
    ).to(kind)
    drafts = torch.from_numpy(source.normal(size=(rows, nodes, drafted_size)) * 2).to(kind)
    odd = [math.nan, math.inf, -math.inf]
    for logits in (target, drafts):
        if source.random() < 0.3 and logits.numel():
            at = tuple(int(source.integers(length)) for length in logits.shape)
            logits[at] = odd[source.integers(3)]
    parts = [
        Temperature([float(source.choice([0.0, 0.3, 1.0, 1.7])) for _ in range(rows)]),
        TopK([int(source.choice([0, 1, 5, 40])) for _ in range(rows)]),
        TopP([float(source.choice([0.3, 0.9, 1.0])) for _ in range(rows)]),
        PresencePenalty([float(source.choice([0.0, 0.8])) for _ in range(rows)]),
    ]
    found = []
    for backend in ("reference", "cpu"):
        sampler = Sampler(*parts, backend=backend)
        drafter = Sampler(*parts[:2], backend=backend)
        state = sampler.start(rows, seed=seed)
        found.append(
            verify(
                tokens,
                None if seed % 3 == 0 else drafts,
                target,
                sampler,
                state,
                method=methods,
                parents=torch.from_numpy(parents.copy()),
                draft_sampler=drafter if seed % 2 else None,
            )
        )
    check_shape(found[0], tokens, torch.from_numpy(parents.copy()))
    assert same_bits(*found)


def test_every_backend_verifies() -> None:
    assert set(VERIFIERS) == set(BACKENDS.values())


def test_loops_know_all_types_before_they_are_used() -> None:
    """What is not compiled when they are loaded would be compiled while somebody waits."""
    from sortition.sampling.verify_cpu_rows import chains, trees

    before = len(trees.signatures), len(chains.signatures)
    for rows in (0, 1, 3):
        tokens, laws, target = batch(rows, 2, 0)
        for parts in ((), (Temperature(0.7), LogitBias({3: 1.0}), AllowedTokens([1, 2])), (TopK(3),)):
            sampler = Sampler(*parts, backend="cpu")
            state = sampler.start(rows, seed=0, prompts=[[1, 2]] * rows)
            for method in METHODS:
                for each in (laws, laws.bfloat16(), None):
                    verify(tokens, each, target, sampler, state, method=method)
    assert (len(trees.signatures), len(chains.signatures)) == before == (1, 1)


def test_until_the_loops_are_there_the_reference_verifies(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, laws, target = batch(6, 3, 5)
    sampler = Sampler(backend="cpu")
    state = sampler.start(6, seed=0)
    loops = verify(tokens, laws, target, sampler, state, method="block")
    monkeypatch.setenv(SWITCH, "0")
    monkeypatch.setattr(verify_cpu, "LOOPS", Background("", lambda: pytest.fail("asked"), lambda: None))
    monkeypatch.setattr(verify_cpu, "_loops", lambda: pytest.fail("compiled loops were used"))
    assert same_bits(loops, verify(tokens, laws, target, sampler, state, method="block"))


def test_logits_of_any_strides_and_types_are_taken_and_not_changed() -> None:
    tokens, laws, target = batch(6, 3, 2)
    sampler = Sampler(backend="cpu")
    state = sampler.start(6, seed=0)
    plain = verify(tokens, laws, target, sampler, state, method="token")
    wide = torch.full((4, 6, 50), 7.0)
    wide[:, :, :40] = target.transpose(0, 1)
    before = wide.clone()
    strided = wide[:, :, :40].transpose(0, 1).requires_grad_()
    found = verify(tokens.to(torch.int32), laws.double(), strided, sampler, state, method="token")
    assert same_bits(plain, found) and torch.equal(wide, before)
    half = verify(tokens, laws.bfloat16(), target.bfloat16(), sampler, state, method="block")
    assert same_bits(
        half,
        verify(tokens, laws.bfloat16().float(), target.bfloat16().float(), sampler, state, method="block"),
    )


# Noise.


def test_a_drafter_has_noise_that_fits_the_method() -> None:
    state = Sampler().start(5, seed=0)
    moved = replace(state, positions=state.positions + 3)
    for method in ("coupled", "greedy", "typical"):
        assert (drafting(state, method).seeds == state.seeds).all()
    seeds = {
        (method, name, candidate): tuple(drafting(each, method, candidate).seeds.tolist())
        for method in ("token", "distinct", "block")
        for name, each in (("here", state), ("there", moved))
        for candidate in range(3)
    }
    assert seeds["token", "here", 0] == seeds["token", "there", 0] == seeds["distinct", "here", 0]
    assert seeds["block", "here", 0] != seeds["block", "there", 0]
    assert (
        len({seeds[method, "there", candidate] for method in ("token", "block") for candidate in range(3)})
        == 6
    )
    assert not {each for row in seeds.values() for each in row} & set(state.seeds.tolist())
    mixed = drafting(moved, ["coupled", "token", "block", "distinct", "typical"]).seeds
    rows = ("coupled", "token", "block", "distinct", "typical")
    assert mixed.tolist() == [drafting(moved, method).seeds[row] for row, method in enumerate(rows)]


def test_coins_are_even_and_their_own() -> None:
    coins = np.array([noise.coin(seed, position, 0) for seed in range(100) for position in range(100)])
    assert ((coins > 0) & (coins < 1)).all() and (coins * 2.0**53 % 2 == 1).all()
    assert len(np.unique(coins)) == len(coins)
    assert fit((coins * 64).astype(np.int64), np.ones(64)) > ALPHA
    assert fit((coins * 2**26 % 1 * 64).astype(np.int64), np.ones(64)) > ALPHA
    by_candidate = np.array([noise.coin(7, 0, candidate) for candidate in range(10_000)])
    assert fit((by_candidate * 64).astype(np.int64), np.ones(64)) > ALPHA
    assert abs(np.corrcoef(coins[:-1], coins[1:])[0, 1]) < 5 / math.sqrt(len(coins))


# What is refused.


def test_mistakes_are_named() -> None:
    tokens, laws, target = batch(3, 2, 3)
    sampler = Sampler(backend="cpu")
    state = sampler.start(3, seed=0)

    def failing(error: type[Exception], match: str, *given: Any, **options: Any) -> None:
        with pytest.raises(error, match=match):
            verify(*given, **options)

    plain = (tokens, laws, target, sampler, state)
    failing(ValueError, r"drafts are ids \[3, drafts\], not \[2, 2\]", tokens[:2], *plain[1:])
    failing(TypeError, "drafts are whole numbers", tokens.float(), *plain[1:])
    failing(ValueError, "a draft is token 1099511627776", tokens + 2**40 - tokens, *plain[1:])
    failing(ValueError, r"target logits .* begin with \[3, 3\]", tokens, laws, target[:, 1:], sampler, state)
    failing(ValueError, r"draft logits .* begin with \[3, 2\]", tokens, target, target, sampler, state)
    failing(TypeError, "draft logits are floats", tokens, laws.long(), target, sampler, state)
    failing(ValueError, "target logits of 0 tokens", tokens, laws, target[..., :0], sampler, state)
    failing(ValueError, "unknown method 'blok'; there are coupled", *plain, method="blok")
    failing(ValueError, "2 methods for 3 rows", *plain, method=["token", "block"])
    fork = torch.tensor([[-1, -1]] * 3)
    failing(ValueError, "'block' judges chains", *plain, method="block", parents=fork)
    failing(ValueError, "a draft's parent comes before it", *plain, parents=torch.tensor([[-1, 1]] * 3))
    failing(ValueError, r"parents \[3, 1\] of drafts \[3, 2\]", *plain, parents=fork[:, :1])
    failing(ValueError, "looks at what was generated", *plain, draft_sampler=Sampler(PresencePenalty(1)))
    other = Sampler(LETTERS, Constrain(GRAMMAR))
    failing(ValueError, "another grammar", *plain, draft_sampler=other)
    failing(ValueError, "logit_bias names token 99", *plain[:3], Sampler(LogitBias({99: 1.0})), state)


def test_a_drafter_may_share_the_grammar() -> None:
    """Its law is then that under the grammar, whatever temperature it has."""
    sampler = Sampler(LETTERS, Constrain(GRAMMAR), backend="cpu")
    drafter = Sampler(LETTERS, Constrain(GRAMMAR), Temperature(0.5), backend="cpu")
    state = sampler.start(200, seed=0)
    last = torch.full((200,), SIZE)
    tokens = drafted(drafter, drafting(state, "token"), last, DRAFTER, 2)
    places = after(last, tokens)
    found = [
        verify(
            tokens,
            DRAFTER[places[:, :-1]],
            TARGET[places],
            each,
            state,
            method="token",
            draft_sampler=drafter,
        )
        for each in (sampler, Sampler(LETTERS, Constrain(GRAMMAR), backend="reference"))
    ]
    assert same_bits(*found) and 0 < found[0].accepted.sum() < 400


def test_it_unpacks_into_what_is_asked_first() -> None:
    tokens, laws, target = batch(3, 2, 4)
    sampler = Sampler(backend="cpu")
    found = verify(tokens, laws, target, sampler, sampler.start(3, seed=0))
    accepted, emitted = found
    assert accepted is found.accepted and emitted is found.tokens
    assert accepted.dtype == emitted.dtype == found.path.dtype == torch.int64
    assert found.flags.dtype == torch.uint8 and found.logprobs.dtype == torch.float32
