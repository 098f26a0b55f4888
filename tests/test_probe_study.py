"""What surrounds the comparisons of a probe: conditions, evidence, what is kept, the verdict, measures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import planted_faults as planted
import pytest
import torch

import sortition as so
from sortition.benchmarks.probe import measures
from sortition.benchmarks.probe.agreement import agreement
from sortition.benchmarks.probe.conditions import AXES, condition, counts, parse, plan
from sortition.benchmarks.probe.findings import Findings
from sortition.benchmarks.probe.microprobe import row_classes
from sortition.benchmarks.probe.options import Options
from sortition.benchmarks.probe.sampler_target import SamplerTarget, sampler_plan
from sortition.benchmarks.probe.study import study
from sortition.benchmarks.probe.target import Condition, Outcome, Prompt, Run
from sortition.benchmarks.probe.transformers_target import TransformersTarget


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
    whole = study(target, planted.prompts(0, 3), plan(batch_sizes=(2,)), Options(steps=4, attribute=False))
    idle = {each.name: each.evidence for each in whole.tested if each.status != "exercised"}
    assert idle == {
        "process fresh": "a model that was not loaded from a folder cannot be loaded again",
        "logprobs 10": "transformers has nothing to set for logprobs",
        "prefill": "transformers has nothing to set for prefill",
        "lm_head float32": "lm_head is float32 already",
        "dtype float32": "dtype is float32 already",
        "batch_size 8, given lm_head float32": "lm_head is float32 already",
        "batch_size 8, given dtype float32": "dtype is float32 already",
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
    with pytest.raises(KeyboardInterrupt):
        study(target, planted.prompts(0), conditions, Options(steps=2), kept=kept)
    # As if it had been killed in the middle of a line.
    kept.write_text(kept.read_text() + '{"name": "padd')
    target.asked, target.stop = [], None
    resumed = study(target, planted.prompts(0), conditions, Options(steps=2), kept=kept)
    assert target.asked == ["reference", "padding 2"]
    assert not kept.exists()
    whole = study(target, planted.prompts(0), conditions, Options(steps=2))
    assert [each.comparisons for each in resumed.tested] == [each.comparisons for each in whole.tested]


def test_what_was_kept_of_another_probe_is_not_used(tmp_path: Path) -> None:
    target = Interrupted(planted.invariant(planted.llama(0)), planted.Numbers())
    target.asked, target.stop = [], "padding 2"
    conditions = [parse(name) for name in ("rerun", "padding 2")]
    kept = tmp_path / "kept"
    with pytest.raises(KeyboardInterrupt):
        study(target, planted.prompts(0), conditions, Options(steps=2), kept=kept)
    target.asked, target.stop = [], None
    study(target, planted.prompts(0), conditions, Options(steps=3), kept=kept)
    assert target.asked == ["reference", "rerun", "padding 2"]


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
    with pytest.raises(ValueError, match="2 rows or more"):
        so.assert_batch_invariant(model, Tokenizer(), ["hello"], batch_sizes=[1])
