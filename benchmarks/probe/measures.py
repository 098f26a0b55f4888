"""Two runs of one prompt held against each other, step by step."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sortition.benchmarks.probe.findings import Comparison, Reference
from sortition.benchmarks.probe.target import Run

BITS = {
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.float64: torch.int64,
}
"""Integers as wide as floats, to count units in the last place."""


def digests(run: Run) -> tuple[str, ...]:
    """One for the scores of each step; equal exactly if all their bits and tokens are.

    A step without scores has the digest of its choice.
    """
    if not run.scores.shape[1]:
        return tuple(_digest(str(choice).encode()) for choice in run.choices)
    tokens = [b""] * len(run.scores) if run.ids is None else [_bytes(row) for row in run.ids]
    return tuple(_digest(_bytes(row) + ids) for row, ids in zip(run.scores, tokens, strict=True))


def _bytes(row: Tensor) -> bytes:
    return row.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def reference(text: str, completion: str, run: Run) -> Reference:
    """What is kept of a reference."""
    apart = margins(run)
    return Reference(
        text=text,
        completion=completion,
        tokens=run.tokens,
        digests=digests(run),
        margins=tuple(apart),
        top_probabilities=tuple(_probability(run, step, best(run, step)) for step in range(len(run.choices))),
        ties=tuple(step for step, margin in enumerate(apart) if margin == 0 and run.scores.shape[1] > 1),
    )


def margins(run: Run) -> list[float]:
    """How far the best score is above the second, at each step."""
    return [_margin(row) for row in run.scores]


def _margin(row: Tensor) -> float:
    """How far the best score is above the second; 0 where there is no second."""
    if len(row) < 2:
        return 0.0
    first, second = row.double().topk(2).values.tolist()
    return first - second if math.isfinite(first - second) else 0.0


def best(run: Run, step: int) -> int:
    """The token of the greatest score, the choice where there are none."""
    if not run.scores.shape[1]:
        return run.choices[step]
    column = int(run.scores[step].float().argmax())
    return column if run.ids is None else int(run.ids[step, column])


def _probability(run: Run, step: int, token: int) -> float:
    """Of a token; 0 where its score is not shown."""
    row = run.scores[step].double()
    if run.ids is None:
        return float(torch.softmax(row, 0)[token]) if len(row) else 0.0
    shown = (run.ids[step] == token).nonzero()
    # What shows only some tokens shows log-probabilities.
    return math.exp(float(row[int(shown[0])])) if len(shown) else 0.0


def compare(prompt: int, base: Run, other: Run, completion: str | None = None) -> Comparison:
    """A run held against the reference's, as long as both went on with the same tokens."""
    steps = common_steps(base, other)
    ours, theirs = digests(base)[:steps], digests(other)[:steps]
    differing = [step for step in range(steps) if ours[step] != theirs[step]]
    flips = tuple(step for step in range(steps) if base.choices[step] != other.choices[step])
    apart = {step: _difference(base, other, step) for step in differing}
    first = flips[0] if flips else None
    return Comparison(
        prompt=prompt,
        steps=steps,
        digests=theirs,
        first_difference=differing[0] if differing else None,
        first_flip=first,
        flips=flips,
        differing_steps=len(differing),
        max_abs=max((difference for difference, _ in apart.values()), default=0.0),
        max_ulp=max((units for _, units in apart.values()), default=0),
        margin_at_flip=None if first is None else _margin(base.scores[first]),
        noise_at_flip=None if first is None else apart.get(first, (0.0, 0))[0],
        top_probabilities=tuple(_probability(other, step, best(base, step)) for step in range(steps)),
        completion=completion,
    )


def common_steps(base: Run, other: Run) -> int:
    """Steps whose context was the same: up to and with the first at which they went on differently."""
    pairs = zip(base.tokens, other.tokens, strict=False)
    split = next((step + 1 for step, (one, two) in enumerate(pairs) if one != two), None)
    shorter = min(len(base.choices), len(other.choices))
    return shorter if split is None else min(split, shorter)


def _difference(base: Run, other: Run, step: int) -> tuple[float, int]:
    """Greatest difference of the scores that both show, and in units in the last place."""
    one, two = _aligned(base, other, step)
    finite = torch.isfinite(one) & torch.isfinite(two)
    if not bool(finite.all()) and not torch.equal(one.isfinite(), two.isfinite()):
        # Something is infinite or not a number here and not there: as far apart as can be said in JSON.
        return float(torch.finfo(torch.float64).max), torch.iinfo(torch.int64).max
    one, two = one[finite], two[finite]
    if not len(one):
        return 0.0, 0
    if one.dtype != two.dtype:
        one, two = one.float(), two.float()
    return float((one.double() - two.double()).abs().max()), int((_ordered(one) - _ordered(two)).abs().max())


def _aligned(base: Run, other: Run, step: int) -> tuple[Tensor, Tensor]:
    """The scores of the tokens that both show."""
    one, two = base.scores[step], other.scores[step]
    if base.ids is None or other.ids is None:
        return one, two
    places = {int(token): column for column, token in enumerate(other.ids[step])}
    shared = [
        (column, places[int(token)]) for column, token in enumerate(base.ids[step]) if int(token) in places
    ]
    ours, theirs = [column for column, _ in shared], [column for _, column in shared]
    return one[ours], two[theirs]


def _ordered(values: Tensor) -> Tensor:
    """Integers in the order of floats, neighbours one apart; both zeros are 0."""
    bits = values.contiguous().view(BITS[values.dtype]).to(torch.int64)
    lowest = int(torch.iinfo(BITS[values.dtype]).min)
    return torch.where(bits < 0, lowest - bits, bits)


def margin_noise(base: Run, other: Run) -> list[float]:
    """By how much the difference between the reference's best two scores changed, at each common step."""
    changes = []
    for step in range(common_steps(base, other)):
        one, two = _aligned(base, other, step)
        if len(one) < 2 or torch.equal(one, two):
            changes.append(0.0)
            continue
        top = one.double().topk(2).indices
        change = (two.double() - one.double())[top]
        if bool(torch.isfinite(change).all()):
            changes.append(float(change[0] - change[1]))
    return changes


def deviation(values: Sequence[float]) -> float:
    """The root of the mean square: of noise, whose mean is nought."""
    return math.sqrt(sum(value * value for value in values) / len(values)) if values else 0.0
