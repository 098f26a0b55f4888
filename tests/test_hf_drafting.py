"""Drafts in `generate`: whatever guesses, the text is the one without drafts, in fewer forward passes."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pytest
import torch
from laws import ALPHA, fit, softmax

from sortition.grammars.expr import concat, literal, one_of, repeat
from sortition.grammars.grammar import Grammar
from sortition.grammars.matcher import Matcher
from sortition.grammars.vocabulary import Vocabulary
from sortition.sampling.rules import Constrain, FrequencyPenalty, RepetitionPenalty, Temperature, TopK, TopP
from sortition.sampling.sampler import Sampler

transformers = pytest.importorskip("transformers")
from language import MODEL_END, Language  # noqa: E402

from sortition.integrations.hf import hf  # noqa: E402
from sortition.integrations.hf_drafters import looked_up  # noqa: E402
from sortition.integrations.hf_generate import Generated, generate  # noqa: E402

pytestmark = pytest.mark.usefixtures("compiled")

END: Final = 256
WIDTH: Final = 260

VOCABULARY = Vocabulary.of([*(bytes([byte]) for byte in range(256)), *[b""] * 4], end_tokens=[END])
LETTERS = one_of([(65, 90), (97, 122)])
WORDS = Grammar(concat(literal(b"<"), repeat(LETTERS, 3, 40), literal(b">"))).compile(VOCABULARY)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """One thread: two wait for each other longer than they save wherever the machine has other work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def llama(width: int = WIDTH, **settings: Any) -> Any:
    """A Llama of one layer whose tokens are bytes, with random weights."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=width,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=0,
        **settings,
    )
    return transformers.LlamaForCausalLM(config).eval()


def relative_of(model: Any, noise: float) -> Any:
    """A model of its own, whose weights differ by so much."""
    other = copy.deepcopy(model)
    torch.manual_seed(1)
    with torch.no_grad():
        for weights in other.parameters():
            weights.add_(noise * torch.randn_like(weights))
    return other


MODEL: Final = llama()
TWIN: Final = relative_of(MODEL, 0.0)
RELATIVE: Final = relative_of(MODEL, 0.02)
STRANGER: Final = relative_of(MODEL, 1.0)

PROMPTS: Final = [list(b"a prompt, a prompt, a prom"), list(b"x"), list(b"yes or no? yes or no? yes")]


def run(
    prompt: Sequence[int], padding: int = 0, model: Any = MODEL, tokens: int = 40, **settings: Any
) -> Any:
    """What `generate` returns, whatever state torch is in: no draw may come from there."""
    torch.seed()
    return model.generate(
        torch.tensor([[0] * padding + list(prompt)]),
        attention_mask=torch.tensor([[0] * padding + [1] * len(prompt)]),
        max_new_tokens=tokens,
        custom_generate=generate,
        **{"do_sample": True, "top_k": 0, "seed": 7, "return_dict_in_generate": True, **settings},
    )


DRAFTERS: Final[dict[str, Any]] = {
    "twin": TWIN,
    "relative": RELATIVE,
    "stranger": STRANGER,
    "prompt lookup": "prompt_lookup",
}

WAYS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "greedy": {"do_sample": False},
    "filters": {"temperature": 0.7, "top_k": 20, "top_p": 0.9},
    "penalties": {"sampler": Sampler(RepetitionPenalty(1.2), FrequencyPenalty(0.3), Temperature(0.8))},
    "their penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "min_new_tokens": 8},
    "grammar": {"sampler": Sampler(VOCABULARY, Constrain(WORDS), Temperature(2.0), on_empty="raise")},
}


@pytest.mark.parametrize("drafts", [1, 4])
@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS)
@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_the_text_is_the_one_without_drafts(settings: dict[str, Any], drafter: Any, drafts: int) -> None:
    for prompt in PROMPTS:
        plain = run(prompt, **settings)
        found = run(prompt, drafter=drafter, drafts=drafts, **settings)
        assert torch.equal(found.sequences, plain.sequences)
        torch.testing.assert_close(found.logprobs, plain.logprobs, atol=1e-4, rtol=1e-4)
        count = found.logprobs.shape[1]
        # Every pass gives one token of the model's own, but the last may be cut.
        assert found.accepted <= found.drafted and found.forwards + found.accepted in (count, count + 1)
        assert (plain.forwards, plain.drafted, plain.accepted) == (count, 0, 0)
        if drafter is TWIN:
            assert found.acceptance > 0.9
            assert found.tokens_per_forward > (drafts + 1) * 0.6


def test_a_processor_with_a_grammar_holds_drafts_too() -> None:
    processor = [hf(WORDS)]
    plain = run(PROMPTS[0], logits_processor=processor, temperature=2.0)
    for drafter in (TWIN, RELATIVE, "prompt_lookup"):
        found = run(PROMPTS[0], logits_processor=processor, temperature=2.0, drafter=drafter)
        assert torch.equal(found.sequences, plain.sequences)
        if drafter is TWIN:
            assert found.acceptance > 0.9
    matcher = Matcher(WORDS)
    assert all(map(matcher.advance, plain.sequences[0, len(PROMPTS[0]) :].tolist()))


@pytest.mark.parametrize("drafter", [RELATIVE, "prompt_lookup"])
def test_padding_does_not_matter(drafter: Any) -> None:
    """Position ids of a padded prompt count from its first token, so the model says the same."""
    sampler = Sampler(RepetitionPenalty(1.2), order="hf")
    for prompt in PROMPTS:
        plain = run(prompt, sampler=sampler).sequences[:, len(prompt) :]
        found = run(prompt, padding=5, sampler=sampler, drafter=drafter)
        assert torch.equal(found.sequences[:, 5 + len(prompt) :], plain)


def test_all_that_is_asked_for_is_returned() -> None:
    keep = {"output_logits": True, "output_scores": True, "temperature": 0.5}
    plain, found = run(PROMPTS[0], **keep), run(PROMPTS[0], drafter=RELATIVE, **keep)
    assert isinstance(found, Generated)
    for name in ("logits", "scores"):
        mine, theirs = torch.stack(getattr(found, name)), torch.stack(getattr(plain, name))
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)
    assert found.past_key_values.get_seq_length() == plain.past_key_values.get_seq_length()
    ids = run(PROMPTS[0], drafter=RELATIVE, return_dict_in_generate=False, temperature=0.5)
    assert torch.equal(ids, plain.sequences)


def test_a_text_goes_on_from_its_cache() -> None:
    first = run(PROMPTS[0], tokens=10, drafter=RELATIVE)
    text = first.sequences[0].tolist()
    plain = run(text, tokens=10)
    found = run(text, tokens=10, drafter=RELATIVE, past_key_values=first.past_key_values)
    assert torch.equal(found.sequences, plain.sequences)


def test_stopping_criteria_see_every_token() -> None:
    """One that stops in the middle of accepted drafts."""
    text = run(PROMPTS[0]).sequences
    for stop in range(len(PROMPTS[0]) + 1, len(PROMPTS[0]) + 8):
        seen = []

        def stops(ids: Any, scores: Any, stop: int = stop, seen: list[int] = seen, **_: Any) -> Any:
            seen.append(ids.shape[1])
            return torch.tensor([ids.shape[1] == stop])

        found = run(PROMPTS[0], drafter=TWIN, stopping_criteria=[stops])
        assert torch.equal(found.sequences, text[:, :stop])
        assert seen == list(range(len(PROMPTS[0]) + 1, stop + 1))
        assert found.past_key_values.get_seq_length() == stop - 1


def test_a_window_of_attention_is_taken_back() -> None:
    torch.manual_seed(0)
    config = transformers.MistralConfig(
        vocab_size=WIDTH,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=8,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=0,
    )
    model = transformers.MistralForCausalLM(config).eval()
    for drafter in ("prompt_lookup", relative_of(model, 0.01)):
        plain, found = (
            run(PROMPTS[0], model=model, temperature=0.5, **more) for more in ({}, {"drafter": drafter})
        )
        assert torch.equal(found.sequences, plain.sequences)
    assert found.accepted > 0


@pytest.mark.parametrize("width", [WIDTH - 40, WIDTH + 30])
def test_a_drafter_may_have_another_number_of_tokens(width: int) -> None:
    """Ends and texts beyond a narrow one are not drafted; what a wide one has more is never."""
    plain = run(PROMPTS[0])
    found = run(PROMPTS[0], drafter=llama(width))
    assert torch.equal(found.sequences, plain.sequences)


@pytest.mark.parametrize("method", ["token", "block"])
def test_other_methods_keep_the_law(method: str) -> None:
    """Of the second token, given the first: from a draft, or drawn in its place."""
    prompt, count = PROMPTS[1], 600
    sampler = Sampler(TopK(3), Temperature(1.5), order="hf")
    texts = [
        tuple(
            run(prompt, tokens=3, seed=seed, sampler=sampler, drafter=RELATIVE, method=method)
            .sequences[0, 1:3]
            .tolist()
        )
        for seed in range(count)
    ]

    def law(text: Sequence[int]) -> dict[int, float]:
        with torch.no_grad():
            logits = MODEL(torch.tensor([text])).logits[0, -1]
        values, tokens = logits.topk(3)
        return dict(zip(tokens.tolist(), softmax(values / 1.5), strict=True))

    chances = {
        (first, second): chance * part
        for first, chance in law(prompt).items()
        for second, part in law([*prompt, first]).items()
    }
    cells = list(chances)
    assert fit(np.array([cells.index(text) for text in texts]), np.array(list(chances.values()))) > ALPHA


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [
        ([], 3, []),
        ([1], 3, []),
        ([1, 2, 3], 3, []),
        ([1, 2, 3, 9, 1, 2, 3], 2, [9, 1]),
        ([1, 2, 3, 9, 1, 2, 3], 8, [9, 1, 2, 3]),
        ([5, 3, 4, 1, 2, 3, 9, 8, 2, 3], 2, [9, 8]),
        ([3, 4, 4, 3, 5, 5, 3], 2, [5, 5]),
        ([7, 7, 7, 7, 7, 7], 2, [7, 7]),
    ],
)
def test_prompt_lookup(text: list[int], count: int, expected: list[int]) -> None:
    assert looked_up(text, count) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"drafter": "ngram"}, "a drafter is a model of transformers or 'prompt_lookup', not 'ngram'"),
        ({"drafter": TWIN, "drafts": 0}, "a drafter guesses 1 token or more, not 0"),
        ({"drafter": TWIN, "num_return_sequences": 2}, "drafts for a single row, not for 2"),
        ({"drafter": TWIN, "use_cache": False}, "drafts without a cache"),
        ({"drafter": TWIN, "cache_implementation": "static"}, "a cache of StaticLayer"),
        ({"drafter": TWIN, "method": "blok"}, "unknown method 'blok'"),
    ],
)
def test_what_is_not_done_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        run(PROMPTS[0], **settings)


def test_a_prompt_with_holes_is_refused() -> None:
    with pytest.raises(ValueError, match="masked but at its left"):
        MODEL.generate(
            torch.tensor([[1, 2, 3, 4]]),
            attention_mask=torch.tensor([[0, 1, 0, 1]]),
            custom_generate=generate,
            drafter="prompt_lookup",
            max_new_tokens=2,
        )


# On the embedded model.


@pytest.fixture(scope="module")
def language() -> Language:
    return Language()


LIST: Final = "Red, green, blue. Red, green, blue. Red, green, blue. Red,"
TALE: Final = "Once upon a time there was a"
REAL: Final[dict[str, Any]] = {"custom_generate": generate, "do_sample": True, "top_k": 0, "seed": 7}


def test_real_drafts_of_a_model(language: Language) -> None:
    """A drafter of the same weights whose noise is the model's own: nearly everything stands."""
    settings = {**REAL, "temperature": 0.8, "top_p": 0.95}
    plain = language.generate([TALE], None, **settings)
    assert language.forwards == len(plain[0])
    assistant = copy.copy(language.model)
    assistant.forward = type(language.model).forward.__get__(assistant)
    drafted = language.generate([TALE], None, drafter=assistant, **settings)
    assert drafted == plain
    assert language.forwards < len(plain[0]) / 3


