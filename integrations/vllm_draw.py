"""Draws that are ours: what a request asks for beside vLLM's own parameters, and rows with one token left.

A row that is drawn here goes back to vLLM with 0 at its token and -inf at all others: whatever temperature,
filter, penalty or verification comes after us, that token is what it emits.

Nothing here raises once a request is admitted. NaN counts as -inf. Where a row cannot be drawn from even so,
it is one of the tokens whose logit is +inf, if that is what is wrong with it; else one of those that its
grammar allows, and without a grammar the text ends: each as likely as the other.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortition.integrations.vllm_compile import Figures, logger
from sortition.integrations.vllm_request import RequestError
from sortition.sampling import reference
from sortition.sampling.columns import Columns
from sortition.sampling.draw import INFINITE, NAN, Backend, Draw, Request
from sortition.sampling.parameters import Parameters
from sortition.sampling.sampler import BACKENDS

ONCE: Final = ("logit_bias", "repetition_penalty", "presence_penalty", "frequency_penalty")
"""What vLLM does to the logits in any case, so that a field of ours would do it again."""

Tokens = NDArray[np.int64]

NO_TOKENS: Final[Tokens] = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Penalties:
    """What the first model runner would do after us, so that it is done before: vLLM's own penalties."""

    repetition: float
    frequency: float
    presence: float

    @classmethod
    def of(cls, sampling_params: Any) -> Penalties | None:
        """Those of a request, None where they change nothing."""
        own = cls(
            sampling_params.repetition_penalty,
            sampling_params.frequency_penalty,
            sampling_params.presence_penalty,
        )
        return None if own == cls(1.0, 0.0, 0.0) else own

    def apply(self, values: Tensor, prompt: Tokens, output: Tokens) -> None:
        """Change the logits [vocabulary] of a row in place, as `apply_all_penalties` of vLLM does."""
        width = len(values)
        known = np.concatenate([prompt, output])
        seen = torch.from_numpy(np.unique(known[(known >= 0) & (known < width)]))
        values[seen] = torch.where(
            values[seen] > 0, values[seen] / self.repetition, values[seen] * self.repetition
        )
        emitted, counts = np.unique(output[output >= 0], return_counts=True)
        loss = self.frequency * torch.from_numpy(counts).float() + self.presence
        values[torch.from_numpy(emitted)] -= loss


@dataclass(frozen=True, slots=True, eq=False)
class Wish:
    """How a request's tokens are drawn.

    Attributes:
        parameters: of our sampler.
        seed: an integer of 64 bits with a sign.
        penalties: what vLLM would do after us, None for nothing.
    """

    parameters: Parameters
    seed: int
    penalties: Penalties | None = None

    @property
    def sees_history(self) -> bool:
        """Whether draws depend on which tokens came before."""
        return self.penalties is not None or self.parameters.sees_history


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """A row that is to be drawn.

    Attributes:
        row: of the logits.
        wish: of its request.
        position: tokens generated before this one.
        end_tokens: ids that end a text.
        constrained: whether a grammar's mask is in the logits.
        prompt, output: the tokens before this one, if the wish looks at them.
        lost: whether what came before is not known, so that the text may only end.
    """

    row: int
    wish: Wish
    position: int
    end_tokens: tuple[int, ...]
    constrained: bool
    prompt: Tokens
    output: Tokens
    lost: bool = False


def parameters_of(asked: Mapping[str, Any], sampling_params: Any) -> Parameters:
    """The parameters of a draw: our fields, and vLLM's own for what it would do after us.

    Args:
        asked: see `Asked.draw`.
        sampling_params: vLLM's, of the same request.

    Raises:
        RequestError: a value is out of its bounds, or both say how logits change.
    """
    for name in ONCE:
        value = getattr(sampling_params, name)
        if name in asked and value and value != getattr(_NEUTRAL, name):
            raise RequestError(
                f"{name!r} is among our fields, and the request itself (or the model's generation config) "
                f"says {value!r:.40}; say it once"
            )
    theirs = {
        "temperature": float(sampling_params.temperature),
        "top_k": int(sampling_params.top_k),
        "top_p": float(sampling_params.top_p),
        "min_p": float(sampling_params.min_p),
    }
    try:
        return Parameters(**{**theirs, **asked})
    except ValueError as error:
        raise RequestError(str(error)) from None


_NEUTRAL: Final = Parameters()


def within(parameters: Parameters, width: int, end_tokens: tuple[int, ...]) -> Parameters:
    """The parameters without the tokens that a vocabulary of this width does not have.

    The API server cannot say how many there are. Where no token is left that is allowed, the text may end.
    """
    allowed = parameters.allowed_tokens
    if allowed is not None:
        allowed = tuple(token for token in allowed if token < width) or end_tokens
    return replace(
        parameters,
        logit_bias={token: bias for token, bias in parameters.logit_bias.items() if token < width},
        allowed_tokens=allowed,
        bad_words=tuple(phrase for phrase in parameters.bad_words if max(phrase) < width),
    )


