"""The same for a terminal."""

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from turnwise.probe.play import Probe
from turnwise.probe.translations import translation_table
from turnwise.probe.verdicts import percent, rate, verdicts
from turnwise.terminal import NONE, clip, printable

COLOURS = {"mend": "red", "look": "yellow", "good": "green"}
SAID = 40  # columns of an invalid text


def summary(probe: Probe) -> Group:
    """Verdicts, then the figures that they rest on."""
    head = Text(f"\n{printable(probe.recipe)}, played by {printable(probe.model)}", style="bold")
    parts = [head, _verdicts(probe), _tasks(probe)]
    if probe.texts:
        parts.append(_texts(probe))
    if table := translation_table(probe.texts):
        parts += [Text("translations to consider, by spelling alone:", style="dim"), Padding(Text(table), (0, 0, 1, 2))]
    if probe.failures:
        counts = ", ".join(f"{group.cause} {group.count}" for group in probe.failures)
        parts.append(Text(f"failures: {counts}\n"))
    return Group(*parts, _memory(probe))


def _verdicts(probe: Probe) -> Table:
    table = Table.grid(padding=(0, 2))
    for verdict in verdicts(probe):
        sentence = Text(printable(verdict.finding)).append(f" {verdict.advice}", style="dim")
        table.add_row(Text(verdict.mark, style=COLOURS[verdict.mark]), sentence)
    return table


def _tasks(probe: Probe) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("task", overflow="fold", min_width=10)
    for head in ("model", *probe.rivals, "invalid", "tokens of\nreasoning", "cut"):
        table.add_column(head, justify="right", no_wrap=True)
    for place, sheet in enumerate(probe.sheets):
        table.add_row(
            Text(printable(sheet.score.task)),
            rate(sheet.score),
            *(rate(scores[place]) for scores in probe.rivals.values()),
            percent(sheet.actions.share("invalid")),
            f"{sheet.reasoning.tokens_median:.0f}",
            percent(sheet.reasoning.cut),
            end_section=place == 0,
        )
    return table


def _texts(probe: Probe) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("invalid action")
    table.add_column("times", justify="right")
    table.add_column("nearest in spelling")
    for text in probe.texts:
        said = clip(printable(text.said), SAID) if text.said else "(no action line)"
        table.add_row(Text(said), str(text.count), Text(", ".join(text.nearest) or NONE))
    return table


def _memory(probe: Probe) -> Table:
    swept = bool(probe.memories[0].sheets)
    table = Table(box=SIMPLE_HEAD)
    for head in ("turns of memory", "prompt tokens", "90th pct.", "longest", *(["success"] if swept else [])):
        table.add_column(head, justify="right")
    for memory in probe.memories:
        prompts = memory.prompts
        figures = [str(memory.turns), f"{prompts.mean:.0f}", f"{prompts.p90:.0f}", str(prompts.longest)]
        table.add_row(*figures, *([rate(memory.sheets[0].score)] if swept else []))
    return table
