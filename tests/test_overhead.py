"""The overhead tool: parts add up, planted parts are found, and intervals hold what they promise."""

from __future__ import annotations

import itertools
import json
import random
import time
from pathlib import Path
from statistics import median
from typing import Any

import jsonschema
import pytest
import torch
from planted import FORWARD, Clock, PlantedEngine
from rich.console import Console
from tiny_llama import save_tiny_llama
from torch import Tensor
from transformers import LogitsProcessor

from sortition.benchmarks.overhead import parts, tables
from sortition.benchmarks.overhead.breakdown import breakdowns
from sortition.benchmarks.overhead.device_clock import DeviceClock
from sortition.benchmarks.overhead.exposure import Exposure, exposures
from sortition.benchmarks.overhead.hf import TransformersEngine
from sortition.benchmarks.overhead.intervals import LEAST, Interval, signed_rank
from sortition.benchmarks.overhead.load import SAMPLINGS, Load, prompts
from sortition.benchmarks.overhead.measure import REPORT_SCHEMA, measure
from sortition.benchmarks.overhead.patches import patched
from sortition.benchmarks.overhead.stopwatch import WHOLE, Stopwatch
from sortition.integrations.errors import InputError

LOAD = Load(batch=2, context=8, tokens=13)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TransformersEngine:
    torch.set_num_threads(1)
    return TransformersEngine.load(save_tiny_llama(tmp_path_factory.mktemp("tiny")))


# The stopwatch.


def test_parts_are_timed_without_the_parts_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock().turn(monkeypatch)
    watch = Stopwatch()
    with watch.step("decode", 3) as step:
        clock.seconds += 1
        with watch.part(parts.FORWARD):
            clock.seconds += 2
            with watch.part(parts.LOGITS):
                clock.seconds += 4
            with watch.part(parts.LOGITS):
                clock.seconds += 8
        with watch.part(parts.DRAW):
            clock.seconds += 16
    assert {name: times.wall for name, times in step.parts.items()} == {
        "logits": 12,
        "forward": 2,
        "draw": 16,
    }
    assert step.total.wall == 31
    (found,) = breakdowns(watch.steps, "wall")
    assert (found.kind, found.total, found.unexplained) == ("decode", 31_000, 1_000)
    assert found.parts == {"forward": 2_000, "logits": 12_000, "draw": 16_000}
    assert list(found.parts) == ["forward", "logits", "draw"]


def test_a_part_that_fails_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock().turn(monkeypatch)
    watch = Stopwatch()
    with watch.step() as step:
        with pytest.raises(KeyError), watch.part(parts.FORWARD), watch.part(parts.LOGITS):
            clock.seconds += 1
            raise KeyError
        with watch.part(parts.DRAW):
            clock.seconds += 1
    assert {name: times.wall for name, times in step.parts.items()} == {"logits": 1, "forward": 0, "draw": 1}


def test_what_is_left_out_is_not_done_and_not_timed() -> None:
    watch = Stopwatch([parts.DRAW])
    with watch.step() as step:
        assert (
            watch.call(parts.DRAW, lambda: pytest.fail("it was done"), instead=lambda: "stand-in")
            == "stand-in"
        )
        assert watch.timed(parts.FILTERS, lambda: "done", lambda: "stand-in")() == "done"
        # Without a stand-in there is nothing to put in its place.
        assert watch.timed(parts.DRAW, lambda: "done")() == "done"
    assert list(step.parts) == [parts.FILTERS, parts.DRAW]


def test_nothing_is_timed_outside_of_steps_or_in_other_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    watch = Stopwatch()
    work = watch.timed(parts.MASK_FILL, lambda: "done")
    assert work() == "done"
    with watch.step() as step, ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() == "done"
    assert step.parts == {}


class PlantedEvent:
    """An event of a device that passes it when it is told to."""

    passed = 0
    events: itertools.count[int]

    def record(self) -> None:
        self.number = next(PlantedEvent.events)

    def query(self) -> bool:
        return self.number < PlantedEvent.passed

    def synchronize(self) -> None:
        PlantedEvent.passed = max(PlantedEvent.passed, self.number + 1)

    def elapsed_time(self, end: PlantedEvent) -> float:
        assert end.query(), "an event was read before the device had passed it"
        return 10.0 * (end.number - self.number)


