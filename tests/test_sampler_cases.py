"""Every backend against cases collected from engines' own tests and bug reports, with their sources.

Statistical cases run at fixed seeds, where a right sampler would fail with the chance `ALPHA`. Those that
peers run for minutes on a GPU are scaled down; each says how.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from laws import ALPHA, drawn, draws, fit, kept, laws, softmax
from torch import Tensor

from sortition.grammars.regex import regex
from sortition.grammars.vocabulary import Vocabulary
from sortition.sampling import noise
from sortition.sampling.draw import EMPTY, NAN, NO_TOKEN
from sortition.sampling.parameters import Parameters
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
    Temperature,
    TopK,
    TopNSigma,
    TopP,
    Typical,
)
from sortition.sampling.sampler import BACKENDS, Sampler
from sortition.sampling.state import State

pytestmark = pytest.mark.usefixtures("compiled")

Case = dict[str, Any]
FILE: Final = json.loads((Path(__file__).parent / "cases" / "sampler.json").read_text())

ORDER: Final = {"llama": "llama.cpp", "hf": "hf", "sgl_id": "sglang", "sgl_u1": "sglang"}
"""Which preset a source's cases are about; all others are vLLM's."""

NOT_BUILT: Final = {
    *("xtc", "dry", "dry_penalty", "dynamic_temperature", "top_h", "p_less", "no_repeat_ngram"),
    "encoder_repetition_penalty",
}
"""Ops that no rule is about."""

VERIFIED: Final = {
    *("spec_greedy", "spec_greedy_penalty", "spec_greedy_allowed", "spec_chain", "spec_verify_exact"),
}
"""Ops that `test_verify.py` and `test_verify_exact.py` judge."""

NOT_DRAWS: Final = {
    "u==0 accepts p==0",
    "q not the sampled law",
    "min_p/logit_bias ignored in verify",
    "bonus row mask after padded drafts",
}
"""Regressions that are about the verification of drafts."""

RULES: Final[dict[str, tuple[type, str]]] = {
    "temperature": (Temperature, "temperature"),
    "top_k": (TopK, "top_k"),
    "top_p": (TopP, "top_p"),
    "min_p": (MinP, "min_p"),
    "typical_p": (Typical, "typical_p"),
    "epsilon": (Epsilon, "epsilon"),
    "eta": (Eta, "eta"),
    "top_n_sigma": (TopNSigma, "n"),
}
"""Ops of one rule, and what their parameter is called."""


def order_of(case: Case) -> str:
    return ORDER.get(case["source"], "vllm")


def logits_of(given: Case) -> Tensor:
    """Logits [rows, vocabulary] of an input."""
    if "probs" in given:
        return (
            torch.tensor(given["probs"], dtype=torch.float64).log().float().reshape(-1, width(given["probs"]))
        )
    values = given["logits"]
    if isinstance(values, str) and values.startswith("ln(id)"):
        return torch.arange(given["n_vocab"]).double().log().float()[None]
    return torch.tensor([[float(each) for each in row] for row in values])


def width(values: list[Any]) -> int:
    return len(values[0]) if isinstance(values[0], list) else len(values)


def options_of(case: Case) -> dict[str, Any]:
    """What a sampler is told beside rules; transformers cut by threshold, so that ties stay."""
    least = max(1, case["params"].get("min_keep", 1))
    return {
        "order": order_of(case),
        "min_keep": least,
        "ties": "keep" if case["source"] == "hf" else "exact",
    }


def history_state(sampler: Sampler, histories: list[list[int]]) -> State:
    """The state of rows that have generated these tokens."""
    state = sampler.start(len(histories), seed=0)
    for step in range(max(map(len, histories))):
        tokens = [history[step] if step < len(history) else NO_TOKEN for history in histories]
        state = sampler.advance(state, tokens)
    return state


def check_probabilities(case: Case, found: dict[int, float], size: int) -> None:
    """Against a law that is listed by id, or by rank where tokens are missing or the case says so."""
    expected = case["expected"]["probs"]
    tolerance = case.get("tol", 1e-5)
    ranked = len(expected) != size or case.get("order") in ("sorted_desc", "by_id_sorted")
    values = [found.get(token, 0.0) for token in range(size)]
    if len(expected) != size:
        assert len(found) == len(expected)
        values = list(found.values())
    if ranked:
        values, expected = sorted(values), sorted(expected)
    total = sum(expected)
    assert values == pytest.approx([each / total for each in expected], abs=tolerance)


def check_kept(case: Case, found: list[list[int]]) -> None:
    """Against what the case says is right, or else what its engine keeps."""
    expected = case["expected"]
    for name in ("lowest_id_rule", "kept", "hf_kept"):
        if name in expected:
            assert found == expected[name]
            return
    assert [len(row) for row in found] == expected["kept_count"]


def single_rule(case: Case, backend: str) -> None:
    """An op of one rule, with the logits and what is left of them."""
    rule, name = RULES[case["op"]]
    if not case["input"]:
        off_or_refused(case)
        return
    if described := DESCRIBED.get(case["id"]):
        described(case, backend)
        return
    logits = logits_of(case["input"])
    found = laws(backend, logits, rule(case["params"][name]), **options_of(case))
    if "probs" in case["expected"]:
        check_probabilities(case, found[0], logits.shape[1])
    else:
        check_kept(case, [list(law) for law in found])


def off_or_refused(case: Case) -> None:
    """A value that an engine refuses and others take for all tokens is off here."""
    assert "disabled" in case["expected"].values()
    Parameters(**case["params"])


def filter_chain(case: Case, backend: str) -> None:
    """Filters in an order of their own: each prefix of the chain leaves this many tokens, from here to there.

    The peer counts a token whose logit is -inf where its filter does nothing; none is ever left here.
    """
    filters: dict[str, Callable[[Case], Any]] = {
        "k": lambda params: TopK(params["top_k"]),
        "p": lambda params: TopP(params["top_p"]),
        "m": lambda params: MinP(params["min_p"]),
    }
    logits = logits_of(case["input"])
    chain = [filters[letter](case["params"]) for letter in case["params"]["order"]]
    for stage, expected in enumerate(case["expected"]["stages"], 1):
        (found,) = kept(backend, logits, *chain[:stage], order="given")
        tokens = range(expected["min_id"], expected["max_id"] + 1)
        assert len(tokens) == expected["size"]
        assert found == [token for token in tokens if logits[0, token] > -math.inf]


def penalties(case: Case, backend: str) -> None:
    params = case["params"]
    rules = (
        RepetitionPenalty(params["repetition"]),
        FrequencyPenalty(params["frequency"]),
        PresencePenalty(params["presence"]),
    )
    logits = logits_of(case["input"])
    state = history_state(Sampler(*rules, order=order_of(case)), [params["history"]])
    (found,) = laws(backend, logits, *rules, state=state, order=order_of(case))
    check_probabilities(case, found, logits.shape[1])
    seen = {token: found[token] for token in params["history"]}
    assert max(seen.values()) < min(found[token] for token in found if token not in seen)


def penalty_of_logprobs(case: Case, backend: str) -> None:
    """Log-probabilities are negative, so a penalty of 2 doubles them."""
    logprobs = logits_of(case["input"]).log_softmax(-1)
    rule = RepetitionPenalty(case["params"]["penalty"])
    state = history_state(Sampler(rule, order="hf"), case["input"]["history"])
    for row, found in enumerate(laws(backend, logprobs, rule, state=state, order="hf")):
        penalised = logprobs[row].double()
        penalised[case["input"]["history"][row]] *= 2
        assert list(found.values()) == pytest.approx(softmax(penalised).tolist(), abs=1e-6)


def check_banned(case: Case, found: list[list[int]], size: int) -> None:
    banned = [[token for token in range(size) if token not in row] for row in found]
    assert banned == case["expected"]["banned"]


def bad_words(case: Case, backend: str) -> None:
    params, size = case["params"], case["input"]["n_vocab"]
    options = {"order": order_of(case), "end_tokens": [params["eos"]]}
    rule = BadWords(params["bad_words"])
    state = history_state(Sampler(rule, **options), case["input"]["history"])
    logits = torch.zeros(len(state), size)
    check_banned(case, kept(backend, logits, rule, state=state, **options), size)


def min_tokens(case: Case, backend: str) -> None:
    """Texts of some lengths, of which the first tokens are the prompt where the case has one."""
    params, given = case["params"], case["input"]
    ends = params["eos"] if isinstance(params["eos"], list) else [params["eos"]]
    prompt = given.get("prompt_len", 0)
    rule = MinTokens(params.get("min_new", params.get("min_length")))
    sampler = Sampler(rule, end_tokens=ends)
    generated = [[1] * max(0, length - prompt) for length in given["lengths"]]
    state = history_state(sampler, generated)
    logits = torch.zeros(len(generated), max(ends) + 2)
    found = kept(backend, logits, rule, state=state, end_tokens=ends)
    assert [not set(ends) & set(row) for row in found] == case["expected"]["eos_masked"]


def allowed_tokens(case: Case, backend: str) -> None:
    size, allowed = case["input"]["n_vocab"], case["params"]["allowed"]
    found = kept(backend, torch.zeros(len(allowed), size), AllowedTokens(allowed))
    check_banned(case, found, size)
    with pytest.raises(ValueError, match="allowed_tokens is empty"):
        AllowedTokens([])


def log_softmax(case: Case, backend: str) -> None:
    logits = logits_of(case["input"])
    sampler = Sampler(top=logits.shape[1], raw=True, backend=backend)
    draw = sampler(logits, sampler.start(len(logits), seed=0))
    for report in (draw.raw, draw.processed):
        assert report is not None and report.top_logprobs is not None and report.top_tokens is not None
        sums = report.top_logprobs.double().exp().sum(-1)
        assert sums.tolist() == pytest.approx([case["expected"]["exp_sums_to"]] * len(logits), abs=1e-6)
        exact = logits.double().log_softmax(-1).gather(1, report.top_tokens)
        assert torch.allclose(report.top_logprobs.double(), exact, atol=1e-5)


def all_masked(case: Case, backend: str) -> None:
    """No token, no exception, and a flag, whatever filters would look at the row."""
    logits = logits_of(case["input"])
    for rules in ((), *FILTERS):
        check_empty(backend, logits, *rules)


FILTERS: Final = (
    *(
        (rule,)
        for rule in (TopK(3), TopP(0.5), MinP(0.1), Typical(0.5), Epsilon(0.1), Eta(0.1), TopNSigma(1))
    ),
    (Temperature(0),),
)


def check_empty(backend: str, logits: Tensor, *parts: Any, **options: Any) -> None:
    sampler = Sampler(*parts, backend=backend, **options)
    draw = sampler(logits, sampler.start(len(logits), seed=0))
    assert draw.flags.tolist() == [EMPTY] * len(logits)
    assert draw.tokens.tolist() == [NO_TOKEN] * len(logits)
    assert draw.kept.tolist() == [0] * len(logits)
    assert draw.logprobs.tolist() == [-math.inf] * len(logits)


ACCEPTED_HERE: Final = {
    ("temperature", "0.001"): "means what it says, and is not raised",
    ("top_p", "0"): "keeps the likeliest, as in transformers and llama.cpp",
    ("presence_penalty", "3"): "llama.cpp's own tests use 5",
    ("seed", "-1"): "is a seed like any other: without one there is None",
    ("logit_bias", "200"): "accepted",
}
"""Values that vLLM refuses or reads in another way."""


def validation(case: Case, backend: str) -> None:
    """Texts like ``temperature=-1|nan`` with the peer's answer: refused alike, but where said otherwise."""
    for text, answer in case["params"]["cases"].items():
        name, values = text.split("=")
        for value in values.split("|"):
            if (name, value) in ACCEPTED_HERE:
                accepted(name, value)
                continue
            assert answer == "error", f"{text} is neither refused nor known"
            with pytest.raises(ValueError, match=name):
                Parameters(**{name: float(value) if "top_k" not in name else int(value)})


