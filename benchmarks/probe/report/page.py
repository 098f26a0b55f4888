"""All findings on one HTML page that needs nothing else."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from sortition.benchmarks.page import card, page, table
from sortition.benchmarks.printable import escape
from sortition.benchmarks.probe.findings import Agreement, Attribution, Completions, Findings, Tested
from sortition.benchmarks.probe.report import figures
from sortition.benchmarks.probe.report.wording import (
    answers,
    badge,
    first_difference,
    greatest,
    percent,
    remedy,
    same,
    share,
    units,
)

STYLE: Final = Path(__file__).with_name("page.css").read_text(encoding="utf-8")

SHOWN_PROMPTS: Final = 8
"""Prompts whose texts stand side by side; the JSON has all of them."""

OPEN_REASONS: Final = 3
"""More are folded: causes have a card of their own below."""


def html(findings: Findings) -> str:
    """The page, as a whole document."""
    title = f"Does the batch change the output of {findings.target}?"
    # Where somebody's files are is nothing for a page that is passed on.
    environment = {name: value for name, value in findings.environment.items() if name != "folder"}
    ended = f", {findings.stopped}" if findings.stopped else ""
    run = f"{len(findings.references)} prompts, {findings.seconds:.0f} s{ended}. {_plain(environment)}"
    return page(title, _cards(findings), style=STYLE, footer=run)


def _cards(findings: Findings) -> Iterator[str]:
    yield _verdict(findings)
    yield card(
        "Which conditions give the same bits",
        figures.classes(findings),
        note="One column a prompt. Within a column, the same letter stands for the same bits.",
        wide=True,
    )
    for title, note, picture in (
        (
            "Margins against noise",
            "A choice can only flip where the two best scores are closer than noise moves them. "
            f"{_ties(findings)}",
            figures.margins(findings),
        ),
        (
            "How long texts stay the same",
            "Kaplan-Meier estimate under the conditions that change most, with its interval for the first.",
            figures.survival(findings),
        ),
    ):
        if picture:
            yield card(title, picture, note=note)
    located = next((each for each in findings.attributions if each.operations), None)
    if located is not None:
        yield card(
            "Where bits first differ",
            figures.layers(located),
            note=f"The model's operations under {located.condition}, first differing step.",
        )
    if findings.attributions:
        yield card("Why", "".join(_cause(each) for each in findings.attributions))
    if findings.fixes:
        items = "".join(f"<li>{escape(remedy(fix))}</li>" for fix in findings.fixes)
        yield card("What helps", f"<ul>{items}</ul>")
    yield from _texts(findings)
    yield card(
        "Conditions",
        _conditions(findings),
        note="First at: the first token whose scores differ, under the reference's tokens. Difference: the "
        "greatest of two scores, also in units in the last place. Flips: steps with another choice; foretold "
        "by margins and noise. Sequential test: whether flips are rare (0.1 %) or frequent (2 %).",
        wide=True,
    )
    if findings.agreement is not None:
        yield card("In the measures of the literature", _measures(findings, findings.agreement), wide=True)
    yield card("How it was run", table(("option", "value"), _pairs(findings.options)))


def _ties(findings: Findings) -> str:
    steps = sum(len(each.tokens) for each in findings.references)
    ties = sum(len(each.ties) for each in findings.references)
    return f"At {ties} of {steps} steps of the reference both are equal to the bit."


def _verdict(findings: Findings) -> str:
    verdict = findings.verdict
    rows = "".join(f"<dt>{escape(asked)}</dt><dd>{escape(said)}</dd>" for asked, said in answers(findings))
    reasons = "".join(f"<p>{escape(reason)}</p>" for reason in verdict.reasons)
    if len(verdict.reasons) > OPEN_REASONS:
        reasons = f"<details><summary>{len(verdict.reasons)} reasons</summary>{reasons}</details>"
    return (
        f'<section class="wide verdict {verdict.answer}">\n'
        f"<h2><small>{badge(findings)}</small>{escape(verdict.headline)}</h2>\n"
        f'<dl>{rows}</dl>\n<div class="note">{reasons}</div>\n</section>\n'
    )


def _cause(attribution: Attribution) -> str:
    said = f"<p><strong>{escape(attribution.condition)}</strong>: {escape(attribution.sentence)}</p>"
    if attribution.interventions:
        said += table(
            ("mended", "same bits before", "after", "time"),
            (
                (
                    each.mended,
                    f"{each.equal_before}/{each.prompts}",
                    f"{each.equal_after}/{each.prompts}",
                    "-" if each.cost is None else f"{each.cost:.2f}×",
                )
                for each in attribution.interventions
            ),
            numbers=(1, 2, 3),
        )
    return said


def _conditions(findings: Findings) -> str:
    head = ("condition", "same bits", "same text", "first at", "difference", "units", "flips", "foretold")
    return table(
        (*head, "sequential test", "seen"),
        (_condition(tested) for tested in findings.tested),
        numbers=range(1, len(head)),
    )


def _condition(tested: Tested) -> tuple[str, ...]:
    if tested.status != "exercised":
        return (tested.name, *[""] * 8, f"{tested.status}: {tested.evidence}")
    flips = tested.flips
    return (
        tested.name,
        same(tested.bitwise),
        same(tested.divergence),
        first_difference(tested),
        f"{greatest(tested):.3g}",
        str(units(tested)),
        "-" if flips is None else f"{percent(flips.count / flips.trials) if flips.trials else 0} %",
        "-" if tested.predicted_flips is None else f"{percent(tested.predicted_flips)} %",
        tested.sequential,
        tested.evidence,
    )


def _texts(findings: Findings) -> Iterator[str]:
    several = [each for each in findings.completions if len(each.texts) > 1]
    if several:
        shown = "".join(_side_by_side(findings, each) for each in several[:SHOWN_PROMPTS])
        note = f"Prompts with more than one text: {len(several)}"
        if len(several) > SHOWN_PROMPTS:
            note += f"; these are {SHOWN_PROMPTS} of them"
        yield card("Texts side by side", shown, note=note + ".", wide=True)


def _side_by_side(findings: Findings, completions: Completions) -> str:
    reference = completions.texts[0]
    said = (
        f'<p class="prompt">{escape(findings.references[completions.prompt].text)}</p>\n<div class="texts">'
    )
    for text, conditions in zip(completions.texts, completions.conditions, strict=True):
        common = _common(text, reference)
        said += (
            f'<div><div class="note">{escape(", ".join(conditions))}</div>'
            f"<pre>{escape(text[:common])}<mark>{_seen(text[common:])}</mark></pre></div>"
        )
    return said + "</div>\n"


def _seen(text: str) -> str:
    """The text with signs for line breaks, which may be all that is different."""
    return escape(text.replace("\n", "↵\n"))


def _common(one: str, two: str) -> int:
    """How many characters they begin with alike."""
    pairs = enumerate(zip(one, two, strict=False))
    return next((place for place, (ours, theirs) in pairs if ours != theirs), min(len(one), len(two)))


def _measures(findings: Findings, agreement: Agreement) -> str:
    """The literature's names; those that need answers are there without, and say so."""
    runs = agreement.runs
    texts = [len(each.texts) for each in findings.completions]
    answers, accuracy = agreement.tar_answers, agreement.std_accuracy
    index, median = agreement.divergence_index, agreement.median_survival
    rows = (
        ("unique completions", "texts of a prompt, on average and at most", _spread(texts)),
        (f"TARr@{runs}", "prompts with one text in all runs", share(agreement.tar_raw)),
        (
            f"TARa@{runs}",
            "prompts with one answer in all runs",
            "needs --answer" if answers is None else share(answers),
        ),
        (
            "Std@Acc",
            "deviation of the accuracy over runs",
            "needs --answer and --expected" if accuracy is None else f"{accuracy:.2g}",
        ),
        (
            "Avg_Std@top1_prob",
            "deviation of the best token's probability",
            f"{agreement.std_top_probability:.2g}",
        ),
        ("Div_Index", "median index of the first other token", "none" if index is None else f"{index:g}"),
        (
            "median survival",
            "tokens until half of the texts differ",
            "more than there were" if median is None else f"{median:g}",
        ),
    )
    return table(("measure", "what it is", "value"), rows)


def _spread(counts: Sequence[int]) -> str:
    return f"{statistics.fmean(counts):.3g}, {max(counts)}" if counts else "-"


def _pairs(values: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in values.items()]


def _plain(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in _pairs(values))
