"""Two players on the very same levels: what lies between them, and how sure that is."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from turnwise.episodes import Protocol, read_episodes, read_protocol
from turnwise.intervals import Interval, bootstrap, mean_of, rate_difference
from turnwise.recipe import differences
from turnwise.results import OVERALL, EnvironmentTask, judged, tasks_told

LevelKey = tuple[str, str, int]  # environment, task, seed
Pair = tuple[float, float]  # the progressions of A and B on one level


@dataclass(frozen=True)
class Difference:
    """How much further A got than B, on the same levels."""

    environment: str
    task: str  # empty: all of them
    gap: Interval  # of progression, A less B
    wins: int  # levels where A got further
    losses: int
    ties: int
    alone: int  # levels that one of them passed over, as its environment failed, or played in place of such a one


def compare(a: Path, b: Path) -> list[Difference]:
    """Folder by folder, the players that they were made for. Other levels, or some missing, are a ValueError.

    Of levels that were passed over only those are compared that both have played.
    """
    told = tasks_told(read_episodes(a)) | tasks_told(read_episodes(b))
    (ours, passed), (theirs, passed_too) = _progressions(a, told), _progressions(b, told)
    _same_environments(a, b)
    alone = ours.keys() ^ theirs.keys()
    # In the place of each level that was passed over another was played; of test rows, as long as there were any.
    finished = all((folder / "results.json").exists() and _is_of_data(folder) for folder in (a, b))
    even = len(ours) == len(theirs) and len(alone) <= 2 * (passed + passed_too)
    if not ours.keys() & theirs.keys() or not (even or finished):
        raise ValueError(
            f"{a} and {b} did not play the same levels: {len(alone)} were played in one of them alone; "
            "finish both, with the same suite and the same evaluation.episodes"
        )
    pairs: dict[str, dict[str, list[Pair]]] = {}
    for level in sorted(ours.keys() & theirs.keys()):
        environment, task, _ = level
        pairs.setdefault(environment, {}).setdefault(task, []).append((ours[level], theirs[level]))
    found, wholes = [], []
    for environment, tasks in pairs.items():
        found += [_difference(environment, task, one, alone) for task, one in tasks.items()]
        wholes.append(_difference(environment, "", [pair for one in tasks.values() for pair in one], alone))
        found.append(wholes[-1])
    return [*found, _overall(wholes)] if len(wholes) > 1 else found


def _progressions(folder: Path, told: Set[EnvironmentTask]) -> tuple[dict[LevelKey, float], int]:
    """Level by level, and how many levels were passed over."""
    player, found, passed = read_protocol(folder).player, {}, 0
    for (who, environment), records in read_episodes(folder).items():
        for record in records if who == player else ():
            progression = judged(environment, record, told).progression
            if progression is None:
                raise ValueError(f"{environment} in {folder} tells no progression, so there is nothing to compare")
            found[environment, record.part, record.seed] = progression
            passed += record.failures
    if not found:
        raise ValueError(f"{folder} holds no episode of {player} yet")
    return found, passed


def _same_environments(a: Path, b: Path) -> None:
    """The same seed is another level where the environment is made otherwise, or another sample of other data."""
    one, other = (
        {name: _levels(keys) for name, keys in read_protocol(folder).environments.items()} for folder in (a, b)
    )
    changed = differences(one, other)
    if changed:
        raise ValueError(f"{a} and {b} did not play the same levels: {'; '.join(changed[:3])}")


def _is_of_data(folder: Path) -> bool:
    return all(keys.get("samples") for keys in read_protocol(folder).environments.values())


def _levels(keys: dict[str, Any]) -> dict[str, Any]:
    """Of the keys of an environment, those that its levels depend on."""
    made = {key: keys["environment"][key] for key in ("id", "kwargs", "tasks")}
    samples = keys.get("samples")  # None where there is no data
    return {**made, "samples": samples, "evaluation.episodes": keys["evaluation"]["episodes"]}


def _difference(environment: str, task: str, pairs: Sequence[Pair], alone: Set[LevelKey]) -> Difference:
    gaps = [one - other for one, other in pairs]
    wins, losses = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
    all_or_nothing = all(outcome in (0, 1) for pair in pairs for outcome in pair)
    gap = rate_difference(*zip(*pairs, strict=True)) if all_or_nothing else bootstrap(gaps)
    apart = sum(level[0] == environment and task in ("", level[1]) for level in alone)
    return Difference(environment, task, gap, wins, losses, len(gaps) - wins - losses, apart)


def _overall(wholes: Sequence[Difference]) -> Difference:
    """The mean over environments, which weigh alike."""
    gap = mean_of([whole.gap for whole in wholes])
    counts = (sum(getattr(whole, name) for whole in wholes) for name in ("wins", "losses", "ties", "alone"))
    return Difference(OVERALL, "", gap, *counts)


def difference_table(found: Sequence[Difference], a: Path, b: Path) -> Table:
    one, other = read_protocol(a), read_protocol(b)
    table = Table(title=Text(f"{one.player} less {other.player}: progression on the same levels, 95% intervals"))
    table.add_column("task", overflow="fold")
    for heading in ("difference", "wins", "losses", "ties"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in found:
        name = Text(f"{row.environment}/{row.task}" if row.task else row.environment)
        table.add_row(name, f"{row.gap:+.3f}", *map(str, (row.wins, row.losses, row.ties)), end_section=not row.task)
    notes = [f"left out, since an environment failed: {alone} levels" for alone in [found[-1].alone] if alone]
    bare, bare_too = _less_model(one, other)
    if changed := differences(bare, bare_too):
        notes.append(f"the protocols differ: {'; '.join(changed)}")
    table.caption = Text("\n".join(notes)) if notes else None
    return table


def _less_model(*protocols: Protocol) -> list[dict[str, Any]]:
    """All but the models, which differ as they may; but not in what they compute in, where that of all is known."""
    played = [protocol.environments for protocol in protocols]
    known = all(keys["model"]["precision"] != "auto" for one in played for keys in one.values())
    kept = ["precision"] if known else []
    return [
        {name: {**keys, "model": {key: keys["model"][key] for key in kept}} for name, keys in one.items()}
        for one in played
    ]