def test_events_are_read_when_the_device_has_passed_them_and_not_before() -> None:
    PlantedEvent.events, PlantedEvent.passed = itertools.count(), 0
    device = DeviceClock(PlantedEvent)
    watch = Stopwatch(device=device)
    with watch.step() as step, watch.part(parts.FORWARD), watch.part(parts.LOGITS):
        pass
    assert step.device == {} and device.waiting == 3
    # Events: the step's 0, the forward pass's 1, the logits' 2 and 3, and then 4 and 5.
    PlantedEvent.passed = 4
    device.collect()
    assert step.device == {parts.LOGITS: 0.010, parts.FORWARD: -0.010} and device.waiting == 2
    PlantedEvent.passed = 6
    device.collect()
    assert step.device == pytest.approx({parts.LOGITS: 0.010, parts.FORWARD: 0.020, WHOLE: 0.050})


def test_a_report_has_the_time_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted events are 10 ms apart, and the device passes them only when it is waited for."""
    PlantedEvent.events, PlantedEvent.passed = itertools.count(), 0
    engine = PlantedEngine(Clock().turn(monkeypatch), fill=0.005)
    report = measure(engine, [LOAD], clock="wall", rounds=LEAST, device=DeviceClock(PlantedEvent))
    decode = next(steps for steps in report["loads"][0]["steps"] if steps["kind"] == "decode")
    # Six events a step: around it, around the model and around the mask.
    assert decode["device ms"] == 50
    assert {part["part"]: part["device ms"] for part in decode["parts"]} == {"forward": 10, "mask fill": 10}
    jsonschema.validate(report, json.loads(REPORT_SCHEMA.read_text()))
    console = Console(record=True, width=160)
    tables.show(report, console)
    assert "device, ms" in console.export_text()
    # What is not timed in parts has no events either: the instrument is left out in half of the steps.
    watch = Stopwatch([parts.INSTRUMENT], device=DeviceClock(PlantedEvent))
    before = next(PlantedEvent.events)
    engine.run(LOAD, watch)
    assert next(PlantedEvent.events) == before + 1


def test_patches_are_undone() -> None:
    class Owner:
        @staticmethod
        def shared() -> str:
            return "shared"

        def own(self) -> str:
            return "own"

    instance = Owner()
    with (
        patched(instance, "own", lambda own: lambda: own() + "!"),
        patched(Owner, "shared", lambda shared: staticmethod(lambda: shared() + "!")),
    ):
        assert instance.own() == "own!"
        assert instance.shared() == Owner.shared() == "shared!"
    assert vars(instance) == {}
    assert instance.own() == "own" and instance.shared() == "shared"
    assert isinstance(vars(Owner)["shared"], staticmethod)


# The interval.


def test_the_interval_is_the_one_in_the_books() -> None:
    # Ten differences leave out 8 of the 55 means at each end: Hollander, Wolfe and Chicken, table A.4.
    differences = [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30, 0.11]
    means = sorted((one + other) / 2 for at, one in enumerate(differences) for other in differences[: at + 1])
    found = signed_rank(differences)
    assert (found.low, found.high) == (means[8], means[-9])
    assert found.estimate == median(means)


def test_too_few_differences_are_refused() -> None:
    with pytest.raises(ValueError, match="5 differences give no interval of 95%: 6 or more do"):
        signed_rank([1.0] * (LEAST - 1))
    assert signed_rank([1.0] * LEAST).half_width == 0


def test_the_interval_holds_as_often_as_it_says() -> None:
    noise = random.Random(0)
    held = 0
    for _ in range(1_000):
        found = signed_rank(
            [5 + noise.gauss(0, 1) + noise.gauss(0, 9) * (noise.random() < 0.1) for _ in range(8)]
        )
        held += found.low <= 5 <= found.high
    # 96.1 % are promised for eight; 4 standard deviations less.
    assert held >= 936


# Planted parts.


def test_a_planted_part_of_5_ms_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = PlantedEngine(Clock().turn(monkeypatch), fill=0.005)
    (found,) = exposures(engine, LOAD, [[parts.MASK_FILL]], clock="wall")
    assert found.verdict == "exposed"
    assert found.saved.low <= 5 <= found.saved.high
    assert found.saved.half_width < 0.2 * 5
    assert found.own == pytest.approx(5, rel=0.1)
    assert found.step == pytest.approx(1000 * FORWARD + 5, rel=0.2)


def test_a_planted_part_that_overlaps_is_not_exposed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = PlantedEngine(Clock().turn(monkeypatch), fill=0.005, overlapped=True)
    (found,) = exposures(engine, LOAD, [[parts.MASK_FILL]], clock="wall")
    assert found.verdict == "not exposed"
    assert found.own == pytest.approx(5, rel=0.1)
    assert found.saved.high < 1


def test_a_part_that_is_not_there_is_below_the_detection_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = PlantedEngine(Clock().turn(monkeypatch), fill=0)
    (found,) = exposures(engine, LOAD, [[parts.MASK_FILL]], clock="wall")
    assert found.verdict == "below the detection limit"
    assert found.saved.low <= 0 <= found.saved.high
    assert found.limit < 1


def test_a_part_that_saves_more_than_it_takes_is_named() -> None:
    """As a mask does that leaves a filter little to sort."""
    found = Exposure("mask apply", 2.0, Interval(-12.0, -13.0, -11.0), 50.0, 8)
    assert found.verdict == "saves"


def test_the_matrix_has_what_structure_and_the_draw_cost(tiny: TransformersEngine) -> None:
    loads = [Load(tokens=5, structure=structure) for structure in ("none", "ours", "guidance")]
    report = measure(tiny, loads, clock="cpu", rounds=LEAST)
    console = Console(record=True, width=160)
    console.print(tables.matrix_grid(report["loads"]))
    _, ours, guidance = (line for line in console.export_text().splitlines() if "greedy" in line)
    exposed = {each["part"]: each for each in report["loads"][1]["exposed"]}
    for part in ("processor: GrammarLogitsProcessor", "draw"):
        low, high = exposed[part]["interval ms"]
        assert f"{exposed[part]['exposed ms']:.2f} ({low:.2f} to {high:.2f})" in ours
    assert "none" in guidance and " to " not in guidance
    # Without rounds nothing is known but the parts' own time.
    alone = measure(tiny, loads[:2], clock="cpu", rounds=0)
    console.print(tables.matrix_grid(alone["loads"]))
    assert "at most" in console.export_text()


def test_verdicts_are_right_whatever_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock().turn(monkeypatch)
    seen: dict[str, list[str]] = {}
    for seed in range(40):
        for name, engine in {
            "there": PlantedEngine(clock, 0.005, seed=seed),
            "overlapped": PlantedEngine(clock, 0.005, overlapped=True, seed=seed),
            "absent": PlantedEngine(clock, 0, seed=seed),
        }.items():
            (found,) = exposures(engine, LOAD, [[parts.MASK_FILL]], clock="wall")
            seen.setdefault(name, []).append(found.verdict)
    assert set(seen["there"]) == {"exposed"}
    # Of intervals of 96 %, one in fifty lies above 0 where there is nothing: of 40, hardly ever five.
    assert seen["overlapped"].count("not exposed") >= 36
    assert seen["absent"].count("below the detection limit") >= 36


class Busy(LogitsProcessor):
    """Keeps the processor busy for so many seconds of it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass
        return scores


