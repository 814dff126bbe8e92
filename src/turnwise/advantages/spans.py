"""Sums over spans of tokens, be they turns or segments."""

import torch
from torch import Tensor


def index(ends: Tensor) -> Tensor:
    """[N] the number of the span that each token is of, where `ends` [N] marks the last token of each."""
    return torch.cumsum(ends, 0) - ends.long()


def sums(x: Tensor, ends: Tensor) -> Tensor:
    """[K] the sum over each span of x [N]."""
    return x.new_zeros(int(ends.sum())).index_add(0, index(ends), x)
