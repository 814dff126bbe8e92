"""What episodes amount to."""

import csv
import io
import json
import re
from typing import Any

import pytest
from helpers import play_config
from rich.console import Console

from turnwise.episodes import Record
from turnwise.intervals import bootstrap, mean_of, rate
from turnwise.results import figure_table, files_of, rows_of, suite_table, summarise, task_table


def record(task: str = "goto", progression: float | None = 1.0, success: bool | None = None, **more: Any) -> Record:
    given = {"number": 0, "seed": 0, "episode_return": 0.5, "turns": 4, "valid": 3, "invalid_texts": {"fly": 1}}
    return Record(task=task, success=success, progression=progression, failures=0, **{**given, **more})


WON, LOST = record(progression=1.0, success=True), record("open", progression=0.0, success=False)
HALF, FAR = record("run", progression=0.5), record("run", progression=0.75, turns=6, valid=6, invalid_texts={})


def test_all_or_nothing_has_wilsons_interval_and_anything_else_a_bootstrap():
    assert summarise([WON, LOST, LOST]).progression == rate(1, 3)
    assert summarise([HALF, FAR]).progression == bootstrap([0.5, 0.75])
    told = record(progression=1.0, success=None)  # only by chance all or nothing
    assert summarise([told, told]).progression == bootstrap([1.0, 1.0])
    assert summarise([WON, record(progression=None)]).progression is None


def test_shares_and_means_are_of_turns_and_episodes():
    one = summarise([HALF, FAR])
    assert (one.episodes, one.successes, one.mean_turns, one.mean_return) == (2, None, 5.0, 0.5)
    assert one.valid == pytest.approx(9 / 10)
    assert one.invalid_texts == (("fly", 1),)
    assert summarise([record(valid=None)]).valid is None


EPISODES = {("mine", "babyai"): [WON, LOST, LOST], ("mine", "crafter"): [HALF, FAR], ("random", "babyai"): [LOST]}


def test_environments_weigh_alike_in_the_whole():
    rows = {(row.player, row.environment, row.task): row.result for row in rows_of(EPISODES)}
    assert list(rows) == [
        *(("mine", "babyai", task) for task in ("goto", "open", "")),
        *(("mine", "crafter", task) for task in ("run", "")),
        ("mine", "overall", ""),
        *(("random", "babyai", task) for task in ("open", "")),
    ]
    overall = rows["mine", "overall", ""].progression
    assert overall == mean_of([rate(1, 3), bootstrap([0.5, 0.75])])
    assert overall is not None and overall.mean == pytest.approx((1 / 3 + 0.625) / 2)


def test_nothing_is_overall_where_one_environment_tells_nothing():
    silent = {**EPISODES, ("mine", "crafter"): [record(progression=None)]}
    assert "overall" not in {row.environment for row in rows_of(silent)}


def test_nothing_is_overall_for_who_did_not_play_everywhere():
    further = {**EPISODES, ("mine", "sokoban"): [WON], ("random", "crafter"): [FAR]}
    assert [row.player for row in rows_of(further) if row.environment == "overall"] == ["mine"]


def test_the_files_hold_the_same_numbers():
    rows, suite = rows_of(EPISODES), {"babyai": play_config()}
    files = files_of(rows, suite, ["crafter"])
    told = json.loads(files["results.json"])
    assert told["missing"] == ["crafter"]
    assert told["evaluation"]["babyai"]["episodes"] == 200
    lines = list(csv.DictReader(io.StringIO(files["results.csv"])))
    assert len(lines) == len(told["results"]) == len(rows)
    for line, one in zip(lines, told["results"], strict=True):
        numbers = {key: value for key, value in one.items() if key not in ("invalid_texts", "figures")}
        assert line == {key: "" if value is None else str(value) for key, value in numbers.items()}
    text = files["results.md"]
    assert "| mine | babyai | all | 3 | 0.333 [0.061, 0.792] | 0.50 | 4.0 | 0.750 |" in text
    assert "crafter is missing, and not counted." in text


