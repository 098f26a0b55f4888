"""What holds of every draw, whatever the logits and parameters: laws, on every backend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from laws import ALPHA, drawn, draws, fit, kept, laws, softmax
from torch import Tensor

from sortition.grammars.regex import regex
from sortition.grammars.vocabulary import Vocabulary
from sortition.sampling import noise
from sortition.sampling.draw import NO_TOKEN, Draw, Report
from sortition.sampling.parameters import FILTERS, ORDERS
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
from sortition.sampling.state import State

pytestmark = pytest.mark.usefixtures("compiled")

backends = pytest.mark.parametrize("backend", sorted(BACKENDS))
some = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

RULES: Final[dict[str, type[Rule]]] = {
    rule.parameter: rule
    for rule in (
        *(
            Temperature,
            TopK,
            TopP,
            MinP,
            Typical,
            Epsilon,
            Eta,
            TopNSigma,
            AllowedTokens,
            BadWords,
            MinTokens,
        ),
        *(RepetitionPenalty, PresencePenalty, FrequencyPenalty, LogitBias),
    )
}


@dataclass(frozen=True)
class Batch:
    """Rows, each with parameters and a history of its own, all as long; one token is generated per step."""

    logits: Tensor
    parameters: list[dict[str, Any]]
    prompts: list[list[int]]
    outputs: list[list[int]]
    seeds: list[int]
    order: str
    ties: str

    def sampler(self, backend: str, rows: Sequence[int]) -> Sampler:
        rules = [rule([self.parameters[row][name] for row in rows]) for name, rule in RULES.items()]
        return Sampler(
            *rules,
            order=self.order,
            ties=self.ties,  # type: ignore[arg-type]
            end_tokens=[0],
            top=5,
            entropy=True,
            raw=True,
            backend=backend,
        )

    def state(self, sampler: Sampler, rows: Sequence[int]) -> State:
        state = sampler.start(
            len(rows), seed=[self.seeds[row] for row in rows], prompts=[self.prompts[row] for row in rows]
        )
        for step in range(max(len(self.outputs[row]) for row in rows)):
            state = sampler.advance(state, [self.outputs[row][step] for row in rows])
        return state

    def draw(self, backend: str, rows: Sequence[int]) -> Draw:
        sampler = self.sampler(backend, rows)
        return sampler(self.logits[list(rows)], self.state(sampler, rows))

    @property
    def rows(self) -> list[int]:
        return list(range(len(self.seeds)))


def a_row_of_logits(seed: int, size: int, kind: str) -> Tensor:
    draw = np.random.default_rng(seed)
    values = draw.normal(size=size).astype(np.float32) * {"wide": 12.0, "flat": 0.01}.get(kind, 3.0)
    if kind == "tied":
        values = np.round(values)
    if kind == "huge":
        values = draw.choice(np.float32([-3.4e38, -1e30, 0, 1, 3.4e38]), size)
    if kind == "holes":
        values[draw.random(size) < 0.5] = -np.inf
    if kind == "broken":
        values[draw.random(size) < 0.1] = draw.choice([np.nan, np.inf, -np.inf])
    return torch.from_numpy(values.astype(np.float32))


KINDS: Final = ("normal", "normal", "wide", "flat", "tied", "huge", "holes", "broken")


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    size = draw(st.sampled_from([1, 2, 6, 33, 150]))
    rows = draw(st.integers(1, 5))
    token = st.integers(0, size - 1)

    def pick(*values: Any) -> Any:
        return draw(st.sampled_from([values[0], *values]))

    def tokens(most: int) -> list[int]:
        return draw(st.lists(token, max_size=most))

    parameters = [
        {
            "temperature": pick(1.0, 0.0, 1e-4, 0.5, 3.0, 1e6),
            "top_k": pick(0, 1, 3, 40, 10**9),
            "top_p": pick(1.0, 0.0, 1e-9, 0.5, 0.95, 0.999),
            "min_p": pick(0.0, 1e-9, 0.1, 1.0),
            "typical": pick(1.0, 0.3, 0.9),
            "epsilon": pick(0.0, 0.01, 0.9),
            "eta": pick(0.0, 0.01, 0.9),
            "top_n_sigma": pick(0.0, 0.5, 2.0),
            "allowed_tokens": pick(None, [*tokens(4), 0]),
            "bad_words": pick(None, [[draw(token)], [*tokens(2), draw(token)]]),
            "min_tokens": pick(0, 2, 9),
            "repetition_penalty": pick(1.0, 0.5, 1.7),
            "presence_penalty": pick(0.0, -1.0, 0.5),
            "frequency_penalty": pick(0.0, -0.3, 0.7),
            "logit_bias": pick({}, {draw(token): pick(1.5, -4.0, -math.inf)}),
        }
        for _ in range(rows)
    ]
    kinds = [draw(st.sampled_from(KINDS)) for _ in range(rows)]
    logits = torch.stack([a_row_of_logits(draw(st.integers(0, 999)), size, kind) for kind in kinds])
    steps = draw(st.integers(0, 4))
    return Batch(
        logits=logits.to(draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))),
        parameters=parameters,
        prompts=[tokens(4) for _ in range(rows)],
        outputs=[draw(st.lists(token, min_size=steps, max_size=steps)) for _ in range(rows)],
        seeds=[draw(st.integers(-(2**63), 2**64 - 1)) for _ in range(rows)],
        order=draw(st.sampled_from(sorted(ORDERS))),
        ties=draw(st.sampled_from(["exact", "keep"])),
    )


def bits(draw: Draw, row: int) -> list[bytes]:
    """All that a draw says about a row, to the bit."""
    parts = [draw.tokens, draw.kept, draw.flags]
    for report in (draw.processed, draw.raw):
        assert report is not None
        parts += [part for part in report.parts if part is not None]
    return [part[row].numpy().tobytes() for part in parts]


@backends
@some
@given(batch=batches(), data=st.data())
def test_rows_know_nothing_of_each_other(backend: str, batch: Batch, data: st.DataObject) -> None:
    """A batch, its rows alone, in another order, twice, or split: the same bits."""
    whole = batch.draw(backend, batch.rows)
    chosen = data.draw(st.lists(st.sampled_from(batch.rows), min_size=1, max_size=7))
    picked = batch.draw(backend, chosen)
    assert [bits(picked, at) for at in range(len(chosen))] == [bits(whole, row) for row in chosen]
    cut = data.draw(st.integers(0, len(batch.rows)))
    for part in filter(None, (batch.rows[:cut], batch.rows[cut:])):
        split = batch.draw(backend, part)
        assert [bits(split, at) for at in range(len(part))] == [bits(whole, row) for row in part]


@backends
@some
@given(batch=batches(), data=st.data())
def test_padding_is_nothing(backend: str, batch: Batch, data: st.DataObject) -> None:
    """Negative ids in prompts, before, after and between, and steps in which a row generates nothing."""
    sampler = batch.sampler(backend, batch.rows)
    plain = sampler(batch.logits, batch.state(sampler, batch.rows))

    def with_holes(tokens: list[int]) -> list[int]:
        holes = data.draw(st.lists(st.integers(0, len(tokens)), max_size=3))
        for at in holes:
            tokens = [*tokens[:at], -1 - at, *tokens[at:]]
        return tokens

    prompts = [with_holes(prompt) for prompt in batch.prompts]
    outputs = [with_holes(output) for output in batch.outputs]
    longest = max(map(len, outputs))
    outputs = [[*output, *[NO_TOKEN] * (longest - len(output))] for output in outputs]
    padded = replace(batch, prompts=prompts, outputs=outputs)
    draw = sampler(batch.logits, padded.state(sampler, batch.rows))
    assert [bits(draw, row) for row in batch.rows] == [bits(plain, row) for row in batch.rows]


@backends
@some
@given(batch=batches())
def test_calling_changes_nothing(backend: str, batch: Batch) -> None:
    """Neither logits nor state; so a second call gives the same, and so does a state picked from another."""
    sampler = batch.sampler(backend, batch.rows)
    state, before = batch.state(sampler, batch.rows), batch.logits.clone()
    first, second = sampler(batch.logits, state), sampler(batch.logits, state.rows(batch.rows))
    assert [bits(first, row) for row in batch.rows] == [bits(second, row) for row in batch.rows]
    assert torch.equal(batch.logits.view(torch.uint8), before.view(torch.uint8))


@backends
@some
@given(batch=batches(), offset=st.integers(0, 7), gap=st.integers(0, 5))
def test_where_logits_lie_does_not_matter(backend: str, batch: Batch, offset: int, gap: int) -> None:
    rows, size = batch.logits.shape
    room = torch.full((rows, offset + (size + gap) * 2), 9.0, dtype=batch.logits.dtype)
    strided = room[:, offset : offset + 2 * size : 2]
    strided.copy_(batch.logits)
    moved = replace(batch, logits=strided).draw(backend, batch.rows)
    columns = replace(batch, logits=batch.logits.t().contiguous().t()).draw(backend, batch.rows)
    plain = batch.draw(backend, batch.rows)
    for row in batch.rows:
        assert bits(moved, row) == bits(plain, row) == bits(columns, row)


@backends
@some
@given(batch=batches())
def test_what_is_drawn_can_be_drawn(backend: str, batch: Batch) -> None:
    """A token that is left, with its probability; probabilities add up; and flags where there is none."""
    sampler = batch.sampler(backend, batch.rows)
    full = Sampler(
        *sampler._rules, order=batch.order, ties=batch.ties, end_tokens=[0], backend=backend, top=200
    )  # type: ignore[arg-type]
    draw = full(batch.logits, batch.state(sampler, batch.rows))
    tokens, logprobs = draw.processed.top_tokens, draw.processed.top_logprobs
    assert tokens is not None and logprobs is not None
    for row in batch.rows:
        if draw.flags[row]:
            assert (int(draw.tokens[row]), int(draw.kept[row])) == (NO_TOKEN, 0)
            continue
        left = tokens[row][tokens[row] >= 0].tolist()
        assert len(left) == len(set(left)) == int(draw.kept[row])
        assert int(draw.tokens[row]) in left
        assert float(logprobs[row].double().exp().sum()) == pytest.approx(1, abs=1e-6)
        assert draw.logprobs[row] == logprobs[row, left.index(int(draw.tokens[row]))]
        assert draw.logprobs[row] > -80, "a token without mass"
        assert (logprobs[row].diff().nan_to_num(0) <= 0).all()
        parameters = batch.parameters[row]
        assert parameters["allowed_tokens"] is None or set(left) <= set(parameters["allowed_tokens"])
        assert not {token for token, bias in parameters["logit_bias"].items() if bias == -math.inf} & set(
            left
        )
        assert batch.logits[row, left].isfinite().all()
        if parameters["min_tokens"] > len(batch.outputs[row]):
            assert 0 not in left


# One rule at a time, against its definition.


@st.composite
def rows_of_logits(
    draw: st.DrawFn, kinds: Sequence[str] = ("normal", "wide", "flat", "tied", "holes")
) -> Tensor:
    size = draw(st.sampled_from([1, 2, 9, 100, 1000]))
    row = a_row_of_logits(draw(st.integers(0, 9999)), size, draw(st.sampled_from(kinds)))
    return row if row.isfinite().any() else torch.zeros(size)


MONOTONE: Final[dict[str, tuple[type[Rule], list[Any]]]] = {
    "top_k": (TopK, [1, 2, 3, 10, 99, 1000]),
    "top_p": (TopP, [0.0, 1e-9, 0.1, 0.5, 0.9, 0.999, 1.0]),
    "min_p": (MinP, [1.0, 0.5, 0.1, 1e-3, 1e-9, 0.0]),
    "typical": (Typical, [1e-9, 0.1, 0.5, 0.9, 0.999, 1.0]),
    "epsilon": (Epsilon, [0.9, 0.5, 0.1, 1e-3, 1e-9, 0.0]),
    "eta": (Eta, [0.9, 0.5, 0.1, 1e-3, 1e-9, 0.0]),
    "top_n_sigma": (TopNSigma, [0.01, 0.5, 1.0, 2.0, 5.0, 100.0, 0.0]),
}
"""Values that leave ever more tokens; the last of each leaves all."""


def test_every_filter_is_monotone_in_its_parameter() -> None:
    assert set(MONOTONE) == set(FILTERS)


@backends
@pytest.mark.parametrize("name", sorted(MONOTONE))
@pytest.mark.parametrize("ties", ["exact", "keep"])
@settings(max_examples=15, deadline=None)
@given(row=rows_of_logits())
def test_looser_filters_leave_more(backend: str, name: str, ties: str, row: Tensor) -> None:
    rule, values = MONOTONE[name]
    found = [set(each) for each in kept(backend, row.expand(len(values), -1), rule(values), ties=ties)]
    assert all(tight <= loose for tight, loose in pairwise(found))
    assert found[-1] == set(torch.nonzero(row > -math.inf)[:, 0].tolist())
    assert found[0]


@backends
@pytest.mark.parametrize("rule", [TopK(3), TopK(40), MinP(0.05), MinP(0.7), Epsilon(0.01)], ids=repr)
@settings(max_examples=15, deadline=None)
@given(row=rows_of_logits())
def test_filters_of_their_own_result(backend: str, rule: Rule, row: Tensor) -> None:
    """Top-k, min-p and epsilon leave all of what they have left. Top-p does not: see below."""
    (once,) = kept(backend, row[None], rule)
    left = torch.full_like(row, -math.inf)
    left[once] = row[once]
    assert kept(backend, left[None], rule) == [once]


@backends
def test_top_p_of_its_own_result_is_less(backend: str) -> None:
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    assert kept(backend, logits, TopP(0.6)) == [[0, 1]]
    assert kept(backend, torch.tensor([[0.5, 0.3, 0.0]]).log(), TopP(0.6)) == [[0]]


@backends
@pytest.mark.parametrize(("order", "more"), [("vllm", 0), ("hf", 0), ("sglang", 1)])
@settings(max_examples=100, deadline=None)
@given(cuts=st.sets(st.integers(1, 99), min_size=1, max_size=8), data=st.data())
def test_a_share_that_is_reached_on_paper_is_reached(
    backend: str, order: str, more: int, cuts: set[int], data: st.DataObject
) -> None:
    hundredths = [after - before for before, after in pairwise([0, *sorted(cuts), 100])]
    count = data.draw(st.integers(1, len(cuts)))
    share = sum(sorted(hundredths, reverse=True)[:count]) / 100
    row = torch.tensor([[part / 100 for part in hundredths]]).log()
    sampler = Sampler(TopP(share), order=order, backend=backend)
    assert sampler(row, sampler.start(1, seed=0)).kept.tolist() == [count + more]


@backends
@pytest.mark.parametrize("rule", [MinP, Epsilon])
@settings(max_examples=100, deadline=None)
@given(cuts=st.sets(st.integers(1, 99), min_size=1, max_size=8), data=st.data())
def test_a_threshold_that_is_met_on_paper_is_met(
    backend: str, rule: type[Rule], cuts: set[int], data: st.DataObject
) -> None:
    hundredths = [after - before for before, after in pairwise([0, *sorted(cuts), 100])]
    least = data.draw(st.sampled_from(hundredths))
    part_of = max(hundredths) if rule is MinP else 100
    # Nearer to 1 the rounding of the logits themselves is more than a threshold forgives.
    assume(rule is not MinP or least == part_of or least / part_of <= 0.85)
    row = torch.tensor([[part / 100 for part in hundredths]]).log()
    sampler = Sampler(rule(least / part_of), backend=backend)
    expected = sum(part >= least for part in hundredths)
    assert sampler(row, sampler.start(1, seed=0)).kept.tolist() == [expected]


@backends
@settings(max_examples=25, deadline=None)
@given(row=rows_of_logits((*KINDS[:-1], "tied")), temperature=st.sampled_from([0.0, 1e-12, 9.9e-6]))
def test_no_temperature_is_argmax(backend: str, row: Tensor, temperature: float) -> None:
    """The lowest id of those that are greatest, with certainty."""
    for order in ORDERS:
        sampler = Sampler(Temperature(temperature), order=order, backend=backend)
        draw = sampler(row[None], sampler.start(1, seed=1))
        assert int(draw.tokens[0]) == int(torch.nonzero(row == row.max())[0])
        assert (int(draw.kept[0]), float(draw.logprobs[0])) == (1, 0.0)


@backends
@settings(max_examples=25, deadline=None)
@given(row=rows_of_logits(), temperature=st.sampled_from([0.1, 0.7, 1.0, 1.3, 50.0]))
def test_probabilities_are_those_of_float64(backend: str, row: Tensor, temperature: float) -> None:
    sampler = Sampler(Temperature(temperature), top=len(row), entropy=True, raw=True, backend=backend)
    draw = sampler(row[None], sampler.start(1, seed=1))
    for report, scale in ((draw.processed, temperature), (draw.raw, 1.0)):
        assert report is not None and report.top_logprobs is not None and report.top_tokens is not None
        exact = (row.double() / scale).log_softmax(-1)
        tokens = report.top_tokens[0][report.top_tokens[0] >= 0]
        near = exact[tokens] > -60
        assert torch.allclose(
            report.top_logprobs[0, : len(tokens)][near].double(), exact[tokens][near], atol=1e-5
        )
        assert float(report.logprobs[0]) == pytest.approx(float(exact[draw.tokens[0]]), abs=1e-5)
        chances = exact.exp()
        entropy = -float((chances * exact.nan_to_num(neginf=0)).sum())
        assert report.entropy is not None
        assert float(report.entropy[0]) == pytest.approx(entropy, abs=2e-5)


# The draw itself.


@backends
@settings(max_examples=40, deadline=None)
@given(row=rows_of_logits(), seed=st.integers(-(2**63), 2**63 - 1), position=st.integers(0, 2**32 - 1))
def test_a_draw_is_the_greatest_with_noise(backend: str, row: Tensor, seed: int, position: int) -> None:
    """Of logits plus Gumbel noise, with the noise in float64 from the words of its seed and position."""
    words = noise.words(seed, position, noise.TARGET, np.arange(len(row))).astype(np.float64)
    scores = row.double().numpy() - np.log(-np.log1p(-(words + 0.5) * 2.0**-32))
    best = np.sort(scores)[::-1]
    sampler = Sampler(backend=backend)
    start = sampler.start(1, seed=[seed])
    state = State(start.seeds, start.positions + position, start.prompt, start.output)
    token = int(sampler(row[None], state).tokens[0])
    assert scores[token] == pytest.approx(best[0], abs=2e-5)
    assert len(row) == 1 or best[0] - best[1] < 2e-5 or token == int(np.argmax(scores))


@backends
def test_rare_words_make_rare_tokens(backend: str) -> None:
    """A token 13 below the best is drawn where its noise says so, which is where its word is all but 0."""
    seeds = np.arange(2**19)
    block = np.zeros_like(seeds, np.uint64)
    key = seeds.astype(np.uint64), block
    first, second, *_ = noise.philox((block, block, block, block), key)
    u = (np.stack([first, second]).astype(np.float64) + 0.5) * 2.0**-32
    zero, one = -np.log(-np.log1p(-u))
    rare = np.flatnonzero(one - 11.5 > zero)
    assert len(rare) >= 3
    row = torch.tensor([[0.0, -11.5]]).expand(len(rare), -1)
    sampler = Sampler(backend=backend)
    assert sampler(row, sampler.start(len(rare), seed=rare.tolist())).tokens.tolist() == [1] * len(rare)


@backends
@pytest.mark.parametrize(
    "rules", [(), (Temperature(0.6),), (TopP(0.8),), (Temperature(1.5), TopK(7))], ids=str
)
def test_draws_follow_their_law(backend: str, rules: tuple[Rule, ...]) -> None:
    """Over seeds, and over the positions of one seed."""
    row = a_row_of_logits(4, 16, "normal")
    (law,) = laws(backend, row[None], *rules)
    temperature = next((rule.value(0) for rule in rules if isinstance(rule, Temperature)), 1.0)
    chances = np.zeros(16)
    chances[list(law)] = softmax(row[list(law)] / temperature)
    assert list(law.values()) == pytest.approx(chances[list(law)].tolist(), rel=1e-5)
    assert fit(drawn(backend, row, draws(backend), *rules), chances) > ALPHA
    positions = drawn(backend, row, draws(backend) // 4, *rules, seed=77, over="positions")
    assert fit(positions, chances) > ALPHA


@backends
def test_neighbours_draw_independently(backend: str) -> None:
    """Pairs of seeds next to each other, and of positions, over all pairs of tokens."""
    for over in ("seeds", "positions"):
        tokens = drawn(backend, torch.zeros(4), draws(backend), seed=5, over=over)
        assert fit(tokens[::2] * 4 + tokens[1::2], np.ones(16)) > ALPHA


# Grammars, and the ends of the earth.

VOCABULARY: Final = Vocabulary.of([b"a", b"b", b"ab", b"", b"c"], end_tokens=[3])
TABLE: Final = regex("(ab)*c").compile(VOCABULARY)


@backends
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_grammar_s_rows_stay_in_it(backend: str, seed: int) -> None:
    """Beside a row without one, whose draws are what they are without anyone's grammar."""
    sampler = Sampler(VOCABULARY, Constrain([TABLE, None]), backend=backend)
    free = Sampler(backend=backend)
    state, alone = sampler.start(2, seed=[seed, 9]), free.start(1, seed=9)
    text = b""
    for step in range(12):
        logits = a_row_of_logits(seed + step, 5, "normal").expand(2, -1)
        draw, other = sampler(logits, state), free(logits[:1], alone)
        assert draw.tokens[1] == other.tokens[0]
        if int(draw.tokens[0]) == 3:
            assert text.endswith(b"c") and not text[:-1].replace(b"ab", b"")
            return
        text += VOCABULARY.tokens[int(draw.tokens[0])]
        assert b"c" not in text[:-1] and not text.replace(b"ab", b"").strip(b"ac")
        state, alone = sampler.advance(state, draw.tokens), free.advance(alone, other.tokens)


