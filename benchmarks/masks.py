"""Coverage, verdicts, compile time and time per token on real JSON Schemas, side by side with the peers.

Every schema is compiled by every engine in turn, in one process and one thread, and every instance is walked
token by token (a mask, then a commit). A schema passes if it compiles and every verdict is right.
"""

from __future__ import annotations

import gzip
import json
import os
import platform
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table as Grid

from sortition.benchmarks.peers import Engine, installed_engines
from sortition.benchmarks.plots import save
from sortition.grammars.vocabulary import Vocabulary


@dataclass
class Result:
    """What one engine did; times in microseconds."""

    compiled: int = 0
    passed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrongly_accepted: list[str] = field(default_factory=list)
    wrongly_refused: list[str] = field(default_factory=list)
    first_mask: list[float] = field(default_factory=list)
    masks: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)


def read_cases(path: Path, sample: int | None, seed: int = 0) -> list[dict[str, Any]]:
    """Schemas with instances from a gzipped JSON-lines file, or a random sample of them."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    return cases if sample is None else random.Random(seed).sample(cases, min(sample, len(cases)))


def run(
    cases: Iterable[dict[str, Any]], engines: list[Engine], encode: Callable[[str], list[int]]
) -> dict[str, Result]:
    """Measure every engine on every case, interleaved."""
    results = {engine.name: Result() for engine in engines}
    for case in cases:
        instances = [
            (encode(json.dumps(test["data"], ensure_ascii=False)), test["valid"]) for test in case["tests"]
        ]
        for engine in engines:
            _measure(engine, results[engine.name], case, instances)
    return results


def _measure(
    engine: Engine, result: Result, case: dict[str, Any], instances: list[tuple[list[int], bool]]
) -> None:
    start = time.perf_counter_ns()
    try:
        compiled = engine.compile(case["schema"])
        engine.session(compiled).mask()
    except Exception as error:  # each engine has errors of its own
        result.refused[str(getattr(error, "keyword", None) or type(error).__name__)] += 1
        return
    result.first_mask.append((time.perf_counter_ns() - start) / 1000)
    result.compiled += 1
    right = True
    for tokens, valid in instances:
        session = engine.session(compiled)
        alive = True
        for token in tokens:
            begin = time.perf_counter_ns()
            session.mask()
            between = time.perf_counter_ns()
            alive = session.advance(token)
            end = time.perf_counter_ns()
            result.masks.append((between - begin) / 1000)
            result.steps.append((end - begin) / 1000)
            if not alive:
                break
        accepted = alive and session.can_end()
        if accepted and not valid:
            result.wrongly_accepted.append(case["name"])
        elif valid and not accepted:
            result.wrongly_refused.append(case["name"])
        right = right and accepted == valid
    result.passed += right


def summary(results: dict[str, Result], cases: int) -> dict[str, Any]:
    """Percentiles and counts as plain JSON values."""

    def percentiles(values: list[float], points: tuple[float, ...]) -> dict[str, float]:
        data = np.array(values or [0.0])
        figures = {f"p{point:g}": round(float(np.percentile(data, point)), 2) for point in points}
        return {**figures, "mean": round(float(data.mean()), 2), "max": round(float(data.max()), 2)}

    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "schemas": cases,
        "engines": {
            name: {
                "compiled": result.compiled,
                "passed": result.passed,
                "wrongly accepted instances": len(result.wrongly_accepted),
                "wrongly refused instances": len(result.wrongly_refused),
                "first mask us": percentiles(result.first_mask, (50, 90, 99)),
                "mask us": percentiles(result.masks, (50, 90, 99, 99.9)),
                "mask + advance us": percentiles(result.steps, (50, 90, 99, 99.9)),
                "wrongly accepted": sorted(set(result.wrongly_accepted)),
                "wrongly refused": sorted(set(result.wrongly_refused)),
                "refused": dict(result.refused.most_common()),
            }
            for name, result in results.items()
        },
    }


def show(report: dict[str, Any], console: Console) -> None:
    """The report as one table."""
    grid = Grid(title=f"{report['schemas']} schemas, one thread ({report['machine']})")
    grid.add_column("")
    engines = report["engines"]
    for name in engines:
        grid.add_column(name, justify="right")
    for row in ("compiled", "passed", "wrongly accepted instances", "wrongly refused instances"):
        grid.add_row(row, *(str(engine[row]) for engine in engines.values()))
    for row in ("first mask us", "mask us", "mask + advance us"):
        for point in next(iter(engines.values()))[row]:
            grid.add_row(f"{row} {point}", *(f"{engine[row][point]:,.1f}" for engine in engines.values()))
    console.print(grid)


def main(
    cases: Path,
    tokenizer: Path,
    *,
    sample: int | None = 200,
    output: Path | None = None,
    plots: Path | None = None,
) -> None:
    """Run the benchmark with a tiktoken-format tokenizer file, print the table, and draw it into a folder."""
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe

    ranks = load_tiktoken_bpe(str(tokenizer))
    end = len(ranks)
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    encoding = tiktoken.Encoding(
        "benchmark", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|end_of_text|>": end}
    )
    tokens = [b""] * (end + 1)
    for token, number in ranks.items():
        tokens[number] = token
    vocabulary = Vocabulary.of(tokens, end_tokens=[end])
    engines = installed_engines(vocabulary, encoding)
    chosen = read_cases(cases, sample)
    results = run(track(chosen, "schemas"), engines, encoding.encode_ordinary)
    report = summary(results, len(chosen))
    show(report, Console())
    if output is not None:
        output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if plots is not None:
        save(report, plots)
