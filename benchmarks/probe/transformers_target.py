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
from sortition.benchmarks.probe.evidence import CHECKS, Seen, judge
from sortition.benchmarks.probe.fresh_process import run_elsewhere
from sortition.benchmarks.probe.layout import Layout, layout
from sortition.benchmarks.probe.session import Session, Watcher
from sortition.benchmarks.probe.target import Condition, NotPossible, Outcome, Prompt, Run, Value
from sortition.benchmarks.timing import machine
from sortition.integrations.hf_drafters import looked_up
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
        self.name = folder.name if folder is not None else type(model).__name__
        self._mended: frozenset[str] = frozenset()
        self._copies: dict[str, Any] = {}

    @classmethod
    def load(cls, folder: Path, dtype: str = "bfloat16", attention: str = "sdpa") -> TransformersTarget:
        """Read a model's folder."""
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation=attention, local_files_only=True
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        return cls(model, tokenizer, folder)

    def describe(self) -> dict[str, Any]:
        """See `Target`."""
        return {
            **machine(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "model": type(self.model).__name__,
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
            stack.enter_context(mend.mended(model, self._mended))
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
        if "drafts" in settings and not place.copies:
            raise NotPossible("drafts are guessed for one text, so its neighbours must be copies")
        condition = Condition(tuple(settings.items()))
        pad = self.model.config.eos_token_id or 0
        session = Session(model, place.padding, pad if isinstance(pad, int) else pad[0], place.row, watcher)
        latest = self._read_prompt(session, place, settings, seen)
        scores: list[Tensor] = []
        choices: list[int] = []
        tokens: list[int] = []
        text = list(place.rows[place.row])

        def take(column: Tensor) -> list[int]:
            """One step: the tokens with which all rows go on."""
            step = len(choices)
            chosen = self.choose(column, condition, step)
            choice = chosen[place.row]
            seen.lucky += choice != int(column[place.row].float().argmax())
            token = choice if forced is None else forced[step]
            scores.append(column[place.row].clone())
            choices.append(choice)
            tokens.append(token)
            text.append(token)
            chosen[place.row] = token
            return [token] * len(chosen) if place.copies else chosen

        following = take(latest[:, -1])
        while len(choices) < steps:
            guessed = self._guess(settings, text, forced, len(choices), steps)
            block = torch.tensor([[token, *guessed] for token in following])
            latest = session.read(block, keep=block.shape[1])
            right = 0
            for column in range(block.shape[1]):
                following = take(latest[:, column])
                if column == len(guessed) or guessed[column] != tokens[-1] or len(choices) == steps:
                    break
                right += 1
            session.take_back(len(guessed) - right)
            seen.guessed += len(guessed)
            seen.accepted += right
        seen.passes.update(session.passes)
        seen.rows.add(place.row)
        seen.padding.append(place.padding[place.row])
        seen.company.append(not place.copies and len(place.rows) > 1)
        seen.scores = _name(scores[0].dtype)
        return Run(tuple(choices), tuple(tokens), torch.stack(scores))

    def _read_prompt(
        self, session: Session, place: Layout, settings: Mapping[str, Value], seen: Seen
    ) -> Tensor:
        """Read a batch's prompts; the scores of the last pass."""
        whole = session.padded(place.rows)
        if settings.get("prefix_cache") == "warm":
            # Another request with the same beginning: all but the last token, then something else.
            shared = whole.shape[1] - 1
            session.read(torch.cat([whole[:, :-1], whole.flip(1)], dim=1))
            session.take_back(session.seen - shared)
            whole = whole[:, -1:]
        seen.cached.append(session.seen)
        before = len(session.passes)
        width = int(settings.get("chunk", whole.shape[1]))
        for begin in range(0, whole.shape[1], width):
            latest = session.read(whole[:, begin : begin + width])
        seen.prompt_passes.append(len(session.passes) - before)
        return latest

    def _guess(
        self,
        settings: Mapping[str, Value],
        text: list[int],
        forced: Sequence[int] | None,
        step: int,
        steps: int,
    ) -> list[int]:
        """Drafts of what comes next: what is going to be said, where that is known, else prompt lookup."""
        count = min(int(settings.get("drafts", 0)), steps - step - 1)
        if count <= 0:
            return []
        return list(forced[step : step + count]) if forced is not None else looked_up(text, count)


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
