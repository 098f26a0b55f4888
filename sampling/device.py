"""The backend for logits on a device: what `reference.py` draws, to the bit, in four launches of kernels.

`launch` is all that a draw does: it reads tensors, waits for nothing and can be captured in a CUDA graph.
`settle` does what policies say of flagged rows, without looking which those are. `draw_rows` is `launch` for
a `Request`, which is on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from sortition.sampling import noise
from sortition.sampling.columns import CODES, END, GREEDY, Columns
from sortition.sampling.device_state import uploaded
from sortition.sampling.draw import EMPTY, INFINITE, NAN, NO_TOKEN, Draw, Report, Request
from sortition.sampling.kernels import LAUNCH, layout
from sortition.sampling.kernels.edit import edit
from sortition.sampling.kernels.finish import finish
from sortition.sampling.kernels.law import law
from sortition.sampling.kernels.ranks import TOKEN_BITS, TURNS_SIZE
from sortition.sampling.kernels.scan import scan
from sortition.sampling.kernels.select import select
from sortition.sampling.parameters import EDITS, FILTERS
from sortition.sampling.policies import SAYS, Policy

TILE: Final = 4096
"""Logits that one program of `scan` and `select` reads: 16 for each thread."""

STEP: Final = 1024
"""Candidates that `finish` looks at a time; most rows have fewer in all."""

ROOM: Final = 8192
"""Candidates that a row may have in a list; with more, `finish` goes through the whole row at each step."""

TEMPERATURE: Final = CODES["temperature"]
TYPICAL: Final = CODES["typical"]


def sees_history(columns: Columns) -> bool:
    """Whether any row looks at what came before."""
    return any(each.sees_history for each in columns.parameters)


@dataclass(frozen=True, eq=False)
class Settings:
    """Parameters for kernels, on their device, those of a slot in each row; made once, as requests come.

    Attributes:
        whole, real: see `kernels/layout.py`.
        edits, filters: int8 [slots, n], codes of stages, then `END`; a temperature is not the first filter.
        allowed: int32 [lists, words], a bit for each allowed token.
        bias_tokens, bias_values, phrase_spans, phrase_tokens: as in `Columns`, ids as int32.
        named: how many tokens the edits of one slot name at most, without end tokens and history.
        window: how many of the last tokens of a text its penalties see at most.
    """

    whole: Tensor
    real: Tensor
    edits: Tensor
    filters: Tensor
    allowed: Tensor
    bias_tokens: Tensor
    bias_values: Tensor
    phrase_spans: Tensor
    phrase_tokens: Tensor
    named: int
    window: int

    @classmethod
    def of(cls, columns: Columns, width: int, device: torch.device) -> Self:
        """The parameters of these rows, for logits of so many tokens."""
        rows = len(columns)
        whole = {name: np.zeros(rows, np.int64) for name in layout.WHOLE_NAMES}
        real = {name: np.ones(rows, np.float64) for name in layout.REAL_NAMES}
        for values in (whole, real):
            for name in values.keys() & vars(columns).keys():
                values[name] = getattr(columns, name)
        real["root_of_eta"] = np.sqrt(columns.eta)
        for name, spans in (("bias", columns.bias), ("phrases", columns.phrases)):
            whole[f"{name}_begin"], whole[f"{name}_end"] = spans.T
        edits, filters, temperatures, whole["mode"] = _programs(columns)
        real |= temperatures
        lists = np.flatnonzero((columns.stages == CODES["allowed_tokens"]).any(1))
        whole["allowed"] = np.full(rows, -1)
        whole["allowed"][lists] = np.arange(len(lists))
        allowed = np.zeros((len(lists), width), np.bool_)
        for at, row in enumerate(lists.tolist()):
            begin, end = columns.allowed[row]
            allowed[at, columns.allowed_tokens[begin:end]] = True
        named = np.diff(columns.bias).sum(1) + np.diff(columns.phrases).sum(1)
        windows = columns.penalty_window[[each.penalises for each in columns.parameters]]

        def upload(values: NDArray[Any], kind: torch.dtype) -> Tensor:
            return uploaded(torch.from_numpy(np.ascontiguousarray(values)).to(kind), device)

        return cls(
            whole=upload(np.stack([whole[name] for name in layout.WHOLE_NAMES], axis=1), torch.int64),
            real=upload(np.stack([real[name] for name in layout.REAL_NAMES], axis=1), torch.float64),
            edits=upload(edits, torch.int8),
            filters=upload(filters, torch.int8),
            allowed=uploaded(packed(allowed), device),
            bias_tokens=upload(columns.bias_tokens, torch.int32),
            bias_values=upload(columns.bias_values, torch.float32),
            phrase_spans=upload(columns.phrase_spans, torch.int32),
            phrase_tokens=upload(columns.phrase_tokens, torch.int32),
            named=int(named.max(initial=0)),
            window=int(windows.max(initial=0)),
        )


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a step's draws depend on beside logits and settings, on their device.

    A row is of a slot, after the slot's text and some drafts.

    Attributes:
        slots: int64 [rows], in which row of the settings, seeds and texts to look.
        positions: int64 [rows].
        seeds: int64 [slots].
        history: int32 [slots, n], prompt and output as one text, from the left.
        lengths, prompt_lengths: int32 [slots], of the text and of its prompt.
        drafts: int32 [rows], the draft before each row but a slot's first, if a slot's rows stand together;
            or [rows, n], all drafts before each row, at its right end.
        local: int32 [rows], how many drafts come before a row.
        end_tokens: int [slots, k]; negative ids are padding.
        longest: no text and its drafts have more tokens.
        mask: int32 [rows, words], a bit for each token that the grammar allows, None without any.
        stream: of the noise.
    """

    slots: Tensor
    positions: Tensor
    seeds: Tensor
    history: Tensor
    lengths: Tensor
    prompt_lengths: Tensor
    drafts: Tensor
    local: Tensor
    end_tokens: Tensor
    longest: int
    mask: Tensor | None = None
    stream: int = noise.TARGET

    @classmethod
    def of(cls, request: Request, device: torch.device) -> Self:
        """What a request says, uploaded."""
        sees = sees_history(request.columns)
        text = np.concatenate([request.prompt, request.output], axis=1) if sees else request.prompt[:, :0]
        order = np.argsort(text < 0, axis=1, kind="stable")
        text = np.minimum(np.take_along_axis(text, order, axis=1), np.iinfo(np.int32).max)
        prompt = request.prompt if sees else text

        def upload(values: NDArray[Any], kind: torch.dtype = torch.int32) -> Tensor:
            return uploaded(torch.from_numpy(np.ascontiguousarray(values)).to(kind), device)

        nothing = torch.zeros(len(text), dtype=torch.int32, device=device)
        return cls(
            slots=torch.arange(len(text), device=device),
            positions=upload(request.positions, torch.int64),
            seeds=upload(request.seeds, torch.int64),
            history=upload(text),
            lengths=upload((text >= 0).sum(1)),
            prompt_lengths=upload((prompt >= 0).sum(1)),
            drafts=nothing,
            local=nothing,
            end_tokens=upload(request.end_tokens),
            longest=text.shape[1],
            mask=None if request.grammar is None else uploaded(packed(request.grammar), device),
            stream=request.stream,
        )


