"""Verification on a device: what `verify_reference.py` finds, to the bit, without waiting for the host.

Kernels judge chains by the methods "coupled", "greedy", "token" and "distinct", each row by its own and with
as many drafts as it has. `launch` is all that a step does; `verify_rows` is `launch` for a `Verification`,
which is on the host, and takes all other rows to the CPU's verification.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortition.sampling import device, verify_cpu
from sortition.sampling.draw import Draw, Request
from sortition.sampling.kernels import LAUNCH, layout
from sortition.sampling.kernels.verify import verify, weigh
from sortition.sampling.verification import COUPLED, DISTINCT, GREEDY, TOKEN, Verification, Verified
from sortition.sampling.verify_rules import ROOT

JUDGED: Final = (COUPLED, GREEDY, TOKEN, DISTINCT)
"""Methods that kernels know."""


def supported(asked: Verification) -> NDArray[np.bool_]:
    """Which rows the kernels can judge: bool [rows]."""
    rows, nodes = asked.tokens.shape
    chain = np.arange(nodes) + ROOT
    judged = np.isin(asked.methods, JUDGED) & (asked.parents == chain).all(1)
    for request in (asked.targets, asked.drafts):
        if request is not None:
            judged &= device.supported(request.columns).reshape(rows, nodes + 1).all(1)
    return np.asarray(judged, np.bool_)


@dataclass(frozen=True, eq=False)
class Side:
    """One model's part: its logits, and what a draw from them needs; see `device.launch`.

    Attributes:
        logits: float [places, vocabulary], those of a row one after another.
        settings, inputs: of the places.
        workspace: of the logits' shape.
    """

    logits: Tensor
    settings: device.Settings
    inputs: device.Inputs
    workspace: device.Workspace

    @classmethod
    def of(cls, logits: Tensor, request: Request, **sizes: int) -> Self:
        """The side of a model with a workspace of its own; for sizes see `Workspace`."""
        (places, width), where = logits.shape, logits.device
        settings, inputs = device.Settings.of(request.columns, width, where), device.Inputs.of(request, where)
        named = device.needed(settings, inputs, width)
        return cls(logits, settings, inputs, device.Workspace(places, width, named, where, **sizes))

    def draw(self) -> Draw:
        """A token of each place; afterwards the workspace says what the laws are."""
        return device.launch(self.logits, self.settings, self.inputs, self.workspace)


@dataclass(frozen=True, eq=False)
class Chains:
    """Drafts of a batch, on the device of the logits.

    Attributes:
        tokens: int64 [rows, nodes], contiguous; from a negative one on, a row has no drafts.
        methods: int8 [rows], codes of `JUDGED`.
        coins: int64 [rows], seeds of coins.
    """

    tokens: Tensor
    methods: Tensor
    coins: Tensor


@dataclass(frozen=True, eq=False)
class Weights:
    """What `weigh` finds for each place; see there."""

    lasts: Tensor
    sums: Tensor
    weights: Tensor
    logprobs: Tensor
    likeliest: Tensor


def launch(target: Side, drafter: Side | None, chains: Chains) -> Verified:
    """Judge each row's chain: seven launches of kernels with certain drafts, twelve with a drafter's.

    Args:
        target: of rows * (nodes + 1) places.
        drafter: of rows * nodes places; None for drafts without a law, which are certain.
        chains: the drafts.
    """
    rows, nodes = chains.tokens.shape
    where = target.logits.device
    found = Verified(
        accepted=torch.empty(rows, dtype=torch.int64, device=where),
        tokens=torch.empty(rows, nodes + 1, dtype=torch.int64, device=where),
        logprobs=torch.empty(rows, nodes + 1, dtype=torch.float32, device=where),
        path=torch.empty(rows, nodes, dtype=torch.int64, device=where),
        flags=torch.empty(rows, dtype=torch.uint8, device=where),
    )
    if not rows:
        return found
    draw = target.draw()
    # Behind the last draft, none is asked for.
    weighed = _weigh(target, torch.nn.functional.pad(chains.tokens, (0, 1), value=-1))
    theirs = weighed
    if drafter is not None:
        drafter.draw()
        theirs = _weigh(drafter, chains.tokens)
    other = target if drafter is None else drafter
    room, its_room = target.workspace, other.workspace
    masses = torch.empty(rows, 1 if drafter is None else its_room.width, dtype=torch.int64, device=where)
    verify[(rows,)](
        *_read(target), target.settings.real, target.inputs.slots, *device.edits_of(room),
        room.best, room.best_token, room.flags, room.programs,
        weighed.lasts, weighed.sums, weighed.weights, weighed.logprobs, weighed.likeliest,
        *_read(other), other.settings.real, other.inputs.slots, *device.edits_of(its_room),
        its_room.best, its_room.best_token, its_room.flags, its_room.programs,
        theirs.lasts, theirs.sums, theirs.weights,
        chains.tokens, nodes, chains.methods, chains.coins,
        target.inputs.seeds, target.inputs.positions, target.inputs.stream,
        draw.tokens, draw.logprobs, draw.flags, masses,
        found.accepted, found.tokens, found.logprobs, found.path, found.flags,
        CERTAIN=drafter is None,
        PROGRAMS=layout.bits(room.programs), DRAFTS_PROGRAMS=layout.bits(its_room.programs),
        BLOCK=room.step, num_warps=8, **LAUNCH,
    )  # fmt: skip
    return found


def verify_rows(targets: Tensor, drafts: Tensor | None, asked: Verification, **sizes: int) -> Verified:
    """Verify each row's drafts; see `Verifier`, but logits may be on a device, and what comes back is there.

    Rows that are not `supported` are judged by the CPU, for which their logits come to the host.
    """
    judged = supported(asked)
    found = _judged(targets, drafts, asked, **sizes) if judged.any() else None
    rest = np.flatnonzero(~judged)
    if found is not None and not len(rest):
        return found
    others = verify_cpu.verify_rows(targets.cpu(), None if drafts is None else drafts.cpu(), asked)
    others = others.to(targets.device)
    if found is None:
        return others
    index = torch.from_numpy(rest).to(targets.device)
    parts = (
        (getattr(found, name), getattr(others, name))
        for name in ("accepted", "tokens", "logprobs", "path", "flags")
    )
    return Verified(*(mine.index_copy(0, index, theirs[index]) for mine, theirs in parts))


def _judged(targets: Tensor, drafts: Tensor | None, asked: Verification, **sizes: int) -> Verified:
    """All rows by kernels, whether or not these can judge them."""
    nodes = asked.tokens.shape[1]
    where = targets.device
    drafter = None
    if drafts is not None and asked.drafts is not None and nodes:
        # A place of the drafter's for each node, which is drawn where its parent leads.
        places = np.arange(len(asked.targets.seeds)).reshape(-1, nodes + 1)[:, :nodes].ravel()
        drafter = Side.of(drafts.flatten(0, 1), asked.drafts.rows(places), **sizes)
    chains = Chains(
        torch.from_numpy(np.ascontiguousarray(asked.tokens)).to(where),
        torch.from_numpy(asked.methods).to(where),
        torch.from_numpy(asked.coins).to(where),
    )
    return launch(Side.of(targets.flatten(0, 1), asked.targets, **sizes), drafter, chains)


def _weigh(side: Side, asked: Tensor) -> Weights:
    """What the laws of a side say of one token each; `side.draw` comes first."""
    places, room = len(side.logits), side.workspace

    def empty(kind: torch.dtype) -> Tensor:
        return torch.empty(places, dtype=kind, device=asked.device)

    found = Weights(*map(empty, (torch.int64, torch.int64, torch.int64, torch.float32, torch.int64)))
    weigh[(places,)](
        *_read(side), side.settings.whole, side.settings.real, side.settings.filters,
        side.settings.filters.shape[1], side.inputs.slots, *device.edits_of(room),
        room.best, room.best_token, room.flags, room.bins, room.peaks, room.peaks_size,
        room.totals, room.programs, room.blocks, room.candidates, room.room, asked,
        found.lasts, found.sums, found.weights, found.logprobs, found.likeliest,
        PROGRAMS=layout.bits(room.programs), BLOCK=room.step, num_warps=8, **LAUNCH,
    )  # fmt: skip
    return found


def _read(side: Side) -> tuple[Any, ...]:
    return side.logits, *side.logits.stride(), side.logits.shape[1]
