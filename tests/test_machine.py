"""The machine against a recogniser that tries everything."""

from __future__ import annotations

import dataclasses
import gzip
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sortition.grammars import nfa as nfa_module
from sortition.grammars.automaton import BYTES
from sortition.grammars.errors import GrammarError, TooLarge, Unsatisfiable, Unsupported
from sortition.grammars.expr import (
    EMPTY,
    NOTHING,
    Alternative,
    Call,
    Class,
    Concat,
    Expr,
    Literal,
    Repeat,
    alternative,
    concat,
    counted,
    literal,
    one_of,
    optional,
    repeat,
    star,
)
from sortition.grammars.json_schema import json_schema
from sortition.grammars.machine import Machine, deepest, successors_of
from sortition.grammars.nfa import Nfa, productive_nodes
from sortition.grammars.oracle import Walk
from sortition.grammars.partition import UnitClasses, coarsest_partition
from sortition.grammars.subsets import subsets

MASKBENCH = Path(__file__).parents[2] / "shared" / "cases" / "maskbench.jsonl.gz"


def _ends(rules: Mapping[str, Expr], expr: Expr, text: bytes, at: int) -> set[int]:
    """All positions at which a word of the expression that begins at `at` may end."""
    if isinstance(expr, Literal):
        return {at + len(expr.units)} if text.startswith(bytes(expr.units), at) else set()
    if isinstance(expr, Class):
        return {at + 1} if at < len(text) and any(a <= text[at] <= b for a, b in expr.ranges) else set()
    if isinstance(expr, Call):
        return _ends(rules, rules[expr.rule], text, at)
    if isinstance(expr, Alternative):
        return set().union(*(_ends(rules, part, text, at) for part in expr.parts))
    if isinstance(expr, Concat):
        places = {at}
        for part in expr.parts:
            places = set().union(*(_ends(rules, part, text, place) for place in places))
        return places
    if isinstance(expr, Repeat):
        reached = {at} if expr.low == 0 else set()
        places, count = {at}, 0
        while places and (expr.high is None or count < expr.high):
            places = set().union(*(_ends(rules, expr.body, text, place) for place in places))
            count += 1
            if count >= expr.low:
                if places <= reached:
                    break
                reached |= places
        return reached
    return set() if expr is NOTHING else {at}


def _recognises(rules: Mapping[str, Expr], root: Expr, text: bytes) -> bool:
    return len(text) in _ends(rules, root, text, 0)


def _accepts(machine: Machine, text: bytes) -> bool:
    walk = Walk(machine)
    return all(walk.advance(byte) for byte in text) and walk.can_end


DIGITS = one_of([(48, 50)])
NUMBER = concat(DIGITS, star(DIGITS))


@st.composite
def grammars(draw: st.DrawFn) -> tuple[dict[str, Expr], Expr]:
    """Rules in the shape of JSON: brackets and quotes show where each nested word begins and ends."""
    names = ["list", "pair", "word", "number", "other"]
    calls = st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True).map(
        lambda chosen: alternative(*(Call(name) for name in chosen))
    )

    def items(open_byte: bytes, close_byte: bytes) -> Expr:
        first, second = draw(calls), draw(calls)
        body = draw(
            st.sampled_from(
                [
                    optional(concat(first, star(concat(literal(b","), second)))),
                    concat(first, repeat(concat(literal(b","), second), draw(st.integers(0, 1)), 2)),
                    alternative(concat(first, literal(b"!")), concat(second, literal(b"?"))),
                    optional(concat(first, literal(b","), second)),
                ]
            )
        )
        return concat(literal(open_byte), body, literal(close_byte))

    rules = {
        "list": items(b"[", b"]"),
        "other": items(b"[", b"]"),
        "pair": items(b"{", b"}"),
        "word": concat(literal(b'"'), draw(st.sampled_from([star(DIGITS), literal(b"01")])), literal(b'"')),
        "number": draw(st.sampled_from([NUMBER, literal(b"1"), alternative(literal(b"12"), literal(b"1"))])),
    }
    return rules, draw(calls)


@st.composite
def texts(draw: st.DrawFn, depth: int = 3) -> bytes:
    """Bracketed texts, most of them well formed."""
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from([b"1", b"12", b"0", b'"01"', b'""', b'"2"']))
    opening, closing = draw(st.sampled_from([(b"[", b"]"), (b"{", b"}"), (b"[", b"}")]))
    parts = draw(st.lists(texts(depth - 1), max_size=3))
    tail = draw(st.sampled_from([b"", b"", b"!", b"?"]))
    return opening + b",".join(parts) + tail + closing