class Workspace:
    """Room that the kernels of one step need, of any content; it may be used again at once.

    Args:
        rows, width: of the logits; there may be fewer rows.
        capacity: how many different tokens the edits of a row may name.
        device: where the logits are.
        tile, step, room: see `TILE`, `STEP` and `ROOM`.
    """

    def __init__(
        self,
        rows: int,
        width: int,
        capacity: int,
        device: torch.device,
        *,
        tile: int = TILE,
        step: int = STEP,
        room: int = ROOM,
    ) -> None:
        def empty(*shape: int, kind: torch.dtype = torch.int32) -> Tensor:
            return torch.empty(shape, dtype=kind, device=device)

        self.rows, self.width, self.capacity = rows, width, min(max(capacity, 1), width)
        self.tile, self.step, self.room = tile, step, room
        self.programs = triton.cdiv(width, tile) + 1
        self.words = triton.cdiv(width, 32)
        self.peaks_size = (self.programs - 1) * tile // layout.PEAK.value
        self.touched, self.places, self.plain = (empty(rows, self.words) for _ in range(3))
        self.masked, self.edited_count = empty(rows), empty(rows)
        self.divisors = empty(rows, kind=torch.float32)
        self.edited, self.outs, self.in_prompt, self.in_output = (
            empty(rows, self.capacity) for _ in range(4)
        )
        self.edited_values, self.biases = (empty(rows, self.capacity, kind=torch.float32) for _ in range(2))
        self.best, self.best_token, self.flags, self.counts, self.scores, self.score_tokens = (
            empty(rows, self.programs) for _ in range(6)
        )
        self.totals, self.weighted = (empty(rows, self.programs, kind=torch.int64) for _ in range(2))
        self.bins = empty(rows, layout.BINS.value)
        self.peaks, self.blocks = (empty(rows, self.peaks_size) for _ in range(2))
        self.candidates = empty(rows, room, kind=torch.int64)
        self.turns = empty(rows, TURNS_SIZE.value, kind=torch.float64)
        self.lasts, self.sums, self.firsts = (empty(rows, kind=torch.int64) for _ in range(3))
        self.tops = empty(rows, kind=torch.float32)
        self.treatments = empty(rows)

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return sum(each.nbytes for each in vars(self).values() if isinstance(each, Tensor))


