"""One HTML page of one or more probes: self-contained, without scripts, in light and dark.

What a model wrote is shown, so the template escapes everything that is not made here.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from turnwise.config import Config
from turnwise.probe import charts
from turnwise.probe.measure import Score
from turnwise.probe.play import Probe
from turnwise.probe.translations import translation_table
from turnwise.probe.verdicts import percent, rate, verdicts
from turnwise.terminal import NONE

HERE = Path(__file__).parent


def page(probes: Sequence[Probe]) -> str:
    pages = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    pages.filters |= {"percent": _or_dash(percent), "decimal": _or_dash("{:.2f}".format), "rate": rate}
    return pages.get_template("page.html").render(
        probes=probes,
        verdicts=verdicts,
        charts=charts,
        rivals_at=rivals_at,
        memory_span=memory_span,
        translation_table=translation_table,
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
    )


def rivals_at(probe: Probe, place: int) -> dict[str, Score]:
    """The other players' scores in one row of the sheets."""
    return {name: scores[place] for name, scores in probe.rivals.items()}


def memory_span(config: Config) -> str:
    span = config.memory.make("memory").span
    return "all turns" if span is None else f"{span} turn{'s' * (span != 1)}"


def _or_dash(form: Callable[[float], str]) -> Callable[[float | None], str]:
    return lambda value: NONE if value is None else form(value)
