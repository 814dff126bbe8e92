"""Turns that say something, and a probe made by hand."""

from dataclasses import replace
from typing import Any

from helpers import play_config, segment, turn

from turnwise.probe.failures import group_failures
from turnwise.probe.measure import Lengths, Score, sheet
from turnwise.probe.play import ALL, MemoryFigures, Probe
from turnwise.probe.translations import invalid_texts
from turnwise.types import Action, Observation, Segment, Turn


def said(
    thought: str = "I see it.",
    action: str = "add",
    *,
    seen: str = "here",
    status: Any = "valid",
    invalid: str = "",
    tokens: int = 20,
    finish: Any = "stop",
) -> Turn:
    """A turn of `tokens` sampled tokens before an action of two; `invalid` is what stood in the action's place."""
    plain = turn([1] * 30, [5] * (tokens + 2), status=status, action_tokens=2, finish=finish)
    text = f"THINK: {thought}\nACTION: {invalid or action}"
    return replace(
        plain,
        observation=Observation(seen, instructions="Count."),
        action=Action(action, status, invalid or action, thought, len(thought) + 8),
        text=text,
    )


def episode(*turns: Turn, task: str = "goto", success: bool | None = False, end: Any = "truncated") -> Segment:
    return segment(*turns, task=task, success=success, end=end)


def probe_of(
    episodes: list[Segment], luck: float = 0.0, *, memories: tuple[MemoryFigures, ...] = (), **changes: Any
) -> Probe:
    """A probe of these episodes beside a random player that solves a share `luck` of a thousand."""
    tasks = list(dict.fromkeys(one.task for one in episodes))
    sheets = [sheet(ALL, episodes), *(sheet(task, [one for one in episodes if one.task == task]) for task in tasks)]
    rival = tuple(Score(one.score.task, 1000, round(1000 * luck), luck, 9.0) for one in sheets)
    made = Probe(
        recipe="counting.yaml",
        model="small",
        config=play_config(),
        sheets=tuple(sheets),
        rivals={"random": rival},
        texts=tuple(invalid_texts(episodes, ("add", "wait"), 5)),
        failures=tuple(group_failures(episodes)),
        prompts=Lengths(30.0, 30.0, 30),
        shortened=0.0,
        memories=memories or (MemoryFigures(1, Lengths(30.0, 35.0, 40), None, ()),),
        seconds=1.0,
    )
    return replace(made, **changes)
