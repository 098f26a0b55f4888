"""Tables against the byte walk, in all they say; and what they must never do: lead into a dead end."""

from __future__ import annotations

import dataclasses
import errno
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machines
import numpy as np
import pytest
from machines import Place

from sortition.grammars import tabulation
from sortition.grammars.errors import GrammarError, TooLarge, Unsatisfiable
from sortition.grammars.expand import expanded
from sortition.grammars.expr import Call, alternative, concat, literal, one_of, repeat, star
from sortition.grammars.json_schema import json_schema
from sortition.grammars.liveness import Frames, room_needed, sites_below
from sortition.grammars.machine import Machine
from sortition.grammars.oracle import Room, Walk, allowed_tokens, read
from sortition.grammars.table import Table
from sortition.grammars.tabulation import build_table
from sortition.grammars.vocabulary import Vocabulary


def step(table: Table, place: Place, token: int) -> Place | None:
    """One token by the arrays alone, as the docstrings of `Table` have it."""
    state, count, below = place
    stack = list(below)
    unit = int(table.token_class[token])
    while True:
        row, word, bit = table.row_of_state[state], unit >> 5, unit & 31
        if not int(table.survives[row, word]) >> bit & 1:
            return None
        before = int(table.survives[row, word]) & ((1 << bit) - 1)
        entry = int(table.first_entry[state] + table.rank[row, word]) + before.bit_count()
        action = int(table.action[entry])
        low, high, added = table.guards[table.action_guard[action]].tolist()
        while not low <= count <= high:
            action = int(table.action_otherwise[action])
            if action < 0:
                return None
            low, high, added = table.guards[table.action_guard[action]].tolist()
        target, effect = int(table.action_target[action]), int(table.action_effect[action])
        if effect >= 0:
            if len(stack) + int(table.action_height[action]) > table.depth_limit:
                return None
            count += added
            length = table.push_length[effect]
            for site, above in zip(
                table.push_sites[effect, :length].tolist(),
                table.push_count[effect, :length].tolist(),
                strict=True,
            ):
                stack.append((site, count))
                count = above
            return target, count, tuple(stack)
        if not stack:
            return None
        site, count = stack.pop()
        state, unit = int(table.returns[~effect, site]), target
        if state < 0:
            return None


def can_end(table: Table, place: Place) -> bool:
    state, _, stack = place
    while not table.accepting[state]:
        if table.ending[state] < 0 or not stack:
            return False
        state, stack = int(table.returns[table.ending[state], stack[-1][0]]), stack[:-1]
        if state < 0:
            return False
    return True


def room_of(machine: Machine, table: Table) -> Room | None:
    if not table.recursive:
        return None
    frames = Frames.of_bytes(machine)
    need, site_need = room_needed(frames, np.ones(frames.states, np.bool_), table.depth_limit)
    return Room(table.depth_limit, need.tolist(), site_need.tolist())


def check_against_the_walk(machine: Machine, vocabulary: Vocabulary, draw: random.Random, walks: int) -> int:
    """Every token at every prefix of random token walks; returns the number of prefixes."""
    table = build_table(machine, vocabulary)
    room = room_of(machine, table)
    prefixes = 0
    for _ in range(walks):
        place: Place | None = (table.start, 0, ())
        walk: Walk | None = Walk(machine)
        for _ in range(draw.randrange(30)):
            assert place is not None and walk is not None
            assert place == machines.place_of(walk)
            assert can_end(table, place) == walk.can_end
            prefixes += 1
            allowed = allowed_tokens(walk, vocabulary, room)
            assert [t for t in range(vocabulary.size) if step(table, place, t) is not None] == allowed
            if not allowed:
                assert walk.can_end
                break
            token = draw.choice(allowed)
            place, walk = step(table, place, token), read(walk, vocabulary.tokens[token], room)
    return prefixes


@pytest.mark.parametrize("seed", range(40))
def test_random_rules(seed: int) -> None:
    draw = random.Random(seed)
    machine = machines.random_machine(draw)
    check_against_the_walk(machine, machines.random_vocabulary(machine, draw), draw, walks=8)


