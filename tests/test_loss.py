import math

import pytest
import torch
from helpers import segment, turn
from hypothesis import given
from hypothesis import strategies as st

from turnwise.batch import pack
from turnwise.loss import effective_share, explained_variance, kl_k1, kl_k3, policy_loss, value_loss, whiten
from turnwise.update import mismatch

finite = st.floats(-2, 2, width=32)
tokens = st.lists(st.tuples(finite, finite, finite), min_size=1, max_size=20)


def ppo(ratio: float, advantage: float, dual_clip: float | None = 3.0) -> tuple[float, bool, float]:
    """Loss, stopped and gradient with respect to the log-prob of one token at clip 0.2."""
    logprob = torch.tensor([math.log(ratio)], requires_grad=True)
    loss, stopped = policy_loss(logprob, torch.zeros(1), torch.tensor([advantage]), 0.2, dual_clip)
    loss.sum().backward()
    assert logprob.grad is not None
    return loss.item(), bool(stopped), logprob.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "stopped"),
    [
        (1.0, 2.0, -2.0, False),
        (1.0, -2.0, 2.0, False),
        (1.1, 2.0, -2.2, False),
        (0.9, -2.0, 1.8, False),
        (1.5, 2.0, -2.4, True),  # already made likely enough
        (0.5, 2.0, -1.0, False),  # a good token that became unlikely is pulled back
        (0.5, -2.0, 1.6, True),  # already made unlikely enough
        (1.5, -2.0, 3.0, False),  # a bad token that became likely is pushed down
        (2.9, -2.0, 5.8, False),
        (4.0, -2.0, 6.0, True),  # the dual clip: 3 |A|
        (100.0, -2.0, 6.0, True),
        (4.0, 2.0, -2.4, True),
        (1.5, 0.0, 0.0, False),
    ],
)
def test_policy_loss_in_closed_form(ratio, advantage, loss, stopped):
    found, was_stopped, gradient = ppo(ratio, advantage)
    assert found == pytest.approx(loss, rel=1e-6)
    assert was_stopped == stopped
    # Off the clip, d(-A ratio)/d(logprob) = -A ratio.
    assert gradient == pytest.approx(0.0 if stopped else -advantage * ratio, rel=1e-5)


def test_without_a_dual_clip_a_bad_token_costs_all_of_its_ratio():
    loss, stopped, gradient = ppo(100.0, -2.0, dual_clip=None)
    assert loss == pytest.approx(200.0, rel=1e-5)
    assert not stopped
    assert gradient == pytest.approx(200.0, rel=1e-5)


@given(tokens)
def test_gradient_is_zero_exactly_where_clipping_stopped_it(numbers):
    new, old, advantages = torch.tensor(numbers).unbind(1)
    new = new.clone().requires_grad_()
    loss, stopped = policy_loss(new, old, advantages, 0.2, 3.0)
    loss.sum().backward()
    assert new.grad is not None
    assert (new.grad[stopped] == 0).all()
    moving = ~stopped
    expected = -(advantages * (new - old).exp())[moving]
    torch.testing.assert_close(new.grad[moving], expected.detach())


@given(tokens)
def test_policy_loss_is_bounded_by_the_dual_clip(numbers):
    new, old, advantages = torch.tensor(numbers).unbind(1)
    loss, _ = policy_loss(new, old, advantages, 0.2, 3.0)
    assert (loss <= 3 * advantages.abs() + 1e-6).all()
    assert (loss >= -1.2 * advantages.abs() - 1e-6).all()


def test_an_extreme_ratio_stays_finite():
    new = torch.tensor([500.0, -500.0], requires_grad=True)
    loss, _ = policy_loss(new, torch.zeros(2), torch.tensor([-1.0, 1.0]), 0.2, None)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert new.grad is not None
    assert new.grad.isfinite().all()


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "moves"),
    [
        (0.3, 0.0, 1.0, 0.5 * 0.49, True),  # inside the clip
        (0.9, 0.0, 1.0, 0.5 * 0.25, False),  # held at 0.5: no reward for going further
        (-0.9, 0.0, 1.0, 0.5 * 3.61, True),  # moved the wrong way: the full error counts
        (1.5, 1.0, 1.0, 0.5 * 0.25, True),
    ],
)
def test_value_loss_is_that_of_the_worse_of_value_and_held_value(value, old, target, loss, moves):
    x = torch.tensor([value], requires_grad=True)
    found = value_loss(x, torch.tensor([old]), torch.tensor([target]), 0.5)
    found.sum().backward()
    assert found.item() == pytest.approx(loss, rel=1e-5)
    assert x.grad is not None
    assert (x.grad.item() != 0) == moves


def test_value_loss_without_a_clip_is_half_the_squared_error():
    found = value_loss(torch.tensor([0.9, -3.0]), torch.zeros(2), torch.ones(2), None)
    assert found.tolist() == pytest.approx([0.005, 8.0])


@pytest.mark.parametrize(("weight", "expected"), [(3.0, 0.0175), (1.0, 0.00625)])
def test_first_tokens_weigh_more_in_the_critic_loss_but_not_in_its_count(weight, expected):
    batch = pack([segment(turn([1], [2, 3]))])
    error = value_loss(torch.tensor([0.85, 0.95]), torch.tensor([0.85, 0.95]), torch.ones(2), 0.5)
    weights = torch.where(batch.turn_firsts, weight, 1.0)
    assert ((weights * error).sum() / len(error)).item() == pytest.approx(expected, rel=1e-5)


