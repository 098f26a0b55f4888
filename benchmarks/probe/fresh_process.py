"""The same run in a process of its own: ``python -m sortition.benchmarks.probe.fresh_process JOB RESULT``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sortition.benchmarks.probe.target import Condition, Evidence, NotPossible, Outcome, Prompt, Run

if TYPE_CHECKING:
    from sortition.benchmarks.probe.transformers_target import TransformersTarget

LINES = 5
"""Of what a process said last, for its error."""


def run_elsewhere(
    target: TransformersTarget,
    prompts: Sequence[Prompt],
    condition: Condition,
    steps: int,
    forced: Sequence[Sequence[int]] | None,
) -> Outcome:
    """What `TransformersTarget.run` says there.

    Raises:
        NotPossible: the target was not loaded from a folder.
        RuntimeError: the process failed.
    """
    if target.folder is None:
        raise NotPossible("a model that was not loaded from a folder cannot be loaded again")
    settings = {axis: value for axis, value in condition.settings.items() if axis != "process"}
    begun = os.times()
    with tempfile.TemporaryDirectory() as folder:
        job, result = Path(folder) / "job", Path(folder) / "result"
        options = {
            "folder": str(target.folder),
            "dtype": str(target.model.dtype).removeprefix("torch."),
            "attention": str(target.model.config._attn_implementation),
            "threads": torch.get_num_threads(),
            "prompts": [(prompt.text, prompt.tokens) for prompt in prompts],
            "settings": tuple(settings.items()),
            "steps": steps,
            "forced": forced,
        }
        torch.save(options, job)
        command = [sys.executable, "-m", __name__, str(job), str(result)]
        # It imports from where this process does, wherever that was told to.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            said = "\n".join(done.stderr.strip().splitlines()[-LINES:])
            raise RuntimeError(f"a fresh process failed: {said}")
        answer = torch.load(result, weights_only=True)
    runs = tuple(Run(tuple(choices), tuple(tokens), scores) for choices, tokens, scores in answer["runs"])
    fresh = answer["process"] != os.getpid()
    seen = ", ".join(filter(None, [f"process {answer['process']}", answer["seen"] if settings else ""]))
    ended = os.times()
    seconds = ended.children_user - begun.children_user + ended.children_system - begun.children_system
    return Outcome(runs, Evidence(fresh and answer["took_effect"], seen), seconds)


def _work(options: dict[str, Any]) -> dict[str, Any]:
    from sortition.benchmarks.probe.transformers_target import TransformersTarget

    torch.set_num_threads(options["threads"])
    target = TransformersTarget.load(Path(options["folder"]), options["dtype"], options["attention"])
    prompts = [Prompt(text, tuple(tokens)) for text, tokens in options["prompts"]]
    condition = Condition(tuple(options["settings"]))
    outcome = target.run(prompts, condition, options["steps"], options["forced"])
    return {
        "process": os.getpid(),
        "took_effect": outcome.evidence.took_effect,
        "seen": outcome.evidence.seen,
        "runs": [(list(run.choices), list(run.tokens), run.scores) for run in outcome.runs],
    }


if __name__ == "__main__":
    torch.save(_work(torch.load(sys.argv[1], weights_only=True)), sys.argv[2])
