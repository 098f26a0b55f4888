"""Reports of real vLLM engines, one process for each model runner, and how their outputs are judged."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_llama import save_tiny_llama

from sortition.grammars.oracle import Walk
from sortition.integrations.smollm2 import embedded_model
from sortition.integrations.vllm_request import read

TESTS = Path(__file__).parent
LONGEST = 900
"""Seconds; a machine of two cores that is shared needs a third of it."""


def environment() -> dict[str, str]:
    """For a process with an engine that shares a small machine."""
    path = [str(TESTS.parent / "src"), str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "HF_HUB_OFFLINE": "1",
    }


def needs_vllm(*others: str) -> None:
    """Skip the module, saying so, where vLLM or something else is not installed."""
    for package in ("vllm", "transformers", "jsonschema", *others):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed", allow_module_level=True)


def run(runner: str, folder: Path) -> dict[str, Any]:
    """The report of all scenarios on one model runner."""
    report = folder / "report.json"
    try:
        real = [str(embedded_model())]
    except FileNotFoundError:
        real = []
    command = [
        sys.executable,
        str(TESTS / "vllm_scenarios.py"),
        runner,
        str(save_tiny_llama(folder / "tiny")),
        str(report),
    ]
    done = subprocess.run(
        [*command, *real], env=environment(), capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:]
    result: dict[str, Any] = json.loads(report.read_text())
    return result


def has_grammar(fields: Any) -> bool:
    """Whether a request asks for a grammar, and not for nothing or a draw alone."""
    asked = None if fields is None else read({"sortition": fields})
    return asked is not None and asked.grammar is not None


def is_valid(text: str, fields: Any) -> bool:
    """Whether a text is what the request asked for, judged without our grammars."""
    import jsonschema

    fields = json.loads(fields) if isinstance(fields, str) else fields
    if "regex" in fields:
        return re.fullmatch(fields["regex"], text) is not None
    if "choice" in fields:
        return text in fields["choice"]
    schema = fields["json_schema"]
    try:
        jsonschema.validate(json.loads(text), json.loads(schema) if isinstance(schema, str) else schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def is_beginning(text: str, fields: Any) -> bool:
    """Whether a text that was cut short could have become what the request asked for, byte by byte."""
    asked = read({"sortition": fields})
    assert asked is not None and asked.grammar is not None
    walk = Walk(asked.grammar.grammar().machine)
    # The text may end in the middle of a character.
    return all(walk.advance(byte) for byte in text.rstrip("\ufffd").encode())


def judge(result: dict[str, Any]) -> None:
    """Assert that an output is valid, or the beginning of a valid one where it was cut short."""
    fields = result["fields"]
    if (
        fields is None
        or not {"json_schema", "regex", "choice"}
        & (json.loads(fields) if isinstance(fields, str) else fields).keys()
    ):
        return
    finished = result["reason"] == "stop"
    assert (is_valid if finished else is_beginning)(result["text"], result["fields"]), result
