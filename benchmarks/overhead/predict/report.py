"""The report of `sortition overhead --predict`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table as Grid

from sortition.benchmarks.overhead.hf import TransformersEngine
from sortition.benchmarks.overhead.load import Load
from sortition.benchmarks.overhead.predict import specification
from sortition.benchmarks.overhead.predict.check import HELD_OUT, PROMPTS, check, check_prompts, claims
from sortition.benchmarks.overhead.predict.hardware import Hardware
from sortition.benchmarks.overhead.predict.prediction import Point, Prediction, rounded
from sortition.benchmarks.overhead.predict.predictor import Predictor
from sortition.benchmarks.timing import machine

FORMAT: Final = "sortition-overhead-prediction/2"
REPORT_SCHEMA: Final = Path(__file__).with_name("report_schema.json")
"""What reports of this format are valid under, as a JSON Schema."""

TABLED: Final = "op replay"
"""The tier that the table of this machine is of."""


def predict(
    engine: TransformersEngine,
    points: Sequence[Point],
    load: Load,
    *,
    held_out: Sequence[Point] = HELD_OUT,
    prompts: Sequence[int] = PROMPTS,
    progress: Callable[[str], None] = lambda _: None,
    dtypes: Sequence[str] = (),
    hardware: Hardware | None = None,
    price: float | None = None,
) -> dict[str, Any]:
    """Everything, as plain JSON values.

    Args:
        engine: with the model, against which predictions are held at the points held out.
        points: what the tables are of; their contexts are the prompts whose first token is predicted.
        held_out, prompts: where predictions are held against the model: decode steps, and prompts of so many
            tokens.
        load: how tokens are drawn; its schema is that of structured output.
        dtypes: that the table of this machine has besides the model's own.
        hardware: to predict for by its specification.
        price: of an hour of that hardware, or of this machine without any.
    """
    model, dtype = engine.model, str(engine.model.dtype).removeprefix("torch.")
    progress("calibrating")
    predictor = Predictor(model.config, engine.tokenizer, model.dtype, model.device)
    shape = predictor.shape
    progress(f"{len(held_out)} decode steps and {len(prompts)} prompts of the model, to check")
    checked = check(engine, predictor, held_out, load)
    read = check_prompts(engine, predictor, prompts, load)
    progress("what if")
    others = {
        other: Predictor(model.config, engine.tokenizer, getattr(torch, other), model.device)
        for other in dtypes
        if other != dtype
    }
    here = [
        (each.decode(point, replace(load, structure=structure))[TABLED], number, structure)
        for number, each in {dtype: predictor, **others}.items()
        for point, structure in product(points, ("none", "ours"))
    ]
    there = [
        (specification.decode(shape, number, hardware, point), number, "none")
        for number in (hardware.operations if hardware else ())
        for point in points
        if hardware is not None and specification.fits(shape, number, hardware, point)
    ]
    first: list[Prediction] = []
    for tokens in dict.fromkeys(point.context for point in points):
        first += predictor.prefill(tokens, load).values()
        if hardware is not None and dtype in hardware.operations:
            first.append(specification.prefill(shape, dtype, hardware, tokens))
    return {
        "format": FORMAT,
        "machine": machine(),
        "engine": engine.describe(),
        "weights a token": shape.multiplied,
        "KV numbers a token": shape.kv_numbers(1),
        "calibration": asdict(predictor.calibration),
        "held out": [each.as_json() for each in checked],
        "held out prompts": [each.as_json() for each in read],
        "claims": {"decode": claims(checked), "first token": claims(read)},
        "first token": [each.as_json() for each in first],
        "this machine": [_row(*each, None if hardware else price) for each in here],
        "specification": None
        if hardware is None
        else {
            **asdict(hardware),
            "up to times slower": specification.SLOWER,
            "rows": [_row(*each, price) for each in there],
        },
    }


def _row(found: Prediction, dtype: str, structure: str, price: float | None) -> dict[str, Any]:
    cost = None if price is None else rounded(found.cost_of_a_million(price))
    return {"dtype": dtype, "structure": structure, **found.as_json(), "cost of a million tokens": cost}


def show(report: dict[str, Any], console: Console) -> None:
    """The report for people."""
    engine = report["engine"]
    console.print(f"{engine['model']}, {engine['dtype']} on {engine['device']}, {engine['threads']} threads")
    console.print(", ".join(f"{name} {value}" for name, value in report["machine"].items()))
    console.print(f"torch {engine['torch']}, transformers {engine['transformers']}")
    console.print(_held_out("the model's decode steps, which no prediction has seen", report["held out"]))
    console.print(
        _held_out("the model's steps that read one prompt, up to the first token", report["held out prompts"])
    )
    for what, tiers in report["claims"].items():
        for tier, claim in tiers.items():
            verdict = "claims 20 %" if claim["within 20 %"] else "claims nothing"
            console.print(
                f"{what}, {tier}: {verdict}; greatest error {claim['greatest error']:+.0%} "
                f"at {claim['points']} points"
            )
    for each in report["first token"]:
        console.print(
            f"first token after {each['context']} tokens, {each['tier']}: {each['ms']:,.2f} ms, "
            f"{each['binds']} binds"
        )
    console.print(_what_if("what if, on this machine, by op replay", report["this machine"]))
    if report["specification"] is not None:
        there = report["specification"]
        console.print(_what_if(f"what if, on {there['name']}, by specification", there["rows"]))
        console.print(
            f"a step takes at least so long; models of 7 and 8 billion parameters have taken up to "
            f"{there['up to times slower']} times as long, and smaller ones more: launching is left out"
        )
        console.print(f"figures: {there['source']}; {there['url']}", highlight=False)


def _held_out(title: str, checked: list[dict[str, Any]]) -> Grid:
    grid = Grid(title=title, title_justify="left")
    for name in ("batch", "context", "measured, ms", "calibrated", "op replay", "binds"):
        grid.add_column(name, justify="right")
    for each in checked:
        by_tier = {found["tier"]: found for found in each["predicted"]}
        grid.add_row(
            *(str(each["batch"]), str(each["context"]), f"{each['measured ms']:.1f}"),
            *(f"{each['predicted ms'][tier]:.1f} ({each['error'][tier]:+.0%})" for tier in by_tier),
            by_tier[TABLED]["binds"],
        )
    return grid


def _what_if(title: str, rows: list[dict[str, Any]]) -> Grid:
    grid = Grid(title=title, title_justify="left")
    for name in ("dtype", "batch", "context", "structure", "ms", "tokens/s", "a million", "binds"):
        grid.add_column(name, justify="left" if name in ("dtype", "structure", "binds") else "right")
    for row in rows:
        cost = row["cost of a million tokens"]
        grid.add_row(
            *(row["dtype"], str(row["batch"]), str(row["context"]), row["structure"]),
            *(f"{row['ms']:.2f}", f"{row['tokens per second']:,.0f}", "" if cost is None else f"{cost:.3f}"),
            row["binds"],
        )
    return grid