def accepted(name: str, value: str) -> None:
    if name == "seed":
        assert Sampler().start(1, seed=int(value)).seeds.tolist() == [int(value)]
    elif name == "logit_bias":
        Parameters(logit_bias={0: float(value)})
    else:
        Parameters(**{name: float(value)})


def philox(case: Case, backend: str) -> None:
    counter = tuple(np.array([int(word, 16)], np.uint64) for word in case["input"]["counter"])
    low, high = (np.uint64(int(word, 16)) for word in case["input"]["key"])
    words = noise.philox(counter, (low, high))  # type: ignore[arg-type]
    assert [f"{int(word[0]):08x}" for word in words] == case["expected"]["words"]


# Cases whose inputs are described in words.

OPERATORS: Final = {"==": operator.eq, "<=": operator.le, ">=": operator.ge}


def few_finite(case: Case, backend: str) -> None:
    logits = torch.full((1, case["input"]["n_vocab"]), -math.inf)
    logits[0, torch.arange(case["input"]["finite"]) * 997] = torch.randn(case["input"]["finite"])
    for top_k, text in zip(case["params"]["top_k"], case["expected"]["kept_count"], strict=True):
        (found,) = kept(backend, logits, TopK(top_k))
        assert OPERATORS[text[:2]](len(found), int(text[2:]))


