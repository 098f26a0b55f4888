"""The sampler as users meet it: what it takes, what it refuses and in which words, what bad rows become."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from laws import kept, laws
from torch import Tensor

from sortition.grammars.regex import regex
from sortition.grammars.vocabulary import Vocabulary
from sortition.sampling.draw import EMPTY, INFINITE, NAN
from sortition.sampling.numerics import WIDEST
from sortition.sampling.parameters import EDITS, FILTERS, ORDERS, STAGES, Parameters, order_of
from sortition.sampling.rules import (
    AllowedTokens,
    BadWords,
    Constrain,
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
    TopNSigma,
    TopP,
    Typical,
)
from sortition.sampling.sampler import BACKENDS, Sampler

pytestmark = pytest.mark.usefixtures("compiled")

backends = pytest.mark.parametrize("backend", sorted(BACKENDS))

VOCABULARY = Vocabulary.of([b"a", b"b", b"c", b""], end_tokens=[3])
TABLE = regex("ab*").compile(VOCABULARY)
NAN_, INF = math.nan, math.inf


# Values out of their bounds.


@pytest.mark.parametrize(
    ("rule", "value", "message"),
    [
        (Temperature, -0.1, "temperature is 0 or more"),
        (Temperature, NAN_, "temperature is a number"),
        (Temperature, INF, "temperature is 0 or more, within float32"),
        (Temperature, 1e39, "temperature is 0 or more, within float32"),
        (Temperature, "hot", "temperature is a number, not 'hot'"),
        (Temperature, None, "temperature is a number, not None"),
        (Temperature, True, "temperature is a number, not True"),
        (Temperature, [0.5, -1], "temperature is 0 or more, within float32, not -1"),
        (Temperature, [], "Temperature has no value"),
        (Temperature, [[0.5]], r"temperature is a number, not \[0.5\]"),
        (TopK, -2, "top_k is a whole number, 0 or -1 for all tokens, not -2"),
        (TopK, 2.0, "top_k is a whole number, not 2.0"),
        (TopK, 2**63, "top_k is a whole number"),
        (TopP, 1.1, "top_p is from 0 to 1, not 1.1"),
        (TopP, -0.1, "top_p is from 0 to 1"),
        (MinP, -0.1, "min_p is from 0 to 1"),
        (Typical, 0.0, "typical is above 0, up to 1"),
        (Typical, 1.01, "typical is above 0, up to 1"),
        (Epsilon, 1.0, "epsilon is from 0 to below 1"),
        (Eta, -1e-9, "eta is from 0 to below 1"),
        (TopNSigma, INF, "top_n_sigma is a number within float32"),
        (RepetitionPenalty, 0.0, "repetition_penalty is above 0"),
        (RepetitionPenalty, -1.0, "repetition_penalty is above 0"),
        (RepetitionPenalty, 1e-46, "repetition_penalty is above 0, within float32"),
        (PresencePenalty, INF, "presence_penalty is a number within float32"),
        (FrequencyPenalty, NAN_, "frequency_penalty is a number, not nan"),
        (MinTokens, -1, "min_tokens is 0 or more"),
        (MinTokens, 1.5, "min_tokens is a whole number"),
        (LogitBias, 3, "logit_bias maps tokens to numbers, and 3 does not"),
        (LogitBias, [{1: 2.0}, 3], "logit_bias maps tokens to numbers, and 3 does not"),
        (LogitBias, {"1": 2.0}, "logit_bias names tokens by their ids, and '1' is none"),
        (LogitBias, {-1: 2.0}, "logit_bias names tokens by their ids, and -1 is none"),
        (LogitBias, {1: INF}, "logit_bias of token 1 is -inf or within float32, not inf"),
        (LogitBias, {1: "much"}, "logit_bias of token 1 is a number, not 'much'"),
        (AllowedTokens, [], "allowed_tokens is empty"),
        (AllowedTokens, [[1], []], "allowed_tokens is empty"),
        (AllowedTokens, ["a"], "allowed_tokens names tokens by their ids, and 'a' is none"),
        (AllowedTokens, [1, True], "allowed_tokens names tokens by their ids, and True is none"),
        (AllowedTokens, [1, [2]], "allowed_tokens is a list of tokens, not 1"),
        (BadWords, [[]], "a phrase of bad_words is empty"),
        (BadWords, [[1], []], "a phrase of bad_words is empty"),
        (BadWords, [1, 2], "a phrase of bad_words is a list of tokens, not 1"),
        (BadWords, 3, "a phrase of bad_words is a list of tokens, not 3"),
        (BadWords, ["word"], "a phrase of bad_words is a list of tokens, not 'word'"),
        (BadWords, [[1, -1]], "a phrase of bad_words names tokens by their ids, and -1 is none"),
    ],
    ids=repr,
)
def test_values_are_refused_where_they_are_written(rule: Any, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rule(value)


def test_numbers_may_be_numpy_s() -> None:
    sampler = Sampler(TopK(np.int64(2)), MinP(np.float32(0.5)), min_keep=np.int64(2))
    draw = sampler(torch.tensor([[0.0, 9.0, 8.0]]), sampler.start(1, seed=np.uint64(7)))
    assert draw.kept.tolist() == [2]
    with pytest.raises(ValueError, match="min_keep is a number"):
        Sampler(min_keep=np.bool_(True))


def test_a_row_without_a_bias() -> None:
    free, biased = laws("reference", torch.zeros(2, 2), LogitBias([None, {0: -INF}]))
    assert free.keys() == {0, 1}
    assert biased.keys() == {1}


def test_min_p_above_one_is_llama_cpp_s() -> None:
    assert laws("reference", torch.tensor([[1.0, 0.0]]), MinP(1.5), order="llama.cpp") == [{0: 1.0}]
    with pytest.raises(ValueError, match=r"min_p is from 0 to 1, not 1\.5"):
        Sampler(MinP(1.5))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"order": "vlm"}, ValueError, "unknown order 'vlm'; did you mean 'vllm'"),
        ({"order": "llama"}, ValueError, "did you mean 'llama.cpp'"),
        ({"order": "zzz"}, ValueError, "there are vllm, hf, llama.cpp, sglang"),
        ({"order": 3}, ValueError, "unknown order 3"),
        ({"order": ("top_k", "topp")}, ValueError, "unknown stage 'topp'; did you mean 'top_p'"),
        ({"order": ("top_k", "top_k")}, ValueError, "an order names a stage once"),
        ({"order": ("top_k", "logit_bias")}, ValueError, "logit_bias changes logits, so it comes before"),
        ({"ties": "some"}, ValueError, "ties is 'exact' or 'keep', not 'some'"),
        ({"penalty_window": -1}, ValueError, "penalty_window is 0 or more"),
        ({"penalty_window": 1.5}, ValueError, "penalty_window is a whole number"),
        ({"min_keep": 0}, ValueError, "min_keep is 1 or more"),
        ({"top": -1}, ValueError, "top is 0 or more"),
        ({"top": 1.0}, TypeError, "top is a whole number"),
        ({"on_nan": "ignore"}, ValueError, "on_nan is 'flag', 'raise', 'mend' or a token, not 'ignore'"),
        ({"on_empty": -1}, ValueError, "on_empty is 'flag', 'raise', 'mend' or a token, not -1"),
        ({"on_infinite": True}, TypeError, "on_infinite is a whole number, not True"),
        ({"end_tokens": [1.5]}, TypeError, "an end token is a whole number"),
        ({"backend": "gpu"}, ValueError, "unknown backend 'gpu'; there are"),
    ],
    ids=repr,
)
def test_options_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Sampler(**options)


def test_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="TopK can be given only once"):
        Sampler(TopK(1), TopK(2))
    with pytest.raises(ValueError, match="Vocabulary can be given only once"):
        Sampler(VOCABULARY, VOCABULARY)
    with pytest.raises(TypeError, match=r"made of rules and a vocabulary, not of 0\.7"):
        Sampler(0.7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"not of Table\(.*\); Constrain\(table\) is the rule of one"):
        Sampler(VOCABULARY, TABLE)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="min_tokens rules out end tokens, and no vocabulary says which"):
        Sampler(MinTokens(3))
    with pytest.raises(ValueError, match=r"TopK\(\[1, 2\]\) has values for 2 rows, not for 3"):
        Sampler(Temperature([1, 1, 1]), TopK([1, 2]))
    with pytest.raises(ValueError, match="Constrain has no table"):
        Constrain([])
    for wrong in (None, "ab*", [TABLE, "ab*"], 3):
        with pytest.raises(TypeError, match="Constrain takes a table, or one for each row"):
            Constrain(wrong)  # type: ignore[arg-type]


# Rows, seeds and prompts.


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rows": -1}, ValueError, "rows is 0 or more"),
        ({"rows": 2.0}, TypeError, "rows is a whole number"),
        ({"rows": 2, "seed": [1]}, ValueError, "1 seeds for 2 rows"),
        ({"rows": 2, "seed": True}, TypeError, "a seed is a whole number, not True"),
        ({"rows": 2, "seed": 1.5}, TypeError, "a seed is a whole number, not 1.5"),
        ({"rows": 1, "seed": ["7"]}, TypeError, "a seed is a whole number, not '7'"),
        ({"rows": 1, "seed": 2**64}, ValueError, "a seed is an integer of 64 bits"),
        ({"rows": 1, "seed": [-(2**63) - 1]}, ValueError, "a seed is an integer of 64 bits"),
        ({"rows": 2, "prompts": [[1]]}, ValueError, "1 prompts for 2 rows"),
        ({"rows": 2, "device": "gpu"}, ValueError, "there is no device 'gpu' .*; there is: cpu"),
        ({"rows": 2, "device": "cuda:99"}, ValueError, "there is no device 'cuda:99' "),
        ({"rows": 2, "device": torch.device("cuda:99")}, ValueError, "there is no device cuda:99 "),
        ({"rows": 2, "device": 0.5}, ValueError, r"there is no device 0\.5 "),
        ({"rows": 2, "prompts": [1, 2]}, TypeError, "prompts are lists of ids, one for each row"),
        ({"rows": 1, "prompts": [[0.5]]}, TypeError, "a prompt's token is a whole number"),
        ({"rows": 1, "prompts": ["ab"]}, TypeError, "a prompt's token is a whole number, not 'a'"),
        (
            {"rows": 2, "prompts": torch.tensor([1, 2])},
            ValueError,
            r"prompts are ids \[rows, length\], not \[2\]",
        ),
        (
            {"rows": 1, "prompts": torch.tensor([[0.5]])},
            TypeError,
            "prompts are whole numbers, not torch.float32",
        ),
    ],
    ids=repr,
)
def test_starts_are_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Sampler().start(**arguments)


def test_seeds() -> None:
    """One number is the first row's, the next row has the next, 64 bits go round, and None is random."""
    sampler = Sampler()
    assert sampler.start(3, seed=7).seeds.tolist() == [7, 8, 9]
    assert sampler.start(2, seed=[7, 7]).seeds.tolist() == [7, 7]
    assert sampler.start(2, seed=-1).seeds.tolist() == [-1, 0]
    assert sampler.start(2, seed=2**63 - 1).seeds.tolist() == [2**63 - 1, -(2**63)]
    assert sampler.start(2, seed=2**64 - 1).seeds.tolist() == [-1, 0]
    for several in (np.array([5, 6]), torch.tensor([5, 6]), (5, 6), range(5, 7)):
        assert sampler.start(2, seed=several).seeds.tolist() == [5, 6]  # type: ignore[arg-type]
    assert sampler.start(1, seed=np.int64(5)).seeds.tolist() == [5]  # type: ignore[arg-type]
    assert sampler.start(2).seeds.tolist() != sampler.start(2).seeds.tolist()


