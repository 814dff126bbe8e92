"""What the view draws: numbers, phases and warnings, within the width it has."""

# ruff: noqa: RUF001

import re
from collections.abc import Mapping, Sequence
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from turnwise.config import Config, EnvironmentConfig, ModelConfig, WarmupConfig
from turnwise.panel import share
from turnwise.terminal import clock, printable
from turnwise.view import LINE, POINTS, View

TASKS = ("goto", "pickup", "open")
PLAYED = {
    "turns": 3072, "turns/valid": 0.97, "turns/translated": 0.01, "turns/invalid": 0.02, "turns/reward": 0.113,
    "turns/reply_tokens": 85.4, "turns/reply_cut": 0.01, "episodes/turns": 14.24, "episodes/failed": 0,
    "episodes/dropped_turns": 0, "time/turns_per_s": 142.3, "time/step_s": 4.0, "time/collect_s": 3.02,
}  # fmt: skip
TRAINED = {
    "success/goto": 0.93, "success/goto/low": 0.86, "success/goto/high": 0.97,
    "success/pickup": 0.55, "success/pickup/low": 0.45, "success/pickup/high": 0.64,
    "kl/reasoning": 0.0213, "kl/action": 0.0523, "actor/entropy": 0.4123, "actor/clipped_per_token": 0.0123,
    "critic/explained_variance": 0.61, "critic/loss": 0.0456, "time/score_s": 0.31, "time/update_s": 0.67,
}  # fmt: skip
FULL = {**PLAYED, **TRAINED}


class Gone(StringIO):
    """A reader that has closed its end, or a terminal that is no more."""

    def __init__(self, error: type[OSError]):
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error


@pytest.mark.parametrize("error", [BrokenPipeError, OSError])
@pytest.mark.parametrize("colours", [True, False])
def test_a_run_outlives_those_who_read_what_it_says(monkeypatch, error, colours):
    monkeypatch.setattr("sys.stdout", Gone(error))
    if colours:
        monkeypatch.setenv("FORCE_COLOR", "1")
    with View(Config(steps=2), Path("runs/demo")) as view:
        view.say("who hears this?")
        view.step(1, FULL, (), "")
    assert view.console.quiet


def test_a_file_gets_lines_though_colours_are_forced(monkeypatch):
    written = StringIO()
    monkeypatch.setattr("sys.stdout", written)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with View(Config(steps=2), Path("runs/demo")) as view:
        view.step(1, FULL, (), "")
    assert "step 1/2" in written.getvalue() and "\x1b" not in written.getvalue()


@pytest.fixture(params=[80, 120])
def width(request: pytest.FixtureRequest) -> int:
    return request.param


class Watched:
    """A view, and what stands on its screen."""

    def __init__(
        self, width: int = 80, terminal: bool = True, resumed_at: int | None = None, tasks: Sequence[str] = TASKS,
        folder: str = "runs/demo", w_epoch: int = 40, height: int = 40,
    ):  # fmt: skip
        self.width = width
        self.written = StringIO()
        config = Config(
            steps=60,
            model=ModelConfig(path="some/model"),
            environment=EnvironmentConfig(tasks={task: {} for task in tasks}),
            warmup=WarmupConfig(w_epoch=w_epoch),
        )
        console = Console(
            file=self.written, force_terminal=terminal, width=width, height=height, color_system="standard",
            _environ={"TERM": "xterm"},
        )  # fmt: skip
        self.view = View(config, Path(folder), resumed_at, console)

    def step(
        self, step: int, figures: Mapping[str, float] = FULL, said: Sequence[tuple[str, int]] = (), failure: str = ""
    ) -> str:
        """The screen after a step, with its colours."""
        with self.view:
            self.view.step(step, figures, said, failure)
            return self.screen()

    def screen(self) -> str:
        before = self.written.tell()
        self.view.console.print(self.view._panel())
        screen = self.written.getvalue()[before:]
        screen = screen[screen.index("╭") : screen.index("╯") + 1]
        for line in plain(screen).splitlines():
            assert cell_len(line) <= self.width, line
        return screen

    def lines(self) -> list[str]:
        return self.written.getvalue().splitlines()