def mixed_rows(case: Case, backend: str) -> None:
    """Rows with a mask, rows without top-k, and plain rows in one batch: each as it would be alone."""
    params, size, masked = case["params"], 32_000, 30
    logits = torch.randn(8, size, generator=torch.Generator().manual_seed(0)) * 3
    logits[:3, masked:] = -math.inf
    found = kept(backend, logits, TopK(params["top_k"]), TopP(params["top_p"]))
    for row, tokens in enumerate(found):
        rules = TopK(params["top_k"][row]), TopP(params["top_p"][row])
        assert kept(backend, logits[row : row + 1], *rules) == [tokens]
    assert all(0 < len(row) < masked for row in found[:3])


def tied_thousands(case: Case, backend: str) -> None:
    logits = torch.full((1, 128_256), -math.inf)
    logits[0, :1000], logits[0, 1000:2000] = 1.0, 0.0
    found = [kept(backend, logits, TopP(case["params"]["top_p"]))[0] for _ in range(2)]
    assert found == [list(range(case["expected"]["kept_count_float64"]))] * 2


def strided(case: Case, backend: str) -> None:
    rows, size = case["input"]["shape"]
    wide = torch.full((rows, case["input"]["row_stride"]), 7.0)
    wide[:, :size] = torch.linspace(10, -10, size) + torch.arange(rows)[:, None] / 1000
    before = wide.clone()
    rules = TopK(case["params"]["top_k"]), TopP(case["params"]["top_p"])
    assert laws(backend, wide[:, :size], *rules) == laws(backend, wide[:, :size].contiguous(), *rules)
    assert torch.equal(wide, before)


