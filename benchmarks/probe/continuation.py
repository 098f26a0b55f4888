"""One prompt, read in its batch, and gone on from: token by token, or with drafts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from sortition.benchmarks.probe.evidence import Seen
from sortition.benchmarks.probe.layout import Layout
from sortition.benchmarks.probe.session import Session
from sortition.benchmarks.probe.target import NotPossible, Run, Value
from sortition.integrations.hf_drafters import looked_up


class Continuation:
    """Reads and goes on, and keeps scores, choices and tokens of the prompt's row.

    Args:
        session: of the batch, nothing read yet.
        place: of the prompt in it.
        settings: of the condition.
        choose: scores of one step [rows, vocabulary] and its number -> the token of each row.
        steps: how many tokens.
        forced: the tokens to go on with, whatever is chosen; None to take the choices.
        seen: noted here.

    Raises:
        NotPossible: drafts beside other texts.
    """

    def __init__(
        self,
        session: Session,
        place: Layout,
        settings: Mapping[str, Value],
        choose: Callable[[Tensor, int], list[int]],
        steps: int,
        forced: Sequence[int] | None,
        seen: Seen,
    ) -> None:
        if "drafts" in settings and not place.copies:
            raise NotPossible("drafts are guessed for one text, so its neighbours must be copies")
        self._session = session
        self._place = place
        self._settings = settings
        self._choose = choose
        self._steps = steps
        self._forced = forced
        self._seen = seen
        self._text = list(place.rows[place.row])
        self._scores: list[Tensor] = []
        self._choices: list[int] = []

    def run(self) -> Run:
        """All of it."""
        following = self._take(self._read_prompt()[:, -1])
        while len(self._choices) < self._steps:
            following = self._pass(following)
        row, seen = self._place.row, self._seen
        seen.passes.update(self._session.passes)
        seen.rows.add(row)
        seen.padding.append(self._place.padding[row])
        seen.company.append(not self._place.copies and len(self._place.rows) > 1)
        seen.scores = str(self._scores[0].dtype).removeprefix("torch.")
        tokens = self._text[-self._steps :]
        return Run(tuple(self._choices), tuple(tokens), torch.stack(self._scores))

    def _read_prompt(self) -> Tensor:
        """Read the batch's prompts; the scores of the last pass."""
        session, settings = self._session, self._settings
        whole = session.padded(self._place.rows)
        if settings.get("prefix_cache") == "warm":
            # Another request with the same beginning: all but the last token, then something else.
            shared = whole.shape[1] - 1
            session.read(torch.cat([whole[:, :-1], whole.flip(1)], dim=1))
            session.take_back(session.seen - shared)
            whole = whole[:, -1:]
        self._seen.cached.append(session.seen)
        before = len(session.passes)
        width = int(settings.get("chunk", whole.shape[1]))
        for begin in range(0, whole.shape[1], width):
            latest = session.read(whole[:, begin : begin + width])
        self._seen.prompt_passes.append(len(session.passes) - before)
        return latest

    def _pass(self, following: list[int]) -> list[int]:
        """Read the latest tokens and drafts; keep those that stand, and say what comes next in all rows."""
        guessed = self._guess()
        block = torch.tensor([[token, *guessed] for token in following])
        latest = self._session.read(block, keep=block.shape[1])
        right = 0
        for column in range(block.shape[1]):
            following = self._take(latest[:, column])
            done = column == len(guessed) or len(self._choices) == self._steps
            if done or guessed[column] != self._text[-1]:
                break
            right += 1
        self._session.take_back(len(guessed) - right)
        self._seen.guessed += len(guessed)
        self._seen.accepted += right
        return following

    def _guess(self) -> list[int]:
        """Drafts of what comes next: what is going to be said, where that is known, else prompt lookup."""
        step = len(self._choices)
        count = min(int(self._settings.get("drafts", 0)), self._steps - step - 1)
        if count <= 0:
            return []
        if self._forced is not None:
            return list(self._forced[step : step + count])
        return looked_up(self._text, count)

    def _take(self, scores: Tensor) -> list[int]:
        """One step: the tokens with which all rows go on."""
        step, row = len(self._choices), self._place.row
        chosen = self._choose(scores, step)
        self._seen.lucky += chosen[row] != int(scores[row].float().argmax())
        self._scores.append(scores[row].clone())
        self._choices.append(chosen[row])
        if self._forced is not None:
            chosen[row] = self._forced[step]
        self._text.append(chosen[row])
        return [chosen[row]] * len(chosen) if self._place.copies else chosen
