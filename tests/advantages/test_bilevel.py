"""Bi-level GAE against its definition, its worked example, and the limits where it is another estimator."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plays import Play, credit, flat, fractions, near, plays

from turnwise.advantages.bilevel import BiLevelGAE
from turnwise.advantages.gae import token_gae

REWARDS = [0, 0, 0.5, 0, 0, 0, 0, 1.0]  # the turn in the middle has none
VALUES = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]


def worked(rewards: Sequence[float] = REWARDS, bootstrap: float = 0.0) -> list[Play]:
    end = "truncated" if bootstrap else "terminated"
    return [Play([3, 2, 3], [False] * 3, end, list(rewards), VALUES, bootstrap)]


def by_definition(play: Play, estimator: BiLevelGAE) -> list[float]:
    """Two plain loops: over the turns from behind, then over all tokens from behind."""
    ends = [end - 1 for end, asked in zip(accumulate(play.lengths), play.asked, strict=True) if not asked]
    of_turn: dict[int, float] = {}
    carry, after = 0.0, play.bootstrap
    for end in reversed(ends):
        delta = play.rewards[end] + estimator.turn_gamma * after - play.values[end]
        carry = delta + estimator.turn_gamma * estimator.turn_lambda * carry
        of_turn[end], after = carry, play.values[end]
    advantages = [0.0] * len(play.values)
    for t in reversed(range(len(play.values))):
        if t in of_turn:
            advantages[t] = (of_turn[t] + play.values[t]) - play.values[t]
        else:
            delta = play.rewards[t] + estimator.token_gamma * play.values[t + 1] - play.values[t]
            advantages[t] = delta + estimator.token_gamma * estimator.token_lambda * advantages[t + 1]
    return advantages


PUBLISHED = BiLevelGAE()
VECTORS = {
    "published": (PUBLISHED, worked(), [1.2025, 1.1025, 1.0025, 0.45, 0.35, 0.3, 0.2, 0.1]),
    "discounted tokens": (
        BiLevelGAE(0.95, 0.8, 0.9, 0.8),
        worked(),
        [0.590937, 0.723523, 0.921560, 0.278320, 0.331000, 0.079040, 0.082000, 0.100000],
    ),
    "a lambda for each level": (
        BiLevelGAE(0.95, 0.9, 1.0, 0.95),
        worked(),
        [1.062418, 1.013071, 0.961127, 0.423475, 0.340500, 0.285250, 0.195000, 0.100000],
    ),
    "the same, truncated": (
        BiLevelGAE(0.95, 0.9, 1.0, 0.95),
        worked(bootstrap=0.6),
        [1.438475, 1.408921, 1.377812, 0.886457, 0.827850, 0.799675, 0.736500, 0.670000],
    ),
    "the last turn without reward": (
        PUBLISHED,
        worked([0, 0, 0.5, 0, 0, 0, 0, 0]),
        [None, None, None, -0.5, -0.6, -0.7, -0.8, -0.9],
    ),
    "no reward at all": (PUBLISHED, worked([0] * 8), [-0.2, -0.3, -0.4, -0.5, -0.6, -0.7, -0.8, -0.9]),
}


@pytest.mark.parametrize("name", VECTORS)
def test_worked_examples(name):
    estimator, played, expected = VECTORS[name]
    advantages, _ = map(flat, credit(estimator, played))
    for got, wanted in zip(advantages, expected, strict=True):
        assert wanted is None or got == near(wanted, 1e-6)


def test_returns_are_the_discounted_rewards_of_the_turns_to_come():
    _, returns = map(flat, credit(PUBLISHED, worked()))
    assert returns == near([1.4025] * 3 + [0.95] * 2 + [1.0] * 3)


@given(
    st.lists(plays(asked=True), min_size=1, max_size=4),
    st.builds(BiLevelGAE, fractions, fractions, fractions, fractions),
)
@settings(max_examples=1000, deadline=None)
def test_equals_the_definition(played, estimator):
    advantages, returns = credit(estimator, played)
    for play, got, targets in zip(played, advantages, returns, strict=True):
        expected = by_definition(play, estimator)
        assert got == near(expected, 1e-6)
        assert targets == near([a + v for a, v in zip(expected, play.values, strict=True)], 1e-6)


@given(plays(kl=False))
def test_with_all_factors_one_it_is_token_gae(play):
    assert flat(credit(BiLevelGAE(1, 1, 1, 1), [play])[0]) == near(flat(credit(token_gae(), [play])[0]))


@given(plays(), fractions, fractions, fractions, fractions)
def test_inside_the_only_turn_it_is_token_gae(play, gamma, lam, turn_gamma, turn_lambda):
    single = replace(play, lengths=[len(play.values)], asked=[False], end="terminated", bootstrap=0.0)
    advantages = credit(BiLevelGAE(turn_gamma, turn_lambda, gamma, lam), [single])[0]
    assert flat(advantages) == near(flat(credit(token_gae(gamma, lam), [single])[0]))


@given(plays(), fractions, fractions)
def test_without_a_turn_lambda_a_turn_looks_one_turn_ahead(play, gamma, lam):
    ends = [end - 1 for end in accumulate(play.lengths)]
    advantages = flat(credit(BiLevelGAE(gamma, 0.0, 1.0, lam), [play])[0])
    after = [*(play.values[end] for end in ends[1:]), play.bootstrap]
    for end, following in zip(ends, after, strict=True):
        assert advantages[end] == near(play.rewards[end] + gamma * following - play.values[end])


@pytest.mark.parametrize("key", ["turn_gamma", "turn_lambda", "token_gamma", "token_lambda"])
def test_factors_lie_between_0_and_1(key):
    with pytest.raises(ValueError, match=rf"advantage\.{key} is 1\.1; it must lie between 0 and 1"):
        BiLevelGAE(**{key: 1.1})
