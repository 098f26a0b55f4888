"""Where the requests of an engine stand in their grammars, if logits are on the host: one matcher a slot.

Tensors answer for a whole batch by some hundred small operators, which on a CPU take milliseconds. A matcher
takes 20 microseconds, and masking 128k logits as many.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from torch import Tensor

from sortition.grammars import accelerate, masking
from sortition.grammars.matcher import Matcher
from sortition.grammars.reader import Mask
from sortition.grammars.table import Table
from sortition.integrations.vllm_compile import Compiler
from sortition.integrations.vllm_request import Request
from sortition.integrations.vllm_slots import Admission, News
from sortition.sampling.host_constraint import INFINITY, fit, let_end


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

    def allowed(self, width: int, lost: bool) -> Mask:
        """Which tokens may come next, uint32 [ceil(width / 32)]; if the text is lost, only end tokens may."""
        mask = np.zeros(-(-width // 32), np.uint32)
        over = lost or self._over
        if not over:
            fit(mask, self._matcher.allowed(), width)
        let_end(mask, self._end_tokens, over or self._matcher.can_end)
        return mask


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
        kind, infinity = INFINITY[logits.dtype]
        bits, rule_out = logits.view(kind).numpy(), accelerate.best(masking.rule_out)
        for row, slot, tokens, lost in news:
            text = self._texts.get(slot) or self._begin(slot)
            self.refused += sum(not text.read(token) for token in tokens)
            rule_out(bits[row], text.allowed(logits.shape[1], lost), infinity)

    def _begin(self, slot: int) -> _Text:
        request, end_tokens = self._admitted[slot]
        table = self._compiler.table(request)
        if table is None:
            self._compiler.figures.closed_rows += 1
            table = self._closed
        text = self._texts[slot] = _Text(table, end_tokens)
        return text
