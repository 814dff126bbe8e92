"""An estimator is tried before anything is played: the first batch, or all of a warm-up, is dear to lose."""

import traceback
from pathlib import Path

import torch

from turnwise.batch import pack
from turnwise.config import Config
from turnwise.failures import place
from turnwise.policy import Scores
from turnwise.protocols import Advantage
from turnwise.types import Action, Generation, Observation, Outcome, Segment, Turn
from turnwise.update import Objective, assign_credit


def rehearse(advantage: Advantage, config: Config) -> str:
    """Credit whole episodes of one level, a group or two; what the estimator does wrongly there is a ValueError.

    It may look for what invented episodes do not have, and be right on real ones: returns a sentence that says so, or
    nothing.
    """
    slots = range(max(2, config.rollout.group))
    batch = pack([_episode(config.tasks[0], slot, reward=float(slot % 2)) for slot in slots])
    scores = Scores(torch.zeros(len(batch.logprobs)), torch.zeros(len(batch.segments)), None)
    try:
        credit = assign_credit(batch, scores, advantage, 0.0, config.update.whiten)
    except Exception as error:
        if isinstance(error, ValueError) and _is_ours(error):
            raise
        told = f"{type(error).__name__}: {error}{place(error)}"
        told = f"advantage: {type(advantage).__name__} fails on {len(slots)} invented episodes ({told})"
        if isinstance(error, LookupError | ValueError):
            return f"{told}; let us see what it makes of real ones"
        raise ValueError(told) from error
    Objective(batch, credit, config.update, 0.0)
    return ""


def _is_ours(error: Exception) -> bool:
    """Whether a sentence of this package says what is wrong."""
    raised = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    return raised.is_relative_to(Path(__file__).parent)


def _episode(task: str, slot: int, reward: float) -> Segment:
    """Of two turns, the last of which is rewarded."""
    generation = Generation((3, 4), (-1.0, -1.0), "stop", 0)
    action = Action("go", "valid", "go", "", 0)
    turns = (Turn(Observation("here"), (1, 2), generation, action, 2, r, "go", "go", "go") for r in (0.0, reward))
    outcome = Outcome(reward > 0, reward, 2, None)
    return Segment(slot, 0, task, 0, tuple(turns), "terminated", (), outcome)
