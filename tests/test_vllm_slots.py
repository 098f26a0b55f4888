"""The vLLM processor without vLLM: engines made up to do their worst, judged by the matcher.

Where Triton's interpreter is on, the second engine's masks and draws are those of kernels; `test_kernels.py`
runs that part of this file again in a process where it is.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sortition.grammars.expr import EMPTY
from sortition.grammars.grammar import Grammar
from sortition.grammars.matcher import Matcher
from sortition.grammars.table import Table
from sortition.grammars.vocabulary import Vocabulary
from sortition.integrations.vllm_batch import Batch
from sortition.integrations.vllm_compile import Compiler, Figures
from sortition.integrations.vllm_draw import NO_TOKENS, Drawer, Penalties, Turn, Wish
from sortition.integrations.vllm_host import HostSlots
from sortition.integrations.vllm_request import Request
from sortition.integrations.vllm_runner import Runner
from sortition.integrations.vllm_slots import Admission, News, Slots
from sortition.sampling.arena import Arena
from sortition.sampling.parameters import Parameters
from sortition.sampling.reference import Context, draw

END, STOP = 256, 257
VOCABULARY = Vocabulary.of(
    [
        *(bytes([byte]) for byte in range(256)),
        b"",
        b"",
        b"12",
        b'{"a":',
        b'"}',
        b"]]",
        b"[[",
        b"null,",
        b"ab",
    ],
    end_tokens=[END],
)
WIDTH = VOCABULARY.size + 3
PROMPT = list(b'1a"[{')
WAITING = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.equal.default,
}
"""Operators whose result the host waits for."""
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
STEPS = 5 if INTERPRETED else 40
DRAFTS = 3
REQUESTS = [
    Request("regex", '"[0-9]{1,4}(ab)?"'),
    Request("choice", '["ab", "a", "12"]'),
    Request("json_schema", '{"type": "object", "properties": {"a": {"enum": [1, "x", null]}}}'),
    Request(
        "json_schema",
        '{"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"}',
    ),
    Request("regex", '""'),
    # One that counts.
    Request("json_schema", '{"type": "string", "minLength": 2, "maxLength": 40}'),
]
WISHES = [
    Wish(Parameters(), 1),
    Wish(Parameters(temperature=0.7, top_k=20, min_p=0.01), -5),
    Wish(Parameters(temperature=0.0, logit_bias={65: 3.0}, min_tokens=3), 2**62),
    Wish(Parameters(repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.2, top_p=0.9), 7),
    Wish(Parameters(bad_words=((49,), (50, 50)), typical=0.4, order="llama.cpp", temperature=0.8), 8),
    Wish(Parameters(order="hf", presence_penalty=5.0), 9),
    # The prompt's tokens are the most likely ones until they are punished.
    Wish(Parameters(temperature=0.0, logit_bias=dict.fromkeys(PROMPT, 4.0), repetition_penalty=2.0), 11),
    Wish(Parameters(temperature=0.0, logit_bias=dict.fromkeys(PROMPT, 4.0), frequency_penalty=2.0), 12),
]
PUNISHED = Wish(
    Parameters(temperature=0.5, logit_bias=dict.fromkeys(PROMPT, 4.0)), 10, Penalties(3.0, 2.0, 0.0)
)
"""Only the first runner's wishes bring vLLM's own penalties, which the second has applied before."""
TABLES = {request: request.grammar().compile(VOCABULARY) for request in REQUESTS}
CLOSED = Grammar(EMPTY).compile(VOCABULARY)


@dataclass
class Text:
    """One request of a made-up engine: its grammar (None: free), its draw, and what it has emitted."""

    request: Request | None
    ends: tuple[int, ...] = (END,)
    output: list[int] = field(default_factory=list)
    wish: Wish | None = None

    def allowed(self, drafts: Sequence[int] = ()) -> np.ndarray | None:
        """bool [width], what may come next; None where the row has to be left alone."""
        if self.request is None or any(draft < 0 for draft in drafts):
            return None
        matcher = Matcher(TABLES[self.request], end_tokens=self.ends)
        for token in self.output:
            assert matcher.advance(token)
        if not all(draft < VOCABULARY.size and matcher.advance(draft) for draft in drafts):
            return None
        bits = np.unpackbits(matcher.allowed().view(np.uint8), bitorder="little")
        return np.append(bits, np.zeros(WIDTH, np.uint8))[:WIDTH].astype(bool)

    def next(self, chance: random.Random, drafts: Sequence[int] = ()) -> int:
        allowed = self.allowed(drafts)
        return chance.randrange(256) if allowed is None else chance.choice(np.flatnonzero(allowed).tolist())

    @property
    def admission(self) -> Admission | None:
        ours = self.request is not None or self.wish is not None
        return Admission(self.request, self.ends, self.wish) if ours else None

    def after(self, logits: Tensor, drafts: Sequence[int] = ()) -> Tensor:
        """A row of logits as it has to be given back."""
        allowed = self.allowed(drafts)
        if allowed is not None:
            logits = logits.masked_fill(~torch.from_numpy(allowed), float("-inf"))
        if self.wish is None or any(draft < 0 for draft in drafts):
            return logits
        output = [*self.output, *drafts]
        if self.wish.penalties is not None:
            logits = logits.clone()
            self.wish.penalties.apply(logits, np.array(PROMPT), np.array(output, np.int64))
        context = Context(self.wish.seed, len(output), PROMPT, output, self.ends)
        token, law = draw(logits.numpy(), self.wish.parameters, context)
        if law.flags:
            # Nothing is left: what the grammar allows, each as likely as the other.
            left = torch.where(logits > float("-inf"), 0.0, float("-inf"))
            token, _ = draw(left.numpy(), Parameters(), context)
        return one_left(token)


def one_left(token: int) -> Tensor:
    return torch.full((WIDTH,), float("-inf")).index_fill(0, torch.tensor([token]), 0.0)


def check(masked: Tensor, logits: Tensor, allowed: np.ndarray | None) -> None:
    """One row of logits, before and after a mask."""
    expected = logits if allowed is None else logits.masked_fill(~torch.from_numpy(allowed), float("-inf"))
    assert torch.equal(masked, expected)


def a_text(chance: random.Random, wishes: Sequence[Wish] = WISHES) -> Text:
    request = chance.choice([None, *REQUESTS])
    wish = chance.choice([None, chance.choice(wishes)])
    return Text(request, chance.choice([(END,), (END, STOP), (STOP,)]), wish=wish)


def slots(count: int, **bounds: Any) -> Slots:
    return Slots(Compiler(VOCABULARY, Figures()), CLOSED, torch.device("cpu"), count, **bounds)


def host_slots() -> HostSlots:
    return HostSlots(Compiler(VOCABULARY, Figures()), CLOSED)


class SecondEngine:
    """What the second model runner shows of its state, and a batch of it."""

    def __init__(self, count: int, **bounds: Any) -> None:
        prompt_lengths = np.zeros(count, np.int32)
        self.states = SimpleNamespace(
            max_num_reqs=count,
            all_token_ids=SimpleNamespace(gpu=torch.zeros(count, 64, dtype=torch.int32)),
            prompt_len=SimpleNamespace(np=prompt_lengths, gpu=torch.from_numpy(prompt_lengths)),
            prefill_len=SimpleNamespace(np=np.zeros(count, np.int32)),
            total_len=SimpleNamespace(gpu=torch.zeros(count, dtype=torch.int32)),
        )
        self.slots = slots(count, **bounds)
        self.figures = Figures()
        self.runner = Runner(self.slots, self.states, DRAFTS, Drawer(self.figures))
        self.texts: dict[int, Text] = {}

    def add(self, slot: int, text: Text) -> None:
        assert self.runner.add(slot, text.admission) == (text.admission is not None)
        self.texts[slot] = text
        self.states.prompt_len.np[slot] = len(PROMPT)
        self.states.prefill_len.np[slot] = len(PROMPT) + len(text.output)
        self.states.all_token_ids.gpu[slot] = -7
        self.flush(slot)

    def flush(self, slot: int) -> None:
        tokens = PROMPT + self.texts[slot].output
        self.states.total_len.gpu[slot] = len(tokens)
        self.states.all_token_ids.gpu[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)

    def last(self, slot: int) -> int:
        """The token that is fed where nothing is a draft."""
        return self.texts[slot].output[-1] if slot in self.texts and self.texts[slot].output else PROMPT[-1]

    def context(self, drafts: dict[int, list[int]], seen: dict[int, int] | None = None) -> Any:
        """A batch of slots with their drafts; `seen`: the prompts that are not all there, and how much is."""
        seen = seen or {}
        rows = [
            (slot, local, seen.get(slot, int(self.states.total_len.gpu[slot])) - 1 + local, draft)
            for slot, tokens in drafts.items()
            for local, draft in enumerate([self.last(slot), *tokens])
        ]
        bounds = [seen.get(slot, int(self.states.total_len.gpu[slot])) + len(drafts[slot]) for slot in drafts]
        index, local, pos, ids = torch.tensor(rows, dtype=torch.int32).unbind(1)
        return SimpleNamespace(
            expanded_idx_mapping=index,
            expanded_local_pos=local,
            pos=pos.long(),
            input_ids=ids,
            idx_mapping=torch.tensor(list(drafts), dtype=torch.int32),
            idx_mapping_np=np.array(list(drafts), np.int32),
            # The engine pads this one, and no other, where it replays a graph of a larger batch.
            seq_lens_upper_bound_np=np.array([*bounds, 0, 0], np.int32),
        )

    def check(self, drafts: dict[int, list[int]], seen: dict[int, int] | None = None) -> None:
        context = self.context(drafts, seen)
        logits = torch.randn(len(context.pos), WIDTH)
        masked = self.runner.mask(logits.clone(), context)
        row = 0
        for slot, tokens in drafts.items():
            for count in range(len(tokens) + 1):
                text, before = self.texts[slot], tokens[:count]
                refused = text.request is not None and text.allowed(before) is None
                if seen is not None and slot in seen:
                    assert torch.equal(masked[row], logits[row])
                # Nobody looks at what follows a draft that is not accepted.
                elif not refused and min(before, default=0) >= 0:
                    assert torch.equal(masked[row], text.after(logits[row], before))
                row += 1


def some_drafts(text: Text, chance: random.Random) -> list[int]:
    drafts: list[int] = []
    for _ in range(chance.randrange(DRAFTS + 1)):
        if chance.random() < 0.7 and text.allowed(drafts) is not None:
            drafts.append(text.next(chance, drafts))
        else:
            drafts.append(chance.choice([-1, END, chance.randrange(WIDTH)]))
    return drafts


def accepted(text: Text, drafts: Sequence[int], chance: random.Random) -> list[int]:
    """What a verifier commits: some drafts that are allowed, and one token more."""
    taken: list[int] = []
    for draft in drafts:
        if draft < 0 or text.allowed([*taken, draft]) is None or chance.random() < 0.3:
            break
        taken.append(draft)
    return [*taken, text.next(chance, taken)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("arena_bytes", [1 << 30, 1])
def test_the_second_runner_does_its_worst(seed: int, arena_bytes: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    engine = SecondEngine(6, arena_bytes=arena_bytes)
    preempted: list[Text] = []
    for _ in range(STEPS):
        free = [slot for slot in range(6) if slot not in engine.texts]
        while free and chance.random() < 0.5:
            slot = free.pop(chance.randrange(len(free)))
            text = preempted.pop() if preempted and chance.random() < 0.7 else a_text(chance)
            engine.add(slot, text)
            if chance.random() < 0.5:
                engine.check({slot: []}, {slot: chance.randrange(1, len(PROMPT) + len(text.output))})
        batch = [slot for slot in engine.texts if chance.random() < 0.8]
        chance.shuffle(batch)
        if not batch:
            continue
        drafts = {slot: some_drafts(engine.texts[slot], chance) for slot in batch}
        if chance.random() < 0.5:
            drafts = {slot: [] for slot in batch}
        for _ in range(chance.randrange(1, 3)):
            engine.check(drafts)
        for slot in chance.sample(batch, len(batch)):
            engine.check({slot: drafts[slot]})
        for slot in batch:
            text = engine.texts[slot]
            text.output += accepted(text, drafts[slot], chance)
            engine.flush(slot)
            if len(text.output) > 40 or chance.random() < 0.1:
                del engine.texts[slot]
            elif chance.random() < 0.15:
                preempted.append(engine.texts.pop(slot))
    assert int(engine.slots.constraint.refused) == 0
    drawn, mended = engine.runner.counts
    assert (drawn > 0) == INTERPRETED
    assert mended <= drawn


ASIDE = [
    ([float("nan"), 1.0], Parameters(), None, {1}),
    ([float("nan")], Parameters(), None, {STOP, END}),
    ([float("inf"), 0.0, float("inf")], Parameters(temperature=0.5), None, {0, 2}),
    ([1.0, 2.0], Parameters(allowed_tokens=(0,), bad_words=((0,),)), None, {STOP, END}),
    ([1.0, 2.0], Parameters(allowed_tokens=(0,), bad_words=((0,),)), REQUESTS[1], {49, 97, 258, 264}),
]


@pytest.mark.parametrize("number", range(len(ASIDE)))
def test_rows_of_the_second_runner_that_cannot_be_drawn_from(number: int) -> None:
    """The first logits of a row, and what may be left of it; beside a row that is as it should be."""
    values, parameters, request, possible = ASIDE[number]
    engine = SecondEngine(2)
    engine.add(0, Text(request, ends=(STOP, END), wish=Wish(parameters, number)))
    engine.add(1, Text(None, wish=WISHES[1]))
    context = engine.context({0: [], 1: []})
    logits = torch.full((2, WIDTH), -torch.inf)
    logits[0, : len(values)] = torch.tensor(values)
    logits[1] = torch.randn(WIDTH)
    if request is not None:
        logits[0] = 0.0
    masked = engine.runner.mask(logits.clone(), context)
    (left,) = (masked[0] == 0).nonzero().flatten().tolist()
    assert left in possible
    assert torch.equal(masked[1], engine.texts[1].after(logits[1]))
    turn = Turn(0, Wish(parameters, number), 0, (STOP, END), request is not None, NO_TOKENS, NO_TOKENS)
    if request is None:
        assert torch.equal(masked[:1], Drawer(Figures())(logits[:1].clone(), [turn]))


def test_warm_up_batches_of_the_second_runner() -> None:
    engine = SecondEngine(3)
    context = engine.context({0: [], 1: []}, {0: 1, 1: 1})
    logits = torch.randn(2, WIDTH)
    assert engine.runner.mask(logits, context) is logits
    engine.add(1, Text(REQUESTS[0]))
    context = engine.context({0: [], 1: [], 2: []}, {0: 1, 2: 1})
    logits = torch.randn(3, WIDTH)
    masked = engine.runner.mask(logits.clone(), context)
    assert torch.equal(masked[[0, 2]], logits[[0, 2]])
    check(masked[1], logits[1], engine.texts[1].allowed())


class Watch(TorchDispatchMode):
    """Fails where an operator's result is waited for."""

    def __torch_dispatch__(self, operator: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        assert operator not in WAITING, operator
        index = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default)
        for one in arguments[1] if operator in index else ():
            assert one is None or one.dtype != torch.bool, "how many are true is only known to the device"
        return operator(*arguments, **(keywords or {}))


