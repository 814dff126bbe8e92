"""How sure a mean is: 95% intervals."""

import math
from collections.abc import Sequence

import numpy as np

from turnwise.seeds import derive

RESAMPLES = 10_000


def wilson(successes: float, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95% score interval of a rate (Wilson 1927); (0, 1) where nothing was tried."""
    if not trials:
        return 0.0, 1.0
    rate, square = successes / trials, z * z / trials
    centre = (rate + square / 2) / (1 + square)
    half = z * math.sqrt(rate * (1 - rate) / trials + square / (4 * trials)) / (1 + square)
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The 95% percentile interval (Efron 1979) of the mean of the groups' means; the same in every call.

    The values of each group, at least one, are drawn anew from that group alone.
    """
    luck = np.random.Generator(np.random.Philox(derive("bootstrap")))
    means = np.zeros(RESAMPLES)
    for group in groups:
        values, counts = np.unique(np.asarray(group, dtype=float), return_counts=True)
        drawn = luck.multinomial(len(group), counts / len(group), size=RESAMPLES)  # as often as each value comes up
        means += drawn @ values / len(group)
    low, high = np.percentile(means / len(groups), [2.5, 97.5])
    return float(low), float(high)


def standard_error(values: Sequence[float]) -> float:
    """Of the mean, from the population's standard deviation, as BALROG gives it."""
    return float(np.std(values) / math.sqrt(len(values)))