@backends
def test_the_high_half_of_a_seed_counts(backend: str) -> None:
    sampler, row = Sampler(backend=backend), torch.zeros(1, 10_000).expand(8, -1)
    tokens = sampler(row, sampler.start(8, seed=[bit << 32 for bit in range(8)])).tokens.tolist()
    assert len(set(tokens)) >= 7


@backends
def test_prompts_of_all_kinds(backend: str) -> None:
    """Lists, arrays and tensors, padded with negative ids on either side."""
    logits = torch.zeros(2, 6)
    prompts = [[1, 2], [3]], [np.array([1, 2]), np.array([3])], torch.tensor([[1, 2], [-1, 3]])
    for each in (*prompts, torch.tensor([[1, 2, -100], [3, -1, -1]]), np.array([[1, 2], [3, -1]])):
        rule = RepetitionPenalty(2.0)
        state = Sampler(rule).start(2, prompts=each)  # type: ignore[arg-type]
        found = laws(backend, logits + 1, rule, state=state)
        seen = [[token for token, chance in law.items() if chance < max(law.values())] for law in found]
        assert seen == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("logits", "error", "message"),
    [
        (torch.zeros(4), ValueError, r"logits are floats \[rows, vocabulary\], not torch.float32 \[4\]"),
        (torch.zeros(2, 1, 4), ValueError, r"logits are floats \[rows, vocabulary\]"),
        (torch.zeros(2, 4, dtype=torch.int64), ValueError, "not torch.int64"),
        (torch.zeros(3, 4), ValueError, "logits of 3 rows for a state of 2"),
        (torch.zeros(2, 0), ValueError, "logits of 0 tokens; there are 1 to"),
        (
            torch.zeros(1).expand(2, WIDEST + 1),
            ValueError,
            f"logits of {WIDEST + 1} tokens; there are 1 to {WIDEST}",
        ),
        (np.zeros((2, 4)), TypeError, "logits are a tensor, not ndarray"),
    ],
    ids=lambda value: str(getattr(value, "shape", value)),
)
def test_logits_are_refused(logits: Any, error: type[Exception], message: str) -> None:
    sampler = Sampler()
    with pytest.raises(error, match=message):
        sampler(logits, sampler.start(2))