def plain(screen: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen)


def row(screen: str, label: str) -> str:
    """The line that begins with a label, with single spaces."""
    lines = [" ".join(line.strip("│ ").split()) for line in plain(screen).splitlines()]
    return next(line for line in lines if line.startswith(label))


def test_panel_before_the_first_batch(width: int) -> None:
    watched = Watched(width)
    with watched.view:
        screen = watched.screen()
    assert row(screen, "runs/demo").endswith("some/model")
    assert row(screen, "critic warm-up 0/40").endswith("0:00 elapsed – left")
    assert row(screen, "goto") == "goto –"
    assert "resumed" not in screen


def test_panel_in_the_warmup(width: int) -> None:
    screen = Watched(width).step(0, {**PLAYED, "warmup/collected": 12})
    assert row(screen, "critic warm-up 12/40").endswith("1:52 left")  # 28 batches of 4 seconds
    assert row(screen, "valid").startswith("valid 0.97 KL, nats a token turns a second 142")
    assert row(screen, "translated").startswith("translated 0.01 of reasoning – seconds a step 4.00")
    assert row(screen, "goto") == "goto –"


def test_nothing_tells_how_long_the_critic_is_fitted() -> None:
    screen = Watched().step(0, {**PLAYED, "warmup/collected": 40})
    assert row(screen, "critic warm-up 40/40").endswith("– left")


def test_panel_shows_the_progression_where_nothing_tells_of_success(width: int) -> None:
    told = {**PLAYED, "episodes/progression": 0.31}
    assert row(Watched(width).step(1, told), "progression") == "progression 0.31 of this batch"
    assert "progression" not in Watched(width).step(1, {**FULL, **told})


def test_panel_of_a_full_step(width: int) -> None:
    screen = Watched(width, resumed_at=2).step(12)
    assert row(screen, "step 12/60").endswith("3:12 left")
    assert row(screen, "goto").endswith(" 0.93 [0.86, 0.97]")
    assert row(screen, "pickup").endswith(" 0.55 [0.45, 0.64]")
    assert row(screen, "open") == "open –"
    assert row(screen, "mean").endswith(" 0.74 0.74 to 0.74")
    for expected in (
        "valid 0.97 KL, nats a token turns a second 142",
        "translated 0.01 of reasoning 0.0213 seconds a step 4.00",
        "invalid 0.02 of action 0.0523 collect 3.02",
        "reward a turn 0.113 entropy 0.4123 score 0.31",
        "turns an episode 14.2 clipped share 0.0123 update 0.67",
        "tokens a reply 85 explained variance 0.61 turns in all 3,072",
        "replies cut 0.01 value loss 0.0456",
    ):
        assert row(screen, expected) == expected
    assert "resumed at step 2" in screen
    assert "failure" not in screen and "often invalid" not in screen


def test_bars_are_solid_dashed_and_dotted_at_the_interval() -> None:
    bar = row(Watched().step(12), "pickup").split()[1]
    assert re.fullmatch("━+╍+┄+", bar)
    whole = len(bar) / 0.64
    assert bar.count("━") == pytest.approx(0.45 * whole, abs=1.5)
    assert bar.count("╍") == pytest.approx(0.10 * whole, abs=1.5)


def test_sparkline_shows_the_newest_means() -> None:
    watched = Watched(120)
    with watched.view:
        for step in range(1, 71):
            rate = 0.0 if step <= 20 else step / 100
            watched.view.step(step, {**FULL, "success/goto": rate, "success/pickup": rate}, [], "")
        screen = watched.screen()
    _, spark, now, *ends = row(screen, "mean").split()
    assert len(spark) == POINTS
    assert spark.startswith("▁" * 10) and spark.endswith("█")
    assert (now, " ".join(ends)) == ("0.70", "0.00 to 0.70")


def test_small_changes_look_small() -> None:
    watched = Watched()
    with watched.view:
        for rate in (0.50, 0.51):
            watched.view.step(1, {**FULL, "success/goto": rate, "success/pickup": rate}, [], "")
        assert row(watched.screen(), "mean").split()[1] == "██"


