"""What people and machines read of a probe: nothing is lost, taken for markup, or fetched."""

from __future__ import annotations

import dataclasses
import io
import unicodedata
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from probe_findings import CULPRIT, KINDS, LAYERS, findings
from rich.console import Console

from sortition.benchmarks.probe.findings import Answer, Findings, Rate
from sortition.benchmarks.probe.report import junit, page, terminal, wording

VOID = {"meta", "br", "rect", "path", "circle"}


class Elements(HTMLParser):
    """The elements of a page, its texts, and whether they nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def empty() -> Findings:
    """Nothing was exercised, and there is nothing to show."""
    full = findings()
    return dataclasses.replace(
        full,
        references=(),
        tested=full.tested[-1:],
        classes=(("reference",),),
        completions=(),
        agreement=None,
        attributions=(),
        fixes=(),
        verdict=dataclasses.replace(full.verdict, answer="inconclusive"),
    )


def test_the_page_is_whole_and_fetches_nothing() -> None:
    text = page.html(findings())
    elements = Elements(text)
    assert not elements.open
    assert not {"script", "link", "img", "iframe", "object"} & set(elements.names)
    addresses = [value for name, value in elements.attributes if name in ("src", "href", "xlink:href")]
    assert not addresses
    assert "url(" not in text and "@import" not in text
    assert elements.names.count("svg") == 3


def test_the_page_shows_what_was_found() -> None:
    probe = findings()
    text = page.html(probe)
    elements = Elements(text)
    said = "".join(elements.texts)
    for expected in (
        probe.verdict.headline,
        probe.attributions[0].sentence,
        *(fix.suggestion for fix in probe.fixes),
        *(tested.name for tested in probe.tested),
    ):
        assert expected in said
    # One cell for each condition that took effect and each prompt; one square for each operation.
    assert elements.names.count("td") > 6 * 12
    assert elements.names.count("rect") >= LAYERS * len(KINDS)
    assert text.count('<rect class="culprit"') == 1
    assert text.count('class="flip"') == 4 * 4


@pytest.mark.parametrize("text", [page.html(findings()), junit.xml(findings())], ids=["page", "junit"])
def test_texts_of_models_stay_texts(text: str) -> None:
    assert "<script" not in text
    assert "\x00" not in text and "\x1b" not in text
    assert "&lt;script&gt;" in text


def shown(probe: Findings) -> str:
    """What the terminal gets, without colours."""
    console = Console(width=100, file=io.StringIO(), force_terminal=True, color_system=None)
    with console.capture() as capture:
        terminal.show(probe, console)
    return capture.get()


def test_the_terminal_is_not_steered_by_texts() -> None:
    assert not [each for each in shown(findings()) if unicodedata.category(each) == "Cc" and each != "\n"]


def test_the_verdict_stands_first() -> None:
    probe = findings()
    lines = [" ".join(line.split()) for line in shown(probe).splitlines()]
    assert lines[:3] == [
        wording.VERDICTS["exceeded"],
        probe.verdict.headline,
        "is it a bug? no: floating-point sums in another order",
    ]
    text = " ".join(lines)
    for expected in ("4 of 12 prompts", CULPRIT, "[confirmed]", "5 of 5 prompts", "not exercised: threads 2"):
        assert expected in text


def test_what_a_target_cannot_do_is_one_line() -> None:
    """It would hide what could have been exercised, and was not."""
    probe = findings()
    impossible = [
        dataclasses.replace(probe.tested[-1], name=name, possible=False) for name in ("chunk 4", "drafts 4")
    ]
    text = shown(dataclasses.replace(probe, tested=(*probe.tested, *impossible)))
    assert "not possible here: chunk 4, drafts 4\n" in text
    assert text.count("not exercised: ") == 1


@pytest.mark.parametrize(
    ("answer", "kind"),
    [("within", None), ("exceeded", "failure"), ("inconclusive", "error"), ("error", "error")],
)
def test_junit_fails_with_the_verdict(answer: Answer, kind: str | None) -> None:
    suite = ElementTree.fromstring(junit.xml(findings(answer=answer)))
    cases = {case.get("name"): [child.tag for child in case] for case in suite}
    assert cases.pop("verdict") == ([kind] if kind else [])
    assert cases.pop("threads 2") == ["skipped"]
    failed = {name for name, tags in cases.items() if "failure" in tags}
    assert failed == ({f"batch_size {size}" for size in (2, 4, 8, 32)} if answer == "exceeded" else set())
    assert suite.get("tests") == "8"
    assert suite.get("skipped") == "1"
    assert suite.get("failures") == str(len(failed) + (kind == "failure"))


def test_nothing_to_show_is_said() -> None:
    probe = empty()
    elements = Elements(page.html(probe))
    assert not elements.open
    assert "no condition took effect" in shown(probe)
    ElementTree.fromstring(junit.xml(probe))


def test_findings_of_an_earlier_run_can_be_shown() -> None:
    probe = findings()
    assert page.html(Findings.from_json(probe.to_json())) == page.html(probe)


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0"), (0.0042, "0.42"), (0.5, "50"), (0.99, "99"), (0.9958, "99.6"), (1, "100")]
)
def test_shares_are_told_from_none_and_all(share: float, text: str) -> None:
    assert wording.percent(share) == text


def changed(probe: Findings, **changes: object) -> Findings:
    return dataclasses.replace(probe, attributions=(dataclasses.replace(probe.attributions[0], **changes),))


def test_a_bug_is_told_from_floats() -> None:
    probe = findings()
    assert wording.nature(probe).startswith("no: floating-point")
    assert wording.nature(changed(probe, cause="model", conclusion="suspected")).startswith("most likely not")
    assert wording.badge(probe) == "THE BATCH CHANGES THE OUTPUT"
    corrupt = changed(probe, cause="corruption", conclusion="suspected corruption")
    assert wording.badge(corrupt) == "SUSPECTED CORRUPTION"
    assert wording.nature(corrupt).startswith("suspected")
    assert wording.nature(changed(probe, cause="sampler")).startswith("yes")
    assert wording.nature(changed(probe, cause="unknown", conclusion="not found")).startswith("not known")
    drawn = dataclasses.replace(probe.attributions[0], condition="rerun, given seed 7", cause="seed")
    both = dataclasses.replace(probe, attributions=(drawn, *probe.attributions))
    assert wording.nature(both).startswith("no: floating-point")
    assert wording.nature(both).endswith(
        "; but draws under one seed depend on the batch, with the same scores"
    )
    assert wording.main_attribution(both) == probe.attributions[0]
    clean = dataclasses.replace(probe, attributions=(), tested=probe.tested[:1])
    assert wording.nature(clean).startswith("nothing to explain")


def test_answers_are_told_where_they_are_known() -> None:
    probe = findings()
    assert "answer" not in wording.frequency(probe)
    assert probe.agreement is not None
    measured = dataclasses.replace(probe.agreement, tar_answers=Rate(11, 12, 0.6, 1.0, 0.95))
    said = wording.frequency(dataclasses.replace(probe, agreement=measured))
    assert "1 of 12 prompts (95 % sure of 0 to 40 %) more than one answer" in said


def test_what_is_missing_is_said_everywhere() -> None:
    probe = findings()
    left = dataclasses.replace(probe.tested[-1], name="chunk 4", status="not run", evidence="out of time")
    early = dataclasses.replace(probe, tested=(*probe.tested, left), stopped="out of time")
    assert "not run, out of time: chunk 4\n" in shown(early)
    assert "not run: out of time" in page.html(early)
    assert "83 s, out of time." in page.html(early)
    (case,) = ElementTree.fromstring(junit.xml(early)).findall("testcase[@name='chunk 4']")
    assert case.find("skipped") is not None