@backends
def test_tokens_beyond_the_logits(backend: str) -> None:
    """What a rule names has to have a logit; what a prompt holds need not."""
    for rule in (LogitBias({4: 1.0}), AllowedTokens([0, 4]), BadWords([[4, 1]])):
        sampler = Sampler(rule, backend=backend)
        with pytest.raises(ValueError, match=f"{rule.parameter} names token 4, and there are 4 tokens"):
            sampler(torch.zeros(1, 4), sampler.start(1))
    rules = RepetitionPenalty(2.0), BadWords([[1, 2]])
    state = Sampler(*rules).start(1, prompts=[[900, 1]])
    (law,) = laws(backend, torch.ones(1, 4), *rules, state=state)
    assert law[1] < law[0] == law[2] == law[3]


@backends
def test_logits_that_want_a_gradient(backend: str) -> None:
    sampler = Sampler(backend=backend)
    assert sampler(torch.zeros(1, 4, requires_grad=True), sampler.start(1)).tokens.shape == (1,)


@backends
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_logits_of_all_floats(backend: str, dtype: torch.dtype) -> None:
    values = torch.tensor([[1.0, -2.0, 0.5, 0.0]])
    assert laws(backend, values.to(dtype)) == laws(backend, values)


# Rules of rows, orders.


