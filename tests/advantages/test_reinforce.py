"""REINFORCE++ against its definition, with and without a baseline."""

import math

import pytest
from episodes import Episode, cases, credit
from plays import flat, near

from turnwise.advantages.grpo import GRPO
from turnwise.advantages.reinforce import ReinforcePlusPlus, ReinforcePlusPlusBaseline


@pytest.mark.parametrize("gamma", [0.0, 0.7, 1.0])
def test_equals_the_definition(gamma):
    for episodes in cases():
        expected: list[float] = []
        for episode in reversed(episodes):
            carry = 0.0
            for reward in reversed(episode.rewards):
                carry = reward + gamma * carry
                expected.append(carry)
        assert flat(credit(ReinforcePlusPlus(gamma), episodes)) == near(expected[::-1])


def test_without_discount_a_token_has_what_is_still_to_come():
    for episodes in cases(100):
        for episode, advantages in zip(episodes, credit(ReinforcePlusPlus(), episodes), strict=True):
            assert advantages == near([sum(episode.rewards[t:]) for t in range(len(episode.rewards))])


def test_neither_a_turn_nor_a_question_ends_the_sum():
    episode = Episode([2, 1, 2], [False, True, False], ["a", "b", "b"], [0.0, 0.0, 0.0, -0.1, 1.0], 0)
    assert credit(ReinforcePlusPlus(0.5), [episode]) == [near([0.05, 0.1, 0.2, 0.4, 1.0], 1e-6)]


def test_the_baseline_is_the_mean_of_the_group():
    for episodes in cases(100):
        assert credit(ReinforcePlusPlusBaseline(), episodes) == credit(GRPO(divide_by_std=False), episodes)
    assert ReinforcePlusPlusBaseline.whiten and ReinforcePlusPlus.whiten and not GRPO.whiten


@pytest.mark.parametrize("gamma", [-0.1, 1.01, math.nan])
def test_the_discount_lies_between_0_and_1(gamma):
    with pytest.raises(ValueError, match=f"advantage.gamma is {gamma}"):
        ReinforcePlusPlus(gamma)
