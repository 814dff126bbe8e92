"""The order in which samples are drawn: endless, shuffled anew in each epoch, and with no state to save."""

from functools import lru_cache

import numpy as np

from turnwise.seeds import derive


def drawn(seed: int, size: int, draw: int) -> int:
    """Which of `size` samples the draw takes, counted from 0. Each epoch of `size` draws takes every sample once."""
    epoch, place = divmod(draw, size)
    return int(_shuffled(seed, size, epoch)[place])


@lru_cache(maxsize=2)  # a batch may span the end of an epoch
def _shuffled(seed: int, size: int, epoch: int) -> np.ndarray:
    return np.random.default_rng(derive("data", seed, epoch)).permutation(size)
