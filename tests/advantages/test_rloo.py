"""RLOO against its definition."""

from episodes import cases, credit, mean, of_levels
from plays import flat, near

from turnwise.advantages.grpo import GRPO
from turnwise.advantages.rloo import RLOO


def test_equals_the_definition():
    for episodes in cases():
        groups, expected = of_levels(episodes), []
        for episode in episodes:
            others = [one.total for one in groups[episode.task, episode.seed] if one is not episode]
            expected += [episode.total - mean(others) if others else 0.0] * len(episode.rewards)
        assert flat(credit(RLOO(), episodes)) == near(expected)


def test_is_grpo_without_division_times_n_over_n_minus_1():
    for episodes in cases(100):
        groups = of_levels(episodes)
        pairs = zip(episodes, credit(RLOO(), episodes), credit(GRPO(divide_by_std=False), episodes), strict=True)
        for episode, found, plain in pairs:
            n = len(groups[episode.task, episode.seed])
            assert found == near([x * n / max(1, n - 1) for x in plain])
