"""The maps of words against walking the bytes of the words from every state."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import machines
import models
import numpy as np
import pytest
from machines import Place

from sortition.grammars import compose as compose_module
from sortition.grammars.background import SWITCH, Background
from sortition.grammars.compose import DEAD, IDENTITY, SELF, Composer, Composition, compose
from sortition.grammars.descent import Descent
from sortition.grammars.errors import TooLarge
from sortition.grammars.expr import alternative, literal
from sortition.grammars.json_schema import json_schema
from sortition.grammars.machine import Machine
from sortition.grammars.oracle import Walk
from sortition.grammars.trie import Trie

NO_TOKENS = np.empty(0, np.int32)


def apply(maps: Composition, returns: np.ndarray, number: int, place: Place) -> Place | None:
    """A map applied to a place, as `Composition` describes it."""
    state, count, below = place
    stack = list(below)
    while number != DEAD:
        elements = maps.elements(number)
        for target, effect in elements[1:, elements[0] == state].T.tolist():  # noqa: B007
            pushed = []
            if effect < 0:
                guard, ending = divmod(~effect, len(returns))
            else:
                while maps.push_parent[effect] >= 0:
                    pushed.append((int(maps.push_site[effect]), int(maps.push_count[effect])))
                    effect = int(maps.push_parent[effect])
                guard, ending = int(maps.push_count[effect]), -1
            low, high, added = maps.guards[:, guard].tolist()
            if low <= count <= high:
                break
        else:
            return None
        if ending < 0:
            count += added
            for site, above in pushed[::-1]:
                stack.append((site, count))
                count = above
            return target, count, tuple(stack)
        if not stack:
            return None
        site, count = stack.pop()
        state = int(returns[ending, site])
        number = number if target == SELF else target
    return None


def walked(machine: Machine, text: bytes, place: Place) -> Place | None:
    walk = machines.put(Walk(machine), place)
    return machines.place_of(walk) if all(walk.advance(byte) for byte in text) else None


@pytest.mark.parametrize("tests", [0, 3])
@pytest.mark.parametrize("seed", range(60))
def test_maps_of_random_arrays(seed: int, tests: int) -> None:
    draw = random.Random(seed)
    machine = machines.random_arrays(draw, tests)
    composer = Composer(machine)
    words = [bytes(draw.choices(b"abcd", k=draw.randrange(7))) for _ in range(60)]
    numbers = [composer.word(word) for word in words]
    maps = composer.composition(np.array(numbers, np.int32), NO_TOKENS)
    for word, number in zip(words, numbers, strict=True):
        for state in machines.standing(machine):
            place = machines.random_place(machine, draw, state)
            assert apply(maps, machine.returns, number, place) == walked(machine, word, place), (word, place)


@pytest.mark.parametrize("seed", range(20))
def test_the_trie_is_the_words_one_by_one(seed: int) -> None:
    draw = random.Random(seed)
    machine = machines.random_machine(draw) if seed % 2 else machines.random_arrays(draw)
    vocabulary = machines.random_vocabulary(machine, draw) if seed % 2 else None
    tokens = (
        vocabulary.tokens
        if vocabulary
        else tuple(bytes(draw.choices(b"abcde", k=draw.randrange(9))) for _ in range(80))
    )
    composition = compose(machine, Trie.of(tokens))
    composer = Composer(machine)
    renumbered: dict[int, int] = {}
    for token, number in zip(tokens, composition.map_of_token.tolist(), strict=True):
        alone = composer.word(token) if token else DEAD
        assert renumbered.setdefault(number, alone) == alone
    assert len(set(renumbered.values())) == len(renumbered)


def test_equal_maps_are_one_and_different_maps_are_not() -> None:
    composer = Composer(machines.json_machine())
    assert composer.word(b"") == IDENTITY
    assert composer.word(b'"abc') == composer.word(b'"xyz')
    assert composer.word(b"12") == composer.word(b"98")
    assert composer.word(b"[") != composer.word(b"{")
    assert composer.word(b"]}") != composer.word(b"}]")
    assert composer.word(b"\x00") == DEAD
    assert composer.word(b'"\x00"') == DEAD


def test_what_nobody_can_go_on_with_is_dropped() -> None:
    # After a number's end no caller reads a letter, so the number's own states do not survive it either.
    composer = Composer(machines.json_machine())
    maps = composer.composition(np.array([composer.word(b"x")], np.int32), NO_TOKENS)
    source, target, effect = maps.elements(len(maps.grouping) - 1)
    assert (effect >= 0).all() and (source == target).all()


def test_a_token_of_many_brackets() -> None:
    machine = machines.brackets_machine()
    composer = Composer(machine)
    deep = composer.word(b"[" * 300)
    maps = composer.composition(np.array([deep, composer.word(b"]" * 300)], np.int32), NO_TOKENS)
    place = apply(maps, machine.returns, deep, (0, 0, ()))
    assert place == walked(machine, b"[" * 300, (0, 0, ())) and place is not None and len(place[2]) == 300
    closed = apply(maps, machine.returns, composer.word(b"]" * 300), place)
    assert closed == walked(machine, b"]" * 300, place) and closed is not None and not closed[2]


Effect = tuple[int, object, tuple[object, ...]]


def meanings(composition: Composition, endings: int) -> list[object]:
    """What each token does, whatever the numbers of maps, strings and guards."""
    guards = composition.guards.T.tolist()
    parents, sites, counts = (
        column.tolist() for column in (composition.push_parent, composition.push_site, composition.push_count)
    )

    def string(number: int) -> tuple[object, ...]:
        if parents[number] < 0:
            return (tuple(guards[counts[number]]),)
        return (*string(parents[number]), sites[number], counts[number])

    known: dict[int, tuple[Effect, ...]] = {}

    def meaning(number: int) -> tuple[Effect, ...]:
        if number not in known:
            elements = composition.elements(number)
            known[number] = tuple(
                (source, target, string(effect))
                if effect >= 0
                else (
                    source,
                    target if target == SELF else meaning(target),
                    (tuple(guards[~effect // endings]), ~effect % endings),
                )
                for source, target, effect in elements.T.tolist()
            )
        return known[number]

    return [None if number == DEAD else meaning(number) for number in composition.map_of_token.tolist()]


def same(one: Composition, other: Composition, machine: Machine) -> bool:
    """Whether tokens do the same and fall into the same classes."""
    return (
        meanings(one, len(machine.returns)) == meanings(other, len(machine.returns))
        and one.identities == other.identities
        and len(np.unique(one.map_of_token)) == len(np.unique(other.map_of_token))
    )


def test_compiled_loops_find_the_same_maps() -> None:
    compose_jit = pytest.importorskip("sortition.grammars.compose_jit")
    for seed in range(60):
        draw = random.Random(seed)
        machine = (
            machines.random_machine(draw, seed % 3 > 0)
            if seed % 2
            else machines.random_arrays(draw, seed % 3)
        )
        tokens = [bytes(draw.choices(b"abcde", k=draw.randrange(9))) for _ in range(80)]
        trie = machines.random_vocabulary(machine, draw).trie if seed % 2 else Trie.of(tokens)
        assert same(compose(machine, trie), compose_jit.compose(machine, trie), machine)


def test_compiled_loops_on_a_real_vocabulary() -> None:
    compose_jit = pytest.importorskip("sortition.grammars.compose_jit")
    machine, trie = machines.json_machine(), models.vocabulary("smollm2").trie
    assert same(compose(machine, trie), compose_jit.compose(machine, trie), machine)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"name": {"type": "string"}, "nature": {"minLength": 2, "type": "string"}}},
        {"additionalProperties": {"maxLength": 300, "type": "string"}, "type": "object"},
        {"patternProperties": {"^x": {"type": "number"}}, "properties": {"face": {"format": "date"}}},
        {"enum": ["abc", "abd", 12, {"key": ["\\u00e9"]}]},
        {"pattern": "^[a-z]+$", "type": "string"},
        {"items": {"type": "integer"}, "minItems": 12, "maxItems": 40, "type": "array"},
        {"items": {"pattern": "th|[Hh]ot", "type": "string"}},
        {},
    ],
)
def test_compiled_loops_pass_over_strings(schema: object) -> None:
    compose_jit = pytest.importorskip("sortition.grammars.compose_jit")
    machine, trie = json_schema(schema).machine, models.vocabulary("smollm2").trie
    assert same(compose(machine, trie), compose_jit.compose(machine, trie), machine)


def machine_of_words(count: int) -> tuple[Machine, Trie]:
    """Nearly every prefix of every word has a map of its own."""
    draw = random.Random(0)
    words = sorted({bytes(draw.choices(range(97, 123), k=6)) for _ in range(count)})
    return Machine.of({}, alternative(*map(literal, words))), Trie.of(words)


def test_many_maps_outgrow_every_array() -> None:
    machine, trie = machine_of_words(1500)
    composition = compose(machine, trie)
    assert len(composition.start) > 2500
    compose_jit = pytest.importorskip("sortition.grammars.compose_jit")
    assert same(composition, compose_jit.compose(machine, trie), machine)


def test_no_array_of_a_store_is_filled_beyond_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    compose_jit = pytest.importorskip("sortition.grammars.compose_jit")
    machine, trie = machine_of_words(300)
    composer = compose_jit._Composer(machine, Descent.of(trie))
    # Little room, so that it is doubled again and again: each time the starts get room for one more.
    start, items, slots, hashes = composer._groupings
    composer._groupings = start[:17].copy(), items, slots[:64].copy(), hashes[:16].copy()
    start, data, result, slots, hashes = composer._joins
    composer._joins = start[:3].copy(), data, result[:2].copy(), slots[:8].copy(), hashes[:2].copy()
    grow = composer._grow

    def checked() -> None:
        _, groupings, joins = composer._tally[:3]
        assert groupings <= len(composer._groupings[3])
        assert joins <= len(composer._joins[2])
        grow()

    monkeypatch.setattr(composer, "_grow", checked)
    composition = composer.composition()
    assert len(composition.group_start) > 64
    assert same(compose(machine, trie), composition, machine)


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(3)
    machine = machines.json_machine()
    trie = machines.random_vocabulary(machine, draw).trie
    whole = compose(machine, trie)
    monkeypatch.setattr(compose_module, "_CHUNK", 7)
    in_pieces = compose(machine, trie)
    # In pieces the maps may be found in another order, so only what each token does is compared.
    assert len(np.unique(in_pieces.map_of_token)) == len(np.unique(whole.map_of_token))
    for token, (one, other) in enumerate(zip(whole.map_of_token, in_pieces.map_of_token, strict=True)):
        for state in machines.standing(machine):
            place = machines.random_place(machine, draw, state)
            expected = apply(whole, machine.returns, int(one), place)
            assert apply(in_pieces, machine.returns, int(other), place) == expected, token


def test_too_many_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compose_module, "ELEMENT_BUDGET", 100)
    machine = machines.json_machine()
    with pytest.raises(TooLarge, match="more than 100 entries"):
        compose(machine, machines.random_vocabulary(machine, random.Random(0)).trie)


def test_acceleration_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "0")
    loops = Background("", lambda: pytest.fail("asked for what is cached"), lambda: pytest.fail("loaded"))
    loops.start()
    assert not loops.ready and loops._thread is None


def test_of_several_processes_one_compiles(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    program = f"""if True:
        import time
        from pathlib import Path
        from sortition.grammars.background import Background

        def load():
            time.sleep(0.2)
            with Path({str(cache)!r}).open("a") as file:
                file.write("compiled")

        Background("sortition.tests", Path({str(cache)!r}).exists, load).compile()
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    processes = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert cache.read_text() == "compiled"


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0, 2, 900])
def test_acceleration_comes_and_goes_in_silence(seconds: int, tmp_path: Path) -> None:
    """Whenever the process ends: before numba is imported, while the loops are compiled, or later."""
    pytest.importorskip("numba")
    program = f"""if True:
        import time
        from sortition.grammars import accelerate
        accelerate.LOOPS.start()
        until = time.monotonic() + {seconds}
        while time.monotonic() < until and not accelerate.LOOPS.ready:
            time.sleep(0.05)
        from sortition.grammars.compose import compose
        print(accelerate.best(compose).__module__)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "NUMBA_CACHE_DIR": str(tmp_path)}
    environment.pop(SWITCH, None)
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    found = "compose_jit" if seconds == 900 else "compose"
    assert done.stdout.strip() == f"sortition.grammars.{found}"