def test_a_processor_that_is_planted_into_a_model_is_found(tiny: TransformersEngine) -> None:
    engine = TransformersEngine(tiny.model, tiny.tokenizer, [Busy(0.005)])
    (found,) = exposures(engine, LOAD, [["processor: Busy"]], clock="cpu")
    assert found.verdict == "exposed"
    # It ends late where the machine is shared.
    assert 4.5 < found.saved.estimate < 7


def test_every_custom_processor_has_a_line_of_its_own(tiny: TransformersEngine) -> None:
    engine = TransformersEngine(tiny.model, tiny.tokenizer, [Busy(0.001), Busy(0.003)])
    watch = Stopwatch()
    engine.run(Load(tokens=8, structure="ours"), watch)
    (found,) = (each for each in breakdowns(watch.steps, "cpu") if each.kind == "decode")
    assert found.parts["processor: Busy 2"] > 2 * found.parts["processor: Busy"] > 1
    assert "processor: GrammarLogitsProcessor" in found.parts


# A transformers model.


def test_prompts_are_of_one_length_and_differ(tiny: TransformersEngine) -> None:
    found = prompts(tiny.tokenizer, Load(batch=40, context=300))
    assert {len(prompt) for prompt in found} == {300}
    assert len(set(map(tuple, found))) == 40


