"""One sequence on the host: the laws of masks, steps, rollbacks and forced runs."""

from __future__ import annotations

import contextlib
import copy
import gc
import gzip
import json
import pickle
import random
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import machines
import models
import numpy as np
import pytest

from sortition.grammars import accelerate, reader, tabulation
from sortition.grammars import matcher as matcher_module
from sortition.grammars.errors import GrammarError, TooLarge
from sortition.grammars.expr import alternative, concat, literal, star
from sortition.grammars.grammar import Grammar
from sortition.grammars.json_schema import json_schema
from sortition.grammars.liveness import Frames, room_needed
from sortition.grammars.machine import Machine
from sortition.grammars.matcher import Matcher
from sortition.grammars.oracle import Room, Walk, read
from sortition.grammars.table import Table
from sortition.grammars.tabulation import build_table
from sortition.grammars.vocabulary import Vocabulary


def ids(mask: np.ndarray) -> list[int]:
    """The tokens whose bit is set: token t is bit t & 31 of word t >> 5."""
    return [32 * word + bit for word in range(len(mask)) for bit in range(32) if int(mask[word]) >> bit & 1]


def compiled(machine: Machine, tokens: list[bytes], end_tokens: list[int] | None = None) -> Table:
    return build_table(machine, Vocabulary.of(tokens, end_tokens=end_tokens or []))


def random_tables(count: int) -> Iterator[tuple[random.Random, Machine, Vocabulary, Table]]:
    """Random rules, half of them counting, with two end tokens, one the last id of a padded vocabulary."""
    for seed in range(count):
        draw = random.Random(seed)
        machine = machines.random_machine(draw, counts=seed % 2 > 0)
        tokens = [*machines.random_vocabulary(machine, draw, 30).tokens, b"", b"", b""]
        vocabulary = Vocabulary.of(tokens, end_tokens=[len(tokens) - 3, len(tokens) - 1])
        yield draw, machine, vocabulary, build_table(machine, vocabulary)


def test_a_bit_is_set_where_the_token_is_taken() -> None:
    for draw, machine, vocabulary, table in random_tables(25):
        matcher, walk = Matcher(table), Walk(machine)
        # Places are met again, in other texts.
        for step in range(100):
            if step % 25 == 0:
                matcher, walk = Matcher(table), Walk(machine)
            allowed = ids(matcher.allowed())
            assert matcher.can_end == walk.can_end
            for token in range(vocabulary.size):
                taken = matcher.advance(token)
                assert taken == (token in allowed)
                if taken:
                    matcher.rollback(1)
                if token in vocabulary.end_tokens:
                    assert taken == walk.can_end
            texts = [token for token in allowed if token not in vocabulary.end_tokens]
            if not texts:
                matcher, walk = Matcher(table), Walk(machine)
                continue
            token = draw.choice(texts)
            assert matcher.advance(token)
            after = read(walk, vocabulary.tokens[token])
            assert after is not None
            walk = after


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_copies_go_on_by_themselves(copied: Callable[[Matcher], Matcher]) -> None:
    for draw, _, _, table in random_tables(8):
        matcher = Matcher(table)
        for _ in range(6):
            open_tokens = ids(matcher.allowed())
            if not open_tokens:
                break
            other = copied(matcher)
            assert ids(other.allowed()) == open_tokens
            assert other.advance(draw.choice(open_tokens))
            assert ids(matcher.allowed()) == open_tokens
            assert matcher.advance(draw.choice(open_tokens))
            other.rollback(1)
            assert ids(other.allowed()) == open_tokens


def test_rollback_takes_everything_back() -> None:
    for draw, _, _, table in random_tables(25):
        matcher = Matcher(table)
        seen: list[tuple[list[int], bool, bool, list[int]]] = []
        taken: list[int] = []
        for _ in range(60):
            if taken and draw.random() < 0.3:
                count = draw.randrange(len(taken) + 1)
                matcher.rollback(count)
                del taken[len(taken) - count :], seen[len(seen) - count :]
            now = ids(matcher.allowed()), matcher.can_end, matcher.finished, matcher.forced()
            fresh = Matcher(table)
            assert all(fresh.advance(token) for token in taken)
            assert now == (ids(fresh.allowed()), fresh.can_end, fresh.finished, fresh.forced())
            if not now[0]:
                break
            seen.append(now)
            taken.append(draw.choice(now[0]))
            assert matcher.advance(taken[-1])
        with pytest.raises(ValueError, match="cannot take back"):
            matcher.rollback(len(taken) + 1)
        matcher.rollback(len(taken))
        assert not seen or ids(matcher.allowed()) == seen[0][0]