def test_invalid_texts_are_shown_as_they_are(width: int) -> None:
    screen = Watched(width).step(12, said=[("[red]go", 12), ("a\nb\x1b[2J", 3), ("", 2)])
    assert row(screen, "often invalid") == r'often invalid "[red]go" ×12 "a\nb\x1b[2J" ×3 nothing ×2'


def test_long_invalid_texts_share_the_line(width: int) -> None:
    screen = Watched(width).step(12, said=[("walk over to the purple door and open it " * 5, 1234), ("jump", 3)])
    assert re.fullmatch(r'often invalid "walk over to the .*…" ×1234 "jump" ×3', row(screen, "often invalid"))


def test_failures_stay_in_sight(width: int) -> None:
    watched = Watched(width)
    failed = {**FULL, "episodes/failed": 1, "episodes/dropped_turns": 9}
    watched.step(12, failed, failure="timeout in [slot 3]")
    screen = watched.step(13)
    assert row(screen, "1 epi") == "1 episode failed, 9 turns dropped; the last: timeout in [slot 3]"
    assert re.search(r"\x1b\[31m1 episode", screen)
    screen = watched.step(14, failed, failure="crash " * 100)
    assert row(screen, "2 epi").startswith("2 episodes failed, 18 turns dropped; the last: crash")


@pytest.mark.parametrize(("invalid", "colour"), [(0.04, ""), (0.06, "33"), (0.31, "1;31")])
def test_many_invalid_turns_are_coloured(invalid: float, colour: str) -> None:
    screen = Watched().step(12, {**FULL, "turns/invalid": invalid})
    assert re.search(rf"\x1b\[{colour}m *{invalid:.2f}" if colour else rf" {invalid:.2f}", screen)


@pytest.mark.parametrize(
    ("reasoning", "action", "warned"),
    [(0.01, 0.049, False), (0.01, 0.0511, True), (-0.001, 0.02, True), (0.0001, 0.0009, False)],
)
def test_an_action_kl_that_outgrows_the_reasoning_kl_is_coloured(reasoning: float, action: float, warned: bool) -> None:
    screen = Watched().step(12, {**FULL, "kl/reasoning": reasoning, "kl/action": action})
    assert bool(re.search(rf"\x1b\[33m *{action:.4f}", screen)) == warned


def test_markup_in_names_is_text() -> None:
    screen = Watched(folder="runs/[bold]x", tasks=["[red]task"]).step(1)
    assert row(screen, "runs/[bold]x") and row(screen, "[red]task")


@pytest.mark.parametrize("width", [30, 60, 200])
def test_any_width_will_do(width: int) -> None:
    watched = Watched(width, tasks=["a task with a name that goes on and on and on", *TASKS])
    screen = plain(watched.step(12, {**FULL, "episodes/failed": 1}, [("x" * 100, 5)], "crash " * 100))
    assert max(map(cell_len, screen.splitlines())) <= width
    assert "step 1" in screen


@pytest.mark.parametrize("height", [24, 30])
def test_many_tasks_leave_room_for_the_rest(height: int) -> None:
    watched = Watched(tasks=[*TASKS, *(f"task{number}" for number in range(20))], height=height)
    screen = watched.step(12, {**FULL, "episodes/failed": 1}, [("x", 5)], "crash " * 100)
    assert len(screen.splitlines()) == height
    assert re.fullmatch(r"and \d+ tasks more", row(screen, "and"))


def test_time_left_is_of_a_median_step_with_its_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("turnwise.view.time.monotonic", lambda: now)
    watched = Watched()
    with watched.view:
        watched.view.step(0, {**PLAYED, "warmup/collected": 40}, [], "")
        now += 500  # the fit of the critic is no step
        watched.view.step(1, FULL, [], "")
        for step in (2, 3, 4):
            now += 10  # 4 of them are the step itself
            watched.view.step(step, FULL, [], "")
        now += 3
        assert row(watched.screen(), "step 4/60").endswith("8:53 elapsed 9:17 left")


