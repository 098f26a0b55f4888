"""Draws inside transformers: `hf` with parameters and `generate`, on models that run and on made-up calls."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pytest
import torch
from byte_llama import END, WIDTH, byte_llama
from torch import Tensor

from sortition.grammars.expr import concat, literal, one_of, repeat
from sortition.grammars.grammar import Grammar
from sortition.grammars.matcher import Matcher
from sortition.grammars.table import Table
from sortition.grammars.vocabulary import Vocabulary
from sortition.sampling import reference
from sortition.sampling.parameters import Parameters
from sortition.sampling.rules import FrequencyPenalty, LogitBias, RepetitionPenalty, Temperature, TopK
from sortition.sampling.sampler import Sampler

transformers = pytest.importorskip("transformers")
from language import MODEL_END, Language  # noqa: E402

from sortition.integrations.hf import hf  # noqa: E402
from sortition.integrations.hf_generate import Generated, generate, without_warpers  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

PAD: Final = ord(" ")
"""A token that prompts hold, too, so that it shows whether padding counts as one."""

VOCABULARY = Vocabulary.of([*(bytes([byte]) for byte in range(256)), *[b""] * 4], end_tokens=[END])
LETTERS = one_of([(65, 90), (97, 122)])
DIGITS = repeat(one_of([(48, 57)]), 1, 3)
WORD = Grammar(concat(literal(b"<"), repeat(LETTERS, 1, 5), literal(b">"))).compile(VOCABULARY)
NUMBER = Grammar(DIGITS).compile(VOCABULARY)


class Tiny:
    """A Llama of one layer whose tokens are bytes, with random weights, and how often it ran."""

    def __init__(self) -> None:
        self.model = byte_llama(pad=PAD)
        self.twin = self.another(0.0)
        self.relative = self.another(0.02)
        self.forwards = 0
        self.model.register_forward_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.forwards += 1

    def another(self, noise: float) -> Any:
        """A model of its own, whose weights differ by so much."""
        other = copy.deepcopy(self.model)
        with torch.no_grad():
            for weights in other.parameters():
                weights.add_(noise * torch.randn_like(weights))
        return other

    def run(
        self, prompts: Sequence[Sequence[int]], *processors: Any, tokens: int = 12, **settings: Any
    ) -> Any:
        """What `generate` returns, and with how much padding each prompt came."""
        # Whatever state torch is in: no draw may come from there.
        torch.seed()
        self.forwards = 0
        longest = max(map(len, prompts))
        ids = torch.tensor([[PAD] * (longest - len(row)) + list(row) for row in prompts])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in prompts])
        return self.model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=tokens,
            **({"logits_processor": list(processors)} if processors else {}),
            # Greedy search refuses several returned sequences, whatever a processor makes of them.
            **{"do_sample": "num_return_sequences" in settings, **settings},
        )

    def texts(self, prompts: Sequence[Sequence[int]], *processors: Any, **settings: Any) -> list[list[int]]:
        """Generated ids, without what follows the end token."""
        output = self.run(prompts, *processors, **settings)
        new = output[:, max(map(len, prompts)) :].tolist()
        return [row[: row.index(END) + 1] if END in row else row for row in new]


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return Tiny()


PROMPT = list(b"a prompt, ")
PROMPTS = [PROMPT, list(b"x"), list(b"yes or no? "), list(b"the longest of them all: ")]

Text = Callable[..., list[list[int]]]


def by_hf(tiny: Tiny, prompts: Sequence[Sequence[int]], seed: Any, **values: Any) -> list[list[int]]:
    return tiny.texts(prompts, hf(**values, order="hf", seed=seed), do_sample=True)


def by_generate(tiny: Tiny, prompts: Sequence[Sequence[int]], seed: Any, **values: Any) -> list[list[int]]:
    settings = {"do_sample": True, "top_k": 0, **values}
    if "typical" in settings:
        settings["typical_p"] = settings.pop("typical")
    return tiny.texts(prompts, custom_generate=generate, seed=seed, **settings)


WAYS = pytest.mark.parametrize("write", [by_hf, by_generate])


# What decides about a token, and what does not.


@pytest.mark.parametrize(
    "settings",
    [
        {"do_sample": False},
        {"do_sample": True},
        {"do_sample": True, "temperature": 5.0, "top_k": 3, "top_p": 0.1},
        {"do_sample": True, "min_p": 0.9, "typical_p": 0.1, "epsilon_cutoff": 0.1, "eta_cutoff": 0.1},
        {"do_sample": True, "top_h": 0.3, "renormalize_logits": True},
        {"num_return_sequences": 1, "cache_implementation": "static"},
        {"use_cache": False},
    ],
)
def test_what_generate_does_afterwards_changes_nothing(tiny: Tiny, settings: dict[str, Any]) -> None:
    processor = hf(temperature=0.9, top_p=0.9, seed=7)
    expected = tiny.texts([PROMPT], processor)
    assert tiny.texts([PROMPT], processor, **settings) == expected


@WAYS
def test_the_seed_decides(tiny: Tiny, write: Text) -> None:
    texts = [write(tiny, [PROMPT], seed)[0] for seed in (7, 7, 8, -1, 2**64 - 1, None, None)]
    assert texts[0] == texts[1]
    assert texts[3] == texts[4]
    others = [texts[0], *texts[2:4], *texts[5:]]
    assert len({tuple(text) for text in others}) == len(others)


@WAYS
def test_several_returned_sequences(tiny: Tiny, write: Text) -> None:
    def several(seed: Any) -> list[list[int]]:
        return write(tiny, PROMPTS[:2] * 3, seed)

    texts = several(7)
    assert texts == several(7)
    # The third time that a prompt comes up, it has the seed after the next.
    alone = [write(tiny, [prompt], 7 + again)[0] for again in range(3) for prompt in PROMPTS[:2]]
    assert texts == alone
    assert len({tuple(text) for text in texts}) == 6


@WAYS
def test_repeats_of_generate(tiny: Tiny, write: Text) -> None:
    texts = write(tiny, [PROMPTS[0]] * 3 + [PROMPTS[1]] * 3, 7)
    if write is by_hf:
        repeated = tiny.texts(PROMPTS[:2], hf(order="hf", seed=7), num_return_sequences=3)
        listed = tiny.texts(PROMPTS[:2], hf(order="hf", seed=[7, 100]), num_return_sequences=3)
    else:
        repeat = partial(tiny.texts, custom_generate=generate, do_sample=True, top_k=0)
        repeated = repeat(PROMPTS[:2], num_return_sequences=3, seed=7)
        listed = repeat(PROMPTS[:2], num_return_sequences=3, seed=[7, 100])
    assert repeated == texts
    assert listed[:3] == texts[:3]
    assert listed[3:] == [write(tiny, [PROMPTS[1]], seed)[0] for seed in (100, 101, 102)]


@WAYS
@pytest.mark.parametrize("values", [{}, {"temperature": 0.5}, {"top_k": 20, "top_p": 0.8}, {"typical": 0.7}])
def test_text_is_the_same_alone_and_in_a_batch(tiny: Tiny, write: Text, values: dict[str, float]) -> None:
    together = write(tiny, PROMPTS, 7, **values)
    assert together == [write(tiny, [prompt], 7, **values)[0] for prompt in PROMPTS]
    assert write(tiny, PROMPTS[::-1], 7, **values) == together[::-1]


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0.8, "top_k": 30, "top_p": 0.9, "min_p": 0.01},
        {"min_p": 0.05, "top_n_sigma": 2.0},
        {"epsilon": 0.01, "ties": "keep"},
        {"eta": 0.02, "min_keep": 3},
        {"typical": 0.8, "order": "llama.cpp"},
        {"top_k": 2, "repetition_penalty": 2.0},
        {"top_k": 3, "frequency_penalty": 2.0, "presence_penalty": 1.0, "order": "hf"},
        {"top_k": 3, "frequency_penalty": 2.0, "penalty_window": 4, "order": "hf"},
        {"top_k": 4, "bad_words": [[111], [32, 121], [110, 111]], "order": "hf"},
        {"repetition_penalty": 4.0, "logit_bias": {PAD: 6.0}},
        {"bad_words": [[PAD, ord("x"), token] for token in range(200)], "order": "hf"},
        {"logit_bias": {5: 9.0, 6: 8.5, 7: float("-inf")}, "temperature": 0.7},
        {"allowed_tokens": [*range(65, 91)], "order": ["top_p", "temperature"], "top_p": 0.7},
        {"allowed_tokens": [65, END], "min_tokens": 5},
    ],
)
def test_draws_are_those_of_the_definition(tiny: Tiny, values: dict[str, Any]) -> None:
    """Logits as the model gave them, drawn again one row at a time, without any of the padding."""
    processor = hf(**values, seed=7, end_tokens=END, pad_tokens=PAD)
    output = tiny.run(PROMPTS, processor, output_logits=True, return_dict_in_generate=True)
    parameters = Parameters(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    )
    assert_defined(output, PROMPTS, [parameters] * len(PROMPTS), [7] * len(PROMPTS))


def assert_defined(
    output: Any, prompts: Sequence[Sequence[int]], parameters: Sequence[Parameters], seeds: Sequence[int]
) -> None:
    longest = max(map(len, prompts))
    for row, prompt in enumerate(prompts):
        text = output.sequences[row, longest:].tolist()
        for position, token in enumerate(text):
            context = reference.Context(
                seeds[row], position, prompt=prompt, output=text[:position], end_tokens=[END]
            )
            logits = output.logits[position][row].numpy()
            assert token == reference.draw(logits, parameters[row], context)[0], (row, position)
            if token == END:
                break


def test_values_for_each_prompt(tiny: Tiny) -> None:
    values = {
        "temperature": np.array([0.5, 1.0, 2.0]),
        "top_k": [0, 10, 0],
        "allowed_tokens": [None, None, list(range(100))],
        "bad_words": [[[32]], [[33]], [[34]]],
        "logit_bias": [{}, {65: 5.0}, {}],
        "repetition_penalty": 1.2,
    }
    prompts = PROMPTS[:3]

    def of(row: int) -> dict[str, Any]:
        one = {name: value[row] for name, value in values.items() if not isinstance(value, float)}
        return {name: value for name, value in one.items() if value is not None}

    processor = hf(**values, seed=[1, 2, 3], pad_tokens=PAD)
    texts = tiny.texts(prompts, processor, num_return_sequences=2)
    for row, prompt in enumerate(prompts):
        alone = hf(**of(row), repetition_penalty=1.2, seed=row + 1)
        assert tiny.texts([prompt], alone, num_return_sequences=2) == texts[2 * row : 2 * row + 2]


def test_a_greedy_row_is_as_without(tiny: Tiny) -> None:
    texts = tiny.texts(PROMPTS[:2], hf(temperature=[0.0, 1.0], seed=7))
    assert texts[0] == tiny.texts(PROMPTS[:2])[0]


def test_scores_as_other_processors_leave_them(tiny: Tiny) -> None:
    texts = tiny.texts([PROMPT], hf(temperature=2.0, seed=7), suppress_tokens=list(range(200)))
    assert min(texts[0]) >= 200


# Drafts, and texts that go on.


@pytest.mark.parametrize("values", [{"temperature": 0.7}, {"top_k": 5, "repetition_penalty": 1.3}])
@pytest.mark.parametrize("sampled", [False, True])
def test_assistants(tiny: Tiny, sampled: bool, values: dict[str, float]) -> None:
    processor = hf(**values, logit_bias={END: float("-inf")}, seed=7)
    plain = tiny.texts([PROMPT], processor, tokens=24)
    assert tiny.forwards == len(plain[0]) == 24
    draft = partial(tiny.texts, [PROMPT], processor, tokens=24, do_sample=sampled)
    # Under the same noise, a model agrees with itself, and mostly with its relatives.
    assert draft(assistant_model=tiny.twin) == plain
    assert tiny.forwards <= 6
    assert draft(assistant_model=tiny.relative) == plain
    assert 6 < tiny.forwards < 20
    assert tiny.texts([PROMPT], processor, tokens=24) == plain


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("values", [{"temperature": 0.3}, {"temperature": 0.3, "table": WORD}])
def test_prompt_lookup(tiny: Tiny, sampled: bool, values: dict[str, Any]) -> None:
    processor = hf(**values, seed=7)
    plain = tiny.texts([PROMPT], processor, tokens=24)
    # A prompt that holds the answer: what follows it there is drafted.
    prompt = [*PROMPT, *plain[0], *PROMPT]
    plain = tiny.texts([prompt], processor, tokens=24)
    looked_up = tiny.texts([prompt], processor, tokens=24, prompt_lookup_num_tokens=6, do_sample=sampled)
    assert looked_up == plain


def test_probes_are_not_drawn_from() -> None:
    ids = torch.tensor([PROMPT])
    ones = torch.ones(1, WIDTH)
    assert torch.equal(hf(seed=7)(ids, ones), ones)
    probed = hf(WORD, seed=7)(ids, ones)
    assert (probed == 1).nonzero().tolist() == [[0, ord("<")]]
    assert (probed > float("-inf")).sum() == 1
    # What a penalty has done to some of them is still a probe.
    penalised = torch.where(torch.arange(WIDTH)[None] % 3 == 0, 0.5, ones)
    assert torch.equal(hf(seed=7)(ids, penalised), penalised)


def test_drafts_are_taken_back_to_where_they_were_shown() -> None:
    scores = torch.randn(1, WIDTH)

    def token(processor: Any, text: Sequence[int]) -> int:
        return int(processor(torch.tensor([[*PROMPT, *text]]), scores).argmax())

    def fresh(text: Sequence[int]) -> int:
        processor = hf(seed=7)
        return [token(processor, text[:end]) for end in range(len(text) + 1)][-1]

    processor = hf(seed=7)
    for text in ([], [1], [1, 2], [1, 2, 3], [1], [1, 4], [], [5]):
        assert token(processor, text) == fresh(text), text
    drawn = token(processor, [])
    token(processor, [1])
    token(processor, [1, 2])
    assert token(processor, [drawn]) == fresh([drawn])
    # Neither shown nor drawn, so it is the last of a new prompt.
    position = processor.find(torch.tensor([[*PROMPT, drawn ^ 1]]))[1].positions
    assert position.tolist() == [0]


def test_a_text_cut_short_is_resumed(tiny: Tiny) -> None:
    for processor in (hf(temperature=0.8, seed=7), hf(seed=None, temperature=0.8)):
        ids = torch.tensor([PROMPT])
        for tokens in (1, 4, 7):
            ids = torch.tensor([ids[0].tolist() + tiny.texts(ids.tolist(), processor, tokens=tokens)[0]])
        start = processor.find(ids)[0].start
        seeded = hf(temperature=0.8, seed=int(start.seeds[0]))
        assert tiny.texts([PROMPT], seeded, tokens=12)[0] == ids[0, len(PROMPT) :].tolist()


def test_one_processor_serves_many_calls(tiny: Tiny) -> None:
    processor = hf(temperature=0.8, seed=7)
    first = tiny.texts([PROMPT], processor)
    assert tiny.texts(PROMPTS, processor)[:1] == first
    assert tiny.texts([PROMPT], processor, num_return_sequences=3)[:1] == first
    assert tiny.texts([PROMPT], processor, tokens=5) == [first[0][:5]]
    assert tiny.texts([PROMPT], processor) == first
    # One token more than the last prompt is a prompt of its own.
    longer = [*PROMPT, first[0][0] ^ 1]
    assert tiny.texts([longer], processor) == tiny.texts([longer], hf(temperature=0.8, seed=7))


def test_without_a_seed_a_prompt_gets_another_text(tiny: Tiny) -> None:
    processor = hf(logit_bias={END: float("-inf")})
    texts = [tiny.texts([PROMPT], processor)[0] for _ in range(3)]
    texts += tiny.texts([PROMPT], processor, num_return_sequences=3)
    assert len({tuple(text) for text in texts}) == 6
    drafted = tiny.texts([PROMPT], processor, tokens=24, assistant_model=tiny.twin)
    assert len(drafted[0]) == 24 and tiny.forwards < 10


# Grammars.


def assert_valid(table: Table, texts: Sequence[Sequence[int]]) -> None:
    for text in texts:
        matcher = Matcher(table)
        assert all(map(matcher.advance, text)) and matcher.finished, text


def test_grammars(tiny: Tiny) -> None:
    tables = [WORD, NUMBER, WORD, NUMBER]
    texts = tiny.texts(PROMPTS, hf(tables, temperature=3.0, seed=7))
    assert_valid(WORD, texts[::2])
    assert_valid(NUMBER, texts[1::2])
    alone = [tiny.texts([p], hf(t, temperature=3.0, seed=7))[0] for p, t in zip(PROMPTS, tables, strict=True)]
    assert texts == alone
    several = tiny.texts([PROMPT], hf(WORD, temperature=3.0, seed=7), num_return_sequences=8)
    assert_valid(WORD, several)
    assert len({tuple(text) for text in several}) > 4


def test_a_row_without_a_grammar_beside_one(tiny: Tiny) -> None:
    texts = tiny.texts(PROMPTS[:2], hf([None, NUMBER], temperature=1.0, seed=7))
    assert texts[:1] == tiny.texts(PROMPTS[:1], hf(temperature=1.0, seed=7))
    assert_valid(NUMBER, texts[1:])


@pytest.mark.parametrize(
    "settings",
    [
        {"bad_words": [[ord("<")], [ord(">")]]},
        {"allowed_tokens": [ord("x"), ord("y")]},
        {"min_tokens": 50},
    ],
)
def test_eligible_tokens_ruled_out(tiny: Tiny, settings: dict[str, Any]) -> None:
    assert_valid(WORD, tiny.texts([PROMPT], hf(WORD, **settings, seed=7)))


def test_eligible_tokens_ruled_out_by_others(tiny: Tiny) -> None:
    assert_valid(WORD, tiny.texts([PROMPT], hf(WORD, seed=7), suppress_tokens=[ord("<"), ord(">")]))


# Rows that cannot be drawn from, and calls that are refused.


@pytest.mark.parametrize(
    ("scores", "values"),
    [
        (torch.full((WIDTH,), float("-inf")), {"seed": 7}),
        (torch.full((WIDTH,), float("nan")), {"seed": 7}),
        (torch.where(torch.arange(WIDTH) == 65, float("-inf"), 0.0), {"allowed_tokens": [65]}),
    ],
)
def test_nothing_to_draw(scores: Tensor, values: dict[str, Any]) -> None:
    rows = torch.randn(3, WIDTH)
    rows[1] = scores
    ids = torch.tensor([PROMPT] * 3)
    with pytest.raises(ValueError, match=r"rows \[1\]: no token is left"):
        hf(**values)(ids, rows)
    # Only where there is no grammar to fall back on.
    with pytest.raises(ValueError, match=r"rows \[1\]: no token is left"):
        hf([WORD, None, WORD], **values)(ids, rows)
    drawn = hf([None, WORD, None], **values, temperature=1.0)(ids, rows)
    assert drawn[1].argmax() == ord("<")


def test_odd_scores_are_not_drawn_and_not_changed() -> None:
    scores = torch.randn(2, WIDTH)
    scores[0, ::2] = float("nan")
    scores[1, [3, 5]] = float("inf")
    before = scores.clone()
    drawn = hf(seed=7)(torch.tensor([PROMPT] * 2), scores)
    assert torch.equal(scores.nan_to_num(9.0), before.nan_to_num(9.0))
    assert (drawn == 0).sum(1).tolist() == [1, 1]
    assert ((drawn == 0) | (drawn == float("-inf"))).all()
    assert drawn[0].argmax() % 2 == 1
    assert drawn[1].argmax() in (3, 5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_scores_of_any_type(dtype: torch.dtype) -> None:
    scores = torch.randn(2, WIDTH).to(dtype)
    drawn = hf(seed=7)(torch.tensor([PROMPT] * 2), scores)
    assert drawn.dtype == dtype and drawn.shape == scores.shape


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("prompts", [[PROMPT], PROMPTS[:2]])
def test_beams_are_refused(tiny: Tiny, prompts: list[list[int]], sampled: bool) -> None:
    with pytest.raises(ValueError, match="beams"):
        tiny.texts(prompts, hf(temperature=1.0, seed=7), num_beams=3, do_sample=sampled)


def test_reordered_rows_are_refused() -> None:
    processor = hf(seed=7)
    scores = torch.randn(2, WIDTH)
    processor(torch.tensor([PROMPT] * 2), scores)
    processor(torch.tensor([[*PROMPT, 1], [*PROMPT, 2]]), scores)
    with pytest.raises(ValueError, match="beams"):
        processor(torch.tensor([[*PROMPT, 2, 3], [*PROMPT, 1, 3]]), scores)


def test_padding_has_to_be_known_where_it_matters(tiny: Tiny) -> None:
    with pytest.raises(ValueError, match="pad_tokens"):
        tiny.texts(PROMPTS, hf(repetition_penalty=1.1, seed=7))
    # One prompt has none, and these parameters do not look.
    tiny.texts([PROMPT], hf(repetition_penalty=1.1), num_return_sequences=2, tokens=2)
    tiny.texts(PROMPTS, hf(frequency_penalty=1.0), tokens=2)
    tiny.texts(PROMPTS, hf(repetition_penalty=1.1, pad_tokens=[]), tokens=2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "nothing to do: a table, a seed or a sampling parameter is needed"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": [0.5, -1.0]}, "temperature"),
        ({"top_k": [1, 2], "top_p": [0.1, 0.2, 0.3]}, "TopK.*2.*TopP.*3"),
        ({"table": [WORD, NUMBER], "seed": [1, 2, 3]}, "tables.*2.*seeds.*3"),
        ({"seed": 2**64}, "64 bits"),
        ({"seed": [0, -(2**63) - 1]}, "64 bits"),
        ({"order": "hff"}, "did you mean 'hf'"),
        ({"min_tokens": 3}, "end token"),
        ({"table": WORD, "end_tokens": WIDTH, "seed": 1}, "end tokens"),
    ],
)
def test_mistakes_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hf(**values)


def test_calls_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="there are values for 2 prompts, and generate has 3 rows"):
        hf(temperature=[0.5, 1.0])(torch.tensor([PROMPT] * 3), torch.randn(3, WIDTH))
    with pytest.raises(ValueError, match="history"):
        hf(temperature=0.5)(torch.tensor(PROMPT), torch.randn(len(PROMPT), WIDTH))
    with pytest.raises(ValueError, match=f"token {WIDTH}"):
        hf(logit_bias={WIDTH: 1.0})(torch.tensor([PROMPT]), torch.randn(1, WIDTH))


# Our own loop.


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0.7},
        {"top_k": 20, "top_p": 0.8},
        # vLLM would apply these the other way round.
        {"top_p": 0.6, "min_p": 0.3},
        {"typical": 0.7, "temperature": 1.5},
    ],
)
def test_the_loop_draws_as_the_processor(tiny: Tiny, values: dict[str, float]) -> None:
    assert by_generate(tiny, PROMPTS, 7, **values) == by_hf(tiny, PROMPTS, 7, **values)


def test_the_loop_is_greedy_where_generate_is(tiny: Tiny) -> None:
    assert tiny.texts(PROMPTS, custom_generate=generate) == tiny.texts(PROMPTS)
    settings = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 3}
    ours = tiny.texts(PROMPTS, custom_generate=generate, **settings)
    assert ours == tiny.texts(PROMPTS, **settings)


def test_the_loop_returns_what_generate_does(tiny: Tiny) -> None:
    keep = {"output_logits": True, "output_scores": True, "return_dict_in_generate": True}
    settings = {"suppress_tokens": [65], **keep}
    plain = tiny.run(PROMPTS, **settings)
    output = tiny.run(PROMPTS, **settings, custom_generate=generate)
    assert torch.equal(output.sequences, plain.sequences)
    for ours, theirs in ((output.logits, plain.logits), (output.scores, plain.scores)):
        assert all(map(torch.equal, ours, theirs)) and len(ours) == len(theirs) == 12
    assert output.past_key_values.get_seq_length() == plain.past_key_values.get_seq_length()
    less = tiny.run(PROMPTS, return_dict_in_generate=True, custom_generate=generate)
    assert less.logits is None and less.scores is None


def test_the_loop_tells_how_likely_tokens_were(tiny: Tiny) -> None:
    bias = transformers.SequenceBiasLogitsProcessor({(END,): 4.0})
    output: Generated = tiny.run(
        PROMPTS,
        bias,
        tokens=16,
        do_sample=True,
        temperature=0.7,
        top_k=10,
        seed=3,
        output_scores=True,
        return_dict_in_generate=True,
        custom_generate=generate,
    )
    longest = max(map(len, PROMPTS))
    text = output.sequences[:, longest:]
    assert output.logprobs is not None and output.scores is not None
    assert output.logprobs.shape == text.shape
    ended = 0
    for row in range(len(PROMPTS)):
        for position, token in enumerate(text[row].tolist()):
            if END in text[row, :position]:
                assert token == PAD and output.logprobs[row, position] == 0
                ended += 1
                continue
            scores = output.scores[position][row].double() / 0.7
            least = scores.topk(10).values.min()
            law = scores.masked_fill(scores < least, float("-inf")).log_softmax(0)
            assert output.logprobs[row, position] == pytest.approx(law[token].item(), abs=1e-5)
    assert ended


def test_a_sampler_of_ones_own(tiny: Tiny) -> None:
    rules = TopK([5, 10, 0, 3]), RepetitionPenalty(4.0), FrequencyPenalty(1.0), LogitBias({PAD: 6.0})
    sampler = Sampler(Temperature(0.9), *rules, order="hf")
    settings = {"output_logits": True, "return_dict_in_generate": True, "custom_generate": generate}
    output = tiny.run(PROMPTS, **settings, sampler=sampler, seed=[1, 2, 3, 4], do_sample=True)
    parameters = [
        Parameters(
            temperature=0.9,
            top_k=k,
            repetition_penalty=4.0,
            frequency_penalty=1.0,
            logit_bias={PAD: 6.0},
            order="hf",
        )
        for k in (5, 10, 0, 3)
    ]
    assert_defined(output, PROMPTS, parameters, [1, 2, 3, 4])


def test_the_loop_under_a_grammar(tiny: Tiny) -> None:
    tables: list[Table | None] = [WORD, NUMBER, WORD, NUMBER]
    masked = tiny.texts(
        PROMPTS, hf(tables), custom_generate=generate, do_sample=True, temperature=3.0, top_k=0, seed=7
    )
    assert masked == by_hf(tiny, PROMPTS, 7, table=tables, temperature=3.0)


def test_the_loop_stops_where_it_is_told(tiny: Tiny) -> None:
    class Until(transformers.StoppingCriteria):  # type: ignore[misc]
        def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
            return input_ids[:, -1] < 100

    stops = {"stopping_criteria": transformers.StoppingCriteriaList([Until()])}
    plain = tiny.run(PROMPTS, tokens=40, **stops)
    ours = tiny.run(PROMPTS, tokens=40, custom_generate=generate, **stops)
    assert torch.equal(ours, plain)
    assert plain.shape[1] < 40 + max(map(len, PROMPTS))
    without_end = {"eos_token_id": None, "pad_token_id": None}
    for settings in (stops, {}):
        plain = tiny.run(PROMPTS, tokens=20, **settings, **without_end)
        assert torch.equal(
            tiny.run(PROMPTS, tokens=20, custom_generate=generate, **settings, **without_end), plain
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_beams": 2}, "beam search"),
        ({"num_beams": 2, "do_sample": True}, "beam sample"),
        ({"prompt_lookup_num_tokens": 3}, "assisted generation"),
        ({"top_h": 0.5, "do_sample": True}, "top_h"),
        ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions"),
    ],
)
def test_the_loop_refuses_what_it_does_not_do(tiny: Tiny, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        tiny.texts([PROMPT], custom_generate=generate, **settings)


def test_only_what_generate_has_made_is_left_out(tiny: Tiny) -> None:
    theirs = transformers.TopKLogitsWarper(5)
    config = transformers.GenerationConfig(do_sample=True, temperature=0.5, top_k=7, top_p=0.9, min_p=0.1)
    processors = tiny.model._get_logits_processor(config, logits_processor=[theirs])
    assert len(processors) == 5
    assert list(without_warpers(processors, config)) == [theirs]
    greedy = transformers.GenerationConfig(do_sample=False)
    assert list(without_warpers([theirs], greedy)) == [theirs]


# On the embedded model.


@pytest.fixture(scope="module")
def language() -> Language:
    return Language()


TALES = ["Once upon a time there was a", "Hi", "The capital of France is Paris, and the capital of Germany"]
VALUES: Final[dict[str, Any]] = {"temperature": 0.8, "top_p": 0.95, "order": "hf", "seed": 7}


def test_real_texts_alone_and_in_a_batch(language: Language) -> None:
    """In float32, where padding moves logits by less than any two tokens are apart here."""
    generate_some = partial(language.generate, tokens=12)
    together = generate_some(TALES, hf(**VALUES), do_sample=True)
    alone = [generate_some([tale], hf(**VALUES))[0] for tale in TALES]
    assert together == alone
    ours = generate_some(
        TALES, None, do_sample=True, temperature=0.8, top_p=0.95, top_k=0, seed=7, custom_generate=generate
    )
    assert ours == together


def test_real_drafts(language: Language) -> None:
    plain = language.generate(TALES[:1], hf(**VALUES))
    assert language.forwards == len(plain[0])
    drafted = language.generate(TALES[:1], hf(**VALUES), assistant_model=language.assistant, do_sample=True)
    assert drafted == plain
    assert language.forwards < len(plain[0]) / 2


LIST = "Red, green, blue. Red, green, blue. Red, green, blue. Red,"


def test_real_prompt_lookup(language: Language) -> None:
    processor = hf(temperature=0.3, seed=7)
    plain = language.generate([LIST], processor)
    looked_up = language.generate([LIST], processor, prompt_lookup_num_tokens=5, do_sample=True)
    assert looked_up == plain
    assert language.forwards < len(plain[0])


def test_real_grammars(language: Language) -> None:
    person = concat(
        literal(b'{"name": "'), repeat(LETTERS, 1, 8), literal(b'", "age": '), DIGITS, literal(b"}")
    )
    table = Grammar(person).compile(language.vocabulary)
    processor = hf(table, temperature=1.0, min_p=0.05, seed=7)
    prompt = "Write a JSON object about Ann, who is 31 years old.\n"
    texts = language.generate([prompt], processor, num_return_sequences=4, tokens=24, do_sample=True)
    assert len({tuple(text) for text in texts}) > 1
    for text in texts:
        matcher = Matcher(table)
        assert all(map(matcher.advance, text)) and text[-1] == MODEL_END
