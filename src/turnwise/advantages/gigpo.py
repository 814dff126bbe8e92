"""Group-in-group policy optimization: episodes against each other, and turns from the same state (arXiv:2505.10978).

With R the sum of an episode's rewards, r_k that of its turn k, and a group of their own for the turns of one level that
saw the same observation, whichever episode they are of:

    A = (R - mean of the episodes) + omega (G_k - mean of the turns),  where  G_k = r_k + step_gamma G_k+1

Either difference may be divided by the standard deviation of its group, as in GRPO. A turn whose observation was met
only once has the credit of its episode alone.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.advantages import spans
from turnwise.advantages.gae import discounted_sums, fraction
from turnwise.advantages.relative import above_mean, episode_returns, levels, number
from turnwise.batch import Estimate, Streams
from turnwise.groups import level


@dataclass(frozen=True)
class GiGPO:
    """A question of the memory belongs to the turn it prepares; if there is none, it has its episode's credit alone."""

    critic = False
    groups = True
    whiten = False

    step_gamma: float = 0.95
    omega: float = 1.0
    divide_by_std: bool = False

    def __post_init__(self) -> None:
        fraction("step_gamma", self.step_gamma)
        if not 0 <= self.omega < math.inf:
            raise ValueError(f"advantage.omega is {self.omega}; it must be 0 or more")

    def __call__(self, streams: Streams) -> Estimate:
        of_episodes = above_mean(episode_returns(streams), levels(streams), self.divide_by_std)
        ends = streams.step_ends | streams.segment_ends
        of_turns = above_mean(self._returns(streams, ends), _states(streams), self.divide_by_std)
        advantages = spans.spread(of_episodes, streams.segment_ends)
        advantages += self.omega * spans.spread(of_turns, ends)
        return Estimate(advantages.float())

    def _returns(self, streams: Streams, ends: Tensor) -> Tensor:
        """[K] the discounted rewards from each turn on."""
        rewards, last = spans.sums(streams.rewards.double(), ends), streams.segment_ends[ends]
        return discounted_sums(rewards, torch.full_like(rewards, self.step_gamma).masked_fill(last, 0.0))


def _states(streams: Streams) -> Tensor:
    """[K] turns of one level that saw the same have the same number."""
    return number(
        (level(segment), object() if turn.of_memory else turn.observation)
        for segment in streams.segments
        for turn in segment.turns
        if not turn.of_memory or turn is segment.turns[-1]
    )