def far_apart(case: Case, backend: str) -> None:
    """Two rows more than 2^31 elements apart, in memory of which hardly any is touched."""
    size = 131_072
    try:
        memory = torch.empty(2**31 + 2 * size, dtype=torch.bfloat16)
    except RuntimeError:
        pytest.skip("4 GiB cannot be set aside")
    rows = memory.as_strided((2, size), (2**31 + size, 1))
    rows[:] = torch.randn(size).bfloat16()
    first, last = kept(backend, rows, TopK(case["params"]["top_k"]))
    assert first == last and len(first) == case["params"]["top_k"]


def empty_rows(case: Case, backend: str) -> None:
    check_empty(backend, torch.full((2, 1000), -math.inf), TopK(50), TopP(case["params"]["top_p"]))


def equal_finite(case: Case, backend: str) -> None:
    for finite in map(int, re.findall(r"\d+", case["input"]["finite"].split("}")[0])):
        logits = torch.full((1, 1000), -math.inf)
        logits[0, :finite] = 1.0
        rules = TopK(max(1, finite - 1)), TopP(case["params"]["top_p"])
        (law,) = laws(backend, logits, *rules)
        assert law and sum(law.values()) == pytest.approx(1, abs=1e-6)


def above_least(case: Case, backend: str) -> None:
    """Whatever is drawn is at least min_p times as likely as the likeliest."""
    row = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    chances = softmax(row)
    for min_p in case["params"]["min_p"]:
        tokens = drawn(backend, row, 200, MinP(min_p))
        assert (chances[tokens] >= min_p * chances.max() * (1 - 1e-6)).all()


