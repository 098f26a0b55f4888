"""What becomes of rows that cannot be drawn from as they are: policies, and how rows are mended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from sortition.grammars.table import Table
from sortition.sampling import reference
from sortition.sampling.columns import Columns
from sortition.sampling.draw import EMPTY, INFINITE, NAN, Backend, Draw, Request
from sortition.sampling.parameters import FILTERS, Parameters
from sortition.sampling.whole_numbers import whole

Policy: TypeAlias = Literal["flag", "raise", "mend"] | int
"""What becomes of a row that cannot be drawn from as it is: see `Sampler`."""

SAYS: Final = {
    EMPTY: "no token is left to draw",
    NAN: "the logit of a token that may be drawn is NaN",
    INFINITE: "the logit of a token that may be drawn is +inf",
}


def policy_of(name: str, value: Any) -> Policy:
    """The policy that a caller gives by this name.

    Raises:
        ValueError: there is no such policy.
        TypeError: a token that is not whole.
    """
    if isinstance(value, str):
        if value not in ("flag", "raise", "mend"):
            raise ValueError(f"{name} is 'flag', 'raise', 'mend' or a token, not {value!r}")
        return cast(Policy, value)
    token = whole(name, value)
    if token < 0:
        raise ValueError(f"{name} is 'flag', 'raise', 'mend' or a token, not {value!r}")
    return token


def settled(
    draw: Draw, logits: Tensor, request: Request, backend: Backend, policies: Mapping[int, Policy]
) -> Draw:
    """The draw with flagged rows as their policies want them.

    Args:
        draw: what the backend drew.
        logits: float [rows, vocabulary], on the host.
        request: of the rows.
        backend: what draws again.
        policies: of each flag.

    Raises:
        ValueError: a row is flagged whose policy is "raise".
    """
    pending, mended = draw.flags.clone(), logits.to(torch.float32, copy=True)
    for flag, mend in MENDS:
        policy = policies[flag]
        rows = torch.nonzero(pending & flag)[:, 0]
        if not len(rows):
            continue
        if policy == "raise":
            raise ValueError(f"rows {rows.tolist()[:10]}: {SAYS[flag]}")
        pending[rows] = 0
        if policy == "mend":
            mended[rows], part = mend(mended[rows], request.rows(np.asarray(rows.numpy())))
            again = backend(mended[rows], part)
            draw = draw.with_rows(rows, again)
            pending[rows] = again.flags
        elif policy != "flag":
            draw = replace(draw, tokens=draw.tokens.index_fill(0, rows, policy))
    if draw.raw is None:
        return draw
    # The raw law is that of the logits as they came, whatever was drawn in the end.
    for row in torch.nonzero(draw.flags)[:, 0].tolist():
        law = reference.raw_law(logits[row].float().numpy())
        draw.raw.logprobs[row] = float(law.logprob(int(draw.tokens[row])))
    return draw


Mend: TypeAlias = Callable[[Tensor, Request], tuple[Tensor, Request]]
"""Logits of flagged rows and their request -> what can perhaps be drawn from."""


def _without_nan(logits: Tensor, request: Request) -> tuple[Tensor, Request]:
    return logits.masked_fill(logits.isnan(), -torch.inf), request


def _only_infinite(logits: Tensor, request: Request) -> tuple[Tensor, Request]:
    return torch.where(logits == torch.inf, 0.0, -torch.inf), request


def _without_edits(logits: Tensor, request: Request) -> tuple[Tensor, Request]:
    kept = ("temperature", *FILTERS, "order", "ties", "min_keep")
    plain = [
        Parameters(**{name: getattr(each, name) for name in kept}) for each in request.columns.parameters
    ]
    return logits.masked_fill(~logits.isfinite(), -torch.inf), replace(request, columns=Columns.of(plain))


def _all_as_likely(logits: Tensor, request: Request) -> tuple[Tensor, Request]:
    plain = replace(request, columns=Columns.of([Parameters()] * len(logits)))
    return torch.zeros_like(logits), plain


MENDS: Final[tuple[tuple[int, Mend], ...]] = (
    (NAN, _without_nan),
    (INFINITE, _only_infinite),
    (EMPTY, _without_edits),
    (EMPTY, _all_as_likely),
)
"""In the order in which flags count; a mended row may show a later one."""


def last_of_text(tables: Sequence[Table]) -> int:
    """The greatest token that some text of the grammars has, -1 for none."""
    return max((int(np.flatnonzero(table.token_class).max(initial=-1)) for table in tables), default=-1)


def check_width(width: int, last: int, end_tokens: tuple[int, ...], policies: Mapping[int, Policy]) -> None:
    """That what is named has a logit.

    Args:
        width: of logits.
        last: the greatest token of the grammars' texts.
        end_tokens: in order.
        policies: of flags.

    Raises:
        ValueError: such a token, an end token or a policy is a token beyond logits of this width.
    """
    if last >= width:
        raise ValueError(f"token {last} of the grammar's vocabulary is beyond logits of {width} tokens")
    if end_tokens and end_tokens[-1] >= width:
        raise ValueError(f"end token {end_tokens[-1]} is beyond logits of {width} tokens")
    for policy in policies.values():
        if not isinstance(policy, str) and policy >= width:
            raise ValueError(f"a policy is token {policy}, and there are {width} tokens")
