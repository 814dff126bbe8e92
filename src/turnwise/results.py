"""What episodes amount to: means with 95% intervals, of tasks, environments and whole suites, as tables and files."""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean

from rich.table import Table
from rich.text import Text

from turnwise.config import Config
from turnwise.episodes import Episodes, Record
from turnwise.intervals import Interval, bootstrap, mean_of, rate
from turnwise.terminal import NONE

EnvironmentTask = tuple[str, str]  # an environment and a task of it

OVERALL = "overall"
_FIGURE = len("0.333 [0.061, 0.792]")


@dataclass(frozen=True)
class Result:
    """One player on some episodes."""

    episodes: int
    successes: int | None  # None where the environment does not tell
    progression: Interval | None  # 0 to 1; None where the environment does not tell
    mean_return: float | None  # native or binary, as the recipe says; penalties included; None over environments
    mean_turns: float
    valid: float | None = None  # share of valid or translated actions; None for players that speak no text
    invalid_texts: tuple[tuple[str, int], ...] = ()  # the most frequent
    failures: int = 0  # environments that failed, and whose levels were passed over
    figures: Mapping[str, float] = field(default_factory=dict)  # means of whatever else agents and environments counted

    @property
    def graded(self) -> bool:
        """Whether success and progression are told, and are not the same."""
        if self.successes is None or self.progression is None:
            return False
        return self.progression != rate(self.successes, self.episodes)

    def __str__(self) -> str:
        """Success where the environment tells it, else progression, else return."""
        told = self.progression if self.successes is None else rate(self.successes, self.episodes)
        return f"return {self.mean_return:.2f}" if told is None else f"{told:.3f}"


@dataclass(frozen=True)
class Row:
    """A line of the results; an empty task stands for all of the environment."""

    player: str
    environment: str
    task: str
    result: Result


def summarise(records: Sequence[Record]) -> Result:
    """Of one or more episodes."""
    count, turns = len(records), sum(record.turns for record in records)
    verdicts = [record.success for record in records if record.success is not None]
    valid = [record.valid for record in records if record.valid is not None]
    invalid = sum((Counter(record.invalid_texts) for record in records), Counter[str]())
    names = dict.fromkeys(name for record in records for name in record.figures)  # in the order of the first mention
    return Result(
        episodes=count,
        successes=sum(verdicts) if len(verdicts) == count else None,
        progression=_progression(records),
        mean_return=sum(record.episode_return for record in records) / count,
        mean_turns=turns / count,
        valid=sum(valid) / turns if valid else None,
        invalid_texts=tuple(invalid.most_common(3)),
        failures=sum(record.failures for record in records),
        figures={name: sum(record.figures.get(name, 0.0) for record in records) / count for name in names},
    )


def _progression(records: Sequence[Record]) -> Interval | None:
    told = [record.progression for record in records if record.progression is not None]
    if len(told) < len(records):
        return None
    all_or_nothing = all(record.progression == record.success for record in records)
    return rate(sum(told), len(told)) if all_or_nothing else bootstrap(told)


def rows_of(episodes: Episodes, told: Set[EnvironmentTask] = frozenset()) -> list[Row]:
    """Each player's tasks and environments, and for who played in all of these what they amount to together.

    Success is `told` in these tasks, as other episodes have shown, even if none of these tells it.
    """
    rows, environments = [], {environment for _, environment in episodes}
    told = told | tasks_told(episodes)
    episodes = {key: [judged(key[1], record, told) for record in records] for key, records in episodes.items()}
    for player in dict.fromkeys(player for player, _ in episodes):
        played = {environment: records for (who, environment), records in episodes.items() if who == player}
        whole = {environment: summarise(records) for environment, records in played.items()}
        for environment, records in played.items():
            rows += [Row(player, environment, task, summarise(one)) for task, one in by_task(records).items()]
            rows.append(Row(player, environment, "", whole[environment]))
        means = [result.progression for result in whole.values() if result.progression is not None]
        if 1 < len(environments) == len(means):
            together = summarise([record for records in played.values() for record in records])
            turns = fmean(result.mean_turns for result in whole.values())
            overall = replace(together, progression=mean_of(means), mean_turns=turns)
            # Successes, returns and what is counted are not the same thing in two environments.
            overall = replace(overall, successes=None, mean_return=None, figures={})
            rows.append(Row(player, OVERALL, "", overall))
    return rows


def held_out_figures(rows: Sequence[Row]) -> dict[str, float]:
    """Of each task: success, where it is told, and its 95% interval (Wilson), and means."""
    figures = {}
    for name, result in {f"held_out/{row.task}": row.result for row in rows if row.task}.items():
        if result.successes is not None:
            won = rate(result.successes, result.episodes)
            figures |= {f"{name}/success": won.mean, f"{name}/success/low": won.low, f"{name}/success/high": won.high}
        if result.progression is not None:
            figures[f"{name}/progression"] = result.progression.mean
        if result.mean_return is not None:
            figures[f"{name}/return"] = result.mean_return
        figures[f"{name}/turns"] = result.mean_turns
        figures[f"{name}/episodes"] = result.episodes
    return figures


def tasks_told(episodes: Episodes) -> set[EnvironmentTask]:
    """Where success is told of some episodes, whoever played them."""
    return {
        (environment, record.task)
        for (_, environment), records in episodes.items()
        for record in records
        if record.success is not None
    }


def judged(environment: str, record: Record, told: Set[EnvironmentTask]) -> Record:
    """Where success in a task is told of some episodes, the others had none."""
    if record.success is not None or (environment, record.task) not in told:
        return record
    return replace(record, success=False, progression=record.progression or 0.0)


