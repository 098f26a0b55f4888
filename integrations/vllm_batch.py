"""vLLM's first model runner: rows of a batch that come, move and go; tokens on the host.

It tells of a finished request only if nobody takes its row at once, calls again and again with the same
tokens (prompts in pieces), and takes requests out and in again with what they have emitted so far. So a row
is judged by the engine's own list of its tokens, as it is when the logits are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from torch import Tensor

from sortition.integrations.vllm_compile import Figures
from sortition.integrations.vllm_draw import NO_TOKENS, Drawer, Tokens, Turn, Wish
from sortition.integrations.vllm_host import HostSlots
from sortition.integrations.vllm_slots import Admission, News, Slots


@dataclass(slots=True)
class _Row:
    """A request of ours: its slot, the engine's list of its tokens, how many of them were read."""

    admission: Admission
    slot: int
    prompt: Tokens
    output: Sequence[int]
    read: int = 0

    @property
    def lost(self) -> bool:
        """Whether there are tokens that were not read."""
        return self.read < len(self.output)


class Batch:
    """The rows whose requests are ours.

    Args:
        slots: where the logits are; as many as the batch has rows at most.
        count: how many those are.
        drawer: of this engine.
        figures: where to count.
    """

    def __init__(self, slots: Slots | HostSlots, count: int, drawer: Drawer, figures: Figures) -> None:
        self._slots = slots
        self._drawer = drawer
        self._figures = figures
        self._rows: dict[int, _Row] = {}
        self._unused = list(range(count))

    def remove(self, row: int) -> None:
        """The row's request is gone."""
        gone = self._rows.pop(row, None)
        if gone is not None:
            self._slots.forget(gone.slot)
            self._unused.append(gone.slot)

    def add(
        self,
        row: int,
        admission: Admission | None,
        output: Sequence[int],
        prompt: Sequence[int] | None = None,
    ) -> None:
        """A request takes the row, whoever had it.

        Args:
            row: of the batch.
            admission: None for a request that is not ours.
            output: the engine's own list of its tokens, which will grow.
            prompt: ids, None where the prompt is not made of tokens.
        """
        self.remove(row)
        if admission is not None:
            slot = self._unused.pop()
            self._slots.admit(slot, admission)
            sees = admission.wish is not None and admission.wish.sees_history
            ids = np.array(prompt or (), np.int64) if sees else NO_TOKENS
            self._rows[row] = _Row(admission, slot, ids, output)

    def move(self, source: int, target: int) -> None:
        """A request moves to another row, whoever had it."""
        self.remove(target)
        if source in self._rows:
            self._rows[target] = self._rows.pop(source)

    def swap(self, one: int, other: int) -> None:
        """Two rows change places."""
        ours = {row: self._rows.pop(row) for row in (one, other) if row in self._rows}
        for row, entry in ours.items():
            self._rows[other if row == one else one] = entry

    def mask(self, logits: Tensor) -> Tensor:
        """Logits [rows, vocabulary], changed in place in the rows that are ours."""
        news = {row: self._news(entry) for row, entry in self._rows.items()}
        self._figures.unread_tokens += sum(entry.lost for entry in self._rows.values())
        constrained = [
            News(row, entry.slot, news[row], entry.lost)
            for row, entry in self._rows.items()
            if entry.admission.request is not None
        ]
        if constrained:
            self._slots.constrain(logits, constrained)
        turns = [
            _turn(row, entry, entry.admission.wish)
            for row, entry in self._rows.items()
            if entry.admission.wish is not None
        ]
        return self._drawer(logits, turns) if turns else logits

    def _news(self, entry: _Row) -> list[int]:
        """The tokens that were not read before; now they are."""
        if entry.read > len(entry.output):
            if entry.admission.request is not None:
                self._slots.restart(entry.slot)
            entry.read = 0
        # A placeholder is a token that the engine has not shown: what may follow it, nobody knows.
        tokens = _known(entry.output[entry.read :])
        entry.read += len(tokens)
        return tokens


def _turn(row: int, entry: _Row, wish: Wish) -> Turn:
    return Turn(
        row,
        wish,
        position=len(entry.output),
        end_tokens=entry.admission.end_tokens,
        constrained=entry.admission.request is not None,
        prompt=entry.prompt,
        output=np.array(entry.output, np.int64) if wish.sees_history else NO_TOKENS,
        lost=entry.lost,
    )


def _known(tokens: Iterable[int]) -> list[int]:
    """The tokens before the first placeholder."""
    return list(takewhile(lambda token: token >= 0, tokens))
