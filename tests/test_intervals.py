"""Intervals against closed forms, and against what they promise: to contain the truth 95 times in 100."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.intervals import Interval, bootstrap, mean_of, rate, rate_difference, wilson

# -- Wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (8, 10, 0.4902, 0.9433),
        (5, 10, 0.2366, 0.7634),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (1, 1, 0.2065, 1.0),
        (128, 256, 0.4392, 0.5608),
    ],
)
def test_wilson_interval_of_known_rates(successes, trials, low, high):
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)


def test_nothing_tried_is_nothing_known():
    assert wilson(0, 0) == (0.0, 1.0)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_solves_the_score_equation(tried):
    """Each bound p is where the observed rate lies 1.96 standard errors of p away."""
    successes, trials = tried
    rate = successes / trials
    low, high = wilson(successes, trials)
    assert 0 <= low <= rate + 1e-12
    assert rate - 1e-12 <= high <= 1
    for bound in (low, high):
        assert abs(rate - bound) == pytest.approx(1.959964 * math.sqrt(bound * (1 - bound) / trials), abs=1e-6)


@given(st.integers(1, 100), st.data())
def test_wilson_mirrors_failures(trials, data):
    successes = data.draw(st.integers(0, trials))
    low, high = wilson(successes, trials)
    assert wilson(trials - successes, trials) == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_a_rate_has_the_standard_error_of_balrog():
    """Grok-4 on BabyAI: 38 of 50 episodes are 76.0 +- 6.0 percent on its leaderboard."""
    one = rate(38, 50)
    assert (one.mean, one.standard_error) == pytest.approx((0.76, 0.060), abs=5e-4)
    assert (one.low, one.high) == wilson(38, 50)


# -- bootstrap

VALUES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=12)


@given(VALUES)
def test_a_bootstrap_lies_around_the_mean_and_inside_the_values(values):
    one = bootstrap(values)
    assert one.mean == pytest.approx(np.mean(values))
    assert min(values) - 1e-12 <= one.low <= one.mean + 1e-12
    assert one.mean - 1e-12 <= one.high <= max(values) + 1e-12
    assert one.standard_error == pytest.approx(np.std(values) / math.sqrt(len(values)))
    assert one == bootstrap(values)


@given(VALUES, st.floats(-3, 3), st.floats(0.1, 5))
def test_a_bootstrap_moves_and_stretches_with_its_values(values, by, times):
    plain, moved = bootstrap(values), bootstrap([by + times * value for value in values])
    for name in ("mean", "low", "high"):
        assert getattr(moved, name) == pytest.approx(by + times * getattr(plain, name), abs=1e-9)


def test_a_bootstrap_of_many_values_is_normal():
    values = np.random.default_rng(0).normal(size=500)
    one = bootstrap(values.tolist())
    half = 1.96 * values.std() / math.sqrt(500)
    assert (one.low, one.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.05 * half)


def test_nineteen_of_twenty_bootstraps_contain_the_truth():
    rng = np.random.default_rng(0)
    ones = [bootstrap(rng.binomial(6, 0.4, size=40).tolist()) for _ in range(200)]
    assert 0.89 <= sum(one.low <= 2.4 <= one.high for one in ones) / 200 <= 0.99


# -- differences of rates on the same trials

OUTCOMES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40)


def table(both: int, ours: int, theirs: int, neither: int) -> Interval:
    """Of so many trials that both won, one of the two alone, or nobody."""
    counts = {(1, 1): both, (1, 0): ours, (0, 1): theirs, (0, 0): neither}
    pairs = [pair for pair, count in counts.items() for _ in range(count)]
    return rate_difference([one for one, _ in pairs], [other for _, other in pairs])


@pytest.mark.parametrize(
    ("counts", "low", "high"),
    [
        ((20, 12, 2, 16), 0.0562, 0.3292),
        ((36, 1, 0, 13), -0.0415, 0.0835),
        ((53, 1, 0, 0), -0.0496, 0.0977),
        ((0, 29, 1, 0), 0.6666, 0.9882),
        ((0, 54, 0, 0), 0.9061, 1.0),
    ],
)
def test_the_difference_of_known_tables(counts, low, high):
    one = table(*counts)
    assert one.mean == pytest.approx((counts[1] - counts[2]) / sum(counts))
    assert (one.low, one.high) == pytest.approx((low, high), abs=5e-5)


@given(OUTCOMES)
def test_a_difference_of_rates_is_mirrored_when_sides_are_swapped(pairs):
    ours, theirs = ([pair[side] for pair in pairs] for side in (0, 1))
    one, back = rate_difference(ours, theirs), rate_difference(theirs, ours)
    assert (one.mean, one.low, one.high) == pytest.approx((-back.mean, -back.high, -back.low), abs=1e-9)
    gaps = [a - b for a, b in pairs]
    assert one.mean == pytest.approx(np.mean(gaps), abs=1e-12)
    assert one.standard_error == pytest.approx(np.std(gaps) / math.sqrt(len(gaps)), abs=1e-7)
    assert -1 <= one.low <= one.mean + 1e-9 and one.mean - 1e-9 <= one.high <= 1


@given(st.integers(0, 30), st.integers(1, 30))
def test_what_always_agrees_may_yet_differ_elsewhere(won, lost):
    one = table(won, 0, 0, lost)
    assert one.mean == 0 and one.low == pytest.approx(-one.high) and one.high > 0


def test_nineteen_of_twenty_differences_contain_the_truth():
    rng, hits = np.random.default_rng(0), 0
    for _ in range(1000):
        level = rng.random(60)  # how hard: what both have in common
        ours, theirs = rng.random(60) < 0.2 + 0.6 * level, rng.random(60) < 0.1 + 0.6 * level
        one = rate_difference(ours.astype(float).tolist(), theirs.astype(float).tolist())
        hits += one.low <= 0.1 <= one.high
    assert 0.93 <= hits / 1000 <= 0.98


# -- means of estimates


def test_the_mean_of_one_estimate_is_itself():
    one = rate(3, 8)
    again = mean_of([one])
    assert (again.mean, again.low, again.high) == pytest.approx((one.mean, one.low, one.high))


def test_distances_are_squared_and_added():
    one, other = Interval(0.5, 0.2, 0.6, 0.1), Interval(0.7, 0.3, 1.0, 0.2)
    both = mean_of([one, other])
    assert both.mean == pytest.approx(0.6)
    assert both.low == pytest.approx(0.6 - math.hypot(0.3, 0.4) / 2)
    assert both.high == pytest.approx(0.6 + math.hypot(0.1, 0.3) / 2)
    assert both.standard_error == pytest.approx(math.hypot(0.1, 0.2) / 2)


def test_where_everything_failed_the_mean_is_still_unsure():
    both = mean_of([rate(0, 10), rate(0, 10)])
    assert both.low == 0 < both.high < rate(0, 10).high


def test_an_estimate_is_written_with_its_ends():
    assert f"{Interval(0.5, 0.25, 0.75, 0.1):+.2f}" == "+0.50 [+0.25, +0.75]"