def test_a_refused_token_changes_nothing() -> None:
    table = compiled(machines.json_machine(), [b"[", b"]", b"1", b"]]", b""], [4])
    matcher = Matcher(table)
    assert matcher.advance(0) and matcher.advance(2)
    before = ids(matcher.allowed())
    assert not matcher.advance(3) and not matcher.advance(4)
    assert ids(matcher.allowed()) == before
    assert matcher.advance(1) and matcher.can_end
    matcher.rollback(3)
    assert ids(matcher.allowed()) == [0, 2]


def test_end_tokens_absorb() -> None:
    table = compiled(Machine.of({}, literal(b"ab")), [b"a", b"b", b"", b"", b"ab"], [2, 3])
    matcher = Matcher(table)
    assert ids(matcher.allowed()) == [0, 4]
    assert not matcher.can_end and not matcher.finished
    assert matcher.advance(4) and matcher.can_end and not matcher.finished
    assert ids(matcher.allowed()) == [2, 3]
    assert matcher.advance(3) and matcher.finished and matcher.can_end
    assert ids(matcher.allowed()) == [2, 3]
    assert not matcher.advance(0) and matcher.advance(2) and matcher.advance(3)
    matcher.rollback(3)
    assert not matcher.finished and ids(matcher.allowed()) == [2, 3]
    matcher.reset()
    assert ids(matcher.allowed()) == [0, 4]


def test_other_end_tokens_than_the_vocabulary_s() -> None:
    table = compiled(Machine.of({}, star(literal(b"a"))), [b"a", b"aa", b"", b"!"], [2])
    assert ids(Matcher(table).allowed()) == [0, 1, 2]
    assert ids(Matcher(table, [3]).allowed()) == [0, 1, 3]
    assert ids(Matcher(table, []).allowed()) == [0, 1]
    assert Matcher(table, np.array([3, 2])).end_tokens == (2, 3)
    with pytest.raises(ValueError, match="end token 4 is not one of the 4 tokens"):
        Matcher(table, [4])
    with pytest.raises(TypeError):
        Matcher(table, [0.5])  # type: ignore[list-item]


def test_an_end_token_that_is_also_text_only_ends() -> None:
    table = compiled(Machine.of({}, concat(star(literal(b"a")), literal(b"\n"))), [b"a", b"\n"])
    matcher = Matcher(table, [0])
    assert ids(matcher.allowed()) == [1] and not matcher.advance(0)
    assert matcher.advance(1)
    assert ids(matcher.allowed()) == [0] and matcher.advance(0) and matcher.finished


@pytest.mark.parametrize("token", [-1, 3, 10**12])
def test_tokens_out_of_range(token: int) -> None:
    matcher = Matcher(compiled(Machine.of({}, literal(b"a")), [b"a", b"b", b"c"]))
    with pytest.raises(ValueError, match="is not one of the 3 tokens"):
        matcher.advance(token)
    assert ids(matcher.allowed()) == [0]