def test_ends_are_not_hidden_from_rules() -> None:
    """The end is the only way on, and the row says so where it is forbidden."""
    sampler = Sampler(VOCABULARY, Constrain(TABLE), LogitBias({3: -math.inf}))
    state = sampler.advance(sampler.start(1, seed=0), [4])
    assert sampler(torch.zeros(1, 5), state).flags.tolist() == [1]


EXTREME: Final = [
    [3.4028234e38, -3.4028234e38, 0.0],
    [3.4028234e38] * 3,
    [-3.4028234e38] * 3,
    [1e30, 0.0, -1e30],
    [1e-45, 0.0, -1e-45],
    [0.0, -0.0, 0.0],
]


@backends
@pytest.mark.parametrize("values", EXTREME, ids=str)
@pytest.mark.parametrize("temperature", [1e-4, 1e-5, 1.0, 1e6, 3e38])
def test_finite_logits_are_drawn_from(backend: str, values: list[float], temperature: float) -> None:
    """However far apart, at any temperature and under any filter."""
    logits = torch.tensor([values])
    for rules in (
        (),
        (TopP(0.5),),
        (MinP(0.5),),
        (Typical(0.5),),
        (Eta(0.1),),
        (TopNSigma(1.0),),
        (TopK(2),),
    ):
        for order in ORDERS:
            sampler = Sampler(Temperature(temperature), *rules, order=order, top=3, backend=backend)
            report = sampler(logits, sampler.start(1, seed=0)).processed
            assert report.top_tokens is not None and report.top_logprobs is not None
            logprobs = report.top_logprobs[report.top_tokens >= 0]
            assert logprobs.isfinite().all()
            assert float(logprobs.double().exp().sum()) == pytest.approx(1, abs=1e-6)
            assert values[int(report.top_tokens[0, 0])] == max(values) or temperature > 1e30


