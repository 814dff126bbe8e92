"""What episodes amount to: means with 95% intervals, of tasks, environments and whole suites, as tables and files."""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import hypot

from rich.table import Table

from turnwise.config import Config
from turnwise.episodes import Episodes, Record
from turnwise.intervals import bootstrap, standard_error, wilson

Interval = tuple[float, float]
OVERALL = "overall"
NONE = "\N{EN DASH}"


@dataclass(frozen=True)
class Result:
    """One player on some episodes."""

    episodes: int
    successes: int | None  # None where the environment does not tell
    progression: float | None  # mean, 0 to 1; None where the environment does not tell
    interval: Interval | None  # of the progression: Wilson's where it is all or nothing, else by bootstrap
    standard_error: float | None  # of the progression
    mean_return: (
        float | None
    )  # native or binary, as the recipe says; penalties included; None over several environments
    mean_turns: float
    valid: float | None = None  # share of valid or translated actions; None for players that speak no text
    invalid_texts: tuple[tuple[str, int], ...] = ()  # the most frequent
    failures: int = 0  # environments that failed, and whose levels were passed over

    def __str__(self) -> str:
        return f"return {self.mean_return:.2f}" if self.progression is None else shown(self.progression, self.interval)


@dataclass(frozen=True)
class Row:
    """A line of the results; an empty task stands for the whole environment."""

    player: str
    environment: str
    task: str
    result: Result


def summarise(records: Sequence[Record]) -> Result:
    """Of one or more episodes."""
    episodes = len(records)
    verdicts = [record.success for record in records if record.success is not None]
    told = [record.progression for record in records if record.progression is not None]
    whole = len(told) == episodes
    turns = sum(record.turns for record in records)
    valid = [record.valid for record in records if record.valid is not None]
    invalid = sum((Counter(record.invalid_texts) for record in records), Counter[str]())
    return Result(
        episodes=episodes,
        successes=sum(verdicts) if verdicts else None,
        progression=sum(told) / episodes if whole else None,
        interval=_interval(records, told) if whole else None,
        standard_error=standard_error(told) if whole else None,
        mean_return=sum(record.episode_return for record in records) / episodes,
        mean_turns=turns / episodes,
        valid=sum(valid) / turns if valid else None,
        invalid_texts=tuple(invalid.most_common(3)),
        failures=sum(record.failures for record in records),
    )


def _interval(records: Sequence[Record], told: Sequence[float]) -> Interval:
    if all(record.progression == record.success for record in records):
        return wilson(sum(told), len(told))
    return bootstrap([told])


def rows_of(episodes: Episodes) -> list[Row]:
    """Each player's tasks and environments, and what the environments amount to together."""
    rows = []
    for player in dict.fromkeys(player for player, _ in episodes):
        played = {environment: records for (who, environment), records in episodes.items() if who == player and records}
        for environment, records in played.items():
            rows += [Row(player, environment, task, summarise(one)) for task, one in by_task(records).items()]
            rows.append(Row(player, environment, "", summarise(records)))
        overall = _overall(list(played.values())) if len(played) > 1 else None
        if overall:
            rows.append(Row(player, OVERALL, "", overall))
    return rows


def by_task(records: Iterable[Record]) -> dict[str, list[Record]]:
    tasks: dict[str, list[Record]] = {}
    for record in records:
        tasks.setdefault(record.task, []).append(record)
    return tasks


def _overall(environments: Sequence[Sequence[Record]]) -> Result | None:
    """The plain mean of the environments' progressions, as BALROG takes it; None where one of them tells none."""
    told = [[r.progression for r in records if r.progression is not None] for records in environments]
    pooled = summarise([record for records in environments for record in records])
    if pooled.progression is None:
        return None
    return replace(
        pooled,
        successes=None,
        progression=sum(sum(values) / len(values) for values in told) / len(told),
        interval=bootstrap(told),
        standard_error=hypot(*map(standard_error, told)) / len(told),
        mean_return=None,
    )


def task_table(rows: Sequence[Row], config: Config) -> Table:
    """A row a task, a column a player: the model first."""
    table = Table(title=f"success over {config.evaluation.episodes} held-out episodes a task, 95% intervals")
    _fill(table, "task", {(row.task, row.player): row.result for row in rows if row.task})
    spoken = [row for row in rows if row.task and row.result.valid is not None]
    shares = ", ".join(f"{row.task} {row.result.valid:.3f}" for row in spoken)
    said = sum((Counter(dict(row.result.invalid_texts)) for row in spoken), Counter[str]()).most_common(3)
    worst = "; most frequent invalid: " + ", ".join(f"{text!r} x{count}" for text, count in said) if said else ""
    if spoken:
        table.caption = f"temperature {config.evaluation.temperature:g}; valid actions: {shares}{worst}"
    return table


def suite_table(rows: Sequence[Row], missing: Sequence[str]) -> Table:
    """A row an environment, a column a player."""
    table = Table(title="progression on held-out levels, 95% intervals")
    _fill(table, "environment", {(row.environment, row.player): row.result for row in rows if not row.task})
    table.caption = "; ".join(f"{name} is missing, and not counted" for name in missing) or None
    return table


def _fill(table: Table, head: str, cells: Mapping[tuple[str, str], Result]) -> None:
    players = list(dict.fromkeys(player for _, player in cells))
    table.add_column(head)
    for player in players:
        table.add_column(player, justify="right")
    for name in dict.fromkeys(name for name, _ in cells):
        table.add_row(name, *(str(cells.get((name, player), "")) for player in players))


def files_of(rows: Sequence[Row], missing: Sequence[str]) -> dict[str, str]:
    """The text of each file of results, by its name."""
    flat = [_flat(row) for row in rows]
    table = io.StringIO()
    writer = csv.DictWriter(table, flat[0] if flat else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    results = [{**one, "invalid_texts": row.result.invalid_texts} for one, row in zip(flat, rows, strict=True)]
    return {
        "results.json": json.dumps({"missing": list(missing), "results": results}, indent=1) + "\n",
        "results.csv": table.getvalue(),
        "results.md": _markdown(rows, missing),
    }


def _flat(row: Row) -> dict[str, object]:
    figures = asdict(row.result)
    low, high = figures.pop("interval") or (None, None)
    figures.pop("invalid_texts")
    return {"player": row.player, "environment": row.environment, "task": row.task, "low": low, "high": high, **figures}


def _markdown(rows: Sequence[Row], missing: Sequence[str]) -> str:
    lines = [
        "| player | environment | task | episodes | progression | return | turns | valid actions |",
        "|---" * 8 + "|",
    ]
    for row in rows:
        one = row.result
        progression = NONE if one.progression is None else shown(one.progression, one.interval)
        valid = NONE if one.valid is None else f"{one.valid:.3f}"
        gained = NONE if one.mean_return is None else f"{one.mean_return:.2f}"
        figures = f"{one.episodes} | {progression} | {gained} | {one.mean_turns:.1f} | {valid}"
        lines.append(f"| {row.player} | {row.environment} | {row.task or 'all'} | {figures} |")
    lines += [f"\n{name} is missing, and not counted." for name in missing]
    return "\n".join(lines) + "\n"


def shown(mean: float, interval: Interval | None, sign: str = "") -> str:
    """A mean and its interval; with `sign="+"` a plus is written too."""
    low, high = interval or (mean, mean)
    return f"{mean:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"