@settings(max_examples=300)
@given(grammars(), st.lists(texts(), min_size=1, max_size=12))
def test_machine_equals_the_recogniser(grammar: tuple[dict[str, Expr], Expr], words: list[bytes]) -> None:
    rules, root = grammar
    try:
        machine = Machine.of(rules, root)
    except Unsatisfiable:
        assert not any(_recognises(rules, root, word) for word in words)
        return
    for word in words:
        assert _accepts(machine, word) == _recognises(rules, root, word), word


@settings(max_examples=100)
@given(grammars(), texts())
def test_every_prefix_that_lives_can_be_completed(grammar: tuple[dict[str, Expr], Expr], word: bytes) -> None:
    """No dead ends: from every prefix that the machine accepts, greedy shortest completion ends the text."""
    rules, root = grammar
    try:
        machine = Machine.of(rules, root)
    except Unsatisfiable:
        return
    walk = Walk(machine)
    for byte in word:
        if not walk.advance(byte):
            break
    waiting = [walk]
    for _ in range(40):
        if any(candidate.can_end for candidate in waiting):
            return
        longer = []
        for candidate in waiting:
            for byte in b'"01]},!?{[':
                following = candidate.copy()
                if following.advance(byte):
                    longer.append(following)
        waiting = sorted(longer, key=lambda w: len(w.stack))[:200]
    raise AssertionError("a prefix was accepted that nothing completes")


def test_plain_text_beside_a_nested_part_goes_along() -> None:
    """A union of a nesting and a plain language follows both until one fails."""
    rules = {"null": literal(b"null"), "list": concat(literal(b"["), optional(Call("null")), literal(b"]"))}
    root = alternative(Call("null"), Call("list"), literal(b"nullable"), literal(b"[?]"), literal(b"[null}"))
    machine = Machine.of(rules, root)
    for word in [b"null", b"nullable", b"[]", b"[null]", b"[?]", b"[null}"]:
        assert _accepts(machine, word), word
    for word in [b"nul", b"nulla", b"[nullable]", b"[null", b"[?", b"[null]]"]:
        assert not _accepts(machine, word), word


def test_a_number_before_more_digits_is_refused() -> None:
    with pytest.raises(Unsupported):
        Machine.of({"number": NUMBER}, concat(Call("number"), DIGITS))


def test_an_empty_language_is_refused() -> None:
    with pytest.raises(Unsatisfiable):
        Machine.of({"list": concat(literal(b"["), Call("list"), literal(b"]"))}, Call("list"))


def test_too_many_states_are_refused() -> None:
    ab = one_of([(97, 98)])
    with pytest.raises(TooLarge):
        Machine.of({}, concat(star(ab), literal(b"a"), repeat(ab, 30, 30)))


def test_stack_depth() -> None:
    word = literal(b'"')
    flat = Machine.of({"word": concat(word, word)}, Call("word"))
    assert flat.depth == 1
    nested = {"word": concat(word, word), "list": concat(literal(b"["), Call("word"), literal(b"]"))}
    assert Machine.of(nested, Call("list")).depth == 2
    bracketed = concat(literal(b"["), optional(Call("list")), literal(b"]"))
    assert Machine.of({"list": bracketed}, Call("list")).depth is None


def same(one: object, other: object) -> bool:
    """Whether two dataclasses hold the same arrays and numbers."""
    pairs = [
        (getattr(one, field.name), getattr(other, field.name))
        for field in dataclasses.fields(one)  # type: ignore[arg-type]
    ]
    return all(
        mine.dtype == yours.dtype and np.array_equal(mine, yours)
        if isinstance(mine, np.ndarray)
        else mine == yours or (isinstance(mine, Sequence) and [*mine] == [*yours])
        for mine, yours in pairs
    )


def both_ways(rules: Mapping[str, Expr], root: Expr) -> None:
    """The compiled loops find what the definitions find, number by number, and refuse in the same words."""
    machine_jit = pytest.importorskip("sortition.grammars.machine_jit")
    partition_jit = pytest.importorskip("sortition.grammars.partition_jit")
    subsets_jit = pytest.importorskip("sortition.grammars.subsets_jit")
    nfa = Nfa(rules, root)
    assert subsets_jit.productive_nodes(nfa) == productive_nodes(nfa)
    classes = UnitClasses(nfa.sets, BYTES)
    try:
        found = subsets(nfa, classes)
    except GrammarError as error:
        with pytest.raises(type(error)) as raised:
            subsets_jit.subsets(nfa, classes)
        assert str(raised.value) == str(error)
        return
    assert same(subsets_jit.subsets(nfa, classes), found)
    labels, successors = successors_of(found)
    joined = coarsest_partition(labels, successors)
    assert np.array_equal(partition_jit.coarsest_partition(labels, successors), joined)
    tables = found.move, found.call, found.returns
    assert machine_jit.deepest(*tables) == deepest(*tables)


