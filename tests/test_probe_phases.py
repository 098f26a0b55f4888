"""What is said of differences whose operation cannot be seen."""

from __future__ import annotations

import dataclasses

import pytest
from probe_findings import findings

from sortition.benchmarks.probe import findings as kinds
from sortition.benchmarks.probe.findings import Attribution
from sortition.benchmarks.probe.phases import refined

RERUN = Attribution("rerun", "model", "suspected", "model, not sampler")
SEEN = Attribution("batch_size 8", "operation", "confirmed", "seen", operation="a")
UNSEEN = Attribution("batch_size 8", "model", "suspected", "model, not sampler")


def condition(name: str, differs: bool) -> kinds.Tested:
    """A condition of ours, under another name, that differs or does not."""
    like = findings().tested[1 if differs else 0]
    return dataclasses.replace(like, name=name, kind="rerun" if name.startswith("rerun") else "batch_size")


@pytest.mark.parametrize(
    ("attribution", "others", "classes", "remark"),
    [
        (UNSEEN, {}, [["reference"], ["batch_size 8", "prefill"]], "the outlier is generating alone"),
        (UNSEEN, {}, [["reference", "prefill"], ["batch_size 8"]], "the outlier is this condition"),
        (UNSEEN, {}, [["reference"], ["batch_size 8"], ["prefill"]], None),
        (UNSEEN, {"rerun": True}, [["reference"], ["batch_size 8"]], "this proves nothing"),
        (UNSEEN, {"rerun, given batch_size 8": True}, [["reference"], ["batch_size 8"]], "goes by arrival"),
        (UNSEEN, {"rerun, given batch_size 8": False}, [["reference"], ["batch_size 8"]], None),
        (RERUN, {"rerun": True}, [["reference"], ["rerun"]], "does not run alone"),
        (SEEN, {"rerun": True}, [["reference"], ["batch_size 8", "prefill"]], None),
    ],
)
def test_other_conditions_are_heard(
    attribution: Attribution, others: dict[str, bool], classes: list[list[str]], remark: str | None
) -> None:
    conditions = [condition(name, differs) for name, differs in {"batch_size 8": True, **others}.items()]
    (found,) = refined([attribution], conditions, classes)
    if remark is None:
        assert found == attribution
    else:
        assert found.sentence.startswith(attribution.sentence)
        assert remark in found.sentence
