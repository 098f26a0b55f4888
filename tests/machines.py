"""Machines and vocabularies for tests: a small JSON, random rules that nest, and random arrays."""

from __future__ import annotations

import random
from functools import cache

import numpy as np

from sortition.grammars.errors import GrammarError
from sortition.grammars.expr import (
    Call,
    Expr,
    Graph,
    alternative,
    concat,
    counted,
    literal,
    one_of,
    optional,
    repeat,
    star,
)
from sortition.grammars.machine import ENDLESS, Machine
from sortition.grammars.oracle import Walk
from sortition.grammars.vocabulary import Vocabulary

DIGIT = one_of([(48, 57)])

NASTY = [
    *[
        b'"},{"a":[1',
        b"]]}",
        b'"a',
        b"1]",
        b",1",
        b"12",
        b"null,",
        b"}}",
        b'":',
        b"]]]]",
        b"[[[[",
        b"[]",
        b"{}",
    ],
    *[
        b'{"a":{"b":',
        b'"}]},{"',
        b"1,2",
        b"1.5]",
        b"-1,",
        b"]}",
        b'],"a"',
        b'"","',
        b"true}",
        b"0}]",
        b"0,0,0,0",
    ],
]
"""Tokens that close several frames and open others."""


def separated(item: Expr) -> Expr:
    """Nothing, or items with commas between them."""
    return optional(concat(item, star(concat(literal(b","), item))))


def counted_string(low: int, high: int | None) -> Expr:
    """A string of so many characters, of which some take two bytes."""
    character = alternative(one_of([(97, 98)]), concat(literal(b"\\"), one_of([(97, 98), (34, 34)])))
    quote = literal(b'"')
    edges = (0, counted(character, 1, 0, high), 0), (0, counted(quote, 0, low, None), 1)
    return concat(quote, Graph(edges, 0, frozenset({1})))


def counted_items(item: Expr, low: int, high: int | None) -> Expr:
    """At least one item, and so many in all, with commas between them."""
    edges = (
        (0, item, 1),
        (1, counted(literal(b","), 1, 0, None if high is None else high - 1), 0),
        (1, counted(literal(b"]"), 0, max(low, 1) - 1, None), 2),
    )
    return concat(literal(b"["), Graph(edges, 0, frozenset({2})))


@cache
def counting_machine() -> Machine:
    """Nested arrays and strings, all with bounds, some of which are read at once."""
    value = alternative(Call("array"), Call("short"), Call("long"), Call("number"))
    rules = {
        "array": counted_items(value, 2, 4),
        "short": counted_string(0, 3),
        "long": counted_string(2, 7),
        "number": concat(DIGIT, star(DIGIT)),
        "pair": concat(literal(b"{"), Call("long"), literal(b":"), value, literal(b"}")),
        "other": concat(literal(b"{"), Call("short"), literal(b":"), Call("array"), literal(b"}")),
    }
    return Machine.of(rules, alternative(Call("array"), Call("pair"), Call("other")))


@cache
def json_machine() -> Machine:
    """JSON without white space and escapes: recursion, strings that end by a quote, numbers that lapse."""
    value = alternative(*map(Call, ("string", "number", "name", "array", "object")))
    rules = {
        "string": concat(literal(b'"'), star(one_of([(32, 33), (35, 91), (93, 126)])), literal(b'"')),
        "number": concat(
            optional(literal(b"-")), DIGIT, star(DIGIT), optional(concat(literal(b"."), DIGIT, star(DIGIT)))
        ),
        "name": alternative(literal(b"true"), literal(b"false"), literal(b"null")),
        "array": concat(literal(b"["), separated(value), literal(b"]")),
        "object": concat(
            literal(b"{"), separated(concat(Call("string"), literal(b":"), value)), literal(b"}")
        ),
    }
    return Machine.of(rules, value)


@cache
def brackets_machine() -> Machine:
    """Balanced brackets, at least one pair."""
    return Machine.of({"pair": concat(literal(b"["), star(Call("pair")), literal(b"]"))}, Call("pair"))


