"""Sums over spans of tokens, be they turns or segments."""

import torch
from torch import Tensor


def sums(x: Tensor, ends: Tensor) -> Tensor:
    """[K] the sum over each span of x [N], where `ends` [N] marks the last token of each."""
    return x.new_zeros(int(ends.sum())).index_add(0, _index(ends), x)


def spread(x: Tensor, ends: Tensor) -> Tensor:
    """[N] for each token the x [K] of its span."""
    return x[_index(ends)]


def _index(ends: Tensor) -> Tensor:
    """[N] the number of the span that each token is of."""
    return torch.cumsum(ends, 0) - ends.long()