@pytest.mark.parametrize("structure", ["none", "ours"])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_all_parts_of_a_step_are_seen(tiny: TransformersEngine, sampling: Any, structure: str) -> None:
    load = Load(batch=2, context=8, tokens=5, sampling=sampling, structure=structure)
    watch = Stopwatch()
    written = tiny.run(load, watch)
    assert [step.kind for step in watch.steps] == ["prefill"] + ["decode"] * 4
    expected = {"inputs", "forward", "logits", "draw", "bookkeeping", "detokenise"}
    expected |= {parts.FILTERS} if sampling.temperature > 0 and sampling.name != "temperature" else set()
    expected |= {parts.PENALTIES} if sampling.repetition_penalty != 1 else set()
    expected |= {parts.LOGPROBS} if sampling.logprobs else set()
    expected |= {"processor: GrammarLogitsProcessor"} if structure == "ours" else set()
    for step in watch.steps[1:]:
        assert set(step.parts) == expected
        assert step.rows == 2
        assert all(times.cpu >= 0 for times in step.parts.values())
        assert sum(times.wall for times in step.parts.values()) <= step.total.wall
    assert [len(row) for row in written] == [5, 5]


def test_the_loop_writes_what_generate_writes(tiny: TransformersEngine) -> None:
    ids = torch.tensor(prompts(tiny.tokenizer, LOAD))
    expected = tiny.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=LOAD.tokens,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert tiny.run(LOAD, Stopwatch()) == expected[:, ids.shape[1] :].tolist()


def test_a_script_is_followed_whatever_is_left_out(tiny: TransformersEngine) -> None:
    load = Load(batch=2, context=8, tokens=5, sampling=SAMPLINGS["min-p, penalty"], structure="ours")
    script = tiny.run(load, Stopwatch())
    watch = Stopwatch([parts.DRAW, parts.FILTERS, parts.PENALTIES, "processor: GrammarLogitsProcessor"])
    assert tiny.run(load, watch, script) == script
    left = {name for step in watch.steps for name in step.parts}
    assert left == {"inputs", "forward", "logits", "bookkeeping", "detokenise"}


def test_transformers_has_no_backends_of_vllm(tiny: TransformersEngine) -> None:
    with pytest.raises(InputError, match="transformers has no xgrammar; there are none, ours"):
        tiny.run(Load(structure="xgrammar"), Stopwatch())


