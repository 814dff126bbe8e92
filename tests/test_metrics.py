import itertools
import json
import math
from dataclasses import replace

import pytest
import torch
from helpers import segment, turn

from turnwise.batch import pack
from turnwise.intervals import wilson
from turnwise.metrics import RECENT, Recent, invalid_texts, measure, measure_credit, measure_groups
from turnwise.tally import Tally
from turnwise.update import Credit

# -- how turns were played


@pytest.mark.parametrize(("told", "mean"), [(set(), 0.6), ({"goto"}, 0.3)])
def test_progression_that_nobody_tells_is_none_where_success_is_told(told, mean):
    won = segment(turn([1], [2]), task="goto", success=True)
    assert won.outcome
    won = replace(won, outcome=replace(won.outcome, progression=0.6))
    figures = measure(Tally(0, 0, played=[won, segment(turn([1], [2]), task="goto", success=None)]), told)
    assert figures["episodes/progression"] == mean


SEGMENTS = [
    segment(
        turn([1, 2], [3], status="valid"),
        turn([1, 2, 3, 4], [5, 6, 7], -0.1, status="invalid", said="jump"),
        turn([1], [2, 3], of_memory=True, finish="length"),
        turn([1], [2], 1.0, status="translated"),
        success=True,
    ),
    segment(turn([1, 2, 3], [4, 5], -0.1, status="invalid", said="dance", finish="length"), end="truncated", slot=1),
    segment(turn([1], [2], -0.1, status="invalid", said="jump"), end="cut", slot=1),
]


def test_measure_of_hand_made_segments():
    figures = measure(Tally(2, 5, shortened_prompts=1, useless_groups=4, played=SEGMENTS))
    expected = {
        "turns/valid": 1 / 5,  # shares are of the turns in the environment
        "turns/translated": 1 / 5,
        "turns/invalid": 3 / 5,
        "turns/reward": 0.7 / 5,
        "turns/reply_tokens": 10 / 6,  # lengths are of all turns
        "turns/reply_cut": 2 / 6,
        "turns/prompt_tokens": 12 / 6,
        "turns/prompt_tokens_max": 4,
        "turns/shortened_prompts": 1,
        "segments/terminated": 1,
        "segments/truncated": 1,
        "segments/cut": 1,
        "episodes/finished": 2,
        "episodes/return": (0.9 - 0.1) / 2,
        "episodes/turns": (3 + 1) / 2,
        "episodes/failed": 2,
        "episodes/dropped_turns": 5,
        "groups/left_out": 4,
    }
    assert figures == pytest.approx(expected)


def test_a_batch_without_a_finished_episode_has_no_return():
    figures = measure(Tally(played=[SEGMENTS[2]]))
    assert figures["episodes/finished"] == 0
    assert "episodes/return" not in figures


def test_what_agents_count_is_averaged_over_the_episodes_that_ended():
    counted = [{"tools/ok": 2.0, "reward/answered": 1.0}, {"tools/ok": 1.0, "reward/answered": -1.0}, {}]
    ended = [
        replace(one, outcome=replace(one.outcome, figures=figures))
        for one, figures in zip([segment(turn([1], [2])) for _ in counted], counted, strict=True)
        if one.outcome
    ]
    figures = measure(Tally(played=[*ended, SEGMENTS[2]]))
    assert (figures["tools/ok"], figures["reward/answered"]) == (1.0, 0.0)


def test_invalid_texts_are_ranked_by_how_often_they_were_said():
    more = [*SEGMENTS, segment(turn([1], [2], status="invalid", said="sing"))]
    assert invalid_texts(more) == [("jump", 2), ("dance", 1), ("sing", 1)]
    assert invalid_texts(more, most=1) == [("jump", 2)]
    assert invalid_texts([segment(turn([1], [2], said="go"))]) == []


# -- recent success


levels = itertools.count()


def finished(task: str, success: bool | None, seed: int | None = None):
    """An episode, on a level of its own unless it is told which."""
    return segment(turn([1], [2]), task=task, success=success, seed=next(levels) if seed is None else seed)


def many(task: str, success: bool | None, count: int):
    return [finished(task, success) for _ in range(count)]


def test_recent_success_is_counted_a_task():
    recent = Recent(["goto", "open", "put"])
    recent.add(many("goto", True, 8) + many("goto", False, 2) + [finished("open", False)])
    figures = recent.metrics()
    assert figures["success/goto"] == 0.8
    assert (figures["success/goto/low"], figures["success/goto/high"]) == wilson(8, 10)
    assert figures["success/open"] == 0.0
    assert not any(name.startswith("success/put") for name in figures)


