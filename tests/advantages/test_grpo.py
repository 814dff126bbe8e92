"""GRPO against its definition, with and without the division."""

import pytest
from episodes import Episode, cases, credit, deviation, mean, of_levels
from plays import flat, near

from turnwise.advantages.grpo import GRPO


def won(seed: int, reward: float, tokens: int = 2) -> Episode:
    return Episode([tokens], [False], ["a"], [0.0] * (tokens - 1) + [reward], seed)


@pytest.mark.parametrize("divide_by_std", [True, False])
def test_equals_the_definition(divide_by_std):
    for episodes in cases():
        groups, expected = of_levels(episodes), []
        for episode in episodes:
            totals = [one.total for one in groups[episode.task, episode.seed]]
            advantage = episode.total - mean(totals)
            if divide_by_std and len(totals) > 1:
                advantage /= deviation(totals) + 1e-6
            expected += [advantage] * len(episode.rewards)
        assert flat(credit(GRPO(divide_by_std), episodes)) == near(expected)


def test_a_worked_example():
    """Returns 1, 0, 0, 1 have mean 0.5 and, with Bessel's correction, deviation 0.57735."""
    episodes = [won(7, 1.0), won(7, 0.0, 3), won(7, 0.0), won(7, 1.0, 1)]
    for divide_by_std, size in ((True, 0.8660239), (False, 0.5)):
        expected = [[size] * 2, [-size] * 3, [-size] * 2, [size]]
        assert flat(credit(GRPO(divide_by_std), episodes)) == near(flat(expected), 1e-6)


def test_the_division_is_by_the_deviation_of_the_own_group():
    far = [won(1, 10.0), won(1, 0.0), won(2, 0.1), won(2, 0.0)]
    one, _, other, _ = credit(GRPO(), far)
    assert one == near([0.5 / 0.5**0.5] * 2, 1e-4)
    assert other == near(one, 1e-4)


@pytest.mark.parametrize("reward", [0.1, -0.3, 1e6])
def test_equal_returns_give_no_credit(reward):
    """None at all, though the mean of equal numbers may differ from them in the last bit."""
    assert all(x == [0.0, 0.0] for x in credit(GRPO(), [won(3, reward)] * 7))
