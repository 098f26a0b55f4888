"""Sampler: logits of a batch in, a token for each row out.

A draw is a function of the row's logits, its parameters, its seed and how many tokens it has generated. It
depends on nothing else: not on other rows, the batch's size, or the row's place in it.
"""

from __future__ import annotations

import operator
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortition.grammars.vocabulary import Vocabulary
from sortition.sampling import cpu, reference
from sortition.sampling.columns import Columns
from sortition.sampling.constraint import FREE, Constraint, Position
from sortition.sampling.draw import EMPTY, INFINITE, NAN, Backend, Draw, Request
from sortition.sampling.history import Room, grown
from sortition.sampling.numerics import WIDEST
from sortition.sampling.parameters import FILTERS, Parameters, Ties
from sortition.sampling.rules import Constrain, Rule

Policy: TypeAlias = Literal["flag", "raise", "mend"] | int
"""What becomes of a row that cannot be drawn from as it is: see `Sampler`."""

BACKENDS: Final[dict[str, Backend]] = {"cpu": cpu.draw_rows, "reference": reference.draw_rows}
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
        room: where the output may grow, None for nowhere yet.
    """

    seeds: NDArray[np.int64]
    positions: NDArray[np.int64]
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    grammar: Position | None = None
    room: Room | None = None

    def __len__(self) -> int:
        return len(self.seeds)

    def rows(self, index: Sequence[int] | NDArray[np.int64]) -> State:
        """These rows, in this order. Rules with a value for each row go by the new order of rows."""
        at = np.asarray(index)
        if at.ndim != 1:
            raise ValueError(f"rows are picked by a list of their numbers, not by {index!r}")
        if at.dtype.kind not in "iu" and at.size:
            raise TypeError(f"rows are picked by their numbers, not by {at.dtype}")
        at = at.astype(np.int64)
        grammar = self.grammar
        if grammar is not None:
            grammar = grammar.rows(torch.from_numpy(at).to(grammar.state.device))
        return State(self.seeds[at], self.positions[at], self.prompt[at], self.output[at], grammar)


POSITIONS: Final = 2**32
"""What a position is below: noise takes it as 32 bits."""


class Sampler:
    """Draws a token for every row of a batch.

        sampler = Sampler(vocabulary, Constrain(table), Temperature(0.7), TopP(0.95))
        state = sampler.start(rows=32, seed=7)
        draw = sampler(logits, state)
        state = sampler.advance(state, draw.tokens)

    A row whose logits are all -inf, or hold NaN or +inf among the tokens that it may draw, is flagged. What
    it draws is up to the policy for that flag, for NaN's before that for +inf: with "flag" the token is -1;
    with "raise" the call fails; with a number it is that token; with "mend" the row is drawn again, NaN taken
    for -inf, and +inf for the only candidates. Where nothing is left, it is drawn without the rules that
    change logits, but never without the grammar; and where even so nothing is left, all that the grammar
    allows is equally likely.

    Args:
        parts: the vocabulary if a rule needs it, rules (each at most once), and `Constrain`, in any order.
        order: a preset of `ORDERS`, stages (see `order_of`), or "given" for the rules as they were given.
        ties: whether a cut by rank or mass may part tokens of equal logits; see `Parameters`.
        penalty_window: how many of the last tokens penalties see, instead of what the order says.
        min_keep: how many tokens each filter leaves at least.
        end_tokens: ids that end a text, instead of the vocabulary's.
        top: how many of the most likely tokens to report.
        entropy: whether to report entropies.
        raw: whether to report the law of the logits as they come, too.
        on_empty, on_nan, on_infinite: policies.
        backend: which implementation draws.

    Attributes:
        backend: what draws.

    Raises:
        ValueError: rules that contradict each other, or something out of its bounds.
        TypeError: a part that is none, or a number that is not whole.
    """

    def __init__(
        self,
        *parts: Vocabulary | Rule | Constrain,
        order: str | tuple[str, ...] = "vllm",
        ties: Ties = "exact",
        penalty_window: int | None = None,
        min_keep: int = 1,
        end_tokens: Iterable[int] | None = None,
        top: int = 0,
        entropy: bool = False,
        raw: bool = False,
        on_empty: Policy = "flag",
        on_nan: Policy = "flag",
        on_infinite: Policy = "flag",
        backend: str = "cpu",
    ) -> None:
        vocabulary, constrain, self._rules = _sorted(parts)
        stages = tuple(_stage(part) for part in parts if not isinstance(part, Vocabulary))
        self._shared: dict[str, Any] = {
            "order": stages if order == "given" else order,
            "ties": ties,
            "penalty_window": penalty_window,
            "min_keep": min_keep,
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
        self._end_tokens = tuple(sorted({_whole("an end token", each) for each in ends}))
        if self._end_tokens and self._end_tokens[0] < 0:
            raise ValueError(f"an end token is an id, not {self._end_tokens[0]}")
        if "min_tokens" in stages and not self._end_tokens:
            raise ValueError("min_tokens rules out end tokens, and no vocabulary says which they are")
        self._constraints: dict[torch.device, Constraint] = {}
        self._policies = {
            EMPTY: _policy("on_empty", on_empty),
            NAN: _policy("on_nan", on_nan),
            INFINITE: _policy("on_infinite", on_infinite),
        }
        if _whole("top", top) < 0:
            raise ValueError(f"top is 0 or more, not {top}")
        self._report: dict[str, Any] = {"top": top, "entropy": entropy, "raw": raw}
        if backend not in BACKENDS:
            raise ValueError(f"unknown backend {backend!r}; there are {', '.join(BACKENDS)}")
        self.backend: Final = BACKENDS[backend]
        self._columns: dict[int, Columns] = {}
        self._columns_of(max([1, *(len(rule) for rule in self._rules)]))

    def __repr__(self) -> str:
        parts = [f"Constrain({len(self._tables)} tables)"] if self._tables else []
        parts = [*parts, *map(repr, self._rules), f"order={self._shared['order']!r}"]
        return f"Sampler({', '.join(parts)})"

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
            TypeError: a seed or an id that is not whole.
        """
        if _whole("rows", rows) < 0:
            raise ValueError(f"rows is 0 or more, not {rows}")
        if seed is None:
            seeds = [secrets.randbits(63) for _ in range(rows)]
        elif isinstance(seed, Iterable):
            seeds = [_seed(each) for each in seed]
        else:
            seeds = [_seed(seed) + row for row in range(rows)]
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
        request = replace(self.request(state, logits.shape[1]), **self._report)
        # Until kernels draw on the device, rows come to the host.
        draw = self.draw(logits.detach().cpu(), request)
        return draw if logits.device.type == "cpu" else draw.to(logits.device)

    def request(self, state: State, width: int, places: int = 1) -> Request:
        """What a backend is asked for, without what else there is to report.

        Args:
            state: of the rows; or of places in their texts, those of a row one after another.
            width: of the logits.
            places: how many a row has.

        Raises:
            ValueError: a rule names a token beyond the logits.
        """
        columns = self._columns_of(len(state) // places)
        if places > 1:
            columns = columns.rows(np.arange(len(columns)).repeat(places))
        columns.check(width)
        self._check_state(state, width)
        return Request(
            columns=columns,
            seeds=state.seeds,
            positions=state.positions,
            prompt=state.prompt,
            output=columns.seen(state.output),
            end_tokens=np.tile(np.array(self._end_tokens, np.int64), (len(state), 1)),
            grammar=self.allowed(state, width) if self._tables else None,
        )

    def _check_state(self, state: State, width: int) -> None:
        """That a state is one of this sampler's, as far as can be seen."""
        if bool(self._tables) != (state.grammar is not None):
            this, that = ("a", "no") if self._tables else ("no", "a")
            raise ValueError(
                f"this sampler has {this} grammar, and the state is of one that has {that} grammar"
            )
        if self._end_tokens and self._end_tokens[-1] >= width:
            raise ValueError(f"end token {self._end_tokens[-1]} is beyond logits of {width} tokens")
        if len(state) and int(state.positions.max()) >= POSITIONS:
            raise ValueError(f"a position is below {POSITIONS:,}, not {int(state.positions.max()):,}")

    def draw(self, logits: Tensor, request: Request) -> Draw:
        """Draw what is asked for, flagged rows as their policies want them.

        Args:
            logits: float [rows, vocabulary], on the host.
            request: of the rows.

        Raises:
            ValueError: a row is flagged whose policy is "raise".
        """
        draw = self.backend(logits, request)
        return self._settled(draw, logits, request) if bool(draw.flags.any()) else draw

    def taken_over(self, state: State, other: Sampler, places: int = 1) -> State:
        """The state of another sampler as one of this one's.

        Args:
            state: of the other's rows; for `places` see `request`.
            other: the sampler.

        Raises:
            ValueError: it has no history, or is in other grammars, where this one's rules look at them.
        """
        if self._tables and (self._tables, self._grammars) != (other._tables, other._grammars):
            raise ValueError("a sampler cannot go on from a state of one that has another grammar")
        sees, kept = (
            any(each.sees_history for each in sampler._columns_of(len(state) // places).parameters)
            for sampler in (self, other)
        )
        if sees and not kept:
            raise ValueError("a sampler looks at what was generated, and the state is of one that does not")
        return state if self._tables else replace(state, grammar=None)

    def advance(self, state: State, tokens: Tensor | Sequence[int]) -> State:
        """The state after each row has generated a token; a negative one is none, and the row stays."""
        ids = _ids("tokens", torch.as_tensor(tokens))
        if ids.shape != (len(state),):
            raise ValueError(f"{tuple(ids.shape)} tokens for {len(state)} rows")
        output, room = state.output, state.room
        if any(each.sees_history for each in self._columns_of(len(state)).parameters):
            output, room = grown(output, ids.numpy(), room)
        grammar = state.grammar
        if grammar is not None:
            grammar = self._constraint(grammar.state.device).step(grammar, ids)
        positions = state.positions + (ids.numpy() >= 0)
        return replace(state, positions=positions, output=output, grammar=grammar, room=room)

    def allowed(self, state: State, width: int) -> NDArray[np.bool_] | None:
        """bool [rows, width]: the tokens that the grammars allow, None where there is no grammar."""
        if state.grammar is None:
            return None
        constraint = self._constraint(state.grammar.state.device)
        return np.asarray(constraint.allowed(state.grammar, width).numpy())

    def _settled(self, draw: Draw, logits: Tensor, request: Request) -> Draw:
        """The draw with flagged rows as their policies want them."""
        pending, mended = draw.flags.clone(), logits.to(torch.float32, copy=True)
        for flag, mend in MENDS:
            policy = self._policies[flag]
            rows = torch.nonzero(pending & flag)[:, 0]
            if not len(rows):
                continue
            if policy == "raise":
                raise ValueError(f"rows {rows.tolist()[:10]}: {SAYS[flag]}")
            pending[rows] = 0
            if policy == "mend":
                mended[rows], part = mend(mended[rows], request.rows(np.asarray(rows.numpy())))
                again = self.backend(mended[rows], part)
                draw = draw.with_rows(rows, again)
                pending[rows] = again.flags
            elif policy != "flag":
                if policy >= logits.shape[1]:
                    raise ValueError(f"a policy is token {policy}, and there are {logits.shape[1]} tokens")
                draw = replace(draw, tokens=draw.tokens.index_fill(0, rows, policy))
        if draw.raw is None:
            return draw
        # The raw law is that of the logits as they came, whatever was drawn in the end.
        for row in torch.nonzero(draw.flags)[:, 0].tolist():
            law = reference.raw_law(logits[row].float().numpy())
            draw.raw.logprobs[row] = float(law.logprob(int(draw.tokens[row])))
        return draw

    def _columns_of(self, rows: int) -> Columns:
        """The parameters of so many rows."""
        if rows not in self._columns:
            for rule in self._rules:
                rule.check(rows)
            self._columns = {
                rows: Columns.of(
                    Parameters(**self._shared, **{rule.parameter: rule.value(row) for rule in self._rules})
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
        if lists.dim() != 2:
            raise ValueError(f"prompts are ids [rows, length], not {list(lists.shape)}")
        return np.asarray(_ids("prompts", lists).numpy())
    if not all(hasattr(row, "__len__") for row in lists):
        raise TypeError("prompts are lists of ids, one for each row")
    rows = [[_whole("a prompt's token", each) for each in row] for row in lists]
    longest = max(map(len, rows), default=0)
    filled = [[*row, *[-1] * (longest - len(row))] for row in rows]
    return np.array(filled, np.int64).reshape(len(rows), longest)


def _ids(name: str, ids: Tensor) -> Tensor:
    """int64, on the host."""
    if ids.numel() and (ids.is_floating_point() or ids.dtype in (torch.bool, torch.complex64)):
        raise TypeError(f"{name} are whole numbers, not {ids.dtype}")
    return ids.to("cpu", torch.int64)


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


def _whole(name: str, value: Any) -> int:
    """The value as an integer, if it is one."""
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is a whole number, not {value!r}")
    return operator.index(value)


def _seed(value: Any) -> int:
    seed = _whole("a seed", value)
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"a seed is an integer of 64 bits, not {seed}")
    return seed


def _signed(seed: int) -> int:
    """The lowest 64 bits of a seed, as a number with a sign."""
    return (seed + 2**63) % 2**64 - 2**63


def _policy(name: str, value: Any) -> Policy:
    if isinstance(value, str):
        if value not in ("flag", "raise", "mend"):
            raise ValueError(f"{name} is 'flag', 'raise', 'mend' or a token, not {value!r}")
        return cast(Policy, value)
    if _whole(name, value) < 0:
        raise ValueError(f"{name} is 'flag', 'raise', 'mend' or a token, not {value!r}")
    return operator.index(value)


def _check_logits(logits: Tensor, rows: int) -> None:
    if not isinstance(logits, Tensor):
        raise TypeError(f"logits are a tensor, not {type(logits).__name__}")
    if logits.dim() != 2 or not logits.is_floating_point():
        raise ValueError(f"logits are floats [rows, vocabulary], not {logits.dtype} {list(logits.shape)}")
    if len(logits) != rows:
        raise ValueError(f"logits of {len(logits)} rows for a state of {rows}")
    if not 0 < logits.shape[1] <= WIDEST:
        raise ValueError(f"logits of {logits.shape[1]} tokens; there are 1 to {WIDEST}")


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