@backends
def test_values_of_rows(backend: str) -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]]).expand(3, -1)
    counts = [1, 0, 2]
    for each in (counts, tuple(counts), np.array(counts), torch.tensor(counts)):
        found = kept(backend, logits, TopK(each))
        assert [len(row) for row in found] == [1, 4, 2]
    assert kept(backend, logits, AllowedTokens([[0], None, [1, 2]])) == [[0], [0, 1, 2, 3], [1, 2]]
    assert kept(backend, logits, BadWords([[[0]], None, [[1], [2]]])) == [[1, 2, 3], [0, 1, 2, 3], [0, 3]]
    assert kept(backend, logits, AllowedTokens(torch.tensor([3, 1]))) == [[1, 3]] * 3
    biases = [{0: -INF}, {}, {1: -INF, 2: np.float32(1.0)}]
    assert kept(backend, logits, LogitBias(biases)) == [[1, 2, 3], [0, 1, 2, 3], [0, 2, 3]]
    sampler = Sampler(TopK([1, 2]), backend=backend)
    for rows in (3, 0):
        with pytest.raises(ValueError, match=rf"TopK\(\[1, 2\]\) has values for 2 rows, not for {rows}"):
            sampler(torch.zeros(rows, 4), sampler.start(rows))


def test_orders() -> None:
    for name, order in ORDERS.items():
        assert order.name == name and sorted(order.stages) == sorted(STAGES)
        cuts = [stage in FILTERS for stage in order.stages if stage != "temperature"]
        assert cuts == sorted(cuts), "an edit after a filter"
    own = order_of(("logit_bias", "repetition_penalty", "top_p", "temperature"))
    assert sorted(own.stages) == sorted(STAGES)
    assert own.stages[:2] == ("logit_bias", "repetition_penalty")
    assert own.stages.index("temperature") == own.stages.index("top_p") + 1
    assert order_of(()).stages == ORDERS["vllm"].stages
    assert order_of(("temperature", "top_k")).stages[len(EDITS)] == "temperature"
    assert order_of(("temperature", "logit_bias", "top_k")).stages[:2] == ("temperature", "logit_bias")


