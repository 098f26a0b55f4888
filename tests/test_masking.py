"""What a mask does to logits: the definition and the compiled loop, judged by plain torch, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sortition.grammars import masking
from sortition.sampling.host_constraint import INFINITY

ODD = [0.0, -0.0, 1e-40, float("inf"), float("-inf"), float("nan"), -float("nan")]


def judged(logits: Tensor, eligible: Tensor) -> Tensor:
    masked = logits.masked_fill(~eligible, float("-inf"))
    alive = bool(masked.max() > float("-inf"))
    return masked if alive else masked.masked_fill(eligible, 0.0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", INFINITY)
@pytest.mark.parametrize("stride", [1, 3])
def test_logits_are_ruled_out(kind: torch.dtype, stride: int, compiled: bool) -> None:
    loops = pytest.importorskip("sortition.grammars.masking_jit") if compiled else masking
    torch.manual_seed(0)
    integers, infinity = INFINITY[kind]
    ends = set()
    for width in (1, 31, 32, 33, 100, 1000):
        for share in (0.0, 0.02, 0.5, 0.98, 1.0):
            for odd in (0.0, 0.01, 1.0):
                logits = torch.randn(width, stride).to(kind)[:, 0]
                strange = torch.tensor(ODD, dtype=kind)[torch.randint(len(ODD), (width,))]
                logits[:] = torch.where(torch.rand(width) < odd, strange, logits)
                eligible = torch.rand(width) < share
                packed = np.packbits(eligible.numpy(), bitorder="little")
                mask = np.pad(packed, (0, -len(packed) % 4)).view(np.uint32)
                mask.setflags(write=False)
                expected = judged(logits, eligible)
                loops.rule_out(logits.view(integers).numpy(), mask, infinity)
                assert torch.equal(logits.view(integers), expected.view(integers))
                ends.add(bool((expected[eligible] == 0).all()) if bool(eligible.any()) else None)
    assert ends == {True, False, None}


def test_values_of_all_places_decide() -> None:
    """One value above -inf, or one NaN, wherever it is."""
    compiled = pytest.importorskip("sortition.grammars.masking_jit")
    mask = np.full(3, 0xFFFFFFFF, np.uint32)
    for rule_out in (masking.rule_out, compiled.rule_out):
        for place in range(70):
            logits = torch.full((70,), float("-inf"))
            logits[place] = -1.0
            expected = logits.clone()
            rule_out(logits.view(torch.int32).numpy(), mask, INFINITY[torch.float32][1])
            assert torch.equal(logits, expected)
            logits[(place + 1) % 70] = float("nan")
            rule_out(logits.view(torch.int32).numpy(), mask, INFINITY[torch.float32][1])
            assert torch.equal(logits, torch.zeros(70))
