"""The draws of the vLLM processor without vLLM: where parameters come from, and rows that are past help."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sortition.integrations.vllm_compile import Figures
from sortition.integrations.vllm_draw import (
    NO_TOKENS,
    Drawer,
    Penalties,
    Seeds,
    Turn,
    Wish,
    parameters_of,
    within,
)
from sortition.integrations.vllm_request import RequestError
from sortition.sampling.draw import Draw, Request
from sortition.sampling.parameters import Parameters
from sortition.sampling.sampler import BACKENDS
from sortition.sampling.seeds import signed

WIDTH = 16
END = (3, 7)
INF, NAN = float("inf"), float("nan")


def sampling_params(**given: Any) -> SimpleNamespace:
    """As vLLM's are where nothing is given."""
    neutral = {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": None,
    }
    return SimpleNamespace(**{**neutral, **given})


@pytest.mark.parametrize(
    ("asked", "theirs", "expected"),
    [
        ({}, {}, {}),
        ({}, {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1}, None),
        ({"temperature": 0.3}, {"temperature": 0.7}, {"temperature": 0.3}),
        ({"temperature": 1.0, "top_k": -1}, {"temperature": 0, "top_k": 5}, {"top_k": -1}),
        ({"typical": 0.9}, {"top_p": 0.5}, {"typical": 0.9, "top_p": 0.5}),
        # These are in the logits, or will be: see `Penalties`.
        ({"top_k": 3}, {"repetition_penalty": 1.5, "logit_bias": {1: 2.0}}, {"top_k": 3}),
        ({"repetition_penalty": 1.5}, {"presence_penalty": 1.0}, {"repetition_penalty": 1.5}),
        ({"logit_bias": {1: 2.0}}, {"logit_bias": {}}, {"logit_bias": {1: 2.0}}),
    ],
)
def test_our_fields_count_before_what_vllm_would_filter(asked: Any, theirs: Any, expected: Any) -> None:
    given = parameters_of(asked, sampling_params(**theirs))
    assert given == Parameters(**(theirs if expected is None else expected))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", {1: 2.0}),
        ("repetition_penalty", 1.1),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -0.5),
    ],
)
def test_what_vllm_does_in_any_case_is_not_said_twice(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"'{name}' is among our fields, and the request itself"):
        parameters_of({name: value}, sampling_params(**{name: value}))


def test_bounds_that_only_show_together() -> None:
    with pytest.raises(RequestError, match="min_p is from 0 to 1"):
        parameters_of({"order": "vllm", "min_p": 1.5}, sampling_params())


def test_tokens_that_the_model_does_not_have() -> None:
    parameters = Parameters(
        logit_bias={1: 1.0, WIDTH: 1.0}, allowed_tokens=(2, WIDTH), bad_words=((1, WIDTH), (2,)), top_k=3
    )
    expected = Parameters(logit_bias={1: 1.0}, allowed_tokens=(2,), bad_words=((2,),), top_k=3)
    assert within(parameters, WIDTH, END) == expected
    assert within(Parameters(allowed_tokens=(WIDTH,)), WIDTH, END).allowed_tokens == END
    assert within(Parameters(), WIDTH, END) == Parameters()


@pytest.mark.parametrize("seed", [0, -1, 5, 2**63 - 1, -(2**63), 2**63, 2**64 - 1])
def test_seeds_are_64_bits_with_a_sign(seed: int) -> None:
    assert -(2**63) <= signed(seed) < 2**63
    assert (signed(seed) - seed) % 2**64 == 0


def test_seeds_of_requests_that_bring_none() -> None:
    def some(*key: int) -> list[int]:
        seeds = Seeds(*key)
        return [seeds.next() for _ in range(100)]

    assert some(0, 0) == some(0, 0)
    everything = [*some(0, 0), *some(0, 1), *some(1, 0), *some(10, 0), *some(1, 1)]
    assert len(set(everything)) == 500
    np.array(everything, np.int64)


def penalised(logits: Tensor, own: Penalties, prompt: list[int], output: list[int]) -> Tensor:
    """By the words of vLLM's documentation, a token at a time."""
    values = logits.clone()
    for token in range(len(values)):
        if token in prompt or token in output:
            factor = 1 / own.repetition if values[token] > 0 else own.repetition
            values[token] *= factor
        values[token] -= own.frequency * output.count(token)
        values[token] -= own.presence * (token in output)
    return values


@pytest.mark.parametrize(
    "own", [Penalties(1.5, 0.0, 0.0), Penalties(0.5, 0.25, -1.0), Penalties(1.0, 1.0, 2.0)]
)
def test_penalties_that_vllm_applies_after_us(own: Penalties) -> None:
    torch.manual_seed(0)
    logits = torch.randn(WIDTH)
    logits[5] = -INF
    # Ids beyond the logits are those of images and the like.
    for prompt, output in (([1, 1, 2, 99], [3, 3, 5, 2]), ([], [4]), ([4], []), ([], [])):
        values = logits.clone()
        own.apply(values, np.array(prompt, np.int64), np.array(output, np.int64))
        torch.testing.assert_close(values, penalised(logits, own, prompt, output))


