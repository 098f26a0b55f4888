"""What drafts save: `so.generate` with each drafter, beside plain `generate` and its own drafts.

The model is the embedded one. Its small drafter is the same model cut to its first layers, which nobody has
trained to speak; and the same model whole, which agrees nearly always and costs as much as it saves.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any, Final

import numpy as np
import torch
from rich.console import Console
from rich.table import Table as Grid

from sortition.benchmarks.timing import machine
from sortition.grammars.json_schema import json_schema
from sortition.grammars.table import Table
from sortition.grammars.vocabulary import Vocabulary
from sortition.integrations.hf import hf
from sortition.integrations.hf_generate import generate
from sortition.integrations.smollm2 import embedded_model
from sortition.sampling.rules import Constrain, Rule, Temperature
from sortition.sampling.sampler import Sampler

SCHEMA: Final = {
    "type": "object",
    "properties": {
        "company": {"type": "string", "minLength": 1, "maxLength": 40},
        "invoice_number": {"type": "string", "pattern": "^INV-[0-9]{4}$"},
        "invoice_date": {"type": "string", "format": "date"},
        "amount": {"type": "integer", "minimum": 0, "maximum": 100000},
        "currency": {"enum": ["EUR", "USD", "GBP"]},
    },
    "required": ["company", "invoice_number", "invoice_date", "amount", "currency"],
    "additionalProperties": False,
}

INVOICES: Final = (
    "Bluefin Print Works. Invoice number INV-0087, dated 2026-01-19. To: the Lantern Street Theatre. We "
    "printed four hundred programmes for the winter season. The total comes to 615 GBP.",
    "Invoice INV-3310. Cedar Valley Orchards sends its greetings to the Grand Pine Hotel. On 2026-09-28 we "
    "delivered ninety crates of apples. For the apples we ask 1275 USD.",
)

QUESTIONS: Final = (
    "Write a short story about a fisherman who finds a message in a bottle.",
    "Explain to a child why the sky is blue.",
)

LAYERS: Final = 6
"""Of the 30 that the cut drafter keeps, beside embeddings, which are a fifth of all weights."""


@dataclass(frozen=True, eq=False)
class Task:
    """Prompts, and what the texts have to follow.

    Attributes:
        name: as the table shows it.
        prompts: as the model takes them.
        table: the grammar, None for free text.
        temperature: of the draws.
        tokens: that a text has at most.
    """

    name: str
    prompts: Sequence[str]
    table: Table | None
    temperature: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Run:
    """One text, or several of one batch.

    Attributes:
        ids: generated ids of the rows.
        seconds: of processor time.
        forwards: how often the model ran.
        drafted, accepted: drafts, 0 where nobody counts them.
    """

    ids: list[list[int]]
    seconds: float
    forwards: int
    drafted: int = 0
    accepted: int = 0


class Contenders:
    """The embedded model, and each way of decoding with it.

    Args:
        layers: of the cut drafter.
    """

    def __init__(self, layers: int = LAYERS) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = embedded_model()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.vocabulary = Vocabulary.of(self.tokenizer)
        self.model = AutoModelForCausalLM.from_pretrained(folder).eval()
        self.cut = self._cut(layers)
        self._forwards = 0
        forward = self.model.forward

        def counting(model: Any, *args: Any, **kwargs: Any) -> Any:
            self._forwards += 1
            return forward(*args, **kwargs)

        self._plain = copy.copy(self.model)
        self.model.forward = MethodType(counting, self.model)

    def of(self, task: Task) -> dict[str, Callable[[str], Run]]:
        """By name, what writes the text of a prompt; the first is what others are held against."""
        ours = partial(self._ours, task)
        ways: dict[str, Callable[[str], Run]] = {
            "generate": partial(self._theirs, task),
            "generate, prompt lookup": partial(self._theirs, task, prompt_lookup_num_tokens=4),
            "generate, cut model": partial(self._theirs, task, assistant_model=self.cut),
            "so.generate": partial(ours, None),
            "so.generate, prompt lookup": partial(ours, "prompt_lookup"),
            "so.generate, cut model": partial(ours, self.cut),
            "so.generate, same model": partial(ours, self._plain),
        }
        if task.table is not None:
            ways["so.generate, grammar"] = partial(ours, "grammar")
            ways["so.generate, grammar, then lookup"] = partial(ours, ["grammar", "prompt_lookup"])
        return ways

    def _cut(self, layers: int) -> Any:
        """The model with its first layers alone; weights are shared."""
        cut = copy.copy(self.model)
        cut._modules = dict(self.model._modules)
        cut.config = copy.deepcopy(self.model.config)
        cut.config.num_hidden_layers = layers
        cut.generation_config = copy.deepcopy(self.model.generation_config)
        cut.model = copy.copy(self.model.model)
        cut.model._modules = dict(self.model.model._modules)
        cut.model.config = cut.config
        cut.model.layers = self.model.model.layers[:layers]
        return cut

    def _ours(self, task: Task, drafter: Any, prompt: str) -> Run:
        rules: list[Rule | Constrain] = [Temperature(task.temperature)]
        rules += [] if task.table is None else [Constrain(task.table)]
        return self._run(
            task,
            prompt,
            custom_generate=generate,
            sampler=Sampler(self.vocabulary, *rules),
            seed=7,
            drafter=drafter,
            target_tokenizer=self.tokenizer,
        )

    def _theirs(self, task: Task, prompt: str, **settings: Any) -> Run:
        processors = [] if task.table is None else [hf(task.table)]
        torch.manual_seed(7)
        settings |= {"temperature": task.temperature, "top_k": 0} if task.temperature else {}
        return self._run(
            task, prompt, logits_processor=processors, do_sample=task.temperature > 0, **settings
        )

    def _run(self, task: Task, prompt: str, **settings: Any) -> Run:
        inputs = self.tokenizer([prompt], return_tensors="pt")
        self._forwards = 0
        begun = time.process_time()
        found = self.model.generate(
            **inputs, max_new_tokens=task.tokens, return_dict_in_generate=True, **settings
        )
        seconds = time.process_time() - begun
        ids = found.sequences[:, inputs["input_ids"].shape[1] :].tolist()
        drafted, accepted = getattr(found, "drafted", 0), getattr(found, "accepted", 0)
        return Run(ids, seconds, self._forwards, drafted or 0, accepted or 0)


def tasks(contenders: Contenders, prompts: int = 2) -> list[Task]:
    """Fields out of invoices, greedy, in compact JSON; and free text at a temperature of 0.7.

    Args:
        contenders: whose tokens these are.
        prompts: of each task, 2 at most.
    """
    table = json_schema(SCHEMA, whitespace="compact").compile(contenders.vocabulary)
    said = (
        f"Extract data from the text as JSON that follows this JSON Schema:\n{json.dumps(SCHEMA)}\n\nText:\n"
    )
    return [
        Task("JSON, greedy", [_turn(said + text) for text in INVOICES[:prompts]], table, 0.0, 120),
        Task("free text, temperature 0.7", [_turn(text) for text in QUESTIONS[:prompts]], None, 0.7, 80),
    ]


def _turn(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def run(contenders: Contenders, chosen: Sequence[Task], rounds: int = 3) -> dict[str, Any]:
    """Every contender on every task, as plain JSON values."""
    torch.set_num_threads(1)
    points = [point for task in chosen for point in _points(task, contenders.of(task), rounds)]
    return {"machine": machine(), "threads": 1, "rounds": rounds, "points": points}


def _points(task: Task, ways: Mapping[str, Callable[[str], Run]], rounds: int) -> list[dict[str, Any]]:
    """One task: contenders in turns, so that what else the machine does touches all of them."""
    runs: dict[str, list[list[Run]]] = {name: [] for name in ways}
    names = list(ways)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            runs[name].append([ways[name](prompt) for prompt in task.prompts])
    texts = {name: [run.ids for run in each[0]] for name, each in runs.items()}
    return [
        {
            "task": task.name,
            "contender": name,
            "same text as without drafts": texts[name] == texts[name.partition(",")[0]],
            **_figures(each),
        }
        for name, each in runs.items()
    ]


def _figures(rounds: Sequence[Sequence[Run]]) -> dict[str, Any]:
    """What one contender did; the median of rounds for what takes time."""
    first = rounds[0]
    tokens = sum(len(row) for run in first for row in run.ids)
    forwards, drafted = sum(run.forwards for run in first), sum(run.drafted for run in first)
    seconds = float(np.median([sum(run.seconds for run in each) for each in rounds]))
    return {
        "tokens": tokens,
        "tokens per second": round(tokens / seconds, 2),
        "forwards": forwards,
        "tokens per forward": round(tokens / forwards, 3),
        "drafted": drafted,
        "acceptance": round(sum(run.accepted for run in first) / drafted, 3) if drafted else None,
    }


def show(report: Mapping[str, Any], console: Console) -> None:
    """The report as a table; speeds as multiples of plain `generate`'s."""
    grid = Grid(title=f"SmolLM2-135M, one row, one thread ({report['machine']['processor']})")
    for title in ("task", "contender", "speed", "tokens/forward", "forwards", "acceptance", "same text"):
        grid.add_column(title, justify="left" if title in ("task", "contender") else "right")
    plain: dict[str, float] = {}
    for point in report["points"]:
        plain.setdefault(point["task"], point["tokens per second"])
        acceptance = point["acceptance"]
        grid.add_row(
            point["task"],
            point["contender"],
            f"{point['tokens per second'] / plain[point['task']]:.2f}",
            f"{point['tokens per forward']:.2f}",
            str(point["forwards"]),
            "" if acceptance is None else f"{acceptance:.2f}",
            "yes" if point["same text as without drafts"] else "no",
        )
    console.print(grid)


def main(*, rounds: int = 3, prompts: int = 2, output: Path | None = None) -> None:
    """Run the benchmark, print the table and save the report."""
    contenders = Contenders()
    report = run(contenders, tasks(contenders, prompts), rounds)
    show(report, Console())
    if output is not None:
        output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
