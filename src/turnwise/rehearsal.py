"""An estimator is tried before anything is played: the first batch, or all of a warm-up, is dear to lose."""

import torch

from turnwise.batch import pack
from turnwise.config import UpdateConfig
from turnwise.policy import Scores
from turnwise.protocols import Advantage
from turnwise.types import Action, Generation, Observation, Outcome, Segment, Turn
from turnwise.update import Objective, assign_credit


def rehearse(advantage: Advantage, config: UpdateConfig) -> None:
    """Credit two whole episodes of one level; what the estimator answers wrongly there is a ValueError."""
    batch = pack([_episode(slot, reward) for slot, reward in enumerate((0.0, 1.0))])
    scores = Scores(torch.zeros(len(batch.logprobs)), torch.zeros(len(batch.segments)), None)
    credit = assign_credit(batch, scores, advantage, 0.0, config.whiten)
    Objective(batch, credit, config, 0.0)


def _episode(slot: int, reward: float) -> Segment:
    """Of two turns, the last of which is rewarded."""
    generation = Generation((3, 4), (-1.0, -1.0), "stop", 0)
    action = Action("go", "valid", "go", "", 0)
    turns = (Turn(Observation("here"), (1, 2), generation, action, 2, r, "go", "go", "go") for r in (0.0, reward))
    outcome = Outcome(reward > 0, reward, 2, None)
    return Segment(slot, 0, "rehearsal", 0, tuple(turns), "terminated", (), outcome)
