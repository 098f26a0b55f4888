"""Sampler: logits of a batch in, a token for each row out.

A draw is a function of the row's logits, its parameters, its seed and how many tokens it has generated. It
depends on nothing else: not on other rows, the batch's size, or the row's place in it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortition.grammars.vocabulary import Vocabulary
from sortition.sampling import reference
from sortition.sampling.columns import Columns
from sortition.sampling.constraint import FREE, Constraint, Position
from sortition.sampling.draw import EMPTY, INFINITE, NAN, Backend, Draw, Request
from sortition.sampling.numerics import WIDEST
from sortition.sampling.parameters import Parameters, Ties
from sortition.sampling.rules import Constrain, Rule

Policy: TypeAlias = Literal["flag", "raise", "mend"] | int
"""What becomes of a row that cannot be drawn from as it is: see `Sampler`."""

BACKENDS: Final[dict[str, Backend]] = {"reference": reference.draw_rows}
"""By name; all of them give the same bits."""


@dataclass(frozen=True, eq=False)
class State:
    """What a batch's next draws depend on beside logits and parameters. A value: rows may be picked at will.

    Attributes:
        seeds: int64 [rows].
        positions: int64 [rows], tokens generated so far.
        prompt: int64 [rows, n], ids of the prompts; negative ones are padding.
        output: int64 [rows, m], ids generated so far, as far as any parameter looks at them.
        grammar: where rows are in their grammars, None without any.
    """

    seeds: NDArray[np.int64]
    positions: NDArray[np.int64]
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    grammar: Position | None = None

    def __len__(self) -> int:
        return len(self.seeds)

    def rows(self, index: Sequence[int] | NDArray[np.int64]) -> State:
        """These rows, in this order."""
        at = np.asarray(index, np.int64)
        grammar = self.grammar
        if grammar is not None:
            grammar = grammar.rows(torch.from_numpy(at).to(grammar.state.device))
        return State(self.seeds[at], self.positions[at], self.prompt[at], self.output[at], grammar)


class Sampler:
    """Draws a token for every row of a batch.

        sampler = Sampler(vocabulary, Constrain(table), Temperature(0.7), TopP(0.95))
        state = sampler.start(rows=32, seed=7)
        draw = sampler(logits, state)
        state = sampler.advance(state, draw.tokens)

    A row whose logits are all -inf, or hold NaN or +inf among the tokens that it may draw, is flagged. What
    it draws is up to the policy for that flag: with "flag" the token is -1; with "raise" the call fails; with
    a number it is that token; with "mend" the row is drawn again, NaN taken for -inf, +inf for the only
    candidates, and where nothing is left, whatever the row's grammar allows, each as likely as the other.

    Args:
        parts: the vocabulary if a rule needs it, rules (each at most once), and `Constrain`, in any order.
        order: a preset of `ORDERS`, or "given" for the order of the rules as they were given.
        ties: whether a cut by rank or mass may part tokens of equal logits; see `Parameters`.
        penalty_window: how many of the last tokens penalties see, instead of what the order says.
        end_tokens: ids that end a text, instead of the vocabulary's.
        top: how many of the most likely tokens to report.
        entropy: whether to report entropies.
        raw: whether to report the law of the logits as they come, too.
        on_empty, on_nan, on_infinite: policies.
        backend: which implementation draws.

    Raises:
        ValueError: rules that contradict each other, or something out of its bounds.
        TypeError: a part that is none.
    """

    def __init__(
        self,
        *parts: Vocabulary | Rule | Constrain,
        order: str = "vllm",
        ties: Ties = "exact",
        penalty_window: int | None = None,
        end_tokens: Iterable[int] | None = None,
        top: int = 0,
        entropy: bool = False,
        raw: bool = False,
        on_empty: Policy = "flag",
        on_nan: Policy = "flag",
        on_infinite: Policy = "flag",
        backend: str = "reference",
    ) -> None:
        vocabulary, constrain, self._rules = _sorted(parts)
        stages = tuple(_stage(part) for part in parts if not isinstance(part, Vocabulary))
        self._shared: dict[str, Any] = {
            "order": stages if order == "given" else order,
            "ties": ties,
            "penalty_window": penalty_window,
        }
        tables = () if constrain is None else constrain.tables
        self._tables = list(dict.fromkeys(table for table in tables if table is not None))
        self._grammars = [FREE if table is None else self._tables.index(table) for table in tables]
        ends: Iterable[int] = ()
        if end_tokens is not None:
            ends = end_tokens
        elif vocabulary is not None:
            ends = vocabulary.end_tokens
        elif self._tables:
            ends = self._tables[0].end_tokens.tolist()
        self._end_tokens = tuple(sorted(set(ends)))
        if "min_tokens" in stages and not self._end_tokens:
            raise ValueError("min_tokens rules out end tokens, and no vocabulary says which they are")
        self._constraints: dict[torch.device, Constraint] = {}
        self._policies = {EMPTY: on_empty, NAN: on_nan, INFINITE: on_infinite}
        for policy in self._policies.values():
            if policy not in ("flag", "raise", "mend") and not isinstance(policy, int):
                raise ValueError(f"a policy is 'flag', 'raise', 'mend' or a token, not {policy!r}")
        self._report: dict[str, Any] = {"top": top, "entropy": entropy, "raw": raw}
        if backend not in BACKENDS:
            raise ValueError(f"unknown backend {backend!r}; there are {', '.join(BACKENDS)}")
        self._backend = BACKENDS[backend]
        self._columns: dict[int, Columns] = {}
        self._columns_of(max([1, *(len(rule) for rule in self._rules)]))

    def __repr__(self) -> str:
        return f"Sampler({', '.join(map(repr, self._rules))}, order={self._shared['order']!r})"

    def start(
        self,
        rows: int,
        seed: int | Sequence[int] | None = None,
        prompts: Sequence[Sequence[int]] | Tensor | None = None,
    ) -> State:
        """The state of rows that have generated nothing.

        Args:
            rows: how many.
            seed: one for each row; or one for the first, and each further row has the next number; without,
                everyone gets a random one.
            prompts: ids of each row's prompt, for rules that look at it; negative ones are padding.

        Raises:
            ValueError: seeds or prompts of another number of rows.
        """
        if seed is None:
            seeds = [secrets.randbits(63) for _ in range(rows)]
        elif isinstance(seed, int):
            seeds = [seed + row for row in range(rows)]
        else:
            seeds = [int(each) for each in seed]
        prompt = padded([[]] * rows if prompts is None else prompts)
        for name, count in (("seeds", len(seeds)), ("prompts", len(prompt))):
            if count != rows:
                raise ValueError(f"{count} {name} for {rows} rows")
        grammar = None
        if self._tables:
            grammar = self._constraint(torch.device("cpu")).start(torch.tensor(self._grammar_of(rows)))
        return State(
            seeds=np.array([_signed(each) for each in seeds], np.int64),
            positions=np.zeros(rows, np.int64),
            prompt=prompt,
            output=np.zeros((rows, 0), np.int64),
            grammar=grammar,
        )

    def __call__(self, logits: Tensor, state: State) -> Draw:
        """Draw a token for each row.

        Args:
            logits: float [rows, vocabulary], of any floating type, strides and device; not changed.
            state: of the rows.

        Raises:
            ValueError: the shapes do not fit, a rule names a token beyond the logits, or a row is flagged
                whose policy is "raise".
        """
        _check_logits(logits, len(state))
        columns = self._columns_of(len(state))
        columns.check(logits.shape[1])
        request = Request(
            columns=columns,
            seeds=state.seeds,
            positions=state.positions,
            prompt=state.prompt,
            output=state.output,
            end_tokens=np.tile(np.array(self._end_tokens, np.int64), (len(state), 1)),
            grammar=self._allowed(state, logits.shape[1]),
            **self._report,
        )
        # Until kernels draw on the device, rows come to the host.
        draw = self._backend(logits.cpu(), request)
        if bool(draw.flags.any()):
            draw = self._settled(draw, logits.cpu(), request)
        return draw if logits.device.type == "cpu" else draw.to(logits.device)

    def advance(self, state: State, tokens: Tensor | Sequence[int]) -> State:
        """The state after each row has generated a token; a negative one is none, and the row stays."""
        ids = torch.as_tensor(tokens).to("cpu", torch.int64)
        if ids.shape != (len(state),):
            raise ValueError(f"{tuple(ids.shape)} tokens for {len(state)} rows")
        output = state.output
        if any(each.sees_history for each in self._columns_of(len(state)).parameters):
            output = np.concatenate([output, ids.numpy()[:, None]], axis=1)
        grammar = state.grammar
        if grammar is not None:
            grammar = self._constraint(grammar.state.device).step(grammar, ids)
        positions = state.positions + (ids.numpy() >= 0)
        return replace(state, positions=positions, output=output, grammar=grammar)

    def _allowed(self, state: State, width: int) -> NDArray[np.bool_] | None:
        if state.grammar is None:
            return None
        constraint = self._constraint(state.grammar.state.device)
        return np.asarray(constraint.allowed(state.grammar, width).numpy())

    def _settled(self, draw: Draw, logits: Tensor, request: Request) -> Draw:
        """The draw with flagged rows as their policies want them; of two flags, the graver one counts."""
        for flag in (EMPTY, INFINITE, NAN):
            policy = self._policies[flag]
            rows = torch.nonzero(draw.flags & flag)[:, 0]
            if not len(rows) or policy == "flag":
                continue
            if policy == "raise":
                raise ValueError(f"rows {rows.tolist()[:10]}: {SAYS[flag]}")
            if policy == "mend":
                index = np.asarray(rows.numpy())
                mended, plain = _mended(logits[rows].float(), request.rows(index), flag)
                draw = draw.with_rows(rows, self._backend(mended, plain))
            else:
                draw.tokens[rows] = int(policy)
        return draw

    def _columns_of(self, rows: int) -> Columns:
        """The parameters of so many rows."""
        if rows not in self._columns:
            self._columns = {
                rows: Columns.of(
                    Parameters(
                        **self._shared, **{rule.parameter: rule.value(row, rows) for rule in self._rules}
                    )
                    for row in range(rows)
                )
            }
        return self._columns[rows]

    def _grammar_of(self, rows: int) -> list[int]:
        if len(self._grammars) not in (1, rows):
            raise ValueError(f"Constrain has tables for {len(self._grammars)} rows, not for {rows}")
        return self._grammars * (rows if len(self._grammars) == 1 else 1)

    def _constraint(self, device: torch.device) -> Constraint:
        if device not in self._constraints:
            self._constraints[device] = Constraint(
                self._tables, device=device, end_tokens=self._end_tokens or None
            )
        return self._constraints[device]


SAYS: Final = {
    EMPTY: "no token is left to draw",
    NAN: "the logit of a token that may be drawn is NaN",
    INFINITE: "the logit of a token that may be drawn is +inf",
}


def padded(lists: Sequence[Sequence[int]] | Tensor) -> NDArray[np.int64]:
    """Ids of rows as int64 [rows, longest], filled up with -1."""
    if isinstance(lists, Tensor):
        return np.asarray(lists.to("cpu", torch.int64).numpy())
    longest = max(map(len, lists), default=0)
    return np.array([[*map(int, row), *[-1] * (longest - len(row))] for row in lists], np.int64).reshape(
        len(lists), longest
    )


def _sorted(parts: Sequence[object]) -> tuple[Vocabulary | None, Constrain | None, list[Rule]]:
    vocabularies = [part for part in parts if isinstance(part, Vocabulary)]
    constrains = [part for part in parts if isinstance(part, Constrain)]
    rules = [part for part in parts if isinstance(part, Rule)]
    for part in parts:
        if not isinstance(part, Vocabulary | Constrain | Rule):
            raise TypeError(f"a sampler is made of rules and a vocabulary, not of {part!r}")
    kinds = [type(part).__name__ for part in parts]
    twice = sorted({kind for kind in kinds if kinds.count(kind) > 1})
    if twice:
        raise ValueError(f"{' and '.join(twice)} can be given only once")
    return next(iter(vocabularies), None), next(iter(constrains), None), rules


def _stage(part: object) -> str:
    return part.parameter if isinstance(part, Rule) else "grammar"


def _signed(seed: int) -> int:
    """The seed as 64 bits with a sign."""
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"a seed is an integer of 64 bits, not {seed}")
    return seed - 2**64 if seed >= 2**63 else seed


def _check_logits(logits: Tensor, rows: int) -> None:
    if logits.dim() != 2 or not logits.is_floating_point():
        raise ValueError(f"logits are floats [rows, vocabulary], not {logits.dtype} {list(logits.shape)}")
    if len(logits) != rows:
        raise ValueError(f"logits of {len(logits)} rows for a state of {rows}")
    if not 0 < logits.shape[1] <= WIDEST:
        raise ValueError(f"logits of {logits.shape[1]} tokens; there are 1 to {WIDEST}")


def _mended(logits: Tensor, request: Request, flag: int) -> tuple[Tensor, Request]:
    """Logits that can be drawn from, and what to ask for."""
    if flag == NAN:
        return logits.masked_fill(logits.isnan(), float("-inf")), request
    if flag == INFINITE:
        certain = logits == float("inf")
        return torch.where(certain, 0.0, float("-inf")), request
    plain = replace(request, columns=Columns.of([Parameters()] * len(logits)))
    return torch.zeros_like(logits) if request.grammar is not None else logits, plain
