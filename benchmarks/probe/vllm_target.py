"""A model in vLLM as a target: engines in processes of their own, started as conditions want them."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from sortition.benchmarks.probe.target import Condition, Evidence, Outcome, Prompt
from sortition.integrations.errors import InputError, reason_of

FORCING: Final = "sortition.benchmarks.probe.vllm_forcing:Forcing"
PROCESSOR: Final = "sortition.integrations.vllm:Processor"
"""What is loaded into engines, so that they can be led, and draw Sortition's way."""

FORCED: Final = "sortition_forced"
"""The key of a request's extra arguments for `FORCING`: token ids, one a step."""

OF_ENGINES: Final = frozenset({"process", "drafts", "dtype"})
"""Axes that need an engine of their own."""

ROWS: Final = 64
"""The most requests of a pass."""

CPU_CACHE: Final = 1 << 30
"""Bytes for keys and values on a CPU: 23,000 tokens of the embedded model."""

LOOK_UP: Final = {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1}
"""Drafts without a second model: what followed the last tokens before."""


def in_few_engines(conditions: Sequence[Condition]) -> tuple[Condition, ...]:
    """In an order in which vLLM is started as rarely as can be."""

    def engine(condition: Condition) -> list[str]:
        return [str(condition.settings.get(axis, "")) for axis in sorted(OF_ENGINES)]

    return tuple(sorted(conditions, key=engine))


class VllmTarget:
    """A model that vLLM can load. See `Target`.

    Only one engine runs at a time: they leave things behind in a process and on a device.
    """

    def __init__(self, model: str | Path, **options: Any) -> None:
        """Start vLLM.

        Args:
            model: a folder, or a name that vLLM knows.
            options: of `vllm.LLM`.

        Raises:
            InputError: vLLM is not installed, or cannot load the model.
        """
        # Scripts of a later day may run in another folder.
        self._folder = str(Path(model).absolute()) if Path(model).is_dir() else str(model)
        self._options = options
        self._engine = _Engine(self._folder, options, {})
        described = self._ask("about")
        self.name: str = described["name"]
        self.axes: frozenset[str] = described["axes"] | OF_ENGINES
        self.forces: bool = described["forces"]

    def close(self) -> None:
        """Stop the engine."""
        self._engine.close()

    def describe(self) -> dict[str, Any]:
        """See `Target.describe`."""
        described: dict[str, Any] = self._ask("describe")
        return described

    def prompts(self, texts: Sequence[str]) -> list[Prompt]:
        """Texts as the tokenizer reads them."""
        read: list[Prompt] = self._ask("prompts", list(texts))
        return read

    def text(self, tokens: Sequence[int]) -> str:
        """See `Target.text`."""
        text: str = self._ask("text", list(tokens))
        return text

    def run(
        self,
        prompts: Sequence[Prompt],
        condition: Condition,
        steps: int,
        forced: Sequence[Sequence[int]] | None = None,
    ) -> Outcome:
        """See `Target.run`."""
        wanted = {axis: value for axis, value in condition.settings.items() if axis in OF_ENGINES}
        if wanted != self._engine.settings:
            self._engine.close()
            self._engine = _Engine(self._folder, self._options, wanted)
        plain = Condition(
            tuple(each for each in condition.varies if each[0] not in OF_ENGINES),
            tuple(each for each in condition.given if each[0] not in OF_ENGINES),
        )
        outcome: Outcome = self._ask("run", list(prompts), plain, steps, forced)
        if not wanted:
            return outcome
        dtype = self._ask("describe")["dtype"]
        took = outcome.evidence.took_effect and wanted.get("dtype", dtype) == dtype
        seen = f"an engine of its own, in {dtype}; {outcome.evidence.seen}"
        return replace(outcome, evidence=Evidence(took, seen))

    def _ask(self, what: str, *arguments: Any) -> Any:
        return self._engine.ask(what, *arguments)


class _Engine:
    """A process with an engine in it.

    Attributes:
        settings: of the axes that it was started for.
    """

    def __init__(self, folder: str, options: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        self.settings = dict(settings)
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, folder, dict(options), self.settings))
        self._process.start()
        other.close()
        # Before the interpreter waits for its processes, which wait for it.
        atexit.register(self.close)
        self._answer()

    def ask(self, what: str, *arguments: Any) -> Any:
        """What a method of the target over there returns or raises.

        Raises:
            RuntimeError: the process is gone.
        """
        self._connection.send_bytes(pickle.dumps((what, arguments)))
        return self._answer()

    def _answer(self) -> Any:
        try:
            done, value = pickle.loads(self._connection.recv_bytes())
        except (EOFError, ConnectionError):
            self._process.join()
            raise RuntimeError(f"vLLM's process ended with exit code {self._process.exitcode}") from None
        if not done:
            raise value
        return value

    def close(self) -> None:
        """End the process."""
        atexit.unregister(self.close)
        self._connection.close()
        self._process.join()


def _serve(connection: Connection, folder: str, options: dict[str, Any], settings: dict[str, Any]) -> None:
    """Start an engine and do what is asked, until nobody asks any more."""
    # Who presses Ctrl-C stops the probe, which then stops this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    # The scheduler can be watched only where it runs in the same process.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    try:
        target = _start(folder, options, settings)
        connection.send_bytes(pickle.dumps((True, None)))
        while True:
            what, arguments = pickle.loads(connection.recv_bytes())
            try:
                answer = (True, getattr(target, what)(*arguments))
            except Exception as problem:  # whatever it is, it is raised where it was asked for
                answer = (False, problem)
            connection.send_bytes(pickle.dumps(answer))
    except (EOFError, ConnectionError):
        pass
    except InputError as problem:
        connection.send_bytes(pickle.dumps((False, problem)))


def _start(folder: str, given: dict[str, Any], settings: dict[str, Any]) -> Any:
    try:
        from vllm import LLM, envs
        from vllm.platforms import current_platform

        from sortition.benchmarks.probe.vllm_engine_target import EngineTarget
    except ModuleNotFoundError as missing:
        raise InputError(f"vLLM as a target needs {missing.name}: pip install 'sortition[vllm]'") from None
    options: dict[str, Any] = {"max_num_seqs": ROWS, "max_model_len": -1}
    if current_platform.is_cpu():
        # vLLM would compile for longer than a probe takes, and want 92 % of the memory.
        options.update(enforce_eager=True, kv_cache_memory_bytes=CPU_CACHE)
    if "drafts" in settings:
        options["speculative_config"] = {**LOOK_UP, "num_speculative_tokens": int(settings["drafts"])}
    elif current_platform.is_cpu() or envs.VLLM_USE_V2_MODEL_RUNNER is False:
        # The second model runner has another interface for processors, and refuses the first one's.
        options["logits_processors"] = [FORCING, PROCESSOR]
    options.update(given)
    if "dtype" in settings:
        options["dtype"] = settings["dtype"]
    try:
        return EngineTarget(LLM(folder, **options), drafting="drafts" in settings, options=options)
    except (OSError, ValueError, RuntimeError) as problem:
        raise InputError(f"vLLM cannot load the model {folder}: {reason_of(problem)}") from None
