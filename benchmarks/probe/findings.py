"""Everything that a probe found, as plain frozen values: what reports are made of."""

from __future__ import annotations

import json
import types
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, Final, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

SCHEMA: Final = 2
"""Counted up when a field changes its meaning or goes; readers refuse other numbers."""

Status: TypeAlias = Literal["exercised", "not exercised", "not run", "error"]
Answer: TypeAlias = Literal["within", "exceeded", "inconclusive", "error"]
Cause: TypeAlias = Literal[
    "none", "operation", "model", "sampler", "seed", "ties", "padding", "corruption", "unknown"
]

EXIT_CODES: Final[dict[Answer, int]] = {"within": 0, "exceeded": 1, "inconclusive": 2, "error": 3}


@dataclass(frozen=True)
class Rate:
    """How often something happened, with a Clopper-Pearson interval.

    Attributes:
        count, trials: it happened so often in so many.
        low, high: bounds of the rate, each in 0..1.
        confidence: that both bounds hold, such as 0.95.
    """

    count: int
    trials: int
    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class SurvivalPoint:
    """A step of a Kaplan-Meier curve: the share of texts that have not left the reference yet."""

    step: int
    at_risk: int
    diverged: int
    surviving: float
    low: float
    high: float


@dataclass(frozen=True)
class Reference:
    """One prompt as the reference runs it.

    Attributes:
        text: the prompt.
        completion: what followed.
        tokens: of the completion.
        digests: of the scores at each step.
        margins: how far the best score was above the second at each step, in units of scores.
        top_probabilities: of the best token at each step.
        ties: steps at which the two best scores were equal to the bit.
    """

    text: str
    completion: str
    tokens: tuple[int, ...]
    digests: tuple[str, ...]
    margins: tuple[float, ...]
    top_probabilities: tuple[float, ...]
    ties: tuple[int, ...]


@dataclass(frozen=True)
class Comparison:
    """One prompt under a condition, held against its reference under the same tokens.

    Attributes:
        prompt: index of the prompt.
        steps: how many could be compared.
        digests: of the scores at each step compared.
        first_difference: first step whose scores are not the same bits, None if all are.
        first_flip: first step at which another token was chosen, None if none was.
        flips: all such steps.
        differing_steps: how many steps had other bits.
        max_abs: greatest difference of two scores.
        max_ulp: the same in units in the last place of the scores' dtype.
        margin_at_flip: the reference's margin at the first flip.
        noise_at_flip: greatest difference of scores at that step.
        top_probabilities: of the reference's best token at each step, here.
        completion: what the target said freely; None where it was not asked, because no token flips.
    """

    prompt: int
    steps: int
    digests: tuple[str, ...]
    first_difference: int | None
    first_flip: int | None
    flips: tuple[int, ...]
    differing_steps: int
    max_abs: float
    max_ulp: int
    margin_at_flip: float | None
    noise_at_flip: float | None
    top_probabilities: tuple[float, ...]
    completion: str | None


@dataclass(frozen=True)
class Tested:
    """A condition and what came of it.

    Attributes:
        name, kind, varies, given: of the condition.
        counts: users do not choose it (neighbours, batch size, ...), so the verdict counts it.
        status: whether it took effect; "not run" if there was no time, or nothing to find out.
        evidence: by what one can tell, or why not.
        possible: False if the target has nothing to set for it.
        comparisons: one a prompt, as far as the sequential test went; none where it was not exercised.
        bitwise: prompts whose scores were not all the same bits.
        divergence: prompts whose text leaves the reference.
        flips: steps at which another token was chosen, of all that were compared.
        predicted_flips: the rate that the noise and the reference's margins foretell; None without noise.
        noise: standard deviation of the differences of scores; None without differences.
        survival: of the texts, censored at the last step.
        sequential: what the sequential test says: "rare", "frequent" or "undecided".
        seconds: of this condition; reference_seconds: of its reference, same prompts and steps.
    """

    name: str
    kind: str
    varies: dict[str, Any]
    given: dict[str, Any]
    counts: bool
    status: Status
    evidence: str
    comparisons: tuple[Comparison, ...] = ()
    bitwise: Rate | None = None
    divergence: Rate | None = None
    flips: Rate | None = None
    predicted_flips: float | None = None
    noise: float | None = None
    survival: tuple[SurvivalPoint, ...] = ()
    sequential: str = "undecided"
    seconds: float = 0.0
    reference_seconds: float = 0.0
    possible: bool = True


