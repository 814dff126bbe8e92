"""Bi-level generalized advantage estimation (VAGEN, arXiv:2510.16907): first over turns, then over the tokens of each.

With V the value before a token, e_k the last sampled token of turn k, r its reward, and V[e_K+1] the value of the next
rendered prompt (0 where the task terminated):

    B_k = r[e_k] + turn_gamma V[e_k+1] - V[e_k] + turn_gamma turn_lambda B_k+1

B_k + V[e_k] then stands for the reward of the turn, as if the turn were an episode of its own:

    A[t] = r[t] + token_gamma V[t+1] - V[t] + token_gamma token_lambda A[t+1],  and  A[e_k] = B_k
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from turnwise.advantages.gae import discounted_sums, fraction
from turnwise.batch import Estimate, Streams


@dataclass(frozen=True)
class BiLevelGAE:
    """A turn without reward is a turn all the same; a question of the memory belongs to the turn it prepares, and so
    it does where a batch ends between the two.

    What is paid inside a turn, such as a KL penalty, is credited inside it and not to the turns before.
    """

    critic = True
    groups = False
    whiten = True

    turn_gamma: float = 0.95
    turn_lambda: float = 1.0
    token_gamma: float = 1.0
    token_lambda: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            fraction(field.name, getattr(self, field.name))

    def __call__(self, streams: Streams) -> Estimate:
        """Returns are advantage + value."""
        values, rewards = streams.values.double(), streams.rewards.double()
        ends = streams.step_ends | streams.segment_ends
        following = torch.cat([values[1:], values.new_zeros(1)])
        advantages = rewards + self.token_gamma * following - values
        advantages[ends] = self._of_turns(streams, ends)
        decay = torch.full_like(values, self.token_gamma * self.token_lambda).masked_fill(ends, 0.0)
        advantages = discounted_sums(advantages, decay)
        return Estimate(advantages.float(), (advantages + values).float())

    def _of_turns(self, streams: Streams, ends: Tensor) -> Tensor:
        """[K] B of each turn."""
        values, last = streams.values.double()[ends], streams.segment_ends[ends]
        following = torch.cat([values[1:], values.new_zeros(1)])
        following[last] = streams.bootstraps.double()
        inside = ~streams.step_ends[ends]  # a turn, of which the next batch has the rest
        gamma = torch.full_like(values, self.turn_gamma).masked_fill(inside, self.token_gamma)
        delta = streams.rewards.double()[ends] + gamma * following - values
        return discounted_sums(delta, torch.full_like(delta, self.turn_gamma * self.turn_lambda).masked_fill(last, 0.0))
