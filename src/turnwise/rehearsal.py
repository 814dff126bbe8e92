"""An estimator is tried before anything is played: the first batch, or all of a warm-up, is dear to lose."""

import torch

from turnwise.batch import pack
from turnwise.config import Config
from turnwise.failures import place
from turnwise.policy import Scores
from turnwise.protocols import Advantage
from turnwise.types import Action, Generation, Observation, Outcome, Segment, Turn
from turnwise.update import Objective, assign_credit


def rehearse(advantage: Advantage, config: Config) -> None:
    """Credit whole episodes of one level, a group or two; what the estimator answers wrongly there is a ValueError."""
    slots = range(max(2, config.rollout.group))
    batch = pack([_episode(config.tasks[0], slot, reward=float(slot % 2)) for slot in slots])
    scores = Scores(torch.zeros(len(batch.logprobs)), torch.zeros(len(batch.segments)), None)
    try:
        credit = assign_credit(batch, scores, advantage, 0.0, config.update.whiten)
    except ValueError:
        raise
    except Exception as error:
        told = f"{type(error).__name__}: {error}{place(error)}"
        raise ValueError(f"advantage: {type(advantage).__name__} fails on {len(slots)} episodes ({told})") from error
    Objective(batch, credit, config.update, 0.0)


def _episode(task: str, slot: int, reward: float) -> Segment:
    """Of two turns, the last of which is rewarded."""
    generation = Generation((3, 4), (-1.0, -1.0), "stop", 0)
    action = Action("go", "valid", "go", "", 0)
    turns = (Turn(Observation("here"), (1, 2), generation, action, 2, r, "go", "go", "go") for r in (0.0, reward))
    outcome = Outcome(reward > 0, reward, 2, None)
    return Segment(slot, 0, task, 0, tuple(turns), "terminated", (), outcome)
