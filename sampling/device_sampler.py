"""What `Sampler` does where kernels run: draws and states stay on the device, and nobody waits for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from sortition.grammars.table import Table
from sortition.sampling import device as kernels
from sortition.sampling import noise, verify_device
from sortition.sampling.columns import Columns
from sortition.sampling.constraint import Constraint, Position
from sortition.sampling.device import Inputs, Laws, Settings, Workspace, needed, settle
from sortition.sampling.device_constraint import Walk
from sortition.sampling.device_state import DeviceState, uploaded
from sortition.sampling.draw import Draw, Report, Request
from sortition.sampling.parameters import Parameters
from sortition.sampling.policies import Policy, check_width, last_of_text
from sortition.sampling.verification import BLOCK, Verified
from sortition.sampling.verify_device import Paths, Side, Trees
from sortition.sampling.verify_rules import ROOT


def runs_on(device: torch.device) -> bool:
    """Whether kernels run there: on a GPU, or on the host in Triton's interpreter."""
    return device.type == "cuda" or (device.type == "cpu" and bool(triton.knobs.runtime.interpret))


@dataclass(frozen=True, eq=False)
class Source:
    """What drafts were drawn from.

    Attributes:
        sampler: of the drafter, for the same rows.
        logits: float [rows, drafts, vocabulary].
        state: of the rows, where drafts begin.
    """

    sampler: DeviceSampler
    logits: Tensor
    state: DeviceState


class DeviceSampler:
    """Draws a number of rows of one sampler on one device.

    Args:
        tables: the grammars.
        columns: the parameters of the rows.
        end_tokens: ids that end a text; those of the tables where there are none.
        policies: of flags.
        report: what else to report, as in `Request`.
        device: where logits and states are.

    Attributes:
        device: likewise.
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
        self.device: Final = device
        self._walks: dict[int, Walk] = {}
        self._settings: dict[int, Settings] = {}
        self._plain: dict[int, Settings] = {}
        self._codes: dict[bytes, Tensor] = {}

    def start(self, request: Request, grammars: Sequence[int]) -> DeviceState:
        """The state of rows, uploaded.

        Args:
            request: of the rows.
            grammars: the number of each row's grammar, if the sampler has grammars.
        """
        grammar = None
        if self._tables:
            grammar = self._constraint.start(uploaded(torch.tensor(grammars), self.device))
        return self.state_of(Inputs.of(request, self.device), grammar)

    def upload(self, request: Request, grammar: Position | None) -> DeviceState:
        """The state of rows that are on the host.

        Args:
            request: of the rows.
            grammar: where they are in their grammars.
        """
        if grammar is not None:
            grammar = Position(*(uploaded(part, self.device) for part in grammar))
        return self.state_of(Inputs.of(request, self.device), grammar)

    @staticmethod
    def state_of(inputs: Inputs, grammar: Position | None) -> DeviceState:
        """The state of rows of which a draw depends on this."""
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
        return self._draw(logits, self._inputs(state, logits.shape[1]))

    def source(self, logits: Tensor, state: DeviceState) -> Source:
        """What drafts were drawn from with this sampler; see there."""
        return Source(self, uploaded(logits.detach(), self.device), state)

    def verify(
        self,
        logits: Tensor,
        state: DeviceState,
        drafts: Tensor,
        parents: Tensor | None,
        methods: NDArray[np.int8],
        source: Source | None,
    ) -> Verified:
        """Judge drafts, and draw one token more.

        Args:
            logits: float [rows, drafts + 1, vocabulary].
            state: of the rows, where drafts begin.
            drafts: int64 [rows, drafts], ids; negative ones are none.
            parents: int64 [rows, drafts], of trees; None for chains.
            methods: int8 [rows], codes.
            source: what drafts were drawn from; None for drafts that were not drawn.
        """
        rows, nodes = drafts.shape
        drafts = uploaded(drafts.long(), self.device)
        parents = None if parents is None else uploaded(parents.long(), self.device)
        paths = Paths.of(drafts, parents)
        target = self._side(logits.detach(), state, paths)
        if parents is None:
            parents = torch.arange(nodes, device=self.device).repeat(rows, 1) + ROOT
        drafter = None
        if source is not None and nodes:
            roots = (nodes + 1) * torch.arange(rows, device=self.device)[:, None]
            places = (roots + (parents + 1).clamp(0, nodes)).flatten()
            drafter = source.sampler._side(source.logits, source.state, paths.taken(places))
        codes = self._codes_of(methods)
        coins = noise.derived(state.seeds, state.positions, 0)
        trees = Trees(
            tokens=drafts.contiguous(),
            parents=parents.contiguous(),
            methods=codes,
            coins=torch.where(codes == BLOCK, coins, state.seeds),
            kinds=frozenset(methods.tolist()),
        )
        return verify_device.launch(target, drafter, trees, self._policies)

    def _codes_of(self, methods: NDArray[np.int8]) -> Tensor:
        """The same on the device, where it stays until rows have other methods."""
        key = methods.tobytes()
        if key not in self._codes:
            self._codes = {key: uploaded(torch.from_numpy(methods), self.device)}
        return self._codes[key]

    def _side(self, logits: Tensor, state: DeviceState, paths: Paths) -> Side:
        width = logits.shape[2]
        return Side.of(logits.flatten(0, 1), self._settings_of(width), self._inputs(state, width, paths))

    def _inputs(self, state: DeviceState, width: int, paths: Paths | None = None) -> Inputs:
        """What draws for logits of so many tokens depend on: those of each row, or of places in its texts."""
        nothing = torch.zeros(len(state), dtype=torch.int32, device=self.device)
        slots, drafts, local = torch.arange(len(state), device=self.device), nothing, nothing
        positions, grammar, longest = state.positions, state.grammar, state.longest
        if paths is not None:
            slots, drafts, local = paths.rows, paths.drafts, paths.depths
            positions, longest = positions[slots] + local, longest + drafts.shape[1]
        mask = None
        if grammar is not None:
            walk = self._walk(width)
            rows = walk.step(grammar) if paths is None else walk.step(grammar.rows(slots), drafts)
            mask = walk.mask(rows)
        return Inputs(
            slots=slots,
            positions=positions,
            seeds=state.seeds,
            history=state.history,
            lengths=state.lengths,
            prompt_lengths=state.prompt_lengths,
            drafts=drafts,
            local=local,
            end_tokens=self._ends,
            longest=longest,
            mask=mask,
        )

    def draw_request(self, logits: Tensor, request: Request) -> Draw:
        """The same for rows whose state is on the host."""
        return self._draw(logits, Inputs.of(request, self.device))

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
        workspace = Workspace(rows, width, needed(settings, inputs, width), self.device)
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
            self._plain[width] = Settings.of(columns, width, self.device)
        return self._plain[width]

    def _settings_of(self, width: int) -> Settings:
        if width not in self._settings:
            self._columns.check(width)
            check_width(width, last_of_text(self._tables), self._end_tokens, self._policies)
            self._settings[width] = Settings.of(self._columns, width, self.device)
        return self._settings[width]

    @cached_property
    def _ends(self) -> Tensor:
        """int32 [rows, n]."""
        ends = torch.tensor(self._end_tokens, dtype=torch.int32)
        return uploaded(ends.repeat(len(self._columns), 1), self.device)

    @cached_property
    def _constraint(self) -> Constraint:
        return Constraint(self._tables, device=self.device, end_tokens=self._end_tokens or None)

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
