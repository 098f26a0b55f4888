"""Sampler: logits of a batch in, a token for each row out.

A draw is a function of the row's logits, its parameters, its seed and how many tokens it has generated. It
depends on nothing else: not on other rows, the batch's size, or the row's place in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortition.grammars.table import Table
from sortition.grammars.vocabulary import Vocabulary
from sortition.sampling import cpu, reference
from sortition.sampling.columns import Columns
from sortition.sampling.constraint import FREE, Constraint
from sortition.sampling.device_state import DeviceState
from sortition.sampling.draw import EMPTY, INFINITE, NAN, Backend, Draw, Request
from sortition.sampling.history import grown
from sortition.sampling.host_constraint import constraint_on
from sortition.sampling.named_device import named_device
from sortition.sampling.numerics import WIDEST
from sortition.sampling.parameters import Parameters, Ties
from sortition.sampling.policies import Policy, check_width, last_of_text, policy_of, settled
from sortition.sampling.rules import Constrain, Rule
from sortition.sampling.state import POSITIONS, SomeState, State, first_state
from sortition.sampling.whole_numbers import whole, whole_ids

if TYPE_CHECKING:
    # It needs Triton, which is not everywhere.
    from sortition.sampling.device_sampler import DeviceSampler

BACKENDS: Final[dict[str, Backend]] = {"cpu": cpu.draw_rows, "reference": reference.draw_rows}
"""Those that draw on the host, by name; all of them give the same bits."""

KERNELS: Final = "triton"
"""The backend that draws on a device, with the same bits."""


class Sampler:
    """Draws a token for every row of a batch.

        sampler = Sampler(vocabulary, Constrain(table), Temperature(0.7), TopP(0.95))
        state = sampler.start(rows=32, seed=7)
        draw = sampler(logits, state)
        state = sampler.advance(state, draw.tokens)

    A row whose logits are all -inf, or hold NaN or +inf among the tokens that it may draw, is flagged. What
    it draws is up to the policy for that flag, for NaN's before that for +inf: with "flag" the token is -1;
    with "raise" the call fails, for which it waits for a device; with a number it is that token; with "mend"
    the row is drawn again, NaN taken for -inf, and +inf for the only candidates. Where nothing is left, it is
    drawn without the rules that change logits, but never without the grammar; and where even so nothing is
    left, all that the grammar allows is equally likely.

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
        backend: which implementation draws: "triton", "cpu" or "reference", which all give the same bits.
            Without, it is "triton" for logits on a GPU, if Triton is installed, and "cpu" for all others.

    Attributes:
        backend: what draws on the host.

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
        backend: str | None = None,
    ) -> None:
        vocabulary, constrain, self._rules = _by_kind(parts)
        stages = tuple(_stage(part) for part in parts if not isinstance(part, Vocabulary))
        self._shared: dict[str, Any] = {
            "order": stages if order == "given" else order,
            "ties": ties,
            "penalty_window": penalty_window,
            "min_keep": min_keep,
        }
        tables = () if constrain is None else constrain.tables
        self._tables = list(dict.fromkeys(table for table in tables if table is not None))
        self._last_of_text = last_of_text(self._tables)
        self._grammars = [FREE if table is None else self._tables.index(table) for table in tables]
        ends: Iterable[int] = ()
        if end_tokens is not None:
            ends = end_tokens
        elif vocabulary is not None:
            ends = vocabulary.end_tokens
        elif self._tables:
            ends = self._tables[0].end_tokens.tolist()
        self._end_tokens = tuple(sorted({whole("an end token", each) for each in ends}))
        if self._end_tokens and self._end_tokens[0] < 0:
            raise ValueError(f"an end token is an id, not {self._end_tokens[0]}")
        if "min_tokens" in stages and not self._end_tokens:
            raise ValueError("min_tokens rules out end tokens, and no vocabulary says which they are")
        self._constraints: dict[torch.device, Constraint] = {}
        self._policies = {
            EMPTY: policy_of("on_empty", on_empty),
            NAN: policy_of("on_nan", on_nan),
            INFINITE: policy_of("on_infinite", on_infinite),
        }
        if whole("top", top) < 0:
            raise ValueError(f"top is 0 or more, not {top}")
        self._report: dict[str, Any] = {"top": top, "entropy": entropy, "raw": raw}
        if backend not in (None, KERNELS, *BACKENDS):
            raise ValueError(f"unknown backend {backend!r}; there are {', '.join((*BACKENDS, KERNELS))}")
        self._named: Final = backend
        self.backend: Final = BACKENDS.get(backend or "cpu", cpu.draw_rows)
        self._drawers: dict[tuple[torch.device, int], DeviceSampler | None] = {}
        self._columns: dict[int, Columns] = {}
        self._columns_of(max([1, *(len(rule) for rule in self._rules)]))

    def __repr__(self) -> str:
        parts = [f"Constrain({len(self._tables)} tables)"] if self._tables else []
        parts = [*parts, *map(repr, self._rules), f"order={self._shared['order']!r}"]
        return f"Sampler({', '.join(parts)})"

    @overload
    def start(
        self,
        rows: int,
        seed: int | Sequence[int] | None = None,
        prompts: Sequence[Sequence[int]] | Tensor | None = None,
    ) -> State: ...

    @overload
    def start(
        self,
        rows: int,
        seed: int | Sequence[int] | None = None,
        prompts: Sequence[Sequence[int]] | Tensor | None = None,
        *,
        device: torch.device | str,
    ) -> State | DeviceState: ...

    def start(
        self,
        rows: int,
        seed: int | Sequence[int] | None = None,
        prompts: Sequence[Sequence[int]] | Tensor | None = None,
        *,
        device: torch.device | str | None = None,
    ) -> State | DeviceState:
        """The state of rows that have generated nothing.

        Args:
            rows: how many.
            seed: one for each row; or one for the first, and each further row has the next number; without,
                everyone gets a random one.
            prompts: ids of each row's prompt, for rules that look at it; negative ones are padding.
            device: where the logits will be. Where kernels draw, the state is there, too, and neither a draw
                nor `advance` waits; everywhere else, and without a device, it is on the host.

        Raises:
            ValueError: seeds or prompts of another number of rows, or there is no such device.
            TypeError: a seed or an id that is not whole.
        """
        if whole("rows", rows) < 0:
            raise ValueError(f"rows is 0 or more, not {rows}")
        state = first_state(rows, seed, prompts)
        grammars = self._grammar_of(rows) if self._tables else []
        if device is not None:
            kernels = kernels_of(self, named_device(device), rows)
            if kernels is not None:
                return kernels.start(self._texts(state), grammars)
        if self._tables:
            grammar = self._constraint(torch.device("cpu")).start(torch.tensor(grammars))
            state = replace(state, grammar=grammar)
        return state

    def __call__(self, logits: Tensor, state: State | DeviceState) -> Draw:
        """Draw a token for each row.

        Args:
            logits: float [rows, vocabulary], of any floating type, strides and device; not changed.
            state: of the rows. One that is on the host is uploaded for kernels, with the grammar's mask.

        Raises:
            ValueError: the shapes or devices do not fit, a rule names a token beyond the logits, or a row is
                flagged whose policy is "raise".
        """
        _check_logits(logits, len(state))
        kernels = kernels_of(self, logits.device, len(state))
        if isinstance(state, DeviceState):
            if kernels is None or state.device != logits.device:
                raise ValueError(f"the state is on {state.device}, and the logits are on {logits.device}")
            return kernels.draw(logits.detach(), state)
        request = replace(self.request(state, logits.shape[1]), **self._report)
        if kernels is not None:
            return kernels.draw_request(logits.detach(), request)
        draw = self.draw(logits.detach().cpu(), request)
        return draw if logits.device.type == "cpu" else draw.to(logits.device)

    def _texts(self, state: State) -> Request:
        """The texts of rows, without what else a draw depends on."""
        columns = self._columns_of(len(state))
        nothing = np.zeros((len(state), 0), np.int64)
        output = columns.seen(state.output)
        return Request(columns, state.seeds, state.positions, state.prompt, output, end_tokens=nothing)

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
        check_width(width, self._last_of_text, self._end_tokens, self._policies)
        self._check_state(state)
        return Request(
            columns=columns,
            seeds=state.seeds,
            positions=state.positions,
            prompt=state.prompt,
            output=columns.seen(state.output),
            end_tokens=np.tile(np.array(self._end_tokens, np.int64), (len(state), 1)),
            grammar=self.allowed(state, width) if self._tables else None,
        )

    def _check_state(self, state: State) -> None:
        """That a state is one of this sampler's, as far as can be seen."""
        if bool(self._tables) != (state.grammar is not None):
            this, that = ("a", "no") if self._tables else ("no", "a")
            raise ValueError(
                f"this sampler has {this} grammar, and the state is of one that has {that} grammar"
            )
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
        if not bool(draw.flags.any()):
            return draw
        return settled(draw, logits, request, self.backend, self._policies)

    def taken_over(self, state: SomeState, other: Sampler, places: int = 1) -> SomeState:
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

    @overload
    def advance(self, state: State, tokens: Tensor | Sequence[int]) -> State: ...

    @overload
    def advance(self, state: DeviceState, tokens: Tensor | Sequence[int]) -> DeviceState: ...

    def advance(self, state: State | DeviceState, tokens: Tensor | Sequence[int]) -> State | DeviceState:
        """The state after each row has generated a token; a negative one is none, and the row stays.

        After a token that its grammar refuses, a row may only end: nobody waits to be told.
        """
        if isinstance(state, DeviceState):
            kernels = kernels_of(self, state.device, len(state))
            there = torch.as_tensor(tokens, device=state.device)
            if kernels is None or there.shape != (len(state),):
                raise ValueError(f"{tuple(there.shape)} tokens for {len(state)} rows")
            return kernels.advance(state, there)
        ids = whole_ids("tokens", torch.as_tensor(tokens))
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

    def tables(self, rows: int) -> list[Table | None]:
        """The grammar of each of so many rows, None for one without."""
        if not self._tables:
            return [None] * rows
        return [None if number == FREE else self._tables[number] for number in self._grammar_of(rows)]

    def allowed(self, state: State, width: int) -> NDArray[np.bool_] | None:
        """bool [rows, width]: the tokens that the grammars allow, None where there is no grammar."""
        if state.grammar is None:
            return None
        constraint = self._constraint(state.grammar.state.device)
        return np.asarray(constraint.allowed(state.grammar, width).numpy())

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
            self._constraints[device] = constraint_on(device, self._tables, self._end_tokens or None)
        return self._constraints[device]


