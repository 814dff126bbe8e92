"""The live panel of a run under way.

Draws the figures it is handed and decides nothing; a figure that is missing is drawn as a dash.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions, ConsoleOptions, Group, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from turnwise.metrics import RECENT
from turnwise.terminal import NONE, clip, clock, printable

WIDEST = 120  # columns of the panel
SPAN = 0.2  # of success, the least that the sparkline spreads over its full height
FIXED = 20  # rows of the panel at its highest, three empty ones among them, without those of the tasks
LEVELS = "▁▂▃▄▅▆▇█"

# What stands under each heading: label, figure, format. A label without a figure heads the indented ones below it.
BEHAVIOUR = [
    ("valid", "turns/valid", ".2f"),
    ("translated", "turns/translated", ".2f"),
    ("invalid", "turns/invalid", ".2f"),
    ("reward a turn", "turns/reward", ".3f"),
    ("turns an episode", "episodes/turns", ".1f"),
    ("tokens a reply", "turns/reply_tokens", ".0f"),
    ("replies cut", "turns/reply_cut", ".2f"),
]
LEARNING = [
    ("KL, nats a token", "", ""),
    ("  of reasoning", "kl/reasoning", ".4f"),
    ("  of action", "kl/action", ".4f"),
    ("entropy", "actor/entropy", ".4f"),
    ("clipped share", "actor/clipped_per_token", ".4f"),
    ("explained variance", "critic/explained_variance", ".2f"),
    ("value loss", "critic/loss", ".4f"),
]
SPEED = [
    ("turns a second", "time/turns_per_s", ",.0f"),
    ("seconds a step", "time/step_s", ".2f"),
    ("  collect", "time/collect_s", ".2f"),
    ("  score", "time/score_s", ".2f"),
    ("  update", "time/update_s", ".2f"),
    ("turns in all", "turns", ",.0f"),
]


@dataclass(frozen=True)
class Status:
    """All that is drawn but the time; replaced as a whole, because the panel is drawn in a thread of its own."""

    warming: bool  # the critic
    done: int  # batches of the warm-up, or steps
    total: int  # likewise
    step_s: float | None = None  # what the next one will take; None while nobody knows
    figures: Mapping[str, float] = field(default_factory=dict)
    means: Sequence[float] = ()  # success, averaged over the tasks, batch by batch
    invalid_texts: Sequence[tuple[str, int]] = ()
    failures: int = 0  # of environments, since the view was made
    dropped_turns: int = 0  # likewise
    failure: str = ""  # the newest

    def left_s(self, since_s: float) -> float | None:
        """Seconds to the end of the warm-up or the run, `since_s` after its newest batch; None while nobody knows."""
        if self.step_s is None:
            return None
        return max(0.0, (self.total - self.done) * self.step_s - min(since_s, self.step_s))


@dataclass(frozen=True)
class RunPanel:
    """Draws a run, whose folder, model and tasks stay the same."""

    folder: str
    model: str
    tasks: Sequence[str]
    resumed_at: int | None

    def draw(self, status: Status, elapsed_s: float, left_s: float | None, size: ConsoleDimensions) -> Panel:
        """In as many columns and, unless there are few, rows as the terminal has."""
        width = min(size.width, WIDEST)
        rows = size.height - FIXED
        gap = [Text()] if rows >= len(self.tasks) else []
        tasks = self._tasks(status, max(3, rows if gap else rows + 3))
        parts = [self._header(status, elapsed_s, left_s), *gap, tasks, *gap, figure_columns(status.figures)]
        if trouble := trouble_lines(status, width - 4):
            parts += [*gap, *trouble]
        resumed = None if self.resumed_at is None else Text(f"resumed at step {self.resumed_at}", style="dim default")
        return Panel(Group(*parts), width=width, border_style="bright_black", subtitle=resumed, subtitle_align="right")

    def _header(self, status: Status, elapsed_s: float, left_s: float | None) -> Group:
        names = Table.grid(expand=True, padding=(0, 2))
        names.add_column(no_wrap=True, ratio=1)
        names.add_column(no_wrap=True, justify="right", ratio=1)
        names.add_row(Text(self.folder, style="bold"), Text(self.model, style="dim"))
        progress = Table.grid(expand=True, padding=(0, 2))
        progress.add_column(no_wrap=True)
        progress.add_column(ratio=1)
        progress.add_column(no_wrap=True)
        progress.add_column(no_wrap=True)
        bar = ProgressBar(max(1, status.total), status.done, complete_style="cyan", finished_style="cyan")
        phase = f"{'critic warm-up' if status.warming else 'step'} {status.done}/{status.total}"
        left = NONE if left_s is None else clock(left_s)
        progress.add_row(Text(phase, style="bold cyan"), bar, Text(f"{clock(elapsed_s)} elapsed"), Text(f"{left} left"))
        return Group(names, progress)

    def _tasks(self, status: Status, rows: int) -> Table:
        shown = self.tasks if len(self.tasks) <= rows else self.tasks[: rows - 1]
        table = Table.grid(expand=True, padding=(0, 2))
        table.add_column(no_wrap=True, max_width=24)
        table.add_column(ratio=1, no_wrap=True)
        table.add_column(no_wrap=True, justify="right")
        table.add_column(no_wrap=True, justify="right")
        table.add_row(
            Text("success", style="bold"),
            Text(f"of each task's newest {RECENT} levels", style="dim"),
            "",
            Text("95% interval", style="dim"),
        )
        for task in shown:
            interval = success(status.figures, task)
            if interval is None:
                table.add_row(Text(printable(task)), "", Text(NONE, style="dim"), "")
            else:
                rate, low, high = interval
                table.add_row(
                    Text(printable(task)), Bar(rate, low, high), Text(f"{rate:.2f}"), Text(f"[{low:.2f}, {high:.2f}]")
                )
        if len(shown) < len(self.tasks):
            table.add_row("", Text(f"and {len(self.tasks) - len(shown)} tasks more", style="dim"), "", "")
        progression = status.figures.get("episodes/progression")
        if progression is not None and not any(success(status.figures, task) for task in self.tasks):
            table.add_row(Text("progression"), "", Text(f"{progression:.2f}"), Text("of this batch", style="dim"))
        if status.means:
            table.add_row(
                Text("mean"),
                Sparkline(status.means),
                Text(f"{status.means[-1]:.2f}"),
                Text(f"{min(status.means):.2f} to {max(status.means):.2f}", style="dim"),
            )
        return table


@dataclass(frozen=True)
class Bar:
    """A rate and its interval, as wide as there is room: solid to its lower end, dashed to the rate, dotted on."""

    rate: float
    low: float
    high: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        low, rate, high = (round(end * options.max_width) for end in (self.low, self.rate, self.high))
        yield Text.assemble(
            ("━" * low, "green"), ("╍" * (rate - low), "green"), ("┄" * (high - rate), "dim green"), no_wrap=True
        )


@dataclass(frozen=True)
class Sparkline:
    """The newest values for which there is room, the highest as a full block; a change under SPAN is drawn small."""

    values: Sequence[float]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        values = self.values[-options.max_width :]
        top = max(values)
        span = max(SPAN, top - min(values))
        bottom = max(0.0, top - span)
        heights = (round((value - bottom) / span * (len(LEVELS) - 1)) for value in values)
        yield Text("".join(LEVELS[height] for height in heights), "cyan", no_wrap=True)


def trouble_lines(status: Status, width: int) -> list[Text]:
    lines = []
    if status.invalid_texts:
        label = "often invalid"
        line = Text(label, "dim", no_wrap=True, overflow="ellipsis")
        times = [f" \N{MULTIPLICATION SIGN}{count}" for _, count in status.invalid_texts]
        room = width - len(label) - sum(2 + len(word) for word in times)
        texts = share(room, [f'"{printable(text)}"' if text else "nothing" for text, _ in status.invalid_texts])
        for text, word in zip(texts, times, strict=True):
            line.append("  ").append(text, "not dim").append(word)
        lines.append(line)
    if trouble := describe_failures(status.failures, status.dropped_turns):
        lines.append(Text(clip(f"{trouble}; the last: {printable(status.failure)}", 2 * width - 10), "red"))
    return lines


def figure_columns(figures: Mapping[str, float]) -> Table:
    """Behaviour, learning and speed, side by side."""
    table = Table.grid(expand=True)
    for number in range(3):
        if number:
            table.add_column(ratio=1)  # the space between
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, justify="right", min_width=7)
    columns = [BEHAVIOUR, LEARNING, SPEED]
    heads = [Text(head, style="bold") for head in ("behaviour", "learning", "speed")]
    table.add_row(heads[0], "", "", heads[1], "", "", heads[2], "")
    for number in range(max(map(len, columns))):
        cells: list[Text] = []
        for column in columns:
            label, name, form = column[number] if number < len(column) else ("", "", "")
            cells += [Text(label, style="dim"), figure(figures, name, form), Text()]
        table.add_row(*cells[:-1])
    return table


def figure(figures: Mapping[str, float], name: str, form: str) -> Text:
    """A figure in its format, in the colour of its urgency; nothing where none is named."""
    if not name:
        return Text()
    if name not in figures:
        return Text(NONE, style="dim")
    return Text(format(figures[name], form), style=urgency(figures, name))


def urgency(figures: Mapping[str, float], name: str) -> str:
    if name in ("turns/invalid", "turns/reply_cut"):
        return "bold red" if figures[name] > 0.2 else "yellow" if figures[name] > 0.05 else ""
    # The sign of action hacking (see metrics.py); below a thousandth of a nat it is noise.
    if name == "kl/action" and figures[name] > max(5 * figures.get("kl/reasoning", float("inf")), 1e-3):
        return "yellow"
    return ""


def share(room: int, texts: Sequence[str]) -> list[str]:
    """Clip the longest quotations, until all of them fit into `room` columns together."""
    clipped = list(texts)
    shortest_first = sorted(range(len(texts)), key=lambda number: cell_len(texts[number]))
    for rank, number in enumerate(shortest_first):
        width = max(3, room // (len(texts) - rank))
        if cell_len(texts[number]) > width:
            clipped[number] = clip(texts[number], width - 1) + '"'
        room -= cell_len(clipped[number])
    return clipped


def success(figures: Mapping[str, float], task: str) -> tuple[float, float, float] | None:
    """A task's rate and the ends of its interval; None before its first episode has ended."""
    name = f"success/{task}"
    if name not in figures:
        return None
    return figures[name], figures[f"{name}/low"], figures[f"{name}/high"]


def describe_failures(failures: int, dropped_turns: int) -> str:
    if not failures and not dropped_turns:
        return ""
    many, more = ("" if number == 1 else "s" for number in (failures, dropped_turns))
    return f"{failures} episode{many} failed, {dropped_turns} turn{more} dropped"