@backends
def test_orders_make_a_difference(backend: str) -> None:
    """The examples by which engines are told apart."""
    masses = torch.tensor([[0.5, 0.2, 0.15, 0.15]]).log()
    assert kept(backend, masses, TopK(2), TopP(0.6)) == [[0]]
    assert kept(backend, masses, TopK(2), TopP(0.6), order="sglang") == [[0, 1]]
    slope = torch.tensor([[3.0, 2.0, 1.0]])
    assert kept(backend, slope, Temperature(0.5), TopP(0.8)) == [[0]]
    assert kept(backend, slope, Temperature(0.5), TopP(0.8), order="llama.cpp") == [[0, 1]]
    assert kept(backend, slope, Temperature(0.5), TopP(0.8), order="given") == [[0]]
    assert kept(backend, slope, TopP(0.8), Temperature(0.5), order="given") == [[0, 1]]
    # Min-p leaves 0.7 of the mass, of which 0.4 is more than half.
    flat = torch.tensor([[0.4, 0.3, 0.1, 0.1, 0.1]]).log()
    assert kept(backend, flat, MinP(0.3), TopP(0.5)) == [[0]]
    assert kept(backend, flat, MinP(0.3), TopP(0.5), order="hf") == [[0, 1]]
    bias, penalty = LogitBias({0: 2.0}), RepetitionPenalty(2.0)
    start = Sampler(bias, penalty).start(1, prompts=[[0]])
    logits = torch.tensor([[1.0, 0.0]])
    (biased_first,) = laws(backend, logits, bias, penalty, state=start)
    (penalised_first,) = laws(backend, logits, penalty, bias, order="given", state=start)
    assert biased_first[0] == pytest.approx(1 / (1 + math.exp(-1.5)), abs=1e-6)
    assert penalised_first[0] == pytest.approx(1 / (1 + math.exp(-2.5)), abs=1e-6)


@backends
@pytest.mark.parametrize(
    ("order", "repetition", "presence", "phrase"),
    [
        ("vllm", {0, 1}, {1}, False),
        ("hf", {0, 1}, {0, 1}, True),
        ("llama.cpp", {0, 1}, {0, 1}, True),
        ("sglang", {1}, {1}, False),
    ],
)
def test_what_orders_see_of_the_prompt(
    backend: str, order: str, repetition: set[int], presence: set[int], phrase: bool
) -> None:
    """The prompt is 0, the output 1; and 0 1 2 is a bad word."""

    def less_likely(rule: Any) -> set[int]:
        sampler = Sampler(rule, order=order)
        state = sampler.advance(sampler.start(1, prompts=[[0]]), [1])
        (law,) = laws(backend, torch.ones(1, 4), rule, state=state, order=order)
        return {token for token in range(4) if law.get(token, 0.0) < law[3]}

    assert less_likely(RepetitionPenalty(2.0)) == repetition
    assert less_likely(PresencePenalty(1.0)) == less_likely(FrequencyPenalty(1.0)) == presence
    assert less_likely(BadWords([[0, 1, 2]])) == ({2} if phrase else set())


@backends
def test_penalties_count_a_window(backend: str) -> None:
    """The last tokens of prompt and output as one text; 64 in llama.cpp's order; padding is none of them."""
    rule = FrequencyPenalty(1.0)

    def counts(prompt: list[int], output: list[int], **options: Any) -> list[int]:
        sampler = Sampler(rule, **options)
        state = sampler.start(1, prompts=[prompt])
        for token in output:
            state = sampler.advance(state, [token])
        (law,) = laws(backend, torch.zeros(1, 4), rule, state=state, **options)
        return [round(math.log(law[3] / law[token])) for token in range(3)]

    assert counts([0, 0, 1], [2, 0], order="hf") == [3, 1, 1]
    assert counts([0, 0, 1], [2, 0]) == [1, 0, 1]
    assert counts([0, 0, 1], [2, 0], order="hf", penalty_window=3) == [1, 1, 1]
    assert counts([0, 0, 1], [2, -1, 0, -1], order="hf", penalty_window=3) == [1, 1, 1]
    assert counts([0, 0, 1], [2, 0], penalty_window=1) == [1, 0, 0]
    assert counts([0, 0, 1], [2, 0], order="hf", penalty_window=0) == [0, 0, 0]
    assert counts([0] * 10 + [1] * 62, [2, 2], order="llama.cpp") == [0, 62, 2]


@backends
def test_phrases_end_in_their_last_token(backend: str) -> None:
    rule = BadWords([[0], [1, 2], [1, 1, 3]])
    sampler = Sampler(rule)
    state = sampler.start(1)
    for token, left in ((None, [1, 2, 3]), (1, [1, 3]), (-1, [1, 3]), (1, [1]), (2, [1, 2, 3])):
        state = state if token is None else sampler.advance(state, [token])
        assert kept(backend, torch.zeros(1, 4), rule, state=state) == [left]