@cache
def required_key_machine() -> Machine:
    """Objects with a required key and other keys, which hold numbers or such objects."""
    value = alternative(Call("object"), Call("number"))
    member = concat(Call("other"), literal(b":"), value)
    rules = {
        "number": concat(DIGIT, star(DIGIT)),
        "required": literal(b'"r"'),
        "other": concat(literal(b'"'), star(one_of([(97, 104)])), literal(b'"')),
        "object": concat(
            literal(b"{"),
            star(concat(member, literal(b","))),
            concat(Call("required"), literal(b":"), Call("number")),
            star(concat(literal(b","), member)),
            literal(b"}"),
        ),
    }
    return Machine.of(rules, Call("object"))


def random_machine(draw: random.Random, counts: bool = False) -> Machine:
    """Random rules in the manner of JSON, over few bytes, so that tokens meet many rules; some may count."""
    while True:
        try:
            return _random_machine(draw, counts)
        except GrammarError:
            continue


def _random_machine(draw: random.Random, counts: bool) -> Machine:
    names = [f"rule{number}" for number in range(draw.randrange(2, 6))]
    strings, numbers = ["string0", "string1"], ["number0"]

    def word(depth: int) -> Expr:
        kind = draw.randrange(4) if depth else 0
        if kind == 0:
            return literal(bytes(draw.choices(b"ab", k=draw.randrange(1, 3))))
        if kind == 1:
            return concat(word(depth - 1), word(depth - 1))
        if kind == 2:
            return alternative(word(depth - 1), word(depth - 1))
        low = draw.randrange(2)
        return repeat(word(depth - 1), low, draw.choice([None, low + 1, low + 3]))

    def value() -> Expr:
        kinds = [*draw.choices(names, k=draw.randrange(3)), *draw.choices(strings + numbers, k=2)]
        return alternative(*map(Call, kinds))

    def bounds() -> tuple[int, int | None]:
        low = draw.randrange(4)
        return low, draw.choice([None, low + 1, low + 4])

    rules: dict[str, Expr] = {
        name: counted_string(*bounds())
        if counts and draw.random() < 0.6
        else concat(literal(b'"'), word(3), literal(b'"'))
        for name in strings
    }
    for name in numbers:
        digits = one_of([(48, 49)])
        rules[name] = concat(digits, repeat(digits, 0, draw.choice([None, 1, 2])))
    for name in names:
        if counts and draw.random() < 0.4:
            rules[name] = counted_items(value(), *bounds())
            continue
        if draw.random() < 0.4:
            body = separated(value())
        elif draw.random() < 0.5:
            member = concat(Call(draw.choice(strings)), literal(b":"), value())
            body = separated(member)
        else:
            body = concat(value(), literal(b","), optional(concat(value(), literal(b","))), value())
        opening, closing = draw.choice([(b"[", b"]"), (b"{", b"}")])
        rules[name] = concat(literal(opening), body, literal(closing))
    return Machine.of(rules, value())