def test_kl_estimates_of_one_number():
    assert kl_k1(torch.tensor([-1.0]), torch.tensor([-1.2])).item() == pytest.approx(0.2, rel=1e-6)
    assert kl_k3(torch.tensor([-1.0]), torch.tensor([-1.2])).item() == pytest.approx(0.018731, abs=1e-6)


@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=20))
def test_k3_is_never_negative_and_zero_where_nothing_changed(pairs):
    new, reference = torch.tensor(pairs).unbind(1)
    assert (kl_k3(new, reference) >= 0).all()
    assert (kl_k3(new, new) == 0).all()


def test_both_estimates_have_the_divergence_as_their_mean():
    new, reference = torch.tensor([0.7, 0.2, 0.1]).log(), torch.tensor([0.3, 0.3, 0.4]).log()
    divergence = (new.exp() * (new - reference)).sum()
    for estimate in (kl_k1, kl_k3):
        assert (new.exp() * estimate(new, reference)).sum().item() == pytest.approx(divergence.item(), rel=1e-5)


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=50).filter(lambda x: len(set(x)) > 1))
def test_whitened_numbers_have_mean_0_and_bessel_variance_1(numbers):
    x = whiten(torch.tensor(numbers) / 10)
    assert x.mean().item() == pytest.approx(0, abs=1e-5)
    assert (x.double() ** 2).sum().item() / (len(x) - 1) == pytest.approx(1, rel=1e-4)


def test_whitening_can_count_marked_numbers_alone():
    x, where = torch.tensor([1.0, 8.0, 3.0, -2.0]), torch.tensor([True, False, True, False])
    whitened = whiten(x, where)
    assert whitened[where].tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5])
    assert whitened.tolist() == pytest.approx(((x - 2) / 2**0.5).tolist())
    assert torch.equal(whiten(x, torch.ones(4, dtype=torch.bool)), whiten(x))
    assert whiten(x.clamp(max=2), x > 2).tolist() == [-1.0, 0.0, 0.0, -4.0]  # those marked have no spread


def test_whitening_keeps_the_order_and_ignores_shift_and_scale():
    x = torch.tensor([0.3, -1.0, 2.5, 0.0])
    torch.testing.assert_close(whiten(x), whiten(7 * x + 3))
    assert whiten(x).argsort().tolist() == x.argsort().tolist()


@pytest.mark.parametrize("numbers", [[0.1] * 7, [5.0], [1000.1] * 3])
def test_numbers_without_spread_are_only_centred(numbers):
    assert whiten(torch.tensor(numbers)).tolist() == pytest.approx([0.0] * len(numbers), abs=1e-3)


def test_explained_variance_at_its_limits():
    returns = torch.tensor([0.0, 1.0, 2.0, 5.0])
    assert explained_variance(returns, returns).item() == pytest.approx(1)
    assert explained_variance(returns + 3, returns).item() == pytest.approx(1)  # a bias is not variance
    assert explained_variance(torch.full((4,), 2.0), returns).item() == pytest.approx(0)
    assert explained_variance(-returns, returns).item() == pytest.approx(-3)
    assert explained_variance(returns, torch.ones(4)).item() == 0
    assert explained_variance(torch.tensor([1.0, 2.0, 4.0]), torch.full((3,), 1000.1)).item() == 0


def test_explained_variance_of_an_error_of_half_the_spread():
    returns = torch.tensor([-1.0, 1.0, -1.0, 1.0])
    assert explained_variance(returns / 2, returns).item() == pytest.approx(0.75)


def test_a_mismatch_of_engine_and_trainer_is_told_by_its_weights():
    """The weights are .904837, 1 and 3.004166."""
    told = mismatch(torch.tensor([-1.1, -0.5, -0.9]) - torch.tensor([-1.0, -0.5, -2.0]))
    sizes = (0.904837 + 1 + 3.004166) ** 2 / (0.904837**2 + 1 + 3.004166**2)
    expected = {"gap": 1.1, "gap_mean": 1.2 / 3, "k3": 0.303001, "effective": sizes / 3}
    assert told == pytest.approx({f"actor/engine_{name}": value for name, value in expected.items()}, abs=1e-6)


@given(st.lists(st.floats(-80, 80, width=32), min_size=1, max_size=9), st.floats(-80, 80, width=32))
def test_the_effective_share_is_of_weights_in_any_unit(gaps, shift):
    gap = torch.tensor(gaps, dtype=torch.float64)
    share = effective_share(gap)
    assert 1 / len(gaps) - 1e-9 <= share <= 1 + 1e-9
    torch.testing.assert_close(effective_share(gap + shift), share)
    assert effective_share(torch.full_like(gap, shift)) == pytest.approx(1)


def test_a_gap_of_rounding_has_a_divergence_that_is_none_or_more():
    gap = torch.linspace(-1e-6, 1e-6, 1001)
    told = mismatch(gap)
    assert 0 <= told["actor/engine_k3"] < 1e-12 and told["actor/engine_effective"] == pytest.approx(1)
