import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from helpers import segment, streams_of, turn
from hypothesis import given, settings
from hypothesis import strategies as st
from plays import Pair, Play, credit, flat, fractions, near, pairs_of, plays

from turnwise.advantages.gae import DualGAE, discounted_sums, monte_carlo, token_gae
from turnwise.loss import whiten

FACTORS = ("step_gamma", "step_lambda", "token_gamma", "token_lambda")


def brute_force(play: Play, step: Pair, token: Pair) -> list[float]:
    """Every later delta times the product of all factors on the way to it."""
    pairs = play.pairs(step, token)
    following = [*play.values[1:], play.bootstrap]
    numbers = zip(play.rewards, pairs, following, play.values, strict=True)
    deltas = [reward + gamma * after - value for reward, (gamma, _), after, value in numbers]
    return [
        sum(math.prod(gamma * lam for gamma, lam in pairs[t:i]) * deltas[i] for i in range(t, len(deltas)))
        for t in range(len(deltas))
    ]


def backwards(play: Play, pairs: Sequence[Pair]) -> list[float]:
    """The plain loop, with a pair for each token."""
    advantages, carry, after = [], 0.0, play.bootstrap
    for reward, value, (gamma, lam) in reversed(list(zip(play.rewards, play.values, pairs, strict=True))):
        carry = reward + gamma * after - value + gamma * lam * carry
        advantages.append(carry)
        after = value
    return advantages[::-1]


# -- the worked example of section 6.1

V = [0.50, 0.55, 0.60, 0.65, 0.70, 0.80, 0.90]
WIN = [0, 0, 0, 0, 0, 0, 1.0]
NOTHING = [0.0] * 7
K1 = [0.1, 0.3, 0.2, 0.0, 0.1, 0.2, 0.3]


def whole(rewards: list[float], end: str = "terminated", bootstrap: float = 0.0) -> list[Play]:
    return [Play([2, 3, 2], [False] * 3, end, rewards, V, bootstrap)]


def broken(reward: float, end: str, bootstrap: float) -> list[Play]:
    """The episode ends after turn 2; turn 3 is of the next one, and cut."""
    first = Play([2, 3], [False] * 2, end, [0, 0, 0, 0, reward], V[:5], bootstrap)
    return [first, Play([2], [False], "cut", [0.0, 0.0], V[5:], 0.85)]


