"""GiGPO against its definition, and the limits where it is another estimator."""

import math
from collections import defaultdict
from collections.abc import Sequence

import pytest
from episodes import Episode, cases, credit, deviation, mean, of_levels
from plays import flat, near

from turnwise.advantages.gigpo import GiGPO
from turnwise.advantages.grpo import GRPO


def relative(x: float, group: Sequence[float], divide: bool) -> float:
    return (x - mean(group)) / (deviation(group) + 1e-6 if divide and len(group) > 1 else 1.0)


def turn_returns(episode: Episode, gamma: float) -> list[float]:
    rewards = [sum(episode.rewards[t] for t in tokens) for _, tokens in episode.turns]
    return [sum(gamma ** (j - k) * r for j, r in enumerate(rewards) if j >= k) for k in range(len(rewards))]


def by_definition(estimator: GiGPO, episodes: Sequence[Episode]) -> list[list[float]]:
    met: dict[object, list[float]] = defaultdict(list)
    for episode in episodes:
        for (seen, _), found in zip(episode.turns, turn_returns(episode, estimator.step_gamma), strict=True):
            met[episode.task, episode.seed, seen].append(found)
    groups, answer, divide = of_levels(episodes), [], estimator.divide_by_std
    for episode in episodes:
        totals = [one.total for one in groups[episode.task, episode.seed]]
        advantages = [relative(episode.total, totals, divide)] * len(episode.rewards)
        for (seen, tokens), found in zip(episode.turns, turn_returns(episode, estimator.step_gamma), strict=True):
            of_turn = relative(found, met[episode.task, episode.seed, seen], divide)
            for t in tokens:
                advantages[t] += estimator.omega * of_turn
        answer.append(advantages)
    return answer


@pytest.mark.parametrize(
    "estimator", [GiGPO(), GiGPO(0.9, 0.5, divide_by_std=True), GiGPO(0.0, 2.0)], ids=["default", "divided", "greedy"]
)
def test_equals_the_definition(estimator):
    for episodes in cases():
        assert flat(credit(estimator, episodes)) == near(flat(by_definition(estimator, episodes)))


def test_a_worked_example():
    """Both begin at a; one wins at once from b, the other comes back to a first."""
    straight = Episode([1, 1], [False] * 2, ["a", "b"], [0.0, 1.0], 0)
    around = Episode([1, 1, 1], [False] * 3, ["a", "a", "c"], [0.0, 0.0, 0.5], 0)
    found = credit(GiGPO(step_gamma=0.8), [straight, around])
    at_a = [0.8, 0.32, 0.4]  # discounted rewards from there on
    middle = mean(at_a)
    assert found[0] == near([0.25 + 0.8 - middle, 0.25], 1e-6)
    assert found[1] == near([-0.25 + 0.32 - middle, -0.25 + 0.4 - middle, -0.25], 1e-6)


@pytest.mark.parametrize("divide_by_std", [True, False])
def test_without_omega_it_is_grpo(divide_by_std):
    for episodes in cases(100):
        plain = credit(GRPO(divide_by_std), episodes)
        assert credit(GiGPO(omega=0.0, divide_by_std=divide_by_std), episodes) == plain


def test_where_nothing_is_met_twice_it_is_grpo():
    episodes = [Episode([2, 1], [False] * 2, [f"{n}a", f"{n}b"], [0.1 * n, 0.0, 1.0], 0) for n in range(4)]
    assert credit(GiGPO(), episodes) == credit(GRPO(divide_by_std=False), episodes)


def test_a_question_that_prepares_no_turn_has_the_credit_of_its_episode_alone():
    asking = [Episode([1, 2], [False, True], ["a", "a"], [0.0, float(n), 0.0], 0) for n in range(2)]
    at_a = [0.0, 0.95 * 1.0]
    found = credit(GiGPO(), asking)
    for n, sign in enumerate((-1, 1)):
        assert found[n] == near([sign * (0.5 + (at_a[1] - at_a[0]) / 2), sign * 0.5, sign * 0.5], 1e-6)


def test_the_same_observation_on_another_level_is_another_state():
    here, there = (Episode([1, 1], [False] * 2, ["a", "b"], [0.0, float(seed)], seed) for seed in (0, 1))
    assert credit(GiGPO(), [here, there]) == [[0.0, 0.0]] * 2


@pytest.mark.parametrize("omega", [-0.1, math.inf, math.nan])
def test_omega_is_0_or_more(omega):
    with pytest.raises(ValueError, match=f"advantage.omega is {omega}"):
        GiGPO(omega=omega)


@pytest.mark.parametrize("gamma", [-0.1, 1.01, math.nan])
def test_the_discount_lies_between_0_and_1(gamma):
    with pytest.raises(ValueError, match=f"advantage.step_gamma is {gamma}"):
        GiGPO(step_gamma=gamma)
