"""What a person sees while a run goes on: a live panel in a terminal, and one short line a batch anywhere else."""

import statistics
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.panel import Panel

from turnwise.config import Config
from turnwise.panel import RunPanel, Status, describe_failures, success
from turnwise.terminal import clip, clock, printable

LINE = 160  # columns of a plain line
POINTS = 60  # of the sparkline
PACE = 20  # newest steps that the time left is judged by


class _Lasting(Console):
    """Goes on in silence where nobody can read any more: a run is worth more than what is said of it."""

    def on_broken_pipe(self) -> None:
        self.quiet = True

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError:  # a terminal that was closed, a disk that is full
            self.quiet = True


class View:
    """Use it as a context manager: `step` after every batch, `say` for anything else."""

    def __init__(self, config: Config, folder: Path, resumed_at: int | None = None, console: Console | None = None):
        self.config = config
        self.resumed_at = resumed_at
        # To Rich anything is a terminal where FORCE_COLOR is set, a file too. There may be no output at all.
        terminal = sys.stdout is not None and sys.stdout.isatty()
        self.console = console or _Lasting(force_terminal=None if terminal else False)
        self.folder = printable(folder)
        self._run = RunPanel(self.folder, printable(config.model.path), config.tasks, resumed_at)
        # Where a resumed run is in its warm-up is known after the next batch.
        warming = config.warmup.w_epoch > 0 and resumed_at is None
        self._status = Status(warming, resumed_at or 0, config.warmup.w_epoch if warming else config.steps)
        self._pace: deque[float] = deque(maxlen=PACE)
        self._means: deque[float] = deque(maxlen=POINTS)
        self._began = self._stepped = time.monotonic()
        # A terminal that cannot move its cursor, or has no box characters, gets lines as well.
        drawn = self.console.is_terminal and not (self.console.is_dumb_terminal or self.console.options.ascii_only)
        self._live = Live(console=self.console, get_renderable=self._panel, refresh_per_second=1) if drawn else None

    def __enter__(self) -> "View":
        self._began = self._stepped = time.monotonic()
        if self._live:
            self._live.start(refresh=True)
        else:
            warmup = f"{self.config.warmup.w_epoch} warm-up batches, " if self.config.warmup.w_epoch else ""
            plan = f"{self.folder}  model {self.config.model.path}  {warmup}{self.config.steps} steps"
            self.say(plan if self.resumed_at is None else f"{plan}, resumed at step {self.resumed_at}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """One line above the panel, or by itself."""
        text = text.encode(self.console.encoding, "replace").decode(self.console.encoding)  # no letter ends a run
        self.console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=self._live is None)

    def step(
        self, step: int, figures: Mapping[str, float], invalid_texts: Sequence[tuple[str, int]], failure: str
    ) -> None:
        """Show a batch: of the warm-up where the figures have `warmup/collected`, else the one that made `step`."""
        now, before, config = time.monotonic(), self._status, self.config
        warming = "warmup/collected" in figures
        took = figures.get("time/step_s", 0.0)
        if warming == before.warming:
            took = max(took, now - self._stepped)  # a checkpoint is written after a step has taken its time
        else:
            self._pace.clear()
        if took:
            self._pace.append(took)
        self._stepped = now
        failed, dropped = int(figures.get("episodes/failed", 0)), int(figures.get("episodes/dropped_turns", 0))
        rates = [figures[f"success/{task}"] for task in config.tasks if f"success/{task}" in figures]
        if rates:
            self._means.append(statistics.fmean(rates))
        done, total = (int(figures["warmup/collected"]), config.warmup.w_epoch) if warming else (step, config.steps)
        self._status = Status(
            warming=warming,
            done=done,
            total=total,
            # The warm-up ends with fits of the critic, and no batch tells how long they take.
            step_s=statistics.median(self._pace) if self._pace and not (warming and done == total) else None,
            figures=dict(figures),
            means=tuple(self._means),
            invalid_texts=tuple(invalid_texts),
            failures=before.failures + failed,
            dropped_turns=before.dropped_turns + dropped,
            failure=failure or before.failure,
        )
        if self._live:
            self._live.refresh()
        else:
            self.say(plain_line(self._status, config.tasks))
            if trouble := describe_failures(failed, dropped):
                self.say(clip(f"{trouble}: {printable(failure)}", LINE))

    def _panel(self) -> Panel:
        now, status = time.monotonic(), self._status
        left_s = status.left_s(now - self._stepped)
        return self._run.draw(status, now - self._began, left_s, self.console.size)


def plain_line(status: Status, tasks: Sequence[str]) -> str:
    """A batch in at most LINE columns: tasks lose their intervals, then their names, where there are many.

    step 12/60  success goto 0.93 [0.86, 0.97] pickup -  reward 0.11  valid 0.97  EV 0.61  142 turns/s  ETA 3:10
    """
    figures = status.figures

    def short(label: str, name: str) -> list[str]:
        return [f"{label} {figures[name]:.2f}"] if name in figures else []

    kl = [*short("think", "kl/reasoning"), *short("act", "kl/action")]
    left_s = status.left_s(0.0)
    rates = [(printable(task), success(figures, task)) for task in tasks]
    rest = [
        *([] if any(rate for _, rate in rates) else short("progression", "episodes/progression")),
        *short("reward", "turns/reward"),
        *short("valid", "turns/valid"),
        *([f"KL {' '.join(kl)}"] if kl else []),
        *short("EV", "critic/explained_variance"),
        *([f"{figures['time/turns_per_s']:,.0f} turns/s"] if "time/turns_per_s" in figures else []),
        *([f"ETA {clock(left_s)}"] if left_s is not None else []),
    ]
    choices = [
        " ".join(f"{task} {s[0]:.2f} [{s[1]:.2f}, {s[2]:.2f}]" if s else f"{task} -" for task, s in rates),
        " ".join(f"{task} {s[0]:.2f}" if s else f"{task} -" for task, s in rates),
        f"{status.means[-1]:.2f} (mean)" if status.means else "-",
    ]
    phase = f"{'warm-up' if status.warming else 'step'} {status.done:>{len(str(status.total))}}/{status.total}"
    lines = ["  ".join([phase, f"success {choice}", *rest]) for choice in choices]
    return next((line for line in lines if cell_len(line) <= LINE), clip(lines[-1], LINE))
