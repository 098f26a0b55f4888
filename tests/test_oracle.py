"""The byte walk on languages whose words are known."""

from __future__ import annotations

import json

import machines
import pytest

from sortition.grammars.expr import literal
from sortition.grammars.machine import Machine
from sortition.grammars.oracle import Room, Walk, allowed_tokens, read
from sortition.grammars.vocabulary import Vocabulary


def accepts(machine: Machine, text: bytes) -> bool:
    walk = Walk(machine)
    return all(walk.advance(byte) for byte in text) and walk.can_end


@pytest.mark.parametrize(
    "text",
    [
        b"1",
        b"-0.5",
        b'""',
        b"[]",
        b'{"a":[1,2.5,{"b":null}],"c":"d"}',
        b"[[],[[]]]",
        b"tru",
        b"1.",
        b"[1",
        b"[,]",
    ],
)
def test_agrees_with_json(text: bytes) -> None:
    try:
        json.loads(text)
        valid = True
    except json.JSONDecodeError:
        valid = False
    assert accepts(machines.json_machine(), text) == valid


def test_a_refused_byte_changes_nothing() -> None:
    walk = Walk(machines.json_machine())
    for byte in b'[{"a":1':
        assert walk.advance(byte)
    before = walk.state, list(walk.stack)
    assert not walk.advance(ord("]"))
    assert (walk.state, walk.stack) == before


def test_a_copy_goes_its_own_way() -> None:
    walk = Walk(machines.brackets_machine())
    assert walk.advance(ord("["))
    other = walk.copy()
    assert other.advance(ord("]")) and other.can_end
    assert not walk.can_end and walk.stack != other.stack


def test_a_number_ends_with_the_text() -> None:
    walk = Walk(machines.json_machine())
    assert not walk.can_end
    assert walk.advance(ord("7")) and walk.can_end
    assert walk.stack, "the frame of the number is still open, it may go on"


def test_allowed_tokens() -> None:
    vocabulary = Vocabulary.of([b"a", b"ab", b"b", b"", b"abc", b"abcd"], end_tokens=[])
    walk = Walk(Machine.of({}, literal(b"abc")))
    assert allowed_tokens(walk, vocabulary) == [0, 1, 4]
    assert walk.advance(ord("a"))
    assert allowed_tokens(walk, vocabulary) == [2]


def test_room_is_asked_for_between_tokens_only() -> None:
    machine = machines.brackets_machine()
    vocabulary = Vocabulary.of([b"[", b"]", b"[]", b"[[]]", b"[["], end_tokens=[])
    room = Room(2, [0] * len(machine), [0] * machine.returns.shape[1])
    walk = read(Walk(machine), b"[[", room)
    assert walk is not None and len(walk.stack) == 2
    assert allowed_tokens(walk, vocabulary, room) == [1, 2, 3]