@dataclass(frozen=True)
class Completions:
    """The different texts that one prompt got.

    Attributes:
        prompt: index of the prompt.
        texts: each once, the reference's first.
        conditions: for each text, the names of the conditions that gave it.
    """

    prompt: int
    texts: tuple[str, ...]
    conditions: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Agreement:
    """The measures of the literature, over all conditions that count and their reference.

    Attributes:
        runs: N, conditions with the reference.
        tar_raw: TARr@N, prompts with one text in all runs (Atil et al., 2024).
        tar_answers: TARa@N, prompts with one parsed answer; None without a parser.
        std_accuracy: Std@Acc, deviation of the accuracy over runs (Yuan et al., 2025); None without answers.
        std_top_probability: Avg_Std@top1_prob, up to where the first run leaves the others.
        divergence_index: Div_Index, the median step of first flips among prompts with one; None without.
        median_survival: the step at which half of all texts have left the reference; None if fewer do.
    """

    runs: int
    tar_raw: Rate
    tar_answers: Rate | None
    std_accuracy: float | None
    std_top_probability: float
    divergence_index: float | None
    median_survival: float | None


@dataclass(frozen=True)
class Boundary:
    """Two numbers of rows, next to each other, that give other bits: where a library changes its kernel.

    Attributes:
        below, above: the last number of rows of one class, and the first of the next.
        prompt: index of the prompt that shows it.
    """

    below: int
    above: int
    prompt: int


@dataclass(frozen=True)
class Operation:
    """One operation of the model at the step where scores first differ.

    Attributes:
        name: as in the model, such as "model.layers.0.mlp.down_proj".
        kind: last part of the name, "attention" for the core between projections.
        layer: index of the layer; None outside of layers.
        inputs_equal, outputs_equal: to the bit.
        max_abs: greatest difference of outputs.
    """

    name: str
    kind: str
    layer: int | None
    inputs_equal: bool
    outputs_equal: bool
    max_abs: float


@dataclass(frozen=True)
class RowClasses:
    """Numbers of rows that give the same bits for one shape of a linear layer, with cancelling inputs.

    Attributes:
        operation: kind of layer, such as "down_proj".
        inputs, outputs: its width.
        classes: numbers of rows that agree with each other.
        differing: share of outputs that differ from one row's, by class.
    """

    operation: str
    inputs: int
    outputs: int
    classes: tuple[tuple[int, ...], ...]
    differing: tuple[float, ...]


@dataclass(frozen=True)
class Intervention:
    """The experiment that proves a cause: mend only this, and run again.

    Attributes:
        mended: what was changed.
        how: in words.
        prompts: how many ran.
        equal_before, equal_after: prompts with the bits of their reference, without and with it.
        same_tokens_after: prompts with its tokens.
        cost: processor time with it over processor time without.
    """

    mended: str
    how: str
    prompts: int
    equal_before: int
    equal_after: int
    same_tokens_after: int
    cost: float | None