def test_the_report_is_what_its_schema_says(tiny: TransformersEngine) -> None:
    report = json.loads(
        json.dumps(measure(tiny, [Load(tokens=5, structure="ours")], clock="cpu", rounds=LEAST))
    )
    schema = json.loads(REPORT_SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(report, schema)
    (load,) = report["loads"]
    for steps in load["steps"]:
        shares = sum(part["share"] for part in steps["parts"]) + steps["unexplained"]["share"]
        assert shares == pytest.approx(1, abs=0.2)
    console = Console(record=True, width=140)
    tables.show(report, console)
    shown = console.export_text()
    for text in (
        "upper bounds",
        "exposed",
        "95 % interval",
        "timing the parts costs",
        "unexplained",
        "GrammarLog",
    ):
        assert text in shown


def test_what_an_engine_cannot_do_is_said_and_the_rest_is_measured(tiny: TransformersEngine) -> None:
    loads = [Load(tokens=4, structure="guidance"), Load(tokens=4)]
    report = measure(tiny, loads, clock="cpu", rounds=0)
    refused, measured = report["loads"]
    assert refused["error"].startswith("transformers has no guidance") and not refused["steps"]
    assert measured["steps"] and "error" not in measured
    console = Console(record=True, width=140)
    tables.show(report, console)
    assert "transformers has no guidance" in console.export_text()


def test_steps_that_cannot_be_compared_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where rows begin one after the other, and the first have ended when the last begin."""
    engine = PlantedEngine(Clock().turn(monkeypatch), fill=0.005)
    report = measure(engine, [Load(tokens=2)], clock="wall", rounds=LEAST)
    (load,) = report["loads"]
    assert load["error"].startswith("no two decode steps have all rows") and load["steps"]
    jsonschema.validate(report, json.loads(REPORT_SCHEMA.read_text()))
    console = Console(record=True, width=140)
    tables.show(report, console)
    shown = console.export_text()
    assert "no two decode steps" in shown and "unexplained" in shown


def test_an_interruption_leaves_what_has_been_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = PlantedEngine(Clock().turn(monkeypatch), fill=0.005)
    done = engine.run

    def run(load: Load, *rest: Any) -> Any:
        if load.batch == 3:
            raise KeyboardInterrupt
        return done(load, *rest)

    monkeypatch.setattr(engine, "run", run)
    loads = [Load(batch=batch, tokens=9) for batch in (1, 2, 3, 4)]
    report = measure(engine, loads, clock="wall", rounds=LEAST)
    assert report["interrupted"] and [load["batch"] for load in report["loads"]] == [1, 2]
    jsonschema.validate(report, json.loads(REPORT_SCHEMA.read_text()))
    console = Console(record=True, width=140)
    tables.show(report, console)
    assert "interrupted: the loads after these" in console.export_text()
    with pytest.raises(KeyboardInterrupt):
        measure(engine, loads[2:], clock="wall", rounds=LEAST)


def test_the_command_measures_all_combinations(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from sortition import cli

    folder = save_tiny_llama(tmp_path / "tiny")
    output = tmp_path / "report.json"
    options = ["--model", str(folder), "--tokens", "4", "--rounds", "0", "--output", str(output)]
    options += [
        "--batch",
        "1",
        "--batch",
        "2",
        "--sampling",
        "greedy",
        "--structure",
        "none",
        "--structure",
        "ours",
    ]
    result = CliRunner().invoke(cli.app, ["overhead", *options], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    assert "upper bounds" in result.output
    loads = json.loads(output.read_text())["loads"]
    assert [(load["batch"], load["structure"]) for load in loads] == list(
        itertools.product([1, 2], ["none", "ours"])
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "hfs"], "--engine is"),
        (["--sampling", "greed"], "--sampling is one of 'greedy'"),
        (["--structure", "their"], "--structure is one of 'none', 'ours'"),
        (["--clock", "sun"], "--clock is cpu or wall"),
        (["--dtype", "int4"], "--dtype is one of 'auto', 'float32'"),
        (["--predict", "--engine", "vllm"], "--predict is for --engine hf"),
        (["--predict", "--hardware", "abacus"], "'abacus' is none of the known devices: NVIDIA L4"),
        (["--predict", "--what-if-dtype", "int4"], "--what-if-dtype is one of 'float32'"),
        (["--predict", "--sampling", "greedy", "--sampling", "top-p"], "--predict is for one way of"),
        (["--output", "nowhere/at/all.json"], "there is no folder nowhere/at"),
        (["--output", "/proc/report.json"], "cannot write /proc/report.json: "),
        (["--hardware", "H100"], "--hardware is for --predict"),
        (["--price", "2"], "--price is for --predict"),
        (["--predict", "--structure", "ours"], "--structure is not for --predict"),
        (["--predict", "--late", "2"], "--late is not for --predict"),
        (["--late", "2"], "--late is for --engine vllm"),
        (["--random-weights", "--engine", "vllm"], "--random-weights is for --engine hf"),
        (["--extra", "{}"], "--extra is for --base-url"),
        (["--base-url", "http://localhost:1", "--dtype", "float32"], "--dtype is for a model that runs here"),
        (["--base-url", "http://localhost:1", "--price", "2"], "--price is for --predict"),
        (["--base-url", "http://localhost:1", *["--context", "8"] * 2], "all prompts have one --context"),
        (["--rounds", "3"], "--rounds is 0, or 6 or more"),
        (["--model", "nowhere"], "there is no folder nowhere"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(
    tiny: TransformersEngine, options: list[str], message: str
) -> None:
    from typer.testing import CliRunner

    from sortition import cli

    model = [] if {"--model", "--base-url"} & {*options} else ["--model", tiny.model.config.name_or_path]
    result = CliRunner().invoke(cli.app, ["overhead", *model, *options])
    assert result.exit_code == 2
    assert message in result.output