class Launched:
    """Stands for a kernel: says that it was launched, and does nothing."""

    def __init__(self, name: str, launches: list[str]) -> None:
        self.name, self.launches = name, launches

    def __getitem__(self, grid: Any) -> Any:
        self.launches.append(self.name)
        return lambda *arguments, **options: None


ASKS = ("item", "tolist", "cpu", "numpy", "nonzero", "to", "__bool__", "__int__", "__float__", "__index__")
"""What would wait for a device, or move to another one."""
GRAMMAR = ["advance", "mask", "judge", "apply"]
DRAW = ["edit", "scan", "select", "finish", "elect", "leave"]


@pytest.mark.parametrize("kernels", [False, True])
def test_the_second_runner_never_waits_for_the_device(kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[str] = []
    if kernels:
        pytest.importorskip("triton")
        from sortition.integrations import vllm_device
        from sortition.sampling import device, device_constraint, device_sampler

        monkeypatch.setattr(device_sampler, "runs_on", lambda device: True)
        for module in (vllm_device, device, device_constraint):
            for name in {*GRAMMAR, *DRAW} & vars(module).keys():
                monkeypatch.setattr(module, name, Launched(name, launches))
    engine = SecondEngine(4)
    for slot, request in enumerate(REQUESTS[:3]):
        # Draws on the host wait.
        engine.add(slot, Text(request, wish=WISHES[(4, 3, 7)[slot]] if kernels else None))
    engine.add(3, Text(None, wish=WISHES[2] if kernels else None))

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("the host asks for what only the device knows")

    begin: dict[int, list[int]] = {0: [], 1: [], 2: [], 3: []}
    for step, drafts in enumerate((begin, {0: [1, 2], 1: [], 2: [-1], 3: []}, begin)):
        context = engine.context(drafts)
        logits = torch.randn(len(context.pos), WIDTH)
        launches.clear()
        with Watch(), monkeypatch.context() as patch:
            for name in ASKS:
                # Where requests have come, something is uploaded.
                if step or name != "to":
                    patch.setattr(Tensor, name, refuse)
            engine.runner.mask(logits, context)
        assert launches == ([*GRAMMAR, *DRAW] if kernels else [])


def test_no_request_of_the_second_runner_waits_for_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever requests bring, they launch the kernels that the start of the engine has launched."""
    pytest.importorskip("triton")
    from kernels_aot import MODULES, Caught, source_of

    from sortition.sampling import device_sampler

    launches: dict[str, Caught] = {}
    monkeypatch.setattr(device_sampler, "runs_on", lambda device: True)
    for module in MODULES:
        for name in {*GRAMMAR, *DRAW} & vars(module).keys():
            launches.setdefault(name, Caught(vars(module)[name]))
            monkeypatch.setattr(module, name, launches[name])

    def compiled() -> dict[str, tuple[Any, ...]]:
        sources = {name: source_of(launch) for name, launch in launches.items()}
        return {
            name: (source.signature, source.constants, source.attrs, options)
            for name, (source, options) in sources.items()
        }

    engine = SecondEngine(20)
    engine.runner.warm_up(WIDTH)
    at_start = compiled()
    assert at_start.keys() == {*GRAMMAR, *DRAW}
    many = tuple(range(16))
    for slot, (request, wish, ends) in enumerate(
        [
            (REQUESTS[0], WISHES[0], (END,)),
            (REQUESTS[2], WISHES[3], (END, STOP)),
            (REQUESTS[4], WISHES[4], (END,)),
            (REQUESTS[3], WISHES[7], many),
            (REQUESTS[5], Wish(Parameters(logit_bias=dict.fromkeys(range(200), 1.0)), 1), (*many, END)),
            *[(None, WISHES[2], (END,))] * 15,
        ]
    ):
        engine.add(slot, Text(request, ends, wish=wish))
        every = {each: [] if slot % 2 else [1] * (each % 4) for each in range(slot + 1)}
        context = engine.context(every)
        engine.runner.mask(torch.randn(len(context.pos), WIDTH), context)
        assert compiled() == at_start


def test_a_slot_that_is_taken_over_by_a_free_request_is_left_alone() -> None:
    engine = SecondEngine(2)
    engine.add(0, Text(REQUESTS[0]))
    engine.add(1, Text(REQUESTS[1]))
    engine.check({0: [], 1: []})
    engine.add(0, Text(None))
    engine.check({0: [], 1: []})
    assert 0 not in engine.slots


class FirstEngine:
    """The batch of the first model runner: rows of texts."""

    def __init__(self, count: int, slots: Slots | HostSlots | None = None) -> None:
        self.count = count
        self.slots = host_slots() if slots is None else slots
        self.figures = Figures()
        self.batch = Batch(self.slots, count, Drawer(self.figures), self.figures)
        self.rows: dict[int, Text] = {}

    def add(self, row: int, text: Text) -> None:
        self.batch.add(row, text.admission, text.output, PROMPT)
        self.rows[row] = text

    def check(self) -> None:
        if not self.rows:
            return
        logits = torch.randn(max(self.rows) + 1, WIDTH)
        masked = self.batch.mask(logits.clone())
        for row in range(len(logits)):
            expected = self.rows[row].after(logits[row]) if row in self.rows else logits[row]
            assert torch.equal(masked[row], expected)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("arena_bytes", [None, 1 << 30, 1])
def test_the_first_runner_does_its_worst(seed: int, arena_bytes: int | None) -> None:
    """On the host, and as on a device."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    engine = FirstEngine(5, None if arena_bytes is None else slots(5, arena_bytes=arena_bytes))
    preempted: list[Text] = []
    for _ in range(40):
        for row in list(engine.rows):
            if chance.random() < 0.2:
                gone = engine.rows.pop(row)
                if chance.random() < 0.5:
                    preempted.append(gone)
                if chance.random() < 0.5:
                    engine.batch.remove(row)
                else:
                    # It is taken over in the same step, and nobody says that it was left.
                    engine.add(row, preempted.pop() if preempted else a_text(chance, [*WISHES, PUNISHED]))
        for row in range(engine.count):
            if row not in engine.rows and chance.random() < 0.4:
                engine.add(row, preempted.pop() if preempted else a_text(chance, [*WISHES, PUNISHED]))
        if chance.random() < 0.5:
            one, other = chance.sample(range(engine.count), 2)
            if chance.random() < 0.5:
                engine.batch.swap(one, other)
                moved = {row: engine.rows.pop(row) for row in (one, other) if row in engine.rows}
                engine.rows.update({other if row == one else one: text for row, text in moved.items()})
            elif one in engine.rows and other not in engine.rows:
                engine.batch.move(one, other)
                engine.rows[other] = engine.rows.pop(one)
        for _ in range(chance.randrange(1, 3)):
            engine.check()
        for text in engine.rows.values():
            if len(text.output) < 40 and chance.random() < 0.8:
                text.output.append(text.next(chance))
    assert engine.slots.refused == 0
    assert engine.figures.unread_tokens == 0


@pytest.mark.parametrize("host", [True, False])
def test_a_placeholder_closes_the_row_until_its_token_is_there(host: bool) -> None:
    engine = FirstEngine(2, host_slots() if host else slots(2))
    text = Text(REQUESTS[0])
    engine.add(0, text)
    engine.check()
    text.output.append(-1)
    logits = torch.zeros(1, WIDTH)
    masked = engine.batch.mask(logits)
    assert (masked[0] == 0).nonzero().flatten().tolist() == [END]
    assert engine.figures.unread_tokens == 1
    text.output[-1] = ord("1")
    engine.check()


def test_a_placeholder_ends_a_text_that_is_drawn_here() -> None:
    engine = FirstEngine(2)
    for row, request in enumerate((None, REQUESTS[0])):
        engine.add(row, Text(request, ends=(STOP,), wish=WISHES[0]))
    engine.check()
    for text in engine.rows.values():
        text.output.append(-1)
    masked = engine.batch.mask(torch.zeros(2, WIDTH))
    assert (masked == 0).nonzero().tolist() == [[0, STOP], [1, STOP]]
    assert engine.figures.unread_tokens == 2
    for text in engine.rows.values():
        text.output[-1] = ord("1")
    engine.check()


def test_a_prompt_that_is_not_made_of_tokens() -> None:
    engine = FirstEngine(1)
    text = Text(None, wish=WISHES[3])
    engine.batch.add(0, text.admission, text.output, None)
    masked = engine.batch.mask(torch.zeros(1, WIDTH))
    assert (masked == 0).sum() == 1


@pytest.mark.parametrize("host", [True, False])
@pytest.mark.parametrize("wish", [None, WISHES[0]])
def test_an_output_that_begins_anew(wish: Wish | None, host: bool) -> None:
    engine = FirstEngine(2, host_slots() if host else slots(2))
    text = Text(REQUESTS[0], wish=wish)
    engine.add(1, text)
    text.output += b"12"
    engine.check()
    text.output.clear()
    engine.check()


@pytest.mark.parametrize("host", [True, False])
def test_a_grammar_that_cannot_be_compiled_closes_its_rows(
    host: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bad = Request("json_schema", '{"type": "strin"}')
    engine = FirstEngine(3, host_slots() if host else slots(3))
    with caplog.at_level(logging.ERROR, "sortition"):
        for row in range(3):
            engine.batch.add(row, Admission(bad, (STOP,)), [])
        for _ in range(2):
            masked = engine.batch.mask(torch.zeros(3, WIDTH))
            assert (masked == 0).nonzero().tolist() == [[row, STOP] for row in range(3)]
    assert len(caplog.records) == 1
    assert "could not be compiled" in caplog.text
    assert engine.slots._compiler.figures.closed_rows == 3


def test_a_full_arena_closes_rows() -> None:
    room = sum(Arena.of(table, torch.device("cpu")).nbytes for table in (CLOSED, TABLES[REQUESTS[0]]))
    engine = FirstEngine(2, slots(2, full_bytes=room))
    assert engine.slots.nbytes < room
    engine.add(0, Text(REQUESTS[0]))
    engine.check()
    engine.batch.add(1, Admission(REQUESTS[2], (END,)), [])
    masked = engine.batch.mask(torch.zeros(2, WIDTH))
    assert (masked[1] == 0).nonzero().flatten().tolist() == [END]


def test_tables_are_kept_within_bounds_and_never_dropped_while_held() -> None:
    figures = Figures()
    compiler = Compiler(VOCABULARY, figures, kept=2)
    wordy = [Request("choice", f'["{number}"]') for number in range(6)]
    compiler.hold(wordy[0])
    for request in wordy[1:]:
        compiler.hold(request)
        assert isinstance(compiler.table(request), Table)
        compiler.release(request)
    assert compiler.kept[0] <= 3
    assert compiler.held == 1
    assert isinstance(compiler.table(wordy[0]), Table)
    assert (figures.requests, figures.compiles, figures.cache_hits) == (6, 6, 0)
    compiler.hold(wordy[0])
    assert figures.cache_hits == 1
    compiler.hold(wordy[1])
    assert isinstance(compiler.table(wordy[1]), Table)
    assert figures.compiles == 7


def test_nothing_grows_with_the_number_of_requests() -> None:
    engine = FirstEngine(3, device := slots(3, arena_bytes=1))
    for number in range(40):
        engine.batch.add(number % 3, Admission(Request("choice", f'["{number}"]'), (END,)), [])
        engine.batch.mask(torch.zeros(3, WIDTH))
    # Buffers are at least doubled.
    assert len(device.constraint.arena) <= 8
    last = [Request("choice", f'["{number}"]').grammar().compile(VOCABULARY) for number in (37, 38, 39)]
    assert device.nbytes == sum(Arena.of(table, torch.device("cpu")).nbytes for table in (CLOSED, *last))
    assert device._compiler.held == 3


def test_eligible_tokens_that_others_ruled_out_are_drawn_all_the_same() -> None:
    engine = FirstEngine(1)
    engine.add(0, Text(REQUESTS[1]))
    masked = engine.batch.mask(torch.full((1, WIDTH), float("-inf")))
    allowed = engine.rows[0].allowed()
    assert allowed is not None
    assert torch.equal(masked[0] == 0, torch.from_numpy(allowed))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_host_and_device_agree_on_anything(kind: torch.dtype) -> None:
    """Tokens that are not allowed, ends beyond the vocabulary, logits that are not numbers, any strides."""
    chance = random.Random(str(kind))
    torch.manual_seed(chance.randrange(100))
    ends = [(END,), (STOP, END), (VOCABULARY.size + 1, END), (VOCABULARY.size + 2,), (ord("1"),), (ord("]"),)]
    host, device = host_slots(), slots(len(ends))
    for _ in range(4):
        texts = [Text(chance.choice(REQUESTS), end) for end in ends]
        for slot, text in enumerate(texts):
            for each in (host, device):
                assert text.admission is not None
                each.admit(slot, text.admission)
        matchers = [Matcher(TABLES[text.request], ()) for text in texts if text.request is not None]
        for step in range(8):
            news = []
            for row, slot in enumerate(chance.sample(range(len(ends)), len(ends))):
                allowed = np.flatnonzero(
                    np.unpackbits(matchers[slot].allowed().view(np.uint8), bitorder="little")
                ).tolist()
                tokens = [chance.choice(allowed)] if allowed and step else []
                for token in tokens:
                    matchers[slot].advance(token)
                if chance.random() < 0.2:
                    tokens.append(chance.choice([*ends[slot], chance.randrange(WIDTH)]))
                news.append(News(row, slot, tokens, chance.random() < 0.1))
            logits = torch.randn(WIDTH, len(ends)).to(kind).T
            odd = torch.tensor([float("inf"), float("-inf"), float("nan")], dtype=kind)
            logits = torch.where(
                torch.rand(logits.shape) < chance.choice([0, 0, 0.01]), odd[step % 3], logits
            )
            logits[chance.randrange(len(ends))] = chance.choice(odd.tolist())
            masked = [logits.T.contiguous().T, logits.clone()]
            host.constrain(masked[0], news)
            device.constrain(masked[1], news)
            assert torch.equal(*masked)
    assert host.refused == device.refused > 0