@dataclass(frozen=True)
class Attribution:
    """Why a condition differs.

    Attributes:
        condition: its name.
        cause: what kind of thing it is.
        conclusion: "confirmed" only where an intervention brought the bits back.
        sentence: for people.
        phase: where the first difference is.
        operation: the first whose inputs agree and outputs differ.
        operations: all that were compared, in the order they ran.
        row_classes: of the micro-probe.
        interventions: in the order they were tried; the first is the suspect alone.
        shared_by: other conditions with the same bits, which need no look of their own.
    """

    condition: str
    cause: Cause
    conclusion: Literal["confirmed", "suspected", "not found", "suspected corruption"]
    sentence: str
    phase: Literal["prefill", "decode"] | None = None
    operation: str | None = None
    operations: tuple[Operation, ...] = ()
    row_classes: tuple[RowClasses, ...] = ()
    interventions: tuple[Intervention, ...] = ()
    shared_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fix:
    """What would mend it.

    Attributes:
        cause: of which attribution.
        suggestion: one sentence, with the option to set.
        conditions: names of the conditions it is for.
        tried: it was applied here; then `restored` prompts of `prompts` had the bits of their reference, and
            `same_tokens` its tokens.
        cost: processor time with it over processor time without; None where it was not applied.
    """

    cause: str
    suggestion: str
    conditions: tuple[str, ...]
    tried: bool = False
    restored: int | None = None
    prompts: int | None = None
    cost: float | None = None
    same_tokens: int | None = None


@dataclass(frozen=True)
class Verdict:
    """The answer.

    Attributes:
        answer: decides the exit code (`EXIT_CODES`).
        headline: one sentence.
        reasons: what led to it, the most important first.
    """

    answer: Answer
    headline: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Findings:
    """The whole outcome.

    Attributes:
        schema: `SCHEMA`.
        target: its name.
        environment: what the target says of itself and the machine.
        options: how the probe was run: steps, require, max_divergence, confidence and so on.
        references: one a prompt.
        tested: every condition of the plan, in its order.
        classes: names of conditions ("reference" among them) whose scores are the same bits for all prompts;
            only conditions that are held against the plain reference.
        boundaries: between batch sizes, by bisection; none where batch sizes agree or cannot be told.
        completions: one a prompt.
        agreement: None where nothing was exercised.
        attributions: of the conditions that differ; each cause once where conditions share it.
        fixes: the tried ones first.
        verdict: the answer.
        seconds: of wall time.
        stopped: why some of it is missing, "out of time" or "interrupted"; "" if nothing is.
    """

    schema: int
    target: str
    environment: dict[str, Any]
    options: dict[str, Any]
    references: tuple[Reference, ...]
    tested: tuple[Tested, ...]
    classes: tuple[tuple[str, ...], ...]
    boundaries: tuple[Boundary, ...]
    completions: tuple[Completions, ...]
    agreement: Agreement | None
    attributions: tuple[Attribution, ...]
    fixes: tuple[Fix, ...]
    verdict: Verdict
    seconds: float
    stopped: str = ""

    def to_json(self) -> str:
        """As JSON text, without NaN or infinity."""
        return json.dumps(asdict(self), indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Findings:
        """Read what `to_json` wrote; raises ValueError if it is of another schema."""
        values = json.loads(text)
        if not isinstance(values, dict) or values.get("schema") != SCHEMA:
            raise ValueError(f"these are not findings of schema {SCHEMA}")
        findings: Findings = read(cls, values)
        return findings


def read(wanted: Any, value: Any) -> Any:
    """A plain JSON value as a type of this file: dataclass, tuple, optional or what JSON has itself.

    Raises:
        ValueError: a field is missing.
    """
    if is_dataclass(wanted) and isinstance(wanted, type):
        hints = get_type_hints(wanted)
        missing = [each.name for each in fields(wanted) if each.name not in value]
        if missing:
            raise ValueError(f"{wanted.__name__} lacks {', '.join(missing)}")
        return wanted(**{each.name: read(hints[each.name], value[each.name]) for each in fields(wanted)})
    if get_origin(wanted) is tuple:
        return tuple(read(get_args(wanted)[0], each) for each in value)
    if get_origin(wanted) in (Union, types.UnionType) and value is not None:
        (inner,) = (each for each in get_args(wanted) if each is not types.NoneType)
        return read(inner, value)
    return value
