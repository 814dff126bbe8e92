"""How sure a mean is: 95% intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turnwise.seeds import derive

RESAMPLES = 10_000


@dataclass(frozen=True)
class Interval:
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


def rate(successes: float, trials: int) -> Interval:
    """Of one or more trials, by Wilson's interval."""
    share = successes / trials
    return Interval(share, *wilson(successes, trials), math.sqrt(share * (1 - share) / trials))


def rate_difference(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Of two rates on the same trials, one or more, each outcome 0 or 1: ours less theirs (Newcombe 1998, method 10).

    Wilson's distances of both rates are squared and added, less what the two outcomes of a trial have in common. So
    an interval is left even where all trials agree.
    """
    trials, wins, their_wins = len(ours), sum(ours), sum(theirs)
    both = sum(one * other for one, other in zip(ours, theirs, strict=True))
    gap = (wins - their_wins) / trials
    (low, high), (their_low, their_high) = wilson(wins, trials), wilson(their_wins, trials)
    below, above = wins / trials - low, high - wins / trials
    their_below, their_above = their_wins / trials - their_low, their_high - their_wins / trials
    margins = wins * (trials - wins) * their_wins * (trials - their_wins)
    shared = both * trials - wins * their_wins  # the determinant of the table of outcomes
    shared = max(0.0, shared - trials / 2) if shared > 0 else shared  # a correction for continuity
    alike = shared / math.sqrt(margins) if margins else 0.0
    down = math.sqrt(max(0.0, below**2 - 2 * alike * below * their_above + their_above**2))
    up = math.sqrt(max(0.0, above**2 - 2 * alike * above * their_below + their_below**2))
    error = math.sqrt(((wins + their_wins - 2 * both) / trials - gap**2) / trials)
    return Interval(gap, max(-1.0, gap - down), min(1.0, gap + up), error)


def bootstrap(values: Sequence[float]) -> Interval:
    """The mean of one or more values, by percentile bootstrap (Efron 1979); the same in every call."""
    rng = np.random.Generator(np.random.Philox(derive("bootstrap")))
    found, counts = np.unique(np.asarray(values, dtype=float), return_counts=True)
    drawn = rng.multinomial(len(values), counts / len(values), size=RESAMPLES)  # how often each value comes up
    low, high = np.percentile(drawn @ found / len(values), [2.5, 97.5])
    error = float(np.std(values)) / math.sqrt(len(values))
    return Interval(float(np.mean(values)), float(low), float(high), error)


def mean_of(parts: Sequence[Interval]) -> Interval:
    """The mean of independent estimates.

    Their distances to either end are squared and added (Newcombe 1998), so that an interval is left even where all
    episodes of all parts ended alike.
    """
    mean = sum(part.mean for part in parts) / len(parts)
    below = math.hypot(*(part.mean - part.low for part in parts)) / len(parts)
    above = math.hypot(*(part.high - part.mean for part in parts)) / len(parts)
    error = math.hypot(*(part.standard_error for part in parts)) / len(parts)
    return Interval(mean, mean - below, mean + above, error)
