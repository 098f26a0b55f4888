"""Verification on a device: what `verify_reference.py` finds, to the bit, without waiting for the device.

A verification draws a token at every place, as a step without drafts does at one, and then goes along each
row's drafts: five or six launches of kernels, and four more if drafts have laws.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sortition.sampling import device
from sortition.sampling.draw import NO_TOKEN, Draw
from sortition.sampling.kernels import LAUNCH, layout
from sortition.sampling.kernels.verify import block, walk
from sortition.sampling.policies import SAYS, Policy
from sortition.sampling.verification import BLOCK, TYPICAL, USE_LAWS, Verified


@dataclass(frozen=True, eq=False)
class Trees:
    """The drafts of a batch, on the device of the logits.

    Attributes:
        tokens: int64 [rows, nodes], contiguous; a negative one is no draft.
        parents: int64 [rows, nodes], contiguous; what is not a node before it, or `ROOT`, is no parent.
        methods: int8 [rows].
        coins: int64 [rows], seeds of coins.
        kinds: the methods that there are among the rows.
    """

    tokens: Tensor
    parents: Tensor
    methods: Tensor
    coins: Tensor
    kinds: frozenset[int]


@dataclass(frozen=True, eq=False)
class Paths:
    """What comes before tokens are drawn: the drafts that lead to each of a batch's places.

    Attributes:
        rows: int64 [places], which row each is of; those of a row stand one after another.
        drafts: int32 [places, nodes], at the right end of each; what is before them is -1.
        depths: int32 [places], how many there are.
    """

    rows: Tensor
    drafts: Tensor
    depths: Tensor

    @classmethod
    def of(cls, tokens: Tensor, parents: Tensor | None) -> Paths:
        """The paths to the root and to each node of trees [rows, nodes]; of chains without parents."""
        rows, nodes = tokens.shape
        where = tokens.device
        row = torch.arange(rows, device=where)
        root = torch.full((rows, nodes), NO_TOKEN, dtype=torch.int32, device=where)
        if parents is None:
            drafts = torch.cat([root, tokens.int()], 1).unfold(1, nodes, 1)
            depths = torch.arange(nodes + 1, dtype=torch.int32, device=where).repeat(rows)
        else:
            paths, lengths = [root], [torch.zeros(rows, dtype=torch.int32, device=where)]
            for node in range(nodes):
                # Whatever is said of parents, it is one of the places before.
                parent = (parents[:, node] + 1).clamp(0, node)
                path = torch.stack(paths)[parent, row]
                paths.append(torch.cat([path[:, 1:], tokens[:, node : node + 1].int()], 1))
                lengths.append(torch.stack(lengths)[parent, row] + 1)
            drafts, depths = torch.stack(paths, 1), torch.stack(lengths, 1).flatten()
        return cls(row.repeat_interleave(nodes + 1), drafts.flatten(0, 1), depths)

    def taken(self, places: Tensor) -> Paths:
        """Those of these places [n]."""
        return Paths(self.rows[places], self.drafts[places], self.depths[places])


@dataclass(frozen=True, eq=False)
class Side:
    """One model's part: its logits, and what a draw from them needs; see `device.launch`.

    Attributes:
        logits: float [places, vocabulary], those of a row one after another.
        settings, inputs: of the places.
        workspace: of the places; after `draw` it has their laws.
    """

    logits: Tensor
    settings: device.Settings
    inputs: device.Inputs
    workspace: device.Workspace

    @classmethod
    def of(cls, logits: Tensor, settings: device.Settings, inputs: device.Inputs, **sizes: int) -> Side:
        """The side of a model with room of its own; for sizes see `Workspace`."""
        (places, width), where = logits.shape, logits.device
        room = device.Workspace(places, width, device.needed(settings, inputs, width), where, **sizes)
        return cls(logits, settings, inputs, room)

    def draw(self, entropy: bool = False) -> Draw:
        """A token of each place."""
        return device.launch(self.logits, self.settings, self.inputs, self.workspace, entropy)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What kernels take of it."""
        room = self.workspace
        return (
            *(self.logits, *self.logits.stride(), self.logits.shape[1]),
            *(self.settings.real, self.inputs.slots),
            *(room.plain, room.words, room.masked, room.touched, room.places),
            *(room.edited_values, room.capacity),
            *(room.tops, room.turns, room.lasts, room.sums),
        )


def launch(target: Side, drafter: Side | None, trees: Trees, policies: Mapping[int, Policy]) -> Verified:
    """Judge each row's drafts.

    Args:
        target: of rows * (nodes + 1) places.
        drafter: of rows * nodes places, where the parents of nodes are; None for drafts without a law, which
            are certain.
        trees: the drafts.
        policies: of flags.

    Raises:
        ValueError: a row is flagged whose policy is "raise"; only with such a policy does it wait.
    """
    rows, nodes = trees.tokens.shape
    where = target.logits.device
    found = Verified(
        accepted=torch.zeros(rows, dtype=torch.int64, device=where),
        tokens=torch.full((rows, nodes + 1), NO_TOKEN, device=where),
        logprobs=torch.full((rows, nodes + 1), -torch.inf, device=where),
        path=torch.full((rows, nodes), NO_TOKEN, device=where),
        flags=torch.zeros(rows, dtype=torch.uint8, device=where),
    )
    if not rows:
        return found
    draw = target.draw(entropy=TYPICAL in trees.kinds)
    # Where a row does not get, its flags count for nothing.
    patient = {flag: "flag" if policy == "raise" else policy for flag, policy in policies.items()}
    settled = device.settle(draw, target.logits, target.settings, target.inputs, target.workspace, patient)
    other = target if drafter is None else drafter
    if drafter is not None:
        drafter.draw()
    by_laws = bool(trees.kinds & set(USE_LAWS))
    left = torch.empty(rows if by_laws else 0, target.workspace.width, dtype=torch.float64, device=where)
    asked = (
        *(trees.tokens, trees.parents, nodes, trees.methods, trees.coins),
        *(target.inputs.seeds, target.inputs.positions, target.inputs.stream),
    )
    results = left, found.accepted, found.tokens, found.logprobs, found.path, found.flags
    how: dict[str, Any] = {"BLOCK": target.workspace.step, "num_warps": 8, **LAUNCH}
    if trees.kinds - {BLOCK}:
        walk[(rows,)](
            *target.arguments, *other.arguments, target.workspace.firsts, *asked,
            settled.tokens, settled.logprobs, draw.processed.entropy, draw.flags, *results,
            CERTAIN=drafter is None, NODES=layout.bits(nodes), **how,
        )  # fmt: skip
    if BLOCK in trees.kinds:
        block[(rows,)](
            *target.arguments, *other.arguments, *asked,
            settled.tokens, settled.logprobs, draw.flags, *results,
            CERTAIN=drafter is None, **how,
        )  # fmt: skip
    for flag, policy in policies.items():
        if policy == "raise":
            flagged = (found.flags & flag) != 0
            if bool(flagged.any()):
                raise ValueError(f"rows {flagged.nonzero()[:10, 0].tolist()}: {SAYS[flag]}")
    return found