def test_penalties_of_a_request() -> None:
    assert Penalties.of(sampling_params()) is None
    own = Penalties.of(sampling_params(repetition_penalty=1.1, frequency_penalty=0.2, presence_penalty=0.3))
    assert own == Penalties(1.1, 0.2, 0.3)


def turn(row: int, parameters: Parameters, constrained: bool = False, **others: Any) -> Turn:
    wish = Wish(parameters, seed=row)
    return Turn(row, wish, 0, END, constrained, prompt=NO_TOKENS, output=NO_TOKENS, **others)


def drawn(row: list[float], parameters: Parameters, **others: Any) -> tuple[int, int]:
    """The token that is left of a row among others, and how many rows were mended."""
    figures = Figures()
    logits = torch.zeros(3, WIDTH)
    logits[1] = torch.tensor(row)
    after = Drawer(figures)(logits, [turn(1, parameters, **others)])
    assert after is logits
    assert (logits[[0, 2]] == 0).all()
    (left,) = (logits[1] == 0).nonzero().flatten().tolist()
    assert (logits[1] == -INF).sum() == WIDTH - 1
    assert figures.drawn_rows == 1
    return left, figures.mended_rows


ONLY_2 = Parameters(allowed_tokens=(2,), bad_words=((2,),))


@pytest.mark.parametrize(
    ("row", "parameters", "others", "possible", "mended"),
    [
        ([0.0] * WIDTH, Parameters(), {}, range(WIDTH), 0),
        ([0.0] * WIDTH, Parameters(temperature=0.0), {}, [0], 0),
        ([0.0] * WIDTH, Parameters(allowed_tokens=(5,)), {}, [5], 0),
        # NaN is nothing, +inf is certain.
        ([NAN, 1.0, *[-INF] * (WIDTH - 2)], Parameters(), {}, [1], 1),
        ([NAN, INF, 5.0, *[0.0] * (WIDTH - 3)], Parameters(), {}, [1], 1),
        ([0.0, INF, INF, *[0.0] * (WIDTH - 3)], Parameters(temperature=0.5), {}, [1, 2], 1),
        # Nothing is left: the text ends, or the grammar decides.
        ([-INF] * WIDTH, Parameters(), {}, END, 1),
        ([NAN] * WIDTH, Parameters(), {}, END, 1),
        ([0.0] * WIDTH, ONLY_2, {}, END, 1),
        ([0.0, *[-INF] * (WIDTH - 2), 0.0], ONLY_2, {"constrained": True}, [0, WIDTH - 1], 1),
        ([INF, -INF, NAN, *[-INF] * (WIDTH - 3)], ONLY_2, {"constrained": True}, [0, 2], 1),
        # What came before is not known.
        ([0.0] * WIDTH, Parameters(temperature=0.0), {"lost": True}, END, 1),
    ],
)
def test_a_token_is_left_whatever_comes(
    row: list[float], parameters: Parameters, others: Any, possible: Any, mended: int
) -> None:
    token, count = drawn(row, parameters, **others)
    assert token in possible
    assert count == mended


def test_rows_that_are_mended_leave_the_others_alone() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, WIDTH)
    alone = [Drawer(Figures())(logits.clone(), [turn(row, Parameters())])[row] for row in range(4)]
    logits[2] = NAN
    together = Drawer(Figures())(logits, [turn(row, Parameters()) for row in range(4)])
    for row in (0, 1, 3):
        assert torch.equal(together[row], alone[row])


def test_a_backend_that_fails_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(logits: Tensor, request: Request) -> Draw:
        raise RuntimeError("no place for a cache")

    monkeypatch.setitem(BACKENDS, "cpu", fails)
    drawer = Drawer(Figures())
    for _ in range(2):
        assert (drawer(torch.zeros(1, WIDTH), [turn(0, Parameters())]) == 0).sum() == 1
    assert len(caplog.records) == 1
    assert "no place for a cache" in caplog.text


def test_all_ends_are_as_likely_as_the_other() -> None:
    seen = set()
    for seed in range(40):
        logits = torch.full((1, WIDTH), -INF)
        Drawer(Figures())(logits, [Turn(0, Wish(Parameters(), seed), 0, END, False, NO_TOKENS, NO_TOKENS)])
        seen.add(int(logits.argmax()))
    assert seen == set(END)


def test_one_hot_rows_survive_what_vllm_does_next() -> None:
    """Temperature, penalties and filters of vLLM, in the words of its sampler, on a row of ours."""
    logits = torch.zeros(1, WIDTH)
    Drawer(Figures())(logits, [turn(0, Parameters())])
    token = int(logits.argmax())
    Penalties(1.7, 2.0, 2.0).apply(logits[0], np.array([token]), np.array([token] * 500))
    for temperature in (0.01, 1.0, 2.0):
        probs = (logits / temperature).softmax(1)
        assert probs[0, token] == 1.0
        assert probs.sum() == 1.0