@backends
def test_sigma_of_outliers_and_of_masked_rows(backend: str) -> None:
    """Logits of -inf do not count; one that is very low stretches the deviation, as the definition has it."""
    row = torch.tensor([[0.0, -1.0, -2.0, -math.inf, -math.inf]])
    deviation = math.sqrt(2 / 3)
    assert kept(backend, row, TopNSigma(0.9 / deviation)) == [[0]]
    assert kept(backend, row, TopNSigma(1.1 / deviation)) == [[0, 1]]
    outlier = torch.tensor([[0.0, -1.0, -1e30]])
    assert kept(backend, outlier, TopNSigma(2.0)) == [[0, 1]]
    assert kept(backend, outlier, TopNSigma(2.2)) == [[0, 1, 2]]


@backends
@pytest.mark.parametrize("rule", [Epsilon(0.9), Eta(0.99), MinP(1.0), TopP(1e-9), TopNSigma(1e-9)], ids=repr)
def test_the_likeliest_stays_where_nothing_passes(backend: str, rule: Rule) -> None:
    """All that equal it stay, too, where the rule is a threshold."""
    logits = torch.tensor([[1.0, 0.5, 1.0, 0.0]])
    assert kept(backend, logits, rule) in ([[0, 2]], [[0]] if isinstance(rule, TopP) else [])
    assert kept(backend, torch.zeros(1, 4), MinP(0.7)) == [[0, 1, 2, 3]]


