"""Comparisons inside groups: what stands in for a critic."""

from collections.abc import Hashable, Iterable

import torch
from torch import Tensor

from turnwise.advantages import spans
from turnwise.batch import Streams
from turnwise.groups import ROUNDING, level, refuse_parts

_EPSILON = 1e-6  # as published: a group without spread is divided by it


def episode_returns(streams: Streams) -> Tensor:
    """[E] the undiscounted sum of each episode's rewards, a KL penalty included; parts of episodes are a ValueError."""
    refuse_parts(streams.segments)
    return spans.sums(streams.rewards.double(), streams.segment_ends)


def levels(streams: Streams) -> Tensor:
    """[E] the number of each episode's group: the episodes of its level."""
    return number(map(level, streams.segments))


def number(keys: Iterable[Hashable]) -> Tensor:
    """Equal keys get equal numbers, from 0 on."""
    seen: dict[Hashable, int] = {}
    return torch.tensor([seen.setdefault(key, len(seen)) for key in keys], dtype=torch.long)


def above_mean(x: Tensor, groups: Tensor, divide_by_std: bool = False) -> Tensor:
    """What each x [K] has more than the mean of its group, in standard deviations of the group if so wished.

    `groups` [K] holds the groups' numbers. The deviation is that with Bessel's correction; a group of one has 0, and
    so has one whose members are the same to rounding.
    """
    counts = torch.bincount(groups)
    centred = x - (_totals(x, groups) / counts)[groups]
    centred = torch.where(centred.abs() <= ROUNDING, 0.0, centred)
    if not divide_by_std:
        return centred
    variances = _totals(centred**2, groups) / (counts - 1).clamp(min=1)
    return centred / (variances.sqrt() + _EPSILON)[groups]


def _totals(x: Tensor, groups: Tensor) -> Tensor:
    return x.new_zeros(int(groups.max()) + 1).index_add(0, groups, x)