def launch(
    logits: Tensor,
    settings: Settings,
    inputs: Inputs,
    workspace: Workspace,
    entropy: bool = False,
    treatments: Tensor | None = None,
    into: Draw | None = None,
) -> Draw:
    """Draw a token for each row: four launches, whatever the rows ask for.

    Args:
        logits: float [rows, vocabulary], of any floating type and strides; not changed.
        settings, inputs: of the rows.
        workspace: of the logits' shape, or for more rows.
        entropy: whether to report entropies.
        treatments: int32 [rows], what becomes of logits first; see `kernels/layout.py`.
        into: where to write what rows draw; those that are skipped stay as they are.

    Raises:
        ValueError: the workspace is of another shape, or has too little room for the tokens that edits name.
    """
    rows, width = logits.shape
    if rows > workspace.rows or width != workspace.width:
        raise ValueError(f"a workspace of {workspace.rows} rows of {workspace.width} for {rows} of {width}")
    if needed(settings, inputs, width) > workspace.capacity:
        raise ValueError(
            f"edits may name {needed(settings, inputs, width)} tokens, room is for {workspace.capacity}"
        )
    draw = blank(rows, logits.device, entropy) if into is None else into
    if not rows:
        return draw
    room = workspace
    read = (logits, *logits.stride(), width, treatments)
    edits, scanned = edits_of(room), _scanned(room)
    binned = (room.bins, room.peaks, room.peaks_size)
    summed = (room.totals, room.weighted, room.counts, room.scores, room.score_tokens)
    edit[(rows,)](
        *read, settings.whole, settings.real, settings.edits, settings.edits.shape[1],
        inputs.slots, inputs.positions, inputs.mask, settings.allowed,
        inputs.history, inputs.history.stride(0), inputs.lengths, inputs.prompt_lengths,
        inputs.drafts, inputs.drafts.stride(0), inputs.local,
        inputs.end_tokens, inputs.end_tokens.shape[1],
        settings.bias_tokens, settings.bias_values, settings.phrase_spans, settings.phrase_tokens,
        room.touched, room.places, room.biases, room.outs, room.in_prompt, room.in_output,
        *edits, room.bins,
        MASKED=inputs.mask is not None, BLOCK=room.step, num_warps=8, **LAUNCH,
    )  # fmt: skip
    programs = {"PROGRAMS": layout.bits(room.programs), "num_warps": 8, **LAUNCH}
    grid = (rows, room.programs)
    scan[grid](*read, *edits, *scanned, BLOCK=room.tile, num_warps=8, **LAUNCH)
    drawn = (settings.whole, settings.real)
    keyed = (inputs.slots, inputs.seeds, inputs.positions, inputs.stream)
    select[grid](
        *read,
        *drawn,
        *keyed,
        *edits,
        *scanned,
        *binned,
        *summed,
        ENTROPY=entropy,
        BLOCK=room.tile,
        **programs,
    )
    finish[(rows,)](
        *read, *drawn, settings.filters, settings.filters.shape[1], *keyed,
        *edits, *scanned, *binned, *summed, room.programs, room.blocks, room.candidates, room.room,
        draw.tokens, draw.kept, draw.flags, draw.processed.logprobs, draw.processed.entropy,
        room.turns, room.lasts, room.sums, room.firsts, room.tops, room.treatments,
        ENTROPY=entropy, BLOCK=room.step, **programs,
    )  # fmt: skip
    return draw


