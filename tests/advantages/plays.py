"""Segments as the tests' own arithmetic sees them, and what an estimator says of them."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from helpers import segment, streams_of, turn
from hypothesis import strategies as st

Pair = tuple[float, float]


@dataclass(frozen=True)
class Play:
    """A segment as this file's own arithmetic sees it, one number a token."""

    lengths: list[int]  # sampled tokens of each turn
    asked: list[bool]  # by the memory
    end: str
    rewards: list[float]
    values: list[float]
    bootstrap: float  # 0 where it terminated

    @property
    def starts(self) -> list[int]:
        return list(accumulate(self.lengths, initial=0))[:-1]

    @property
    def step_ends(self) -> set[int]:
        lasts = [end - 1 for end in accumulate(self.lengths)]
        return {last for last, asked in zip(lasts, self.asked, strict=True) if not asked}

    def pairs(self, step: Pair, token: Pair) -> list[Pair]:
        ends = self.step_ends
        return [step if t in ends else token for t in range(len(self.values))]


def credit(estimator: Callable, plays: Sequence[Play]) -> tuple[list[list[float]], list[list[float]]]:
    """Advantages and returns, a list for each play."""
    segments = [
        segment(*(turn([1], [2] * n, of_memory=a) for n, a in zip(play.lengths, play.asked, strict=True)), end=play.end)
        for play in plays
    ]
    rewards, values = flat(play.rewards for play in plays), flat(play.values for play in plays)
    estimate = estimator(streams_of(segments, values, [play.bootstrap for play in plays], rewards))
    sizes = [len(play.values) for play in plays]
    advantages, returns = ([part.tolist() for part in x.split(sizes)] for x in (estimate.advantages, estimate.returns))
    return advantages, returns


def flat(lists: Iterable[Iterable[float]]) -> list[float]:
    return [x for one in lists for x in one]


@dataclass(frozen=True, eq=False)
class near:
    """Equal to the rounding of float32, in which credit is handed out."""

    expected: float | Sequence[float]
    atol: float = 1e-5

    def __eq__(self, found: object) -> bool:
        same = np.shape(found) == np.shape(self.expected)  # type: ignore
        return same and np.allclose(found, self.expected, rtol=1e-6, atol=self.atol)  # type: ignore


@st.composite
def plays(draw: st.DrawFn, asked: bool = False, kl: bool = True) -> Play:
    """A segment with random numbers; without `kl`, only the last token of a turn is rewarded."""
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    by_memory = [asked and draw(st.booleans()) for _ in lengths[1:]] + [False]
    end = draw(st.sampled_from(["terminated", "truncated", "cut"]))
    numbers = random.Random(draw(st.integers(0, 2**32)))
    total = sum(lengths)
    rewards = [numbers.uniform(-1, 1) for _ in range(total)]
    if not kl:
        lasts = set(accumulate(lengths))
        rewards = [reward if t + 1 in lasts else 0.0 for t, reward in enumerate(rewards)]
    values = [numbers.uniform(-1, 1) for _ in range(total)]
    return Play(lengths, by_memory, end, rewards, values, 0.0 if end == "terminated" else numbers.uniform(-1, 1))


fractions = st.floats(0, 1)
pairs_of = st.tuples(fractions, fractions)