def test_live_panel_is_on_screen_and_lines_go_above_it() -> None:
    watched = Watched()
    with watched.view:
        watched.view.say("critic warm-up: 96 rows [of 3 batches]")
        watched.view.step(12, FULL, [], "")
    written = plain(watched.written.getvalue())
    assert "critic warm-up: 96 rows [of 3 batches]\n" in written
    assert "step 12/60" in written
    assert watched.written.getvalue().rstrip("\n").endswith("\x1b[?25h")  # the cursor is back
    assert max(map(cell_len, written.splitlines())) <= 80


def test_plain_lines() -> None:
    watched = Watched(terminal=False, tasks=["goto", "pickup"])
    with watched.view:
        watched.view.step(0, {**PLAYED, "warmup/collected": 3}, [("[red]", 3)], "")
        watched.view.say("critic warm-up: 96 rows")
        watched.view.step(9, FULL, [("[red]", 3)], "")
    assert watched.lines() == [
        "runs/demo  model some/model  40 warm-up batches, 60 steps",
        "warm-up  3/40  success goto - pickup -  reward 0.11  valid 0.97  142 turns/s  ETA 2:28",
        "critic warm-up: 96 rows",
        "step  9/60  success goto 0.93 [0.86, 0.97] pickup 0.55 [0.45, 0.64]  reward 0.11  valid 0.97  "
        "KL think 0.02 act 0.05  EV 0.61  142 turns/s  ETA 3:24",
    ]


def test_plain_lines_tell_failures() -> None:
    watched = Watched(terminal=False, resumed_at=4, w_epoch=0)
    with watched.view:
        failed = {**FULL, "episodes/failed": 2, "episodes/dropped_turns": 1}
        watched.view.step(5, failed, [], "crash in [slot 3]\n" + "x" * 500)
        watched.view.step(6, FULL, [], "")
    first, _, trouble, last = watched.lines()
    assert first == "runs/demo  model some/model  60 steps, resumed at step 4"
    assert trouble.startswith(r"2 episodes failed, 1 turn dropped: crash in [slot 3]\nxxx")
    assert len(trouble) == LINE
    assert last.startswith("step  6/60")


@pytest.mark.parametrize(
    ("number", "expected"), [(4, "task0 0.50 task1 0.50 task2 0.50 task3 0.50"), (30, "0.50 (mean)")]
)
def test_plain_lines_stay_short(number: int, expected: str) -> None:
    tasks = [f"task{number}" for number in range(number)]
    rates = {f"success/{task}{end}": 0.5 for task in tasks for end in ("", "/low", "/high")}
    watched = Watched(terminal=False, tasks=tasks)
    with watched.view:
        watched.view.step(5, {**FULL, **rates}, [], "")
    line = watched.lines()[-1]
    assert f"success {expected}  reward" in line
    assert len(line) <= LINE


def test_missing_figures_are_dashes() -> None:
    assert row(Watched().step(1, {}), "step 1/60").endswith("– left")
    watched = Watched(terminal=False)
    watched.view.step(1, {}, [], "")
    assert watched.lines() == ["step  1/60  success goto - pickup - open -"]


def test_a_terminal_without_box_characters_gets_lines() -> None:
    file = TextIOWrapper(BytesIO(), encoding="ascii")
    view = View(Config(steps=1), Path("runs/demo"), console=Console(file=file, force_terminal=True))
    with view:
        view.step(1, {**FULL, "episodes/failed": 1}, [], "what ✂ says")
    file.seek(0)
    assert "what ? says" in file.read()


def test_no_steps_at_all() -> None:
    file = StringIO()
    view = View(Config(steps=0), Path("x"), 0, Console(file=file, force_terminal=True, _environ={"TERM": "xterm"}))
    with view:
        pass
    assert row(file.getvalue(), "step 0/0")


def test_clock() -> None:
    assert [clock(s) for s in (0, 59.6, 190, 3790)] == ["0:00", "1:00", "3:10", "1:03:10"]


def test_share_clips_only_what_is_long() -> None:
    assert share(20, ['"abcdefghijklmnopqrst"', '"ab"']) == ['"abcdefghijklm…"', '"ab"']
    assert share(40, ['"abc"', '"ab"']) == ['"abc"', '"ab"']


def test_printable() -> None:
    assert printable("a\tb\x1b[0m\u200bä") == "a\\tb\\x1b[0m\\u200bä"