def counted_ties(case: Case, backend: str) -> None:
    logits = torch.randint(0, 8, (16, 200), generator=torch.Generator().manual_seed(2)).float()
    for top_k in (1, 10, 50):
        for row, tokens in enumerate(kept(backend, logits, TopK(top_k))):
            values = logits[row]
            least = values.sort(descending=True).values[top_k - 1]
            greater = torch.nonzero(values > least)[:, 0].tolist()
            ties = torch.nonzero(values == least)[:, 0].tolist()
            assert tokens == sorted([*greater, *ties[: top_k - len(greater)]])


def coverage(case: Case, backend: str) -> None:
    """20 draws for each token, as the peer has, and every weight once where the peer has it 200 times."""
    size = 1_000
    chances = np.arange(500, 1500).astype(np.float64)
    tokens = drawn(backend, torch.from_numpy(chances).log().float(), 20 * size)
    assert len(np.unique(tokens)) > 0.99 * size
    assert fit(tokens, chances) > ALPHA


def zero_mass(case: Case, backend: str) -> None:
    """Every other token is impossible; half a million draws become as many as the backend has time for."""
    chances = np.arange(1, 33) * (np.arange(32) % 2 == 0)
    tokens = drawn(backend, torch.from_numpy(chances.astype(np.float64)).log().float(), draws(backend))
    assert fit(tokens, chances.astype(np.float64)) > ALPHA


