"""How sure a mean is: 95% intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turnwise.seeds import derive

RESAMPLES = 10_000


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95% interval and its standard error (from the population's deviation, as BALROG gives it)."""

    mean: float
    low: float
    high: float
    standard_error: float

    def __format__(self, spec: str) -> str:
        """Of the mean and both ends, such as `+.3f`."""
        return f"{self.mean:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


def wilson(successes: float, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95% score interval of a rate (Wilson 1927); (0, 1) where nothing was tried."""
    if not trials:
        return 0.0, 1.0
    rate, square = successes / trials, z * z / trials
    centre = (rate + square / 2) / (1 + square)
    half = z * math.sqrt(rate * (1 - rate) / trials + square / (4 * trials)) / (1 + square)
    return max(0.0, centre - half), min(1.0, centre + half)


def rate(successes: float, trials: int) -> Estimate:
    """Of one or more trials, by Wilson's interval."""
    share = successes / trials
    return Estimate(share, *wilson(successes, trials), math.sqrt(share * (1 - share) / trials))


def bootstrap(groups: Sequence[Sequence[float]]) -> Estimate:
    """The mean of the groups' means, by percentile bootstrap (Efron 1979); the same in every call.

    The values of each group, at least one, are drawn anew from that group alone.
    """
    luck = np.random.Generator(np.random.Philox(derive("bootstrap")))
    means, mean, variance = np.zeros(RESAMPLES), 0.0, 0.0
    for group in groups:
        values, counts = np.unique(np.asarray(group, dtype=float), return_counts=True)
        drawn = luck.multinomial(len(group), counts / len(group), size=RESAMPLES)  # how often each value comes up
        means += drawn @ values / len(group)
        mean += float(np.mean(group))
        variance += float(np.var(group)) / len(group)
    low, high = np.percentile(means, [2.5, 97.5])
    count = len(groups)
    return Estimate(mean / count, float(low) / count, float(high) / count, math.sqrt(variance) / count)


def mean_of(parts: Sequence[Estimate]) -> Estimate:
    """The mean of independent estimates.

    Their distances to either end are squared and added (Newcombe 1998), so that an interval is left even where all
    episodes of all parts ended alike.
    """
    mean = sum(part.mean for part in parts) / len(parts)
    below = math.hypot(*(part.mean - part.low for part in parts)) / len(parts)
    above = math.hypot(*(part.high - part.mean for part in parts)) / len(parts)
    error = math.hypot(*(part.standard_error for part in parts)) / len(parts)
    return Estimate(mean, mean - below, mean + above, error)