TABLE = {
    "A terminated": (
        whole(WIN),
        [0.451484, 0.401484, 0.380100, 0.330100, 0.280100, 0.200000, 0.100000],
        [0.951484, 0.980100, 1],
    ),
    "B cut": (
        whole(NOTHING, "cut", 0.85),
        [0.311284, 0.261284, 0.231031, 0.181031, 0.131031, 0.041500, -0.058500],
        [0.811284, 0.831031, 0.841500],
    ),
    "C the same, wrongly terminal": (
        whole(NOTHING),
        [-0.433056, -0.483056, -0.560400, -0.610400, -0.660400, -0.800000, -0.900000],
        [0.066944, 0.039600, 0],
    ),
    "D with KL": (
        whole([r - 0.01 * k for r, k in zip(WIN, K1, strict=True)]),
        [0.440240, 0.391240, 0.372398, 0.324398, 0.274398, 0.195000, 0.097000],
        None,
    ),
    "E an invalid turn": (
        whole([0, 0, 0, 0, -0.1, 0, 1.0]),
        [0.357434, 0.307434, 0.280100, 0.230100, 0.180100, 0.200000, 0.100000],
        [0.857434, 0.880100, 1],
    ),
    "F two episodes": (
        broken(1.0, "terminated", 0.0),
        [0.470200, 0.420200, 0.400000, 0.350000, 0.300000, 0.041500, -0.058500],
        [0.970200, 1, 0.841500],
    ),
    "G a time limit": (
        broken(0.0, "truncated", 0.40),
        [-0.097862, -0.147862, -0.204000, -0.254000, -0.304000, 0.041500, -0.058500],
        [0.402138, 0.396000, 0.841500],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_worked_example(case):
    played, advantages, targets = TABLE[case]
    found, returns = map(flat, credit(DualGAE(), played))
    assert found == pytest.approx(advantages, abs=1e-6)
    if targets is not None:
        assert returns == pytest.approx([targets[0]] * 2 + [targets[1]] * 3 + [targets[2]] * 2, abs=1e-6)


def test_worked_example_without_discounts():
    advantages, returns = map(flat, credit(monte_carlo(), whole(WIN)))
    assert advantages == pytest.approx([0.5, 0.45, 0.4, 0.35, 0.3, 0.2, 0.1], abs=1e-6)
    assert returns == pytest.approx([1.0] * 7, abs=1e-6)


def test_worked_example_whitened():
    advantages = torch.tensor(flat(credit(DualGAE(), whole(WIN))[0]))
    assert advantages.mean().item() == pytest.approx(0.306181, abs=1e-6)
    assert advantages.var().item() == pytest.approx(0.015116, abs=1e-6)
    expected = [1.1818, 0.7751, 0.6012, 0.1945, -0.2121, -0.8636, -1.6770]
    assert whiten(advantages).tolist() == pytest.approx(expected, abs=6e-5)


MASKED = {  # (gamma, lambda), the value after the end, advantages
    "undiscounted": ((1.0, 1.0), 0.0, [1.3, 1.2, 1.1, 0.5, 0.4, 0.3, 0.2, 0.1]),
    "discounted": (
        (0.9, 0.8),
        0.0,
        [0.436606, 0.509175, 0.623854, 0.102574, 0.086909, 0.079040, 0.082000, 0.100000],
    ),
    "truncated": (
        (0.9, 0.8),
        0.6,
        [0.490771, 0.584404, 0.728339, 0.247693, 0.288463, 0.358976, 0.470800, 0.640000],
    ),
}


@pytest.mark.parametrize("name", MASKED)
def test_worked_examples_of_masked_gae(name):
    """As VAGEN calls it: what was not sampled is not in the stream at all, so there is nothing to mask."""
    pair, bootstrap, expected = MASKED[name]
    rewards, values = [0, 0, 0.5, 0, 0, 0, 0, 1.0], [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    end = "truncated" if bootstrap else "terminated"
    played = Play([3, 2, 3], [False] * 3, end, rewards, values, bootstrap)
    assert flat(credit(token_gae(*pair), [played])[0]) == near(expected, 1e-6)


def test_kl_makes_targets_differ_inside_a_turn():
    returns = flat(credit(DualGAE(), TABLE["D with KL"][0])[1])
    assert returns[0] < returns[1] < returns[0] + 0.01


# -- the recursion, whatever its factors


@given(st.lists(plays(asked=True), min_size=1, max_size=5), pairs_of, pairs_of)
def test_credit_is_the_sum_of_later_surprises(played, step, token):
    advantages, returns = credit(DualGAE(*step, *token), played)
    for play, found, targets in zip(played, advantages, returns, strict=True):
        expected = brute_force(play, step, token)
        assert found == near(expected)
        assert targets == near([a + v for a, v in zip(expected, play.values, strict=True)])


@given(st.lists(plays(asked=True), min_size=2, max_size=5), pairs_of, pairs_of, st.randoms(use_true_random=False))
def test_order_of_segments_is_irrelevant(played, step, token, shuffler):
    order = list(range(len(played)))
    shuffler.shuffle(order)
    estimator = DualGAE(*step, *token)
    straight = credit(estimator, played)
    mixed = credit(estimator, [played[i] for i in order])
    for kind in (0, 1):
        for place, i in enumerate(order):
            assert mixed[kind][place] == near(straight[kind][i], 1e-6)


@given(plays(asked=True), pairs_of, pairs_of, st.floats(-3, 3), st.floats(-3, 3))
def test_credit_is_linear_in_rewards(play, step, token, a, b):
    other = [math.sin(3 * t) for t in range(len(play.values))]
    silent = replace(play, values=[0.0] * len(play.values), bootstrap=0.0)
    both = replace(play, rewards=[a * x + b * y for x, y in zip(play.rewards, other, strict=True)])
    estimator = DualGAE(*step, *token)
    parts = [
        credit(estimator, [one])[0][0]
        for one in (
            replace(silent, rewards=play.rewards),
            replace(silent, rewards=other),
            replace(play, rewards=[0.0] * len(play.values)),
        )
    ]
    expected = [a * x + b * y + z for x, y, z in zip(*parts, strict=True)]
    assert credit(estimator, [both])[0][0] == near(expected, 5e-5)


def test_credit_ignores_where_rows_break():
    values = [math.cos(t) for t in range(6)]
    turns_apart = [turn([1], [2, 3]), turn([9], [4], 0.5), turn([8], [5, 6, 7], 1.0)]
    turns_joined = [turn([1], [2, 3]), turn([1, 2, 3, 9], [4], 0.5), turn([1, 2, 3, 9, 4, 8], [5, 6, 7], 1.0)]
    apart = DualGAE()(streams_of([segment(*turns_apart, end="cut", final=[5])], values, [0.3]))
    final = [1, 2, 3, 9, 4, 8, 5, 6, 7, 5]
    joined = DualGAE()(streams_of([segment(*turns_joined, end="cut", final=final)], values, [0.3]))
    assert torch.equal(apart.advantages, joined.advantages)
    assert torch.equal(apart.returns, joined.returns)


@given(st.lists(plays(asked=True), min_size=1, max_size=3), pairs_of, pairs_of)
def test_no_time_passes_while_the_memory_asks(played, step, token):
    """A question of the memory and the turn that follows are credited like one longer turn."""
    merged = []
    for play in played:
        lengths, grown = [], 0
        for n, asked in zip(play.lengths, play.asked, strict=True):
            grown += n
            if not asked:
                lengths.append(grown)
                grown = 0
        merged.append(replace(play, lengths=lengths, asked=[False] * len(lengths)))
    estimator = DualGAE(*step, *token)
    assert credit(estimator, played) == credit(estimator, merged)


@given(st.lists(plays(), min_size=1, max_size=3), pairs_of)
@settings(max_examples=1000)
def test_equal_pairs_are_plain_token_gae(played, pair):
    gamma, lam = pair
    advantages, _ = credit(token_gae(gamma, lam), played)
    for play, found in zip(played, advantages, strict=True):
        following = [*play.values[1:], play.bootstrap]
        expected, carry = [0.0] * len(following), 0.0
        for t in reversed(range(len(following))):
            carry = play.rewards[t] + gamma * following[t] - play.values[t] + gamma * lam * carry
            expected[t] = carry
        assert found == near(expected, 1e-6)


def test_whole_numbers_are_factors_too():
    """The loop is compiled for the types that it meets."""
    turns = [turn([1], [2, 3]), turn([9], [4], 0.5), turn([8], [5, 6, 7], 1.0)]
    streams = streams_of([segment(*turns, end="cut", final=[5])], [math.cos(t) for t in range(6)], [0.3])
    whole, exact = (DualGAE(*factors)(streams) for factors in ((1, 0.5, 0.9, 1), (1.0, 0.5, 0.9, 1.0)))
    assert torch.equal(whole.advantages, exact.advantages)


@given(st.lists(plays(asked=True), min_size=1, max_size=3))
def test_all_factors_one_is_future_reward_minus_value(played):
    advantages, returns = credit(monte_carlo(), played)
    for play, found, targets in zip(played, advantages, returns, strict=True):
        future = [sum(play.rewards[t:]) + play.bootstrap for t in range(len(play.values))]
        assert targets == near(future)
        assert found == near([f - v for f, v in zip(future, play.values, strict=True)])


# -- the identities of section 6.2, with token factors 1


def turn_returns(play: Play, gamma: float, lam: float) -> list[tuple[float, float]]:
    """(G_k, U_k) of every turn."""
    answers: list[tuple[float, float]] = []
    rest = 0.0 if play.end == "terminated" else gamma * play.bootstrap
    for start, n in reversed(list(zip(play.starts, play.lengths, strict=True))):
        total = sum(play.rewards[start : start + n]) + rest
        answers.append((total, rest))
        rest = gamma * (lam * total + (1 - lam) * play.values[start])
    return answers[::-1]


@given(plays(), fractions, fractions)
def test_identity_1_credit_is_the_rest_of_the_turn_and_what_follows_it(play, gamma, lam):
    advantages = credit(DualGAE(gamma, lam), [play])[0][0]
    expected = []
    for start, n, (_, rest) in zip(play.starts, play.lengths, turn_returns(play, gamma, lam), strict=True):
        expected += [sum(play.rewards[t : start + n]) + rest - play.values[t] for t in range(start, start + n)]
    assert advantages == near(expected)


def test_identity_1_is_the_form_of_the_paper_for_one_final_reward():
    gamma, lam, r = 0.9, 0.8, 0.7
    play = Play([1, 2], [False] * 2, "terminated", [0.0, 0.0, r], [0.2, 0.4, 0.5], 0.0)
    expected = [gamma * (lam * r + (1 - lam) * 0.4) - 0.2, r - 0.4, r - 0.5]
    assert credit(DualGAE(gamma, lam), [play])[0][0] == near(expected)


@given(plays(kl=False), fractions, fractions)
def test_identity_2_without_kl_a_turn_has_one_target(play, gamma, lam):
    returns = credit(DualGAE(gamma, lam), [play])[1][0]
    totals = [total for total, _ in turn_returns(play, gamma, lam)]
    assert returns == near(flat([total] * n for total, n in zip(totals, play.lengths, strict=True)))


@given(plays(), fractions, fractions)
def test_identity_3_first_tokens_get_the_gae_of_turns(play, gamma, lam):
    rewards = [sum(play.rewards[s : s + n], 0.0) for s, n in zip(play.starts, play.lengths, strict=True)]
    values = [play.values[start] for start in play.starts]
    turns = Play([1] * len(values), [False] * len(values), play.end, rewards, values, play.bootstrap)
    advantages = credit(DualGAE(gamma, lam), [play])[0][0]
    assert [advantages[start] for start in play.starts] == near(backwards(turns, [(gamma, lam)] * len(values)))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8), fractions)
def test_identity_4_a_later_win_is_discounted_once_a_turn(lengths, gamma):
    total = sum(lengths)
    values = [math.sin(t) for t in range(total)]
    play = Play(lengths, [False] * len(lengths), "terminated", [0.0] * (total - 1) + [1.0], values, 0.0)
    expected = flat([gamma ** (len(lengths) - 1 - k)] * n for k, n in enumerate(lengths))
    assert credit(DualGAE(gamma, 1.0), [play])[1][0] == near(expected, 1e-6)


@given(plays(kl=False), fractions)
def test_identity_5_lambda_0_looks_one_turn_ahead(play, gamma):
    following = [play.values[start] for start in play.starts[1:]] + [play.bootstrap]
    lasts = [start + n - 1 for start, n in zip(play.starts, play.lengths, strict=True)]
    targets = [play.rewards[last] + gamma * after for last, after in zip(lasts, following, strict=True)]
    returns = credit(DualGAE(gamma, 0.0), [play])[1][0]
    assert returns == near(flat([target] * n for target, n in zip(targets, play.lengths, strict=True)))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8), fractions, fractions)