def test_tokens_that_are_no_integers() -> None:
    matcher = Matcher(compiled(Machine.of({}, literal(b"a")), [b"a"]))
    with pytest.raises(TypeError, match="a token is an id, a whole number, not 'a'"):
        matcher.advance("a")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        matcher.advance(0.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot take back -1"):
        matcher.rollback(-1)
    assert matcher.advance(np.int64(0))  # type: ignore[arg-type]


def test_forced_tokens_are_the_only_ones() -> None:
    for draw, _, _, table in random_tables(40):
        matcher = Matcher(table)
        for _ in range(20):
            run = matcher.forced()
            again = Matcher(table)
            again._place = matcher._place
            for token in run:
                assert ids(again.allowed()) == [token] and again.advance(token)
            assert again.finished or len(ids(again.allowed())) != 1 or len(run) == 256
            allowed = ids(matcher.allowed())
            if not allowed or not matcher.advance(draw.choice(allowed)):
                break


def test_a_forced_run() -> None:
    machine = Machine.of(
        {}, concat(literal(b'{"name": '), alternative(literal(b"1"), literal(b"2")), literal(b"}"))
    )
    tokens = [bytes([byte]) for byte in b'{}":12 '] + [b"name", b""]
    table = compiled(machine, tokens, [8])
    matcher = Matcher(table)
    assert b"".join(tokens[token] for token in matcher.forced()) == b'{"name": '
    assert ids(matcher.allowed()) == [0], "forced does not move the matcher"
    assert all(matcher.advance(token) for token in matcher.forced())
    assert matcher.forced() == []
    assert matcher.advance(tokens.index(b"2"))
    assert matcher.forced() == [1, 8], "the end token is forced too, once"


def test_a_run_that_never_ends_is_cut() -> None:
    machine = Machine.of({}, star(literal(b"a")))
    matcher = Matcher(compiled(machine, [b"a", b"b"]))
    assert matcher.forced(limit=7) == [0] * 7
    assert matcher.forced() == [0] * matcher_module.FORCED_LIMIT


def test_masks_are_read_only_and_wide_enough() -> None:
    for size in (1, 31, 32, 33, 100):
        table = compiled(Machine.of({}, star(literal(b"a"))), [b"a"] * size)
        mask = Matcher(table).allowed()
        assert mask.dtype == np.uint32 and mask.shape == ((size + 31) // 32,)
        assert ids(mask) == list(range(size))
        with pytest.raises(ValueError, match="read-only"):
            mask[0] = 0


def test_the_cache_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "CACHED_MASKS", 3)
    monkeypatch.setattr(reader, "CACHED_BYTES", 800)
    monkeypatch.setattr(reader, "CACHED_ACTIONS", 5)
    monkeypatch.setattr(reader, "CACHED_SPANS", 2)
    monkeypatch.setattr(reader, "FAR", 2)
    test_a_bit_is_set_where_the_token_is_taken()


def test_tables_share_the_room_for_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "SHARED_MASKS", 8)
    monkeypatch.setattr(reader, "FEWEST_MASKS", 2)
    alive = [
        compiled(Machine.of({}, literal(b"abcdefghijkl")), [bytes([byte]) for byte in b"abcdefghijkl"])
        for _ in range(8)
    ]
    for table in alive:
        matcher = Matcher(table)
        for token in range(12):
            assert ids(matcher.allowed()) == [token] and matcher.advance(token)
            # Tables of other tests may be alive, too: then there is less room.
            assert len(reader.reader_of(table).masks) <= 8


def test_compiled_masks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    loops = pytest.importorskip("sortition.grammars.reader_jit")
    draw = random.Random(2)
    known = {machines.counting_machine(), machines.json_machine(), machines.required_key_machine()}
    random_ones = {machines.random_machine(random.Random(seed), counts=seed % 2 > 0) for seed in range(40)}
    compared = dict.fromkeys(loops.REPLACES, 0)

    def both(definition: Any) -> Any:
        if definition not in compared:
            return definition

        def checked(*arguments: Any) -> Any:
            compared[definition] += 1
            expected, found = definition(*arguments), loops.REPLACES[definition](*arguments)
            for ours, theirs in zip(parts(found), parts(expected), strict=True):
                assert np.array_equal(ours, theirs)
            return expected

        return checked

    monkeypatch.setattr(accelerate, "best", both)
    monkeypatch.setattr(reader, "FAR", 2)
    for seed, machine in enumerate(known | random_ones):
        table = build_table(machine, machines.random_vocabulary(machine, random.Random(seed)))
        for _ in range(5):
            matcher = Matcher(table, [])
            while len(tokens := ids(matcher.allowed())) and draw.random() < 0.95:
                assert matcher.advance(draw.choice(tokens))
    assert min(compared.values()) > 40