def test_unfinished_episodes_and_those_without_a_verdict_do_not_count():
    recent = Recent(["goto"])
    recent.add([segment(turn([1], [2]), end="cut"), finished("goto", None)])
    assert recent.metrics() == {}


def test_where_only_wins_are_told_the_other_episodes_are_lost():
    recent = Recent(["goto"])
    recent.add([finished("goto", True), *many("goto", None, 3)])
    assert recent.metrics()["success/goto"] == 0.25
    recent.add(many("goto", None, RECENT))
    assert recent.metrics()["success/goto"] == 0.0


def test_what_a_group_has_in_common_makes_nobody_surer():
    recent = Recent(["goto"])
    for level in range(6):
        recent.add([finished("goto", level < 3, level)] * 16)
    figures = recent.metrics()
    assert (figures["success/goto/low"], figures["success/goto/high"]) == wilson(3, 6)
    recent.add([finished("goto", won, 6) for won in (True, True, False, False)])
    assert recent.metrics()["success/goto"] == 0.5


def test_old_outcomes_are_forgotten():
    recent = Recent(["goto"])
    recent.add(many("goto", False, 50) + many("goto", True, RECENT))
    assert recent.metrics()["success/goto"] == 1.0


def test_recent_success_survives_a_crash():
    recent, restored = Recent(["goto", "open"]), Recent(["goto", "open"])
    recent.add([finished("goto", True, 5), finished("goto", False, 7), finished("open", True, 5)])
    restored.restore(json.loads(json.dumps(recent.state())))
    assert restored.told == recent.told == {"goto", "open"}
    assert restored.metrics() == recent.metrics()


def test_levels_on_which_nothing_can_be_compared_are_counted():
    episodes = [(1, 0.0), (1, 1.0), (2, 1.0), (2, 1.0), (3, 1.0)]
    segments = [segment(turn([1], [2], reward), seed=seed) for seed, reward in episodes]
    assert measure_groups(segments) == {"groups/played": 3, "groups/useless": 2}


# -- credit


def credit_of(kl: list[float], reference: bool = True) -> Credit:
    ones = torch.ones(len(kl))
    returns = torch.arange(len(kl)).float()
    return Credit(ones, returns, returns.clone(), ones if reference else None, torch.tensor(kl))


def test_divergence_is_split_into_reasoning_and_action():
    batch = pack([segment(turn([1], [2, 3, 4], action_tokens=1), turn([5], [6, 7], action_tokens=2))])
    figures = measure_credit(batch, credit_of([0.1, 0.3, 0.2, 0.4, 0.6]))
    assert figures["kl/all"] == pytest.approx(0.32)
    assert figures["kl/reasoning"] == pytest.approx(0.2)
    assert figures["kl/action"] == pytest.approx(0.4)
    k3 = [math.exp(-k) - 1 + k for k in (0.2, 0.4, 0.6)]
    assert figures["kl/action_k3"] == pytest.approx(sum(k3) / 3, rel=1e-5)


def test_a_group_without_tokens_has_no_divergence():
    batch = pack([segment(turn([1], [2]), turn([3], [4]))])
    figures = measure_credit(batch, credit_of([0.1, 0.3]))
    assert "kl/action" not in figures
    assert figures["kl/reasoning"] == figures["kl/all"]


def test_without_a_reference_there_is_no_divergence():
    batch = pack([segment(turn([1], [2], action_tokens=1), turn([3], [4]))])
    assert not any(name.startswith("kl/") for name in measure_credit(batch, credit_of([0.0, 0.0], reference=False)))


def test_the_critic_is_judged_on_all_tokens_and_on_first_tokens():
    batch = pack([segment(turn([1], [2, 3]), turn([4], [5, 6]), turn([7], [8, 9]))])
    returns = torch.tensor([0.0, 0.0, 1.0, 1.0, 2.0, 2.0])
    values = torch.tensor([0.0, 1.0, 1.0, 1.0, 2.0, 1.0])  # right at first tokens, constant elsewhere
    figures = measure_credit(batch, Credit(torch.zeros(6), returns, values, None, torch.zeros(6)))
    assert figures["critic/explained_variance_first"] == pytest.approx(1)
    assert figures["critic/explained_variance"] == pytest.approx(0.5)
    assert (figures["critic/value"], figures["critic/return"]) == (1.0, 1.0)