def test_identity_7_an_exact_critic_leaves_no_credit(lengths, gamma, lam):
    values = flat([gamma ** (len(lengths) - 1 - k)] * n for k, n in enumerate(lengths))
    rewards = [0.0] * (len(values) - 1) + [1.0]
    play = Play(lengths, [False] * len(lengths), "terminated", rewards, values, 0.0)
    assert credit(DualGAE(gamma, lam), [play])[0][0] == near([0.0] * len(values), 2e-6)


@given(plays(), plays(), pairs_of, pairs_of)
def test_identity_10_a_cut_is_lambda_0_at_that_boundary(before, after, step, token):
    before = replace(before, end="cut", bootstrap=after.values[0])
    joined = Play(
        before.lengths + after.lengths,
        before.asked + after.asked,
        after.end,
        before.rewards + after.rewards,
        before.values + after.values,
        after.bootstrap,
    )
    pairs = joined.pairs(step, token)
    pairs[len(before.values) - 1] = (step[0], 0.0)
    found = flat(credit(DualGAE(*step, *token), [before, after])[0])
    assert found == near(backwards(joined, pairs))


@given(plays(asked=True), pairs_of, pairs_of)
def test_identity_11_a_second_reward_adds_its_own_credit(play, step, token):
    extra = [math.cos(5 * t) for t in range(len(play.values))]
    summed = replace(play, rewards=[a + b for a, b in zip(play.rewards, extra, strict=True)])
    alone = replace(play, rewards=extra, values=[0.0] * len(extra), bootstrap=0.0)
    estimator = DualGAE(*step, *token)
    parts = [credit(estimator, [one])[0][0] for one in (play, alone)]
    assert credit(estimator, [summed])[0][0] == near([a + b for a, b in zip(*parts, strict=True)], 2e-5)


