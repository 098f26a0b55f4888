"""Speculative verification: drafts of several tokens in, the ones that stand and one token more out.

A drafter has guessed how each row goes on, and one forward pass of the target has given logits after every
guess. What is kept of the guesses has the law that the sampler would have drawn from without them: its
temperature and filters, penalties that have seen the drafts before, and the grammar where these lead to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortition.sampling import cpu, noise, reference, verify_cpu, verify_reference
from sortition.sampling.constraint import Position
from sortition.sampling.device_state import DeviceState, uploaded
from sortition.sampling.draw import NO_TOKEN, Backend
from sortition.sampling.numerics import WIDEST
from sortition.sampling.sampler import Sampler, kernels_of, on_device
from sortition.sampling.state import SomeState, State
from sortition.sampling.verification import BLOCK, METHODS, USE_LAWS, Method, Verification, Verified, Verifier
from sortition.sampling.verify_rules import ROOT

Int64 = NDArray[np.int64]


def verify(
    draft_tokens: Tensor,
    draft_logits: Tensor | None,
    target_logits: Tensor,
    sampler: Sampler,
    state: State | DeviceState,
    *,
    method: Method | Sequence[Method] = "coupled",
    parents: Tensor | None = None,
    draft_sampler: Sampler | None = None,
) -> Verified:
    """Judge drafts, and draw one token more.

        accepted, tokens = so.verify(draft_tokens, draft_logits, target_logits, sampler, state)

    The state goes on with ``for column in tokens.T: state = sampler.advance(state, column)``. Drafts after an
    end token are judged like any others.

    Methods that leave the law of the output as it is without drafts:

    - "coupled": the token that the sampler draws at this position anyway, for as long as a draft says the
      same. So the output is that of decoding without drafts, token for token, whatever the drafter.
    - "token": each draft stands with the chance min(1, p / q). The children of a node are candidates for one
      position, each drawn for itself.
    - "distinct": the same for candidates that were drawn without replacement; or each for itself, with -1 for
      one that is there already.
    - "block": as "token", but the drafts of a chain are judged together, and more of them stand.

    And others:

    - "greedy": the likeliest token at every place, for as long as a draft says the same. "coupled" does this
      for a temperature of 0.
    - "typical": a draft stands if it is likely enough. This is lossy: the output has a law of its own.

    See `verify_rules` for sources and `verify_reference` for what is rounded. "token", "distinct" and "block"
    are right only if drafts were drawn from the laws they are said to be from, and with other noise than the
    sampler's: see `drafting`. A draft is refused where either law rules it out.

    Where both samplers draw by kernels (see `Sampler`), kernels do all of this, and nobody waits for the
    device if the state is there, too. They do not look at ids before: a draft that no vocabulary has is
    refused, and one whose parent does not come before it is none, nor for "block" one that is not in a chain.
    For all other samplers, logits come to the host.

    Args:
        draft_tokens: int [rows, drafts], ids; from a negative one on, a row has no drafts.
        draft_logits: float [rows, drafts, vocabulary of the drafter], what each draft was drawn from; None
            for drafts that were not drawn, such as a prompt's. Vocabularies may differ in size. Methods that
            do not ask how likely a draft was do not read them.
        target_logits: float [rows, drafts + 1, vocabulary], after the text and after each draft.
        sampler: of the target.
        state: of the rows, where drafts begin.
        method: of all rows, or of each.
        parents: int [rows, drafts], for trees: the draft that each one follows, which comes before it, or -1
            for one that follows the text. Without, each follows the one before.
        draft_sampler: what drafts were drawn with, if not with the target's sampler. It may look at no
            grammar and no history unless the target's does.

    Raises:
        ValueError: shapes, methods or parents that do not fit, or a row is flagged whose policy is "raise".
        TypeError: ids that are not whole, or logits that are no floats.
    """
    _check(draft_tokens, draft_logits, target_logits, parents, len(state))
    methods = _codes(method, len(state))
    drafter = sampler if draft_sampler is None else draft_sampler
    if not np.isin(methods, USE_LAWS).any():
        draft_logits = None
    kernels, its_kernels = (
        kernels_of(each, target_logits.device, len(state))
        for each in (sampler, sampler if draft_logits is None else drafter)
    )
    if kernels is not None and its_kernels is not None:
        here = on_device(sampler, state, kernels)
        theirs, source = drafter.taken_over(here, sampler), None
        if draft_logits is not None:
            source = its_kernels.source(draft_logits, theirs)
        return kernels.verify(target_logits, here, draft_tokens, parents, methods, source)
    if isinstance(state, DeviceState):
        raise ValueError(f"the state is on {state.device}, and one of the samplers draws on the host")
    return _by_host(sampler, drafter, draft_tokens, draft_logits, target_logits, state, methods, parents)


def _by_host(
    sampler: Sampler,
    drafter: Sampler,
    draft_tokens: Tensor,
    draft_logits: Tensor | None,
    target_logits: Tensor,
    state: State,
    methods: NDArray[np.int8],
    parents: Tensor | None,
) -> Verified:
    tokens, tree = _tree(draft_tokens, parents, methods)
    each = tokens.shape[1] + 1
    places = _places(sampler, state, tokens, tree)
    theirs = drafter.taken_over(places, sampler, each)
    asked = Verification(
        tokens=tokens,
        parents=tree,
        methods=methods,
        coins=np.where(methods == BLOCK, noise.derived(state.seeds, state.positions, 0), state.seeds),
        targets=sampler.request(places, target_logits.shape[2], each),
        drafts=None if draft_logits is None else drafter.request(theirs, draft_logits.shape[2], each),
    )
    targets = target_logits.detach().cpu()
    laws = None if draft_logits is None else draft_logits.detach().cpu()
    found = VERIFIERS[sampler.backend](targets, laws, asked)
    if bool(found.flags.any()):
        found = _settled(found, targets, sampler, asked)
    return found if target_logits.device.type == "cpu" else found.to(target_logits.device)


def drafting(
    state: SomeState, method: Method | Sequence[Method] = "coupled", candidate: int = 0
) -> SomeState:
    """The state that a drafter draws from, so that its noise fits a method.

    For "coupled" it is the sampler's own noise: then drafter and target agree as often as they can. For
    "token", "distinct" and "block" it is other noise. A block looks at drafts behind those that stand, and
    what has been looked at is not drawn again: there it also depends on where drafts begin.

    Args:
        state: of the rows, where drafts begin; the drafter's own, if that is another.
        method: as of `verify`.
        candidate: of several for one position, each drawn for itself.
    """
    methods = _codes(method, len(state))
    blocks, by_laws = methods == BLOCK, np.isin(methods, USE_LAWS)
    if isinstance(state, DeviceState):
        if not by_laws.any():
            return state
        in_blocks, drawn = (uploaded(torch.from_numpy(each), state.device) for each in (blocks, by_laws))
        derived = noise.derived(state.seeds, state.positions * in_blocks, candidate)
        return replace(state, seeds=torch.where(drawn, derived, state.seeds))
    derived = noise.derived(state.seeds, np.where(blocks, state.positions, 0), candidate)
    return replace(state, seeds=np.where(by_laws, derived, state.seeds))


VERIFIERS: Final[dict[Backend, Verifier]] = {
    reference.draw_rows: verify_reference.verify_rows,
    cpu.draw_rows: verify_cpu.verify_rows,
}
"""By what draws on the host; all of them give the same bits."""


def _check(
    draft_tokens: Tensor,
    draft_logits: Tensor | None,
    target_logits: Tensor,
    parents: Tensor | None,
    rows: int,
) -> None:
    """That shapes and types fit; no value is looked at."""
    for name, ids in (("drafts", draft_tokens), ("parents", parents)):
        if ids is None:
            continue
        if ids.dim() != 2 or len(ids) != rows:
            raise ValueError(f"{name} are ids [{rows}, drafts], not {list(ids.shape)}")
        if ids.is_floating_point() or ids.dtype == torch.bool:
            raise TypeError(f"{name} are whole numbers, not {ids.dtype}")
        if ids.shape != draft_tokens.shape:
            raise ValueError(f"parents {list(ids.shape)} of drafts {list(draft_tokens.shape)}")
    nodes = draft_tokens.shape[1]
    for name, logits, places in (("target", target_logits, nodes + 1), ("draft", draft_logits, nodes)):
        if logits is not None and not logits.is_floating_point():
            raise TypeError(f"{name} logits are floats, not {logits.dtype}")
        if logits is not None and (logits.dim() != 3 or logits.shape[:2] != (rows, places)):
            raise ValueError(
                f"{name} logits [rows, places, vocabulary] begin with [{rows}, {places}] for drafts "
                f"{list(draft_tokens.shape)}, not {list(logits.shape)}"
            )
        if logits is not None and not 0 < logits.shape[2] <= WIDEST:
            raise ValueError(f"{name} logits of {logits.shape[2]} tokens; there are 1 to {WIDEST}")


def _tree(draft_tokens: Tensor, parents: Tensor | None, methods: NDArray[np.int8]) -> tuple[Int64, Int64]:
    """Drafts and their parents on the host."""
    tokens = _ids(draft_tokens)
    if tokens.size and tokens.max() >= WIDEST:
        raise ValueError(f"a draft is token {tokens.max()}, and there are at most {WIDEST}")
    chain = np.tile(np.arange(tokens.shape[1]) + ROOT, (len(tokens), 1))
    tree = chain if parents is None else _ids(parents)
    if bool(((tree < ROOT) | (tree > chain)).any()):
        raise ValueError("a draft's parent comes before it, or is -1")
    if bool((tree != chain)[methods == BLOCK].any()):
        raise ValueError("'block' judges chains, and not trees")
    return tokens, tree


def _ids(ids: Tensor) -> Int64:
    return np.asarray(ids.detach().to("cpu", torch.int64).numpy())


def _codes(method: Method | Sequence[Method], rows: int) -> NDArray[np.int8]:
    each = [method] * rows if isinstance(method, str) else list(method)
    if len(each) != rows:
        raise ValueError(f"{len(each)} methods for {rows} rows")
    for name in each:
        if name not in METHODS:
            raise ValueError(f"unknown method {name!r}; there are {', '.join(METHODS)}")
    return np.array([METHODS.index(name) for name in each], np.int8)


def _places(sampler: Sampler, state: State, tokens: Int64, tree: Int64) -> State:
    """The states of all places, those of a row one after another."""
    states = [state]
    rows = len(state)
    for node in range(tokens.shape[1]):
        parents = tree[:, node]
        if (parents == parents[:1]).all():
            before = states[int(parents[0]) + 1 if rows else 0]
        else:
            before = _joined(states).rows((parents + 1) * rows + np.arange(rows))
        states.append(sampler.advance(before, torch.from_numpy(tokens[:, node])))
    places = np.arange(len(states)) * rows + np.arange(rows)[:, None]
    return _joined(states).rows(places.ravel())


def _joined(states: Sequence[State]) -> State:
    """The rows of all states."""
    longest = max(each.output.shape[1] for each in states)
    outputs = [
        np.pad(each.output, ((0, 0), (0, longest - each.output.shape[1])), constant_values=NO_TOKEN)
        for each in states
    ]
    grammars = [each.grammar for each in states if each.grammar is not None]
    return State(
        seeds=np.concatenate([each.seeds for each in states]),
        positions=np.concatenate([each.positions for each in states]),
        prompt=np.concatenate([each.prompt for each in states]),
        output=np.concatenate(outputs),
        grammar=Position(*map(torch.cat, zip(*grammars, strict=True))) if grammars else None,
    )


def _settled(found: Verified, targets: Tensor, sampler: Sampler, asked: Verification) -> Verified:
    """The same with flagged rows as the sampler's policies want them."""
    last = torch.nn.functional.pad(found.path, (1, 0), value=ROOT).gather(1, found.accepted[:, None])[:, 0]
    every = torch.arange(len(last))
    request = asked.targets.rows((every * targets.shape[1] + last + 1).numpy())
    logits = targets[every, last + 1]
    draw = sampler.draw(logits, request)
    return found.with_last(torch.nonzero(found.flags)[:, 0], draw)
