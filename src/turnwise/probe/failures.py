"""Episodes without success, grouped by what went wrong, with some of each to read."""

from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.probe.measure import played
from turnwise.types import End, Segment, Status

EXAMPLES = 2  # shown of each group
FIRST, LAST = 12, 4  # turns that are shown of a long episode
INVALID = LOOP = 0.5  # of an episode's turns: half of them, and it is what the episode was about

CAUSES = {  # in the order in which they are asked; an episode counts under the first that holds
    "invalid actions": "half of its actions or more were not understood",
    "never left the start": "no action changed what the model saw",
    "loop": "half of its turns or more repeat an observation together with the action taken there",
    "ended in failure": "the environment ended it without success",
    "out of time": "the time limit came first",
}


@dataclass(frozen=True)
class Line:
    """One turn of a transcript."""

    number: int  # from 1
    observation: str
    reply: str
    action: str  # what was executed
    status: Status
    reward: float


@dataclass(frozen=True)
class Example:
    task: str
    seed: int  # of its level
    instructions: str
    turns: int
    end: End
    episode_return: float
    opening: tuple[Line, ...]
    ending: tuple[Line, ...]  # after a gap; empty where the opening is all


@dataclass(frozen=True)
class Group:
    cause: str
    meaning: str
    count: int
    examples: tuple[Example, ...]


def group_failures(episodes: Sequence[Segment]) -> list[Group]:
    """The largest group first; causes that no episode has are left out."""
    found: dict[str, list[Segment]] = {}
    for episode in episodes:
        if (why := cause(episode)) is not None:
            found.setdefault(why, []).append(episode)
    groups = [
        Group(why, CAUSES[why], len(failed), tuple(map(example, _diverse(failed)[:EXAMPLES])))
        for why, failed in found.items()
    ]
    return sorted(groups, key=lambda group: -group.count)


def cause(episode: Segment) -> str | None:
    """A key of CAUSES; None for an episode that succeeded, or that ended without a verdict and shows no other fault."""
    assert episode.outcome is not None
    if episode.outcome.success:
        return None
    did = [(turn.observation.text, turn.action) for turn in episode.turns if turn.action]
    if sum(action.status == "invalid" for _, action in did) >= INVALID * len(did):
        return "invalid actions"
    if episode.end == "truncated" and len(did) > 1 and len({seen for seen, _ in did}) == 1:
        return "never left the start"
    if len(did) - len({(seen, action.text) for seen, action in did}) >= LOOP * len(did):
        return "loop"
    if episode.end == "truncated":
        return "out of time"
    return None if episode.outcome.success is None else "ended in failure"


def example(episode: Segment) -> Example:
    """The episode to read: the first and last turns, where it is long."""
    assert episode.outcome is not None
    lines = tuple(
        Line(number, turn.observation.text, turn.text, turn.action.text, turn.action.status, turn.reward)
        for number, turn in enumerate(played(episode), 1)
        if turn.action is not None
    )
    whole = len(lines) <= FIRST + LAST
    return Example(
        episode.task,
        episode.seed,
        episode.turns[0].observation.instructions,
        len(lines),
        episode.end,
        episode.outcome.episode_return,
        lines if whole else lines[:FIRST],
        () if whole else lines[-LAST:],
    )


def _diverse(episodes: Sequence[Segment]) -> list[Segment]:
    """One of each task before a second of any."""
    seen: dict[str, int] = {}
    ranks = []
    for episode in episodes:
        ranks.append(seen.setdefault(episode.task, 0))
        seen[episode.task] += 1
    return [episode for _, episode in sorted(zip(ranks, episodes, strict=True), key=lambda pair: pair[0])]