# -- ends


@given(plays(), pairs_of, pairs_of)
def test_a_time_limit_is_credited_like_a_cut_and_unlike_an_end(play, step, token):
    estimator = DualGAE(*step, *token)
    told = replace(play, bootstrap=2.0)
    assert credit(estimator, [replace(told, end="cut")]) == credit(estimator, [replace(told, end="truncated")])
    last = credit(estimator, [replace(told, end="cut")])[0][0][-1]
    over = credit(estimator, [replace(play, end="terminated", bootstrap=0.0)])[0][0][-1]
    assert last - over == pytest.approx(2.0 * step[0], abs=1e-5)


# -- arithmetic


@pytest.mark.parametrize("estimator", [DualGAE(), DualGAE(0.98, 0.9, 0.999, 0.99), token_gae(0.999, 0.97)])
def test_a_long_segment_equals_the_plain_loop(estimator):
    numbers = random.Random(0)
    lengths: list[int] = []
    while sum(lengths) < 20_000:
        lengths.append(min(numbers.randint(1, 100), 20_000 - sum(lengths)))
    rewards = [numbers.gauss(0, 0.1) for _ in range(20_000)]
    values = [numbers.gauss(0, 1) for _ in range(20_000)]
    play = Play(lengths, [False] * len(lengths), "truncated", rewards, values, 0.5)
    step, token = (estimator.step_gamma, estimator.step_lambda), (estimator.token_gamma, estimator.token_lambda)
    found = torch.tensor(credit(estimator, [play])[0][0])
    torch.testing.assert_close(found, torch.tensor(backwards(play, play.pairs(step, token))), rtol=1e-5, atol=1e-5)


