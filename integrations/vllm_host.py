"""Where the requests of an engine stand in their grammars, if logits are on the host: one matcher a slot.

Tensors answer for a whole batch at once, in some hundred small operators a step. On the host these take as
long for one row as for ten, milliseconds; a matcher answers for a row in some 20 microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortition.grammars.matcher import Matcher
from sortition.grammars.table import Table
from sortition.integrations.vllm_compile import Compiler
from sortition.integrations.vllm_request import Request
from sortition.integrations.vllm_slots import Admission, News

BITS: Final = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers as wide as a float of so many bytes."""


class _Text:
    """A text in a grammar. Its end tokens may be beyond the vocabulary, which a matcher would refuse."""

    def __init__(self, table: Table, end_tokens: tuple[int, ...]) -> None:
        self._matcher = Matcher(table, end_tokens=())
        self._size = table.vocabulary_size
        self._end_tokens = list(end_tokens)
        self._over = False

    def read(self, token: int) -> bool:
        """Read a token; False if it was not allowed. After that, and after an end, the text is over."""
        if self._over:
            return True
        ends = token in self._end_tokens
        allowed = self._matcher.can_end if ends else token < self._size and self._matcher.advance(token)
        self._over = ends or not allowed
        return allowed

    def allowed(self, width: int, lost: bool) -> NDArray[np.uint8]:
        """1 where a token may come next, [width]; if the text is lost, only end tokens may."""
        eligible = np.zeros(width, np.uint8)
        may_end = lost or self._over
        if not may_end:
            known = min(width, self._size)
            mask = self._matcher.allowed().view(np.uint8)
            eligible[:known] = np.unpackbits(mask, count=known, bitorder="little")
            eligible[self._end_tokens] = 0
            # A text that the depth limit has stranded (see `liveness.py`) has nothing but its end.
            may_end = self._matcher.can_end or not eligible.any()
        if may_end:
            eligible[self._end_tokens] = 1
        return eligible


class HostSlots:
    """What `Slots` is for logits on a device, for those on the host.

    Args:
        compiler: where tables come from.
        closed: the table of the empty text alone.

    Attributes:
        refused: how many texts have read a token that was not allowed.
    """

    def __init__(self, compiler: Compiler, closed: Table) -> None:
        self._compiler = compiler
        self._closed = closed
        self._admitted: dict[int, tuple[Request, tuple[int, ...]]] = {}
        self._texts: dict[int, _Text] = {}
        self.refused = 0

    @property
    def nbytes(self) -> int:
        """Bytes of tables on a device: none, the compiler's own are read."""
        return 0

    def admit(self, slot: int, admission: Admission) -> None:
        """A request takes the slot; if it has a grammar, the compilation begins."""
        self.forget(slot)
        if admission.request is not None:
            self._compiler.hold(admission.request)
            self._admitted[slot] = admission.request, admission.end_tokens

    def forget(self, slot: int) -> None:
        """The slot's request is gone."""
        self.restart(slot)
        admitted = self._admitted.pop(slot, None)
        if admitted is not None:
            self._compiler.release(admitted[0])

    def restart(self, slot: int) -> None:
        """The slot's text begins anew."""
        self._texts.pop(slot, None)

    def constrain(self, logits: Tensor, news: Iterable[News]) -> None:
        """Read the new tokens of these rows, and mask in place what their grammars rule out.

        Waits for grammars that are not compiled yet. Where no eligible token has a logit above -inf, or one
        of them has NaN, they become 0, as in `Constraint.apply`.
        """
        for row, slot, tokens, lost in news:
            text = self._texts.get(slot) or self._begin(slot)
            self.refused += sum(not text.read(token) for token in tokens)
            _apply(logits[row], torch.from_numpy(text.allowed(logits.shape[1], lost)))

    def _begin(self, slot: int) -> _Text:
        request, end_tokens = self._admitted[slot]
        table = self._compiler.table(request)
        if table is None:
            self._compiler.figures.closed_rows += 1
            table = self._closed
        text = self._texts[slot] = _Text(table, end_tokens)
        return text


def _apply(logits: Tensor, eligible: Tensor) -> None:
    """-inf where `eligible` is 0."""
    # By bits: a select (`where`, `masked_fill_`) takes 120 us for 49k tokens, this 30.
    kind = BITS[logits.element_size()]
    bits, keep = logits.view(kind), eligible.to(kind).neg_()
    ruled_out = torch.tensor(float("-inf"), dtype=logits.dtype).view(kind)
    bits.bitwise_xor_(ruled_out).bitwise_and_(keep).bitwise_xor_(ruled_out)
    # The maximum is NaN if anything is, and NaN is not above -inf.
    if not logits.amax() > float("-inf"):
        logits.masked_fill_(eligible.bool(), 0.0)