@pytest.mark.parametrize("size", [1, 32, 33, 1000])
@pytest.mark.parametrize("usual", [0.0, 0.8, 1.0])
def test_tokens_are_grouped_the_same(size: int, usual: float) -> None:
    loops = pytest.importorskip("sortition.grammars.reader_jit")
    draw = np.random.default_rng(size)
    token_class = np.where(draw.random(size) < usual, 3, draw.integers(0, 40, size)).astype(np.int32)
    expected = reader.grouped(token_class, 40)
    for ours, theirs in zip(loops.grouped(token_class, 40), expected, strict=True):
        assert np.array_equal(ours, theirs) and ours.dtype == theirs.dtype


def parts(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def test_places_that_look_alike_share_their_mask() -> None:
    tokens = [bytes([byte]) for byte in b'[]{}":,1a'] + machines.NASTY
    table = compiled(machines.json_machine(), tokens)
    one, other = Matcher(table), Matcher(table)
    for token in (0, 0, 0, 7):
        assert one.advance(token)
    for token in (0, 0, 0, 0, 0, 0, 7):
        assert other.advance(token)
    # Six arrays are open below one number, three below the other: `]]]]` tells them apart.
    assert ids(one.allowed()) != ids(other.allowed())
    assert other.advance(0) is False and other.advance(1) and other.advance(1)
    again = Matcher(table)
    for token in (0, 0, 0, 0, 0, 0, 7, 1, 1):
        assert again.advance(token)
    assert again.allowed() is other.allowed()


def test_a_table_is_not_kept_alive() -> None:
    table = compiled(machines.brackets_machine(), [b"[", b"]"])
    matcher = Matcher(table)
    matcher.allowed()
    reference = weakref.ref(table)
    del table, matcher
    gc.collect()
    assert reference() is None


def test_the_limit_masks_but_never_strands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabulation, "RECURSIVE_DEPTH", 3)
    stranded = 0
    for seed in range(60):
        draw = random.Random(seed)
        machine = machines.random_machine(draw)
        try:
            table = build_table(machine, machines.random_vocabulary(machine, draw, 20))
        except TooLarge:
            continue
        matcher = Matcher(table)
        for _ in range(60):
            allowed = ids(matcher.allowed())
            stranded += not allowed and not matcher.can_end
            if not allowed:
                break
            assert matcher.advance(draw.choice(allowed))
    assert stranded == 0


def test_repr_says_where_it_is() -> None:
    matcher = Matcher(compiled(machines.json_machine(), [b"[", b"1", b"]", b""], [3]))
    assert repr(matcher) == "Matcher(0 tokens, state 0, 0 nested, open)"
    assert matcher.advance(0)
    assert "1 tokens" in repr(matcher) and "1 nested, open" in repr(matcher)
    assert matcher.advance(2) and matcher.advance(3)
    assert repr(matcher).endswith("0 nested, finished)")


SCHEMAS: list[object] = [
    True,
    {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["b"]},
    {"type": "array", "items": {"anyOf": [{"type": "number"}, {"enum": ["red", "green", None, 12]}]}},
    {
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "v": {}}}},
        "$ref": "#/$defs/node",
    },
    {"type": "string", "pattern": "^[a-f]{2,5}(-[0-9]+)*$"},
    {"type": "object", "additionalProperties": {"type": "string", "maxLength": 30}},
    {"type": "array", "prefixItems": [{"type": "string", "format": "date"}, {"type": "boolean"}]},
    {"type": "string", "minLength": 20, "maxLength": 60},
    {"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "integer"}, "maxItems": 12},
    {
        "type": "object",
        "properties": {
            "a": {"anyOf": [{"type": "string", "maxLength": 40}, {"type": "string", "minLength": 60}]},
            "b": {"type": "string", "pattern": "^([a-z]+-)*[a-z]+$", "minLength": 15, "maxLength": 33},
        },
    },
]