@given(st.lists(st.tuples(st.floats(-2, 2), fractions), min_size=1, max_size=40))
def test_discounted_sums_are_the_backward_recursion(pairs):
    x, decay = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    expected, carry = [], 0.0
    for one, factor in reversed(pairs):
        carry = one + factor * carry
        expected.append(carry)
    # The factor of the last entry has nothing to carry.
    assert discounted_sums(x, decay).tolist() == pytest.approx(expected[::-1], abs=1e-9)
    assert x.tolist() == [one for one, _ in pairs]


def test_factors_are_not_rounded_before_the_end():
    turns, gamma = 3000, 0.999
    rewards = [0.0] * (turns - 1) + [1.0]
    play = Play([1] * turns, [False] * turns, "terminated", rewards, [0.0] * turns, 0.0)
    found = credit(DualGAE(gamma, 1.0), [play])[1][0]
    assert found == pytest.approx([gamma ** (turns - 1 - k) for k in range(turns)], abs=1e-7)


# -- mistakes


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("value", [-0.1, 1.01, math.nan])
def test_a_factor_outside_0_to_1_is_refused_by_name(factor, value):
    with pytest.raises(ValueError, match=f"advantage.{factor} is {value}"):
        DualGAE(**{factor: value})


def test_the_defaults_are_those_of_the_report():
    assert DualGAE() == DualGAE(0.99, 0.95, 1.0, 1.0)
    assert token_gae(0.9, 0.8) == DualGAE(0.9, 0.8, 0.9, 0.8)


@pytest.mark.parametrize("key", ["gamma", "lam"])
def test_plain_gae_names_its_own_keys(key):
    with pytest.raises(ValueError, match=f"advantage.{key} is 1.5"):
        token_gae(**{key: 1.5})
