"""The page shows what a model wrote, and nothing of it becomes part of the page."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from makers import episode, probe_of, said

from turnwise.probe.charts import memory_chart, prompts_chart, shares_row, success_row
from turnwise.probe.measure import Actions, Lengths, Score
from turnwise.probe.page import page
from turnwise.probe.play import MemoryFigures, Probe
from turnwise.probe.verdicts import verdicts

HOSTILE = '</pre></style><script>alert(1)</script><img src=x onerror="alert(2)"> \' {{ 7 * 7 }} &lt; \x1b[31m'


def saying(text: str) -> Probe:
    """Everything that a person or a model can write says this."""
    failed = [episode(said(text, seen=text, status="invalid", invalid=text), said(seen="b"), task=text)]
    probe = probe_of(failed, 0.2, recipe=text, model=text)
    sheets = (probe.sheets[0], replace(probe.sheets[1], score=replace(probe.sheets[1].score, task=text)))
    memories = (
        MemoryFigures(1, Lengths(30.0, 35.0, 40), 0.0, sheets),
        MemoryFigures(32, Lengths(300.0, 350.0, 4000), 0.5, sheets),
    )
    return replace(probe, memories=memories)


class Elements(HTMLParser):
    """The tags and the names of attributes of a page, in order; checks that they are closed in order."""

    EMPTY = ("meta",)

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, ...]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, *(name for name, _ in attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, *(name for name, _ in attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_hostile_text_is_shown_as_it_is_and_adds_no_element():
    tame, hostile = (Elements(page([saying(text), saying(text)])) for text in ("tame", HOSTILE))
    assert hostile.found == tame.found
    assert hostile.open == tame.open == []
    assert "script" not in {tag for tag, *_ in hostile.found}
    assert sum(HOSTILE in text for text in hostile.texts) >= 8


@pytest.mark.parametrize("number", [1, 3])
def test_the_page_needs_nothing_but_itself(number):
    text = page([saying("tame")] * number)
    assert not re.search(r"https?:|//\w|@import|url\(|<script|<link|\bsrc=", text)
    assert text.startswith("<!doctype html>")
    assert "prefers-color-scheme: dark" in text and 'name="viewport"' in text
    assert "default-src 'none'" in text


def test_every_verdict_stands_on_the_page():
    probe = saying("tame")
    words = " ".join("".join(Elements(page([probe])).texts).split())
    assert len(verdicts(probe)) >= 5
    for verdict in verdicts(probe):
        assert " ".join(f"{verdict.finding} {verdict.advice}".split()) in words


def test_links_lead_to_the_probes():
    text = page([saying("tame")] * 2)
    assert re.findall(r'href="#([^"]+)"', text) == re.findall(r'<section class="probe" id="([^"]+)"', text)


# -- charts


def attributes(svg: str, kind: str, name: str) -> list[float]:
    marks = re.findall(rf'<(?:line|rect|circle) class="{kind}"[^>]*>', svg)
    return [float(re.search(rf' {name}="([-0-9.]+)%?"', mark)[1]) for mark in marks]  # type: ignore[index]


def test_a_row_of_success_draws_the_interval_and_the_other_players():
    score = Score("goto", 20, 5, 0.0, 1.0)
    svg = success_row(score, {"random": Score("goto", 20, 2, 0.0, 1.0), "expert": Score("goto", 20, None, 0.0, 1.0)})
    assert score.interval
    assert attributes(svg, "interval", "x") == pytest.approx([100 * score.interval[0]], abs=0.01)
    assert attributes(svg, "interval", "width") == pytest.approx(
        [100 * (score.interval[1] - score.interval[0])], abs=0.01
    )
    assert attributes(svg, "model", "cx") == [25]
    assert attributes(svg, "random", "x1") == [10]
    assert attributes(svg, "expert", "x1") == []


def test_shares_fill_their_row():
    svg = shares_row(Actions(2, 1, 5))
    assert [attributes(svg, kind, "width") for kind in ("valid", "translated", "invalid")] == [[25], [12.5], [62.5]]
    assert attributes(svg, "invalid", "x") == [37.5]


def test_charts_of_memory_put_more_above_less_and_keep_inside():
    sheets = [probe_of([episode(said(), success=won) for won in wins]).sheets for wins in ([True, False], [True, True])]
    memories = [
        MemoryFigures(n, Lengths(m, 2 * m, 3 * m), 0.0, s) for n, m, s in zip((1, 2), (10, 1400), sheets, strict=True)
    ]
    for svg in (prompts_chart(memories, 512), memory_chart(memories, 0, sheets[0][0].score)):
        heights = attributes(svg, "model", "cy")
        assert heights[0] > 100 and heights[0] > heights[1]
        for name in ("span", "whisker", "limit", "random"):
            assert all(18 <= y <= 194 for end in ("y1", "y2") for y in attributes(svg, name, end))
    assert (
        attributes(prompts_chart(memories, 512), "whisker", "y2")[1]
        < attributes(prompts_chart(memories, 512), "limit", "y1")[0]
    )