@backends
def test_end_tokens_wait(backend: str) -> None:
    """Of the vocabulary, or of the caller; what counts is tokens generated, not steps."""
    rule = MinTokens([2, 0])
    for parts, options in (((VOCABULARY, rule), {}), ((rule,), {"end_tokens": [3]})):
        sampler = Sampler(*parts, **options)
        state = sampler.start(2, prompts=[[1, 1, 1], [1]])
        lengths = []
        for token in (0, -1, 0):
            lengths.append(
                [len(row) for row in kept(backend, torch.zeros(2, 4), *parts, state=state, **options)]
            )
            state = sampler.advance(state, [token, token])
        lengths.append([len(row) for row in kept(backend, torch.zeros(2, 4), *parts, state=state, **options)])
        assert lengths == [[3, 4], [3, 4], [3, 4], [4, 4]]


# States.


@backends
def test_states_are_values(backend: str) -> None:
    """Advancing makes another one; rows are picked, repeated and put in another order."""
    sampler = Sampler(PresencePenalty(1.0), backend=backend)
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    start = sampler.start(3, seed=4)
    state = sampler.advance(start, [5, -1, 7])
    assert (start.positions.tolist(), start.output.shape) == ([0, 0, 0], (3, 0))
    assert state.positions.tolist() == [1, 0, 1] and state.output.tolist() == [[5], [-1], [7]]
    assert len(state) == 3
    tokens = sampler(logits, state).tokens
    picked = state.rows([2, 0, 0])
    assert picked.seeds.tolist() == [6, 4, 4]
    assert sampler(logits[[2, 0, 0]], picked).tokens.tolist() == tokens[[2, 0, 0]].tolist()
    assert state.rows(torch.tensor([1])).positions.tolist() == [0]  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="rows are picked by their numbers, not by bool"):
        state.rows([True, False, True])
    for tokens in ([1, 2], torch.tensor([[1, 2, 3]])):
        with pytest.raises(ValueError, match="tokens for 3 rows"):
            sampler.advance(state, tokens)
    for tokens in ([0.5, 1, 2], torch.tensor([True, False, True])):
        with pytest.raises(TypeError, match="tokens are whole numbers"):
            sampler.advance(state, tokens)


@backends
def test_grammars_of_rows(backend: str) -> None:
    """One for all, one for each, or none for some; and each goes its own way."""
    logits = torch.zeros(2, 4)
    shared = Sampler(VOCABULARY, Constrain(TABLE), backend=backend)
    state = shared.start(2, seed=0)
    assert shared(logits, state).tokens.tolist() == [0, 0]
    state = shared.advance(state, [0, -1])
    found = kept(backend, logits, VOCABULARY, Constrain(TABLE), state=state)
    assert found == [[1, 3], [0]]
    other = regex("c|bb").compile(VOCABULARY)
    parts = VOCABULARY, Constrain([TABLE, None, other])
    sampler = Sampler(*parts)
    state = sampler.start(3, seed=0)
    assert kept(backend, torch.zeros(3, 4), *parts, state=state) == [[0], [0, 1, 2, 3], [1, 2]]
    state = sampler.advance(state, [0, 2, 1])
    assert kept(backend, torch.zeros(3, 4), *parts, state=state) == [[1, 3], [0, 1, 2, 3], [1]]
    state = state.rows([2, 0, 1])
    assert kept(backend, torch.zeros(3, 4), *parts, state=state) == [[1], [1, 3], [0, 1, 2, 3]]
    with pytest.raises(ValueError, match="Constrain has tables for 3 rows, not for 2"):
        sampler.start(2)
    assert Sampler(Constrain([None, None])).start(2).grammar is None


# What becomes of bad rows.


def settle(
    backend: str, logits: list[list[float]], *parts: Any, **options: Any
) -> tuple[list[int], list[int]]:
    sampler = Sampler(*parts, backend=backend, **options)
    draw = sampler(torch.tensor(logits), sampler.start(len(logits), seed=0))
    return draw.tokens.tolist(), draw.flags.tolist()


BAD = [[0.0, NAN_, 1.0], [0.0, INF, INF], [-INF, -INF, -INF], [NAN_, INF, 0.0]]
FLAGS = [NAN, INFINITE, EMPTY, NAN | INFINITE]


@backends
def test_bad_rows_are_flagged(backend: str) -> None:
    """No token, by default; and rows beside them are as they would be alone."""
    assert settle(backend, BAD) == ([-1] * 4, FLAGS)
    assert settle(backend, BAD, on_nan=2, on_infinite=1, on_empty=0) == ([2, 1, 0, 2], FLAGS)
    for policy, text in (
        ("on_nan", "is NaN"),
        ("on_infinite", r"is \+inf"),
        ("on_empty", "no token is left"),
    ):
        with pytest.raises(ValueError, match=text):
            settle(backend, BAD, **{policy: "raise"})
    with pytest.raises(ValueError, match=r"rows \[0, 3\]: the logit of a token that may be drawn is NaN"):
        settle(backend, BAD, on_nan="raise")
    with pytest.raises(ValueError, match="a policy is token 3, and there are 3 tokens"):
        settle(backend, BAD, on_nan=3)