@pytest.mark.parametrize("seed", range(30))
def test_random_rules_that_count(seed: int) -> None:
    draw = random.Random(seed)
    machine = machines.random_machine(draw, counts=True)
    vocabulary = machines.random_vocabulary(machine, draw)
    check_against_the_walk(machine, vocabulary, draw, walks=8)
    # States that count are no other language than states with a count.
    one, other = build_table(machine, vocabulary), build_table(expanded(machine), vocabulary)
    assert not other.guards[1:].size
    for _ in range(8):
        place, same = (one.start, 0, ()), (other.start, 0, ())
        for _ in range(20):
            allowed = [token for token in range(vocabulary.size) if step(one, place, token) is not None]
            assert allowed == [t for t in range(vocabulary.size) if step(other, same, t) is not None]
            assert can_end(one, place) == can_end(other, same)
            if not allowed:
                break
            token = draw.choice(allowed)
            place, same = step(one, place, token), step(other, same, token)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("limit", [1, 2, 4])
def test_random_rules_near_the_limit(seed: int, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabulation, "RECURSIVE_DEPTH", limit)
    draw = random.Random(1000 + seed)
    machine = machines.random_machine(draw)
    try:
        check_against_the_walk(machine, machines.random_vocabulary(machine, draw, 20), draw, walks=8)
    except TooLarge as error:
        assert machine.depth is None and f"nests more than {limit} deep" in str(error)


@pytest.mark.parametrize(
    "machine",
    [
        machines.json_machine,
        machines.brackets_machine,
        machines.required_key_machine,
        machines.counting_machine,
    ],
)
def test_nested_languages(machine: Callable[[], Machine]) -> None:
    draw = random.Random(5)
    spelled = machines.spelled(machine())
    texts = [machines.random_text(machine(), draw, 40) for _ in range(40)]
    tokens = [bytes([byte]) for byte in spelled] + machines.NASTY
    tokens += [text[begin : begin + draw.randrange(2, 9)] for text in texts for begin in (0, 11, 23)]
    vocabulary = Vocabulary.of(tokens, end_tokens=[])
    assert check_against_the_walk(machine(), vocabulary, draw, walks=30) > 100


@pytest.mark.parametrize("tests", [0, 3])
@pytest.mark.parametrize("seed", range(40))
def test_random_arrays(seed: int, tests: int) -> None:
    # These have dead ends of their own, so that only single steps are compared, from any place.
    draw = random.Random(seed)
    machine = machines.random_arrays(draw, tests)
    tokens = [bytes([byte]) for byte in b"abcd"] + [bytes(draw.choices(b"abcd", k=5)) for _ in range(60)]
    vocabulary = Vocabulary.of(tokens, end_tokens=[])
    table = build_table(machine, vocabulary)
    for _ in range(40):
        place = machines.random_place(machine, draw, draw.choice(machines.standing(machine)))
        walk = machines.put(Walk(machine), place)
        assert can_end(table, place) == walk.can_end
        for token, text in enumerate(tokens):
            after = read(walk, text)
            assert step(table, place, token) == (None if after is None else machines.place_of(after))


def places(table: Table, most: int = 1000) -> dict[Place, list[Place]] | None:
    """All places that a table can reach and where they lead, None if there are too many."""
    found: dict[Place, list[Place]] = {}
    waiting: list[Place] = [(table.start, 0, ())]
    while waiting:
        place = waiting.pop()
        if place in found:
            continue
        if len(found) == most:
            return None
        onward = {step(table, place, token) for token in range(table.vocabulary_size)} - {None}
        found[place] = [after for after in onward if after is not None]
        waiting.extend(found[place])
    return found


def completable(graph: dict[Place, list[Place]], ends: set[Place]) -> set[Place]:
    """The places from which an end can be reached."""
    before: dict[Place, list[Place]] = {}
    for place, onward in graph.items():
        for after in onward:
            before.setdefault(after, []).append(place)
    good, waiting = set(ends), list(ends)
    while waiting:
        for place in before.get(waiting.pop(), ()):
            if place not in good:
                good.add(place)
                waiting.append(place)
    return good


