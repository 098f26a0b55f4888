"""JUnit XML, which continuous integration shows: a case for the verdict and one for each condition."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from sortition.benchmarks.printable import printable
from sortition.benchmarks.probe.findings import Findings, Tested
from sortition.benchmarks.probe.report.wording import answers, greatest, share


def xml(findings: Findings) -> str:
    """One suite. Where the limit is exceeded, the conditions that count and change something fail, too.

    A condition that did not take effect or was not run is skipped; an inconclusive verdict is an error, as in
    the exit code.
    """
    verdict = findings.verdict
    suite = Element("testsuite", name="sortition probe", time=f"{findings.seconds:.3f}")
    case = _case(suite, "verdict", 0.0)
    said = "\n".join([*verdict.reasons, *(f"{asked} {answer}" for asked, answer in answers(findings))])
    if verdict.answer != "within":
        _add(case, "failure" if verdict.answer == "exceeded" else "error", verdict.headline, said)
    for tested in findings.tested:
        case = _case(suite, tested.name, tested.seconds)
        if tested.status in ("not exercised", "not run"):
            _add(case, "skipped", f"{tested.status}: {tested.evidence}")
        elif tested.status == "error":
            _add(case, "error", tested.evidence)
        elif verdict.answer == "exceeded" and tested.counts and _changed(findings, tested):
            _add(case, "failure", _figures(tested))
        else:
            SubElement(case, "system-out").text = printable(_figures(tested))
    for kind, tag in (
        ("tests", "testcase"),
        ("failures", "failure"),
        ("errors", "error"),
        ("skipped", "skipped"),
    ):
        suite.set(kind, str(sum(1 for _ in suite.iter(tag))))
    indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(suite, encoding="unicode") + "\n"


def _changed(findings: Findings, tested: Tested) -> bool:
    rate = tested.bitwise if findings.options.get("require") == "bitwise" else tested.divergence
    return rate is not None and rate.count > 0


def _figures(tested: Tested) -> str:
    if tested.bitwise is None or tested.divergence is None:
        return tested.evidence
    return (
        f"other bits: {share(tested.bitwise)}; other text: {share(tested.divergence)}; "
        f"largest difference {greatest(tested):.3g}; {tested.evidence}"
    )


def _case(suite: Element, name: str, seconds: float) -> Element:
    return SubElement(suite, "testcase", classname="probe", name=printable(name), time=f"{seconds:.3f}")


def _add(case: Element, kind: str, message: str, said: str = "") -> None:
    SubElement(case, kind, message=printable(message)).text = printable(said)
