"""Run the demo: every kind of document, with and without its grammar, by the same model and prompt."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

# Set before the library is imported: the demo's own bars and tables are enough.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
# One process: a second one would import everything again.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

from rich.console import Console
from rich.table import Table as Grid

import sortition as so
from sortition.integrations.records import Record
from sortition.integrations.validation import first_json, validator

HERE = Path(__file__).parent
KINDS = ("invoices", "meetings", "jobs", "weather")

MAX_TOKENS = 128
"""The longest value under a schema takes 68; free, the model gets as much again."""


@dataclass(frozen=True, slots=True)
class Score:
    """What one run over one kind of documents reached."""

    documents: int
    valid: int
    fields: int
    right: int
    tokens_per_second: float


def main() -> int:
    """Print the tables; 1 if any record that was made under a grammar is not valid."""
    begun = perf_counter()
    grid = Grid(title="SmolLM2-135M-Instruct, greedy: held to the schema, and free")
    grid.add_column("documents")
    for title in ("valid", "free", "fields right", "free", "tokens/s", "free"):
        grid.add_column(title, justify="right")
    totals: dict[bool, list[Score]] = {True: [], False: []}
    for kind in KINDS:
        for constrained, scores in totals.items():
            scores.append(run(kind, constrained=constrained))
        held, free = (scores[-1] for scores in totals.values())
        grid.add_row(f"{held.documents} {kind}", *_cells(held, free))
    sums = [_sum(scores) for scores in totals.values()]
    grid.add_section()
    grid.add_row(f"{sums[0].documents} in all", *_cells(*sums))
    Console().print(grid)
    shares = [f"{100 * score.right / score.fields:.0f} %" for score in sums]
    print(f"fields right: {shares[0]} held to the schema, {shares[1]} free, with the same prompt")
    valid = sums[0].valid == sums[0].documents
    if importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed, so that it reads nothing: pip install 'sortition[vllm]'")
    else:
        # In a process of its own: vLLM does not start where numba has been loaded before it.
        command = [sys.executable, "-c", f"from demo.__main__ import with_vllm; with_vllm({KINDS[-1]!r})"]
        valid = subprocess.run(command, cwd=HERE.parent, check=False).returncode == 0 and valid
    print(f"{perf_counter() - begun:.0f} s; the records are in {HERE / 'out'}")
    return 0 if valid else 1


def with_vllm(kind: str) -> None:
    """Read one kind of documents by vLLM; the process exits with 1 if any record is not valid."""
    begun = perf_counter()
    score = run(kind, constrained=True, engine="vllm")
    print(
        f"vLLM, held to the schema: {score.valid} of {score.documents} {kind} valid, "
        f"{score.right} of {score.fields} fields right, {score.tokens_per_second:.0f} tokens/s, "
        f"{perf_counter() - begun:.0f} s in all"
    )
    sys.exit(score.valid != score.documents)


def run(kind: str, *, constrained: bool, engine: str = "hf") -> Score:
    """Extract all documents of one kind and hold the values against the gold ones."""
    folder = HERE / kind
    (HERE / "out").mkdir(exist_ok=True)
    lines = folder / "documents.jsonl"
    by = "" if engine == "hf" else f" by {engine}"
    print(f"{kind}{by}, {'held to the schema' if constrained else 'free'}", file=sys.stderr)
    name = [kind, *([] if engine == "hf" else [engine]), *([] if constrained else ["free"])]
    extraction = so.extract(
        lines if lines.exists() else folder / "documents",
        folder / "schema.json",
        prompt=folder / "prompt.txt",
        output=HERE / "out" / f"{'-'.join(name)}.jsonl",
        overwrite=True,
        constrained=constrained,
        engine=engine,
        max_tokens=MAX_TOKENS,
    )
    gold = [json.loads(line) for line in (folder / "gold.jsonl").read_text().splitlines()]
    check = validator(json.loads((folder / "schema.json").read_text()))
    if check is None:
        sys.exit("the demo judges its records by jsonschema: pip install jsonschema")
    right = valid = 0
    for record, answer in zip(extraction.records, gold, strict=True):
        if record.id != answer["id"]:
            raise ValueError(f"{kind}: the gold value of {answer['id']} stands where {record.id} is")
        # Judged again here, from what is in the record.
        valid += record.status == "ok" and check(record.value) is None
        value = _best_guess(record)
        right += sum(_same(value.get(name), wanted) for name, wanted in answer["value"].items())
    return Score(
        documents=len(gold),
        valid=valid,
        fields=sum(len(answer["value"]) for answer in gold),
        right=right,
        tokens_per_second=extraction.tokens_per_second,
    )


def _best_guess(record: Record) -> dict[str, Any]:
    """The value, or the first JSON in an invalid record's text: right fields count even there."""
    value = record.value
    if record.text is not None:
        try:
            value = first_json(record.text)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def _same(value: Any, wanted: Any) -> bool:
    """Whether a field is right; "Night Nurse" is as good as "night nurse"."""
    if isinstance(value, str) and isinstance(wanted, str):
        return value.casefold() == wanted.casefold()
    return type(value) is type(wanted) and bool(value == wanted)


def _sum(scores: list[Score]) -> Score:
    documents = sum(score.documents for score in scores)
    return Score(
        documents=documents,
        valid=sum(score.valid for score in scores),
        fields=sum(score.fields for score in scores),
        right=sum(score.right for score in scores),
        tokens_per_second=sum(score.tokens_per_second * score.documents for score in scores) / documents,
    )


def _cells(*scores: Score) -> list[str]:
    return [
        *(f"{100 * score.valid / score.documents:.0f} %" for score in scores),
        *(f"{score.right}/{score.fields}" for score in scores),
        *(f"{score.tokens_per_second:.0f}" for score in scores),
    ]


if __name__ == "__main__":
    sys.exit(main())
