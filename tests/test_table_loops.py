"""The compiled loops of tables and of what can still be ended, against their definitions."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import machines
import numpy as np
import pytest

from sortition.grammars import accelerate, liveness, table_entries
from sortition.grammars.errors import TooLarge
from sortition.grammars.json_schema import json_schema
from sortition.grammars.liveness import Frames, room_needed, spread_labels, steps_of
from sortition.grammars.machine import Machine
from sortition.grammars.table_actions import outcomes_of, spelled
from sortition.grammars.table_classes import classes_of
from sortition.grammars.table_entries import Entries, entries_of, rows_of
from sortition.grammars.tabulation import build_table, longest_exit

SCHEMAS = [
    True,
    {"type": "object", "properties": {"a": {"type": "string"}, "b": {"enum": [1, 2]}}, "required": ["a"]},
    {"$ref": "#/$defs/n", "$defs": {"n": {"required": ["n"], "properties": {"n": {"$ref": "#/$defs/m"}}},
                                    "m": {"anyOf": [{"$ref": "#/$defs/n"}, {"maxItems": 2}]}}},
]  # fmt: skip


def recursive_machines() -> list[Machine]:
    """Machines of all shapes, among them some in which the way out needs more and more room."""
    random_ones = [machines.random_machine(random.Random(seed)) for seed in range(40)]
    schemas = [json_schema(schema).machine for schema in SCHEMAS]
    return [machines.json_machine(), machines.required_key_machine(), *schemas, *random_ones]


def test_room_is_the_same() -> None:
    compiled = pytest.importorskip("sortition.grammars.liveness_jit")
    needed = set()
    for machine in recursive_machines():
        frames = Frames.of_bytes(machine)
        unsafe = np.ones(frames.states, np.bool_)
        unsafe[len(machine) // 2] = False
        for safe in (np.ones(frames.states, np.bool_), unsafe):
            for limit in (0, 2, 64):
                found, expected = (find(frames, safe, limit) for find in (compiled.room_needed, room_needed))
                for ours, theirs in zip(found, expected, strict=True):
                    assert np.array_equal(ours, theirs)
                needed.update(expected[0].tolist())
    assert {0, 1, 2, liveness.NEVER} <= needed


def test_steps_are_the_same() -> None:
    compiled = pytest.importorskip("sortition.grammars.liveness_jit")
    for machine in recursive_machines():
        found, expected = (find(machine.move, machine.call) for find in (compiled.steps_of, steps_of))
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_labels_spread_the_same(seed: int) -> None:
    compiled = pytest.importorskip("sortition.grammars.liveness_jit")
    draw = np.random.default_rng(seed)
    states, labels, edges, put = draw.integers(1, 40, 4)
    arguments = (
        draw.integers(0, states, edges), draw.integers(0, states, edges),
        draw.integers(0, states, put), draw.integers(0, labels, put), (states, labels),
    )  # fmt: skip
    assert np.array_equal(compiled.spread_labels(*arguments), spread_labels(*arguments))


def test_tables_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call of the definitions while tables are built is made again, in compiled loops."""
    compiled = pytest.importorskip("sortition.grammars.table_jit")
    calls = dict.fromkeys((classes_of, outcomes_of, spelled, entries_of, rows_of, longest_exit), 0)

    def both(definition: Callable[..., Any]) -> Callable[..., Any]:
        if definition not in calls:
            return definition

        def checked(*arguments: Any) -> Any:
            calls[definition] += 1
            expected, found = definition(*arguments), compiled.REPLACES[definition](*arguments)
            several = expected if isinstance(expected, tuple) else (expected,)
            for ours, theirs in zip(found if several is expected else (found,), several, strict=True):
                assert np.array_equal(ours, theirs)
                assert np.asarray(ours).dtype == np.asarray(theirs).dtype
            return expected

        return checked

    monkeypatch.setattr(accelerate, "best", both)
    for seed, machine in enumerate(recursive_machines()):
        build_table(machine, machines.random_vocabulary(machine, random.Random(seed)))
    assert min(calls.values()) > 40


def test_too_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = pytest.importorskip("sortition.grammars.table_jit")
    entries = Entries(np.arange(3), np.array([[1, 0], [2, 0]], np.int32))
    arguments = entries, np.zeros(1, np.int64), np.zeros(2, np.int64), 3, 70
    monkeypatch.setattr(table_entries, "BIT_BUDGET", 16)
    for find in (rows_of, compiled.rows_of):
        with pytest.raises(TooLarge, match="70 token classes in 2 kinds of states"):
            find(*arguments)