def odd_sizes(case: Case, backend: str) -> None:
    for size in case["input"]["n_vocab"]:
        row = torch.randn(size, generator=torch.Generator().manual_seed(size))
        assert fit(drawn(backend, row, draws(backend) // 4), softmax(row)) > ALPHA


def all_nan(case: Case, backend: str) -> None:
    """The peer draws some id; here no id can be mistaken for one, and mending finds nothing but a tie."""
    logits = torch.full((1, 999), math.nan)
    for temperature in case["params"]["temperature"]:
        for policy, token in (("flag", NO_TOKEN), (5, 5)):
            sampler = Sampler(Temperature(temperature), on_nan=policy, backend=backend)
            draw = sampler(logits, sampler.start(1, seed=0))
            assert (draw.tokens.tolist(), draw.flags.tolist()) == ([token], [NAN])


def no_certain_noise(case: Case, backend: str) -> None:
    """Of all words of the noise, the extreme ones make the greatest and the least: both finite, below 40."""
    extremes = noise.gumbel(np.array([0, 1, 2**31, 2**32 - 2, 2**32 - 1], np.uint32))
    assert np.isfinite(extremes).all() and (np.diff(extremes) < 0).all() and extremes[0] < 40
    size, legal = 248_320, 248_077
    row = torch.zeros(size)
    row[case["input"]["column"]] = -40
    row[legal:] = -math.inf
    sampler = Sampler(backend=backend)
    state = sampler.start(1, seed=case["input"]["seed"])
    for position in (0, case["input"]["position"]):
        at = State(state.seeds, state.positions + position, state.prompt, state.output)
        assert 0 <= int(sampler(row[None], at).tokens[0]) < legal


def no_op_filter(case: Case, backend: str) -> None:
    params = case["params"]
    row = torch.randn(1, case["input"]["n_vocab"], generator=torch.Generator().manual_seed(3))
    plain = Sampler(backend=backend)
    for position in range(params["position"] + 1):
        start = plain.start(1, seed=params["seed"])
        state = State(start.seeds, start.positions + position, start.prompt, start.output)
        for rules in ((TopK(params["top_k"]),), (TopP(1.0),), (MinP(0.0),), (TopK(0), Typical(1.0))):
            assert Sampler(*rules, backend=backend)(row, state).tokens == plain(row, state).tokens


DESCRIBED: Final[dict[str, Callable[[Case, str], None]]] = {
    "vllm/few_valid_topk": few_finite,
    "vllm/grammar_rows_topp": mixed_rows,
    "vllm/topp_tie_1000": tied_thousands,
    "vllm/noncontig": strided,
    "vllm/int64_rows": far_apart,
    "vllm/all_neginf": empty_rows,
    "vllm/neginf_equal": equal_finite,
    "vllm/gumbel_gof": coverage,
    "vllm/gumbel_zero_mass": zero_mass,
    "vllm/gumbel_odd_vocab": odd_sizes,
    "vllm/gumbel_nan": all_nan,
    "fi/minp_rule": above_least,
    "fi/topk_ties": counted_ties,
    "sgl/u1": no_certain_noise,
    "sgl/noop_topk": no_op_filter,
}


def described(case: Case, backend: str) -> None:
    DESCRIBED[case["id"]](case, backend)


JUDGES: Final[dict[str, Callable[[Case, str], None]]] = {
    **dict.fromkeys(RULES, single_rule),
    **dict.fromkeys(("top_k_top_p", "top_k_renorm", "gumbel_sample"), described),
    "filter_chain": filter_chain,
    "penalties": penalties,
    "repetition_penalty_logprob": penalty_of_logprobs,
    "bad_words": bad_words,
    "min_tokens": min_tokens,
    "min_new_tokens": min_tokens,
    "allowed_tokens": allowed_tokens,
    "log_softmax": log_softmax,
    "any": all_masked,
    "validation": validation,
    "philox4x32_10": philox,
}


# Bugs that engines have had.


def greedy_and_one(given: Case, backend: str) -> None:
    row = torch.tensor(given["logits"]).float()
    for rule in (TopK(given["top_k"]), Temperature(0)):
        assert set(drawn(backend, row, 100, rule)) == {0}


def ties_over(given: Case, backend: str) -> None:
    (law,) = laws(backend, logits_of(given), TopK(given["top_k"]))
    assert law == pytest.approx({0: 4 / 7, 1: 3 / 7}, abs=1e-6)


def nan_row(given: Case, backend: str) -> None:
    logits = torch.tensor([[math.nan, math.nan], given["row1"]])
    sampler = Sampler(backend=backend)
    state = sampler.start(2, seed=0)
    draw = sampler(logits, state)
    assert draw.flags.tolist() == [NAN, 0] and int(draw.tokens[0]) == NO_TOKEN
    assert draw.tokens[1] == sampler(logits[1:], state.rows([1])).tokens[0]


def more_than_all(given: Case, backend: str) -> None:
    row = torch.full((32_000,), -math.inf)
    row[1] = 0.0
    assert set(drawn(backend, row, 20, TopK(given["top_k"]), TopP(given["top_p"]))) == {1}


def crossing_token(given: Case, backend: str) -> None:
    """At least the share, and not without the least likely that is left."""
    logits = torch.randn(50, given["V"], generator=torch.Generator().manual_seed(6)) * 2
    for row, tokens in enumerate(kept(backend, logits, TopP(given["top_p"]))):
        chances = softmax(logits[row])[tokens]
        assert chances.sum() >= given["top_p"] - 1e-6
        assert chances.sum() - chances.min() < given["top_p"] + 1e-6


def seeds_of_rows(given: Case, backend: str) -> None:
    row = torch.zeros(1, 1000)
    seeds = given["seeds"]
    sampler = Sampler(backend=backend)
    together = sampler(row.expand(4, -1), sampler.start(4, seed=seeds)).tokens.tolist()
    alone = [int(sampler(row, sampler.start(1, seed=[seed])).tokens[0]) for seed in seeds]
    back = sampler(row.expand(4, -1), sampler.start(4, seed=seeds[::-1])).tokens.tolist()
    assert together == alone == back[::-1]
    assert len(set(together)) == 4


def finite_noise(given: Case, backend: str) -> None:
    no_certain_noise(
        {"input": {"seed": given["seed"], "position": given["position"], "column": given["token"]}}, backend
    )


def filtered_neighbour(given: Case, backend: str) -> None:
    logits = torch.randn(2, given["V"], generator=torch.Generator().manual_seed(9))
    sampler = Sampler(TopK([0, given["mate_top_k"]]), backend=backend)
    state = sampler.start(2, seed=[given["seed"], 1])
    state = State(state.seeds, state.positions + given["pos"], state.prompt, state.output)
    alone = Sampler(backend=backend)(logits[:1], state.rows([0]))
    assert sampler(logits, state).tokens[0] == alone.tokens[0]


def min_p_and_seed(given: Case, backend: str) -> None:
    row = logits_of(given)[0]
    tokens = drawn(backend, row, 128, MinP(given["min_p"]))
    assert set(tokens) == {1, 3}
    many = drawn(backend, row, draws(backend), MinP(given["min_p"]))
    assert fit(many, np.array([0, 0.55, 0, 0.3]) / 0.85) > ALPHA


def tail(given: Case, backend: str) -> None:
    """Where floats would starve it: how often noise exceeds a gap, counted over words instead of 10^10 draws.

    Noise from 24 bits ends at 17.3; words number 2^32 exp(-gap) above a gap.
    """
    words = np.arange(2**20, dtype=np.uint32)
    u = (words.astype(np.float64) + 0.5) * 2.0**-32
    exact = -np.log(-np.log1p(-u))
    assert np.abs(noise.gumbel(words) - exact).max() < 4e-6
    expected = given["tail_tokens"] * given["trials"] * -math.expm1(-math.exp(-given["gap"]))
    assert expected == pytest.approx(32.8, rel=0.01)
    hits = int((noise.gumbel(words) > given["gap"]).sum()) * 2.0**-32 * given["tail_tokens"] * given["trials"]
    assert hits == pytest.approx(expected, rel=0.1)


def nothing_left(given: Case, backend: str) -> None:
    """The grammar wants the end, and the end may not come yet."""
    vocabulary = Vocabulary.of([b"a", b"b", b"", b"c"], end_tokens=[2])
    parts = vocabulary, Constrain(regex("").compile(vocabulary)), MinTokens(given["min_tokens"])
    logits = torch.zeros(1, 4)
    check_empty(backend, logits, *parts)
    mending = Sampler(*parts, on_empty="mend", backend=backend)
    draw = mending(logits, mending.start(1, seed=0))
    assert (draw.tokens.tolist(), draw.flags.tolist()) == ([2], [EMPTY])
    with pytest.raises(ValueError, match="no token is left"):
        check_empty(backend, logits, *parts, on_empty="raise")


def eta_of_nothing(given: Case, backend: str) -> None:
    check_empty(backend, logits_of({"logits": [given["logits"]]}), Eta(0.1))


def off_by_one(given: Case, backend: str) -> None:
    assert kept(backend, logits_of(given), TopP(given["top_p"])) == [[0, 1]]


def stale_rows(given: Case, backend: str) -> None:
    size = 3000
    logits = torch.randn(8, size, generator=torch.Generator().manual_seed(27))
    ks = [5, size, 5, size, size, 7, 1, size]
    found = kept(backend, logits, TopK(ks))
    assert [len(row) for row in found] == ks
    assert all(found[row] == kept(backend, logits[row : row + 1], TopK(ks[row]))[0] for row in range(8))


def listed_once(given: Case, backend: str) -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(28)) * 4
    sampler = Sampler(top=5, raw=True, backend=backend)
    draw = sampler(logits, sampler.start(4, seed=0))
    for report in (draw.raw, draw.processed):
        assert report is not None and report.top_tokens is not None and report.top_logprobs is not None
        for row, tokens in enumerate(report.top_tokens.tolist()):
            assert len(set(tokens)) == 5
            if int(draw.tokens[row]) in tokens:
                at = tokens.index(int(draw.tokens[row]))
                assert report.top_logprobs[row, at] == report.logprobs[row]


def seeds_differ(given: Case, backend: str) -> None:
    row = torch.zeros(1000)
    first, second = (drawn(backend, row, 1, seed=seed) for seed in given["seed"])
    assert first != second and first == drawn(backend, row, 1, seed=given["seed"][0])


REGRESSION_JUDGES: Final[dict[str, Callable[[Case, str], None]]] = {
    "top_k=1 vs greedy": greedy_and_one,
    "tie over-acceptance": ties_over,
    "NaN row": nan_row,
    "one-hot + k > V": more_than_all,
    "top-p boundary": crossing_token,
    "per-row seeds": seeds_of_rows,
    "u==1 -> +inf": finite_noise,
    "rank-space noise": filtered_neighbour,
    "min_p + seed": min_p_and_seed,
    "tail truncation": tail,
    "empty support": nothing_left,
    "eta on all -inf": eta_of_nothing,
    "top-p off by one": off_by_one,
    "stale histogram": stale_rows,
    "duplicate top_logprobs": listed_once,
    "seed dropped at an endpoint": seeds_differ,
}


CASES: Final = [case for case in FILE["cases"] if case["op"] not in NOT_BUILT | VERIFIED]
REGRESSIONS: Final = [each for each in FILE["regressions"] if each["kind"] not in NOT_DRAWS]


def test_every_case_is_judged_or_known_not_to_be_built() -> None:
    ops = Counter(case["op"] for case in FILE["cases"])
    assert set(ops) <= set(JUDGES) | VERIFIED | NOT_BUILT and not set(JUDGES) & (VERIFIED | NOT_BUILT)
    assert (len(CASES), len(FILE["cases"]) - len(CASES)) == (71, 37)
    kinds = {each["kind"] for each in FILE["regressions"]}
    assert kinds == set(REGRESSION_JUDGES) | NOT_DRAWS
    assert (len(REGRESSIONS), len(NOT_DRAWS)) == (16, 4)


@pytest.mark.parametrize("backend", sorted(BACKENDS))
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["id"]))
def test_case(case: Case, backend: str) -> None:
    JUDGES[case["op"]](case, backend)


@pytest.mark.parametrize("backend", sorted(BACKENDS))
@pytest.mark.parametrize("case", REGRESSIONS, ids=lambda case: f"{case['id']} {case['kind']}")
def test_regression(case: Case, backend: str) -> None:
    REGRESSION_JUDGES[case["kind"]](case["input"], backend)


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_llama_bias(backend: str) -> None:
    """A bias moves logits by itself, and -inf rules out."""
    (law,) = laws(backend, torch.zeros(1, 4), LogitBias({1: math.log(2), 3: -math.inf}), order="llama.cpp")
    assert law == pytest.approx({0: 0.25, 1: 0.5, 2: 0.25}, abs=1e-6)
