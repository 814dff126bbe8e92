"""What holds for all estimators that compare episodes."""

import random
from dataclasses import replace

import pytest
import torch
from episodes import Episode, cases, credit, of_levels, streams
from helpers import segment, streams_of, turn
from plays import near

from turnwise.advantages.gigpo import GiGPO
from turnwise.advantages.grpo import GRPO
from turnwise.advantages.reinforce import ReinforcePlusPlus, ReinforcePlusPlusBaseline
from turnwise.advantages.relative import above_mean
from turnwise.advantages.rloo import RLOO
from turnwise.types import Outcome

OF_EPISODES = [GRPO(), GRPO(divide_by_std=False), RLOO(), ReinforcePlusPlusBaseline()]
ALL = [*OF_EPISODES, GiGPO(), GiGPO(divide_by_std=True), ReinforcePlusPlus(0.9)]


@pytest.mark.parametrize("estimator", ALL, ids=repr)
def test_order_of_segments_is_irrelevant(estimator):
    rng = random.Random(1)
    for episodes in cases(100):
        order = rng.sample(range(len(episodes)), len(episodes))
        straight, mixed = credit(estimator, episodes), credit(estimator, [episodes[i] for i in order])
        for place, i in enumerate(order):
            assert mixed[place] == near(straight[i])


@pytest.mark.parametrize("estimator", OF_EPISODES, ids=repr)
def test_what_one_episode_gains_the_others_of_its_level_lose(estimator):
    for episodes in cases(100):
        firsts = {id(one): found[0] for one, found in zip(episodes, credit(estimator, episodes), strict=True)}
        for group in of_levels(episodes).values():
            assert sum(firsts[id(one)] for one in group) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("divide_by_std", [True, False])
def test_what_one_turn_gains_the_others_of_its_state_lose(divide_by_std):
    """The part of the turns alone: omega 1 less omega 0."""
    for episodes in cases(100):
        both = [credit(GiGPO(omega=omega, divide_by_std=divide_by_std), episodes) for omega in (1.0, 0.0)]
        sums: dict[object, float] = {}
        for episode, with_turns, without in zip(episodes, *both, strict=True):
            for seen, tokens in episode.turns:
                state = episode.task, episode.seed, seen
                sums[state] = sums.get(state, 0.0) + with_turns[tokens[0]] - without[tokens[0]]
        assert list(sums.values()) == pytest.approx([0.0] * len(sums), abs=1e-4)


@pytest.mark.parametrize("estimator", OF_EPISODES, ids=repr)
def test_a_constant_added_to_all_returns_changes_nothing(estimator):
    for episodes in cases(50):
        raised = [replace(one, rewards=[*one.rewards[:-1], one.rewards[-1] + 3.0]) for one in episodes]
        for found, expected in zip(credit(estimator, raised), credit(estimator, episodes), strict=True):
            assert found == near(expected, 1e-4)


@pytest.mark.parametrize("estimator", [*OF_EPISODES, GiGPO()], ids=repr)
def test_an_episode_alone_on_its_level_has_no_credit(estimator):
    alone = Episode([2, 1], [False] * 2, ["a", "b"], [0.0, 0.3, 1.0], 5)
    others = [Episode([1], [False], ["a"], [float(n)], 6) for n in range(2)]
    assert credit(estimator, [alone, *others])[0] == [0.0] * 3


@pytest.mark.parametrize("estimator", ALL, ids=repr)
def test_values_never_matter(estimator):
    for episodes in cases(20):
        seen = streams(episodes)
        other = replace(seen, values=torch.full_like(seen.values, 9.0), bootstraps=torch.ones(len(episodes)))
        assert torch.equal(estimator(seen).advantages, estimator(other).advantages)


@pytest.mark.parametrize("estimator", ALL, ids=repr)
def test_parts_of_episodes_are_refused(estimator):
    whole = segment(turn([1], [2, 3]), turn([1], [2], 1.0))
    cut = segment(turn([1], [2, 3]), end="cut", slot=3, episode=8)
    ended = replace(segment(turn([1], [2, 3]), slot=3, episode=8), outcome=Outcome(None, 1.0, 2, None))
    for part in (cut, ended):
        with pytest.raises(ValueError, match=r"slot 3 .* episode 8, .*rollout\.episodes=1"):
            estimator(streams_of([whole, part], [0.0] * 5, [0.0] * 2))
    assert estimator(streams_of([whole], [0.0] * 3, [0.0])).advantages.shape == (3,)


def test_what_is_no_number_stays_none():
    """It is refused where it would be trained on."""
    assert above_mean(torch.tensor([float("nan"), 1.0, 0.0, 1.0, 0.0]), torch.tensor([0, 0, 0, 1, 1])).isnan()[:3].all()
