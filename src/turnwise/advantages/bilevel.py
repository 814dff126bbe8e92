"""Bi-level generalized advantage estimation (VAGEN, arXiv:2510.16907): first over turns, then over the tokens of each.

With V the value before a token, e_k the last sampled token of turn k, r its reward, and V[e_K+1] the value of the next
rendered prompt (0 where the task terminated):

    B_k = r[e_k] + turn_gamma V[e_k+1] - V[e_k] + turn_gamma turn_lambda B_k+1

B_k + V[e_k] then stands for the reward of the turn, as if the turn were an episode of its own:

    A[t] = r[t] + token_gamma V[t+1] - V[t] + token_gamma token_lambda A[t+1],  and  A[e_k] = B_k
"""

from dataclasses import dataclass, fields

import torch

from turnwise.advantages.gae import fraction, gae
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
        ends, values = streams.step_ends | streams.segment_ends, streams.values
        at = ends.nonzero()[:, 0]
        # Where the environment has not moved on, the next batch has the rest of the turn.
        turns = streams.rewards[at], values[at], streams.bootstraps, streams.segment_ends[at], streams.step_ends[at]
        step, token = (self.turn_gamma, self.turn_lambda), (self.token_gamma, self.token_lambda)
        _, returns = gae(*turns, step, token)
        rewards = streams.rewards.index_copy(0, at, returns.to(streams.rewards.dtype))
        return Estimate(*gae(rewards, values, torch.zeros(len(at)), ends, ends, token, token))