@backends
def test_bad_rows_are_mended(backend: str) -> None:
    """NaN is out; +inf is all that counts; and a row may need more than one of them."""
    tokens, flags = settle(backend, BAD, on_nan="mend", on_infinite="mend", on_empty="mend")
    assert flags == FLAGS
    assert tokens[0] in (0, 2) and tokens[1] in (1, 2) and tokens[2] in (0, 1, 2) and tokens[3] == 1
    nothing = [[NAN_, NAN_, NAN_]]
    assert settle(backend, nothing, on_nan="mend") == ([-1], [NAN])
    assert settle(backend, nothing, on_nan="mend", on_empty=2) == ([2], [NAN])
    with pytest.raises(ValueError, match="no token is left"):
        settle(backend, nothing, on_nan="mend", on_empty="raise")


@backends
def test_the_graver_flag_counts(backend: str) -> None:
    both = [BAD[3]]
    assert settle(backend, both, on_infinite="mend") == ([-1], [NAN | INFINITE])
    assert settle(backend, both, on_infinite="raise") == ([-1], [NAN | INFINITE])
    assert settle(backend, both, on_nan="mend") == ([-1], [NAN | INFINITE])
    assert settle(backend, both, on_nan="mend", on_infinite=0) == ([0], [NAN | INFINITE])


@backends
def test_bad_logits_of_tokens_that_are_ruled_out(backend: str) -> None:
    """They are nobody's business."""
    logits = [[0.0, NAN_, INF, 0.0]]
    for rule in (AllowedTokens([0]), BadWords([[1], [2], [3]]), LogitBias({1: -INF, 2: -INF, 3: -INF})):
        assert settle(backend, logits, rule) == ([0], [0])
    assert settle(backend, logits, VOCABULARY, Constrain(TABLE)) == ([0], [0])


@backends
def test_an_empty_row_is_mended_within_its_grammar(backend: str) -> None:
    """First by leaving out the rules that emptied it; then by leaving out the logits."""
    parts = VOCABULARY, Constrain(TABLE), BadWords([[0]])
    assert settle(backend, [[0.0, 9.0, 9.0, 9.0]], *parts, on_empty="mend") == ([0], [EMPTY])
    assert settle(backend, [[-INF, 9.0, 9.0, 9.0]], *parts, on_empty="mend") == ([0], [EMPTY])
    # Without a grammar the logits decide, at the row's own temperature.
    forbidden = BadWords([[token] for token in range(4)])
    assert settle(backend, [[0.0, 1.0, 3.0, 2.0]], forbidden, Temperature(0), on_empty="mend") == (
        [2],
        [EMPTY],
    )
    alone = settle(backend, [[0.0, 1.0, 3.0, 2.0]], VOCABULARY, forbidden, on_empty="mend")
    beside = settle(
        backend, [[0.0, 1.0, 3.0, 2.0]] * 2, VOCABULARY, Constrain([None, TABLE]), forbidden, on_empty="mend"
    )
    assert beside[0][0] == alone[0][0], "a neighbour's grammar"


@backends
def test_the_raw_law_of_mended_rows(backend: str) -> None:
    """The probability under the logits as they came, of the token that was drawn in the end."""
    logits = torch.tensor([[0.0, 1.0, 3.0, 2.0]])
    rules = BadWords([[token] for token in range(4)])
    for policy in ("mend", 1):
        sampler = Sampler(rules, on_empty=policy, raw=True, top=4, backend=backend)
        draw = sampler(logits, sampler.start(1, seed=3))
        assert draw.raw is not None
        exact = logits.double().log_softmax(-1)[0, draw.tokens[0]]
        assert float(draw.raw.logprobs[0]) == pytest.approx(float(exact), abs=1e-5)
        assert float(draw.logprobs[0]) == (-INF if policy == 1 else pytest.approx(float(exact), abs=1e-5))


# Reports.


