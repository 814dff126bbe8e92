"""GAE over turns against its definition, its worked examples, and the limits where it is another estimator."""

import math
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
import torch
from helpers import segment, streams_of, turn
from hypothesis import given, settings
from hypothesis import strategies as st
from plays import Play, credit, flat, fractions, near, plays

from turnwise.advantages.bilevel import BiLevelGAE
from turnwise.advantages.gae import token_gae
from turnwise.advantages.turn import TurnGAE

REWARDS = [0, 0, 0.5, 0, 0, 0, 0, 1.0]  # the turn in the middle has none
VALUES = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
anchors = st.sampled_from(["first", "last"])


def spans(play: Play) -> list[range]:
    """The tokens of each turn, those of the questions before it included."""
    ends = [end for end, asked in zip(accumulate(play.lengths), play.asked, strict=True) if not asked]
    return [range(start, end) for start, end in pairwise([0, *ends])]


def by_definition(play: Play, estimator: TurnGAE) -> tuple[list[float], list[float]]:
    """The plain loop over turns from behind: advantages and returns."""
    advantages, returns = [0.0] * len(play.values), [0.0] * len(play.values)
    carry, after = 0.0, play.bootstrap
    for span in reversed(spans(play)):
        value = play.values[span[0] if estimator.anchor == "first" else span[-1]]
        delta = sum(play.rewards[t] for t in span) + estimator.turn_gamma * after - value
        carry = delta + estimator.turn_gamma * estimator.turn_lambda * carry
        after = value
        for t in span:
            advantages[t], returns[t] = carry, carry + value
    return advantages, returns


@given(
    st.lists(plays(asked=True), min_size=1, max_size=4),
    st.builds(TurnGAE, fractions, fractions, anchors),
)
@settings(max_examples=1000)
def test_equals_the_definition(played, estimator):
    advantages, returns = credit(estimator, played)
    for play, got, targets in zip(played, advantages, returns, strict=True):
        expected, wanted = by_definition(play, estimator)
        assert got == near(expected, 1e-6)
        assert targets == near(wanted, 1e-6)


WORKED = {
    "turn-wise broadcast": (TurnGAE(0.95, 1.0, "last"), 0.0, [1.0025, 0.35, 0.1]),
    "first": (TurnGAE(0.95, 0.9), 0.0, [1.135382, 0.4215, 0.3]),
    "first, truncated": (TurnGAE(0.95, 0.9), 0.6, [1.552067, 0.908850, 0.87]),
    "last": (TurnGAE(0.95, 0.9, "last"), 0.0, [0.961127, 0.3405, 0.1]),
    "last, truncated": (TurnGAE(0.95, 0.9, "last"), 0.6, [1.377812, 0.827850, 0.67]),
}


@pytest.mark.parametrize("name", WORKED)
def test_worked_examples(name):
    estimator, bootstrap, (one, two, three) = WORKED[name]
    end = "truncated" if bootstrap else "terminated"
    advantages, _ = credit(estimator, [Play([3, 2, 3], [False] * 3, end, REWARDS, VALUES, bootstrap)])
    assert flat(advantages) == near([one] * 3 + [two] * 2 + [three] * 3, 1e-6)


def test_the_critic_learns_at_the_anchors_alone():
    turns = [turn([1], [2] * n, of_memory=asked) for n, asked in ((2, False), (1, True), (3, False), (1, False))]
    streams = streams_of([segment(*turns, end="cut"), segment(*turns)], [0.5] * 14, [0.5, 0.0])
    for anchor, places in (("first", [0, 2, 6, 7, 9, 13]), ("last", [1, 5, 6, 8, 12, 13])):
        estimate = TurnGAE(anchor=anchor)(streams)
        assert estimate.targets.nonzero()[:, 0].tolist() == places


@given(st.lists(plays(), min_size=1, max_size=3), fractions, fractions, anchors)
def test_turns_of_one_token_make_it_token_gae(played, gamma, lam, anchor):
    single = [replace(p, lengths=[1] * len(p.values), asked=[False] * len(p.values)) for p in played]
    expected = credit(token_gae(gamma, lam), single)
    for found, wanted in zip(credit(TurnGAE(gamma, lam, anchor), single), expected, strict=True):
        assert flat(found) == near(flat(wanted))


@given(plays(asked=True, kl=False), fractions, fractions)
def test_anchored_last_it_is_bi_level_gae_at_the_ends_of_turns(play, gamma, lam):
    """Where the memory's questions pay nothing, as they do."""
    quiet = replace(play, rewards=[r if t in play.step_ends else 0.0 for t, r in enumerate(play.rewards)])
    found = credit(TurnGAE(gamma, lam, "last"), [quiet])[0][0]
    both = credit(BiLevelGAE(gamma, lam), [quiet])[0][0]
    for t in quiet.step_ends:
        assert found[t] == near(both[t])


@given(plays(asked=True), fractions, fractions, anchors)
def test_values_off_the_anchors_never_matter(play, gamma, lam, anchor):
    places = {span[0] if anchor == "first" else span[-1] for span in spans(play)}
    other = replace(play, values=[v if t in places else 9.0 for t, v in enumerate(play.values)])
    estimator = TurnGAE(gamma, lam, anchor)
    assert credit(estimator, [play]) == credit(estimator, [other])


def test_a_cut_between_question_and_answer_discounts_nothing():
    """The batch ended behind the question: no time has passed, and the next prompt stands for the rest of the turn."""
    streams = streams_of([segment(turn([1], [2, 3], of_memory=True), end="cut")], [0.1, 0.2], [0.7])
    estimate = TurnGAE(0.5, 1.0)(streams)
    assert torch.allclose(estimate.advantages, torch.tensor([0.6, 0.6]))


@pytest.mark.parametrize("key", ["turn_gamma", "turn_lambda"])
@pytest.mark.parametrize("value", [-0.1, 1.01, math.nan])
def test_factors_lie_between_0_and_1(key, value):
    with pytest.raises(ValueError, match=f"advantage.{key} is {value}"):
        TurnGAE(**{key: value})


def test_an_unknown_anchor_is_refused():
    with pytest.raises(ValueError, match=r"advantage\.anchor is 'middle'; it is the first or the last"):
        TurnGAE(anchor="middle")


@pytest.mark.parametrize("estimator", [TurnGAE(0.9), TurnGAE(0.9, anchor="last"), BiLevelGAE(0.9)], ids=repr)
def test_a_batch_that_ends_inside_a_turn_discounts_it_once(estimator):
    """A turn ends at .81; of the next one this batch has only what the memory asked, the next batch has the action."""
    values, bootstrap = [0.81, 0.9], 0.9
    advantages, _ = credit(estimator, [Play([1, 1], [False, True], "cut", [0.0, 0.0], values, bootstrap)])
    assert flat(advantages) == near([0.0, 0.0], 1e-6)
    rest, _ = credit(estimator, [Play([1], [False], "terminated", [0.9], [0.9], 0.0)])
    assert flat(rest) == near([0.0], 1e-6)
