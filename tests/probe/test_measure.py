"""Known answers, limits and invariances of the measures."""

from dataclasses import replace

import pytest
from helpers import turn
from hypothesis import given
from hypothesis import strategies as st
from makers import episode, said

from turnwise.probe.measure import BLOCK, Score, distinct, lengths, newcombe, pooled, resemblance, sheet

TEXTS = st.text(alphabet="ab ,.", max_size=30)


def score(successes: int | None, episodes: int, task: str = "goto") -> Score:
    return Score(task, episodes, successes, 0.5, 4.0)


@pytest.mark.parametrize(
    ("thoughts", "n", "share"),
    [
        (["a b a b"], 1, 2 / 4),
        (["a b a b"], 2, 2 / 3),
        (["a b a b"], 3, 1),
        (["a b", "b a"], 2, 1),  # no pair reaches from one thought into the next
        (["Go, go!", "GO"], 1, 1 / 3),
        (["a", "b"], 2, None),
        ([], 1, None),
    ],
)
def test_distinct_counts_different_n_grams(thoughts, n, share):
    assert distinct(thoughts, n) == (share and pytest.approx(share))


@given(st.integers(1, 9))
def test_a_thought_said_k_times_is_a_kth_as_distinct(k):
    assert distinct(["one two three four"] * k, 2) == pytest.approx(1 / k)


def test_more_of_the_same_text_does_not_lower_distinct():
    block = [f"word{number}" for number in range(BLOCK)]
    assert distinct(block, 1) == distinct(block * 3, 1) == 1
    assert distinct([*block, "a rest that is too short to count"], 1) == 1


def test_resemblance_of_two_thoughts_by_hand():
    """Shared: (start, the) and (the, red); (red, ball) and (red, box) are not."""
    assert resemblance("The red ball.", "the red box") == 0.5
    assert resemblance("left", "right") == 0
    assert resemblance("", "") == 1


@given(TEXTS, TEXTS)
def test_resemblance_is_symmetric_bounded_and_whole_for_equal_texts(one, other):
    assert 0 <= resemblance(one, other) == resemblance(other, one) <= 1
    assert resemblance(one, one.upper()) == 1


def test_the_interval_of_a_difference_is_newcombes():
    """His example: 56 of 70 against 48 of 80, by method 10."""
    assert newcombe(score(56, 70), score(48, 80)) == pytest.approx((0.0524, 0.3339), abs=5e-5)


@given(st.integers(0, 30), st.integers(0, 30))
def test_the_interval_of_a_difference_turns_around_with_the_players(one, other):
    low, high = newcombe(score(one, 30), score(other, 30))
    assert newcombe(score(other, 30), score(one, 30)) == pytest.approx((-high, -low))
    assert low <= (one - other) / 30 <= high


def test_pooling_counts_each_episode_once():
    scores = [Score("a", 10, 5, 1.0, 8.0), Score("b", 30, 30, 0.0, 4.0)]
    assert pooled(scores, "all") == Score("all", 40, 35, 0.25, 5.0)
    assert pooled([*scores, score(None, 10)], "all").successes is None


def test_lengths_of_prompts():
    figures = lengths(list(range(1, 102)))
    assert (figures.mean, figures.p90, figures.longest) == (51, 91, 101)


def test_a_sheet_of_hand_made_turns():
    won = episode(
        said("the red ball", tokens=10),
        said("the red box", status="translated", tokens=20),
        said("the red box", status="invalid", tokens=60, finish="length"),
        success=True,
        end="terminated",
    )
    lost = episode(said("a b", tokens=30))
    figures = sheet("goto", [won, lost])
    assert (figures.score.episodes, figures.score.successes, figures.score.mean_turns) == (2, 1, 2.0)
    actions = figures.actions
    assert (actions.valid, actions.translated, actions.invalid, actions.share("invalid")) == (2, 1, 1, 0.25)
    reasoning = figures.reasoning
    assert reasoning.distinct == pytest.approx((6 / 11, 4 / 7, 2 / 3))
    assert reasoning.resemblance == (0.5 + 1) / 2
    assert (reasoning.repeated, reasoning.cut) == (0.5, 0.25)
    assert (reasoning.tokens_median, reasoning.tokens_p90) == pytest.approx((25, 51))


def test_questions_of_the_memory_are_no_turns():
    turns = [said("a b c"), said("a b d")]
    asked = turn([1], [7] * 500, of_memory=True, finish="length")
    assert sheet("goto", [episode(turns[0], asked, turns[1])]) == sheet("goto", [episode(*turns)])


def test_without_thoughts_nothing_is_said_about_them():
    silent = sheet("goto", [episode(said(""), said(""))]).reasoning
    assert silent.distinct == (None, None, None)
    assert silent.resemblance is silent.repeated is None


def test_where_no_success_is_told_none_is_made_up():
    figures = sheet("goto", [episode(said(), success=None)]).score
    assert figures.successes is figures.rate is figures.interval is None
    assert replace(figures, successes=1).rate == 1


def test_a_task_that_tells_no_success_takes_none_from_the_others():
    """Half of goto was won, and nobody knows of survive: all tasks together have no rate."""
    won, lost, survived = (
        episode(said("on"), task=task, success=success)
        for task, success in (("goto", True), ("goto", False), ("survive", None))
    )
    assert sheet("goto", [won, lost]).score.successes == 1
    assert sheet("survive", [survived]).score.successes is None
    assert sheet("all", [won, lost, survived]).score.successes is None
