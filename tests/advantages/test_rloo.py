"""RLOO against its definition."""

from statistics import fmean

from episodes import cases, credit, group_of
from plays import near

from turnwise.advantages.grpo import GRPO
from turnwise.advantages.rloo import RLOO


def test_equals_the_definition():
    for episodes in cases():
        for episode, advantages in zip(episodes, credit(RLOO(), episodes), strict=True):
            others = [one.total for one in group_of(episode, episodes) if one is not episode]
            expected = episode.total - fmean(others) if others else 0.0
            assert advantages == near([expected] * len(episode.rewards))


def test_is_grpo_without_division_times_n_over_n_minus_1():
    for episodes in cases(100):
        pairs = zip(episodes, credit(RLOO(), episodes), credit(GRPO(divide_by_std=False), episodes), strict=True)
        for episode, found, plain in pairs:
            n = len(group_of(episode, episodes))
            assert found == near([x * n / max(1, n - 1) for x in plain])