def kernels_of(sampler: Sampler, device: torch.device, rows: int) -> DeviceSampler | None:
    """What draws so many rows of a sampler on this device, None where the host does.

    Raises:
        ValueError: kernels are asked for, and cannot.
    """
    named = sampler._named
    if named != KERNELS and (named is not None or device.type != "cuda"):
        return None
    if device == torch.device("cuda"):
        # Tensors say which one they are on.
        device = torch.device("cuda", torch.cuda.current_device())
    key = device, rows
    if key not in sampler._drawers:
        sampler._drawers = {key: _new_kernels(sampler, device, rows)}
    return sampler._drawers[key]


def _new_kernels(sampler: Sampler, device: torch.device, rows: int) -> DeviceSampler | None:
    try:
        from sortition.sampling.device_sampler import DeviceSampler, runs_on
    except ImportError as error:
        if sampler._named is None:
            return None
        raise ValueError("kernels need Triton, which is not installed") from error
    if not runs_on(device):
        raise ValueError(f"kernels run on a GPU, not on {device}; without a backend, the host draws")
    columns, report = sampler._columns_of(rows), sampler._report
    return DeviceSampler(sampler._tables, columns, sampler._end_tokens, sampler._policies, report, device)


def on_device(sampler: Sampler, state: State | DeviceState, kernels: DeviceSampler) -> DeviceState:
    """A state of a sampler for its kernels.

    Raises:
        ValueError: it is that of a sampler with another grammar, or is on another device.
    """
    if isinstance(state, DeviceState):
        if state.device != kernels.device:
            raise ValueError(f"the state is on {state.device}, and the logits are on {kernels.device}")
        return state
    sampler._check_state(state)
    return kernels.upload(sampler._texts(state), state.grammar)


