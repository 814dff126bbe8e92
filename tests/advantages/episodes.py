"""Whole episodes as the tests' own arithmetic sees them, and what an estimator without a critic says of them."""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate

from helpers import segment, streams_of, turn

from turnwise.batch import Estimate, Streams
from turnwise.types import Observation, Segment


@dataclass(frozen=True)
class Episode:
    lengths: list[int]  # sampled tokens of each exchange with the model
    asked: list[bool]  # by the memory
    seen: list[str]  # the observation of each exchange: a question has that of the turn after it
    rewards: list[float]  # one a token, a KL penalty included
    seed: int
    task: str = "goto"
    end: str = "terminated"

    @property
    def total(self) -> float:
        return sum(self.rewards)

    @property
    def turns(self) -> list[tuple[str, range]]:
        """What each turn of the environment saw, and its tokens, those of the questions before it included."""
        turns, start = [], 0
        for last, asked, seen in zip(accumulate(self.lengths), self.asked, self.seen, strict=True):
            if not asked:
                turns.append((seen, range(start, last)))
                start = last
        return turns

    def segment(self) -> Segment:
        turns = [
            replace(turn([1], [2] * length, of_memory=asked), observation=Observation(seen))
            for length, asked, seen in zip(self.lengths, self.asked, self.seen, strict=True)
        ]
        return segment(*turns, end=self.end, task=self.task, seed=self.seed)


def streams(episodes: Sequence[Episode]) -> Streams:
    rewards = [reward for episode in episodes for reward in episode.rewards]
    segments = [episode.segment() for episode in episodes]
    return streams_of(segments, [0.0] * len(rewards), [0.0] * len(episodes), rewards)


def credit(estimator: Callable[[Streams], Estimate], episodes: Sequence[Episode]) -> list[list[float]]:
    """Advantages, a list for each episode."""
    estimate = estimator(streams(episodes))
    assert estimate.returns is None and estimate.targets is None
    return [part.tolist() for part in estimate.advantages.split([len(episode.rewards) for episode in episodes])]


def of_levels(episodes: Sequence[Episode]) -> dict[tuple[str, int], list[Episode]]:
    groups: dict[tuple[str, int], list[Episode]] = defaultdict(list)
    for episode in episodes:
        groups[episode.task, episode.seed].append(episode)
    return groups


def make_episode(rng: random.Random) -> Episode:
    """Ragged turns on few levels with few observations, some after questions; many rewards are 0."""
    lengths, asked, seen = [], [], []
    for _ in range(rng.randint(1, 4)):
        looks = rng.choice("abc")
        questions = rng.choice([0, 0, 1, 2])
        asked += [True] * questions + [False]
        seen += [looks] * (questions + 1)
        lengths += [rng.randint(1, 4) for _ in range(questions + 1)]
    rewards = [rng.choice([0.0, 0.0, rng.uniform(-1, 1)]) for _ in range(sum(lengths))]
    end = rng.choice(["terminated", "truncated"])
    return Episode(lengths, asked, seen, rewards, rng.randint(0, 2), rng.choice(["goto", "open"]), end)


@cache
def cases(count: int = 1000) -> Sequence[Sequence[Episode]]:
    rng = random.Random(0)
    return tuple(tuple(make_episode(rng) for _ in range(rng.randint(1, 9))) for _ in range(count))


def mean(x: Sequence[float]) -> float:
    return sum(x) / len(x)


def deviation(x: Sequence[float]) -> float:
    """With Bessel's correction. That of the standard library is exact, and a hundred times slower."""
    middle = mean(x)
    return math.sqrt(sum((one - middle) ** 2 for one in x) / (len(x) - 1))
