"""Small charts as inline SVG. Widths are in percent and heights in pixels, so that letters keep their size.

Colours are the page's: what a mark means is its class.
"""

import math
from collections.abc import Sequence
from xml.etree import ElementTree

from markupsafe import Markup

from turnwise.probe.measure import Actions, Score
from turnwise.probe.play import MemoryFigures
from turnwise.probe.verdicts import percent, rate

ROW = 22  # height of a chart that is a row of a list
TALL, HEAD, FOOT = 220, 18, 26  # height of the others; room above and below what they draw
LEFT = 12  # percent, for the labels of the lines


def success_row(score: Score, rivals: dict[str, Score]) -> Markup:
    """Success from 0 to 1 with its interval, and a tick for each of the other players."""
    told = {name: rival for name, rival in rivals.items() if rival.rate is not None}
    svg = _svg(ROW, f"success {rate(score)}" + "".join(f", {name} {rate(one)}" for name, one in told.items()))
    _line(svg, "track", (0, ROW / 2), (100, ROW / 2))
    if score.rate is not None and score.interval:
        low, high = score.interval
        _rectangle(svg, "interval", 100 * low, 100 * (high - low), (6, ROW - 12))
        _dot(svg, "model", 100 * score.rate, ROW / 2)
    for name, rival in told.items():
        _line(svg, name, (_inside(100 * (rival.rate or 0)), 2), (_inside(100 * (rival.rate or 0)), ROW - 2))
    return _markup(svg)


def shares_row(actions: Actions) -> Markup:
    """Valid, translated and invalid actions, side by side."""
    shares = {status: actions.share(status) for status in ("valid", "translated", "invalid")}
    svg = _svg(ROW, ", ".join(f"{status} {percent(share)}" for status, share in shares.items()))
    start = 0.0
    for status, share in shares.items():
        _rectangle(svg, status, start, 100 * share, (5, ROW - 10))
        start += 100 * share
    return _markup(svg)


def prompts_chart(memories: Sequence[MemoryFigures], limit: int) -> Markup:
    """Tokens of a prompt by memory: a dot at the mean, a bar to the 90th percentile, a tick at the longest."""
    top = _ceiling(max(limit, *(memory.prompts.longest for memory in memories)))
    svg = _svg(TALL, "prompt tokens by turns of memory")
    _scale(svg, [0, top / 2, top], top, "{:,.0f}".format)
    _mark(svg, "limit", limit / top, f"limit {limit:,}")
    for place, memory in zip(_places(len(memories)), memories, strict=True):
        mean, p90, longest = (
            _height(n / top) for n in (memory.prompts.mean, memory.prompts.p90, memory.prompts.longest)
        )
        _line(svg, "whisker", (place, p90), (place, longest))
        _line(svg, "span", (place, mean), (place, p90))
        _dot(svg, "model", place, mean)
        _label(svg, "axis", place, TALL - 6, str(memory.turns), "middle")
    return _markup(svg)


def memory_chart(memories: Sequence[MemoryFigures], task: int, chance: Score | None) -> Markup:
    """Success by memory on one task (an index into the sheets), with intervals; a line for random play."""
    svg = _svg(TALL, "success by turns of memory")
    _scale(svg, [0, 0.5, 1], 1, percent)
    if chance is not None and chance.rate is not None:
        _mark(svg, "random", chance.rate, f"random {percent(chance.rate)}")
    for place, memory in zip(_places(len(memories)), memories, strict=True):
        score = memory.sheets[task].score
        if score.rate is not None and score.interval:
            low, high = score.interval
            _line(svg, "span", (place, _height(low)), (place, _height(high)))
            _dot(svg, "model", place, _height(score.rate))
        _label(svg, "axis", place, TALL - 6, str(memory.turns), "middle")
    return _markup(svg)


def _scale(svg: ElementTree.Element, values: Sequence[float], top: float, form) -> None:
    for value in values:
        height = _height(value / top)
        _line(svg, "grid", (0, height), (100, height))
        _label(svg, "axis", 0, height - 4, form(value), "start")


def _mark(svg: ElementTree.Element, kind: str, share: float, text: str) -> None:
    height = _height(share)
    _line(svg, kind, (LEFT, height), (100, height))
    _label(svg, kind, 100, height - 4, text, "end")


def _places(count: int) -> list[float]:
    return [LEFT + (100 - LEFT) * (number + 0.5) / count for number in range(count)]


def _height(share: float) -> float:
    return round(HEAD + (TALL - HEAD - FOOT) * (1 - share), 1)


def _inside(place: float) -> float:
    """A tick at the very edge would lose half of its width."""
    return min(99.7, max(0.3, place))


def _ceiling(value: float) -> float:
    """The next number of one digit and zeros, or that and a half."""
    unit = 10 ** math.floor(math.log10(value))
    return math.ceil(2 * value / unit) / 2 * unit


def _svg(height: int, title: str) -> ElementTree.Element:
    svg = ElementTree.Element("svg", {"width": "100%", "height": str(height), "role": "img"})
    ElementTree.SubElement(svg, "title").text = title
    return svg


def _line(svg: ElementTree.Element, kind: str, start: tuple[float, float], end: tuple[float, float]) -> None:
    (x1, y1), (x2, y2) = start, end
    place = {"x1": f"{x1:.2f}%", "y1": str(y1), "x2": f"{x2:.2f}%", "y2": str(y2)}
    ElementTree.SubElement(svg, "line", {"class": kind, **place})


def _rectangle(svg: ElementTree.Element, kind: str, x: float, width: float, rows: tuple[float, float]) -> None:
    y, height = rows
    place = {"x": f"{x:.2f}%", "y": str(y), "width": f"{width:.2f}%", "height": str(height)}
    ElementTree.SubElement(svg, "rect", {"class": kind, **place})


def _dot(svg: ElementTree.Element, kind: str, x: float, y: float) -> None:
    ElementTree.SubElement(svg, "circle", {"class": kind, "cx": f"{x:.2f}%", "cy": str(y), "r": "4.5"})


def _label(svg: ElementTree.Element, kind: str, x: float, y: float, text: str, anchor: str) -> None:
    place = {"x": f"{x:.2f}%", "y": str(y), "text-anchor": anchor}
    ElementTree.SubElement(svg, "text", {"class": kind, **place}).text = text


def _markup(svg: ElementTree.Element) -> Markup:
    """ElementTree has escaped what it holds."""
    return Markup(ElementTree.tostring(svg, encoding="unicode"))