def by_task(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Samples by their source."""
    tasks: dict[str, list[Record]] = {}
    for record in records:
        tasks.setdefault(record.part, []).append(record)
    return tasks


def task_table(rows: Sequence[Row], config: Config) -> Table:
    """A row a task, a column a player."""
    tasks = [row for row in rows if row.task]
    what = "success, 95% intervals"
    if any(row.result.successes is None for row in tasks):
        what = "progression, 95% intervals"
    if any(row.result.successes is None and row.result.progression is None for row in tasks):
        what = "return, or success with its 95% interval"
    table = Table(title=f"{what}; {config.evaluation.episodes} held-out episodes a task")
    cells: dict[tuple[str, str], str] = {}
    for row in tasks:
        cells[row.task, row.player] = str(row.result)
        if row.result.graded:
            cells[f"{row.task}, progression", row.player] = _shown(row.result)
    _fill(table, "task", cells)
    notes = []
    if missing := _missing(tasks, config):
        notes.append(f"{missing} test rows failed, and none was left to play instead")
    spoken = [row for row in tasks if row.result.valid is not None]
    if spoken:
        shares = ", ".join(f"{row.task} {row.result.valid:.3f}" for row in spoken)
        said = sum((Counter(dict(row.result.invalid_texts)) for row in spoken), Counter[str]()).most_common(3)
        worst = "; most frequent invalid: " + ", ".join(f"{text!r} x{count}" for text, count in said) if said else ""
        notes.append(f"temperature {config.evaluation.temperature:g}; valid actions: {shares}{worst}")
    table.caption = Text("; ".join(notes)) if notes else None  # what a model said may look like markup
    return table


def _missing(tasks: Sequence[Row], config: Config) -> int:
    """Test rows that the first player was to play and did not."""
    if config.data is None:
        return 0
    played = sum(row.result.episodes for row in tasks if row.player == tasks[0].player)
    return config.evaluation.episodes - played


def suite_table(rows: Sequence[Row], missing: Sequence[str]) -> Table:
    """A row an environment, a column a player."""
    table = Table(title="progression on held-out levels, 95% intervals")
    whole = [row for row in rows if not row.task]
    _fill(table, "environment", {(row.environment, row.player): _shown(row.result, ".2f") for row in whole})
    table.caption = "; ".join(f"{name} is missing, and not counted" for name in missing) or None
    return table


def figure_table(rows: Sequence[Row]) -> Table | None:
    """A row a task and a figure that it counts, a column a player; None where nothing is counted."""
    cells = {
        (f"{row.task} {name}", row.player): f"{value:.3f}"
        for row in rows
        if row.task
        for name, value in row.result.figures.items()
    }
    table = Table(title="counted, means over the episodes")
    _fill(table, "task and figure", dict(sorted(cells.items())))
    return table if cells else None


def _fill(table: Table, head: str, cells: Mapping[tuple[str, str], str]) -> None:
    """In 80 columns figures stay whole and names are told apart. What looks like markup is none."""
    players = list(dict.fromkeys(player for _, player in cells))
    table.add_column(head, overflow="fold")
    for player in players:
        width = max(len(cell) for (_, who), cell in cells.items() if who == player)
        width = max(width, min(len(player), _FIGURE))
        folded = "\n".join(player[start : start + width] for start in range(0, len(player), width))
        table.add_column(Text(folded), justify="right", width=width)
    for name in dict.fromkeys(name for name, _ in cells):
        table.add_row(Text(name), *(cells.get((name, player), NONE) for player in players))


def files_of(rows: Sequence[Row], suite: Mapping[str, Config], missing: Sequence[str]) -> dict[str, str]:
    """The text of each file of results, by its name."""
    flat = [_flat(row) for row in rows]
    table = io.StringIO()
    writer = csv.DictWriter(table, flat[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    record = {
        "evaluation": {name: config.evaluation.model_dump() for name, config in suite.items()},
        "missing": list(missing),
        "results": [
            {**one, "invalid_texts": row.result.invalid_texts, "figures": row.result.figures}
            for one, row in zip(flat, rows, strict=True)
        ],
    }
    return {
        "results.json": json.dumps(record, indent=1) + "\n",
        "results.csv": table.getvalue(),
        "results.md": _markdown(rows, missing),
    }


def _flat(row: Row) -> dict[str, object]:
    """A line of numbers alone; `task` is empty for a whole environment, and what is not told is None."""
    figures = asdict(row.result)
    progression = figures.pop("progression") or dict.fromkeys(("mean", "low", "high", "standard_error"))
    del figures["invalid_texts"], figures["figures"]
    names = {"player": row.player, "environment": row.environment, "task": row.task}
    return {**names, "progression": progression.pop("mean"), **progression, **figures}


def _markdown(rows: Sequence[Row], missing: Sequence[str]) -> str:
    heads = ("player", "environment", "task", "episodes", "progression", "return", "turns", "valid actions")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        one = row.result
        gained = NONE if one.mean_return is None else f"{one.mean_return:.2f}"
        valid = NONE if one.valid is None else f"{one.valid:.3f}"
        names = f"{row.player} | {row.environment} | {row.task or 'all'}"
        lines.append(f"| {names} | {one.episodes} | {_shown(one)} | {gained} | {one.mean_turns:.1f} | {valid} |")
    lines += [f"\n{name} is missing, and not counted." for name in missing]
    return "\n".join(lines) + "\n"


def _shown(result: Result, spec: str = ".3f") -> str:
    return NONE if result.progression is None else format(result.progression, spec)
