"""What other conditions say about a difference whose operation cannot be seen, as behind a URL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sortition.benchmarks.probe.findings import Attribution, Tested


def refined(
    attributions: Sequence[Attribution], tested: Sequence[Tested], classes: Sequence[Sequence[str]]
) -> tuple[Attribution, ...]:
    """The attributions, with more to say where no operation is named.

    Args:
        attributions: what was found by each condition for itself.
        tested: all conditions.
        classes: names of conditions with the same bits, as in `Findings.classes`.
    """
    return tuple(
        replace(each, sentence="; ".join([each.sentence, *_remarks(each, tested, classes)]))
        if each.cause == "model" and each.operation is None
        else each
        for each in attributions
    )


def _remarks(
    attribution: Attribution, tested: Sequence[Tested], classes: Sequence[Sequence[str]]
) -> list[str]:
    if attribution.condition == "rerun":
        return ["the same request once more is enough: it does not run alone, or its arithmetic is not fixed"]
    remarks = []
    unsteady = {each.name for each in tested if each.kind == "rerun" and each.bitwise and each.bitwise.count}
    if "rerun" in unsteady:
        remarks.append("the reference itself is not reproducible, so that this proves nothing")
    elif unsteady:
        remarks.append("the same batch once more differs, too: what runs together goes by arrival")
    own = next((names for names in classes if attribution.condition in names), ())
    if "prefill" in own:
        remarks.append("the bits are those of reading all in one pass: the outlier is generating alone")
    elif "prefill" in classes[0] and attribution.condition not in classes[0]:
        remarks.append("reading all in one pass gives the reference's bits: the outlier is this condition")
    return remarks