def check_no_dead_ends(table: Table) -> bool:
    graph = places(table)
    if graph is None:
        return False
    good = completable(graph, {place for place in graph if can_end(table, place)})
    assert good == set(graph), sorted(set(graph) - good)[:5]
    return True


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_the_limit_never_strands_a_text(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabulation, "RECURSIVE_DEPTH", limit)
    checked = 0
    for seed in range(60):
        draw = random.Random(seed)
        machine = machines.random_machine(draw)
        try:
            table = build_table(machine, machines.random_vocabulary(machine, draw, 12))
        except TooLarge:
            continue
        checked += table.recursive and check_no_dead_ends(table)
    assert checked >= 8


@pytest.mark.parametrize("limit", [2, 3, 4])
def test_a_required_key_keeps_its_room(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabulation, "RECURSIVE_DEPTH", limit)
    machine = machines.required_key_machine()
    tokens = [bytes([byte]) for byte in machines.spelled(machine)] + [b'"a":{"', b'"},', b'"r":1}}', b'":{']
    table = build_table(machine, Vocabulary.of(tokens, end_tokens=[]))
    assert table.recursive and check_no_dead_ends(table)


def test_without_recursion_nothing_is_asked_of_the_stack() -> None:
    for seed in range(40):
        draw = random.Random(seed)
        machine = machines.random_machine(draw)
        if machine.depth is None:
            continue
        table = build_table(machine, machines.random_vocabulary(machine, draw))
        graph = places(table)
        deepest = max((len(stack) for *_, stack in graph or {}), default=0)
        assert (
            not table.recursive
            and not table.action_height.any()
            and deepest <= table.depth_limit == machine.depth
        )


def lacking(draw: random.Random, machine: Machine, size: int) -> Vocabulary:
    """A vocabulary without some of the bytes that the machine reads."""
    whole = machines.random_vocabulary(machine, draw, size)
    missing = draw.choices(machines.spelled(machine), k=draw.choice([1, 1, 2]))
    tokens = [text for text in whole.tokens if len(text) != 1 or text[0] not in missing]
    return Vocabulary.of([*tokens, b"~"], end_tokens=[])


@pytest.mark.parametrize("seed", range(80))
def test_missing_bytes_exactly_where_nothing_nests(seed: int) -> None:
    draw = random.Random(seed)

    def word(depth: int) -> object:
        kind = draw.randrange(4) if depth else 0
        if kind == 0:
            return literal(bytes(draw.choices(b"abc", k=draw.randrange(1, 3))))
        if kind == 3:
            return draw.choice([star, lambda body: repeat(body, 1, 3)])(word(depth - 1))
        return (concat if kind == 1 else alternative)(word(depth - 1), word(depth - 1))

    machine = Machine.of({}, word(4))
    vocabulary = lacking(draw, machine, 5)
    # Where single tokens lead by the bytes alone, and from where an end can be reached that way.
    graph: dict[Place, list[Place]] = {}
    for state in range(len(machine)):
        walk = Walk(machine)
        walk.state = state
        after = (read(walk, text) for text in vocabulary.tokens if text)
        graph[state, 0, ()] = [(other.state, 0, ()) for other in after if other is not None]
    good = completable(graph, {(state, 0, ()) for state in range(len(machine)) if machine.accepting[state]})
    try:
        table = build_table(machine, vocabulary)
    except Unsatisfiable as error:
        assert "vocabulary cannot spell" in str(error) and (0, 0, ()) not in good
        return
    assert (0, 0, ()) in good
    for place in places(table) or ():
        walk = Walk(machine)
        walk.state = place[0]
        for token, text in enumerate(vocabulary.tokens):
            after = read(walk, text) if text else None
            expected = after is not None and (after.state, 0, ()) in good
            assert (step(table, place, token) is not None) == expected


