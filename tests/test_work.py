"""What a grammar costs is the same whatever was made before it, by whichever loops, in whichever thread."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from traceback import walk_tb
from typing import Any

import pytest

import sortition as so
from sortition.grammars import accelerate, partition_jit, subsets_jit
from sortition.grammars import json_schema as lowering
from sortition.grammars.errors import TooLarge
from sortition.grammars.json_strings import finite
from sortition.grammars.machine import Machine
from sortition.grammars.nfa import Nfa
from sortition.grammars.work import BUDGET, charge, kept, metered

SCHEMAS: list[Any] = [
    {"type": "string", "pattern": "^[a-f]+x", "maxLength": 90},
    {"properties": {"when": {"format": "date-time"}, "x": {"pattern": "^[a-f]+x"}}},
    {"oneOf": [{"pattern": "^[a-f]+x"}, {"pattern": "^[d-k]+x"}]},
    {"items": {"multipleOf": 0.25}, "contains": {"multipleOf": 0.75}},
    {"items": {"type": "string", "maxLength": 70}, "minItems": 3, "maxItems": 50},
    {"additionalProperties": {"type": "integer"}, "maxProperties": 9},
]


@kept(8)
def _letter(letter: str) -> str:
    charge(10)
    return letter


@kept(8)
def _word(letters: str) -> str:
    charge(100)
    return "".join(map(_letter, letters))


def _steps(*words: str) -> int:
    with metered() as meter:
        for word in words:
            _word(word)
        return meter.steps


def test_what_is_kept_costs_what_it_cost_to_make_once() -> None:
    assert _steps("ab") == 120
    assert _steps("ab", "ab") == 120
    assert _steps("ab", "bc") == 230
    # Made for a grammar that had its parts already, and for one that had not.
    assert _steps("bc") == 120
    assert _steps("cc", "ab") == 230


def test_a_part_of_what_failed_is_charged_once() -> None:
    @kept(8)
    def failing() -> None:
        _letter("q")
        raise ValueError

    for _ in range(2):
        with metered() as meter:
            for _ in range(2):
                with pytest.raises(ValueError):
                    failing()
            _letter("q")
            assert meter.steps == 10


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_searched_for_while_a_grammar_is_made(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        with metered():
            with suppress(TooLarge), metered(BUDGET):
                assert not gc.isenabled()
                charge(1)
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_more_than_the_budget_is_refused() -> None:
    with metered() as meter:
        charge(BUDGET)
        with pytest.raises(TooLarge, match="steps"):
            charge(1)
        assert meter.left < 0
    with metered(BUDGET), pytest.raises(TooLarge):
        _letter("z")


def test_what_is_refused_is_not_kept_by_its_error() -> None:
    with pytest.raises(TooLarge) as caught:
        so.regex(".*a.{20}").machine  # noqa: B018
    error: BaseException | None = caught.value
    frames = []
    while error is not None:
        frames += [frame for frame, _ in walk_tb(error.__traceback__)]
        error = error.__context__
    inside = [frame for frame in frames if frame.f_code.co_filename == Nfa.closure.__code__.co_filename]
    inside += [frame for frame in frames if frame.f_code is Machine.of.__code__]
    assert inside
    assert not any(frame.f_locals for frame in inside)


@pytest.mark.parametrize("any_order", [False, True])
def test_steps_do_not_depend_on_what_was_made_before(any_order: bool) -> None:
    # Another description makes another schema of the same parts.
    def steps(order: int, word: str) -> list[int]:
        described = [{**schema, "description": word} for schema in SCHEMAS[::order]]
        return [so.json_schema(schema, any_order=any_order).steps for schema in described][::order]

    assert steps(1, "first") == steps(-1, "later") == steps(1, "first")


def test_steps_do_not_depend_on_the_order_of_a_set() -> None:
    with metered() as meter:
        finite(["a", "b"])
        once = meter.steps
        finite(["b", "a"])
    assert meter.steps == once > 0


def test_threads_have_meters_of_their_own() -> None:
    alone = so.json_schema({**SCHEMAS[1], "title": "alone"}).steps
    titled = [{**SCHEMAS[1], "title": f"alon{number}"} for number in range(8)]
    with ThreadPoolExecutor(4) as threads:
        assert {grammar.steps for grammar in threads.map(so.json_schema, titled)} == {alone}


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_loops_count_the_same_steps(schema: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = so.json_schema(schema)

    def steps(budget: int) -> int:
        with metered(budget=budget) as meter:
            Machine.of(grammar.rules, grammar.root)
            return meter.steps

    monkeypatch.setattr(accelerate, "_loaded", {})
    needed = steps(BUDGET)
    monkeypatch.setattr(accelerate, "_loaded", subsets_jit.REPLACES | partition_jit.REPLACES)
    assert steps(BUDGET) == needed
    assert steps(needed) == needed
    with pytest.raises(TooLarge):
        steps(needed - 1)


@pytest.mark.parametrize(
    "schema",
    [
        # Items need not differ where there can be none.
        {
            "type": "array",
            "uniqueItems": True,
            "items": {"type": "string", "pattern": "^[a-f]{9}x", "not": {"pattern": "^[a-f]{9}"}},
        },
        {"type": "integer", "multipleOf": 31, "not": {"multipleOf": 31}},
    ],
    ids=["strings", "numbers"],
)
def test_whatever_the_budget_nothing_but_its_end_is_reported(
    schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outcome(budget: int) -> tuple[type[Exception] | None, int]:
        monkeypatch.setattr(lowering, "metered", partial(metered, budget=budget))
        lowering.LOWERED.clear()
        try:
            return None, so.json_schema(schema).steps
        except so.GrammarError as error:
            return type(error), 0

    unbounded = outcome(BUDGET)
    steps = unbounded[1] or 10_000
    found = {outcome(steps * part // 200) for part in range(201)}
    assert found - {unbounded} == {(TooLarge, 0)}
