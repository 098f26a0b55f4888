"""What `Sampler` does where kernels run: draws and states stay on the device, and nobody waits for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import torch
import triton
from torch import Tensor

from sortition.grammars.table import Table
from sortition.sampling import device as kernels
from sortition.sampling.columns import Columns
from sortition.sampling.constraint import Constraint
from sortition.sampling.device import Inputs, Laws, Settings, Workspace, needed, settle, uploaded
from sortition.sampling.device_constraint import Walk
from sortition.sampling.device_state import DeviceState
from sortition.sampling.draw import Draw, Report, Request
from sortition.sampling.parameters import Parameters
from sortition.sampling.policies import Policy


def runs_on(device: torch.device) -> bool:
    """Whether kernels run there: on a GPU, or on the host in Triton's interpreter."""
    return device.type == "cuda" or (device.type == "cpu" and bool(triton.knobs.runtime.interpret))


class DeviceSampler:
    """Draws a number of rows of one sampler on one device.

    Args:
        tables: the grammars.
        columns: the parameters of the rows.
        end_tokens: ids that end a text; those of the tables where there are none.
        policies: of flags.
        report: what else to report, as in `Request`.
        device: where logits and states are.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        columns: Columns,
        end_tokens: tuple[int, ...],
        policies: Mapping[int, Policy],
        report: Mapping[str, Any],
        device: torch.device,
    ) -> None:
        self._tables: Final = tables
        self._columns: Final = columns
        self._end_tokens: Final = end_tokens
        self._policies: Final = policies
        self._report: Final = report
        self._device: Final = device
        self._walks: dict[int, Walk] = {}
        self._settings: dict[int, Settings] = {}
        self._plain: dict[int, Settings] = {}

    @cached_property
    def refusal(self) -> str | None:
        """Why kernels cannot draw these rows here, None where they can."""
        if not runs_on(self._device):
            return f"kernels run on a GPU, not on {self._device}"
        if not kernels.supported(self._columns).all():
            return "kernels know neither `typical` nor a temperature between filters"
        return None

    def start(self, request: Request, grammars: Sequence[int]) -> DeviceState:
        """The state of rows, uploaded.

        Args:
            request: of the rows.
            grammars: the number of each row's grammar, if the sampler has grammars.
        """
        inputs = Inputs.of(request, self._device)
        grammar = None
        if self._tables:
            grammar = self._constraint.start(uploaded(torch.tensor(grammars), self._device))
        return DeviceState(
            seeds=inputs.seeds,
            positions=inputs.positions,
            history=inputs.history,
            lengths=inputs.lengths,
            prompt_lengths=inputs.prompt_lengths,
            longest=inputs.longest,
            grammar=grammar,
        )

    def draw(self, logits: Tensor, state: DeviceState) -> Draw:
        """Draw a token for each row, flagged rows as their policies want them."""
        rows, width = logits.shape
        nothing = torch.zeros(rows, dtype=torch.int32, device=self._device)
        mask = None
        if state.grammar is not None:
            walk = self._walk(width)
            mask = walk.mask(walk.step(state.grammar))
        return self._draw(
            logits,
            Inputs(
                slots=torch.arange(rows, device=self._device),
                positions=state.positions,
                seeds=state.seeds,
                history=state.history,
                lengths=state.lengths,
                prompt_lengths=state.prompt_lengths,
                drafts=nothing,
                local=nothing,
                end_tokens=self._ends,
                longest=state.longest,
                mask=mask,
            ),
        )

    def draw_request(self, logits: Tensor, request: Request) -> Draw:
        """The same for rows whose state is on the host."""
        return self._draw(logits, Inputs.of(request, self._device))

    def advance(self, state: DeviceState, tokens: Tensor) -> DeviceState:
        """The state after each row has generated a token; a negative one is none."""
        texts = state.grown(tokens) if kernels.sees_history(self._columns) else {}
        grammar = state.grammar
        if grammar is not None:
            walk = self._walk(self._constraint.arena.vocabulary_size)
            grammar = walk.step(grammar, tokens).position
        return replace(state, positions=state.positions + (tokens >= 0), grammar=grammar, **texts)

    def _draw(self, logits: Tensor, inputs: Inputs) -> Draw:
        rows, width = logits.shape
        settings = self._settings_of(width)
        workspace = Workspace(rows, width, needed(settings, inputs, width), self._device)
        entropy, top, raw = (self._report[name] for name in ("entropy", "top", "raw"))
        draw = kernels.launch(logits, settings, inputs, workspace, entropy)
        draw = settle(draw, logits, settings, inputs, workspace, self._policies)
        if top:
            laws = Laws.of(logits, settings, inputs, workspace)
            draw = replace(draw, processed=_with_top(draw.processed, laws, top))
        return replace(draw, raw=self._raw(logits, inputs, workspace, draw.tokens)) if raw else draw

    def _raw(self, logits: Tensor, inputs: Inputs, workspace: Workspace, tokens: Tensor) -> Report:
        """What the logits as they came say of these tokens."""
        settings, inputs = self._plain_settings(logits.shape[1]), replace(inputs, mask=None)
        report = kernels.launch(logits, settings, inputs, workspace, self._report["entropy"]).processed
        laws = Laws.of(logits, settings, inputs, workspace)
        report = replace(report, logprobs=laws.logprobs(tokens[:, None])[:, 0])
        return _with_top(report, laws, self._report["top"])

    def _plain_settings(self, width: int) -> Settings:
        """Of rows whose logits nothing changes."""
        if width not in self._plain:
            columns = Columns.of([Parameters()] * len(self._columns))
            self._plain[width] = Settings.of(columns, width, self._device)
        return self._plain[width]

    def _settings_of(self, width: int) -> Settings:
        if width not in self._settings:
            self._columns.check(width)
            self._settings[width] = Settings.of(self._columns, width, self._device)
        return self._settings[width]

    @cached_property
    def _ends(self) -> Tensor:
        """int32 [rows, n]."""
        ends = torch.tensor(self._end_tokens, dtype=torch.int32)
        return uploaded(ends.repeat(len(self._columns), 1), self._device)

    @cached_property
    def _constraint(self) -> Constraint:
        return Constraint(self._tables, device=self._device, end_tokens=self._end_tokens or None)

    def _walk(self, width: int) -> Walk:
        if width not in self._walks:
            self._walks[width] = Walk(self._constraint, width)
        return self._walks[width]


def _with_top(report: Report, laws: Laws, count: int) -> Report:
    """The report with the most likely tokens, if there are to be any."""
    if not count:
        return report
    tokens, logprobs = laws.top(count)
    return replace(report, top_tokens=tokens, top_logprobs=logprobs)