class Trial:
    """All tokens of a vocabulary at one place by the byte walk, which reads each byte at each place once."""

    def __init__(self, machine: Machine, vocabulary: Vocabulary, room: Room | None) -> None:
        self.machine, self.trie, self.room = machine, vocabulary.trie, room
        # Places are numbered; number 0 is where a refused byte leads.
        self.number: dict[machines.Place | None, int] = {None: 0}
        self.walks: list[Walk] = [Walk(machine)]
        self.fits = [False]
        self.after = np.full((1, machine.move.shape[1]), 0)

    def allowed(self, walk: Walk) -> np.ndarray:
        """bool [vocabulary]."""
        trie = self.trie
        place_of_node = np.zeros(len(trie) + 1, np.int64)
        place_of_node[-1] = self.place(walk)
        unit = self.machine.byte_class[trie.byte]
        for level in trie.levels():
            before = place_of_node[trie.parent[level]]
            known = self.after[before, unit[level]]
            for place, byte_class in np.unique(
                np.stack([before, unit[level]])[:, known < 0], axis=1
            ).T.tolist():
                self.walk(place, byte_class)
            place_of_node[level] = self.after[before, unit[level]]
        place_of_node[-1] = 0
        return np.array(self.fits)[place_of_node[trie.node_of_token]]

    def walk(self, place: int, byte_class: int) -> None:
        walk = self.walks[place].copy()
        byte = int(np.flatnonzero(self.machine.byte_class == byte_class)[0])
        self.after[place, byte_class] = self.place(walk) if walk.advance(byte) else 0

    def place(self, walk: Walk) -> int:
        number = self.number.setdefault(machines.place_of(walk), len(self.walks))
        if number == len(self.walks):
            self.walks.append(walk)
            self.fits.append(self.room is None or walk.fits(self.room))
            if number == len(self.after):
                self.after = np.vstack([self.after, np.full_like(self.after, -1)])
        return number


def check_real(grammar: Grammar, vocabulary: Vocabulary, prefixes: int, seed: int) -> None:
    """Masks and next states at random prefixes against the byte walk, all tokens at each."""
    draw = random.Random(seed)
    machine, table = grammar.machine, grammar.compile(vocabulary)
    room = None
    if table.recursive:
        frames = Frames.of_bytes(machine)
        need, site_need = room_needed(frames, np.ones(frames.states, np.bool_), table.depth_limit)
        room = Room(table.depth_limit, need.tolist(), site_need.tolist())
    trial = Trial(machine, vocabulary, room)
    matcher, walk = Matcher(table, []), Walk(machine)
    seen = set()
    for _ in range(prefixes):
        mask = np.unpackbits(matcher.allowed().view(np.uint8), bitorder="little")[: vocabulary.size].astype(
            bool
        )
        place = machines.place_of(walk)
        assert (matcher._place[0], matcher.can_end) == (walk.state, walk.can_end)
        if place not in seen:
            seen.add(place)
            assert np.array_equal(mask, trial.allowed(walk)), place
        tokens = np.flatnonzero(mask)
        if not tokens.size or len(walk.stack) > 20:
            assert tokens.size or walk.can_end
            matcher.reset()
            walk = Walk(machine)
            continue
        # By class, because most tokens are text and would never leave a string.
        kind = draw.choice(np.unique(table.token_class[tokens]).tolist())
        token = int(draw.choice(tokens[table.token_class[tokens] == kind].tolist()))
        assert matcher.advance(token)
        after = read(walk, vocabulary.tokens[token], room)
        assert after is not None
        walk = after


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_real_vocabulary(schema: object) -> None:
    check_real(json_schema(schema), models.vocabulary("smollm2"), prefixes=25, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", models.NAMES)
def test_real_vocabularies(name: str) -> None:
    """200 prefixes of each of 60 grammars."""
    grammars = [json_schema(schema) for schema in SCHEMAS]
    cases = Path(__file__).parents[2] / "shared" / "cases" / "maskbench.jsonl.gz"
    if cases.exists():
        with gzip.open(cases, "rt") as lines:
            schemas = [json.loads(line)["schema"] for line in lines]
        draw = random.Random(0)
        while len(grammars) < 60:
            with contextlib.suppress(GrammarError):
                grammar = json_schema(draw.choice(schemas))
                if len(grammar.machine) < 3000:
                    grammars.append(grammar)
    for seed, grammar in enumerate(grammars):
        check_real(grammar, models.vocabulary(name), prefixes=200, seed=seed)
