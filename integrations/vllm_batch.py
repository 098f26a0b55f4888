"""vLLM's first model runner: rows of a batch that come, move and go; tokens on the host.

It tells of a finished request only if nobody takes its row at once, calls again and again with the same
tokens (prompts in pieces), and takes requests out and in again with what they have emitted so far. So a row
is judged by the engine's own list of its tokens, as it is when the logits are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from torch import Tensor

from sortition.integrations.vllm_compile import Figures
from sortition.integrations.vllm_slots import Admission, Slots
from sortition.sampling.constraint import DEAD


@dataclass(slots=True)
class _Row:
    """A request with a grammar: its slot, the engine's list of its tokens, how many of them were read."""

    slot: int
    output: Sequence[int]
    read: int = 0


class Batch:
    """The rows that have a grammar.

    Args:
        slots: as many as the batch has rows at most.
        figures: where to count.
    """

    def __init__(self, slots: Slots, count: int, figures: Figures) -> None:
        self._slots = slots
        self._figures = figures
        self._rows: dict[int, _Row] = {}
        self._unused = list(range(count))

    def remove(self, row: int) -> None:
        """The row's request is gone."""
        gone = self._rows.pop(row, None)
        if gone is not None:
            self._slots.forget(gone.slot)
            self._unused.append(gone.slot)

    def add(self, row: int, admission: Admission | None, output: Sequence[int]) -> None:
        """A request takes the row, whoever had it; `output` is the engine's own list, which will grow."""
        self.remove(row)
        if admission is not None:
            slot = self._unused.pop()
            self._slots.admit(slot, admission)
            self._rows[row] = _Row(slot, output)

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
        """Logits [rows, vocabulary], changed in place in the rows that have a grammar."""
        if not self._rows:
            return logits
        entries = list(self._rows.values())
        for entry in entries:
            if entry.read > len(entry.output):
                self._slots.restart(entry.slot)
                entry.read = 0
        self._slots.open(entry.slot for entry in entries)
        new = [_known(entry.output[entry.read :]) for entry in entries]
        longest = max(map(len, new))
        plan = [
            # A placeholder is a token that the engine has not shown: what may follow it, nobody knows.
            [
                row,
                entry.slot,
                entry.read + len(tokens) < len(entry.output),
                *tokens,
                *[-1] * (longest - len(tokens)),
            ]
            for (row, entry), tokens in zip(self._rows.items(), new, strict=True)
        ]
        for entry, tokens in zip(entries, new, strict=True):
            entry.read += len(tokens)
        self._figures.unread_tokens += sum(row[2] for row in plan)
        rows, index, unread, *columns = self._slots.upload(plan).unbind(1)
        for column in columns:
            self._slots.read(index, column)
        position = self._slots.constraint.slots.rows(index)
        position = position._replace(state=position.state.masked_fill(unread.bool(), DEAD))
        logits[rows] = self._slots.constraint.apply(logits[rows], position, self._slots.end_tokens[index])
        return logits


def _known(tokens: Iterable[int]) -> list[int]:
    """The tokens before the first placeholder."""
    return list(takewhile(lambda token: token >= 0, tokens))
