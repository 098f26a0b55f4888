"""A script of its own that shows the smallest difference again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, Final

from sortition.benchmarks.printable import printable
from sortition.benchmarks.probe.findings import Comparison, Findings, Reference, Tested

SHOWN: Final = {
    "transformers": {"batch_size", "position", "padding", "chunk"},
    "vllm": {"batch_size", "position"},
    "server": {"batch_size"},
}
"""Axes that the scripts vary, by what describes the target; other conditions get no script."""

TEMPLATES: Final = Path(__file__).parent


@dataclass(frozen=True)
class _Pair:
    """A prompt under a condition, and alone."""

    findings: Findings
    tested: Tested
    compared: Comparison

    @property
    def reference(self) -> Reference:
        return self.findings.references[self.compared.prompt]

    @property
    def rows(self) -> int:
        return int(self.tested.varies.get("batch_size", 1))

    @property
    def step(self) -> int:
        """Where the text leaves the reference's, or else where bits do."""
        compared = self.compared
        return (compared.first_difference if compared.first_flip is None else compared.first_flip) or 0

    @property
    def size(self) -> tuple[float, ...]:
        """Texts that change come first, then what has few settings, rows and steps."""
        flips = self.compared.first_flip is not None
        return (not flips, len(self.tested.varies), self.rows, self.step, len(self.reference.text))

    @property
    def sentence(self) -> str:
        what = "other bits" if self.compared.first_flip is None else "another token"
        return f"{self.findings.target}, {self.tested.name}: {what} than alone at token {self.step + 1}."

    @property
    def settings(self) -> str:
        """Arguments of `scores` in the scripts."""
        varies = self.tested.varies
        row = self.rows - 1 if varies.get("position") == "last" else 0
        others = (f", {axis}={int(varies[axis])}" for axis in ("padding", "chunk") if axis in varies)
        return f"{self.rows}, row={row}{''.join(others)}"


def script(findings: Findings) -> str | None:
    """A Python program for the smallest pair that differs, None where no pair is so simple."""
    kind = next((kind for kind in SHOWN if kind in findings.environment), None)
    if kind is None:
        return None
    pairs = [
        _Pair(findings, tested, compared)
        for tested in findings.tested
        if tested.varies.keys() <= SHOWN[kind] and not tested.given
        for compared in tested.comparisons
        if compared.first_difference is not None
    ]
    if not pairs:
        return None
    pair = min(pairs, key=lambda pair: pair.size)
    template = Template((TEMPLATES / f"repro_{kind}.txt").read_text(encoding="utf-8"))
    values = _request(pair) if kind == "server" else _model(pair)
    return template.substitute(
        {name: repr(value) for name, value in values.items()},
        # In a docstring, which nothing may end.
        sentence=printable(pair.sentence).replace("\\", "/").replace('"', "'"),
        settings=pair.settings,
    )


def _model(pair: _Pair) -> dict[str, Any]:
    """What a script needs to know that loads a model itself."""
    environment = pair.findings.environment
    return {
        "model": environment.get("folder") or environment.get("model"),
        "prompt": pair.reference.text,
        "tokens": list(pair.reference.tokens[: pair.step]),
        "steps": pair.step + 1,
        "name": pair.tested.name,
        **{name: environment.get(name) for name in ("dtype", "attention", "threads", "options")},
    }


def _request(pair: _Pair) -> dict[str, Any]:
    """What a script needs to know that asks a server."""
    environment, text = pair.findings.environment, pair.reference.text
    body = {"model": environment["model"], "temperature": 0, "max_tokens": pair.step + 1}
    if environment["interface"] == "chat":
        path = "/chat/completions"
        body |= {"messages": [{"role": "user", "content": text}], "logprobs": True, "top_logprobs": 5}
    else:
        path = "/completions"
        body |= {"prompt": text, "logprobs": 5}
    if "ignore_eos" in environment["fields"]:
        body["ignore_eos"] = True
    return {"url": environment["server"], "path": path, "body": body, "rows": pair.rows}