@pytest.mark.parametrize("temperature", [0.3, 0.7])
def test_real_prompt_lookup(language: Language, temperature: float) -> None:
    settings = {**REAL, "temperature": temperature}
    plain = language.generate([LIST], None, **settings)
    assert language.generate([LIST], None, drafter="prompt_lookup", **settings) == plain
    assert language.forwards < len(plain[0])


def test_real_grammars(language: Language) -> None:
    digits = repeat(one_of([(48, 57)]), 1, 3)
    person = concat(
        literal(b'{"name": "'), repeat(LETTERS, 1, 8), literal(b'", "age": '), digits, literal(b"}")
    )
    table = Grammar(person).compile(language.vocabulary)
    sampler = Sampler(language.vocabulary, Constrain(table), Temperature(1.0), TopP(0.95))
    prompt = 'An object about Bob: {"name": "Bob", "age": 42}\nAn object about Ann, who is 31 years old: '
    plain = language.generate([prompt], None, sampler=sampler, tokens=24, **REAL)
    found = language.generate([prompt], None, sampler=sampler, tokens=24, drafter="prompt_lookup", **REAL)
    assert found == plain and language.forwards < len(plain[0])
    matcher = Matcher(table)
    assert all(map(matcher.advance, found[0])) and found[0][-1] == MODEL_END