def _by_kind(parts: Sequence[object]) -> tuple[Vocabulary | None, Constrain | None, list[Rule]]:
    vocabularies = [part for part in parts if isinstance(part, Vocabulary)]
    constrains = [part for part in parts if isinstance(part, Constrain)]
    rules = [part for part in parts if isinstance(part, Rule)]
    for part in parts:
        if not isinstance(part, Vocabulary | Constrain | Rule):
            hint = "; Constrain(table) is the rule of one" if isinstance(part, Table) else ""
            raise TypeError(f"a sampler is made of rules and a vocabulary, not of {part!r}{hint}")
    kinds = [type(part).__name__ for part in parts]
    twice = sorted({kind for kind in kinds if kinds.count(kind) > 1})
    if twice:
        raise ValueError(f"{' and '.join(twice)} can be given only once")
    return next(iter(vocabularies), None), next(iter(constrains), None), rules


def _stage(part: object) -> str:
    return part.parameter if isinstance(part, Rule) else "grammar"


def _check_logits(logits: Tensor, rows: int) -> None:
    if not isinstance(logits, Tensor):
        raise TypeError(f"logits are a tensor, not {type(logits).__name__}")
    if logits.dim() != 2 or not logits.is_floating_point():
        raise ValueError(f"logits are floats [rows, vocabulary], not {logits.dtype} {list(logits.shape)}")
    if len(logits) != rows:
        raise ValueError(f"logits of {len(logits)} rows for a state of {rows}")
    if not 0 < logits.shape[1] <= WIDEST:
        raise ValueError(f"logits of {logits.shape[1]} tokens; there are 1 to {WIDEST}")