def test_what_is_counted_is_a_mean_over_all_episodes():
    records = [record(figures={"environment/coal": 1.0}), record(), record(figures={"environment/iron": 1.0})]
    rows = rows_of({("mine", "crafter"): records})
    told = json.loads(files_of(rows, {"crafter": play_config()}, [])["results.json"])["results"]
    assert [one["figures"] for one in told] == [{"environment/coal": 1 / 3, "environment/iron": 1 / 3}] * 2
    console = Console(width=100, record=True)
    console.print(figure_table(rows))
    assert re.search(r"environment/coal\W+0\.333", console.export_text())
    assert figure_table(rows_of(EPISODES)) is None


def test_players_are_judged_alike_where_only_wins_are_told():
    won, other = record(success=True, progression=1.0), record(success=None, progression=None)
    rows = {row.player: row.result for row in rows_of({("mine", "x"): [won, other], ("random", "x"): [other]})}
    assert rows["mine"].progression == rate(1, 2)
    assert (rows["random"].successes, rows["random"].progression) == (0, rate(0, 1))


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("others", [("random",), ("random", "expert")])
def test_a_narrow_table_keeps_figures_whole_and_names_apart(width, others):
    names = ["two_room-maybe_break_stop-goto_win", "two_room-maybe_break_stop-goto_win-distr_obj"]
    won = [record(name, success=True) for name in names]
    player = "runs/[/b]a-run-with-a-long-name"
    console = Console(width=width, record=True)
    console.print(task_table(rows_of({(who, "x"): won for who in (player, *others)}), play_config()))
    text = console.export_text()
    assert text.count(f"{rate(1, 1):.3f}") == 2 * (1 + len(others))
    assert all(who in text for who in others)
    folded = "".join(line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│"))
    assert all(name in folded for name in names)
    assert "[/b]" in "".join(text.split())


def test_a_table_shows_grades_beside_success_where_they_are_not_the_same():
    def text(*records: Record) -> str:
        console = Console(width=100, record=True)
        console.print(task_table(rows_of({("mine", "x"): list(records)}), play_config()))
        return console.export_text()

    graded = [record(progression=0.75, success=False), record(progression=0.25, success=False)]
    assert f"{rate(0, 2):.3f}" in text(*graded)
    assert f"{bootstrap([0.75, 0.25]):.3f}" in text(*graded)
    assert "goto, progression" in text(*graded)
    for others in ([WON, LOST], [HALF, FAR], [record(progression=None, success=True)]):
        assert ", progression" not in text(*others)


def test_the_table_of_a_suite_shows_who_did_not_play():
    console = Console(width=100, record=True)
    console.print(suite_table(rows_of(EPISODES), ["textworld"]))
    text = console.export_text()
    for part in ("babyai", "0.33 [0.06, 0.79]", "overall", "textworld is missing"):
        assert part in text
    crafter = next(line for line in text.splitlines() if "crafter" in line)
    assert "\N{EN DASH}" in crafter  # random has not played it


def test_figures_and_turns_of_the_whole_are_not_mixed_of_unlike_environments():
    counted = {
        ("mine", "babyai"): [WON, LOST, LOST],
        ("mine", "crafter"): [record("run", 0.5, figures={"wood": 1.0}, turns=40)],
    }
    rows = {(row.environment, row.task): row.result for row in rows_of(counted)}
    assert rows["crafter", ""].figures == {"wood": 1.0}
    assert rows["overall", ""].figures == {}
    assert rows["overall", ""].mean_turns == (4 + 40) / 2


def test_successes_are_counted_of_all_episodes_or_of_none():
    rows = {row.task: row.result for row in rows_of({("mine", "x"): [WON, record("run", 0.5), record("run", 0.25)]})}
    assert (rows["goto"].successes, rows["run"].successes, rows[""].successes) == (1, None, None)
