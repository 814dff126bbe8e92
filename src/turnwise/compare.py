"""Two players on the very same levels: what lies between them, and how sure that is."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from turnwise.episodes import Protocol, read_episodes, read_protocol
from turnwise.intervals import Estimate, bootstrap
from turnwise.recipe import differences
from turnwise.results import OVERALL

Level = tuple[str, str, int]  # environment, task, seed


@dataclass(frozen=True)
class Difference:
    """How much further A got than B, on the same levels."""

    environment: str
    task: str  # empty: all of them
    gap: Estimate  # of progression, A less B, by paired bootstrap
    wins: int  # levels where A got further
    losses: int
    ties: int


def compare(a: Path, b: Path) -> list[Difference]:
    """Folder by folder, the players that they were made for. Other levels, or some missing, are a ValueError."""
    ours, theirs = _progressions(a), _progressions(b)
    _same_environments(a, b)
    alone = ours.keys() ^ theirs.keys()
    if alone:
        raise ValueError(
            f"{a} and {b} did not play the same levels: {len(alone)} were played in one of them alone; "
            "finish both, with the same suite and the same evaluation.episodes"
        )
    gaps: dict[str, dict[str, list[float]]] = {}
    for level in sorted(ours):
        environment, task, _ = level
        gaps.setdefault(environment, {}).setdefault(task, []).append(ours[level] - theirs[level])
    pooled = {environment: [gap for one in tasks.values() for gap in one] for environment, tasks in gaps.items()}
    found = []
    for environment, tasks in gaps.items():
        found += [_difference(environment, task, [one]) for task, one in tasks.items()]
        found.append(_difference(environment, "", [pooled[environment]]))
    return [*found, _difference(OVERALL, "", list(pooled.values()))] if len(pooled) > 1 else found


def _progressions(folder: Path) -> dict[Level, float]:
    player, found = read_protocol(folder).player, {}
    for (who, environment), records in read_episodes(folder).items():
        for record in records if who == player else ():
            if record.progression is None:
                raise ValueError(f"{environment} in {folder} tells no progression, so there is nothing to compare")
            found[environment, record.task, record.seed] = record.progression
    if not found:
        raise ValueError(f"{folder} holds no episode of {player} yet")
    return found


def _same_environments(a: Path, b: Path) -> None:
    """The same seed is another level where the environment is made otherwise, or another sample of other data."""
    one, other = (
        {name: _levels(keys) for name, keys in read_protocol(folder).environments.items()} for folder in (a, b)
    )
    changed = differences(one, other)
    if changed:
        raise ValueError(f"{a} and {b} did not play the same levels: {'; '.join(changed[:3])}")


def _levels(keys: dict[str, Any]) -> dict[str, Any]:
    """Of the keys of an environment, those that its levels depend on."""
    return {**{key: keys["environment"][key] for key in ("id", "kwargs", "tasks")}, "data": keys.get("data")}


def _difference(environment: str, task: str, groups: Sequence[Sequence[float]]) -> Difference:
    """Of the mean over groups of levels, each of them given as its differences."""
    gaps = [gap for group in groups for gap in group]
    wins, losses = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
    return Difference(environment, task, bootstrap(groups), wins, losses, len(gaps) - wins - losses)


def difference_table(found: Sequence[Difference], a: Path, b: Path) -> Table:
    one, other = read_protocol(a), read_protocol(b)
    table = Table(title=f"{one.player} less {other.player}: progression on the same levels, 95% intervals")
    table.add_column("task", overflow="fold")
    for heading in ("difference", "wins", "losses", "ties"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in found:
        name = f"{row.environment}/{row.task}" if row.task else row.environment
        table.add_row(name, f"{row.gap:+.3f}", *map(str, (row.wins, row.losses, row.ties)), end_section=not row.task)
    changed = differences(_less_model(one), _less_model(other))
    table.caption = Text(f"the protocols differ: {'; '.join(changed)}") if changed else None
    return table


def _less_model(protocol: Protocol) -> dict[str, Any]:
    return {name: {**keys, "model": None} for name, keys in protocol.environments.items()}
