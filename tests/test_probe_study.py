"""What surrounds the comparisons of a probe: conditions, evidence, what is kept, the verdict, measures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import planted_faults as planted
import pytest
import torch

import sortition as so
from sortition.benchmarks.probe import deadline, measures, sampler_target
from sortition.benchmarks.probe.agreement import agreement
from sortition.benchmarks.probe.bisect import Recorded
from sortition.benchmarks.probe.conditions import AXES, condition, counts, parse, plan
from sortition.benchmarks.probe.deadline import Deadline
from sortition.benchmarks.probe.findings import Findings
from sortition.benchmarks.probe.microprobe import row_classes
from sortition.benchmarks.probe.options import Options
from sortition.benchmarks.probe.report.wording import sizes
from sortition.benchmarks.probe.sampler_target import SamplerTarget, sampler_plan
from sortition.benchmarks.probe.study import study
from sortition.benchmarks.probe.target import Condition, Outcome, Prompt, Run
from sortition.benchmarks.probe.transformers_target import TransformersTarget
from sortition.integrations.errors import InputError


def run(
    scores: list[list[float]], tokens: Sequence[int] | None = None, dtype: torch.dtype = torch.float32
) -> Run:
    values = torch.tensor(scores, dtype=dtype)
    choices = tuple(values.argmax(-1).tolist())
    return Run(choices, choices if tokens is None else tuple(tokens), values)


def test_conditions_have_names_that_can_be_read_back() -> None:
    names = [each.name for each in plan()]
    assert len(set(names)) == len(names)
    assert [parse(name) for name in names] == list(plan())
    assert {axis for each in plan() for axis in each.settings} == AXES.keys()
    assert counts(parse("batch_size 8 and position last")) and not counts(parse("dtype float32"))
    with pytest.raises(ValueError, match="there is no axis 'bach_size'; there are rerun, "):
        parse("bach_size 8")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        # True is 1 to Python, so that such a batch once "took effect" as one of a single row.
        ("batch_size", "batch_size takes a whole number of at least 1$"),
        ("batch_size 0", "batch_size takes a whole number of at least 1, not 0"),
        ("batch_size eight", "not 'eight'"),
        ("batch_size 8 given attention eager", "not '8 given attention eager'"),
        ("padding -1", "padding takes a whole number of at least 1, not '-1'"),
        ("position 3", "position takes last, not 3"),
        ("position first", "position takes last, not 'first'"),
        ("batch_size 2 and neighbours same", "neighbours takes other or longer, not 'same'"),
        ("prefix_cache cold", "prefix_cache takes warm, not 'cold'"),
        ("rerun 2", "rerun takes no value, not 2"),
        ("dtype int8", "dtype takes bfloat16 or float16 or float32, not 'int8'"),
        ("attention", "attention takes a name$"),
        ("rerun, given seed x", "seed takes a whole number of at least 0, not 'x'"),
        ("batch_size 2 and batch_size 4", "batch_size is there twice"),
    ],
)
def test_a_condition_that_cannot_be_is_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(name)


def test_a_difference_is_counted_in_units_in_the_last_place() -> None:
    base = run([[1.0, 0.0, -1.0], [2.0, 1.0, 0.0]], dtype=torch.bfloat16)
    next_up = 1 + 2**-7
    other = run([[next_up, 0.0, -1.0], [2.0, 1.0, -0.0]], dtype=torch.bfloat16)
    found = measures.compare(0, base, other)
    # Both zeros are equal numbers, but other bits.
    assert (found.first_difference, found.differing_steps, found.max_ulp) == (0, 2, 1)
    assert found.max_abs == 2**-7
    assert measures.compare(0, base, base).first_difference is None


def test_steps_after_texts_part_are_not_compared() -> None:
    base = run([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    other = run([[1.0, 0.0], [0.9, 1.0], [0.0, 9.0]])
    free = measures.compare(0, base, other)
    assert (free.steps, free.first_flip, free.flips, free.margin_at_flip) == (2, 1, (1,), 1.0)
    forced = measures.compare(0, base, Run(other.choices, base.tokens, other.scores))
    assert (forced.steps, forced.flips) == (3, (1, 2))


def test_scores_of_some_tokens_are_compared_by_token() -> None:
    ids = torch.tensor([[5, 7]])
    base = Run((5,), (5,), torch.tensor([[-0.5, -1.0]]), ids)
    other = Run((5,), (5,), torch.tensor([[-1.0, -0.5]]), ids.flip(1))
    assert measures.compare(0, base, other).max_abs == 0
    assert measures.reference("", "", base).top_probabilities == (pytest.approx(math.exp(-0.5)),)


def test_nan_is_a_difference() -> None:
    found = measures.compare(0, run([[1.0, 0.0]]), run([[1.0, math.nan]], tokens=[0]))
    assert found.first_difference == 0 and found.max_abs > 1e300


def test_every_condition_shows_that_it_took_effect() -> None:
    target = planted.clean(0)
    options = Options(steps=4, attribute=False, asked=True)
    whole = study(target, planted.prompts(0, 3), plan(batch_sizes=(2,), pairs=True), options)
    idle = {each.name: each.evidence for each in whole.tested if each.status != "exercised"}
    assert idle == {
        "process fresh": "a model that was not loaded from a folder cannot be loaded again",
        "logprobs 10": "transformers has nothing to set for logprobs",
        "prefill": "transformers has nothing to set for prefill",
        "lm_head float32": "lm_head is float32 already",
        "dtype float32": "dtype is float32 already",
        "batch_size 8, given lm_head float32": "lm_head is float32 already",
        "batch_size 8, given dtype float32": "dtype is float32 already",
        "chunk 4 and prefix_cache warm": "0 of 3 prompts read in several passes",
    }
    assert Findings.from_json(whole.to_json()) == whole


def test_a_condition_without_effect_is_not_exercised() -> None:
    target = planted.clean(0)
    alone = condition(("chunk", 100))
    found = study(target, planted.prompts(0), [alone], Options(steps=2, asked=True))
    assert (found.tested[0].status, found.verdict.answer) == ("not exercised", "inconclusive")
    assert found.tested[0].evidence == "0 of 2 prompts read in several passes"


class Interrupted(TransformersTarget):
    """Stopped at one condition."""

    stop: str | None = None
    asked: list[str]

    def run(
        self,
        prompts: Sequence[Prompt],
        condition: Condition,
        steps: int,
        forced: Sequence[Sequence[int]] | None = None,
    ) -> Outcome:
        if condition.name == self.stop:
            raise KeyboardInterrupt
        self.asked.append(condition.name)
        return super().run(prompts, condition, steps, forced)


def test_a_probe_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    target = Interrupted(planted.invariant(planted.llama(0)), planted.Numbers())
    target.asked, target.stop = [], "padding 2"
    conditions = [parse(name) for name in ("rerun", "batch_size 2", "padding 2")]
    kept = tmp_path / "probe.json.partial"
    stopped = study(target, planted.prompts(0), conditions, Options(steps=2), kept=kept)
    assert (stopped.stopped, stopped.verdict.answer) == ("interrupted", "inconclusive")
    assert [each.status for each in stopped.tested] == ["exercised", "exercised", "not run"]
    assert stopped.verdict.reasons == ("not run, interrupted: padding 2",)
    # As if it had been killed in the middle of a line.
    kept.write_text(kept.read_text() + '{"name": "padd')
    target.asked, target.stop = [], None
    resumed = study(target, planted.prompts(0), conditions, Options(steps=2), kept=kept)
    assert target.asked == ["reference", "padding 2"]
    # Until the findings are written, too, and by whoever writes them.
    target.asked = []
    assert study(target, planted.prompts(0), conditions, Options(steps=2), kept=kept).stopped == ""
    assert target.asked == ["reference"]
    whole = study(target, planted.prompts(0), conditions, Options(steps=2))
    assert [each.comparisons for each in resumed.tested] == [each.comparisons for each in whole.tested]


def test_what_was_kept_of_another_probe_is_not_used(tmp_path: Path) -> None:
    target = Interrupted(planted.invariant(planted.llama(0)), planted.Numbers())
    target.asked, target.stop = [], "padding 2"
    conditions = [parse(name) for name in ("rerun", "padding 2")]
    kept = tmp_path / "kept"
    study(target, planted.prompts(0), conditions, Options(steps=2), kept=kept)
    target.asked, target.stop = [], None
    study(target, planted.prompts(0), conditions, Options(steps=3), kept=kept)
    assert target.asked == ["reference", "rerun", "padding 2"]


def test_what_cannot_be_kept_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write .*kept: Is a directory"):
        (tmp_path / "kept").mkdir()
        study(
            planted.clean(0), planted.prompts(0), [parse("rerun")], Options(steps=2), kept=tmp_path / "kept"
        )
    (tmp_path / "other").write_bytes(b"\xff")
    found = study(
        planted.clean(0), planted.prompts(0), [parse("rerun")], Options(steps=2), kept=tmp_path / "other"
    )
    assert found.stopped == ""


class Slow(TransformersTarget):
    """Every run and every look into it takes a second, by a clock that nothing else turns."""

    seconds = 0.0

    def record(
        self, prompts: Sequence[Prompt], index: int, condition: Condition, forced: Sequence[int]
    ) -> Mapping[str, Recorded]:
        self.seconds += 1
        return super().record(prompts, index, condition, forced)

    def run(
        self,
        prompts: Sequence[Prompt],
        condition: Condition,
        steps: int,
        forced: Sequence[Sequence[int]] | None = None,
    ) -> Outcome:
        self.seconds += 1
        return super().run(prompts, condition, steps, forced)


@pytest.mark.parametrize(
    ("limit", "done", "cause", "proof"),
    [
        (None, 3, "confirmed", "with only lm_head mended, all bits are equal again"),
        (20, 3, "confirmed", "with only lm_head mended, all bits are equal again"),
        # The reference, a rerun, a batch; then a look at its operations.
        (4, 2, "suspected", "there was no time to prove that"),
        (3, 1, None, None),
        (1, 0, None, None),
    ],
)
def test_what_there_is_no_time_for_is_said(
    limit: float | None, done: int, cause: str | None, proof: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Slow(planted.invariant(planted.llama(0)), planted.Numbers())
    target.model.lm_head.forward = planted.split_by_batch(target.model.lm_head)
    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: target.seconds))
    conditions = [parse(name) for name in ("rerun", "batch_size 2", "padding 2")]
    options = Options(steps=2, require="bitwise")
    found = study(target, planted.prompts(0), conditions, options, deadline=Deadline(limit))
    assert [each.status for each in found.tested] == ["exercised"] * done + ["not run"] * (3 - done)
    assert found.stopped == ("out of time" if done < 3 else "")
    assert found.verdict.answer == ("exceeded" if done > 1 else "inconclusive")
    if done < 3:
        assert any(reason.startswith("not run, out of time: ") for reason in found.verdict.reasons)
    assert [each.conclusion for each in found.attributions] == ([cause] if cause else [])
    assert all(proof in each.sentence for each in found.attributions if proof)


def test_causes_there_is_no_time_for_are_not_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Slow(planted.invariant(planted.llama(0)), planted.Numbers())
    target.model.lm_head.forward = planted.split_by_batch(target.model.lm_head)
    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: target.seconds))
    tried = [parse("batch_size 2")]
    found = study(target, planted.prompts(0), tried, Options(steps=2), deadline=Deadline(2))
    (unknown,) = found.attributions
    assert (unknown.cause, unknown.conclusion) == ("unknown", "not found")
    assert unknown.sentence == "its cause was not looked for: out of time"


@pytest.mark.parametrize(("first", "tried"), [(2, (2, 16)), (7, (2, 16)), (16, (15, 16)), (11, (16,))])
def test_the_exact_batch_size_is_found(first: int, tried: tuple[int, ...]) -> None:
    """Between sizes that were tried, by bisection."""
    target = planted.clean(0)
    target.model.lm_head.forward = planted.split_by_batch(target.model.lm_head, first)
    conditions = [parse(f"batch_size {size}") for size in tried]
    options = Options(steps=2, attribute=False)
    found = study(target, planted.prompts(0), conditions, options)
    assert [(each.below, each.above) for each in found.boundaries] == [(first - 1, first)]


def test_every_boundary_is_found() -> None:
    target = planted.clean(0)
    for module, first in ((target.model.lm_head, 3), (target.model.model.layers[0].mlp.up_proj, 9)):
        module.forward = planted.split_by_batch(module, first)
    conditions = [parse("batch_size 16")]
    found = study(target, planted.prompts(0), conditions, Options(steps=2, attribute=False))
    assert [(each.below, each.above) for each in found.boundaries] == [(2, 3), (8, 9)]
    assert sizes(found) == "1 to 2 | 3 to 8 | 9 to 16 rows: within bars the bits are the same"


def test_the_same_bits_have_no_boundary() -> None:
    found = study(planted.clean(0), planted.prompts(0), [parse("batch_size 16")], Options(steps=2))
    assert found.boundaries == ()


def test_a_target_that_fails_is_given_up() -> None:
    """Not asked for each condition anew: a server that is gone lets everybody wait."""

    class Gone(TransformersTarget):
        def run(
            self,
            prompts: Sequence[Prompt],
            condition: Condition,
            steps: int,
            forced: Sequence[Sequence[int]] | None = None,
        ) -> Outcome:
            if condition.name.startswith("batch"):
                raise ConnectionError("no answer")
            return super().run(prompts, condition, steps, forced)

    target = Gone(planted.invariant(planted.llama(0)), planted.Numbers())
    names = ("rerun", "batch_size 2", "logprobs 9", "batch_size 3", "padding 2", "batch_size 4")
    found = study(target, planted.prompts(0), [parse(name) for name in names], Options(steps=2))
    assert [each.status for each in found.tested] == [
        "exercised",
        "error",
        "not exercised",
        "error",
        "not run",
        "not run",
    ]
    assert found.tested[-1].evidence == "the target fails"
    assert found.verdict.answer == "error"


def test_a_remedy_waits_for_an_ill() -> None:
    names = ("padding 2", "padding 2, given attention eager")
    conditions = [parse(name) for name in names]
    found = study(planted.clean(0), planted.prompts(0), conditions, Options(steps=2))
    assert found.tested[1].status == "not run"
    assert found.tested[1].evidence == "there is nothing to mend: it changes nothing without that"
    assert found.verdict.answer == "within" and found.stopped == ""
    asked = study(planted.clean(0), planted.prompts(0), conditions, Options(steps=2, asked=True))
    assert asked.tested[1].status == "exercised"


@pytest.mark.parametrize(
    ("most", "answer"), [(0.0, "exceeded"), (0.01, "exceeded"), (0.9, "inconclusive"), (1.0, "within")]
)
def test_a_threshold_is_judged_by_the_interval(most: float, answer: str) -> None:
    target = planted.keyed_by_row(0)
    tried = [parse("batch_size 3 and position last")]
    found = study(target, planted.prompts(0, 4), tried, Options(steps=3, max_divergence=most))
    assert found.tested[0].divergence is not None and found.tested[0].divergence.count == 4
    assert found.verdict.answer == answer


def test_answers_may_agree_where_texts_do_not() -> None:
    target = planted.keyed_by_row(0)
    tried = [parse("rerun"), parse("batch_size 3 and position last")]
    prompts = planted.prompts(0, 3)

    def first(text: str) -> str:
        return "the same" if text else ""

    found = study(
        target, prompts, tried, Options(steps=3, require="answers"), parser=first, answers=["the same"] * 3
    )
    measured = found.agreement
    assert measured is not None and measured.tar_answers is not None
    assert (measured.runs, measured.tar_raw.count, measured.tar_answers.count) == (3, 0, 3)
    assert (measured.std_accuracy, found.verdict.answer) == (0.0, "within")
    assert all(len(each.texts) == 2 for each in found.completions)
    assert agreement(found.references, [], 0.95) is None
    with pytest.raises(ValueError, match="give a parser"):
        study(target, prompts, tried, Options(require="answers"))


def test_seeds_of_rows_are_told_from_seeds_of_requests() -> None:
    names = (
        "batch_size 3 and position last, given seed 7",
        "batch_size 3 and position last, given draw 7",
    )
    found = study(planted.clean(1), planted.prompts(1), [parse(name) for name in names], Options(steps=6))
    rows, requests = found.tested
    assert rows.divergence is not None and rows.divergence.count == 2
    assert requests.divergence is not None and requests.divergence.count == 0
    (cause,) = found.attributions
    assert (cause.condition, cause.cause, cause.conclusion) == (names[0], "seed", "confirmed")
    assert [(fix.suggestion, fix.restored, fix.same_tokens) for fix in found.fixes if fix.tried] == [
        ("draw 7", 2, 2)
    ]


def test_classes_of_rows_begin_with_one() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        found = row_classes("down_proj", 64, 32, dtype)
        assert sorted(rows for each in found.classes for rows in each) == [1, 2, 3, 4, 8, 16, 32, 64]
        assert found.classes[0][0] == 1 and found.differing[0] == 0
        assert all(share > 0 for share in found.differing[1:])


def test_our_own_sampler_passes() -> None:
    target = SamplerTarget.default(texts=24)
    found = study(target, target.prompts(), sampler_plan([1, 2, 5, 24]), Options(steps=4, block=24))
    assert found.verdict.headline == "No difference: 7 conditions gave the same bits."
    # Not because there is nothing to tell apart: texts differ from each other.
    assert len({each.completion for each in found.references}) > 12


def test_our_own_sampler_has_no_such_batch() -> None:
    target = SamplerTarget.default(texts=4)
    found = study(target, target.prompts(), [parse("batch_size 9")], Options(steps=2, asked=True))
    assert (found.tested[0].status, found.tested[0].evidence) == ("not exercised", "batches of 4 rows")


@pytest.mark.slow
def test_our_own_sampler_and_grammar_pass_at_ten_thousand_rows() -> None:
    target = SamplerTarget.default()
    options = Options(steps=sampler_target.STEPS, require="bitwise", block=sampler_target.TEXTS)
    found = study(target, target.prompts(), sampler_plan(), options)
    assert sum(len(each.tokens) for each in found.references) >= 10_000
    tried = [each.varies["batch_size"] for each in found.tested if each.kind == "batch_size"]
    assert (min(tried), max(tried)) == (1, 512)
    assert {(each.status, len(each.comparisons)) for each in found.tested} == {("exercised", 512)}
    assert found.verdict.answer == "within"
    assert found.verdict.headline == "No difference: 12 conditions gave the same bits."
    # Texts, each under its own seed, are not copies of each other.
    assert len({each.completion for each in found.references}) > 500


def test_one_line_for_a_test() -> None:
    class Tokenizer(planted.Numbers):
        def __call__(self, text: str) -> dict[str, list[int]]:
            return {"input_ids": [3 + ord(letter) % 60 for letter in text]}

    model = planted.invariant(planted.llama(0))
    found = so.assert_batch_invariant(
        model, Tokenizer(), ["hello", "a b c"], batch_sizes=[3], steps=3, require="bitwise"
    )
    assert {each.status for each in found.tested} == {"exercised"}
    model.lm_head.forward = planted.split_by_batch(model.lm_head)
    with pytest.raises(
        AssertionError, match=r"batch_size 3: 2 of 2 prompts[\s\S]*lm_head is the first operation"
    ):
        so.assert_batch_invariant(
            model, Tokenizer(), ["hello", "a b c"], batch_sizes=[3], steps=3, require="bitwise"
        )
    with pytest.raises(AssertionError, match="out of time"):
        so.assert_batch_invariant(planted.invariant(planted.llama(0)), Tokenizer(), ["hello"], seconds=0)
    with pytest.raises(ValueError, match="2 rows or more"):
        so.assert_batch_invariant(model, Tokenizer(), ["hello"], batch_sizes=[1])