@pytest.mark.parametrize("limit", [1, 2, 64])
def test_texts_that_end_inside_a_nested_part(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabulation, "RECURSIVE_DEPTH", limit)
    rules = {"list": concat(literal(b"["), star(Call("list")), literal(b"]"))}
    machine = Machine.of(rules, alternative(Call("list"), literal(b"[[["), literal(b"[?")))
    for tokens in ([b"[", b"]", b"?", b"[["], [b"[", b"?", b"]]"], [b"[[", b"[", b"?"], [b"[[", b"]"]):
        if limit == 1 and tokens == [b"[[", b"]"]:
            with pytest.raises(TooLarge):
                build_table(machine, Vocabulary.of(tokens, end_tokens=[]))
            continue
        table = build_table(machine, Vocabulary.of(tokens, end_tokens=[]))
        assert check_no_dead_ends(table)
    for tokens in ([b"]", b"?"], [b"[[[["]):
        with pytest.raises(Unsatisfiable):
            build_table(machine, Vocabulary.of(tokens, end_tokens=[]))


@pytest.mark.parametrize("limit", [2, 64])
def test_missing_bytes_leave_no_dead_ends(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabulation, "RECURSIVE_DEPTH", limit)
    checked = 0
    for seed in range(150):
        draw = random.Random(seed)
        machine = machines.random_machine(draw)
        try:
            table = build_table(machine, lacking(draw, machine, 15))
        except GrammarError:
            continue
        checked += check_no_dead_ends(table)
    assert checked >= 15


def test_sites_that_return_alike_are_told_apart_by_nobody() -> None:
    # Each of 60 counts is a site below each of the 60 states of a string.
    schema = {"type": "array", "maxItems": 60, "items": {"type": "string", "maxLength": 60}}
    frames = Frames.of_bytes(expanded(json_schema(schema).machine))
    state, _ = sites_below(frames, np.ones(frames.states, np.bool_))
    assert len(state) <= 3 * frames.states


def test_counts_that_a_vocabulary_spells_one_by_one_are_bounded() -> None:
    tokens = [bytes([byte]) for byte in range(256) if byte != ord('"')]
    vocabulary = Vocabulary.of([*tokens, b'a"'], end_tokens=[])
    machine = json_schema({"type": "string", "minLength": 40, "maxLength": 5000}).machine
    with pytest.raises(TooLarge, match="lacks bytes"):
        build_table(machine, vocabulary)


def test_a_vocabulary_that_cannot_spell_the_language() -> None:
    vocabulary = Vocabulary.of([b"a", b"ab", b"c"], end_tokens=[])
    with pytest.raises(Unsatisfiable, match="vocabulary cannot spell"):
        build_table(Machine.of({}, literal(b"abab!")), vocabulary)
    with pytest.raises(Unsatisfiable, match="vocabulary cannot spell"):
        build_table(machines.brackets_machine(), Vocabulary.of([b"[", b"a"], end_tokens=[]))
    table = build_table(Machine.of({}, literal(b"abc")), vocabulary)
    assert step(table, (0, 0, ()), 0) is None, "after `a` alone there is no `b`"
    assert step(table, (0, 0, ()), 1) is not None


def test_tokens_of_equal_bytes_are_both_kept() -> None:
    table = build_table(
        Machine.of({}, literal(b"ab")), Vocabulary.of([b"a", b"ab", b"b", b"ab"], end_tokens=[])
    )
    assert table.token_class[1] == table.token_class[3] != 0


def test_numbers_of_the_table() -> None:
    machine = machines.json_machine()
    tokens = [bytes([byte]) for byte in range(256)] + [b"]]]", b"[[[["]
    table = build_table(machine, Vocabulary.of(tokens, end_tokens=[]))
    assert len(table) == len(machine)
    assert table.recursive and table.depth_limit == 64
    assert table.push_sites.shape[1] == 4
    # `]]]` may first have to end a number.
    assert table.longest_exit == 4
    assert table.nbytes == sum(
        value.nbytes for value in vars(table).values() if isinstance(value, np.ndarray)
    )
    assert repr(table).startswith(f"Table({len(table)} states, {table.byte_classes} byte classes, ")
    described = table.describe()
    assert described.startswith(repr(table)) and "up to 64 deep, by a limit" in described


