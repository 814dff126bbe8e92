"""Makers of records by hand."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from turnwise.batch import Streams, pack
from turnwise.types import Action, Generation, Observation, Outcome, Segment, Turn


def turn(
    prompt: Iterable[int],
    sampled: Iterable[int],
    reward: float = 0.0,
    *,
    status: Any = "valid",
    said: str = "go",
    action_tokens: int = 0,
    of_memory: bool = False,
    finish: Any = "stop",
) -> Turn:
    """A turn of which only the ids and the reward matter. The log-prob of id 5 is -0.05."""
    ids = tuple(sampled)
    action = None if of_memory else Action("go", status, said, "", 0)
    generation = Generation(ids, tuple(-id / 100 for id in ids), finish, 0)
    return Turn(Observation(""), tuple(prompt), generation, action, action_tokens, reward, "", "", "")


def segment(
    *turns: Turn,
    end: Any = "terminated",
    final: Iterable[int] = (0,),
    slot: int = 0,
    episode: int = 0,
    task: str = "goto",
    success: bool | None = None,
) -> Segment:
    """A segment; `final` is its next prompt, and is left out where it terminated."""
    acted = sum(not one.of_memory for one in turns)
    outcome = None if end == "cut" else Outcome(success, sum(one.reward for one in turns), acted)
    return Segment(slot, episode, task, turns, end, () if end == "terminated" else tuple(final), outcome)


def streams_of(
    segments: Sequence[Segment],
    values: Sequence[float],
    bootstraps: Sequence[float],
    rewards: Sequence[float] | None = None,
) -> Streams:
    """What an estimator sees of these segments; `rewards` replaces those of the turns, one number a token."""
    batch = pack(segments)
    return Streams(
        segments,
        batch.rewards if rewards is None else torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(values, dtype=torch.float64),
        torch.tensor(bootstraps, dtype=torch.float64),
        batch.step_ends,
        batch.segment_ends,
    )
