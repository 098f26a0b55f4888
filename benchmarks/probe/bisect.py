"""The first operation whose inputs agree and whose outputs do not, between two runs of one text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from sortition.benchmarks.probe.findings import Operation

OUTPUT_PROJECTIONS: Final = ("o_proj", "out_proj", "c_proj", "dense", "wo")
"""Names of the layer in an attention module that takes what its core has made."""

ATTENTION: Final = "attention"
BEFORE: Final = "before "
"""Kinds of what no module does, but something between the last one and that one."""


@dataclass
class Recorded:
    """What an operation did with one text, by position of its tokens."""

    inputs: dict[int, Tensor] = field(default_factory=dict)
    outputs: dict[int, Tensor] = field(default_factory=dict)


class Recorder:
    """Keeps what every leaf module of a model gets and gives, for one row, while it is entered.

    Values are kept by the position of their token in the text, so that runs can be compared however they
    split the text into passes. What is computed again for a position counts.

    Args:
        model: of torch.
        row: of the text in the batch.

    Attributes:
        operations: by name, in the order in which they first ran.
    """

    def __init__(self, model: torch.nn.Module, row: int) -> None:
        self._model = model
        self._row = row
        self._positions: Sequence[int] = ()
        self._hooks: list[Any] = []
        self.operations: dict[str, Recorded] = {}

    def __enter__(self) -> Recorder:
        for name, module in self._model.named_modules():
            if not list(module.children()):
                self._hooks.append(module.register_forward_hook(self._hook(name)))
        return self

    def __exit__(self, *raised: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def begin(self, positions: Sequence[int]) -> None:
        """See `session.Watcher`."""
        self._positions = positions

    def _hook(self, name: str) -> Any:
        def keep(module: torch.nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if not isinstance(output, Tensor) or output.ndim != 3:
                return
            recorded = self.operations.setdefault(name, Recorded())
            self._keep(recorded.outputs, output)
            if inputs and isinstance(inputs[0], Tensor) and inputs[0].ndim == 3:
                self._keep(recorded.inputs, inputs[0])

        return keep

    def _keep(self, kept: dict[int, Tensor], values: Tensor) -> None:
        # Modules without rows (rotary tables) have one for all; the last layer may have fewer columns.
        row = values[self._row if len(values) > self._row else 0]
        positions = self._positions[-len(row) :]
        for position, value in zip(positions, row, strict=True):
            if position >= 0:
                kept[position] = value.detach().clone()


@dataclass(frozen=True)
class Located:
    """Where two runs part.

    Attributes:
        operations: all compared, in the order in which the model computes a token.
        first: index of the culprit among them; None if all agree.
        position: of the first token for which it differs.
        relative: difference of its outputs, relative to the greatest of them.
        unit: relative rounding of its outputs' dtype.
    """

    operations: tuple[Operation, ...]
    first: int | None
    position: int | None
    relative: float
    unit: float


def locate(base: Mapping[str, Recorded], other: Mapping[str, Recorded]) -> Located:
    """The first operation that differs, anywhere: all before it agree at all positions, and so its inputs.

    What happens between modules shows in the inputs of the next one: before an output projection it is the
    core of attention, elsewhere whatever "before" that module is done.
    """
    operations: list[Operation] = []
    culprit: tuple[int, _Apart] | None = None
    for name in (each for each in base if each in other):
        ours, theirs = base[name], other[name]
        given, made = _apart(ours.inputs, theirs.inputs), _apart(ours.outputs, theirs.outputs)
        if _is_output_projection(name):
            steps = [(f"{_parent(name)}.{ATTENTION}", ATTENTION, given), (name, _leaf(name), made)]
        elif culprit is None and given.positions:
            steps = [(f"{BEFORE}{name}", f"{BEFORE}{_leaf(name)}", given), (name, _leaf(name), made)]
        else:
            steps = [(name, _leaf(name), made)]
        for title, kind, apart in steps:
            inputs_equal = culprit is None if len(steps) > 1 and apart is given else not given.positions
            operations.append(
                Operation(title, kind, _layer(name), inputs_equal, not apart.positions, apart.max_abs)
            )
            if culprit is None and apart.positions:
                culprit = len(operations) - 1, apart
    if culprit is None:
        return Located(tuple(operations), None, None, 0.0, 0.0)
    index, apart = culprit
    return Located(tuple(operations), index, apart.positions[0], apart.relative, apart.unit)


def _is_output_projection(name: str) -> bool:
    return _leaf(name) in OUTPUT_PROJECTIONS and "attn" in _parent(name).lower().replace("attention", "attn")


@dataclass(frozen=True)
class _Apart:
    """How two records of the same values differ."""

    positions: tuple[int, ...]
    max_abs: float
    relative: float
    unit: float


def _apart(ours: Mapping[int, Tensor], theirs: Mapping[int, Tensor]) -> _Apart:
    shared = sorted(ours.keys() & theirs.keys())
    differing = tuple(at for at in shared if not _same(ours[at], theirs[at]))
    if not differing:
        return _Apart((), 0.0, 0.0, 0.0)
    apart = ((ours[at].double() - theirs[at].double()).abs().nan_to_num(torch.inf) for at in differing)
    greatest = min(max(float(each.max()) for each in apart), torch.finfo(torch.float64).max)
    scale = max(float(ours[at].double().abs().max()) for at in shared)
    unit = torch.finfo(ours[differing[0]].dtype).eps
    return _Apart(differing, greatest, greatest / max(scale, unit), unit)


def _same(ours: Tensor, theirs: Tensor) -> bool:
    return ours.dtype == theirs.dtype and torch.equal(ours, theirs)


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _layer(name: str) -> int | None:
    return next((int(part) for part in name.split(".") if part.isdigit()), None)
