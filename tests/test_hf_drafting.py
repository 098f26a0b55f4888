"""Drafts in `generate`: whatever guesses, the text is the one without drafts, in fewer forward passes."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final

import numpy as np
import pytest
import torch
from byte_llama import END, WIDTH, byte_llama
from laws import ALPHA, fit, softmax
from models import real

from sortition.grammars.choice import choice
from sortition.grammars.expr import concat, literal, one_of, repeat
from sortition.grammars.grammar import Grammar
from sortition.grammars.json_schema import json_schema
from sortition.grammars.matcher import Matcher
from sortition.grammars.vocabulary import Vocabulary
from sortition.sampling.rules import Constrain, FrequencyPenalty, RepetitionPenalty, Temperature, TopK, TopP
from sortition.sampling.sampler import Sampler

transformers = pytest.importorskip("transformers")
import tokenizers  # noqa: E402
from language import MODEL_END, Language  # noqa: E402

from sortition.integrations.hf import hf  # noqa: E402
from sortition.integrations.hf_drafters import looked_up  # noqa: E402
from sortition.integrations.hf_generate import generate  # noqa: E402
from sortition.integrations.hf_generated import Generated  # noqa: E402
from sortition.integrations.hf_grammar_drafter import spelling_of  # noqa: E402
from sortition.integrations.tokenizers import BYTE_ALPHABET  # noqa: E402

pytestmark = pytest.mark.usefixtures("compiled", "one_thread")

VOCABULARY = Vocabulary.of([*(bytes([byte]) for byte in range(256)), *[b""] * 4], end_tokens=[END])
LETTERS = one_of([(65, 90), (97, 122)])
WORDS = Grammar(concat(literal(b"<"), repeat(LETTERS, 3, 40), literal(b">"))).compile(VOCABULARY)


def sliding() -> Any:
    """A model whose attention looks at a few tokens only."""
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
    return transformers.MistralForCausalLM(config).eval()


def byte_tokenizer() -> Any:
    """A tokenizer of transformers whose tokens are the bytes."""
    ids = BYTE_ALPHABET | {"<end>": END}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(ids, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")


def relative_of(model: Any, noise: float) -> Any:
    """A model of its own, whose weights differ by so much."""
    other = copy.deepcopy(model)
    torch.manual_seed(1)
    with torch.no_grad():
        for weights in other.parameters():
            weights.add_(noise * torch.randn_like(weights))
    return other


MODEL: Final = byte_llama()
SLIDING: Final = sliding()
BYTES: Final = byte_tokenizer()
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


def run_batch(prompts: Sequence[Sequence[int]], model: Any = MODEL, tokens: int = 40, **settings: Any) -> Any:
    """What `generate` returns for prompts of different lengths, padded at the left."""
    torch.seed()
    longest = max(map(len, prompts))
    return model.generate(
        torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]),
        attention_mask=torch.tensor(
            [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        ),
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


PERSON: Final = Grammar(
    concat(
        literal(b'{"name": "'),
        repeat(LETTERS, 1, 8),
        literal(b'", "age": '),
        repeat(one_of([(48, 57)]), 1, 3),
        literal(b"}"),
    )
).compile(VOCABULARY)
"""Of at least 26 bytes, 22 are forced: what comes after the name and the age begins with a choice."""


@pytest.mark.parametrize("method", ["coupled", "token", "block"])
def test_the_grammar_drafts_what_it_forces(method: str) -> None:
    """With tokens of one byte each, what is forced has one spelling, so all of it stands."""
    settings = {
        "sampler": Sampler(VOCABULARY, Constrain(PERSON), Temperature(0.7)),
        "method": method,
        "target_tokenizer": BYTES,
    }
    for prompt in PROMPTS:
        plain = run(prompt, **settings)
        found = run(prompt, drafter="grammar", **settings)
        assert torch.equal(found.sequences, plain.sequences) or method != "coupled"
        assert found.acceptance == 1.0 and found.accepted >= 19
        text = found.sequences[0, len(prompt) :].tolist()
        matcher = Matcher(PERSON)
        assert all(map(matcher.advance, text)) and matcher.finished
        assert found.forwards == len(text) - found.accepted


def test_the_grammar_of_a_processor_drafts_too() -> None:
    for processor in (hf(PERSON), hf(PERSON, temperature=0.9, seed=3)):
        plain = run(PROMPTS[0], logits_processor=[processor])
        found = run(PROMPTS[0], logits_processor=[processor], drafter="grammar", target_tokenizer=BYTES)
        assert torch.equal(found.sequences, plain.sequences)
        assert found.acceptance == 1.0 and found.accepted >= 19


def test_drafters_take_turns() -> None:
    """What the grammar forces is its own; in between, the others guess."""
    settings = {
        "sampler": Sampler(VOCABULARY, Constrain(PERSON), Temperature(0.7)),
        "target_tokenizer": BYTES,
    }
    plain = run(PROMPTS[0], **settings)
    alone = run(PROMPTS[0], drafter="grammar", **settings)
    for other in (TWIN, "prompt_lookup"):
        found = run(PROMPTS[0], drafter=["grammar", other], **settings)
        assert torch.equal(found.sequences, plain.sequences)
        assert found.drafted > alone.drafted or other is not TWIN
        assert found.forwards < alone.forwards or other is not TWIN


@pytest.mark.parametrize(
    ("way", "name"), [*((way, "relative") for way in WAYS), *(("grammar", name) for name in DRAFTERS)]
)
def test_several_rows_write_what_they_write_without_drafts(way: str, name: str) -> None:
    """Each at its own pace: rows accept different numbers of drafts, and end at different times."""
    settings, drafter = WAYS[way], DRAFTERS[name]
    plain = run_batch(PROMPTS, **settings)
    found = run_batch(PROMPTS, drafter=drafter, **settings)
    assert torch.equal(found.sequences, plain.sequences)
    torch.testing.assert_close(found.logprobs, plain.logprobs, atol=1e-4, rtol=1e-4)
    assert found.forwards <= plain.forwards
    if drafter is TWIN:
        assert found.acceptance > 0.9 and found.tokens_per_forward > 3


def test_a_row_is_what_it_is_alone() -> None:
    """With drafts in a batch and with drafts alone, whatever else is in the batch."""
    batch = run_batch(PROMPTS, drafter=RELATIVE, seed=[1, 2, 3])
    longest = max(map(len, PROMPTS))
    for row, prompt in enumerate(PROMPTS):
        alone = run(prompt, drafter=RELATIVE, seed=row + 1).sequences[0, len(prompt) :]
        assert torch.equal(batch.sequences[row, longest : longest + len(alone)], alone)


def test_rows_may_have_values_grammars_and_drafts_of_their_own() -> None:
    sampler = Sampler(
        VOCABULARY, Constrain([WORDS, None, PERSON]), Temperature([2.0, 0.5, 1.0]), TopK([0, 9, 0])
    )
    settings = {"sampler": sampler, "target_tokenizer": BYTES}
    plain = run_batch(PROMPTS, **settings)
    for drafter in ("grammar", ["grammar", RELATIVE], ["grammar", "prompt_lookup"]):
        found = run_batch(PROMPTS, drafter=drafter, **settings)
        assert torch.equal(found.sequences, plain.sequences)
        assert found.accepted >= 19
    for method in ("token", "block"):
        found = run_batch(PROMPTS, drafter=["grammar", RELATIVE], method=method, **settings)
        text = found.sequences[2, max(map(len, PROMPTS)) :].tolist()
        matcher = Matcher(PERSON)
        assert all(map(matcher.advance, text[: text.index(END) + 1])) and matcher.finished


def test_all_that_is_asked_for_of_several_rows_is_returned() -> None:
    keep = {"output_logits": True, "output_scores": True, "temperature": 0.5, "repetition_penalty": 1.2}
    plain, found = run_batch(PROMPTS, **keep), run_batch(PROMPTS, drafter=RELATIVE, **keep)
    for name in ("logits", "scores"):
        mine, theirs = torch.stack(getattr(found, name), 1), torch.stack(getattr(plain, name), 1)
        for row, text in enumerate(plain.sequences[:, max(map(len, PROMPTS)) :].tolist()):
            end = text.index(END) + 1 if END in text else len(text)
            torch.testing.assert_close(mine[row, :end], theirs[row, :end], atol=1e-4, rtol=1e-4)
            assert not mine[row, end:].any()


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
    for drafter in ("prompt_lookup", relative_of(SLIDING, 0.01)):
        plain, found = (
            run(PROMPTS[0], model=SLIDING, temperature=0.5, **more) for more in ({}, {"drafter": drafter})
        )
        assert torch.equal(found.sequences, plain.sequences)
    assert found.accepted > 0


@pytest.mark.parametrize("width", [WIDTH - 40, WIDTH + 30])
def test_a_drafter_may_have_another_number_of_tokens(width: int) -> None:
    """Ends and texts beyond a narrow one are not drafted; what a wide one has more is never."""
    plain = run(PROMPTS[0])
    found = run(PROMPTS[0], drafter=byte_llama(width))
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


def shared(texts: Sequence[bytes]) -> bytes:
    """What all texts begin with."""
    return bytes(
        column[0] for column in takewhile(lambda each: len(set(each)) == 1, zip(*texts, strict=False))
    )


PHRASES: Final = ["", "a", "abc", "abcd", "abX", "na\u00efve", "na\u00eff", "xyz", "xyzabc", "\u00e9t\u00e9"]


@pytest.mark.parametrize(
    "phrases", [PHRASES, PHRASES[1:], PHRASES[2:4], PHRASES[5:7], PHRASES[7:], PHRASES[-1:]]
)
def test_what_is_forced_is_what_all_texts_share(phrases: list[str]) -> None:
    texts = [phrase.encode() for phrase in phrases]
    table = choice(phrases).compile(VOCABULARY)
    for begun in {text[:end] for text in texts for end in range(len(text) + 1)}:
        matcher = Matcher(table)
        assert all(map(matcher.advance, begun))
        rests = [text[len(begun) :] for text in texts if text.startswith(begun)]
        assert spelling_of(BYTES).forced(matcher) == shared(rests)
        # It has not moved.
        matcher.rollback(len(begun))
        assert all(map(matcher.advance, begun))


SPELLED: Final = (
    '{"name": "Ada", "age": 36, "tags": ["x", "\u00e9t\u00e9"], "note": null}',
    "The quick brown fox, \u4f60\u597d, jumps\n\n  over 1234567 lazy dogs.",
)


@pytest.mark.parametrize("name", ["smollm2"])
@pytest.mark.parametrize("text", SPELLED)
def test_a_span_is_spelled_as_the_tokenizer_spells_it(name: str, text: str) -> None:
    """From any of its tokens to the end of any other, as far as the tokenizer spells that beginning so."""
    tokenizer, encode = real(name).tokenizer, real(name).encode
    spelling, tokens = spelling_of(tokenizer), encode(text)
    pieces = [real(name).vocabulary.tokens[token] for token in tokens]
    for begin in range(len(tokens)):
        for end in range(begin + 1, len(tokens) + 1):
            span = b"".join(pieces[begin:end])
            found = spelling.spelled(tokens[:begin], span)
            assert b"".join(real(name).vocabulary.tokens[token] for token in found) == whole_characters(
                b"".join(pieces[:begin]), span
            )
            if encode(b"".join(pieces[:end]).decode("utf-8", "ignore")) == tokens[:end]:
                assert found == tokens[begin:end]


def whole_characters(before: bytes, span: bytes) -> bytes:
    """The span without what it has of a last character that it does not finish."""
    text = before + span
    ends = next(end for end in range(len(text), -1, -1) if is_utf8(text[:end]))
    return span[: max(ends - len(before), 0)]


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"drafter": "ngram"},
            "a drafter is a model of transformers, 'prompt_lookup' or 'grammar', not 'ngram'",
        ),
        ({"drafter": ["prompt_lookup", 7]}, "'prompt_lookup' or 'grammar', not 7"),
        ({"drafter": "grammar"}, "drafter 'grammar' needs target_tokenizer="),
        ({"drafter": "grammar", "target_tokenizer": BYTES}, "drafter 'grammar' without a grammar"),
        ({"drafter": TWIN, "drafts": 0}, "a drafter guesses 1 token or more, not 0"),
        ({"drafter": TWIN, "use_cache": False}, "drafts without a cache"),
        ({"drafter": TWIN, "cache_implementation": "static"}, "a cache of StaticLayer"),
        ({"drafter": TWIN, "method": "blok"}, "unknown method 'blok'"),
    ],
)
def test_what_is_not_done_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        run(PROMPTS[0], **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"logits_processor": [hf(WORDS)]}, "with a grammar and rules of its sampler, not of so.hf"),
        (
            {"prefix_allowed_tokens_fn": lambda row, ids: [65]},
            "drafts for several rows with a PrefixConstrainedLogitsProcessor",
        ),
        (
            {"stopping_criteria": [lambda ids, scores, **_: torch.zeros(len(ids), dtype=torch.bool)]},
            "drafts for several rows with a function",
        ),
        ({"model": SLIDING}, "drafts for several rows with a cache of DynamicSlidingWindowLayer"),
    ],
)
def test_what_is_not_done_for_several_rows_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        run_batch(PROMPTS, drafter="prompt_lookup", **settings)


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


SCHEMA: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "profession": {"enum": ["doctor", "lawyer", "engineer"]},
        "address": {
            "type": "object",
            "properties": {
                "street": {"type": "string", "maxLength": 30},
                "city": {"type": "string", "maxLength": 30},
            },
            "required": ["street", "city"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "profession", "address"],
    "additionalProperties": False,
}

ABOUT: Final = "Ann Lee, 31, an engineer, lives at 5 Hill Road in Leeds. As JSON: "


@pytest.mark.parametrize("drafter", ["grammar", ["grammar", "prompt_lookup"]], ids=str)
def test_real_forced_spans(language: Language, drafter: Any) -> None:
    """What a schema forces, as the real tokenizer spells it: the text without drafts, in fewer passes."""
    table = json_schema(SCHEMA).compile(language.vocabulary)
    sampler = Sampler(language.vocabulary, Constrain(table), Temperature(0.8))
    settings = {**REAL, "sampler": sampler, "tokens": 80}
    plain = language.generate([ABOUT], None, **settings)
    forwards = language.forwards
    found = language.generate([ABOUT], None, drafter=drafter, target_tokenizer=language.tokenizer, **settings)
    assert found == plain
    assert language.forwards < 0.8 * forwards
