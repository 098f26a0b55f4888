"""Grammar state in tensors against the matcher, which walks one text at a time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import machines
import numpy as np
import pytest
import torch
from models import vocabulary

import sortition as so
from sortition.grammars.errors import GrammarError
from sortition.grammars.machine import Machine
from sortition.grammars.matcher import Matcher
from sortition.grammars.table import Table
from sortition.grammars.tabulation import build_table
from sortition.grammars.vocabulary import Vocabulary
from sortition.sampling.arena import Arena
from sortition.sampling.constraint import FREE, Constraint, Position
from sortition.sampling.host_constraint import HostConstraint

pytestmark = pytest.mark.usefixtures("one_thread")

BYTES = [bytes([byte]) for byte in b'[]{},:"0123456789.-abcdefghrtluns']
SMALL = Vocabulary.of([*BYTES, *machines.NASTY, b"", b"", b"ab", b"ba", b"aa", b'"a"'], end_tokens=[])
Kind = type[Constraint] | type[HostConstraint]
ENDS = [SMALL.tokens.index(b"")]


def small_tables(seed: int, count: int) -> list[Table]:
    """Tables of random rules for one small vocabulary, which has all their bytes as tokens."""
    draw = random.Random(seed)
    tables = [build_table(machines.json_machine(), SMALL)]
    while len(tables) < count:
        tables.append(build_table(machines.random_machine(draw), SMALL))
    return tables


def counting_tables(seed: int) -> list[Table]:
    """Tables for one vocabulary, the last of which counts, or may count where a seed picks its rules."""
    draw = random.Random(seed)
    counting = machines.random_machine(draw, counts=True) if seed else machines.counting_machine()
    # Where bytes are missing, counts become states.
    vocabulary = Vocabulary.of([*SMALL.tokens, b"\\", b'aa\\"'], end_tokens=[])
    return [build_table(machine, vocabulary) for machine in (machines.json_machine(), counting)]


def bits(words: np.ndarray, size: int) -> list[bool]:
    return np.unpackbits(words.view(np.uint8), bitorder="little")[:size].astype(bool).tolist()


@pytest.fixture(params=[Constraint, HostConstraint])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


class Texts:
    """One matcher per row, and what the constraint should say about each."""

    def __init__(self, tables: Sequence[Table], grammars: Sequence[int], ends: Sequence[int]) -> None:
        self.size = tables[0].vocabulary_size
        self.ends = list(ends)
        self.matchers = [None if grammar == FREE else Matcher(tables[grammar], ends) for grammar in grammars]
        self.dead = [False] * len(grammars)

    def allowed(self, row: int) -> list[bool]:
        matcher = self.matchers[row]
        if matcher is None:
            return [True] * self.size
        if self.dead[row]:
            return [token in self.ends for token in range(self.size)]
        return bits(matcher.allowed(), self.size)

    def read(self, row: int, token: int) -> None:
        matcher = self.matchers[row]
        if matcher is not None and not self.dead[row] and not matcher.finished and token >= 0:
            self.dead[row] = not matcher.advance(token)

    @property
    def finished(self) -> list[bool]:
        return [matcher is not None and matcher.finished for matcher in self.matchers]


def walk(
    constraint: Constraint, texts: Texts, position: Position, draw: random.Random, steps: int, wrong: float
) -> Position:
    """Read random tokens, most of them allowed, comparing everything at every step."""
    for _ in range(steps):
        allowed = constraint.allowed(position)
        tokens = []
        for row in range(len(texts.matchers)):
            assert allowed[row].tolist() == texts.allowed(row), (row, texts.matchers[row])
            eligible = torch.nonzero(allowed[row]).flatten().tolist()
            # End tokens last, so that texts grow long and nest.
            going = [token for token in eligible if token not in texts.ends] or eligible
            stray = draw.random() < wrong
            tokens.append(draw.randrange(-1, texts.size) if stray else draw.choice(going or [-1]))
            texts.read(row, tokens[-1])
        position = constraint.step(position, torch.tensor(tokens))
        assert position.dead.tolist() == texts.dead
        assert position.finished.tolist() == texts.finished
    return position


@pytest.mark.parametrize("seed", range(25))
def test_walks_of_one_grammar(seed: int, kind: Kind) -> None:
    draw = random.Random(seed)
    machine = machines.random_machine(draw)
    tokens = machines.random_vocabulary(machine, draw)
    table = build_table(machine, tokens)
    # The end token also stands for text, which must not matter.
    ends = [draw.randrange(tokens.size)]
    constraint = kind([table], end_tokens=ends)
    texts = Texts([table], [0] * 8, ends)
    walk(constraint, texts, constraint.start(torch.tensor([0] * 8)), draw, 25, wrong=0.05)


@pytest.mark.parametrize("seed", range(10))
def test_walks_of_grammars_that_count(seed: int, kind: Kind) -> None:
    draw = random.Random(seed)
    tables = counting_tables(seed)
    constraint = kind(tables[:1], end_tokens=ENDS)
    assert constraint.add(tables[1]) == 1
    assert seed or constraint.arena.counts
    texts = Texts(tables, [1, 0, 1, 1, 1], ENDS)
    walk(constraint, texts, constraint.start(torch.tensor([1, 0, 1, 1, 1])), draw, 40, wrong=0.02)


@pytest.mark.parametrize("machine", [machines.brackets_machine(), machines.required_key_machine()])
def test_walks_to_the_depth_limit(machine: Machine, kind: Kind) -> None:
    table = build_table(machine, SMALL)
    constraint = kind([table], end_tokens=ENDS)
    texts = Texts([table], [0] * 8, ENDS)
    position = constraint.start(torch.tensor([0] * 8))
    position = walk(constraint, texts, position, random.Random(0), 150, wrong=0.0)
    assert int(position.depth.max()) <= table.depth_limit


@pytest.mark.parametrize("seed", range(10))
def test_batches_mix_grammars_and_free_rows(seed: int, kind: Kind) -> None:
    draw = random.Random(seed)
    tables = small_tables(seed, 5)
    constraint = kind(tables[:2], end_tokens=ENDS)
    first = constraint.start(torch.tensor([0, FREE, 1, 1]))
    assert [constraint.add(table) for table in tables[2:]] == [2, 3, 4]
    grammars = [draw.randrange(-1, 5) for _ in range(20)]
    texts = Texts(tables, grammars, ENDS)
    walk(constraint, texts, constraint.start(torch.tensor(grammars)), draw, 40, wrong=0.03)
    # Positions from before the other grammars came are as good as new ones.
    texts = Texts(tables, [0, FREE, 1, 1], ENDS)
    walk(constraint, texts, first, draw, 40, wrong=0.0)


@pytest.mark.parametrize("seed", range(5))
def test_walks_of_random_arrays(seed: int, kind: Kind) -> None:
    draw = random.Random(seed)
    tokens = Vocabulary.of([b"", *(bytes(draw.choices(b"abcd", k=draw.randrange(1, 6))) for _ in range(80))])
    tables = []
    while len(tables) < 3:
        try:
            tables.append(build_table(replace(machines.random_arrays(draw), depth=None), tokens))
        except GrammarError:
            continue
    constraint = kind(tables, end_tokens=[0])
    grammars = [0, 1, 2] * 3
    walk(constraint, Texts(tables, grammars, [0]), constraint.start(torch.tensor(grammars)), draw, 15, 0.02)


def test_walks_of_a_real_vocabulary(kind: Kind) -> None:
    tokens = vocabulary("smollm2")
    table = build_table(machines.json_machine(), tokens)
    constraint = kind([table])
    texts = Texts([table], [0, FREE, 0, 0], tokens.end_tokens)
    walk(constraint, texts, constraint.start(torch.tensor([0, FREE, 0, 0])), random.Random(0), 12, wrong=0.0)


def test_a_row_alone_is_the_row_in_a_batch(kind: Kind) -> None:
    tables = small_tables(0, 3)
    constraint = kind(tables, end_tokens=ENDS)
    position = constraint.start(torch.tensor([2, FREE, 0, 1, 0]))
    position = walk(constraint, Texts(tables, [2, FREE, 0, 1, 0], ENDS), position, random.Random(0), 9, 0.0)
    together = constraint.allowed(position)
    for row in range(5):
        alone = position.rows(torch.tensor([row]))
        assert torch.equal(constraint.allowed(alone)[0], together[row])


def test_drafts_leave_slots_alone(kind: Kind) -> None:
    table = build_table(machines.json_machine(), SMALL)
    constraint = kind([table], slots=6, end_tokens=ENDS)
    slots = torch.tensor([4, 1])
    constraint.assign(slots, torch.tensor([0, 0]))
    kept = [part.clone() for part in constraint.slots]
    draft = constraint.slots.rows(slots)
    token = {text: number for number, text in enumerate(SMALL.tokens)}
    for other in (b"1", b"]"):
        draft = constraint.step(draft, torch.tensor([token[b"["], token[other]]))
    assert draft.dead.tolist() == [False, True]
    assert draft.depth[0] == 2
    assert all(torch.equal(part, before) for part, before in zip(constraint.slots, kept, strict=True))
    # The same tokens, committed.
    for tokens in ([token[b"["], token[b"1"]], [token[b"["], -1]):
        committed = constraint.advance(slots, torch.tensor(tokens))
    assert committed.dead.tolist() == [False, False]
    assert constraint.slots.depth.tolist() == [0, 1, 0, 0, 2, 0]
    assert constraint.slots.grammar.tolist() == [FREE, 0, FREE, FREE, 0, FREE]
    assert int(constraint.refused) == 0
    constraint.advance(slots, torch.tensor([token[b"]"], token[b"]"]]))
    assert int(constraint.refused) == 1
    assert constraint.slots.dead.tolist() == [False, True, False, False, False, False]
    constraint.assign(torch.tensor([1]), torch.tensor([FREE]))
    assert not constraint.slots.dead.any()


def test_slots_grow_with_deeper_grammars(kind: Kind) -> None:
    flat = build_table(machines.random_machine(random.Random(3)), SMALL)
    constraint = kind([flat], slots=2, end_tokens=ENDS)
    before = constraint.start(torch.tensor([0]))
    number = constraint.add(build_table(machines.brackets_machine(), SMALL))
    slots = torch.tensor([1])
    constraint.assign(slots, torch.tensor([number]))
    for _ in range(5):
        constraint.advance(slots, torch.tensor([SMALL.tokens.index(b"[")]))
    assert int(constraint.slots.depth[1]) >= 4
    assert constraint.slots.stack.shape[1] > before.stack.shape[1]
    constraint.write(slots, before)
    assert constraint.slots.depth.tolist() == [0, 0]


def eligible(constraint: Constraint, position: Position, end_tokens: torch.Tensor | None) -> list[list[int]]:
    return [torch.nonzero(row).flatten().tolist() for row in constraint.allowed(position, None, end_tokens)]


def test_end_tokens(kind: Kind) -> None:
    token = {text: number for number, text in enumerate(SMALL.tokens)}
    table = build_table(machines.brackets_machine(), SMALL)
    first, second = (number for number, text in enumerate(SMALL.tokens) if not text)
    constraint = kind([table], end_tokens=[first, second])
    position = constraint.step(constraint.start(torch.tensor([0, 0])), torch.tensor([token[b"[]"]] * 2))
    assert eligible(constraint, position, None) == [[first, second]] * 2
    assert eligible(constraint, position, torch.tensor([second])) == [[second]] * 2
    each = torch.tensor([[first, first], [second, token[b"a"]]])
    assert eligible(constraint, position, each) == [[first], sorted([second, token[b"a"]])]
    # One row's end token is nothing but a wrong token in the other.
    after = constraint.step(position, torch.tensor([token[b"a"]] * 2), each)
    assert after.finished.tolist() == [False, True]
    assert after.dead.tolist() == [True, False]
    assert eligible(constraint, after, each) == [[first], sorted([second, token[b"a"]])]
    # A finished row stays so, whatever else it is shown.
    after = constraint.step(after, torch.tensor([first, token[b"["]]), each)
    assert after.finished.tolist() == [False, True]
    assert after.dead.tolist() == [True, False]
    # An end token where the text may not end is wrong.
    early = constraint.step(constraint.start(torch.tensor([0])), torch.tensor([first]))
    assert early.dead.tolist() == [True]


def test_a_text_that_only_end_tokens_could_go_on_ends(kind: Kind) -> None:
    vocabulary = Vocabulary.of([b"a", b"b", b""], end_tokens=[2])
    table = so.regex("ab").compile(vocabulary)
    constraint = kind([table])
    for ends, texts in ([1], [[0], [1]]), ([0, 2], [[0, 2]]):
        tokens = torch.tensor(ends)
        position = constraint.start(torch.tensor([0]))
        assert eligible(constraint, position, tokens) == texts[:1]
        if len(texts) > 1:
            position = constraint.step(position, torch.tensor(texts[0]), tokens)
            assert eligible(constraint, position, tokens) == texts[1:]
            # It has not been read to its end, which is counted.
            assert constraint.step(position, tokens, tokens).dead.tolist() == [True]


def test_end_tokens_are_checked(kind: Kind) -> None:
    table = build_table(machines.brackets_machine(), SMALL)
    with pytest.raises(ValueError, match="no end tokens"):
        kind([table])
    with pytest.raises(ValueError, match="end tokens"):
        kind([table], end_tokens=[SMALL.size])
    with pytest.raises(ValueError, match="beyond"):
        constraint = kind([table], end_tokens=ENDS)
        constraint.apply(torch.zeros(1, ENDS[0]), constraint.start(torch.tensor([0])))


def test_tables_are_checked(kind: Kind) -> None:
    with pytest.raises(ValueError, match="at least one"):
        kind([])
    other = Vocabulary.of([*BYTES, b""], end_tokens=[])
    tables = [build_table(machines.brackets_machine(), tokens) for tokens in (SMALL, other)]
    with pytest.raises(ValueError, match="same vocabulary"):
        kind(tables, end_tokens=[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("extra", [-3, 0, 7])
@pytest.mark.parametrize("strided", [False, True])
def test_apply(dtype: torch.dtype, extra: int, strided: bool, kind: Kind) -> None:
    table = build_table(machines.json_machine(), SMALL)
    constraint = kind([table], end_tokens=[0])
    position = constraint.start(torch.tensor([0, FREE, 0]))
    width = SMALL.size + extra
    logits = torch.randn(3, 2, width).to(dtype)[:, 0] if strided else torch.randn(3, width).to(dtype)
    before = logits.clone()
    masked = constraint.apply(logits, position)
    assert masked.dtype is dtype
    assert torch.equal(logits, before)
    allowed = constraint.allowed(position)
    for row in range(3):
        for token in range(width):
            may = bool(position.grammar[row] == FREE) or (token < SMALL.size and bool(allowed[row, token]))
            assert masked[row, token] == (logits[row, token] if may else float("-inf"))


@pytest.mark.parametrize("bad", [float("-inf"), float("nan")])
def test_something_can_always_be_drawn(bad: float, kind: Kind) -> None:
    table = build_table(machines.json_machine(), SMALL)
    constraint = kind([table], end_tokens=ENDS)
    position = constraint.start(torch.tensor([0, 0, FREE]))
    allowed = constraint.allowed(position)
    logits = torch.randn(3, SMALL.size)
    logits[0].masked_fill_(allowed[0], bad)
    logits[2] = bad
    masked = constraint.apply(logits, position)
    assert masked[0].tolist() == [0.0 if may else float("-inf") for may in allowed[0].tolist()]
    assert torch.equal(masked[1], logits[1].masked_fill(~allowed[1], float("-inf")))
    assert torch.equal(masked[2], logits[2]) or bool(masked[2].isnan().all())
    # Where one logit is left, it decides.
    left = int(torch.nonzero(allowed[0])[0])
    logits[0, left] = -5.0
    if bad == float("-inf"):
        assert constraint.apply(logits, position)[0].argmax() == left


def test_nothing_waits_for_the_device() -> None:
    # Tensors on the meta device have a shape and no content: whatever asks for a value fails.
    constraint = Constraint(small_tables(0, 3), device="meta", slots=8, end_tokens=ENDS)
    slots = torch.zeros(4, dtype=torch.int64, device="meta")
    with pytest.raises(RuntimeError):
        bool(slots.any())
    constraint.assign(slots, slots)
    position = constraint.advance(slots, slots)
    for ends in (None, torch.zeros(4, 2, dtype=torch.int64, device="meta")):
        position = constraint.step(position, slots, ends)
        logits = torch.zeros(4, SMALL.size + 5, dtype=torch.bfloat16, device="meta")
        masked = constraint.apply(logits, position, ends)
        assert (masked.shape, masked.dtype) == (logits.shape, logits.dtype)
    kinds = [torch.int32] * 4 + [torch.bool, torch.int32]
    assert [part.dtype for part in position] == kinds
    assert [part.dtype for part in constraint.slots] == kinds


@pytest.mark.parametrize("seed", range(10))
def test_host_and_tensors_agree_on_anything(seed: int) -> None:
    """End tokens that stand for text, logits of any kind, width and strides, positions that are passed on."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    tables = counting_tables(seed) if seed % 2 else small_tables(seed, 4)
    size = tables[0].vocabulary_size
    host, tensors = HostConstraint(tables[:1], end_tokens=ENDS), Constraint(tables[:1], end_tokens=ENDS)
    for table in tables[1:]:
        assert host.add(table) == tensors.add(table)
    grammars = torch.tensor([draw.randrange(-1, len(tables)) for _ in range(8)])
    position = host.start(grammars)
    for step in range(15):
        ends = draw.choice([None, torch.tensor(ENDS), torch.randint(size, (8, 2))])
        width = size if ends is not None else draw.choice([size - 1, size, size + 40])
        logits = torch.randn(width, 8).to(draw.choice([torch.float32, torch.float64, torch.bfloat16])).T
        odd = draw.choice([float("inf"), float("-inf"), float("nan")])
        logits = torch.where(torch.rand(logits.shape) < draw.choice([0, 0.01, 0.9]), odd, logits)
        allowed = host.allowed(position, width, ends)
        assert torch.equal(allowed, tensors.allowed(position, width, ends))
        masked = [each.apply(logits, position, ends) for each in (host, tensors)]
        assert torch.equal(*(each.nan_to_num(nan=0.5) for each in masked))
        tokens = torch.multinomial(allowed + 1e-3, 1)[:, 0] - (torch.rand(8) < 0.05).long() * width
        moved = [each.step(position, tokens, ends) for each in (host, tensors)]
        for part, other in zip(*(_meant(each) for each in moved), strict=True):
            assert part == other
        position = moved[step % 2]


def _meant(position: Position) -> list[object]:
    """Everything that a position says."""
    grammar, state, depth, stack, finished, counts = (part.tolist() for part in position)
    walking = position.walking.tolist()
    known = [
        (sites[:at], count[: at + 1])
        for at, sites, count, goes in zip(depth, stack, counts, walking, strict=True)
        if goes
    ]
    return [grammar, state, finished, known]


def test_an_arena_is_not_for_the_host() -> None:
    table = build_table(machines.brackets_machine(), SMALL)
    with pytest.raises(TypeError, match="Arena"):
        HostConstraint([table], end_tokens=ENDS).add(Arena.of(table, torch.device("cpu")))
