"""REINFORCE++: no critic and no group is needed, the whole batch is the baseline (Hu et al. 2025, arXiv:2501.03262).

With r the reward of a token, less its KL penalty, and t+1 the next sampled token of the episode:

    A[t] = r[t] + gamma A[t+1]

then whitened over the batch. What was only shown, such as the answer of a tool, ends nothing. With a baseline, the
paper's other form for groups, every token has its episode's sum of rewards less the mean of its group, then whitened.
"""

from dataclasses import dataclass

import torch

from turnwise.advantages import spans
from turnwise.advantages.gae import discounted_sums, fraction
from turnwise.advantages.relative import above_mean, episode_returns, levels
from turnwise.batch import Estimate, Streams
from turnwise.groups import refuse_parts


@dataclass(frozen=True)
class ReinforcePlusPlus:
    critic = False
    groups = False
    whiten = True

    gamma: float = 1.0

    def __post_init__(self) -> None:
        fraction("gamma", self.gamma)

    def __call__(self, streams: Streams) -> Estimate:
        refuse_parts(streams.segments)
        rewards = streams.rewards.double()
        decay = torch.full_like(rewards, self.gamma).masked_fill(streams.segment_ends, 0.0)
        return Estimate(discounted_sums(rewards, decay).float())


@dataclass(frozen=True)
class ReinforcePlusPlusBaseline:
    critic = False
    groups = True
    whiten = True

    def __call__(self, streams: Streams) -> Estimate:
        advantages = above_mean(episode_returns(streams), levels(streams))
        return Estimate(spans.spread(advantages, streams.segment_ends).float())