def edits_of(room: Workspace) -> tuple[Any, ...]:
    """What `edit` has left of rows, as arguments of kernels."""
    return (
        *(room.plain, room.words, room.masked, room.divisors),
        *(room.edited, room.edited_values, room.edited_count, room.capacity),
    )


def _scanned(room: Workspace) -> tuple[Any, ...]:
    return room.best, room.best_token, room.flags


def blank(rows: int, device: torch.device, entropy: bool = False) -> Draw:
    """A draw of so many rows to write to, with no flags."""
    return Draw(
        tokens=torch.empty(rows, dtype=torch.int64, device=device),
        kept=torch.empty(rows, dtype=torch.int64, device=device),
        flags=torch.zeros(rows, dtype=torch.uint8, device=device),
        processed=Report(
            logprobs=torch.empty(rows, dtype=torch.float32, device=device),
            entropy=torch.empty(rows, dtype=torch.float32, device=device) if entropy else None,
        ),
    )


def needed(settings: Settings, inputs: Inputs, width: int) -> int:
    """How many different tokens the edits of a row may name."""
    seen = min(settings.window, inputs.longest)
    return min(width, settings.named + inputs.end_tokens.shape[1] + seen)


@dataclass(frozen=True, eq=False)
class Laws:
    """The laws that rows were drawn from.

    Attributes:
        distances: float32 [rows, vocabulary], d of each token, -inf for those that are not of the law.
        log_totals: float64 [rows], ln of the law's mass.
    """

    distances: Tensor
    log_totals: Tensor

    @classmethod
    def of(cls, logits: Tensor, settings: Settings, inputs: Inputs, workspace: Workspace) -> Self:
        """Those of the last draw of each row, of which the workspace is: one launch."""
        rows, width = logits.shape
        room, device = workspace, logits.device
        found = cls(
            torch.empty((rows, width), dtype=torch.float32, device=device),
            torch.empty(rows, dtype=torch.float64, device=device),
        )
        if rows:
            law[(rows, room.programs)](
                logits, *logits.stride(), width, room.treatments,
                settings.whole, settings.real, inputs.slots,
                *edits_of(room), room.touched, *_scanned(room), room.turns, room.lasts, room.sums,
                found.distances, found.log_totals,
                PROGRAMS=layout.bits(room.programs), BLOCK=room.tile, num_warps=8, **LAUNCH,
            )  # fmt: skip
        return found

    def logprobs(self, tokens: Tensor) -> Tensor:
        """float32 [rows, n], ln of the probabilities of tokens, int64 [rows, n]; negative ones have none."""
        d = self.distances.gather(1, tokens.clamp(min=0)).masked_fill(tokens < 0, -torch.inf)
        return (d.double() - self.log_totals[:, None]).float()

    def top(self, count: int) -> tuple[Tensor, Tensor]:
        """The most likely tokens [rows, count] and ln of their probabilities; see `Report`."""
        width = self.distances.shape[1]
        # No token is twice as another in this order, so that it does not matter how equal ones are sorted.
        order = (self.distances.view(torch.int32) & 0x7FFFFFFF).long() << TOKEN_BITS.value
        order = order | torch.arange(width, device=order.device)
        first = order.topk(min(count, width), largest=False).values
        tokens = first & ((1 << TOKEN_BITS.value) - 1)
        is_out = self.distances.gather(1, tokens) == -torch.inf
        tokens = torch.nn.functional.pad(
            tokens.masked_fill(is_out, NO_TOKEN), (0, max(count - width, 0)), value=NO_TOKEN
        )
        return tokens, self.logprobs(tokens)


TREATMENTS: Final = (
    (NAN, layout.WITHOUT_NAN.value),
    (INFINITE, layout.ONLY_INFINITE.value),
    (EMPTY, layout.WITHOUT_EDITS.value),
    (EMPTY, layout.AS_LIKELY.value),
)
"""What mends a row with a flag, as in `policies.MENDS`; a row keeps the treatments that it has had."""


