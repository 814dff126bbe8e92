"""An episode without success stands under one cause, and can be read."""

import pytest
from makers import episode, said

from turnwise.probe.failures import CAUSES, FIRST, LAST, cause, example, group_failures

WALK = [said(seen=f"room {number}") for number in range(20)]
LOST = said(status="invalid", invalid="fly")


@pytest.mark.parametrize(
    ("why", "failed"),
    [
        ("invalid actions", episode(said(seen="a"), LOST)),
        ("invalid actions", episode(LOST, end="terminated")),
        ("never left the start", episode(said(action="add"), said(action="wait"))),
        ("loop", episode(*[said(seen="a"), said(seen="b")] * 2)),
        ("ended in failure", episode(*WALK, end="terminated")),
        ("ended in failure", episode(said(action="add"), said(action="wait"), end="terminated")),  # by its last move
        ("out of time", episode(*WALK)),
        ("out of time", episode(said())),  # one turn shows neither a loop nor a start that is never left
        ("out of time", episode(*WALK, success=None)),
        (None, episode(*WALK, success=None, end="terminated")),
        (None, episode(LOST, success=True, end="terminated")),
    ],
)
def test_causes(why, failed):
    assert cause(failed) == why


def test_the_same_action_elsewhere_and_another_action_here_are_no_loop():
    turns = [said(seen=seen, action=action) for seen in "ab" for action in ("add", "wait")]
    assert cause(episode(*turns)) == "out of time"


def test_a_loop_is_seen_whatever_is_said_in_it():
    turns = [said(f"thought {number}", seen="ab"[number % 2]) for number in range(8)]
    assert cause(episode(*turns)) == "loop"


def test_each_failure_is_counted_once_and_the_largest_group_comes_first():
    failed = [episode(*WALK), episode(LOST), episode(LOST), episode(*WALK, success=True)]
    groups = group_failures(failed)
    assert [(group.cause, group.count) for group in groups] == [("invalid actions", 2), ("out of time", 1)]
    assert all(group.meaning == CAUSES[group.cause] for group in groups)


def test_examples_are_of_different_tasks_where_there_are_such():
    failed = [episode(LOST, task="a"), episode(LOST, task="a"), episode(LOST, task="b")]
    (group,) = group_failures(failed)
    assert [one.task for one in group.examples] == ["a", "b"]


def test_a_long_episode_is_shown_by_its_ends():
    whole = example(episode(*WALK[: FIRST + LAST]))
    assert [line.number for line in whole.opening] == list(range(1, FIRST + LAST + 1))
    assert whole.ending == ()
    ends = example(episode(*WALK))
    assert [line.number for line in (*ends.opening, *ends.ending)] == [*range(1, FIRST + 1), 17, 18, 19, 20]
    assert ends.ending[-1].observation == "room 19"
    assert ends.turns == 20
