"""Generalized advantage estimation with two pairs of discounts (Verlog; Schulman et al. 2016, arXiv:1506.02438).

One pair inside a turn, one where the environment moves on. With A the advantage, r the reward, V the value before
a token, t+1 the next sampled token of the segment, and (g, l) the step pair at a turn's last token, else the token
pair:

    A[t] = r[t] + g V[t+1] - V[t] + g l A[t+1]

After a segment's last token V is that of the next rendered prompt, or 0 where the task terminated, and A is 0.
"""

from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnwise.batch import Estimate, Streams
from turnwise.compiled import compiled, fma

Floats: TypeAlias = NDArray[np.floating]
Marks: TypeAlias = NDArray[np.bool_]
Pair: TypeAlias = tuple[float, float]  # gamma and lambda


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
        step, token = (self.step_gamma, self.step_lambda), (self.token_gamma, self.token_lambda)
        told = streams.rewards, streams.values, streams.bootstraps, streams.segment_ends, streams.step_ends
        return Estimate(*gae(*told, step, token))


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


def gae(
    rewards: Tensor, values: Tensor, bootstraps: Tensor, ends: Tensor, moved: Tensor, step: Pair, token: Pair
) -> tuple[Tensor, Tensor]:
    """A[k] = r[k] + g V[k+1] - V[k] + g l A[k+1] and the returns A[k] + V[k], all [K], by sums in fp64.

    (g, l) is the step pair where the environment `moved` on, else the token pair. After each of the marked `ends` V is
    the next of the `bootstraps` [E], and A is 0.
    """
    found = torch.empty(len(rewards)), torch.empty(len(rewards))
    _gae(*(x.numpy() for x in (rewards, values, bootstraps, ends, moved)), step, token, *(x.numpy() for x in found))
    return found


@compiled
def _gae(
    rewards: Floats,
    values: Floats,
    bootstraps: Floats,
    ends: Marks,
    moved: Marks,
    step: Pair,
    token: Pair,
    advantages: Floats,
    returns: Floats,
) -> None:
    segment, value, later = len(bootstraps), 0.0, 0.0
    for k in range(len(rewards) - 1, -1, -1):
        if ends[k]:
            segment -= 1
            value, later = bootstraps[segment], 0.0
        gamma, lam = step if moved[k] else token
        later = fma(gamma * lam, later, rewards[k] + gamma * value - values[k])
        value = values[k]
        advantages[k], returns[k] = later, later + value


def discounted_sums(x: Tensor, decay: Tensor) -> Tensor:
    """y[t] = x[t] + decay[t] y[t+1], for [N], in fp64."""
    return torch.from_numpy(_discounted_sums(x.double().numpy(), decay.double().numpy()))


@compiled
def _discounted_sums(x: Floats, decay: Floats) -> Floats:
    y, later = np.empty_like(x), 0.0
    for t in range(len(x) - 1, -1, -1):
        y[t] = later = fma(decay[t], later, x[t])
    return y