class Seeds:
    """Seeds for requests that bring none: by the order of their admission, which all ranks share.

    Args:
        engine: the seed of the engine.
        replica: which of the engines that share the work this is.
    """

    def __init__(self, engine: int, replica: int) -> None:
        self._key = f"{engine} {replica}"
        self._count = 0

    def next(self) -> int:
        """64 bits with a sign."""
        self._count += 1
        digest = hashlib.blake2b(f"{self._key} {self._count}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True)


class Drawer:
    """Draws rows of an engine.

    Args:
        figures: where to count.
    """

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._parameters: list[Parameters] = []
        self._columns = Columns.of(())
        # It loads numba when it first draws, not before: vLLM does not start where numba has been loaded.
        self._backend: Backend = BACKENDS.get("cpu", reference.draw_rows)

    def __call__(self, logits: Tensor, turns: Sequence[Turn]) -> Tensor:
        """Logits float32 [rows, vocabulary], changed in place: rows that have a turn are left one token.

        The draw happens on the host: logits of another device are waited for, and these rows copied.
        """
        begin = time.perf_counter()
        rows = torch.tensor([turn.row for turn in turns]).to(logits.device)
        values = logits[rows].cpu()
        for row, turn in zip(values, turns, strict=True):
            if turn.wish.penalties is not None:
                turn.wish.penalties.apply(row, turn.prompt, turn.output)
        tokens = self._tokens(values, turns)
        logits[rows] = float("-inf")
        logits[rows, tokens.to(logits.device)] = 0.0
        self._figures.drawn_rows += len(turns)
        self._figures.draw_seconds += time.perf_counter() - begin
        return logits

    def _draw(self, values: Tensor, request: Request) -> Draw:
        try:
            return self._backend(values, request)
        except Exception:
            # Whatever goes wrong here, an exception would take the engine and all its requests with it.
            if self._backend is reference.draw_rows:
                raise
            logger.exception("the fast backend does not draw; from now on the slow one does")
            self._backend = reference.draw_rows
            return self._backend(values, request)

    def _tokens(self, values: Tensor, turns: Sequence[Turn]) -> Tensor:
        """int64 [rows], never negative."""
        request = self._request(turns)
        draw = self._draw(values, request)
        lost = np.array([turn.lost for turn in turns])
        flags = draw.flags.numpy()
        for_nan = np.flatnonzero(flags & NAN)
        if len(for_nan):
            index = torch.from_numpy(for_nan)
            sane = values[index].masked_fill(values[index].isnan(), float("-inf"))
            again = self._draw(sane, request.rows(for_nan))
            draw = draw.with_rows(index, again)
            flags = draw.flags.index_copy(0, index, again.flags).numpy()
        self._figures.mended_rows += int(((draw.flags.numpy() != 0) | lost).sum())
        broken = np.flatnonzero(flags | lost)
        if not len(broken):
            return draw.tokens
        index = torch.from_numpy(broken)
        elected = self._elected(
            values[index], flags[broken], request.rows(broken), [turns[row] for row in broken]
        )
        return draw.tokens.index_copy(0, index, elected)

    def _elected(
        self, values: Tensor, flags: NDArray[np.uint8], request: Request, turns: Sequence[Turn]
    ) -> Tensor:
        """The tokens of rows that cannot be drawn from: see the module."""
        eligible = values != float("-inf")
        certain = values == float("inf")
        for row, (turn, flag) in enumerate(zip(turns, flags.tolist(), strict=True)):
            if flag & INFINITE and not turn.lost and bool(certain[row].any()):
                eligible[row] = certain[row]
            elif turn.lost or not turn.constrained:
                eligible[row] = False
                eligible[row, list(turn.end_tokens)] = True
        even = torch.where(eligible, 0.0, float("-inf"))
        plain = replace(request, columns=Columns.of([_NEUTRAL] * len(turns)))
        return self._draw(even, plain).tokens

    def _request(self, turns: Sequence[Turn]) -> Request:
        return Request(
            columns=self._columns_of([turn.wish.parameters for turn in turns]),
            seeds=np.array([turn.wish.seed for turn in turns], np.int64),
            positions=np.array([turn.position for turn in turns], np.int64),
            prompt=_padded([turn.prompt for turn in turns]),
            output=_padded([turn.output for turn in turns]),
            end_tokens=_padded([turn.end_tokens for turn in turns]),
        )

    def _columns_of(self, parameters: list[Parameters]) -> Columns:
        """Of these very objects: from one step to the next, most batches do not change."""
        if list(map(id, parameters)) != list(map(id, self._parameters)):
            self._parameters, self._columns = parameters, Columns.of(parameters)
        return self._columns


def _padded(rows: Sequence[Sequence[int] | Tokens]) -> Tokens:
    """int64 [rows, longest], filled up with -1."""
    padded = np.full((len(rows), max(map(len, rows))), -1, np.int64)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    return padded