@backends
def test_reports_are_there_if_asked_for(backend: str) -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -INF], [NAN_, 0.0, 0.0, 0.0]])
    plain = Sampler(backend=backend)
    draw = plain(logits, plain.start(2, seed=0))
    assert draw.raw is None and draw.processed.entropy is None and draw.processed.top_tokens is None
    full = Sampler(TopK(2), top=6, entropy=True, raw=True, backend=backend)
    draw = full(logits, full.start(2, seed=0))
    assert draw.raw is not None and draw.raw.top_tokens is not None and draw.raw.entropy is not None
    assert draw.raw.top_tokens.tolist() == [[0, 1, 2, -1, -1, -1], [-1] * 6]
    processed: Tensor | None = draw.processed.top_tokens
    assert processed is not None and processed.tolist() == [[0, 1, -1, -1, -1, -1], [-1] * 6]
    assert draw.processed.entropy is not None
    assert draw.processed.entropy[1].isnan() and draw.logprobs[1] == -INF
    chance = 1 / (1 + math.exp(-1))
    entropy = -(chance * math.log(chance) + (1 - chance) * math.log(1 - chance))
    assert float(draw.processed.entropy[0]) == pytest.approx(entropy, abs=1e-6)


def test_parameters_know_their_names() -> None:
    assert set(STAGES) - {"grammar"} <= set(Parameters.names())
    assert not Parameters().sees_history and Parameters(presence_penalty=0.1).sees_history


def test_states_of_one_text_share_their_history() -> None:
    sampler = Sampler(RepetitionPenalty(1.5))
    states = [sampler.start(1, seed=0)]
    for token in range(100):
        states.append(sampler.advance(states[-1], [token]))
    for length, state in enumerate(states):
        assert state.output.tolist() == [list(range(length))]
    rooms = {id(state.room) for state in states[1:]}
    assert len(rooms) < 6
    other = sampler.advance(states[50], [7])
    assert other.output[0, -1] == 7 and states[51].output[0, -1] == 50
    assert sampler.advance(copy.deepcopy(states[50]), [8]).output[0, -1] == 8
    assert states[51].output[0, -1] == 50
    assert states[50].rows([0, 0]).output.tolist() == [list(range(50))] * 2


@pytest.mark.parametrize("order", ["vllm", "llama.cpp"])
def test_only_what_parameters_look_at_is_asked_for(order: str) -> None:
    parts = FrequencyPenalty([0.0, 0.5]), BadWords([[[1, 2, 3]], [[2]]])
    sampler = Sampler(*parts, order=order, penalty_window=5)
    state = sampler.start(2, seed=0)
    for token in range(20):
        state = sampler.advance(state, [token % 4, token % 3])
    request = sampler.request(state, 8)
    assert request.output.tolist() == state.output[:, -5:].tolist()
    paused = sampler.advance(state, [1, -1])
    assert sampler.request(paused, 8).output.shape == (2, 21)
    whole = Sampler(*parts, order=order, penalty_window=100)
    assert whole.request(state, 8).output.shape == (2, 20)


def test_states_of_other_samplers_are_refused() -> None:
    vocabulary = Vocabulary.of([b"a", b"b", b""], end_tokens=[2])
    constrained = Sampler(Constrain(regex("a").compile(vocabulary)))
    free = Sampler()
    logits = torch.zeros(1, 3)
    with pytest.raises(ValueError, match="this sampler has a grammar, and the state is of one that has no"):
        constrained(logits, free.start(1, seed=0))
    with pytest.raises(ValueError, match="this sampler has no grammar, and the state is of one that has a"):
        free(logits, constrained.start(1, seed=0))


def test_end_tokens_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="an end token is an id, not -1"):
        Sampler(MinTokens(2), end_tokens=[-1])
    sampler = Sampler(MinTokens(2), end_tokens=[500])
    with pytest.raises(ValueError, match="end token 500 is beyond logits of 5 tokens"):
        sampler(torch.zeros(1, 5), sampler.start(1, seed=0))


def test_logits_without_tokens_of_the_grammar_are_refused() -> None:
    vocabulary = Vocabulary.of([b"a", b"x", b"b", b"unused", b""], end_tokens=[1])
    sampler = Sampler(Constrain(regex("[ab]+").compile(vocabulary)))
    with pytest.raises(ValueError, match="token 2 of the grammar's vocabulary is beyond logits of 2 tokens"):
        sampler(torch.zeros(1, 2), sampler.start(1, seed=0))
    # Tokens that no text of the grammar has need no logits.
    assert sampler(torch.zeros(1, 3), sampler.start(1, seed=0)).tokens.item() in (0, 2)


@pytest.mark.parametrize("value", [10**400, -(10**400)])
@pytest.mark.parametrize("rule", [Temperature, TopK, MinTokens])
def test_numbers_beyond_floats_are_refused(rule: type[Rule], value: int) -> None:
    with pytest.raises(ValueError):
        rule(value)