def settle(
    draw: Draw,
    logits: Tensor,
    settings: Settings,
    inputs: Inputs,
    workspace: Workspace,
    policies: Mapping[int, Policy],
) -> Draw:
    """The draw with flagged rows as their policies want them; see `policies.settled`.

    Which rows are flagged only the device knows: so with "mend" all are drawn again, those without the flag
    skipped, and "raise" waits.

    Raises:
        ValueError: a row is flagged whose policy is "raise".
    """
    if all(policy == "flag" for policy in policies.values()):
        return draw
    pending = draw.flags
    treatments = torch.zeros(len(pending), dtype=torch.int32, device=pending.device)
    for flag, treatment in TREATMENTS:
        policy = policies[flag]
        flagged = (pending & flag) != 0
        pending = pending.masked_fill(flagged, 0)
        if policy == "raise":
            if bool(flagged.any()):
                raise ValueError(f"rows {flagged.nonzero()[:10, 0].tolist()}: {SAYS[flag]}")
        elif policy == "mend":
            treatments = torch.where(flagged, treatments | treatment, treatments)
            skips = treatments.masked_fill(~flagged, layout.SKIPPED.value)
            again = replace(draw, flags=torch.zeros_like(draw.flags))
            launch(logits, settings, inputs, workspace, draw.processed.entropy is not None, skips, again)
            pending = torch.where(flagged, again.flags, pending)
        elif policy != "flag":
            draw = replace(draw, tokens=draw.tokens.masked_fill(flagged, policy))
    return draw


def draw_rows(logits: Tensor, request: Request) -> Draw:
    """Draw a token for each row; see `Backend`, but logits may be on a device, and what comes back is there.

    Args:
        logits: float [rows, vocabulary].
        request: for no more to report than entropies.
    """
    logits = logits.detach()
    rows, width = logits.shape
    settings = Settings.of(request.columns, width, logits.device)
    inputs = Inputs.of(request, logits.device)
    workspace = Workspace(rows, width, needed(settings, inputs, width), logits.device)
    return launch(logits, settings, inputs, workspace, request.entropy)


def packed(flags: NDArray[np.bool_]) -> Tensor:
    """bool [rows, n] as bits: int32 [rows, words], the lowest bit first."""
    rows, width = flags.shape
    words = -(-width // 32)
    filled = np.zeros((rows, words * 32), np.bool_)
    filled[:, :width] = flags
    return torch.from_numpy(np.packbits(filled, axis=1, bitorder="little").view(np.int32))


def _stages(columns: Columns, row: int) -> tuple[list[int], list[int]]:
    """Codes of a row's edits, and of its filters with the `END` after them."""
    codes, first = columns.stages[row].tolist(), int(columns.first[row])
    return codes[:first], codes[first : codes.index(END, first) + 1]


def _programs(
    columns: Columns,
) -> tuple[NDArray[Any], NDArray[Any], dict[str, NDArray[Any]], NDArray[Any]]:
    """Codes of edits and of filters [rows, n], temperatures by where they stand, and modes."""
    rows = len(columns)
    edits, filters = np.full((rows, len(EDITS) + 2), END), np.full((rows, len(FILTERS) + 2), END)
    within, early, late = np.ones((3, rows), np.float32)
    modes = np.full(rows, layout.GREEDY.value)
    for row in range(rows):
        before, after = _stages(columns, row)
        edits[row, : len(before)] = before
        if TEMPERATURE in before:
            within[row] = columns.temperature[row]
        # Every other filter leaves the likeliest, and what equals it.
        if GREEDY in after and TYPICAL not in after:
            continue
        if TEMPERATURE in after:
            (early if after[0] == TEMPERATURE else late)[row] = columns.temperature[row]
        if after[0] == TEMPERATURE:
            del after[0]
        filters[row, : len(after)] = after
        kind = {END: layout.UNFILTERED, TYPICAL: layout.TYPICAL_FIRST}.get(after[0], layout.FILTERED)
        modes[row] = kind.value
    temperatures = {"edit_temperature": within, "temperature": early, "late_temperature": late}
    return edits, filters, temperatures, modes