@settings(max_examples=150, deadline=None)
@given(grammars())
def test_compiled_loops_find_the_same_machine(grammar: tuple[dict[str, Expr], Expr]) -> None:
    both_ways(*grammar)


@st.composite
def counting_grammars(draw: st.DrawFn) -> tuple[dict[str, Expr], Expr]:
    """Rules whose parts count, several at the same byte; some end where the text does not show it."""
    bodies = st.sampled_from([literal(b","), literal(b",1"), DIGITS, Call("word"), Call("list")])
    highs = st.none() | st.integers(2, 5)

    def parts() -> Expr:
        step = draw(st.integers(0, 2))
        count = draw(st.integers(1, 3))
        several = [counted(draw(bodies), step, draw(st.integers(0, 3)), draw(highs)) for _ in range(count)]
        plain = [draw(bodies)] if draw(st.booleans()) else []
        return alternative(*several, *plain)

    close = draw(st.sampled_from([literal(b"]"), literal(b"]"), counted(literal(b"]"), 0, 2, None), EMPTY]))
    inside = concat(star(parts()), optional(parts()), close)
    return {"word": literal(b'"1"'), "list": concat(literal(b"["), inside)}, Call("list")


@settings(max_examples=300, deadline=None)
@given(counting_grammars())
def test_compiled_loops_count_the_same(grammar: tuple[dict[str, Expr], Expr]) -> None:
    both_ways(*grammar)


def test_compiled_loops_refuse_the_same_counts() -> None:
    ends_at_once = {"list": concat(literal(b"["), star(counted(DIGITS, 1, 0, 3)))}
    twice = alternative(counted(DIGITS, 1, 0, 3), counted(DIGITS, 2, 0, 5))
    between = concat(literal(b"["), star(twice), literal(b"]"))
    for rules, root in [(ends_at_once, Call("list")), ({}, between)]:
        with pytest.raises(Unsupported, match="counts"):
            Machine.of(rules, root)
        both_ways(rules, root)


def test_compiled_loops_refuse_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    ab = one_of([(97, 98)])
    both_ways({}, concat(star(ab), literal(b"a"), repeat(ab, 30, 30)))
    both_ways({"empty": EMPTY}, concat(Call("empty"), literal(b"a")))
    both_ways({"ab": concat(ab, ab)}, concat(optional(Call("ab")), optional(Call("ab")), star(ab)))
    both_ways({"a": literal(b"a")}, alternative(*(concat(Call("a"), literal(b"b")) for _ in range(3))))
    both_ways({}, concat(*(optional(literal(b"%04d" % n)) for n in range(3000))))


def test_compiled_loops_on_schemas() -> None:
    if not MASKBENCH.exists():
        pytest.skip("needs the schemas of maskbench")
    with gzip.open(MASKBENCH, "rt") as file:
        lines = file.read().splitlines()
    for line in random.Random(3).sample([line for line in lines if len(line) < 20_000], 200):
        try:
            grammar = json_schema(json.loads(line)["schema"])
        except GrammarError:
            continue
        both_ways(grammar.rules, grammar.root)


@settings(max_examples=100, deadline=None)
@given(grammars())
def test_rules_that_come_again_are_the_same_nodes(grammar: tuple[dict[str, Expr], Expr]) -> None:
    assert_same_nodes_again(*grammar)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {
            "properties": {
                "a": {"maxLength": 500, "type": "string"},
                "b": {"maxLength": 500, "type": "string"},
            }
        },
        {"items": {"$ref": "#"}, "maxItems": 3},
        {"enum": [{"a": 1}, "b"]},
    ],
)
def test_rules_of_schemas_that_come_again_are_the_same_nodes(schema: object) -> None:
    grammar = json_schema(schema)
    assert_same_nodes_again(grammar.rules, grammar.root)
    assert any(known.block for known, _ in nfa_module._KNOWN._values.values())


def test_rules_without_texts_come_again() -> None:
    """They all begin at one fork, which is a node of the first of them."""
    nfa_module._KNOWN.clear()
    for _ in range(2):
        Nfa({"x": NOTHING, "y": NOTHING}, alternative(Call("x"), Call("y")))
        nfa = Nfa({}, NOTHING)
        assert 0 <= nfa.start[0] < len(nfa.kind) and not nfa.productive[nfa.start[0]]


def assert_same_nodes_again(rules: Mapping[str, Expr], root: Expr) -> None:
    """An automaton whose rules are new, seen for the second time and kept is one and the same."""
    nfa_module._KNOWN.clear()
    first, *others = (Nfa(rules, root) for _ in range(4))
    for other in others:
        for name in ("kind", "label", "following", "forks", "sets", "rules", "start", "test", "tests"):
            assert getattr(other, name) == getattr(first, name), name
        assert other.productive == first.productive
