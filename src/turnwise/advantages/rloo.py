"""REINFORCE leave-one-out: an episode against the others of its group (Ahmadian et al. 2024, arXiv:2402.14740).

With R the sum of an episode's rewards, in a group of n, for each of its tokens:

    A = R - mean of the other n - 1 = n / (n - 1) (R - mean of all)

An episode without others has no credit.
"""

from dataclasses import dataclass

import torch

from turnwise.advantages import spans
from turnwise.advantages.relative import above_mean, episode_returns, levels
from turnwise.batch import Estimate, Streams


@dataclass(frozen=True)
class RLOO:
    critic = False
    groups = True
    whiten = False

    def __call__(self, streams: Streams) -> Estimate:
        groups = levels(streams)
        size = torch.bincount(groups)[groups]
        advantages = above_mean(episode_returns(streams), groups) * size / (size - 1).clamp(min=1)
        return Estimate(spans.spread(advantages, streams.segment_ends).float())
