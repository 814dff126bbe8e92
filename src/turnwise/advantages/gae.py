"""Generalized advantage estimation with two pairs of discounts (Verlog; Schulman et al. 2016, arXiv:1506.02438).

One pair inside a turn, one where the environment moves on. With A the advantage, r the reward, V the value before
a token, t+1 the next sampled token of the segment, and (g, l) the step pair at a turn's last token, else the token
pair:

    A[t] = r[t] + g V[t+1] - V[t] + g l A[t+1]

After a segment's last token V is that of the next rendered prompt, or 0 where the task terminated, and A is 0.
"""

from dataclasses import astuple, dataclass, fields

import torch
from torch import Tensor

from turnwise.batch import Estimate, Streams


@dataclass(frozen=True)
class DualGAE:
    critic = True
    groups = False
    whiten = True

    step_gamma: float = 0.99
    step_lambda: float = 0.95
    token_gamma: float = 1.0
    token_lambda: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            fraction(field.name, getattr(self, field.name))

    def __call__(self, streams: Streams) -> Estimate:
        """Returns are advantage + value."""
        values = streams.values.double()
        following = torch.cat([values[1:], values.new_zeros(1)])
        following[streams.segment_ends] = streams.bootstraps.double()
        step_gamma, step_lambda, token_gamma, token_lambda = values.new_tensor(astuple(self))
        gamma = torch.where(streams.step_ends, step_gamma, token_gamma)
        decay = torch.where(streams.step_ends, step_lambda, token_lambda) * gamma
        delta = streams.rewards.double() + gamma * following - values
        advantages = discounted_sums(delta, decay.masked_fill(streams.segment_ends, 0.0))
        return Estimate(advantages.float(), (advantages + values).float())


def token_gae(gamma: float = 1.0, lam: float = 1.0) -> DualGAE:
    """Plain GAE over tokens: the limit where both pairs are equal."""
    return DualGAE(fraction("gamma", gamma), fraction("lam", lam), gamma, lam)


def fraction(key: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"advantage.{key} is {value}; it must lie between 0 and 1")
    return value


def monte_carlo() -> DualGAE:
    """Undiscounted future reward minus value: the limit where all four factors are 1."""
    return DualGAE(1.0, 1.0, 1.0, 1.0)


def discounted_sums(x: Tensor, decay: Tensor) -> Tensor:
    """y[t] = x[t] + decay[t] y[t+1], for [N] at once: sums over spans of 1, 2, 4, ... are joined by doubling."""
    y, decay = x.clone(), decay.clone()
    span = 1
    while span < len(y) and bool(decay.any()):
        y[:-span] += decay[:-span] * y[span:].clone()
        decay[:-span] = decay[:-span] * decay[span:]
        decay[-span:] = 0.0
        span *= 2
    return y