@backends
def test_filters_after_the_likeliest_has_gone(backend: str) -> None:
    """Typical may drop it; what comes after is about those that are left."""
    logits = torch.tensor([[0.4, 0.2, 0.2, 0.1, 0.1]]).log()
    assert kept(backend, logits, Typical(0.35), order="given") == [[1, 2]]
    (law,) = laws(backend, logits, Typical(0.35), MinP(0.9), TopNSigma(1.0), order="given")
    assert law == pytest.approx({1: 0.5, 2: 0.5}, abs=1e-6)


@backends
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_ties_of_narrow_floats_go_to_the_lowest_ids(backend: str, dtype: torch.dtype) -> None:
    logits = (torch.arange(64) % 4).float().to(dtype)[None]
    assert kept(backend, logits, TopK(10)) == [list(range(3, 43, 4))]
    assert kept(backend, logits, TopK(10), ties="keep") == [list(range(3, 64, 4))]
    report: Report = Sampler(top=3, backend=backend)(logits, Sampler().start(1, seed=0)).processed
    assert report.top_tokens is not None and report.top_tokens.tolist() == [[3, 7, 11]]


@backends
def test_no_rows_and_one_token(backend: str) -> None:
    sampler = Sampler(TopP(0.9), top=2, entropy=True, raw=True, backend=backend)
    draw = sampler(torch.zeros(0, 5), sampler.start(0, seed=0))
    assert draw.tokens.shape == (0,) and draw.processed.top_tokens is not None
    assert draw.processed.top_tokens.shape == (0, 2)
    one = sampler(torch.tensor([[-5.0]]), sampler.start(1, seed=0))
    assert (one.tokens.tolist(), one.logprobs.tolist(), one.kept.tolist()) == ([0], [0.0], [1])
