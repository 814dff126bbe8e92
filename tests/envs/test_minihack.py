"""MiniHack: worlds by seed, the actions of a task, ends and goals."""

import random
import re

import pytest
from gymnasium.utils.env_checker import check_env

from turnwise.envs.minihack import MiniHack

pytest.importorskip("minihack")

TASKS = ["MazeWalk-9x9", "MazeWalk-15x15", "Corridor-R3", "CorridorBattle-Dark", "Quest-Easy", "Quest-Medium"]


def play(task: str, seed: int, turns: int, **arguments) -> list:
    """Random play from a seed."""
    env = MiniHack(task, **arguments)
    env.action_space.seed(0)
    seen: list = [env.reset(seed=seed)[0]]
    for _ in range(turns):
        seen.append(env.step(env.action_space.sample()))
        if seen[-1][2] or seen[-1][3]:
            break
    env.close()
    return seen


def way_to_the_stairs(cue: str) -> list[str]:
    """Through a maze that is in sight as a whole; walls are spaces and lines."""
    rows = cue.partition("\nYou carry:")[0].splitlines()[1:]
    start = next((i, row.index("@")) for i, row in enumerate(rows) if "@" in row)
    reached, edge = {start: []}, [start]
    ways = {"west": (0, -1), "south": (1, 0), "north": (-1, 0), "east": (0, 1)}
    for here in edge:
        for way, (down, right) in ways.items():
            i, j = here[0] + down, here[1] + right
            if (i, j) not in reached and 0 <= i < len(rows) and 0 <= j < len(rows[i]) and rows[i][j] in ".>":
                reached[i, j] = [*reached[here], way]
                edge.append((i, j))
                if rows[i][j] == ">":
                    return reached[i, j]
    raise AssertionError(cue)


@pytest.mark.parametrize("task", TASKS)
def test_a_world_is_a_function_of_the_seed_and_the_actions(task):
    random.seed(1)
    first = play(task, 1, 40)
    random.seed(2)
    assert play(task, 1, 40) == first
    assert random.random() == random.Random(2).random()  # nobody else's luck is touched
    assert len({play(task, seed, 0)[0]["cue"] for seed in range(4)}) > 1


def test_it_is_a_gymnasium_environment():
    check_env(MiniHack(), skip_render_check=True)


def test_one_environment_gives_a_world_again():
    env = MiniHack("MazeWalk-9x9")
    worlds = [env.reset(seed=seed)[0] for seed in (3, 4, 3)]
    assert worlds[0] == worlds[2] != worlds[1]


def test_a_task_has_its_own_actions():
    compass = {"north", "east", "south", "west", "northeast", "southeast", "southwest", "northwest"}
    assert set(MiniHack("MazeWalk-9x9").actions) == compass
    assert {"north", "open", "kick", "search"} <= set(MiniHack("Corridor-R3").actions)
    assert {"north", "apply", "pickup", "zap", "f"} <= set(MiniHack("Quest-Easy").actions)


@pytest.mark.parametrize(("task", "goal"), [("MazeWalk-9x9", "maze"), ("Eat", "the task is Eat")])
def test_the_goal_is_told(task, goal):
    told = MiniHack(task).reset(seed=0)[0]["instructions"]
    assert re.match(rf"You play NetHack: .*{goal}", told) and "Your actions: north, " in told


def test_the_stairs_end_a_maze_with_success():
    env = MiniHack("MazeWalk-Mapped-9x9")
    for seed in range(3):
        seen, _ = env.reset(seed=seed)
        *walk, last = way_to_the_stairs(seen["cue"])
        for way in walk:
            _, reward, terminated, truncated, info = env.step(way)
            assert (terminated, truncated, info) == (False, False, {"success": False}) and reward <= 0
        _, reward, terminated, truncated, info = env.step(last)
        assert (terminated, truncated, info) == (True, False, {"success": True}) and reward == 1


def test_a_limit_of_turns_truncates():
    seen = play("MazeWalk-9x9", 0, 10, max_turns=3)
    assert [turn[2:4] for turn in seen[1:]] == [(False, False), (False, False), (False, True)]


def test_mistakes_are_one_sentence():
    with pytest.raises(ValueError, match=r"task is 'MazeWalk-9x8' \(did you mean 'MazeWalk-9x9'\?\)"):
        MiniHack("MazeWalk-9x8")
    with pytest.raises(ValueError, match="max_turns is 0"):
        MiniHack(max_turns=0)
    with pytest.raises(ValueError, match="whose levels MiniHack does not bring along"):
        MiniHack("Boxoban-Hard")