def test_rows_are_distinct_and_arrays_are_read_only() -> None:
    machine = machines.json_machine()
    table = build_table(machine, machines.random_vocabulary(machine, random.Random(0)))
    rows = np.hstack([table.survives, table.certain])
    assert len(np.unique(rows, axis=0)) == len(rows)
    assert not (table.certain & ~table.survives).any()
    with pytest.raises(ValueError, match="read-only"):
        table.action[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.start = 1  # type: ignore[misc]


def test_entries_and_their_actions() -> None:
    machine = machines.json_machine()
    table = build_table(machine, machines.random_vocabulary(machine, random.Random(3)))
    assert table.target.tolist() == [table.action_target[action] for action in table.action]
    assert table.effect.tolist() == [table.action_effect[action] for action in table.action]
    assert table.height.tolist() == [table.action_height[action] for action in table.action]
    rows = table.rank[:, -1] + np.bitwise_count(table.survives[:, -1])
    assert (np.diff([*table.first_entry, len(table.action)]) == rows[table.row_of_state]).all()


def test_conditional_is_what_survives_without_being_certain() -> None:
    machine = machines.json_machine()
    table = build_table(machine, machines.random_vocabulary(machine, random.Random(1)))
    for state in range(len(table)):
        row = table.row_of_state[state]
        bits = np.unpackbits((table.survives[row] & ~table.certain[row]).view(np.uint8), bitorder="little")
        expected = np.flatnonzero(bits[: table.token_classes])
        listed = table.conditional[table.conditional_start[state] : table.conditional_start[state + 1]]
        assert listed.tolist() == expected.tolist()


def _some_table() -> Table:
    machine = machines.json_machine()
    return build_table(machine, machines.random_vocabulary(machine, random.Random(2)))


def test_saved_and_loaded(tmp_path: Path) -> None:
    table = _some_table()
    path = tmp_path / "json.table"
    table.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["json.table"]
    loaded = Table.load(path)
    for field in dataclasses.fields(Table):
        before, after = getattr(table, field.name), getattr(loaded, field.name)
        if isinstance(before, np.ndarray):
            assert before.dtype == after.dtype and np.array_equal(before, after) and not after.flags.writeable
        else:
            assert type(before) is type(after) and before == after


def test_saving_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table"
    _some_table().save(path)
    before = path.read_bytes()

    def full(file: Any, **_: Any) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="No space"):
        _some_table().save(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "table"
    with pytest.raises(FileNotFoundError):
        Table.load(path)
    path.write_bytes(b"not a table")
    with pytest.raises(ValueError, match="not a saved table"):
        Table.load(path)
    _some_table().save(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="not a saved table"):
        Table.load(path)
    np.savez(tmp_path / "other.npz", header=np.zeros(3, np.uint8))
    with pytest.raises(ValueError, match="not a saved table"):
        Table.load(tmp_path / "other.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [({"format": 0}, "saved in format 0, this version reads format 2"), ({"start": 1}, "checksum")],
)
def test_other_versions_and_changed_content_are_refused(
    tmp_path: Path, change: dict[str, int], message: str
) -> None:
    path = tmp_path / "table.npz"
    _some_table().save(path)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    header = json.loads(arrays["header"].tobytes()) | change
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=message):
        Table.load(path)


def test_many_words() -> None:
    draw = random.Random(0)
    words = sorted({bytes(draw.choices(range(97, 107), k=draw.randrange(3, 9))) for _ in range(600)})
    machine = Machine.of({}, alternative(*map(literal, words)))
    tokens = [bytes([byte]) for byte in range(256)] + [word[1:4] for word in words] + words[::7]
    check_against_the_walk(machine, Vocabulary.of(tokens, end_tokens=[]), draw, walks=3)


def test_any_byte_of_a_class() -> None:
    machine = Machine.of({}, star(one_of([(0, 255)])))
    table = build_table(
        machine, Vocabulary.of([bytes([byte]) for byte in range(256)] + [b"", b"xyz"], end_tokens=[])
    )
    assert table.token_class.tolist() == [1] * 256 + [0, 1]
