"""A model of transformers in this process: its batches, passes and numbers are what a condition says."""

from __future__ import annotations

import copy
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from sortition.benchmarks.probe import mend
from sortition.benchmarks.probe.bisect import Recorded, Recorder
from sortition.benchmarks.probe.continuation import Continuation
from sortition.benchmarks.probe.evidence import CHECKS, Seen, judge
from sortition.benchmarks.probe.fresh_process import run_elsewhere
from sortition.benchmarks.probe.layout import Layout, layout
from sortition.benchmarks.probe.session import Session, Watcher
from sortition.benchmarks.probe.target import Condition, NotPossible, Outcome, Prompt, Run, Value
from sortition.benchmarks.timing import machine
from sortition.integrations.model_folder import called
from sortition.sampling.rules import Temperature
from sortition.sampling.sampler import Sampler


class TransformersTarget:
    """A causal model that goes on greedily, or draws under a seed.

    Args:
        model: of transformers, on the CPU or a device.
        tokenizer: its.
        folder: where both were loaded from, so that a fresh process can; None where nothing was.
    """

    axes = frozenset(CHECKS)
    forces = True

    def __init__(self, model: Any, tokenizer: Any, folder: Path | None = None) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.folder = folder
        self.name = called(folder) if folder is not None else type(model).__name__
        self._mended: frozenset[str] = frozenset()
        self._row = 0
        self._copies: dict[str, Any] = {}

    @classmethod
    def load(cls, folder: Path, dtype: str = "bfloat16", attention: str = "sdpa") -> TransformersTarget:
        """Read a model's folder."""
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation=attention, local_files_only=True
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        # Fresh processes and scripts of a later day may run in another folder.
        return cls(model, tokenizer, folder.absolute())

    def describe(self) -> dict[str, Any]:
        """See `Target`."""
        return {
            **machine(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "model": type(self.model).__name__,
            **({} if self.folder is None else {"folder": str(self.folder)}),
            "dtype": _name(self.model.dtype),
            "attention": str(self.model.config._attn_implementation),
            "device": str(self.model.device),
            "threads": torch.get_num_threads(),
        }

    def text(self, tokens: Sequence[int]) -> str:
        """See `Target`."""
        decoded: str = self.tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False)
        return decoded

    def prompts(self, texts: Sequence[str]) -> list[Prompt]:
        """Texts as the tokenizer reads them."""
        return [Prompt(text, tuple(self.tokenizer(text)["input_ids"])) for text in texts]

    def run(
        self,
        prompts: Sequence[Prompt],
        condition: Condition,
        steps: int,
        forced: Sequence[Sequence[int]] | None = None,
    ) -> Outcome:
        """See `Target`."""
        settings = condition.settings
        unknown = settings.keys() - self.axes
        if unknown:
            raise NotPossible(f"transformers has nothing to set for {', '.join(sorted(unknown))}")
        for axis, value in self._already().items():
            if settings.get(axis) == value:
                raise NotPossible(f"{axis} is {value} already")
        if "process" in settings:
            return run_elsewhere(self, prompts, condition, steps, forced)
        seen = Seen()
        begun = time.process_time()
        with torch.inference_mode(), self._under(settings, seen) as model:
            runs = tuple(
                self._go_on(model, layout(prompts, index, settings), settings, steps, told, seen)
                for index, told in enumerate(forced or [None] * len(prompts))
            )
        seconds = time.process_time() - begun
        return Outcome(runs, judge(seen, settings), seconds)

    def record(
        self, prompts: Sequence[Prompt], index: int, condition: Condition, forced: Sequence[int]
    ) -> Mapping[str, Recorded]:
        """See `Inspects`."""
        settings = condition.settings
        if "process" in settings:
            raise NotPossible("operations of another process are not seen")
        place = layout(prompts, index, settings)
        with (
            torch.inference_mode(),
            self._under(settings, Seen()) as model,
            Recorder(model, place.row) as recorder,
        ):
            self._go_on(model, place, settings, len(forced), forced, Seen(), recorder)
        return recorder.operations

    @contextmanager
    def mended(self, kinds: Collection[str]) -> Iterator[None]:
        """See `Inspects`."""
        self._mended = frozenset(kinds)
        try:
            yield
        finally:
            self._mended = frozenset()

    def can_mend(self, kind: str) -> bool:
        """See `Inspects`."""
        return mend.can_mend(kind)

    def linear(self, kind: str) -> tuple[int, int, torch.dtype] | None:
        """See `Inspects`."""
        for name, module in self.model.named_modules():
            if name.rpartition(".")[2] == kind and isinstance(module, torch.nn.Linear):
                return module.in_features, module.out_features, module.weight.dtype
        return None

    def choose(self, scores: Tensor, condition: Condition, step: int) -> list[int]:
        """See `Chooses`: the likeliest token as `generate` takes it, or a draw.

        Under "seed" all rows draw from one stream, as in `generate` with `do_sample`; under "draw" every row
        has Sortition's noise for this seed and step.
        """
        settings = condition.settings
        rows = scores.float()
        if "draw" in settings:
            sampler = Sampler(Temperature(1.0))
            state = sampler.start(len(rows), [int(settings["draw"])] * len(rows))
            state = replace(state, positions=np.full(len(rows), step, np.int64))
            drawn: list[int] = sampler(rows, state).tokens.tolist()
            return drawn
        if "seed" in settings:
            stream = torch.Generator(rows.device).manual_seed(int(settings["seed"]) * 2**20 + step)
            choices: list[int] = torch.multinomial(rows.softmax(-1), 1, generator=stream)[:, 0].tolist()
            return choices
        likeliest: list[int] = rows.argmax(-1).tolist()
        return likeliest

    def _already(self) -> dict[str, Value]:
        """What a setting would not change."""
        return {
            "dtype": _name(self.model.dtype),
            "lm_head": _name(self.model.dtype),
            "attention": str(self.model.config._attn_implementation),
            "threads": torch.get_num_threads(),
        }

    @contextmanager
    def _under(self, settings: Mapping[str, Value], seen: Seen) -> Iterator[Any]:
        """The model with attention, threads, numbers and interventions as they are wanted."""
        model = self._model_of(settings.get("dtype"))
        with ExitStack() as stack:
            if "attention" in settings:
                stack.enter_context(mend.attention(model, str(settings["attention"])))
            if "threads" in settings:
                stack.enter_context(_threads(int(settings["threads"])))
            if "lm_head" in settings:
                stack.enter_context(_last_layer(model, getattr(torch, str(settings["lm_head"]))))
            stack.enter_context(mend.mended(model, self._mended, lambda: self._row))
            seen.attention = str(model.config._attn_implementation)
            seen.threads = torch.get_num_threads()
            seen.weights = _name(model.dtype)
            yield model

    def _model_of(self, dtype: Value | None) -> Any:
        """The model in other numbers: a copy, kept."""
        if dtype is None or _name(self.model.dtype) == dtype:
            return self.model
        if dtype not in self._copies:
            self._copies[str(dtype)] = copy.deepcopy(self.model).to(getattr(torch, str(dtype)))
        return self._copies[str(dtype)]

    def _go_on(
        self,
        model: Any,
        place: Layout,
        settings: Mapping[str, Value],
        steps: int,
        forced: Sequence[int] | None,
        seen: Seen,
        watcher: Watcher | None = None,
    ) -> Run:
        """Read one prompt in its batch and go on from it."""
        condition = Condition(tuple(settings.items()))
        self._row = place.row
        end = self.model.config.eos_token_id or 0
        pad = end if isinstance(end, int) else end[0]
        session = Session(model, place.padding, pad, place.row, watcher)

        def choose(scores: Tensor, step: int) -> list[int]:
            return self.choose(scores, condition, step)

        return Continuation(session, place, settings, choose, steps, forced, seen).run()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _last_layer(model: Any, dtype: torch.dtype) -> Iterator[None]:
    """Scores from the same weights in other numbers."""
    head = model.get_output_embeddings()
    weight = head.weight.to(dtype)
    bias = None if head.bias is None else head.bias.to(dtype)

    def forward(hidden: Tensor) -> Tensor:
        return torch.nn.functional.linear(hidden.to(dtype), weight, bias)

    with mend.replaced_forward(head, forward):
        yield


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