def random_arrays(draw: random.Random, tests: int = 0) -> Machine:
    """A machine of random arrays: no language anyone would want, but every situation that arrays can say."""
    states, classes, sites, endings = 9, 4, 4, 3
    generator = np.random.default_rng(draw.randrange(1 << 32))
    move = generator.integers(0, states, (states, classes))
    move[generator.random((states, classes)) < 0.45] = -1
    move[generator.random(states) < 0.3] = -1
    call = generator.integers(0, sites, (states, classes))
    call[(move < 0) | (generator.random((states, classes)) < 0.7)] = -1
    ending = generator.integers(0, endings, states)
    ending[generator.random(states) < 0.5] = -1
    ending[(move < 0).all(axis=1)] = generator.integers(0, endings)
    returns = generator.integers(0, states, (endings, sites))
    returns[generator.random((endings, sites)) < 0.3] = -1
    byte_class = np.full(256, classes, np.uint8)
    byte_class[97 : 97 + classes] = np.arange(classes)
    nothing = np.full((states, 1), -1)
    move, call = np.hstack([move, nothing]), np.hstack([call, nothing])
    if tests:
        # Each of the tests is that of a state of its own, to which half of the moves without calls go.
        cuts = np.sort(generator.integers(0, 9, (tests, classes)), axis=1)
        cuts[:, generator.integers(1, classes + 1) :] = ENDLESS
        outcomes = generator.integers(0, states, (tests, classes + 1))
        outcomes[generator.random(outcomes.shape) < 0.2] = -1
        pushed = generator.integers(0, sites, outcomes.shape)
        pushed[(outcomes < 0) | (generator.random(outcomes.shape) < 0.7)] = -1
        tested = (move >= 0) & (call < 0) & (generator.random(move.shape) < 0.5)
        move[tested] = states + generator.integers(0, tests, int(tested.sum()))
        move, call = np.vstack([move, outcomes]), np.vstack([call, pushed])
        ending = np.append(ending, np.full(tests, -1))
    return Machine(
        byte_class=byte_class,
        move=move.astype(np.int32),
        call=call.astype(np.int32),
        ending=ending.astype(np.int32),
        returns=returns.astype(np.int32),
        accepting=ending < 0,
        test=np.append(np.full(states, -1), np.arange(tests)).astype(np.int32),
        step=generator.integers(0, 3, tests).astype(np.int32),
        cuts=(cuts if tests else np.empty((0, 0))).astype(np.int32),
        depth=1000,
    )


def standing(machine: Machine) -> list[int]:
    """The states in which a text can be: not those that are left as soon as they are reached."""
    states: list[int] = np.flatnonzero(~machine.leaves & (machine.test < 0)).tolist()
    return states


Place = tuple[int, int, tuple[tuple[int, int], ...]]
"""A state, the count of its frame, and the call sites below it with the counts of theirs, the top last."""


def place_of(walk: Walk) -> Place:
    """Where a walk is."""
    return walk.state, walk.count, tuple(zip(walk.stack, walk.counts, strict=True))


def put(walk: Walk, place: Place) -> Walk:
    """The walk, from now on at another place."""
    walk.state, walk.count = place[:2]
    walk.stack, walk.counts = [site for site, _ in place[2]], [count for _, count in place[2]]
    return walk


def random_place(machine: Machine, draw: random.Random, state: int) -> Place:
    """This state, with any count, on any stack."""
    sites = range(machine.returns.shape[1])
    stack = tuple((draw.choice(sites), draw.randrange(9)) for _ in range(draw.randrange(6)))
    return state, draw.randrange(9), stack


def spelled(machine: Machine) -> bytes:
    """Every byte that the machine reads."""
    return bytes(np.flatnonzero(machine.spells).tolist())


def random_text(machine: Machine, draw: random.Random, length: int) -> bytes:
    """The beginning of some text of the language."""
    walk, text, alphabet = Walk(machine), bytearray(), spelled(machine)
    while len(text) < length:
        readable = [byte for byte in alphabet if walk.copy().advance(byte)]
        if not readable:
            break
        text.append(draw.choice(readable))
        walk.advance(text[-1])
    return bytes(text)


def random_vocabulary(machine: Machine, draw: random.Random, size: int = 60) -> Vocabulary:
    """Every byte that the machine reads, and longer tokens, many of which occur in texts; some are equal."""
    alphabet = spelled(machine)
    tokens = [bytes([byte]) for byte in alphabet]
    while len(tokens) < len(alphabet) + size:
        if draw.random() < 0.2:
            tokens.append(bytes(draw.choices(alphabet, k=draw.randrange(1, 5))))
        else:
            text = random_text(machine, draw, 40)
            start = draw.randrange(len(text) + 1)
            tokens.append(text[start : start + draw.randrange(2, 12)])
    draw.shuffle(tokens)
    return Vocabulary.of(tokens, end_tokens=[])
