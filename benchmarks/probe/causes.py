"""The causes of all differences: those that change texts first, as long as there is time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sortition.benchmarks.probe.attribution import attribute
from sortition.benchmarks.probe.case import Case
from sortition.benchmarks.probe.deadline import Deadline
from sortition.benchmarks.probe.findings import Attribution, Tested
from sortition.benchmarks.probe.target import Condition


def differs(tested: Tested) -> bool:
    """Whether some bit or choice is another than the reference's."""
    return any(each.first_difference is not None or each.flips for each in tested.comparisons)


def needs_a_cause(tested: Tested) -> bool:
    """Whether it differs, and nobody chose that it should: what counts, and draws under the same seed."""
    drawn = {"seed", "draw"} & tested.given.keys()
    return differs(tested) and (tested.counts or bool(drawn))


def causes(
    tried: Sequence[tuple[Condition, Tested]],
    case_of: Callable[[Condition, Tested], Case],
    groups: Sequence[tuple[str, ...]],
    deadline: Deadline,
    progress: Callable[[str, int, int], None],
) -> tuple[Attribution, ...]:
    """The cause of each condition that needs one; those with the same bits share one, that of the first.

    Args:
        tried: conditions and what came of them.
        case_of: what is needed to look into one.
        groups: names of conditions with the same bits, as in `Findings.classes`.
        deadline: after which no cause is looked for, and that is what is said.
        progress: told what is being done, how many are done, and how many there are.
    """
    group_of = {name: group for group in groups for name in group}
    needy = sorted(
        ((condition, each) for condition, each in tried if needs_a_cause(each)),
        key=lambda pair: not any(one.flips for one in pair[1].comparisons),
    )
    found: list[Attribution] = []
    done: set[str] = set()
    for condition, each in needy:
        if each.name in done:
            continue
        group = group_of.get(each.name, ())
        # Where bits are those of the reference, choices differ, and each condition has a cause of its own.
        others = [] if "reference" in group else [other.name for _, other in needy]
        shared = tuple(other for other in others if other in group and other != each.name)
        progress(f"cause of {each.name}", len(done), len(needy))
        attribution = None
        with deadline.minding():
            if not deadline.passed():
                attribution = attribute(case_of(condition, each), deadline)
        found.append(replace(attribution or _not_looked_for(each.name, deadline.reason), shared_by=shared))
        done |= {each.name, *shared}
    return tuple(found)


def _not_looked_for(name: str, why: str) -> Attribution:
    return Attribution(name, "unknown", "not found", f"its cause was not looked for: {why}")
