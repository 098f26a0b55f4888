"""The transformers adapter: on the embedded model, and on made-up calls that no `generate` would spare it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from machines import NASTY, json_machine, random_machine

from sortition.grammars.expr import Call, Expr, alternative, concat, literal, one_of, repeat
from sortition.grammars.grammar import Grammar
from sortition.grammars.matcher import Matcher
from sortition.grammars.table import Table
from sortition.grammars.tabulation import build_table
from sortition.grammars.vocabulary import Vocabulary

transformers = pytest.importorskip("transformers")
from language import MODEL_END, Language  # noqa: E402

from sortition.integrations.hf import hf  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

# On the embedded model.


@pytest.fixture(scope="module")
def language() -> Language:
    return Language()


LETTERS = one_of([(65, 90), (97, 122)])
PERSON = concat(
    literal(b'{"name": "'),
    repeat(LETTERS, 1, 8),
    literal(b'", "age": '),
    repeat(one_of([(48, 57)]), 1, 2),
    literal(b"}"),
)
LIST = concat(literal(b"["), Call("item"), repeat(concat(literal(b", "), Call("item")), 0, 3), literal(b"]"))
DIGITS: Expr = repeat(one_of([(48, 57)]), 1, 3)


@pytest.fixture(scope="module")
def person(language: Language) -> Table:
    return Grammar(PERSON).compile(language.vocabulary)


@pytest.fixture(scope="module")
def nested(language: Language) -> Table:
    rules = {"number": DIGITS, "list": LIST, "item": DIGITS}
    return Grammar(alternative(Call("list"), Call("number")), rules).compile(language.vocabulary)


ANN = "Write a JSON object about Ann, who is 31 years old.\n"
BOB = "Bob, 7:"
COUNT = "Count from one to four: "


def assert_valid(table: Table, texts: list[list[int]], *, whole: bool = True) -> None:
    for text in texts:
        matcher = Matcher(table)
        for token in text:
            assert matcher.advance(token), text
        assert matcher.finished or not whole


def test_greedy(language: Language, person: Table) -> None:
    texts = language.generate([ANN], hf(person))
    assert_valid(person, texts)
    assert language.tokenizer.decode(texts[0], skip_special_tokens=True).startswith('{"name": "')


def test_free_rows_are_as_without(language: Language, person: Table) -> None:
    processor = hf([None, person])
    texts = language.generate([COUNT, ANN], processor, tokens=12)
    torch.manual_seed(0)
    inputs = language.encode(COUNT, ANN)
    plain = language.model.generate(**inputs, do_sample=False, max_new_tokens=12)
    new = plain[0, inputs["input_ids"].shape[1] :].tolist()
    assert texts[0] == new[: len(texts[0])]
    assert_valid(person, texts[1:], whole=False)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.5, "num_return_sequences": 3},
        {"top_k": 5, "num_return_sequences": 2},
        {"top_p": 0.5, "min_p": 0.1, "repetition_penalty": 1.2},
    ],
)
def test_sampling(language: Language, person: Table, settings: dict[str, Any]) -> None:
    texts = language.generate([ANN], hf(person), tokens=24, do_sample=True, **settings)
    assert len(texts) == settings.get("num_return_sequences", 1)
    assert_valid(person, texts)


@pytest.mark.parametrize("prompts", [[ANN], [ANN, BOB]])
@pytest.mark.parametrize("sampled", [False, True])
def test_beams(language: Language, person: Table, prompts: list[str], sampled: bool) -> None:
    texts = language.generate(prompts, hf(person), num_beams=3, num_return_sequences=2, do_sample=sampled)
    assert len(texts) == 2 * len(prompts)
    assert_valid(person, texts)


def test_beams_of_a_grammar_each(language: Language, person: Table, nested: Table) -> None:
    texts = language.generate([ANN, COUNT], hf([person, nested]), num_beams=2, num_return_sequences=2)
    assert_valid(person, texts[:2])
    assert_valid(nested, texts[2:])


def test_text_is_the_same_alone_and_in_a_batch(language: Language, person: Table, nested: Table) -> None:
    alone = language.generate([ANN], hf(person)) + language.generate([COUNT], hf(nested))
    together = language.generate([ANN, COUNT, BOB], hf([person, nested, person]))
    assert together[:2] == alone
    assert_valid(person, together[2:])


def test_one_processor_serves_many_calls(language: Language, person: Table) -> None:
    processor = hf(person)
    first = language.generate([ANN], processor)
    texts = language.generate([ANN, BOB], processor)
    assert texts[:1] == first
    assert_valid(person, texts)
    assert_valid(person, language.generate([BOB], processor, num_return_sequences=3, do_sample=True, top_k=5))
    assert language.generate([ANN], processor, tokens=5) == [first[0][:5]]
    assert language.generate([ANN], processor) == first
    assert_valid(person, language.generate([BOB, ANN], processor, num_beams=2))
    # The turn that follows in a chat: the prompt is the last prompt, what came of it, and more.
    more = ANN + language.tokenizer.decode(first[0], skip_special_tokens=True) + "\nAnd Bob, who is 7?\n"
    assert_valid(person, language.generate([more], processor))
    assert language.generate([ANN], processor) == first


def test_a_text_cut_short_is_resumed(language: Language, person: Table) -> None:
    processor = hf(person)
    inputs = language.encode(ANN)
    whole = language.generate([ANN], hf(person))
    ids = inputs["input_ids"]
    prompt = ids.shape[1]
    while ids[0, -1] != MODEL_END:
        ids = language.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=4,
            logits_processor=[processor],
        )
    assert ids[:, prompt:].tolist() == whole


@pytest.mark.parametrize("sampled", [False, True])
def test_assistant(language: Language, person: Table, sampled: bool) -> None:
    settings = {"assistant_model": language.assistant, "do_sample": sampled}
    texts = language.generate([ANN], hf(person), **settings)
    assert_valid(person, texts)
    # Every call of the model yields one token of its own, all others were drafts.
    assert language.forwards < len(texts[0]) / 2
    if not sampled:
        assert texts == language.generate([ANN], hf(person))


EXAMPLES = (
    'Objects: {"name": "Ann", "age": 31}\n{"name": "Bob", "age": 7}\n'
    'The same again:\n{"name": "Ann", "age": 31}\n'
)


@pytest.mark.parametrize("sampled", [False, True])
def test_prompt_lookup(language: Language, person: Table, sampled: bool) -> None:
    settings = {"prompt_lookup_num_tokens": 5, **({"do_sample": True, "top_k": 3} if sampled else {})}
    texts = language.generate([EXAMPLES], hf(person), **settings)
    assert_valid(person, texts)
    assert language.forwards < len(texts[0])
    if not sampled:
        assert texts == language.generate([EXAMPLES], hf(person))


def test_drafts_and_plain_calls_share_a_processor(language: Language, person: Table) -> None:
    processor = hf(person)
    plain = language.generate([ANN], processor)
    assert language.generate([ANN], processor, assistant_model=language.assistant) == plain
    assert language.generate([ANN], processor, prompt_lookup_num_tokens=4) == plain
    assert language.generate([ANN], processor) == plain


def test_raw_logits_stay_as_they_are(language: Language, person: Table) -> None:
    inputs = language.encode(ANN)
    output = language.model.generate(
        **inputs,
        do_sample=False,
        max_new_tokens=3,
        logits_processor=[hf(person)],
        output_logits=True,
        output_scores=True,
        return_dict_in_generate=True,
    )
    for raw, scores in zip(output.logits, output.scores, strict=True):
        assert raw.isfinite().all()
        kept = scores > float("-inf")
        assert kept.any() and not kept.all()
        assert torch.equal(scores[kept], raw[kept])


def test_eligible_tokens_ruled_out_by_others(language: Language, person: Table) -> None:
    brace = [token for token, text in enumerate(language.vocabulary.tokens) if text.startswith(b"{")]
    texts = language.generate([ANN], hf(person), bad_words_ids=[[token] for token in brace])
    assert_valid(person, texts)


# On made-up calls.


@dataclass(frozen=True)
class Toy:
    """A table of a small vocabulary and its masks, straight from the matcher."""

    table: Table
    ends: tuple[int, ...]

    def expected(self, text: Sequence[int]) -> list[bool]:
        matcher = Matcher(self.table, self.ends)
        if all(matcher.finished or matcher.advance(token) for token in text):
            words = matcher.allowed()
            return [bool(words[token >> 5] >> (token & 31) & 1) for token in range(SMALL.size)]
        return [token in self.ends for token in range(SMALL.size)]


SMALL = Vocabulary.of(
    [b"", *(bytes([byte]) for byte in b'[]{},:"0123456789.-abcdefghrtluns'), *NASTY], end_tokens=[]
)
ID = {text: token for token, text in enumerate(SMALL.tokens)}
JSON = Toy(build_table(json_machine(), SMALL), (0,))


def masked(processor: Any, rows: list[list[int]]) -> list[list[bool]]:
    scores = torch.zeros(len(rows), SMALL.size)
    return (processor(torch.tensor(rows), scores) == 0).tolist()


def spell(text: bytes) -> list[int]:
    return [ID[bytes([byte])] for byte in text]


PROMPT = spell(b"abc")
"""Not a text of the language, so that reading it as one shows."""


def test_drafts_taken_back() -> None:
    processor = hf(JSON.table, end_tokens=0)
    calls = [b"", b"[", b"[1", b"[1,", b"", b"[", b"[1", b"[1,", b"[1,2", b"[1]", b"[1", b"[1]", b"["]
    for text in calls:
        assert masked(processor, [PROMPT + spell(text)]) == [JSON.expected(spell(text))], text


def test_a_refused_draft_ends_nothing() -> None:
    processor = hf(JSON.table, end_tokens=0)
    for text in [b"", b"[", b"[a", b"[ab", b"[1", b"[1]"]:
        assert masked(processor, [PROMPT + spell(text)]) == [JSON.expected(spell(text))], text


def test_prompts_that_differ_in_one_token() -> None:
    processor = hf(JSON.table, end_tokens=0)
    for text in [b"", b"[", b"[1"]:
        masked(processor, [PROMPT + spell(text)])
    # No draft: the grammar allows no letter at the start, so none was drawn under it.
    for text in [b"", b"[", b"[1"]:
        prompt = PROMPT + spell(b"d")
        assert masked(processor, [prompt + spell(text)]) == [JSON.expected(spell(text))]


def test_reset_begins_a_new_text() -> None:
    processor = hf(JSON.table, end_tokens=0)
    masked(processor, [PROMPT])
    masked(processor, [PROMPT + spell(b"[")])
    assert masked(processor, [PROMPT + spell(b"[1")]) == [JSON.expected(spell(b"[1"))]
    processor.reset()
    assert masked(processor, [PROMPT + spell(b"[1")]) == [JSON.expected([])]


def test_two_interleaved_generations() -> None:
    # An assistant with another tokenizer: its ids are not ours, its calls come between the model's.
    processor = hf(JSON.table, end_tokens=0)
    other = spell(b"fgh")
    rounds = [
        ([b"", b"1"], [b"", b"["]),
        ([b"12", b"123", b"1234"], [b"[2", b"[2,"]),
        ([b"f"], [b"[2]"]),
    ]
    for theirs, ours in rounds:
        for text in theirs:
            masked(processor, [other + spell(text)])
        for text in ours:
            assert masked(processor, [PROMPT + spell(text)]) == [JSON.expected(spell(text))]


def test_reordered_beams() -> None:
    processor = hf(JSON.table, end_tokens=0)
    calls = [
        [b"", b"", b"", b""],
        [b"[", b"1", b"2", b"{"],
        [b"[1", b"[[", b"2,", b'{"'],
        [b"[[1", b"[[]", b'{"a', b'{""'],
        [b"[[1,", b"[[1]", b'{"ab', b'{"a"'],
    ]
    for number, texts in enumerate(calls):
        # Two prompts, two beams each; beams are only reordered among their own.
        prompts = [PROMPT, PROMPT, PROMPT[::-1], PROMPT[::-1]]
        rows = [prompt + spell(text) for prompt, text in zip(prompts, texts, strict=True)]
        expected = [JSON.expected(spell(text)) for text in texts]
        assert masked(processor, rows) == expected, number


class Calls:
    """What `generate` does in each of its modes, as seen by a processor, with every answer checked."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.processor = hf(JSON.table, end_tokens=0)

    def prompt(self, length: int) -> list[int]:
        return [self.draw.choice(spell(b"abcdefg")) for _ in range(length)] + spell(b"h")

    def show(self, prompts: list[list[int]], texts: list[list[int]]) -> list[int]:
        """Show these rows; one eligible token for each."""
        expected = [JSON.expected(text) for text in texts]
        rows = [prompt + text for prompt, text in zip(prompts, texts, strict=True)]
        assert masked(self.processor, rows) == expected
        return [self.draw.choice([token for token, may in enumerate(row) if may]) for row in expected]

    def plain(self, steps: int) -> None:
        length, size = self.draw.randrange(5), self.draw.randrange(1, 4)
        prompts = [self.prompt(length) for _ in range(size)]
        texts: list[list[int]] = [[] for _ in prompts]
        for _ in range(steps):
            texts = [[*text, token] for text, token in zip(texts, self.show(prompts, texts), strict=True)]

    def beams(self, steps: int) -> None:
        length, size, beams = self.draw.randrange(5), self.draw.randrange(1, 3), self.draw.randrange(2, 4)
        prompts = [prompt for prompt in [self.prompt(length) for _ in range(size)] for _ in range(beams)]
        texts: list[list[int]] = [[] for _ in prompts]
        for _ in range(steps):
            tokens = self.show(prompts, texts)
            parents = [row // beams * beams + self.draw.randrange(beams) for row in range(len(prompts))]
            texts = [[*texts[parent], tokens[parent]] for parent in parents]

    def assisted(self, steps: int) -> None:
        """Drafts by a model under the same processor, checked from their beginning on."""
        prompt, text = self.prompt(self.draw.randrange(5)), list[int]()
        while len(text) < steps:
            draft = list(text)
            for _ in range(self.draw.randrange(4)):
                draft += self.show([prompt], [draft])
            accepted = self.draw.randint(len(text), len(draft))
            tokens = [self.show([prompt], [draft[:end]]) for end in range(len(text), len(draft) + 1)]
            text = draft[:accepted] + tokens[accepted - len(text)]

    def looked_up(self, steps: int) -> None:
        """Drafts from the prompt, which are probed first, and cut where a token is not allowed."""
        prompt, text = self.prompt(3), list[int]()
        while len(text) < steps:
            draft = list(text)
            for token in spell(self.draw.choice([b"[1,", b"1", b"]]", b"a", b'":"'])):
                self.show([prompt], [draft])
                if not JSON.expected(draft)[token]:
                    break
                draft.append(token)
            accepted = self.draw.randint(len(text), len(draft))
            tokens = [self.show([prompt], [draft[:end]]) for end in range(len(text), len(draft) + 1)]
            text = draft[:accepted] + tokens[accepted - len(text)]


@pytest.mark.parametrize("seed", range(8))
def test_any_sequence_of_calls(seed: int) -> None:
    draw = random.Random(seed)
    calls = Calls(draw)
    for _ in range(8):
        draw.choice([calls.plain, calls.beams, calls.assisted, calls.looked_up])(draw.randrange(1, 9))


def test_finished_rows_are_shown_padding() -> None:
    processor = hf(JSON.table, end_tokens=0)
    for padding in range(3):
        rows = [PROMPT + spell(b"1") + [0, *PROMPT[:padding]]]
        for length in range(len(PROMPT), len(rows[0]) + 1):
            text = rows[0][len(PROMPT) : length]
            assert masked(processor, [rows[0][:length]]) == [JSON.expected(text)]


def test_embeddings_have_no_prompt() -> None:
    processor = hf(JSON.table, end_tokens=0)
    for _ in range(2):
        for text in (b"", b"[", b"[1"):
            scores = torch.zeros(2, SMALL.size)
            ids = torch.tensor([spell(text)] * 2, dtype=torch.int64)
            assert (processor(ids, scores) == 0).tolist() == [JSON.expected(spell(text))] * 2


def test_rows_share_the_tables() -> None:
    other = Toy(build_table(random_machine(random.Random(1)), SMALL), (0,))
    processor = hf([JSON.table, None, other.table, JSON.table], end_tokens=[0])
    prompts = [PROMPT] * 8
    every = [True] * SMALL.size
    expected = [JSON.expected([])] * 2 + [every] * 2 + [other.expected([])] * 2 + [JSON.expected([])] * 2
    assert masked(processor, prompts) == expected
    with pytest.raises(ValueError, match="there are tables for 4 prompts, and generate has 6 rows"):
        masked(processor, prompts[:6])


def test_mistakes_are_refused() -> None:
    with pytest.raises(ValueError, match="end tokens"):
        hf(JSON.table)
    with pytest.raises(ValueError, match="at least one table"):
        hf([None, None])
    with pytest.raises(ValueError, match="nothing to do: a table, a seed or a sampling parameter is needed"):
        hf()
    with pytest.raises(TypeError, match="a table, or one for each prompt, is needed, not a dict"):
        hf({"type": "object"}, temperature=0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="history"):
        hf(JSON.table, end_tokens=0)(torch.tensor([1, 2]), torch.zeros(2, SMALL.size))
