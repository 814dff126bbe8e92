from dataclasses import replace

import pytest
from helpers import segment, turn

from turnwise.groups import by_level, filter_groups, is_useless
from turnwise.types import Outcome, Segment


def played(seed: int, *rewards: float, task: str = "goto", slot: int = 0) -> Segment:
    return segment(*(turn([1], [2], reward) for reward in rewards), seed=seed, task=task, slot=slot)


def test_a_group_is_the_episodes_of_a_task_and_a_seed():
    segments = [played(1, 0.0), played(2, 0.0), played(1, 1.0), played(1, 0.0, task="open")]
    assert by_level(segments) == [[segments[0], segments[2]], [segments[1]], [segments[3]]]


def test_groups_whose_episodes_returned_the_same_are_left_out():
    mixed = [played(1, 0.0, 1.0, slot=0), played(1, 0.0, slot=1), played(1, 1.0, slot=2)]
    lost = [played(2, 0.0, slot=3), played(2, 0.0, 0.0, slot=4)]
    alone = [played(3, 1.0, slot=5)]
    other_task = [played(2, 0.0, task="open", slot=6), played(2, 1.0, task="open", slot=7)]
    segments = [mixed[0], lost[0], alone[0], other_task[0], mixed[1], lost[1], other_task[1], mixed[2]]
    kept, dropped = filter_groups(segments)
    assert [one.slot for one in kept] == [0, 6, 1, 7, 2]
    assert dropped == 2
    assert filter_groups(kept) == (kept, 0)


def test_nothing_is_left_of_nothing():
    assert filter_groups([]) == ([], 0)


def test_returns_that_differ_by_rounding_are_the_same():
    group = [played(1, 0.1, 0.2, 0.3), played(1, 0.3, 0.2, 0.1)]
    one, other = (episode.outcome.episode_return for episode in group)
    assert one != other
    assert is_useless(group)
    assert not is_useless([played(1, 0.1), played(1, 0.1001)])


def test_questions_of_the_memory_are_no_turns_of_an_episode():
    asked = segment(turn([1], [2], of_memory=True), turn([1], [3], 1.0))
    assert filter_groups([asked, played(0, 0.0)])[1] == 0


@pytest.mark.parametrize("part", ["cut", "begun in an earlier batch"])
def test_parts_of_episodes_are_refused(part):
    short = played(1, 0.0)
    changes = {"outcome": None, "end": "cut"} if part == "cut" else {"outcome": Outcome(None, 0.0, 2, None)}
    with pytest.raises(ValueError, match=r"slot 0 brings a part of its episode 0.*rollout\.episodes=1"):
        filter_groups([played(1, 1.0), replace(short, **changes)])
